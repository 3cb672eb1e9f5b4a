"""Conversions of MiniCPM-o against MLX, tensor by tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

Run = Callable[..., Any]


@pytest.mark.parametrize("version", ["4.5", "2.6"])
def test_every_tensor_is_what_mlx_makes_of_it(
    version: str,
    minicpm_checkpoint: Callable[..., Path],
    tmp_path: Path,
    run: Run,
    stored: Run,
    by_mlx: Run,
) -> None:
    source, out = minicpm_checkpoint(version=version), tmp_path / "out"
    run(source, out, ("lm_head=8:32",))
    weights, got = stored(source), stored(out)
    want: dict[str, Any] = {}
    for name, values in weights.items():
        if name.startswith("llm.") and values.ndim == 2 and values.shape[1] % 64 == 0:
            kind = (32, 8) if name == "llm.lm_head.weight" else (64, 4)
            parts = by_mlx(values, *kind)
            for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
                want[name.removesuffix("weight") + part] = array
        else:
            want[name] = values
    assert got.keys() == want.keys()
    assert sum(name.endswith(".scales") for name in want) == 2 + 3 * 6  # down_proj has odd rows
    for name, values in want.items():
        assert got[name].dtype == values.dtype, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    config = json.loads((out / "config.json").read_text())
    assert config["quantization"]["llm.lm_head"] == {"group_size": 32, "bits": 8}
    assert (out / "tokenizer_config.json").is_file()


def test_the_part_that_speaks_is_copied_or_left_out(
    minicpm_checkpoint: Callable[..., Path], tmp_path: Path, run: Run, stored: Run
) -> None:
    source = Path(shutil.copytree(minicpm_checkpoint(), tmp_path / "source"))
    weights = load_file(source / "model.safetensors")
    weights["tts.emb_text.weight"] = np.ones((4, 64), np.float32)
    save_file(weights, source / "model.safetensors")
    run(source, tmp_path / "whole")
    run(source, tmp_path / "less", drop_unused=True)
    speech = stored(tmp_path / "whole")["tts.emb_text.weight"]
    np.testing.assert_array_equal(speech, np.ones((4, 64), np.float32))
    assert "tts.emb_text.weight" not in stored(tmp_path / "less")
