"""A language model with random weights, as much of an `OmniModel` as a cache asks for."""

from __future__ import annotations

from copy import copy
from math import prod
from typing import Any

import numpy as np

from omnitide.backend import Array, Backend, Pools, Weight
from omnitide.bench.packing import Packing
from omnitide.bench.shapes import ModelShape
from omnitide.model import ModelSpec
from omnitide.models.decoder import Decoder
from omnitide.models.headers import Shape
from omnitide.models.names import text_tensors
from omnitide.step import Step


class Backbone:
    """The decoder alone.

    Attributes:
        backend: Where it runs.
        spec: What the cache needs to know.
        decoder: The model code that sessions run.
    """

    def __init__(
        self, shape: ModelShape, backend: Backend, seed: int, packing: Packing | None = None
    ) -> None:
        """Make the weights on the device. Call on the backend's thread.

        Args:
            shape: Sizes.
            backend: Takes them.
            seed: Of the random numbers.
            packing: How matrices are quantised. None: they are not.
        """
        text = shape.text
        self.backend = backend
        self.spec = ModelSpec(
            name=shape.name,
            family="qwen2_5_omni",
            num_layers=text.num_layers,
            num_heads=text.num_heads,
            num_kv_heads=text.num_kv_heads,
            head_dim=text.head_dim,
            vocab_size=text.vocab_size,
            rotary=text.rotary,
            trained=False,
        )
        self._seed = seed
        weights = {
            name: _random(backend, name, size, seed + number, packing)
            for number, (name, size) in enumerate(text_tensors(text).items())
        }
        self.decoder = Decoder(text, backend, weights)

    def on(self, backend: Backend) -> Backbone:
        """The same weights behind another backend that takes the same arrays."""
        other = copy(self)
        other.backend = backend
        other.decoder = copy(self.decoder)
        other.decoder.backend = backend
        return other

    def new_stream(self) -> Any:
        """There is no picture and no sound."""
        return None

    def embeddings(self, count: int) -> Array:
        """Stand-ins for the embeddings of tokens, shape (count, hidden_size)."""
        shape = (count, self.decoder.config.hidden_size)
        return self.backend.random_normal(shape, 1.0, self._seed)

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Logits of the last token, shape (vocab_size,). Changes `pools` at the new slots."""
        return self.decoder.forward(embeddings, pools, step)


def _random(
    backend: Backend, name: str, shape: Shape, seed: int, packing: Packing | None
) -> Weight:
    """Weights that keep activations near one."""
    if packing is not None and len(shape) == 2:
        return packing.random(backend, shape, seed)
    if len(shape) > 1:
        return backend.random_normal(shape, prod(shape[1:]) ** -0.5, seed)
    return backend.asarray(np.full(shape, 0.0 if name.endswith("bias") else 1.0))
