"""GGUF files of random weights, read back by a reader of its own, and by gguf's where installed."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.bench.shapes import SHAPES, TINY
from omnitide.models.text_config import TextConfig

Script = Callable[[str], Any]
Matrix = np.ndarray[Any, np.dtype[np.float64]]

WIDE = replace(TINY, intermediate_size=512, num_layers=8)
"""Rows of the MLP hold whole blocks too."""

QWEN3 = replace(WIDE, qkv_bias=False, qk_norm=True, tied=True)
F32, Q8_0, Q4_K, Q6_K = 0, 8, 12, 14


@dataclass
class Read:
    """What a file says: values by key, and of each tensor its columns first, type and bytes."""

    values: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]]


def read(path: Path) -> Read:
    """By the description of version 3."""
    data = path.read_bytes()
    file = io.BytesIO(data)

    def take(form: str) -> Any:
        (value,) = struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
        return value

    def string() -> str:
        return file.read(take("Q")).decode()

    assert (file.read(4), take("I")) == (b"GGUF", 3)
    tensors, values = take("Q"), take("Q")
    take_value = {4: lambda: take("I"), 6: lambda: take("f"), 8: string}
    read_values = {string(): take_value[take("I")]() for _ in range(values)}
    heads = {}
    for _ in range(tensors):
        name = string()
        sizes = tuple(take("Q") for _ in range(take("I")))
        heads[name] = (sizes, take("I"), take("Q"))
    start = -(-file.tell() // 32) * 32
    size = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
    found, end = {}, start
    for name, (sizes, kind, offset) in heads.items():
        elements, num_bytes = size[kind]
        assert sizes[0] % elements == 0
        count = prod(sizes) // elements * num_bytes
        assert start + offset == -(-end // 32) * 32  # behind the one before, aligned
        end = start + offset + count
        found[name] = (sizes, kind, data[start + offset : end])
    assert len(data) == -(-end // 32) * 32
    return Read(read_values, found)


def half(block: Any, at: int) -> Matrix:
    return np.ascontiguousarray(block[:, at : at + 2]).view("<f2").astype(np.float64)


def q4_k(block: Any) -> Matrix:
    """Eight runs of 32: d x scale x code - dmin x least, scales and leasts in 12 bytes."""
    packed, codes = block[:, 4:16].astype(int), block[:, 16:].reshape(-1, 4, 32)
    scale, least = np.empty((2, len(block), 8))
    for run in range(8):
        if run < 4:
            scale[:, run], least[:, run] = packed[:, run] & 63, packed[:, run + 4] & 63
        else:
            low = packed[:, run + 4]
            scale[:, run] = (low & 15) | (packed[:, run - 4] >> 6 << 4)
            least[:, run] = (low >> 4) | (packed[:, run] >> 6 << 4)
    code = np.stack([codes & 15, codes >> 4], axis=2).reshape(-1, 8, 32)
    d, dmin = half(block, 0)[..., None], half(block, 2)[..., None]
    return d * scale[..., None] * code - dmin * least[..., None]


def q6_k(block: Any) -> Matrix:
    """Halves of 128: four low bits, two high bits, a signed scale for each 16 elements."""
    low, high = block[:, :128].reshape(-1, 2, 2, 32), block[:, 128:192].reshape(-1, 2, 1, 32)
    fours = np.concatenate([low & 15, low >> 4], axis=2)
    twos = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    code = (fours | twos << 4).astype(int) - 32
    scale = np.ascontiguousarray(block[:, 192:208]).view(np.int8).astype(float)
    return half(block, 208)[..., None] * scale[..., None] * code.reshape(-1, 16, 16)


def q8_0(block: Any) -> Matrix:
    """A scale for 32 codes."""
    return half(block, 0) * np.ascontiguousarray(block[:, 2:]).view(np.int8)


def numbers(sizes: tuple[int, ...], kind: int, data: bytes) -> Matrix:
    """What a tensor's bytes mean, rows first."""
    shape = tuple(reversed(sizes))
    if kind == F32:
        return np.frombuffer(data, "<f4").astype(np.float64).reshape(shape)
    num_bytes, meant = {Q8_0: (34, q8_0), Q4_K: (144, q4_k), Q6_K: (210, q6_k)}[kind]
    return meant(np.frombuffer(data, np.uint8).reshape(-1, num_bytes)).reshape(shape)


@pytest.fixture
def made(script: Script, tmp_path: Path) -> Callable[..., Path]:
    """`made(text, seed)`: the path of a file."""

    def make(text: TextConfig, seed: int = 0) -> Path:
        path = tmp_path / f"{seed}.gguf"
        assert script("random_gguf").write(path, text, "small", seed) == path.stat().st_size
        return path

    return make


@pytest.mark.parametrize("text", [TINY, WIDE, QWEN3], ids=["tiny", "wide", "qwen3"])
def test_weights_keep_what_they_are_multiplied_with_near_one(
    made: Callable[..., Path], text: TextConfig
) -> None:
    for name, tensor in read(made(text)).tensors.items():
        values = numbers(*tensor)
        if values.ndim == 1:
            assert tensor[1] == F32
            assert set(values) == {0.0 if name.endswith("bias") else 1.0}
            continue
        assert np.isfinite(values).all()
        spread = np.sqrt((values**2).mean() * values.shape[1])
        assert spread == pytest.approx(1, rel=0.15), name
        assert abs(values.mean()) * np.sqrt(values.shape[1]) < 0.1
        assert len(np.unique(values)) > values.size / 10


