"""A weight matrix stored in few bits, in the layout of MLX.

Each row is cut into groups of `group_size` consecutive elements, and each group has a scale of its
own. Importing this module imports no array library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODES = ("affine", "mxfp4", "nvfp4")
"""How elements and scales make values."""

WORD_BITS = 32
"""Bits of one element of `packed`."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A matrix (out, in) of small integers with a scale for each group of a row.

    Element i of a row lies in bits `bits * (i % per_word)` and up of word `i // per_word`, where
    `per_word` is 32 / bits: the first element is in the lowest bits.

    Attributes:
        packed: uint32, shape (out, in * bits / 32).
        scales: Shape (out, in / group_size). Mode "affine": floats in the backend's dtype, of
            either sign. Mode "mxfp4": uint8, the exponent of a power of two (E8M0). Mode "nvfp4":
            uint8, a float of 4 exponent and 3 mantissa bits (E4M3).
        biases: As `scales`; mode "affine" alone has them, else None.
        bits: Of one element, 4 or 8.
        group_size: Elements that share a scale.
        mode: "affine" (value = q * scale + bias), "mxfp4" or "nvfp4" (value = float4(q) * scale).

    Raises:
        ValueError: The shapes don't belong together.
    """

    packed: Any
    scales: Any
    biases: Any | None
    bits: int
    group_size: int
    mode: str

    def __post_init__(self) -> None:
        rows, words = self.packed.shape
        columns = words * WORD_BITS // self.bits
        want = (rows, columns // self.group_size)
        shapes = [tuple(a.shape) for a in (self.scales, self.biases) if a is not None]
        if columns % self.group_size or any(shape != want for shape in shapes):
            raise ValueError(
                f"[quantized_weight] scales and biases must have shape {want} for {rows} rows of "
                f"{columns} elements in groups of {self.group_size}, got {shapes}"
            )
        if (self.biases is None) == (self.mode == "affine"):
            raise ValueError(
                "[quantized_weight] mode affine must have biases and no other mode may, got mode "
                f"{self.mode} {'without' if self.biases is None else 'with'} them"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix that this stands for."""
        rows, words = self.packed.shape
        return int(rows), int(words) * WORD_BITS // self.bits

    @property
    def nbytes(self) -> int:
        """Bytes of packed elements, scales and biases."""
        biases = 0 if self.biases is None else int(self.biases.nbytes)
        return int(self.packed.nbytes) + int(self.scales.nbytes) + biases
