"""The thinker against transformers on small random checkpoints: towers, embeddings, logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.models.qwen2_5_omni.audio import num_audio_tokens
from omnitide.models.qwen2_5_omni.image import PATCH_VALUES
from omnitide.units import Unit, UnitBuilder, UnitKind

# Head sizes 128 and 64 with their sections, groups of 1, 2 and 3 heads, odd vocabularies, towers
# of other widths.
SIZES: dict[str, dict[str, Any]] = {
    "head 128": {},
    "group 3": {"hidden": 384, "heads": 3, "kv_heads": 1, "vocab_size": 301, "layers": 2},
    "head 64": {
        "heads": 4,
        "kv_heads": 2,
        "sections": (8, 12, 12),
        "vision_hidden": 80,
        "vision_heads": 4,
        "audio_hidden": 36,
    },
    "no group": {"kv_heads": 2, "vocab_size": 277, "layers": 4},
}
CASES = ["text", "image", "audio", "silent video", "video with sound", "all"]


@dataclass(frozen=True)
class Clip:
    """Input of both sides: patches and mel by piece, text in between."""

    still: NDArray[np.float32] | None = None
    still_grid: tuple[int, int, int] = (1, 10, 14)
    film: NDArray[np.float32] | None = None
    film_grid: tuple[int, int, int] = (3, 6, 10)
    mel: NDArray[np.float32] | None = None
    sound_in_film: bool = False


def _clip(case: str, seed: int) -> Clip:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    still, film, mel = normal(140, PATCH_VALUES), normal(180, PATCH_VALUES), normal(273, 128)
    return {
        "text": Clip(),
        "image": Clip(still=still),
        "audio": Clip(mel=mel),
        "silent video": Clip(film=film),
        "video with sound": Clip(film=film, mel=mel, sound_in_film=True),
        "all": Clip(still=still, film=film, mel=mel),
    }[case]


def _unit(model: Any, clip: Clip) -> Unit:
    """Text, then each piece of the clip with text behind it, in transformers' layout."""
    builder = UnitBuilder().text([5, 6, 7, 8])
    if clip.still is not None:
        model.layout.still(builder, clip.still_grid).text([20, 21])
    if clip.mel is not None and not clip.sound_in_film:
        model.layout.sound(builder, num_audio_tokens(len(clip.mel))).text([22])
    if clip.film is not None and clip.sound_in_film:
        assert clip.mel is not None
        model.layout.film_with_sound(
            builder, clip.film_grid, 1.0, num_audio_tokens(len(clip.mel)), live=False
        )
    elif clip.film is not None:
        model.layout.film(builder, clip.film_grid, 1.0)
    return builder.text([30, 31, 32, 5]).build(UnitKind.MEDIA)


def _ours(model: Any, bare_cache: Any, clip: Clip, piece: int | None = None) -> tuple[Any, Any]:
    """Embeddings and logits of all tokens. Call on the backend's thread."""
    backend, unit = model.backend, _unit(model, clip)
    parts = []
    if clip.still is not None:
        parts.append(model.vision.encode(clip.still, clip.still_grid))
    if clip.film is not None:
        parts.append(model.vision.encode(clip.film, clip.film_grid))
    pictures = backend.concat(parts) if parts else None
    sounds = None if clip.mel is None else model.audio.encode(clip.mel)
    encoded = model.assemble(unit, pictures, sounds)
    logits = bare_cache(model).prefill(unit, encoded.embeddings, piece)
    return backend.to_numpy(encoded.embeddings), logits


