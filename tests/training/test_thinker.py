"""The batched thinker against transformers: whole forward with film and sound, and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def thinker(tiny_settings: Any) -> Any:
    """Ours, with weights large enough that every part matters."""
    from training.model.thinker import Thinker

    torch.set_num_threads(1)
    model = Thinker(tiny_settings).eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                spread = 0.5 if "embed" in name else parameter[0].numel() ** -0.5
                parameter.normal_(0, spread, generator=random)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def theirs(tiny_settings: Any, thinker: Any) -> Any:
    """transformers' model with the same weights by the same names."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as configuration
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as modeling

    config = configuration.Qwen2_5OmniThinkerConfig(**tiny_settings.config()["thinker_config"])
    config._attn_implementation = "eager"
    model = modeling.Qwen2_5OmniThinkerForConditionalGeneration(config).eval().float()
    model.load_state_dict(thinker.state_dict(), strict=True)
    return model.requires_grad_(False)


def _media(units: int, seed: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (units, 4, 112, 112, 3), generator=random, dtype=torch.uint8)
    return frames, torch.randn(units, 200, 128, generator=random)


def _their_logits(model: Any, ids: Any, positions: Any, frames: Any, mel: Any) -> Any:
    """transformers on one sequence of whole units."""
    from omnitide.models.qwen2_5_omni.image import prepare_frames

    patches = [
        prepare_frames(tuple(unit.numpy()), min_pixels=56 * 56, max_pixels=112 * 112)[0]
        for unit in frames
    ]
    return model(
        input_ids=ids[None],
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        position_ids=positions[:, None].long(),
        pixel_values_videos=torch.from_numpy(np.concatenate(patches)),
        video_grid_thw=torch.tensor([[2, 8, 8]] * len(frames)),
        video_second_per_grid=torch.ones(len(frames)),
        input_features=mel.transpose(1, 2),
        feature_attention_mask=torch.ones(len(mel), 200, dtype=torch.long),
        use_audio_in_video=True,
    ).logits[0]


def _close(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    assert want.abs().max() > 0.5
    assert float((got - want).abs().max()) < 2e-5 * float(want.abs().max())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_row_of_streams_equals_transformers_stream_by_stream(
    seed: int, thinker: Any, theirs: Any, tiny_row: Callable[..., Any]
) -> None:
    from training.rows.batch import collate

    row, _ = tiny_row(seed, (2, 1))
    batch = collate([row])
    frames, mel = _media(len(row.streams), seed)
    states = thinker.states(batch, frames, mel, batch.visibility.dense())
    logits = thinker.lm_head(states)[0]
    unit = 0
    for document in range(2):
        places = np.flatnonzero((row.document == document) & (row.branch == 0))
        count = int((row.streams == document).sum())
        want = _their_logits(
            theirs,
            batch.ids[0, places],
            batch.positions[0][:, places],
            frames[unit : unit + count],
            mel[unit : unit + count],
        )
        _close(logits[places], want)
        unit += count
    assert unit == row.num_units


def test_a_branch_sees_its_stream_up_to_its_unit_and_no_other_branch(
    thinker: Any, theirs: Any, tiny_row: Callable[..., Any]
) -> None:
    from training.rows.batch import collate

    row, _ = tiny_row(3, (3,))
    batch = collate([row])
    frames, mel = _media(len(row.streams), 5)
    states = thinker.states(batch, frames, mel, batch.visibility.dense())
    logits = thinker.lm_head(states)[0]
    branches = range(1, int(row.branch.max()) + 1)
    assert len(branches) >= 5
    stream = np.flatnonzero(row.branch == 0)
    for branch in branches:
        places = np.flatnonzero(row.branch == branch)
        after = int(row.unit[places[0]])
        # Up to the end of the unit and what is typed then; what is asked in line comes later.
        seen = stream[: int(row.seen[places[0]])]
        assert set(range(after + 1)) == set(row.unit[seen].tolist()) - {-1}
        want = _their_logits(
            theirs,
            batch.ids[0, np.concatenate([seen, places])],
            batch.positions[0][:, np.concatenate([seen, places])],
            frames[: after + 1],
            mel[: after + 1],
        )
        _close(logits[places], want[len(seen) :])


def test_forward_gives_the_logits_at_the_labels(thinker: Any, tiny_row: Callable[..., Any]) -> None:
    from training.rows.batch import collate

    rows = [tiny_row(seed)[0] for seed in (4, 5)]
    batch = collate(rows)
    frames, mel = _media(len(batch.streams), 6)
    mask = batch.visibility.dense()
    logits = thinker(batch, frames, mel, mask)
    every = thinker.lm_head(thinker.states(batch, frames, mel, mask))
    at = 0
    for number, row in enumerate(rows):
        for index, weight in enumerate(row.label_weights):
            if weight:
                place = row.label_places[index]
                torch.testing.assert_close(logits[at + index], every[number, place])
        at += len(row.label_places)


def test_every_weight_is_trained_by_one_optimiser(thinker: Any) -> None:
    from training.model.thinker import Thinker

    model = Thinker(thinker.settings)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices = [names[id(p)] for p in model.matrices()]
    others = [names[id(p)] for p in model.others()]
    unused = "model.audio_tower.audio_bos_eos_token.weight"
    assert sorted([*matrices, *others, unused]) == sorted(names.values())
    assert "model.visual.patch_embed.proj.weight" in matrices
    assert "lm_head.weight" in others


def test_the_small_model_has_17_million_parameters() -> None:
    from training.model.thinker import Thinker
    from training.settings import small

    count = sum(p.numel() for p in Thinker(small()).parameters())
    assert 15e6 < count < 19e6
