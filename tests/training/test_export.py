"""An exported model through omnitide's own loader gives the logits that training saw."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.media.chunk import MediaChunk
from omnitide.models import family_defaults
from omnitide.units import UnitBuilder, UnitKind

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

MEDIA = MediaOptions(max_pixels=112 * 112)


@pytest.fixture(scope="module")
def thinker(tiny_settings: Any) -> Any:
    """Random weights, large enough to make logits of some size."""
    from training.model.thinker import Thinker

    torch.set_num_threads(1)
    model = Thinker(tiny_settings, seed=3).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.mul_(20.0 if "embed" in name or "lm_head" in name else 1.5)
    return model


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    thinker: Any,
    tiny_settings: Any,
    tokenizer_folder: Path,
) -> Path:
    """The model in float32."""
    from training.model.checkpoint import write_full

    folder = tmp_path_factory.mktemp("full")
    write_full(thinker.state_dict(), tiny_settings, tokenizer_folder, folder)
    return folder


def test_the_command_writes_what_it_was_told_of_retention(
    thinker: Any, tokenizer_folder: Path, tmp_path: Path
) -> None:
    from training.export import main
    from training.learn import snapshots

    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(tokenizer_folder, run)
    state = {"model": thinker.state_dict(), "step": 3, "options": {"settings": "tiny"}}
    snapshots.save(run, state)
    assert main([f"--run={run}", f"--out={out}", "--keep=image_sink=0,text_budget=70"]) == 0
    kept = family_defaults(out)
    assert (kept.image_sink, kept.text_budget) == (0, 70)
    assert kept.audio_sink == FamilyDefaults().audio_sink
    with pytest.raises(SystemExit):
        main([f"--run={run}", f"--out={out}", "--keep=fps=1"])


def _media(units: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (units, 4, 112, 112, 3), dtype=np.uint8)
    return frames, (0.1 * random.standard_normal((units, 32_000))).astype(np.float32)


def _trained_logits(thinker: Any, row: Any) -> Any:
    """Logits of the first stream of a row, as training computes them."""
    from training.model.mel import LogMel
    from training.rows.batch import collate

    batch = collate([row])
    frames, samples = _media(len(row.streams))
    mel = LogMel()(torch.from_numpy(samples), batch.streams)
    states = thinker.states(batch, torch.from_numpy(frames), mel, batch.visibility.dense())
    return thinker.lm_head(states)[0, row.branch == 0].numpy()


def _loaded_logits(model: Any, row: Any, bare_cache: Any) -> Any:
    """The same by a loaded model, chunk by chunk. Call on the backend's thread."""
    cache = bare_cache(model, num_pages=24)
    places = np.flatnonzero(row.branch == 0)
    frames, samples = _media(len(row.streams))
    stream, logits, at = model.new_stream(), [], 0
    for unit in range(int(row.unit[places].max()) + 1):
        first = int(row.picture_places[unit][0]) - 2  # behind the two markers
        if first > at:
            logits.append(_text(cache, model, row.ids[places[at:first]]))
        chunk = MediaChunk(
            2 * unit, 2 * unit + 2, tuple(frames[unit]), (0, 0.5, 1, 1.5), samples[unit]
        )
        encoded, stream = model.encode_media(chunk, stream)
        logits.append(cache.prefill(encoded.unit, encoded.embeddings))
        at = first + len(encoded.unit)
    if at < len(places):
        logits.append(_text(cache, model, row.ids[places[at:]]))
    np.testing.assert_array_equal(cache.history.cells["token"], row.ids[places])
    return np.concatenate(logits)


def _text(cache: Any, model: Any, ids: Any) -> Any:
    return cache.prefill(UnitBuilder().text(ids).build(UnitKind.TEXT), model.embed(ids))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_loader_gives_the_same_logits(
    seed: int,
    folder: Path,
    thinker: Any,
    tiny_row: Callable[..., Any],
    load: Any,
    any_backend: Backend,
    bare_cache: Any,
    assert_close: Any,
) -> None:
    row, _ = tiny_row(seed, (3,))
    model = load(folder, any_backend, MEDIA)
    got = any_backend.run(_loaded_logits, model, row, bare_cache)
    assert_close(got, _trained_logits(thinker, row), 5e-5)


def test_eight_bits_change_little(
    tmp_path: Path,
    folder: Path,
    thinker: Any,
    tiny_row: Callable[..., Any],
    load: Any,
    reference: Backend,
    bare_cache: Any,
) -> None:
    from training.model.checkpoint import write_eight_bit

    size = write_eight_bit(folder, tmp_path / "small")
    assert size < 0.5 * (folder / "model.safetensors").stat().st_size
    row, _ = tiny_row(0, (3,))
    model = load(tmp_path / "small", reference, MEDIA)
    got = reference.run(_loaded_logits, model, row, bare_cache)
    want = _trained_logits(thinker, row)
    assert 1e-4 < np.abs(got - want).max() < 0.1 * np.abs(want).max()
    assert model.spec.trained


def test_the_small_model_fits_the_wheel(tmp_path: Path, tokenizer_folder: Path) -> None:
    from training.model.checkpoint import write_eight_bit, write_full
    from training.model.thinker import Thinker
    from training.settings import small

    write_full(Thinker(small()).state_dict(), small(), tokenizer_folder, tmp_path / "full")
    # The tokenizer of `small` has about as many bytes.
    assert write_eight_bit(tmp_path / "full", tmp_path / "small") < 24e6
