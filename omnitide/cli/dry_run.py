"""`omnitide generate --dry-run`: what the run would take, before a weight is read."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.table import Table

from omnitide.backend import Backend
from omnitide.backends import load_backend
from omnitide.cli import FAILED
from omnitide.cli.console import PlainConsole
from omnitide.cli.report import bytes_in_words
from omnitide.cli.request import Request
from omnitide.cli.terminal import printable
from omnitide.config import MediaOptions
from omnitide.embedded import default_checkpoint
from omnitide.media.recording import read_recording
from omnitide.memory import MemoryNeed, Room, duplex_room, memory_need, session_room
from omnitide.models.hub import resolve
from omnitide.models.outline import ModelOutline, read_outline
from omnitide.models.quantized import QuantizedInfo


def dry_run(request: Request) -> int:
    """Print what the run would take.

    Returns:
        0 if it fits this machine, else the code of a failure.

    Raises:
        OmnitideError: The run could not begin.
    """
    backend = load_backend(request.backend, request.dtype)
    if request.model is None:
        folder = default_checkpoint(duplex=request.duplex is not None)
    else:
        folder = resolve(request.model)
    outline = read_outline(folder, request.model or "embedded default")
    media = request.media(outline.defaults)
    need = backend.run(
        memory_need,
        outline,
        backend,
        policy=request.policy,
        retention=request.retention(outline.defaults),
        media=media,
        room=_room(request, outline, media),
        max_kv_size=request.max_kv_size,
        kv_bits=request.kv_bits,
    )
    if request.as_json:
        figures = {**asdict(need), "total_bytes": need.total_bytes, "fits": need.fits}
        print(
            json.dumps({"model": outline.spec.name, "backend": backend.name, **figures}, indent=2)
        )
    else:
        _show(outline, backend, need)
    return 0 if need.fits else FAILED


def _room(request: Request, outline: ModelOutline, media: MediaOptions) -> Room:
    if request.duplex is None:
        return session_room(outline, media, request.system_prompt, request.max_tokens)
    voice = None if request.voice is None else read_recording(request.voice)
    return duplex_room(outline, media, request.system_prompt, request.duplex, voice)


def _show(outline: ModelOutline, backend: Backend, need: MemoryNeed) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    packed = sum(isinstance(info, QuantizedInfo) for info in outline.weights.values())
    kinds = f"{packed} of {len(outline.weights)} quantised" if packed else "none quantised"
    if packed and outline.kept_by(backend) is not outline:
        kinds += " and kept as floats"
    token = bytes_in_words(need.token_bytes)
    tokens = (
        f"grows by {token} a token"
        if need.kv_tokens is None
        else f"at most {need.kv_tokens:,} tokens of {token}"
    )
    grid.add_row("weights", bytes_in_words(need.weight_bytes), f"{backend.dtype}, {kinds}")
    grid.add_row("KV", bytes_in_words(need.kv_bytes), tokens)
    grid.add_row("scratch", bytes_in_words(need.scratch_bytes), "estimated, at most")
    grid.add_row("together", bytes_in_words(need.total_bytes), "")
    grid.add_row("free", bytes_in_words(need.free_bytes), printable(backend.device))
    console = PlainConsole(stderr=False)
    console.print(printable(f"{outline.spec.name} on {backend.name}"), soft_wrap=True)
    console.print(grid)
    advice = "convert the model to fewer bits, or give a smaller --max-kv-size or --max-pixels"
    console.print("It fits." if need.fits else f"It does not fit: {advice}.", soft_wrap=True)
