"""The decoder against the published code's numbers, in one pass, in pieces and after a drop.

The decoder of 2.6, which golden data is silent about, is compared with transformers' Qwen2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Array, Backend, Pools
from omnitide.cache import BoundedCache
from omnitide.capacity import Capacity
from omnitide.config import RetentionConfig
from omnitide.layouts import LAYOUTS, make_layout
from omnitide.model import EncodedUnit, ModelSpec
from omnitide.models.decoder import Decoder
from omnitide.models.minicpm_o.config import MiniCPMConfig, spec_of
from omnitide.models.text_config import TextConfig
from omnitide.pages import PAGE_SIZE
from omnitide.policies import make_policy
from omnitide.rotary import Rotary
from omnitide.step import Step
from omnitide.units import AXES, Modality, Unit, UnitBuilder, UnitKind

Golden = Callable[[str], Mapping[str, NDArray[Any]]]
Weights = dict[str, NDArray[np.float32]]

IMAGE, AUDIO = -1, -2  # of golden id arrays
LOGITS, HIDDEN, KEYS = 1e-4, 5e-5, 2e-4  # tolerances that the golden data states


@dataclass
class DecoderOnly:
    """As much of a model as a cache asks for."""

    decoder: Decoder
    backend: Backend
    spec: ModelSpec

    def new_stream(self) -> None:
        return None

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        return self.decoder.forward(embeddings, pools, step)


def decoder_of(config: TextConfig, backend: Backend, weights: Weights) -> Decoder:
    def build() -> Decoder:
        ours = {name: backend.asarray(values) for name, values in weights.items()}
        return Decoder(config, backend, ours)

    return backend.run(build)


@pytest.fixture
def model(
    any_backend: Backend, golden_config: MiniCPMConfig, golden_weights: Weights
) -> DecoderOnly:
    parts = {n: w for n, w in golden_weights.items() if n.startswith(("model.", "lm_head."))}
    decoder = decoder_of(golden_config.text, any_backend, parts)
    return DecoderOnly(decoder, any_backend, spec_of(golden_config, "golden"))


def turned(keys: NDArray[Any], positions: NDArray[Any], theta: float) -> NDArray[np.float64]:
    """Rotated keys (..., num_tokens, head_dim): pairs are half a head apart."""
    half = keys.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    first, second = keys[..., :half].astype(np.float64), keys[..., half:].astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rows_of(pools: Pools, backend: Backend, slots: NDArray[Any]) -> tuple[Any, Any]:
    """Keys as they are stored and values at slots, each (layer, kv_head, num_slots, head_dim)."""
    page, row = np.divmod(slots, PAGE_SIZE)
    return tuple(
        np.stack([backend.to_numpy(array)[page, :, row].swapaxes(0, 1) for array in arrays])
        for arrays in (pools.keys, pools.values)
    )


def text_of(ids: NDArray[Any], kind: UnitKind = UnitKind.TEXT) -> Unit:
    return UnitBuilder().text(ids).build(kind)


def test_one_pass(model: DecoderOnly, golden: Golden, bare_cache: Any) -> None:
    case, backend = golden("10_llm_tokens"), model.backend
    unit = text_of(case["ids"])

    def go() -> tuple[Any, ...]:
        cache = bare_cache(model)
        logits = cache.prefill(unit, model.decoder.embed(case["ids"]))
        return logits, *rows_of(cache.pools, backend, cache.history.cells["slot"])

    logits, keys, values = backend.run(go)
    np.testing.assert_allclose(logits, case["logits"], atol=LOGITS)
    np.testing.assert_allclose(values, case["cache_v"], atol=HIDDEN)
    got = turned(keys, np.arange(40), model.spec.rotary.theta)
    np.testing.assert_allclose(got, case["cache_k"], atol=HIDDEN)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_layer(
    any_backend: Backend,
    golden_config: MiniCPMConfig,
    golden_weights: Weights,
    golden: Golden,
    layers: int,
) -> None:
    """A decoder that is cut behind a layer gives that layer's output."""
    case = golden("10_llm_tokens")
    decoder = decoder_of(
        replace(golden_config.text, num_layers=layers), any_backend, golden_weights
    )

    def go() -> tuple[NDArray[Any], NDArray[Any]]:
        hidden, _ = forward_at(decoder, case["ids"], first=0)
        normed = decoder.norm(any_backend, hidden)
        return any_backend.to_numpy(hidden), any_backend.to_numpy(normed)

    hidden, normed = any_backend.run(go)
    np.testing.assert_allclose(hidden[-1], case[f"layer{layers - 1}_last"], atol=HIDDEN)
    if layers == 3:
        np.testing.assert_allclose(normed, case["hidden"], atol=HIDDEN)


