"""A model card: which weights, on what machine, under which settings, with what results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.manifest import Manifest
from omnitide.evaluation.results import Results
from omnitide.evaluation.summary import Summary, left_out
from omnitide.evaluation.tables import aligned, markdown, reading_words


def write_card(parts: Sequence[tuple[Results, Summary]]) -> str:
    """The card of one model, as Markdown.

    Args:
        parts: Folders of results with their summaries.

    Raises:
        ConfigError: They are of different checkpoints.
    """
    manifests = [results.manifest for results, _ in parts]
    hashes = {manifest.checkpoint for manifest in manifests}
    if len(hashes) > 1:
        raise ConfigError(
            f"[card] a card is of one checkpoint, the folders are of {len(hashes)}; make one each"
        )
    lines = [*_front(manifests), *_machines(manifests), *_settings(parts)]
    for results, summary in parts:
        lines += _results(results, summary)
    return "\n".join(lines).rstrip() + "\n"


def _front(manifests: Sequence[Manifest]) -> Iterator[str]:
    first = manifests[0]
    yield f"# {first.model}"
    yield ""
    if not first.trained:
        yield "The weights are random: the results mean nothing."
        yield ""
    yield f"Checkpoint, SHA-256 of its files: `{first.checkpoint}`"
    yield ""


def _machines(manifests: Sequence[Manifest]) -> Iterator[str]:
    yield "## Machine and versions"
    yield ""
    rows = []
    for manifest in manifests:
        machine = manifest.machine
        versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
        workers = f"{machine['workers']}{' on Ray' if machine['ray'] else ''}"
        place = f"{machine['backend']} on {machine['device']}, {machine['dtype']}"
        rows.append([manifest.benchmark, place, machine["platform"], workers, versions])
    yield from aligned(["run", "backend", "platform", "workers", "versions"], rows)
    yield ""


def _settings(parts: Sequence[tuple[Results, Summary]]) -> Iterator[str]:
    yield "## Settings"
    yield ""
    rows = []
    for results, summary in parts:
        manifest = results.manifest
        media, sampling = manifest.options["media"], manifest.options["sampling"]
        stream = f"{media['fps']:g} fps, {media['chunk_seconds']:g} s a unit, at most "
        stream += f"{media['max_pixels']:,} pixels"
        how = f"temperature {sampling['temperature']:g}, seed {sampling['seed']}"
        read = reading_words(manifest.reading)
        prompt = manifest.options["system_prompt"] or "the model's"
        names = "; ".join(summary.settings)
        rows.append([manifest.benchmark, names, stream, how, prompt, read])
    header = ["run", "policies and watermarks", "stream", "sampling", "system message", "data"]
    yield from aligned(header, rows)
    yield ""


def _results(results: Results, summary: Summary) -> Iterator[str]:
    manifest = results.manifest
    chosen = manifest.selection
    yield f"## {manifest.benchmark}"
    yield ""
    yield (
        f"{chosen['questions']:,} questions in {chosen['items']:,} of {chosen['of_items']:,} "
        f"sessions about {chosen['clips']:,} of {chosen['of_clips']:,} clips. Data: "
        f"`{manifest.data[:16]}`. {_lost(manifest.problems)}"
    )
    yield ""
    table = markdown(summary, manifest.problems, short=False)
    yield table.partition("\n\n")[2].rstrip()
    yield ""


def _lost(problems: Sequence[dict[str, Any]]) -> str:
    found = left_out(problems)
    if not found:
        return "Nothing was left out."
    questions = sum(problem["questions"] for problem in found)
    return f"Left out: {len(found):,} clips or rows with {questions:,} questions, listed below."