def _theirs(thinker: Any, ids: NDArray[np.int32], clip: Clip) -> tuple[Any, Any]:
    """Embeddings and logits of transformers, which works out positions by itself."""
    import torch

    inputs: dict[str, Any] = {"input_ids": torch.from_numpy(ids.astype(np.int64))[None]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if clip.still is not None:
        inputs["pixel_values"] = torch.from_numpy(clip.still)
        inputs["image_grid_thw"] = torch.tensor([clip.still_grid])
    if clip.film is not None:
        inputs["pixel_values_videos"] = torch.from_numpy(clip.film)
        inputs["video_grid_thw"] = torch.tensor([clip.film_grid])
        inputs["video_second_per_grid"] = torch.tensor([1.0])
    if clip.mel is not None:
        inputs["input_features"] = torch.from_numpy(clip.mel.T.copy())[None]
        inputs["feature_attention_mask"] = torch.ones(1, len(clip.mel), dtype=torch.long)
    seen: list[Any] = []
    hook = thinker.model.language_model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        logits = thinker(**inputs, use_audio_in_video=clip.sound_in_film).logits
    hook.remove()
    return seen[0][0].numpy(), logits[0].numpy()


@pytest.fixture
def pair(
    tiny_checkpoint: Callable[..., Path], transformers_thinker: Any, load: Any
) -> Callable[..., tuple[Any, Any]]:
    """Our model and transformers' of one checkpoint."""

    def make(backend: Backend, seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
        folder = tiny_checkpoint(seed, **sizes)
        return load(folder, backend), transformers_thinker(folder)

    return make


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_logits(
    size: str,
    seed: int,
    case: str,
    pair: Any,
    reference: Backend,
    bare_cache: Any,
    assert_close: Any,
) -> None:
    model, thinker = pair(reference, seed, **SIZES[size])
    clip = _clip(case, seed)
    embeddings, logits = _ours(model, bare_cache, clip)
    want_embeddings, want_logits = _theirs(thinker, _unit(model, clip).cells["token"], clip)
    assert_close(embeddings, want_embeddings)
    assert_close(logits, want_logits)


@pytest.mark.parametrize("case", CASES)
def test_logits_on_every_backend(
    case: str, pair: Any, any_backend: Backend, bare_cache: Any, assert_close: Any
) -> None:
    model, thinker = pair(any_backend)
    clip = _clip(case, 3)
    _, logits = any_backend.run(_ours, model, bare_cache, clip)
    _, want = _theirs(thinker, _unit(model, clip).cells["token"], clip)
    assert_close(logits, want)


@pytest.mark.parametrize("piece", [1, 37, 64, 130])
def test_prefill_in_pieces(
    piece: int, pair: Any, reference: Backend, bare_cache: Any, assert_close: Any
) -> None:
    model, _ = pair(reference)
    clip = _clip("all", 4)
    _, pieces = _ours(model, bare_cache, clip, piece)
    _, at_once = _ours(model, bare_cache, clip)
    assert_close(pieces, at_once, 2e-6)


def test_forward_gives_the_logits_of_the_last_token(
    pair: Any, reference: Backend, bare_cache: Any
) -> None:
    model, _ = pair(reference)
    tokens = np.array([3, 1, 4, 1, 5])
    unit = UnitBuilder().text(tokens).build(UnitKind.TEXT)
    every = bare_cache(model).prefill(unit, model.embed(tokens))
    cache = bare_cache(model)
    cache.prefill(unit, model.embed(tokens))
    last = model.forward(model.embed(tokens), cache.pools, cache.step(0, 5))
    np.testing.assert_allclose(last, every[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param((1, 2, 2), id="one cell"),
        pytest.param((1, 8, 8), id="one window"),
        pytest.param((1, 16, 24), id="whole windows"),
        pytest.param((1, 10, 14), id="cut windows"),
        pytest.param((1, 2, 18), id="one row of cells"),
        pytest.param((1, 18, 2), id="one column of cells"),
        pytest.param((2, 8, 8), id="two steps of one window"),
        pytest.param((3, 6, 22), id="three steps, cut windows"),
        pytest.param((1, 34, 46), id="640 x 480"),
    ],
)
def test_vision_tower(
    grid: tuple[int, int, int], pair: Any, any_backend: Backend, assert_close: Any
) -> None:
    import torch

    model, thinker = pair(any_backend)
    random = np.random.default_rng(sum(grid))
    patches = random.standard_normal((np.prod(grid), PATCH_VALUES)).astype(np.float32)
    with torch.no_grad():
        want = thinker.model.visual(
            torch.from_numpy(patches), grid_thw=torch.tensor([grid])
        ).pooler_output
    got = any_backend.run(lambda: any_backend.to_numpy(model.vision.encode(patches, grid)))
    assert_close(got, want)


@pytest.mark.parametrize(
    "frames", [3, 4, 5, 6, 99, 100, 101, 198, 199, 200, 201, 202, 203, 370, 400, 401, 605]
)
def test_audio_tower(frames: int, pair: Any, any_backend: Backend, assert_close: Any) -> None:
    import torch

    model, thinker = pair(any_backend)
    mel = np.random.default_rng(frames).standard_normal((frames, 128)).astype(np.float32)
    with torch.no_grad():
        want = thinker.get_audio_features(
            torch.from_numpy(mel.T.copy())[None], torch.ones(1, frames, dtype=torch.long)
        ).last_hidden_state
    got = any_backend.run(lambda: any_backend.to_numpy(model.audio.encode(mel)))
    assert_close(got, want)


def test_whole_blocks_of_sound_may_be_encoded_one_by_one(
    pair: Any, reference: Backend, assert_close: Any
) -> None:
    model, _ = pair(reference)
    mel = np.random.default_rng(0).standard_normal((500, 128)).astype(np.float32)
    parts = [model.audio.encode(mel[at : at + 200]) for at in (0, 200, 400)]
    assert_close(np.concatenate(parts), model.audio.encode(mel), 2e-6)


def test_grid_steps_may_be_encoded_one_by_one(
    pair: Any, reference: Backend, assert_close: Any
) -> None:
    model, _ = pair(reference)
    patches = np.random.default_rng(0).standard_normal((180, PATCH_VALUES)).astype(np.float32)
    parts = [model.vision.encode(patches[at : at + 60], (1, 6, 10)) for at in (0, 60, 120)]
    assert_close(np.concatenate(parts), model.vision.encode(patches, (3, 6, 10)), 2e-6)
