"""Random quantised matrices for a decoder: their bytes, and how they are made."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from omnitide.backend import Backend
from omnitide.errors import ConfigError
from omnitide.models.headers import Shape
from omnitide.models.quantized import AFFINE_BITS, AFFINE_GROUPS
from omnitide.quantized import WORD_BITS, QuantizedWeight

MODE = "affine"


@dataclass(frozen=True, slots=True)
class Packing:
    """How all matrices of a decoder are quantised, the token embeddings too.

    Attributes:
        bits: Of an element.
        group_size: Elements that share a scale and a bias.

    Raises:
        ConfigError: No backend knows such matrices.
    """

    bits: int
    group_size: int = 64

    def __post_init__(self) -> None:
        for option, value, known in (
            ("--q-bits", self.bits, AFFINE_BITS),
            ("--q-group-size", self.group_size, AFFINE_GROUPS),
        ):
            if value not in known:
                words = ", ".join(str(number) for number in known)
                raise ConfigError(f"[bench] {option} must be one of {words}, got {value}")

    def __str__(self) -> str:
        return f"matrices in {self.bits} bits, groups of {self.group_size}"

    def refuse(self, columns: int) -> None:
        """Refuse rows that can't be cut into groups.

        Raises:
            ConfigError: The group size doesn't divide `columns`.
        """
        if columns % self.group_size:
            raise ConfigError(
                f"[bench] --q-group-size must divide the {columns} columns of every matrix, got "
                f"{self.group_size}; take a smaller one"
            )

    def refuse_backend(self, backend: Backend) -> None:
        """Refuse a backend that does not compute with such matrices.

        Raises:
            ConfigError: It doesn't.
        """
        if MODE not in backend.quantized_modes:
            raise ConfigError(
                f"[bench] backend {backend.name} takes no {MODE} weights; leave out --q-bits"
            )

    def random(self, backend: Backend, shape: Shape, seed: int) -> QuantizedWeight:
        """A matrix whose products keep activations near one, on the device.

        Codes are uniform; scales and biases are normal, of mean 0 and equal deviation. On the
        backend's thread.
        """
        rows, columns = shape
        top = 2**self.bits - 1
        mean_square = top * (2 * top + 1) / 6  # of a code
        deviation = (columns * (mean_square + 1)) ** -0.5
        groups = (rows, columns // self.group_size)
        return QuantizedWeight(
            packed=backend.random_words((rows, columns * self.bits // WORD_BITS), seed),
            scales=backend.random_normal(groups, deviation, seed),
            biases=backend.random_normal(groups, deviation, seed + 1),
            bits=self.bits,
            group_size=self.group_size,
            mode=MODE,
        )


def tensor_bytes(shape: Shape, itemsize: int, packing: Packing | None) -> int:
    """Bytes of a tensor of a decoder: matrices are packed, if there is a packing."""
    size = prod(shape)
    if packing is None or len(shape) != 2:
        return size * itemsize
    return size * packing.bits // 8 + 2 * itemsize * size // packing.group_size