def forward_at(decoder: Decoder, ids: NDArray[Any], first: int) -> tuple[Array, Array]:
    """States and logits of ids whose positions start at `first`. On the backend's thread."""
    text, backend = decoder.config, decoder.backend
    slots = np.arange(len(ids), dtype=np.int32)
    positions = np.repeat(first + slots[:, None], AXES, axis=1)
    cos, sin = text.rotary.tables(positions)
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, 1)
    step = Step(slots, slots, cos, sin, slots, slots, cos, sin)
    hidden = decoder.forward_hidden(decoder.embed(ids), pools, step)
    return hidden, decoder.logits(hidden)


def test_far_positions(model: DecoderOnly, golden: Golden) -> None:
    """The golden data's angles are float32, ours float64: they differ from position 5,000 on."""
    case, backend = golden("10_llm_tokens"), model.backend
    far, near = (
        backend.run(lambda f=f: backend.to_numpy(forward_at(model.decoder, case["ids"], f)[1][-1]))
        for f in (5_000, 0)
    )
    np.testing.assert_allclose(far, case["logits_last_at_5000"], atol=5e-3)
    np.testing.assert_allclose(far, near, atol=LOGITS)


def test_in_pieces(model: DecoderOnly, golden: Golden, bare_cache: Any) -> None:
    case = golden("10_llm_tokens")
    pieces = np.split(case["ids"], np.cumsum(case["chunk_lengths"])[:-1])

    def go() -> list[NDArray[Any]]:
        cache = bare_cache(model)
        return [cache.prefill(text_of(ids), model.decoder.embed(ids)) for ids in pieces]

    assert len(pieces) > 1
    logits = np.concatenate(model.backend.run(go))
    np.testing.assert_allclose(logits, case["logits_chunked"], atol=LOGITS)


def duplex_units(case: Mapping[str, NDArray[Any]]) -> list[Unit]:
    """The prefix and the three units that were fed, features as cells of picture and sound."""
    ids, system = case["ids_tiny"], int(case["system_length"])
    stops = np.cumsum(case["unit_lengths"]) + system
    assert stops[-1] == len(ids)
    units = []
    for number, part in enumerate(np.split(ids, [system, *stops[:-1]])):
        builder = UnitBuilder()
        for run in np.split(part, np.flatnonzero(np.diff(np.minimum(part, 0))) + 1):
            if run[0] >= 0:
                builder.text(run)
                continue
            offsets = np.repeat(np.arange(len(run))[:, None], AXES, axis=1)
            modality = Modality.IMAGE if run[0] == IMAGE else Modality.AUDIO
            builder.content(0, offsets, modality).end_step()
        kind = UnitKind.MEDIA if number else UnitKind.SYSTEM
        units.append(builder.build(kind, float(number), 1.0))
    return units


