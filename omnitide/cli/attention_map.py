"""`omnitide attention-map`: follow a stream and show where the attention went."""

from __future__ import annotations

import argparse

from omnitide.attention_map.report import AttentionReport, make_report
from omnitide.attention_map.watch import AttentionWatch
from omnitide.cli import FAILED, INTERRUPTED
from omnitide.cli.attention_table import lines
from omnitide.cli.console import PlainConsole
from omnitide.cli.plot import open_picture
from omnitide.cli.progress import make_meter
from omnitide.cli.terminal import printable, say, write_words
from omnitide.config import (
    DEFAULTS,
    FamilyDefaults,
    MediaOptions,
    RetentionConfig,
    family_retention,
)
from omnitide.embedded import default_clip
from omnitide.errors import ConfigError, OmnitideError
from omnitide.following import follow, pair_questions
from omnitide.loading import defaults_of, load
from omnitide.media.stream import MediaStream
from omnitide.response import Update
from omnitide.session import Session


def attention_map(options: argparse.Namespace) -> int:
    """Run the command. What ends the stream early ends it only: what was seen is shown.

    Returns:
        The exit code.

    Raises:
        ConfigError: An option, or what they make together, makes no sense.
        OmnitideError: Nothing could be begun.
    """
    questions = pair_questions(options.prompt, options.ask_at) if options.prompt else ()
    if options.ask_at and not options.prompt:
        raise ConfigError("[attention-map] --ask-at needs a --prompt to ask; give one")
    if options.max_tokens < 1:
        raise ConfigError(
            f"[attention-map] --max-tokens must be at least 1, got {options.max_tokens}"
        )
    _retention(options, DEFAULTS)  # contradictions show with any family's defaults
    media = defaults_of(options.model).media(options.fps, options.chunk_seconds, options.max_pixels)
    with open_picture(options.plot) as picture, _open_media(options, media) as stream:
        session, watch = _open_session(options, media)
        meter = make_meter(PlainConsole(stderr=True), stream.seconds, verbose=False)
        code, ended = 0, None
        try:
            for event in follow(session, stream, questions):
                if isinstance(event, Update):
                    meter.show(event)
        except KeyboardInterrupt:
            code, ended = INTERRUPTED, "interrupted"
        except OmnitideError as error:
            code, ended = FAILED, str(error)
        finally:
            meter.pause()
        if code == 0 and stream.broken is not None:
            code, ended = FAILED, stream.broken
        if stream.damage is not None:
            say("note", f"passed over: {stream.damage}")
        report = _report(session, watch, ended)
        if options.json:
            write_words(report.as_json() + "\n")
        else:
            write_words(printable("\n".join(lines(report))) + "\n")
        if picture is not None and report.queries:
            from omnitide.attention_map.picture import draw

            picture.write(lambda: draw(report, watch, options.draw))
    if ended is not None:
        say("error", ended)
    return code


def _retention(options: argparse.Namespace, defaults: FamilyDefaults) -> RetentionConfig:
    names = ("high_watermark", "low_watermark", "image_sink", "audio_sink")
    return family_retention(defaults, **{name: getattr(options, name) for name in names})


def _open_media(options: argparse.Namespace, media: MediaOptions) -> MediaStream:
    video = options.video
    if options.model is None and not (video or options.audio or options.image):
        video = str(default_clip())
    if video is None and options.audio is None and not options.image:
        raise ConfigError("[attention-map] there must be a stream; give --video or --audio")
    return MediaStream(video=video, audio=options.audio, images=options.image, options=media)


def _open_session(
    options: argparse.Namespace, media: MediaOptions
) -> tuple[Session, AttentionWatch]:
    model = load(options.model, backend=options.backend, dtype=options.dtype, media=media)
    spec = model.spec
    watch = AttentionWatch(spec.num_layers, spec.num_heads, options.queries, options.layer)
    for layer, head in options.draw:
        if layer not in watch.layers or (head is not None and head >= spec.num_heads):
            raise ConfigError(
                f"[attention-map] --draw must name one of the layers {_listed(watch.layers)} and "
                f"a head below {spec.num_heads}, got {layer if head is None else f'{layer}:{head}'}"
            )
    session = Session(
        model,
        policy=options.policy,
        retention=_retention(options, model.defaults),
        media=media,
        system_prompt=options.system_prompt,
        max_tokens=options.max_tokens,
    )
    session.cache.watcher = watch
    return session, watch


def _report(session: Session, watch: AttentionWatch, ended: str | None) -> AttentionReport:
    spec = session.model.spec
    return make_report(
        watch,
        session.retention,
        model=spec.name,
        policy=session.cache.policy.name,
        trained=spec.trained,
        cut=session.cache.state.evictions > 0,
        broken=ended,
    )


def _listed(layers: list[int]) -> str:
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
