"""Retention policies for text, by name: `turns` and those of the core that read structure alone."""

from __future__ import annotations

from omnitide.errors import ConfigError
from omnitide.mlx_lm.turns import Turns
from omnitide.policies import POLICIES
from omnitide.retention import RetentionPolicy

TEXT_POLICIES: dict[str, type[RetentionPolicy]] = {
    "turns": Turns,
    **{name: policy for name, policy in POLICIES.items() if not policy.needs_mass},
}


def make_text_policy(name: str) -> RetentionPolicy:
    """A policy by name.

    Raises:
        ConfigError: No policy has that name, or it needs the attention mass.
    """
    if name in TEXT_POLICIES:
        return TEXT_POLICIES[name]()
    if name in POLICIES:
        raise ConfigError(
            f"[mlx-lm] {name} chooses by attention mass, which the attention of mlx-lm does not "
            f"give; take one of {', '.join(TEXT_POLICIES)}"
        )
    raise ConfigError(f"[mlx-lm] policy must be one of {', '.join(TEXT_POLICIES)}; got {name!r}")
