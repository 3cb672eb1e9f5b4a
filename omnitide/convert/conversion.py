"""Carrying a plan out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from omnitide.convert.plan import Plan
from omnitide.convert.shard import ModuleError, ShardWriter
from omnitide.convert.workspace import Workspace
from omnitide.errors import CheckpointError, reason_of
from omnitide.models.headers import CONVERSION_FILE, INDEX_FILE

COPIED = ("*.json", "*.txt", "*.jinja")
"""Files beside the weights that belong to a checkpoint."""

MEMORY_LIMIT = 1 << 30
"""Bytes that weights may take while they are converted, by default."""


def convert(
    plan: Plan,
    folder: Path,
    target: Path,
    memory_limit: int = MEMORY_LIMIT,
    advance: Callable[[int], None] = lambda _: None,
    resume: Callable[[], None] = lambda: None,
) -> list[ModuleError]:
    """Write a checkpoint. It appears under `target` once it is whole, or not at all.

    If this is interrupted, what is finished stays beside the target, and the same call goes on
    from there.

    Args:
        plan: Made from `folder`.
        folder: Where the other files of the checkpoint are.
        target: A folder that is not there yet, or is empty.
        memory_limit: Bytes that weights may take at a time; a matrix row is never cut.
        advance: Is told the bytes of the source that are done since the last call.
        resume: Is called where the work of an earlier call is taken up.

    Returns:
        What quantising did to each matrix, in the order in which they are stored.

    Raises:
        ConfigError: The target is there, or the folder beside it is of another conversion or in
            the hands of another process.
        CheckpointError: A value is not finite, the disk is too small, or a file can't be read or
            written.
    """
    with Workspace(target, plan.digest()) as work:
        _check_room(plan, work)
        if work.taken_up:
            resume()
        errors = _write_shards(plan, work, memory_limit, advance)
        own = {"config.json", INDEX_FILE, CONVERSION_FILE}
        files = {file for pattern in COPIED for file in folder.glob(pattern) if file.is_file()}
        work.copy(sorted(file for file in files if file.name not in own))
        if len(plan.shards) > 1:
            work.write_json(INDEX_FILE, _index(plan))
        work.write_json("config.json", plan.config)
        work.finish()
    return errors


def _write_shards(
    plan: Plan, work: Workspace, memory_limit: int, advance: Callable[[int], None]
) -> list[ModuleError]:
    """Write the files of weights that are not finished. The errors of all of them."""
    errors: list[ModuleError] = []
    with ShardWriter(memory_limit, advance) as writer:
        for shard in plan.shards:
            done = work.done(shard.file)
            if done is not None:
                errors += done
                advance(shard.source_bytes)
                continue
            with work.open(shard.file) as file:
                made = writer.write(shard, file)
                file.sync()
                file.appear()
            work.add(shard.file, made)
            errors += made
    return errors


def _check_room(plan: Plan, work: Workspace) -> None:
    """Refuse to begin what the disk can't hold.

    Raises:
        CheckpointError: It can't.
    """
    open_shards = [shard for shard in plan.shards if work.done(shard.file) is None]
    need = sum(shard.written_bytes for shard in open_shards)
    try:
        free = shutil.disk_usage(work.folder).free
    except OSError as error:
        raise CheckpointError(
            f"[convert] can't look at the disk of {work.folder}: {reason_of(error)}"
        ) from error
    if need > free:
        raise CheckpointError(
            f"[convert] the result needs {need / 2**20:,.1f} MiB on the disk of {work.target}, "
            f"{free / 2**20:,.1f} MiB are free; free some, or give another --mlx-path"
        )


def _index(plan: Plan) -> dict[str, object]:
    """Which file holds which tensor, as Hugging Face's index has it."""
    places = {
        output.name: shard.file
        for shard in plan.shards
        for item in shard.items
        for output in item.outputs()
    }
    return {
        "metadata": {"total_size": plan.written_bytes},
        "weight_map": dict(sorted(places.items())),
    }