def pieces_of(units: list[Unit], embeddings: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(embeddings, np.cumsum([len(unit) for unit in units])[:-1])


@pytest.mark.parametrize("piece", [None, 7, 1])
def test_a_stream_in_any_pieces(
    model: DecoderOnly, golden: Golden, bare_cache: Any, piece: int | None
) -> None:
    case, backend = golden("11_llm_duplex"), model.backend
    units = duplex_units(case)

    def go() -> list[NDArray[Any]]:
        cache = bare_cache(model)
        return [
            cache.prefill(unit, backend.asarray(part), piece)
            for unit, part in zip(units, pieces_of(units, case["embeds"]), strict=True)
        ]

    logits = np.concatenate(backend.run(go))
    np.testing.assert_allclose(logits, case["logits_one_go"], atol=LOGITS)
    at = case["feed_logit_positions"]
    np.testing.assert_allclose(logits[at], case["feed_logits"], atol=LOGITS)


def test_tokens_of_a_stream_have_the_published_embeddings(
    model: DecoderOnly, golden: Golden
) -> None:
    case, backend = golden("11_llm_duplex"), model.backend
    text = case["ids_tiny"] >= 0
    got = backend.run(lambda: backend.to_numpy(model.decoder.embed(case["ids_tiny"][text])))
    np.testing.assert_array_equal(got, case["embeds"][text])


@pytest.mark.parametrize("layout", [n for n, made in LAYOUTS.items() if not made.simulated])
def test_positions_after_dropped_units(model: DecoderOnly, golden: Golden, layout: str) -> None:
    """Our cache drops the oldest unit twice; keys, values and what follows are the published ones.

    Keys lie un-rotated in the pools, so nothing is rotated back: positions are laid out anew.
    """
    stream, case, backend = golden("11_llm_duplex"), golden("12_realign"), model.backend
    units = duplex_units(stream)
    system, dropped = len(units[0]), len(units[1])
    assert (system, dropped) == (int(case["system_length"]), int(case["dropped"]))
    held = len(stream["ids_tiny"])
    config = RetentionConfig(high_watermark=held - 1, low_watermark=held - dropped)
    capacity = Capacity(system, 512, 64, 1024, 20)

    def state(cache: BoundedCache) -> tuple[NDArray[Any], NDArray[Any]]:
        keys, values = rows_of(cache.pools, backend, cache.history.cells["slot"])
        positions = cache.history.cells["position"]
        assert (positions == np.arange(len(positions))[:, None]).all()
        return turned(keys, positions[:, 0], model.spec.rotary.theta), values

    def feed(cache: BoundedCache, token: Any) -> NDArray[Any]:
        ids = np.array([token])
        return backend.to_numpy(cache.append(EncodedUnit(text_of(ids), model.decoder.embed(ids))))

    def go() -> tuple[Any, ...]:
        made = make_policy("fifo"), make_layout(layout)
        cache = BoundedCache(model, *made, config, capacity)  # type: ignore[arg-type]
        for unit, part in zip(units, pieces_of(units, stream["embeds"]), strict=True):
            cache.append(EncodedUnit(unit, backend.asarray(part)))
        before, _ = state(cache)
        cache.evict()
        after, values = state(cache)
        logits = [feed(cache, token) for token in case["next_ids"]]
        now = len(cache.history)
        cache.config = RetentionConfig(high_watermark=now - 1, low_watermark=now - len(units[2]))
        return before, after, values, logits, feed(cache, case["next_ids"][0]), len(cache.history)

    before, after, values, logits, last, left = backend.run(go)
    np.testing.assert_allclose(before, case["keys_before"], atol=KEYS)
    np.testing.assert_allclose(after, case["keys_after"], atol=KEYS)
    np.testing.assert_allclose(values[0], case["values_after_layer0"], atol=HIDDEN)
    np.testing.assert_allclose(logits, case["next_logits"], atol=HIDDEN)
    np.testing.assert_allclose(last, case["second_drop_next_logits"], atol=HIDDEN)
    assert left == held - dropped + len(logits) - len(units[2]) + 1


@pytest.mark.parametrize("release", ["4.5", "2.6"])
def test_random_weights_against_transformers(
    any_backend: Backend, assert_close: Callable[..., None], release: str
) -> None:
    """Qwen3 with heads of a size of their own, and Qwen2.5 with biases."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    newer = release == "4.5"
    head_dim = 24 if newer else 16
    text = TextConfig(
        vocab_size=90,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        rms_norm_eps=1e-6,
        tied=False,
        rotary=Rotary(head_dim, 1e6),
        qkv_bias=not newer,
        qk_norm=newer,
    )
    sizes: dict[str, Any] = {
        "vocab_size": 90,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    config = Qwen3Config(**sizes, head_dim=head_dim) if newer else Qwen2Config(**sizes)
    theirs = (Qwen3ForCausalLM if newer else Qwen2ForCausalLM)(config).eval().requires_grad_(False)
    rng = np.random.default_rng(11)
    weights: Weights = {}
    for name, values in theirs.named_parameters():
        spread = values[0].numel() ** -0.5 if values.dim() > 1 else 0.3
        centre = 1.0 if "norm" in name else 0.0
        values.copy_(torch.from_numpy(centre + spread * rng.standard_normal(tuple(values.shape))))
        weights[name] = values.numpy().copy()
    ids = rng.integers(0, 90, 33)
    want = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    decoder = decoder_of(text, any_backend, weights)
    got = any_backend.run(lambda: any_backend.to_numpy(forward_at(decoder, ids, 0)[1]))
    assert_close(got, want)
