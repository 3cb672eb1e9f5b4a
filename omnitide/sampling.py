"""Choosing the next token from logits, in mlx-lm's order: top-p, min-p, top-k, then temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.config import SamplingConfig
from omnitide.errors import NumericsError

Logits = NDArray[np.floating[Any]]

NOT_NUMBERS = (
    "[sampling] the logits must be numbers, the model gives NaN; try --dtype float32, or download "
    "the checkpoint again"
)


class Sampler:
    """Draws tokens under one configuration; holds the random generator of one stream."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config
        self._random = np.random.default_rng(config.seed)

    def choose(self, backend: Backend, logits: Array) -> int:
        """The next token for logits (vocab_size,) of a backend. Call on the backend's thread.

        The greedy choice is made on the device, and one number is read.
        """
        if self.config.temperature > 0:
            return self(backend.to_numpy(backend.log_softmax(logits)))
        token = backend.argmax(logits)
        if token < 0:
            raise NumericsError(NOT_NUMBERS)
        return token

    def as_it_is(self, logits: Logits) -> int:
        """A token for logits (vocab_size,) on the host, by their own probabilities alone."""
        if np.isnan(logits).any():
            raise NumericsError(NOT_NUMBERS)
        if self.config.temperature == 0:
            return int(np.argmax(logits))
        return self._drawn(logits.astype(np.float64))

    def of_logits(self, logits: Logits) -> int:
        """The next token for logits (vocab_size,) on the host; -inf is never chosen."""
        if self.config.temperature == 0:
            return self(logits)
        shifted = logits.astype(np.float64) - logits.max()
        return self(shifted - np.log(np.exp(shifted).sum()))

    def __call__(self, logprobs: Logits) -> int:
        """The next token for log-probabilities of shape (vocab_size,)."""
        config = self.config
        if np.isnan(logprobs).any():
            raise NumericsError(NOT_NUMBERS)
        if config.temperature == 0:
            return int(np.argmax(logprobs))
        kept = np.array(logprobs, np.float64)
        if config.top_p < 1:
            kept[_outside_nucleus(kept, config.top_p)] = -np.inf
        if config.min_p > 0:
            kept[kept < kept.max() + np.log(config.min_p)] = -np.inf
        if 0 < config.top_k < len(kept):
            kept[np.argpartition(-kept, config.top_k)[config.top_k :]] = -np.inf
        with np.errstate(over="ignore"):  # at a temperature near 0, and -inf is then right
            return self._drawn((kept - kept.max()) / config.temperature)

    def _drawn(self, scores: NDArray[np.float64]) -> int:
        """A token by the probabilities that are as the exponentials of scores (vocab_size,)."""
        weights = np.cumsum(np.exp(scores - scores.max()))
        drawn = min(self._random.random() * weights[-1], np.nextafter(weights[-1], 0))
        return int(np.searchsorted(weights, drawn, side="right"))


def _outside_nucleus(logprobs: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """Tokens outside the smallest set of most likely ones whose probability reaches `top_p`."""
    order = np.argsort(-logprobs, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(np.exp(logprobs[order]))[:-1]])
    outside = np.zeros(len(logprobs), np.bool_)
    outside[order[before >= top_p]] = True
    return outside
