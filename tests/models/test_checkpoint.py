"""Checkpoint folders: every layout that is read, and a message for each that is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnitide.backend import Backend
from omnitide.errors import CheckpointError
from omnitide.models import load_model
from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A good checkpoint that may be spoilt."""
    return Path(shutil.copytree(tiny_checkpoint(), tmp_path / "model"))


@pytest.fixture
def logits(reference: Backend, bare_cache: Any) -> Callable[[Path], Any]:
    """Logits of a fixed text by the model of a folder."""

    def run(folder: Path) -> Any:
        model = load_model(folder, reference)
        asked = model.encode_prompt("The same text for all.")
        return bare_cache(model).prefill(asked.unit, asked.embeddings)

    return run


def _edit_json(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    contents = json.loads(file.read_text())
    change(contents)
    file.write_text(json.dumps(contents))


def _edit_weights(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


@pytest.mark.parametrize("num_files", [1, 2, 5])
def test_weights_in_several_files_are_the_same(
    num_files: int, tmp_path: Path, folder: Path, logits: Any
) -> None:
    write_random_checkpoint(tmp_path / "split", num_files=num_files)
    assert (tmp_path / "split" / INDEX).is_file() == (num_files > 1)
    np.testing.assert_array_equal(logits(tmp_path / "split"), logits(folder))


def test_several_files_without_an_index(tmp_path: Path, folder: Path, logits: Any) -> None:
    write_random_checkpoint(tmp_path / "split", num_files=3)
    (tmp_path / "split" / INDEX).unlink()
    np.testing.assert_array_equal(logits(tmp_path / "split"), logits(folder))


def test_other_files_beside_the_weights_are_left_alone(folder: Path, logits: Any) -> None:
    want = logits(folder)
    (folder / "a-copy.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    np.testing.assert_array_equal(logits(folder), want)


def test_talker_and_vocoder_are_left_alone(folder: Path, logits: Any) -> None:
    want = logits(folder)
    stray = np.ones((2, 2), np.float32)
    names = ("talker.codec_head.weight", "token2wav.code2wav_dit_model.norm_out.linear.bias")
    _edit_weights(folder, lambda w: w.update(dict.fromkeys(names, stray)))
    np.testing.assert_array_equal(logits(folder), want)


def test_the_unused_marker_embeddings_may_be_absent(folder: Path, logits: Any) -> None:
    want = logits(folder)
    _edit_weights(folder, lambda w: w.pop("thinker.audio_tower.audio_bos_eos_token.weight"))
    np.testing.assert_array_equal(logits(folder), want)


def test_every_fault_of_the_tensors_is_named(folder: Path, reference: Backend) -> None:
    def spoil(weights: dict[str, Any]) -> None:
        for layer in range(3):
            weights.pop(f"thinker.model.layers.{layer}.mlp.up_proj.weight")
        weights.pop("thinker.lm_head.weight")
        weights["thinker.visual.blocks.9.norm1.weight"] = np.ones(3, np.float32)
        weights["thinker.model.norm.weight"] = np.ones(7, np.float32)
        weights["thinker.audio_tower.proj.bias"] = np.ones(256, np.int32)
        weights["model.language_model.embed_tokens.weight"] = np.ones((288, 256), np.float32)

    _edit_weights(folder, spoil)
    with pytest.raises(CheckpointError) as error:
        load_model(folder, reference)
    assert str(error.value).split("\n")[1:] == [
        "  double thinker.model.embed_tokens.weight, also stored as "
        "model.language_model.embed_tokens.weight",
        "  extra thinker.visual.blocks.9.norm1.weight [3]",
        "  mis-shaped thinker.model.norm.weight: [7], not [256]",
        "  missing lm_head.weight [288, 256]",
        "  missing model.layers.0.mlp.up_proj.weight [96, 256]",
        "  missing model.layers.1.mlp.up_proj.weight [96, 256]",
        "  missing model.layers.2.mlp.up_proj.weight [96, 256]",
        "  not a float tensor thinker.audio_tower.proj.bias: I32",
    ]


def test_no_weight_is_read_before_all_are_checked(
    folder: Path, reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit_weights(folder, lambda w: w.pop("thinker.lm_head.weight"))
    read: list[Any] = []
    monkeypatch.setattr(reference, "read_safetensors", lambda *args: read.append(args) or {})
    with pytest.raises(CheckpointError, match="missing lm_head"):
        load_model(folder, reference)
    assert read == []


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ')


def _list_as_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _llama(folder: Path) -> None:
    _edit_json(
        folder / "config.json",
        lambda c: c.update(architectures=["LlamaForCausalLM"], model_type="llama"),
    )


def _unknown_type(folder: Path) -> None:
    _edit_json(folder / "config.json", lambda c: (c.pop("architectures"), c.update(model_type="x")))


def _pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def _no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def _cut_short(folder: Path) -> None:
    contents = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(contents[: len(contents) // 2])


def _empty_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def _index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _no_such_shard(folder: Path) -> None:
    _index(folder, {"lm_head.weight": "model-00001-of-00002.safetensors"})


def _no_such_tensor(folder: Path) -> None:
    _index(folder, {"a.weight": WEIGHTS, "b.weight": WEIGHTS})


def _twice(folder: Path) -> None:
    save_file({"thinker.lm_head.weight": np.ones(1, np.float32)}, folder / "b.safetensors")
    (folder / WEIGHTS).rename(folder / "a.safetensors")


SPOILT = {
    "no config": (_no_config, r"must hold config\.json"),
    "broken config": (_broken_config, r"config\.json can't be read as JSON"),
    "list as config": (_list_as_config, r"must hold a JSON object, got list"),
    "unknown architecture": (
        _llama,
        r"must be one of Qwen2_5OmniModel.* config\.json names LlamaForCausalLM",
    ),
    "unknown model type": (_unknown_type, r"config\.json names x"),
    "pickle": (_pickle, r"holds pytorch_model\.bin; a pickle can run any code"),
    "no weights": (_no_weights, r"must be safetensors, .* holds none"),
    "cut short": (_cut_short, r"model\.safetensors can't be read as safetensors.*cut short"),
    "empty": (_empty_weights, r"model\.safetensors can't be read as safetensors"),
    "no map in the index": (lambda f: _index(f, 3), r"must map tensor names to files"),
    "index points up": (lambda f: _index(f, {"a": "../x.safetensors"}), r"inside its own folder"),
    "index points to the root": (lambda f: _index(f, {"a": "/x"}), r"inside its own folder"),
    "index points to a drive": (lambda f: _index(f, {"a": "C:\\x"}), r"inside its own folder"),
    "missing shard": (_no_such_shard, r"lacks: model-00001-of-00002\.safetensors"),
    "missing in its shard": (_no_such_tensor, r"(?s)not there.*a\.weight in.*b\.weight in"),
    "stored twice": (_twice, r"stored once, thinker\.lm_head\.weight is in a.* and b"),
    "no tokenizer": (_no_tokenizer, r"must hold tokenizer\.json, or vocab\.json and merges\.txt"),
    "broken tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{"),
        r"the tokenizer in .* can't be read",
    ),
    "tokenizer of another kind": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        r"the tokenizer in .* can't be read",
    ),
    "broken template": (
        lambda f: _edit_json(
            f / "chat_template.json", lambda c: c.update(chat_template="{% for %}")
        ),
        r"the chat template fails",
    ),
    "template without messages": (
        lambda f: _edit_json(f / "chat_template.json", lambda c: c.update(chat_template="Hello")),
        r"must show a system message and turns",
    ),
    "end token outside of the vocabulary": (
        lambda f: _edit_json(f / "generation_config.json", lambda c: c.update(eos_token_id=288)),
        r"below the vocabulary's size 288, got 288",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_folder_is_refused(case: str, folder: Path, reference: Backend) -> None:
    spoil, message = SPOILT[case]
    spoil(folder)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder, reference)


def test_a_missing_folder_is_refused(tmp_path: Path, reference: Backend) -> None:
    with pytest.raises(CheckpointError, match=r"must be a folder, there is none at .*nowhere"):
        load_model(tmp_path / "nowhere", reference)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_vocabulary(tied: bool, folder: Path, logits: Any) -> None:
    # Tied, the output rows are the embeddings, whatever else is stored or not.
    _edit_json(
        folder / "config.json", lambda c: c["thinker_config"].update(tie_word_embeddings=tied)
    )
    stored = logits(folder)
    _edit_weights(
        folder,
        lambda w: w.update(
            {"thinker.lm_head.weight": w["thinker.model.embed_tokens.weight"].copy()}
        ),
    )
    assert np.array_equal(logits(folder), stored) == tied
    if tied:
        _edit_weights(folder, lambda w: w.pop("thinker.lm_head.weight"))
        np.testing.assert_array_equal(logits(folder), stored)


def test_random_checkpoints_are_the_same_bytes(tmp_path: Path, folder: Path) -> None:
    write_random_checkpoint(tmp_path / "again", tiny_config(), seed=0)
    write_random_checkpoint(tmp_path / "other", tiny_config(), seed=1)
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(file.name for file in (tmp_path / "again").iterdir())
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert (tmp_path / "other" / WEIGHTS).read_bytes() != (folder / WEIGHTS).read_bytes()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
