"""The whole model against the published code: prompts and duplex streams, whole and in pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit
from omnitide.units import Modality, Unit, UnitBuilder, UnitKind

RATE = 16_000
LISTEN = 277


def sound(values: NDArray[np.int16]) -> NDArray[np.float32]:
    return values.astype(np.float32) / 32768


def marked(unit: Unit) -> list[int]:
    """Token ids, features as the golden files mark them."""
    cells = unit.cells
    marks = {Modality.IMAGE: -1, Modality.AUDIO: -2}
    return [marks.get(c["modality"], int(c["token"])) for c in cells]


@pytest.fixture
def duplex_units(golden_model: Any, golden: Any, any_backend: Backend) -> list[EncodedUnit]:
    """Prefix with a voice, then three listening units with a picture each."""
    want, model = golden("11_llm_duplex"), golden_model(any_backend)
    clip = sound(golden("05_audio_7.0s_wave_mel")["wav_i16"])

    def encode() -> list[EncodedUnit]:
        rules, stream = model.duplex, model.duplex.new_stream()
        units = [rules.encode_system(None, sound(want["ref_wav_i16"]))]
        for start, name in enumerate(want["frames"].tolist()):
            frame = golden(str(name).removesuffix(".npz"))["rgb"]
            samples = clip[RATE * start : RATE * (start + 1)]
            chunk = MediaChunk(start, start + 1.0, (frame,), (float(start),), samples)
            heard, stream = rules.encode_media(chunk, stream)
            listened = rules.decided([LISTEN], heard.unit.cells)
            closed = rules.closing(listened.cells)
            for unit in (heard, model_text(model, listened), model_text(model, closed)):
                units.append(unit)
        return units

    return any_backend.run(encode)


def model_text(model: Any, unit: Unit) -> EncodedUnit:
    return EncodedUnit(unit, model.embed(unit.cells["token"]))


@pytest.mark.parametrize("piece", [None, 7], ids=["whole units", "pieces"])
def test_duplex_stream(
    duplex_units: list[EncodedUnit],
    golden_model: Any,
    golden: Any,
    any_backend: Backend,
    bare_cache: Any,
    piece: int | None,
) -> None:
    want, model = golden("11_llm_duplex"), golden_model(any_backend)
    assert [i for unit in duplex_units for i in marked(unit.unit)] == want["ids_tiny"].tolist()
    assert len(duplex_units[0].unit) == want["system_length"]

    def run() -> tuple[Any, Any]:
        cache = bare_cache(model)
        embeddings = [any_backend.to_numpy(unit.embeddings) for unit in duplex_units]
        logits = [cache.prefill(unit.unit, unit.embeddings, piece) for unit in duplex_units]
        return np.concatenate(embeddings), np.concatenate(logits)

    embeddings, logits = any_backend.run(run)
    assert np.abs(embeddings - want["embeds"]).max() < 5e-5
    assert np.abs(logits - want["logits_one_go"]).max() < 1e-4
    assert np.abs(logits[want["feed_logit_positions"]] - want["feed_logits"]).max() < 1e-4


def test_prompt_end_to_end(
    golden_model: Any, golden: Any, any_backend: Backend, bare_cache: Any
) -> None:
    """A still picture in slices, two seconds of sound, a question; thinking off."""
    want, model = golden("14_offline_a"), golden_model(any_backend)
    frame = golden(f"{want['image']}".removesuffix(".npz"))["rgb"]

    def run() -> Any:
        encoder, cache = model.encoder, bare_cache(model)
        builder = UnitBuilder()
        ids = model.encode_system("").unit.cells["token"]
        opening = UnitBuilder().text(ids[-3:]).build(UnitKind.SYSTEM)
        pictures = encoder.still(builder, frame, [15])
        sounds = encoder.audio.encode_sound(sound(want["wav_i16"]))
        encoder.layout.sound(builder, sounds.shape[0])
        builder.text(encoder.layout.markers.newline)
        media = encoder.assemble(builder.build(UnitKind.MEDIA), pictures, sounds)
        heard = replace(model.new_stream(), heard=True)
        asked = model.encode_prompt("Describe what you see and hear.", stream=heard)
        units = [model_text(model, opening), media, asked]
        logits = [cache.prefill(unit.unit, unit.embeddings) for unit in units]
        features = [any_backend.to_numpy(part) for part in (pictures, sounds)]
        return [unit.unit for unit in units], features, np.concatenate(logits)

    units, (pictures, sounds), logits = any_backend.run(run)
    got = np.array([i for unit in units for i in marked(unit)])
    wanted = np.where(want["ids_tiny"] == 104, got, want["ids_tiny"])  # 104: a feature's place
    assert got.tolist() == wanted.tolist()
    assert (got < 0).sum() == (want["ids_tiny"] == 104).sum()
    assert np.abs(pictures - want["image_features"]).max() < 5e-5
    assert np.abs(sounds - want["audio_features"]).max() < 5e-5
    assert np.abs(logits - want["logits"]).max() < 2e-4
