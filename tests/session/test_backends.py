"""Every backend that is here tells the same story as the reference, evictions included."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import (
    DuplexConfig,
    DuplexSession,
    MediaOptions,
    MigrationConfig,
    RetentionConfig,
    SamplingConfig,
    Session,
)
from omnitide.backends import BackendInfo, describe_backends, load_backend
from omnitide.media.chunk import MediaChunk
from omnitide.models import load_model

OTHERS = [info for info in describe_backends() if info.name != "reference"]


@pytest.mark.parametrize("info", OTHERS, ids=lambda info: info.name)
@pytest.mark.parametrize(
    ("layout", "policy"),
    [("predictive", "omnipick"), ("paper", "omnipick"), ("paper", "h2o")],
)
def test_greedy_reply_equals_the_reference(
    info: BackendInfo,
    layout: str,
    policy: str,
    tiny_checkpoint: Callable[..., Path],
    chunk: Callable[..., MediaChunk],
) -> None:
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)

    def told(name: str, dtype: str) -> tuple[list[int], np.ndarray, Any, int]:
        backend = load_backend(name, dtype)
        media = MediaOptions(max_pixels=56 * 56)
        model = backend.run(load_model, tiny_checkpoint(), backend, media=media)
        retention = RetentionConfig(260, 150, recent_units=1, text_budget=40, image_sink=3)
        session = Session(
            model,
            policy=policy,
            layout=layout,
            retention=retention,
            migration=MigrationConfig("layout"),  # prices differ from device to device
            max_tokens=6,
            largest_unit=99,
        )
        for index in range(7):
            session.append_media(chunk(index))
        pieces = list(session.ask("What was that?"))
        session.append_media(chunk(7))
        pieces += session.ask("And that?")
        session.cache.check_integrity()
        logprobs = np.stack([p.logprobs for p in pieces])
        return [p.token for p in pieces], logprobs, session.stats(), backend.pool_arrays

    tokens, logprobs, stats, arrays = told(info.name, "float32")
    expected, wanted, reference, of_reference = told("reference", "float64")
    assert tokens == expected
    assert np.abs(logprobs - wanted).max() < 1e-3
    assert stats.evictions == reference.evictions > 2
    assert stats.rows_moved == reference.rows_moved
    assert stats.rows_moved > 0 or layout != "paper"
    half = reference.physical_kv_bytes // 2
    assert stats.physical_kv_bytes * of_reference == half * arrays


@pytest.mark.parametrize("info", OTHERS, ids=lambda info: info.name)
def test_duplex_decisions_equal_the_reference(
    info: BackendInfo,
    minicpm_checkpoint: Callable[..., Path],
    second: Callable[..., MediaChunk],
) -> None:
    """MiniCPM-o, with pictures, evictions and words recalled on the way."""
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)

    def told(name: str, dtype: str) -> tuple[list[tuple[int, ...]], Any, tuple[int, ...]]:
        backend = load_backend(name, dtype)
        model: Any = backend.run(load_model, minicpm_checkpoint(), backend)
        session = DuplexSession(
            model,
            retention=RetentionConfig(130, 90, recent_units=1, image_sink=3, text_budget=2),
            duplex=DuplexConfig(force_listen=0, unit_tokens=6, recall=4),
            migration=MigrationConfig("layout"),
            sampling=SamplingConfig(temperature=1.0, seed=3),
            largest_unit=100,
        )
        updates = [session.append_media(second(i, picture=i % 3 == 0)) for i in range(8)]
        session.cache.check_integrity()
        said = [update.said.tokens for update in updates if update.said]
        return said, session.stats(), session.talk.recalled

    said, stats, recalled = told(info.name, "float32")
    expected, reference, wanted = told("reference", "float64")
    assert said == expected
    assert recalled == wanted
    assert recalled
    assert stats.evictions == reference.evictions > 2
