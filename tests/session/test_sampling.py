"""Sampling against mlx-lm's own filters, and against the distribution written out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p
from scipy.special import log_softmax

from omnitide import SamplingConfig
from omnitide.errors import ConfigError, NumericsError
from omnitide.sampling import Sampler

LOGITS = np.random.default_rng(0).normal(0, 2, 40).astype(np.float32)


def allowed_by_mlx_lm(logprobs: np.ndarray, config: SamplingConfig) -> set[int]:
    kept = mx.array(logprobs)[None]
    if config.top_p < 1:
        kept = apply_top_p(kept, config.top_p)
    if config.min_p > 0:
        kept = apply_min_p(kept, config.min_p)
    if 0 < config.top_k < len(logprobs):  # mlx-lm refuses more
        kept = apply_top_k(kept, config.top_k)
    return set(np.flatnonzero(np.isfinite(np.array(kept[0]))).tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.6},
        {"top_k": 5},
        {"min_p": 0.2},
        {"top_p": 0.9, "top_k": 7, "min_p": 0.02},
        {"top_k": 400},
        {"top_p": 1e-6},
        {},
    ],
    ids=str,
)
def test_tokens_drawn_are_those_mlx_lm_allows(options: dict[str, float]) -> None:
    config = SamplingConfig(temperature=3.0, seed=1, **options)  # type: ignore[arg-type]
    logprobs = log_softmax(LOGITS)
    sampler = Sampler(config)
    drawn = {sampler(logprobs) for _ in range(4000)}
    allowed = allowed_by_mlx_lm(logprobs, config)
    probabilities = np.exp(logprobs.astype(np.float64) / 3.0)
    likely = {i for i in allowed if probabilities[i] / probabilities[list(allowed)].sum() > 4e-3}
    assert likely <= drawn <= allowed


def test_frequencies_follow_the_temperature() -> None:
    logits = np.array([1.0, 0.0, -1.0], np.float32)
    sampler = Sampler(SamplingConfig(temperature=0.5, seed=2))
    draws = [sampler(log_softmax(logits)) for _ in range(20_000)]
    expected = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum()
    assert np.bincount(draws, minlength=3) / 20_000 == pytest.approx(expected, abs=0.012)


def test_greedy_takes_the_first_of_equals() -> None:
    assert Sampler(SamplingConfig())(np.array([0.0, 2.0, 2.0])) == 1


def test_infinite_temperature_and_broken_logits_are_refused() -> None:
    with pytest.raises(ConfigError, match="temperature must be finite"):
        SamplingConfig(temperature=float("inf"), top_k=5)
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericsError, match="NaN"):
            Sampler(SamplingConfig(temperature=temperature))(np.array([0.0, np.nan, 1.0]))


def test_logits_as_they_are_are_drawn_from_by_their_own_probabilities() -> None:
    """Neither temperature nor filters count."""
    logits = np.array([1.0, 0.0, -1.0], np.float32)
    sampler = Sampler(SamplingConfig(temperature=0.1, top_k=1, seed=2))
    draws = [sampler.as_it_is(logits) for _ in range(20_000)]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.bincount(draws, minlength=3) / 20_000 == pytest.approx(expected, abs=0.012)
    assert Sampler(SamplingConfig()).as_it_is(np.array([0.0, 2.0, 2.0])) == 1
    with pytest.raises(NumericsError, match="NaN"):
        sampler.as_it_is(np.array([0.0, np.nan]))


def test_logits_are_drawn_from_as_their_probabilities_are() -> None:
    """The filters work on probabilities, whatever the logits' level; -inf is never drawn."""
    config = SamplingConfig(temperature=1.3, top_p=0.7, seed=4)
    raised, plain = Sampler(config), Sampler(config)
    forbidden = LOGITS.copy()
    forbidden[np.argmax(LOGITS)] = -np.inf
    for _ in range(300):
        drawn = raised.of_logits(forbidden + 50)
        assert drawn == plain(log_softmax(forbidden.astype(np.float64)))
        assert drawn != np.argmax(LOGITS)
