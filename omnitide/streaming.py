"""The short way: one call from a model and a file to a streaming reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omnitide.config import SamplingConfig
from omnitide.errors import MediaError
from omnitide.following import follow, pair_questions
from omnitide.model import OmniModel
from omnitide.response import GenerationResponse
from omnitide.session import Session

if TYPE_CHECKING:
    from omnitide.media.source import Source


def stream_generate(
    model: OmniModel,
    prompt: str | Sequence[str],
    *,
    video: Source | None = None,
    audio: Source | None = None,
    image: Source | Sequence[Source] = (),
    ask_at: Sequence[float] = (),
    sampling: SamplingConfig | None = None,
    **session: Any,
) -> Iterator[GenerationResponse]:
    """Follow media with a model and stream the replies.

    Args:
        model: As `omnitide.load` returns it; its media options cut the stream.
        prompt: A question, or several.
        video, audio, image: Files or URLs, see `MediaStream`.
        ask_at: Seconds of the stream at which to ask, paired as on the command line (see
            `omnitide/following.py`); at its end if there are none.
        sampling: How tokens are chosen; greedy if None.
        **session: As `Session` takes them (`policy`, `retention`, `max_tokens`, ...), but for
            `media`, which the model was loaded with.

    Raises:
        ConfigError, MediaError, CapacityError: See `Session` and `follow`.
        MediaError: The stream broke off, after all replies to what was read of it.
    """
    from omnitide.media.stream import MediaStream  # brings in the media libraries

    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    questions = pair_questions(prompts, ask_at)
    images = [image] if isinstance(image, str) or not isinstance(image, Sequence) else image
    with MediaStream(video=video, audio=audio, images=images, options=model.media) as stream:
        talk = Session(model, media=model.media, **session)
        for event in follow(talk, stream, questions, sampling):
            if isinstance(event, GenerationResponse):
                yield event
        if stream.broken is not None:
            raise MediaError(stream.broken)
