"""The golden data: a tiny random model and what the published code made of it.

`tests/golden/minicpm_o/MANIFEST.md` names every array, its tolerance and the quirks behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace, Sequence
from tokenizers.pre_tokenizers import Split

from omnitide.backend import Backend
from omnitide.config import MediaOptions
from omnitide.models.minicpm_o.audio import AudioTower
from omnitide.models.minicpm_o.config import MiniCPMConfig, parse_config

Golden = Callable[[str], Mapping[str, NDArray[Any]]]

# Published ids of the pieces of text that the golden prompts are made of.
PIECES = {
    "system": 8948,
    "user": 872,
    "assistant": 77091,
    "\n": 198,
    "\n\n": 271,
    ".\n": 624,
    ".": 13,
    "Streaming": 76509,
    " Omni": 85225,
    " Conversation": 50830,
    "You": 2610,
    " are": 525,
    " a": 264,
    " helpful": 10950,
    " assistant": 17847,
    "Describe": 74785,
    " what": 1128,
    " you": 498,
    " see": 1490,
    " and": 323,
    " hear": 6723,
    "0": 15,
    "previous": 19702,
    ":": 25,
    " ": 220,
}

NO_MARKERS = ("<think>", "</think>")
"""Added tokens that are no special ones."""

FOLDER = Path(__file__).parent.parent / "golden" / "minicpm_o"


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """The folder of the golden data; it is also a checkpoint without a tokenizer."""
    return FOLDER


@pytest.fixture(scope="session")
def golden() -> Golden:
    """The arrays of a case by name: `golden("01_image_grid_table")["table"]`."""

    @cache
    def read(name: str) -> Mapping[str, NDArray[Any]]:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}

    return read


@pytest.fixture(scope="session")
def golden_weights() -> dict[str, NDArray[np.float32]]:
    """The tensors of the tiny model by canonical name: the published one without "llm."."""
    stored = load_file(FOLDER / "model.safetensors")
    return {name.removeprefix("llm."): tensor for name, tensor in stored.items()}


@pytest.fixture(scope="session")
def golden_config() -> MiniCPMConfig:
    """The configuration of the tiny model."""
    return parse_config(json.loads((FOLDER / "config.json").read_text()))


@pytest.fixture(scope="session")
def golden_tokens() -> dict[str, int]:
    """Tiny id of every added token by its text."""
    table = json.loads((FOLDER / "token_map.json").read_text())["tokens_real_tiny"]
    return {text: tiny for text, (_, tiny) in table.items()}


@pytest.fixture(scope="session")
def long_wave(golden: Golden) -> NDArray[np.float32]:
    """33 s of sound: the longest clip again and again, each time of another loudness."""
    clip = golden("05_audio_7.0s_wave_mel")["wav_i16"].astype(np.float32) / 32768
    gains = golden("07_audio_long")["gains"]
    return np.concatenate([np.clip(clip * gain, -1, 1) for gain in gains])[: 33 * 16_000]


@pytest.fixture
def make_tower(golden_weights: Any, golden_config: MiniCPMConfig) -> Callable[..., AudioTower]:
    """The golden audio tower: `make_tower(backend, **changes of its AudioConfig)`."""

    def make(backend: Backend, **changes: Any) -> AudioTower:
        config = replace(golden_config.audio, **changes)
        names = [name for name in golden_weights if name.startswith(("apm.", "audio_projection"))]

        def build() -> AudioTower:
            weights = {name: backend.asarray(golden_weights[name]) for name in names}
            return AudioTower(config, backend, weights)

        return backend.run(build)

    return make


class WhisperOracle:
    """transformers' Whisper encoder with the golden weights, taken apart. Float64."""

    def __init__(self, weights: dict[str, NDArray[np.float32]]) -> None:
        import torch
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config = WhisperConfig(
            d_model=48,
            encoder_layers=2,
            encoder_attention_heads=4,
            encoder_ffn_dim=192,
            num_mel_bins=80,
            max_source_positions=1500,
        )
        config._attn_implementation = "eager"
        self.encoder = WhisperEncoder(config).eval().double()
        named = {
            name.removeprefix("apm."): torch.from_numpy(tensor)
            for name, tensor in weights.items()
            if name.startswith("apm.")
        }
        self.encoder.load_state_dict(named, strict=True)
        self.encoder.requires_grad_(False)
        self.weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}

    def convolved(self, mel: NDArray[Any]) -> NDArray[np.float64]:
        """Frames behind the convolutions, without positions."""
        import torch

        encoder, gelu = self.encoder, torch.nn.functional.gelu
        x = gelu(encoder.conv1(torch.from_numpy(mel.T.astype(np.float64))[None]))
        frames: NDArray[np.float64] = gelu(encoder.conv2(x))[0].T.numpy()
        return frames

    def states(self, frames: NDArray[np.float64], sees: NDArray[Any]) -> NDArray[np.float64]:
        """States behind the last norm; `sees[i, j]` says whether frame i sees frame j.

        The first frame is at position 0.
        """
        import torch

        x = torch.from_numpy(frames) + self.encoder.embed_positions.weight[: len(frames)]
        hidden = torch.from_numpy(np.where(sees, 0.0, -np.inf))[None, None]
        x = x[None]
        for layer in self.encoder.layers:
            out = layer(x, attention_mask=hidden)
            x = out[0] if isinstance(out, tuple) else out
        states: NDArray[np.float64] = self.encoder.layer_norm(x)[0].numpy()
        return states

    def tokens(self, states: NDArray[np.float64], pool: int) -> NDArray[np.float64]:
        """Projected and pooled states, by the formulas."""
        w, at = self.weights, "audio_projection_layer"
        inner = np.maximum(states @ w[f"{at}.linear1.weight"].T + w[f"{at}.linear1.bias"], 0)
        out = inner @ w[f"{at}.linear2.weight"].T + w[f"{at}.linear2.bias"]
        means = [out[i : i + pool].mean(axis=0) for i in range(0, len(out) - pool + 1, pool)]
        return np.array(means)


