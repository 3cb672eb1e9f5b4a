"""Language models to measure, by name. Weights are random; sizes are the published ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omnitide.errors import ConfigError
from omnitide.models.minicpm_o import config as minicpm_o
from omnitide.models.minicpm_o.presets import PRESETS as MINICPM_O
from omnitide.models.qwen2_5_omni import config as qwen2_5_omni
from omnitide.models.qwen2_5_omni.presets import PRESETS as QWEN2_5_OMNI
from omnitide.models.text_config import TextConfig
from omnitide.rotary import Rotary


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A language model without its weights.

    Attributes:
        name: What it is chosen by.
        text: Sizes.
        stream: Kind of stream (`simulation.shapes`) that such a model follows.
    """

    name: str
    text: TextConfig
    stream: str

    def cut(self, layers: int) -> ModelShape:
        """The same with fewer layers."""
        return replace(self, text=replace(self.text, num_layers=layers))


TINY = TextConfig(
    vocab_size=288,
    hidden_size=256,
    intermediate_size=96,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    rms_norm_eps=1e-6,
    tied=False,
    rotary=Rotary(128, 1e6, (16, 24, 24)),
)


def _qwen(name: str) -> TextConfig:
    return qwen2_5_omni.parse_config(QWEN2_5_OMNI[name]).text


def _minicpm(name: str) -> TextConfig:
    return minicpm_o.parse_config(MINICPM_O[name]).text


SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("qwen2.5-omni-7b", _qwen("Qwen/Qwen2.5-Omni-7B"), "qwen-448"),
        ModelShape("qwen2.5-omni-3b", _qwen("Qwen/Qwen2.5-Omni-3B"), "qwen-448"),
        ModelShape("minicpm-o", _minicpm("openbmb/MiniCPM-o-4_5"), "minicpm-duplex"),
        ModelShape("tiny", TINY, "qwen-448"),
    )
}

LARGE, SMALL = "qwen2.5-omni-3b", "tiny"
"""Taken where none is named: with an accelerator, and without."""


def make_shape(
    name: str, heads: int | None = None, kv_heads: int | None = None, head_dim: int | None = None
) -> ModelShape:
    """A shape by name, with other heads if they are given.

    Raises:
        ConfigError: An unknown name, or heads that don't fit each other.
    """
    if name not in SHAPES:
        raise ConfigError(f"[shape] expected one of {', '.join(SHAPES)}; got {name!r}")
    shape = SHAPES[name]
    if heads is None and kv_heads is None and head_dim is None:
        return shape
    text = shape.text
    heads = text.num_heads if heads is None else heads
    kv_heads = text.num_kv_heads if kv_heads is None else kv_heads
    head_dim = text.head_dim if head_dim is None else head_dim
    if min(heads, kv_heads) < 1 or heads % kv_heads:
        raise ConfigError(
            f"[shape] --heads must be a multiple of --kv-heads, both at least 1; got {heads} and "
            f"{kv_heads}"
        )
    changed = replace(
        text,
        num_heads=heads,
        num_kv_heads=kv_heads,
        rotary=text.rotary if head_dim == text.head_dim else Rotary(head_dim),
    )
    return ModelShape(f"{heads}x{kv_heads}x{head_dim}", changed, shape.stream)
