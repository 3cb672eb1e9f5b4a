"""Sizes of the models whose products `cuda_quantized.py` times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    vocabulary: int

    def products(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """Rows of the matrices that one launch multiplies by, and their columns."""
        return {
            "projections": ((self.queries, self.keys, self.keys), self.hidden),
            "output": ((self.hidden,), self.queries),
            "gated": ((self.inner, self.inner), self.hidden),
            "down": ((self.hidden,), self.inner),
            "logits": ((self.vocabulary,), self.hidden),
        }


SHAPES = {
    "qwen-7b": Shape(28, 3584, 3584, 512, 18944, 152064),
    "qwen-3b": Shape(36, 2048, 2048, 256, 11008, 151936),
    "minicpm-o": Shape(36, 4096, 4096, 1024, 12288, 151748),
}
