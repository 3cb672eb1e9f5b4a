"""Follows items with a model: one session an item, events at their moments.

The model never sees beyond the moment of a question: a chunk that ends later comes after it. What
a clip or a session refuses fails that item alone and is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from omnitide.config import MediaOptions, SamplingConfig
from omnitide.errors import CapacityError, MediaError, NumericsError
from omnitide.evaluation.item import Item, Note, Poll, Question
from omnitide.evaluation.item_run import ItemRun
from omnitide.evaluation.record import Record
from omnitide.evaluation.setting import Setting
from omnitide.model import OmniModel
from omnitide.session import SMALLEST_UNIT_ROOM, Session

MEDIA = MediaOptions(fps=1.0, chunk_seconds=1.0)
"""The paper's: one frame a second, with the second of sound that belongs to it."""

WARM_UP_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What all items of a run share.

    Attributes:
        media: How clips are cut.
        sampling: How tokens are chosen. Every question draws with a seed of its own, made of this
            one and of its id, so that order and workers change nothing.
        system_prompt: None takes the model's.
    """

    media: MediaOptions = MEDIA
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    system_prompt: str | None = None


class Runner:
    """Holds a model that was loaded for `options.media`."""

    def __init__(self, model: OmniModel, options: RunOptions) -> None:
        self.model = model
        self.options = options

    def run(self, item: Item, setting: Setting) -> Record:
        """Follow an item. Returns its record; a failed one where the clip or a session refuses.

        Raises:
            ConfigError: The setting can't be met by any item.
        """
        try:
            return self._follow(item, setting)
        except (MediaError, CapacityError, NumericsError) as error:
            return Record(item.id, item.clip, setting.name, error=str(error))

    def warm_up(self, item: Item, setting: Setting) -> None:
        """Follow the first chunks of an item and forget it, so that kernels are compiled."""
        question = Question("warm-up", "Ready?", None, max_tokens=2)
        short = replace(item, events=(question,))
        try:
            self._follow(short, setting, most_chunks=WARM_UP_CHUNKS)
        except (MediaError, CapacityError, NumericsError):
            return  # the item itself says what is wrong

    def open_session(self, item: Item, setting: Setting) -> Session:
        """A session with room for the longest text and the longest reply of an item.

        Raises:
            ConfigError: The setting can't be met.
        """
        room = max(self.model.largest_media_unit(self.options.media), SMALLEST_UNIT_ROOM)
        return Session(
            self.model,
            policy=setting.policy,
            layout=setting.layout,
            retention=setting.retention(self.model.defaults),
            media=self.options.media,
            system_prompt=self.options.system_prompt,
            max_tokens=item.longest_reply,
            largest_unit=max(room, *(self._length(text) for text in _texts(item))),
        )

    def _length(self, text: str) -> int:
        """Tokens of a text as a unit; nothing has more tokens than bytes, but for its markers."""
        if len(text.encode()) <= SMALLEST_UNIT_ROOM // 2:
            return 1
        return len(self.model.backend.run(self.model.encode_prompt, text).unit)

    def _follow(self, item: Item, setting: Setting, most_chunks: int | None = None) -> Record:
        with item.source.open(self.options.media) as clip:
            session = self.open_session(item, setting)
            run = ItemRun(session, item, self.options.sampling)
            for index, chunk in enumerate(clip):
                if index == most_chunks:
                    break
                run.events_before(chunk.stop)
                run.took_in(session.append_media(chunk), chunk.start)
            else:
                if clip.broken is not None:
                    raise MediaError(f"[media] {clip.broken}")
            run.remaining_events()
            return run.record(setting, clip.damage)


def _texts(item: Item) -> Iterator[str]:
    for event in item.events:
        if isinstance(event, Note):
            yield event.text
        else:
            yield event.prompt
            if isinstance(event, Poll):
                yield event.then