def test_rows_are_of_the_formats_that_their_length_allows(made: Callable[..., Path]) -> None:
    found = {name: kind for name, (_, kind, _) in read(made(TINY)).tensors.items()}
    matrices = {name: kind for name, kind in found.items() if kind != F32}
    # 96 columns hold no block of 256.
    assert {k for n, k in matrices.items() if "ffn_down" in n} == {Q8_0}
    assert {k for n, k in matrices.items() if "ffn_down" not in n} == {Q4_K, Q6_K}


@pytest.mark.parametrize(
    ("layers", "better"),
    [
        # The first and the last eighth, and each third between.
        (28, {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}),
        (36, {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35}),
    ],
)
def test_half_of_the_values_and_of_the_last_matrices_have_more_bits(
    script: Script, layers: int, better: set[int]
) -> None:
    text = replace(SHAPES["qwen2.5-omni-7b"].text, num_layers=layers)
    found = {t.name: t.format.number for t in script("random_gguf").tensors(text)}
    for part in ("attn_v", "ffn_down"):
        assert {n for n in range(layers) if found[f"blk.{n}.{part}.weight"] == Q6_K} == better
    rest = {k for n, k in found.items() if "attn_v" not in n and "ffn_down" not in n}
    assert rest == {F32, Q4_K, Q6_K}
    assert (found["token_embd.weight"], found["output.weight"]) == (Q4_K, Q6_K)


def test_a_7b_file_is_as_large_as_published_ones(script: Script) -> None:
    made = script("random_gguf").tensors(SHAPES["qwen2.5-omni-7b"].text)
    # Qwen2.5-7B-Instruct in Q4_K_M has 4.68 GB, a vocabulary included.
    assert sum(t.num_bytes for t in made) == pytest.approx(4.68e9, rel=0.01)


def test_names_sizes_and_values(made: Callable[..., Path]) -> None:
    found = read(made(QWEN3))
    assert found.values == {
        "general.architecture": "qwen3",
        "general.name": "small",
        "tokenizer.ggml.model": "none",
        "qwen3.vocab_size": 288,
        "qwen3.context_length": 1 << 20,
        "qwen3.embedding_length": 256,
        "qwen3.block_count": 8,
        "qwen3.feed_forward_length": 512,
        "qwen3.attention.head_count": 2,
        "qwen3.attention.head_count_kv": 1,
        "qwen3.attention.key_length": 128,
        "qwen3.attention.value_length": 128,
        "qwen3.attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "qwen3.rope.freq_base": 1e6,
    }
    sizes = {name: tensor[0] for name, tensor in found.tensors.items()}
    block = {
        "attn_norm.weight": (256,),
        "ffn_norm.weight": (256,),
        "attn_q.weight": (256, 256),
        "attn_k.weight": (256, 128),
        "attn_v.weight": (256, 128),
        "attn_output.weight": (256, 256),
        "attn_q_norm.weight": (128,),
        "attn_k_norm.weight": (128,),
        "ffn_gate.weight": (256, 512),
        "ffn_up.weight": (256, 512),
        "ffn_down.weight": (512, 256),
    }
    wanted = {f"blk.{n}.{name}": size for n in range(8) for name, size in block.items()}
    # Tied, so there is no output.weight, and the embeddings take its format.
    assert sizes == wanted | {"token_embd.weight": (256, 288), "output_norm.weight": (256,)}
    assert found.tensors["token_embd.weight"][1] == Q6_K
    biases = {n for n in read(made(TINY)).tensors if n.endswith("bias")}
    assert biases == {f"blk.{n}.attn_{part}.bias" for n in range(3) for part in "qkv"}


def test_pieces_are_small_and_a_seed_repeats_itself(
    script: Script, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("random_gguf")
    monkeypatch.setattr(module, "PIECE", 10_000)
    seen: list[int] = []
    plain = module._data

    def watched(tensor: Any, rng: Any) -> Any:
        for piece in plain(tensor, rng):
            seen.append(len(piece))
            yield piece

    monkeypatch.setattr(module, "_data", watched)
    first = made(WIDE, 1).read_bytes()
    assert max(seen) <= 10_000
    assert first == made(WIDE, 1).read_bytes()
    assert first != made(WIDE, 2).read_bytes()


def test_gguf_reads_the_same(made: Callable[..., Path]) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    path = made(WIDE)
    ours, theirs = read(path), gguf.GGUFReader(path)
    assert {t.name for t in theirs.tensors} == set(ours.tensors)
    for tensor in theirs.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_allclose(values, numbers(*ours.tensors[tensor.name]), rtol=1e-5)


def test_a_file_that_can_not_be_written_is_an_error_without_a_traceback(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["random_gguf.py", "--shape", "tiny", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        script("random_gguf").main()
    assert stopped.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_file_that_was_not_finished_does_not_look_whole(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`llama_cpp.py --gguf` takes a file that is there."""
    made, pieces = script("random_gguf"), iter([b"a piece"])

    def broken_off(tensor: Any, rng: Any) -> Any:
        yield next(pieces, b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_data", broken_off)
    with pytest.raises(KeyboardInterrupt):
        made.write(tmp_path / "a.gguf", TINY, "small", 0)
    assert list(tmp_path.iterdir()) == []