@pytest.fixture(scope="session")
def whisper_oracle(golden_weights: dict[str, NDArray[np.float32]]) -> WhisperOracle:
    """transformers' Whisper encoder with any mask."""
    return WhisperOracle(golden_weights)


def _write_tokenizer(folder: Path, real: bool) -> None:
    """A tokenizer that knows the golden prompts' pieces alone, by published or by tiny ids.

    Every other id of text is a word that names it, so that whatever the model says can be read.
    """
    table = json.loads((FOLDER / "token_map.json").read_text())
    added = {text: ids[0 if real else 1] for text, ids in table["tokens_real_tiny"].items()}
    vocab = {} if real else {f"w{i} ": i for i in range(215)}
    pieces = {text: i if real else i % 215 for text, i in PIECES.items()}
    # Of words with one tiny id the library would keep one, now this, now that: they become one.
    first = {i: text for text, i in reversed(pieces.items())}
    same = [Replace(text, first[i]) for text, i in pieces.items() if first[i] != text]
    pieces = {text: i for i, text in first.items()}
    vocab = {t: i for t, i in vocab.items() if i not in pieces.values()} | pieces | added
    vocab = {t: i for t, i in vocab.items() if real or i != added["<unk>"] or t == "<unk>"}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="<unk>"))
    longest_first = sorted(map(re.escape, pieces), key=len, reverse=True)
    tokenizer.normalizer = Sequence(same)
    tokenizer.pre_tokenizer = Split(Regex("|".join(longest_first)), "isolated")
    tokenizer.decoder = Fuse()
    by_id = sorted(added, key=added.__getitem__)
    tokenizer.add_special_tokens([AddedToken(t) for t in by_id if t not in NO_MARKERS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in NO_MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = [
        t for t, ids in table["tokens_real_tiny"].items() if ids[0] in table["special_ids_real"]
    ]
    settings = {"additional_special_tokens": special, "bad_token_ids": table["bad_ids_tiny"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def golden_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a checkpoint, with a tokenizer that gives the golden ids."""
    folder = tmp_path_factory.mktemp("golden")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(FOLDER / name)
    _write_tokenizer(folder, real=False)
    return folder


@pytest.fixture(scope="session")
def published_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that gives the published ids of the golden prompts."""
    folder = tmp_path_factory.mktemp("published")
    _write_tokenizer(folder, real=True)
    return folder


@pytest.fixture(scope="session")
def golden_model(golden_checkpoint: Path, load: Callable[..., Any]) -> Callable[..., Any]:
    """The tiny model on a backend: `golden_model(backend, **options of MediaOptions)`."""

    def open_(backend: Backend, **options: Any) -> Any:
        media = MediaOptions(**({"fps": 1.0, "chunk_seconds": 1.0} | options))
        return load(golden_checkpoint, backend, media)

    return open_
