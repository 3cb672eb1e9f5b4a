"""Vision tower and resampler against the published code's numbers, and against torch's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.models.minicpm_o.config import MiniCPMConfig, ResamplerConfig, VisionConfig
from omnitide.models.minicpm_o.image import Patches, patchify, prepare_picture
from omnitide.models.minicpm_o.resampler import Resampler, place_table
from omnitide.models.minicpm_o.vision import VisionTower, buckets, position_ids

Golden = Callable[[str], Mapping[str, NDArray[Any]]]
Weights = dict[str, NDArray[np.float32]]

SINGLE = ("small_3x5", "square_32x32", "wide_24x42", "quirk_25x50")
TOLERANCE = 5e-5


def ends(rows: NDArray[Any]) -> NDArray[Any]:
    """The first four rows and the last four."""
    return np.concatenate([rows[:4], rows[-4:]])


def random_picture(rng: np.random.Generator, rows: int, columns: int) -> Patches:
    return patchify(rng.integers(0, 256, (14 * rows, 14 * columns, 3), np.uint8))


class Seeing:
    """Tower and resampler on one backend; `see` gives states and tokens of pictures."""

    def __init__(
        self, vision: VisionConfig, resampler: ResamplerConfig, backend: Backend, weights: Weights
    ) -> None:
        self.backend = backend

        def build() -> None:
            ours = {name: backend.asarray(values) for name, values in weights.items()}
            self.tower = VisionTower(vision, backend, ours)
            self.resampler = Resampler(resampler, backend, ours)

        backend.run(build)

    def see(self, *pictures: Patches) -> tuple[NDArray[Any], NDArray[Any]]:
        def go() -> tuple[NDArray[Any], NDArray[Any]]:
            states = self.tower.encode(pictures)
            tokens = self.resampler.encode(states, pictures)
            return self.backend.to_numpy(states), self.backend.to_numpy(tokens)

        return self.backend.run(go)


@pytest.fixture
def seeing(any_backend: Backend, golden_config: MiniCPMConfig, golden_weights: Weights) -> Seeing:
    parts = {n: w for n, w in golden_weights.items() if n.startswith(("vpm.", "resampler."))}
    return Seeing(golden_config.vision, golden_config.resampler, any_backend, parts)


@pytest.mark.parametrize("count", range(1, 101))
def test_buckets_of_a_side(golden: Golden, count: int) -> None:
    want = golden("04_position_buckets")["bucket"][count, :count]
    assert buckets(count, 70).tolist() == want.tolist()


@pytest.mark.parametrize("count", [177, 443])
def test_buckets_of_a_side_longer_than_the_table(golden: Golden, count: int) -> None:
    want = golden("04_position_buckets")[f"bucket_{count}"]
    assert buckets(count, 70).tolist() == want.tolist()


@pytest.mark.parametrize("name", SINGLE)
def test_position_ids(golden: Golden, name: str) -> None:
    case = golden(f"03_vision_{name}")
    got = position_ids(*case["tgt_size"].tolist(), 70)
    assert got.tolist() == case["position_ids"].tolist()


@pytest.mark.parametrize("name", SINGLE)
def test_one_picture(seeing: Seeing, golden: Golden, name: str) -> None:
    case = golden(f"03_vision_{name}")
    picture = patchify(case["u8"])
    assert [picture.rows, picture.columns] == case["tgt_size"].tolist()
    backend = seeing.backend
    embedded = backend.run(lambda: backend.to_numpy(seeing.tower.embed([picture])))
    np.testing.assert_allclose(ends(embedded), case["embed_ends"], atol=TOLERANCE)
    states, tokens = seeing.see(picture)
    np.testing.assert_allclose(states, case["vision_out"], atol=TOLERANCE)
    np.testing.assert_allclose(tokens, case["resampler_out"], atol=TOLERANCE)


@pytest.mark.parametrize("name", SINGLE)
def test_places_of_patches(golden: Golden, golden_config: MiniCPMConfig, name: str) -> None:
    case = golden(f"03_vision_{name}")
    rows, columns = case["tgt_size"].tolist()
    table = place_table(rows, columns, golden_config.resampler.hidden_size)
    assert table.dtype == np.float32
    np.testing.assert_allclose(ends(table), case["resampler_pos_ends"], atol=1e-5)


@pytest.mark.parametrize("name", ["wide", "hd"])
def test_source_and_slices_together(seeing: Seeing, golden: Golden, name: str) -> None:
    case = golden(f"03_vision_batch_{name}")
    pictures, _ = prepare_picture(golden(f"02_image_{name}")["rgb"], 9, 448)
    states, tokens = seeing.see(*pictures)
    np.testing.assert_allclose(
        tokens.reshape(case["resampler_out"].shape), case["resampler_out"], atol=TOLERANCE
    )
    stops = np.cumsum([len(picture.vectors) for picture in pictures])
    for index, stop in enumerate(stops.tolist()):
        own = states[stop - len(pictures[index].vectors) : stop]
        np.testing.assert_allclose(own[:6], case["vision_out_head"][index], atol=TOLERANCE)
        np.testing.assert_allclose(own[-6:], case["vision_out_tail"][index], atol=TOLERANCE)


def test_no_picture_sees_another(seeing: Seeing) -> None:
    rng = np.random.default_rng(3)
    pictures = [random_picture(rng, *shape) for shape in ((3, 5), (1, 1), (2, 90), (3, 5))]
    states, tokens = seeing.see(*pictures)
    alone = [seeing.see(picture) for picture in pictures]
    np.testing.assert_allclose(states, np.concatenate([a for a, _ in alone]), atol=2e-5)
    np.testing.assert_allclose(tokens, np.concatenate([b for _, b in alone]), atol=2e-5)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (200, 4_000), (1_600, 80)])
def test_odd_pictures_give_64_tokens_a_piece(seeing: Seeing, height: int, width: int) -> None:
    frame = np.random.default_rng(8).integers(0, 256, (height, width, 3), np.uint8)
    pictures, plan = prepare_picture(frame, 4, 448)
    states, tokens = seeing.see(*pictures)
    assert tokens.shape == (64 * (1 + plan.num_slices), 256)
    assert np.isfinite(states).all()
    assert np.isfinite(tokens).all()


# -- other sizes than the golden model's, against torch -----------------------------------------
SIDE = 6
VISION = VisionConfig(72, 112, 3, 3, 14, SIDE, 1e-6)


def siglip(weights: Weights) -> Any:
    """transformers' tower for square pictures of the table's own size, where no bucket matters."""
    import torch
    from transformers import SiglipVisionConfig, SiglipVisionModel

    torch.set_num_threads(1)
    config = SiglipVisionConfig(
        hidden_size=VISION.hidden_size,
        intermediate_size=VISION.intermediate_size,
        num_hidden_layers=VISION.num_layers,
        num_attention_heads=VISION.num_heads,
        image_size=14 * SIDE,
        patch_size=14,
        vision_use_head=False,
        attn_implementation="eager",
    )
    model = SiglipVisionModel(config).eval().requires_grad_(False)
    rng = np.random.default_rng(4)
    for name, values in model.named_parameters():
        spread = values[0].numel() ** -0.5 if values.dim() > 1 else 0.2
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        values.copy_(torch.from_numpy(centre + spread * rng.standard_normal(tuple(values.shape))))
        weights["vpm." + name.removeprefix("vision_model.")] = values.numpy().copy()
    return model


def attention_layer(weights: Weights, size: int, heads: int) -> Any:
    """torch's multi-head attention, and the resampler's other tensors, random."""
    import torch

    layer = torch.nn.MultiheadAttention(size, heads, batch_first=True).requires_grad_(False)
    rng = np.random.default_rng(5)
    for name, values in layer.named_parameters():
        spread = size**-0.5 if values.dim() > 1 else 0.2
        values.copy_(torch.from_numpy(spread * rng.standard_normal(tuple(values.shape))))
        weights[f"resampler.attn.{name}"] = values.numpy().copy()

    def draw(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    weights["resampler.query"] = draw(9, size)
    weights["resampler.proj"] = draw(size, size) * size**-0.5
    weights["resampler.kv_proj.weight"] = draw(size, VISION.hidden_size) * size**-0.5
    for norm in ("ln_q", "ln_kv", "ln_post"):
        weights[f"resampler.{norm}.weight"] = 1 + 0.2 * draw(size)
        weights[f"resampler.{norm}.bias"] = 0.2 * draw(size)
    return layer


def places_by_definition(rows: int, columns: int, size: int) -> NDArray[np.float64]:
    """Patch by patch: sines and cosines of the column, then of the row."""
    out = np.empty((rows, columns, 4, size // 4))
    for row in range(rows):
        for column in range(columns):
            for k in range(size // 4):
                wave = 10_000 ** (k / (size / 4))
                angles = np.array([column / wave, row / wave])
                out[row, column, ::2, k] = np.sin(angles)
                out[row, column, 1::2, k] = np.cos(angles)
    return out.reshape(rows * columns, size)


def test_other_sizes_against_torch(any_backend: Backend, assert_close: Callable[..., None]) -> None:
    import torch

    weights: Weights = {}
    model = siglip(weights)
    config = ResamplerConfig(VISION.hidden_size, 3 * 128, 9)
    size = config.hidden_size
    attention = attention_layer(weights, size, 3)
    picture = random_picture(np.random.default_rng(6), SIDE, SIDE)
    states, tokens = Seeing(VISION, config, any_backend, weights).see(picture)

    squares = picture.vectors.reshape(SIDE, SIDE, 3, 14, 14).transpose(2, 0, 3, 1, 4)
    pixels = torch.from_numpy(squares.reshape(1, 3, 14 * SIDE, 14 * SIDE).copy())
    want = model(pixels).last_hidden_state[0]
    assert_close(states, want.numpy())

    def norm(name: str, x: Any) -> Any:
        parts = (weights[f"resampler.{name}.{kind}"] for kind in ("weight", "bias"))
        return torch.nn.functional.layer_norm(x, (size,), *map(torch.from_numpy, parts), 1e-6)

    values = norm("ln_kv", want @ torch.from_numpy(weights["resampler.kv_proj.weight"]).T)
    keys = values + torch.from_numpy(places_by_definition(SIDE, SIDE, size)).float()
    queries = norm("ln_q", torch.from_numpy(weights["resampler.query"]))
    seen = attention(queries[None], keys[None], values[None], need_weights=False)[0][0]
    assert_close(
        tokens, (norm("ln_post", seen) @ torch.from_numpy(weights["resampler.proj"])).numpy()
    )


def test_layers_are_as_many_as_the_configuration_says(
    any_backend: Backend, golden_config: MiniCPMConfig, golden_weights: Weights
) -> None:
    """A tower without its last layer has tensors for that many and gives other states."""
    short = replace(golden_config.vision, num_layers=1)
    left = {n: w for n, w in golden_weights.items() if not n.startswith("vpm.encoder.layers.1.")}
    picture = random_picture(np.random.default_rng(7), 2, 3)
    whole = Seeing(golden_config.vision, golden_config.resampler, any_backend, golden_weights)
    cut = Seeing(short, golden_config.resampler, any_backend, left)
    assert np.abs(whole.see(picture)[0] - cut.see(picture)[0]).max() > 0.1
