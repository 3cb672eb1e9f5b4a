"""Retention policies, one file each. To add one: write it, name it here, add it to the tests."""

from __future__ import annotations

from omnitide.errors import ConfigError
from omnitide.policies.fifo import UnitFifo
from omnitide.policies.full import FullContext
from omnitide.policies.h2o import H2O
from omnitide.policies.omnipick import OmniPick
from omnitide.policies.streaming_llm import StreamingLLM
from omnitide.policies.streaming_vlm import StreamingVLM
from omnitide.policies.token_sliding import TokenSliding
from omnitide.retention import RetentionPolicy

POLICIES: dict[str, type[RetentionPolicy]] = {
    "omnipick": OmniPick,
    "streaming-vlm": StreamingVLM,
    "streaming-llm": StreamingLLM,
    "h2o": H2O,
    "token-sliding": TokenSliding,
    "fifo": UnitFifo,
    "full": FullContext,
}


def make_policy(name: str) -> RetentionPolicy:
    """A policy by name.

    Raises:
        ConfigError: No policy has that name.
    """
    if name not in POLICIES:
        raise ConfigError(f"[policy] expected one of {', '.join(POLICIES)}; got {name!r}")
    return POLICIES[name]()
