"""`omnitide generate`: follow a stream, answer the questions, report."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from omnitide.cli import FAILED, GONE, INTERRUPTED
from omnitide.cli.console import PlainConsole
from omnitide.cli.dry_run import dry_run
from omnitide.cli.progress import make_meter
from omnitide.cli.report import as_json, table
from omnitide.cli.request import Request, read_request
from omnitide.cli.terminal import abandon, say, write_words
from omnitide.cli.transcript import Transcript
from omnitide.cli.words import Words
from omnitide.config import MediaOptions
from omnitide.duplex import DuplexSession
from omnitide.embedded import default_clip
from omnitide.errors import OmnitideError
from omnitide.following import follow
from omnitide.loading import defaults_of, load
from omnitide.media.recording import read_recording
from omnitide.media.source import checked_path, scheme_of
from omnitide.media.stream import MediaStream
from omnitide.policies import POLICIES
from omnitide.response import DuplexUpdate, Update
from omnitide.session import Session
from omnitide.simulation.trace import TraceWriter


def generate(options: argparse.Namespace) -> int:
    """Run the command.

    The command line is checked first, then whether its files are there, then the model's
    config.json, which says how to cut the stream; then the media are opened and the model is
    loaded. What ends the stream early (it breaks off, a unit does not fit, Ctrl-C, the reader of
    stdout goes) ends it only: everything up to there is reported.

    Returns:
        The exit code.

    Raises:
        OmnitideError: Nothing could be begun.
        BrokenPipeError: Nobody reads what is reported.
    """
    request = read_request(options)
    for file in request.files:
        if scheme_of(file) is None:
            checked_path(file)
    if request.dry_run:
        return dry_run(request)
    screen = PlainConsole(stderr=True)
    with _open_trace(request) as trace:
        media = request.media(defaults_of(request.model, duplex=request.duplex is not None))
        with _open_media(request, media) as stream:
            session = _open_session(request, media)
            if trace is not None:
                trace.record(session)
            return _follow(request, stream, session, screen)


def _open_trace(request: Request) -> TraceWriter | nullcontext[None]:
    return nullcontext() if request.trace is None else TraceWriter(request.trace)


def _open_media(request: Request, media: MediaOptions) -> MediaStream:
    video = request.video
    if request.model is None and not request.has_media:
        video = str(default_clip())
    return MediaStream(video=video, audio=request.audio, images=request.images, options=media)


def _open_session(request: Request, media: MediaOptions) -> Session:
    voice = None if request.voice is None else read_recording(request.voice)
    model = load(
        request.model,
        backend=request.backend,
        dtype=request.dtype,
        media=media,
        duplex=request.duplex is not None,
    )
    wanted = request.retention(model.defaults)
    options: dict[str, Any] = {
        "policy": request.policy,
        "layout": request.layout,
        "retention": wanted,
        "migration": request.migration,
        "media": media,
        "system_prompt": request.system_prompt,
        "max_kv_size": request.max_kv_size,
        "kv_bits": request.kv_bits,
    }
    if request.duplex is None:
        session = Session(model, max_tokens=request.max_tokens, **options)
    else:
        session = DuplexSession(
            model, duplex=request.duplex, voice=voice, sampling=request.sampling, **options
        )
    if not model.spec.trained:
        say("note", "the model is untrained (random weights): its words mean nothing; give --model")
    if session.cache.policy.needs_mass:
        say(
            "note",
            f"--policy {request.policy} needs attention scores, which kernels don't give: every "
            "pass computes them a second time",
        )
    used = session.retention
    unit = model.largest_media_unit(media) if request.duplex is None else session.largest_unit
    if POLICIES[request.policy].bounded and unit > used.low_watermark:
        say(
            "note",
            f"a unit of the stream may have {unit:,} tokens, more than the low watermark of "
            f"{used.low_watermark:,}; where it has, only the newest stays: raise --low-watermark "
            "and --high-watermark, or lower --max-pixels or --chunk-seconds",
        )
    if used != wanted:
        say(
            "note",
            f"--max-kv-size lowers the watermarks to {used.high_watermark:,} and "
            f"{used.low_watermark:,}",
        )
    return session


def _follow(request: Request, stream: MediaStream, session: Session, screen: Console) -> int:
    transcript = Transcript()
    words = Words(headed=request.verbose or len(request.questions) > 1)
    meter = make_meter(screen, stream.seconds, request.verbose)
    code, ended = 0, None
    try:
        for event in follow(session, stream, request.questions, request.sampling):
            if isinstance(event, Update):
                meter.show(event)
                if not isinstance(event, DuplexUpdate) or event.said is None:
                    continue
            meter.pause()
            transcript.add(event, session.time)
            if not request.as_json:
                words.show(event, session.time)
    except KeyboardInterrupt:
        code, ended = INTERRUPTED, "interrupted"
    except OmnitideError as error:
        code, ended = FAILED, str(error)
    except BrokenPipeError:
        abandon(sys.stdout)
        code, ended = FAILED, GONE
    finally:
        meter.pause()
    untold = session.untold if isinstance(session, DuplexSession) else None
    if untold is not None:
        transcript.add_unit(untold)
        if not request.as_json:
            words.say(untold)
    if code == 0 and stream.broken is not None:
        code, ended = FAILED, stream.broken
    if stream.damage is not None:
        say("note", f"passed over: {stream.damage}")
    if session.costs.note is not None:
        say("note", session.costs.note)
    trained = session.model.spec.trained
    if request.as_json:
        duplex = request.duplex is not None
        write_words(as_json(transcript, session.stats(), trained, ended, duplex) + "\n")
    else:
        words.end_line()
        screen.print(table(session.stats(), trained))
    if ended is not None:
        say("error", ended)
    return code
