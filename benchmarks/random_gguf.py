"""A GGUF file of a decoder's sizes with random weights, quantised as llama.cpp's Q4_K_M chooses.

    python benchmarks/random_gguf.py --shape qwen2.5-omni-7b FILE

Written piece by piece: never more than `PIECE` bytes are in memory. The layout is that of GGUF
version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). There is no tokenizer in it.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import BinaryIO

import numpy as np

from omnitide.bench.shapes import SHAPES
from omnitide.models.headers import Shape
from omnitide.models.names import EMBEDDING, LM_HEAD, text_tensors
from omnitide.models.text_config import TextConfig

VERSION, ALIGNMENT = 3, 32
U32, F32, STRING = 4, 6, 8
"""Types of a value."""

PIECE = 16 << 20

NAMES = {
    EMBEDDING: "token_embd.weight",
    LM_HEAD: "output.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Ours to theirs; those of a block without its number."""


@dataclass(frozen=True, slots=True)
class Format:
    """How elements of a row are stored.

    Attributes:
        number: What the file calls it by.
        elements, num_bytes: Of a block.
        scales: Where in a block its half-precision scales lie, in bytes.
        spread: Root mean square of an element where all other bytes are random and the first of
            the scales is 1.
        ratio: The second scale over the first; it makes the mean zero.
    """

    number: int
    elements: int
    num_bytes: int
    scales: tuple[int, ...] = ()
    spread: float = 1.0
    ratio: float = 0.0


def _uniform(top: int) -> tuple[float, float]:
    """Mean and mean square of whole numbers from 0 to `top`, all as likely."""
    return top / 2, top * (2 * top + 1) / 6


def _q4_k() -> Format:
    """d x scale x code - dmin x least: codes of 4 bits, scale and least of 6."""
    (code, code2), (scale, scale2) = _uniform(15), _uniform(63)
    # dmin = d x the mean code, so that the mean is zero.
    spread2 = scale2 * code2 - 2 * code * scale * code * scale + code**2 * scale2
    return Format(12, 256, 144, (0, 2), sqrt(spread2), code)


def _q6_k() -> Format:
    """d x scale x (code - 32): codes of 6 bits, scales of 8 with a sign."""
    (code, code2), (scale, scale2) = _uniform(63), _uniform(255)
    spread2 = (code2 - 64 * code + 32**2) * (scale2 - 256 * scale + 128**2)
    return Format(14, 256, 210, (208,), sqrt(spread2))


def _q8_0() -> Format:
    """d x code: codes of 8 bits with a sign."""
    code, code2 = _uniform(255)
    return Format(8, 32, 34, (0,), sqrt(code2 - 256 * code + 128**2))


PLAIN, Q4_K, Q6_K, Q8_0 = Format(0, 1, 4), _q4_k(), _q6_k(), _q8_0()


@dataclass(frozen=True, slots=True)
class Tensor:
    """One of the file.

    Attributes:
        name: Theirs.
        shape: As ours, (rows, columns) or (size,).
        format: Of its elements.
    """

    name: str
    shape: Shape
    format: Format

    @property
    def num_bytes(self) -> int:
        """Without what follows up to the next multiple of `ALIGNMENT`."""
        return prod(self.shape) // self.format.elements * self.format.num_bytes


def tensors(text: TextConfig) -> list[Tensor]:
    """All of a decoder."""
    return [
        Tensor(_their_name(name), shape, _format(name, shape, text))
        for name, shape in text_tensors(text).items()
    ]


def _their_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _format(name: str, shape: Shape, text: TextConfig) -> Format:
    if len(shape) == 1:
        return PLAIN
    if shape[1] % Q4_K.elements:
        return Q8_0  # rows that the larger blocks don't divide
    if name == (EMBEDDING if text.tied else LM_HEAD):
        return Q6_K
    if name.endswith(("v_proj.weight", "down_proj.weight")):
        return Q6_K if _has_more_bits(int(name.split(".")[2]), text.num_layers) else Q4_K
    return Q4_K


def _has_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and each third one between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _values(text: TextConfig, name: str) -> Iterator[bytes]:
    """What a loader asks for, each a key and its value."""
    kind = "qwen3" if text.qk_norm else "qwen2"
    yield _key("general.architecture", STRING) + _string(kind)
    yield _key("general.name", STRING) + _string(name)
    yield _key("tokenizer.ggml.model", STRING) + _string("none")
    for key, count in {
        "vocab_size": text.vocab_size,
        "context_length": 1 << 20,
        "embedding_length": text.hidden_size,
        "block_count": text.num_layers,
        "feed_forward_length": text.intermediate_size,
        "attention.head_count": text.num_heads,
        "attention.head_count_kv": text.num_kv_heads,
        "attention.key_length": text.head_dim,
        "attention.value_length": text.head_dim,
    }.items():
        yield _key(f"{kind}.{key}", U32) + struct.pack("<I", count)
    for key, value in {
        "attention.layer_norm_rms_epsilon": text.rms_norm_eps,
        "rope.freq_base": text.rotary.theta,
    }.items():
        yield _key(f"{kind}.{key}", F32) + struct.pack("<f", value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _key(key: str, kind: int) -> bytes:
    return _string(key) + struct.pack("<I", kind)


def write(path: Path, text: TextConfig, name: str, seed: int = 0) -> int:
    """Write a file, over one that is there, and say how many bytes it has.

    It has its name once it is whole.

    Raises:
        OSError: It can't be written.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            size = _write(file, text, name, np.random.default_rng(seed))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return size


def _write(file: BinaryIO, text: TextConfig, name: str, rng: np.random.Generator) -> int:
    values, made = list(_values(text, name)), tensors(text)
    file.write(b"GGUF" + struct.pack("<IQQ", VERSION, len(made), len(values)))
    file.writelines(values)
    offset = 0
    for tensor in made:
        sizes = tuple(reversed(tensor.shape))  # columns first
        file.write(_string(tensor.name) + struct.pack("<I", len(sizes)))
        file.write(struct.pack(f"<{len(sizes)}QIQ", *sizes, tensor.format.number, offset))
        offset += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
    _pad(file)
    for tensor in made:
        for piece in _data(tensor, rng):
            file.write(piece)
        _pad(file)
    return file.tell()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _data(tensor: Tensor, rng: np.random.Generator) -> Iterator[bytes]:
    """Norms of one, biases of zero, matrices that keep what they are multiplied with near one."""
    form = tensor.format
    if form is PLAIN:
        one = not tensor.name.endswith("bias")
        yield np.full(tensor.shape, float(one), "<f4").tobytes()
        return
    scale = 1 / (sqrt(tensor.shape[-1]) * form.spread)
    left, most = prod(tensor.shape) // form.elements, PIECE // form.num_bytes
    while left:
        count = min(left, most)
        left -= count
        blocks = np.frombuffer(rng.bytes(count * form.num_bytes), np.uint8).copy()
        blocks = blocks.reshape(count, form.num_bytes)
        # From half to one and a half of the scale, so that the mean square is 13/12 of its square.
        drawn = scale / sqrt(13 / 12) * (0.5 + rng.random((count, 1), np.float32))
        for at, factor in zip(form.scales, (1.0, form.ratio), strict=False):
            blocks[:, at : at + 2] = (factor * drawn).astype("<f2").view(np.uint8)
        yield blocks.tobytes()


def main() -> None:
    """Write a file of a named shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="qwen2.5-omni-7b")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        size = write(options.file, SHAPES[options.shape].text, options.shape, options.seed)
    except OSError as error:
        parser.error(str(error))
    print(f"{options.file}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
