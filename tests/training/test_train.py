"""The trainer on the CPU: it learns, it stops and goes on, and what it writes down is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# The position of the loader's workers and threads must not matter, so there are none of the first.
COMMON = ["--settings", "tiny", "--device", "cpu", "--workers", "0", "--try-every", "1e9"]
FOUR = ["--total-steps", "4", "--seed", "7"]

Train = Callable[..., tuple[int, list[dict[str, Any]]]]
Weights = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def train(runs: Path, tokenizer_folder: Path) -> Iterator[Train]:
    """Run the command on plain pictures and sounds: `train(name, *options)` -> code, log."""
    from training import train as module
    from training.learn import feed

    class Maker:
        def __init__(self, _bank: Any, _device: Any) -> None:
            pass

        def paint(self, pictures: Any) -> Any:
            shades = torch.from_numpy(pictures["kind"] * 60 + 20).to(torch.uint8)
            return shades[:, None, None, None, None].expand(-1, 4, 112, 112, 3)

        def play(self, sounds: Any) -> Any:
            time = torch.arange(32_000) / 16_000
            pitch = 200.0 + 50 * torch.from_numpy(next(iter(sounds.values())) % 7)
            return (0.1 * torch.sin(6.283 * pitch.reshape(len(pitch), -1)[:, :1] * time)).float()

    torch.set_num_threads(1)

    def run(name: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
        out = runs / name
        out.mkdir(exist_ok=True)
        for file in tokenizer_folder.iterdir():
            (out / file.name).write_bytes(file.read_bytes())
        code = module.main(["--out", str(out), "--speech", "none", *COMMON, *options])
        log = (out / "log.jsonl").read_text() if (out / "log.jsonl").exists() else ""
        return code, [json.loads(line) for line in log.splitlines()]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(feed, "Painter", Maker)
        monkeypatch.setattr(feed, "Player", Maker)
        monkeypatch.setattr(module, "load_bank", lambda path: path)
        monkeypatch.setattr(module, "HELD_OUT_BATCHES", 1)
        yield run


@pytest.fixture(scope="module")
def whole(train: Train, runs: Path) -> Weights:
    """Weights after four steps in one go."""
    assert train("whole", *FOUR)[0] == 0
    return _weights(runs / "whole")


@pytest.fixture(scope="module")
def dropped(train: Train, runs: Path) -> Weights:
    """The same when later tokens see a part of the history."""
    assert train("dropped", *FOUR, "--drop-history")[0] == 0
    return _weights(runs / "dropped")


def _weights(folder: Path) -> Weights:
    from training.learn import snapshots

    weights: Weights = snapshots.read(folder)["model"]
    return weights


def _equal(one: Weights, other: Weights) -> bool:
    assert list(one) == list(other)
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("way", ["whole", "dropped"])
def test_two_parts_equal_one(
    way: str, train: Train, runs: Path, request: pytest.FixtureRequest
) -> None:
    want, folder = request.getfixturevalue(way), f"{way} in parts"
    extra = ["--drop-history"] if way == "dropped" else []
    assert train(folder, *FOUR, *extra, "--stop-after", "2")[0] == 0
    assert not _equal(want, _weights(runs / folder))
    # Seed, steps and the rest are taken from the checkpoint.
    assert train(folder, "--resume")[0] == 0
    assert _equal(want, _weights(runs / folder))


def test_a_resumed_run_keeps_its_stages_rows_and_rates(train: Train, runs: Path) -> None:
    given = ["--stage-shares", "0.05", "0.95", "--rows", "1", "--matrix-rate", "0.02"]
    given += [*FOUR, "--log-every", "0"]
    assert train("other", *given)[0] == 0
    assert train("other in parts", *given, "--stop-after", "2")[0] == 0
    code, log = train("other in parts", "--resume", "--log-every", "0")
    assert code == 0
    steps = [line for line in log if line["kind"] == "train"]
    assert [(line["step"], line["stage"]) for line in steps] == [(n, 1) for n in (1, 2, 3, 4)]
    assert _equal(_weights(runs / "other"), _weights(runs / "other in parts"))


def test_a_run_is_not_written_over(
    train: Train, runs: Path, whole: Weights, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (runs / "whole" / "log.jsonl").read_bytes()
    assert train("whole", *FOUR)[0] == 1
    assert "holds a run; add --resume" in capsys.readouterr().err
    assert _equal(whole, _weights(runs / "whole"))
    assert (runs / "whole" / "log.jsonl").read_bytes() == log


def test_a_lost_run_is_not_kept(
    train: Train, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is no number at the third step: what was kept after the second one stays."""
    from training.learn.trainer import Trainer

    step, steps = Trainer.step, []

    def lose(self: Any, item: Any, rate: float) -> Any:
        steps.append(rate)
        if len(steps) == 3:
            with torch.no_grad():
                self.model.lm_head.weight.fill_(float("nan"))
        return step(self, item, rate)

    monkeypatch.setattr(Trainer, "step", lose)
    often = ["--save-every", "0", "--log-every", "1e9"]
    assert train("lost", "--total-steps", "5", *often)[0] == 1
    assert "the last checkpoint stays" in capsys.readouterr().err
    assert len(steps) == 3
    assert all(torch.isfinite(weight).all() for weight in _weights(runs / "lost").values())


# PyTorch warns where there are fewer cores than workers.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_draw_what_the_process_itself_draws(
    train: Train, runs: Path, whole: Weights
) -> None:
    assert train("helped", *FOUR, "--workers", "2")[0] == 0
    assert _equal(whole, _weights(runs / "helped"))


def test_dropping_history_changes_what_is_learned(whole: Weights, dropped: Weights) -> None:
    assert not _equal(whole, dropped)


def test_the_loss_falls_and_the_log_says_so(train: Train) -> None:
    from training.world.questions.wordings import TASKS

    code, log = train("run", "--total-steps", "16", "--log-every", "0")
    assert code == 0
    steps = [line for line in log if line["kind"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, 17))
    losses = [line["loss"] for line in steps]
    assert np.mean(losses[-4:]) < 0.6 * losses[0]
    first = steps[0]
    assert 0 <= first["waited"] < 1
    assert first["tokens_per_second"] > first["units_per_second"] > 0
    assert set(first["tasks"]) <= set(TASKS)
    assert sum(task["answers"] for task in first["tasks"].values()) == first["answers"] > 0
    counted = sum(count for count, _ in first["distances"].values())
    assert counted == first["answers"]
    assert {line["kind"] for line in log} == {"train", "tune short", "tune long"}
    assert [line["stage"] for line in steps][:9].count(0) >= 7
    assert steps[-1]["stage"] == 1


def test_nothing_to_resume_is_told(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("empty", "--resume")[0] == 1
    assert "nothing to resume" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_that_are_none_are_refused(
    train: Train, minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("none", "--minutes", minutes)
    assert "must be above 0 and finite" in capsys.readouterr().err


def test_a_run_without_a_bank_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from training import train as module
    from training.bank.bank import load_bank

    monkeypatch.setattr(module, "load_bank", load_bank)  # `train` above puts another in its place
    given = ["--out", str(tmp_path / "run"), "--speech", str(tmp_path / "none.npz"), *COMMON]
    assert module.main([*given, *FOUR]) == 2
    assert "--speech must be a bank" in capsys.readouterr().err
    assert not list((tmp_path / "run").iterdir())


def test_a_batch_depends_on_seed_and_step_alone(tiny_settings: Any, tokenizer_folder: Path) -> None:
    from training.learn.data import Data
    from training.learn.schedule import tiny_run
    from training.rows.batch import Batch

    def data(seed: int) -> Any:
        return Data(tiny_settings, tiny_run(), tokenizer_folder, seed, True, lambda step: 0.6)

    first, again, other, later = (
        Batch.unpacked(data(seed)[step]) for seed, step in ((1, 4), (1, 4), (2, 4), (1, 5))
    )
    assert torch.equal(first.ids, again.ids)
    for name, described in first.pictures.items():
        np.testing.assert_array_equal(described, again.pictures[name])
    assert not torch.equal(first.ids, other.ids)
    assert not torch.equal(first.ids, later.ids)


def test_a_packed_batch_comes_out_as_it_was(tiny_row: Callable[..., Any]) -> None:
    from training.rows.batch import Batch, collate

    batch = collate([tiny_row(0)[0], tiny_row(1)[0]])
    got = Batch.unpacked(batch.packed())
    for name in Batch.__slots__:
        want = getattr(batch, name)
        if isinstance(want, torch.Tensor):
            assert want.dtype == getattr(got, name).dtype
            assert torch.equal(want, getattr(got, name)), name
        elif isinstance(want, dict):
            assert list(want) == list(getattr(got, name))
            for key, array in want.items():
                np.testing.assert_array_equal(array, getattr(got, name)[key])
    assert torch.equal(batch.visibility.dense(), got.visibility.dense())


def test_rates_rise_stay_and_fall_to_zero() -> None:
    from training.learn.schedule import RunSettings

    run = RunSettings(warm_up=10, cool_down=0.25)
    assert [run.rate(step, 0.0) for step in (0, 4, 9, 50)] == [0.1, 0.5, 1.0, 1.0]
    assert [run.rate(50, fraction) for fraction in (0.5, 0.75, 0.875, 1.0)] == [1, 1, 0.5, 0]
    assert sum(stage.share for stage in run.stages) == pytest.approx(1)
    assert [run.stage_number(fraction) for fraction in (0, 0.3, 0.6, 0.8, 1)] == [0, 1, 2, 3, 3]


def test_an_answer_is_right_if_every_token_is(tiny_row: Callable[..., Any]) -> None:
    from training.learn.loss import Tally, measure
    from training.rows.batch import collate

    batch = collate([tiny_row(0)[0], tiny_row(1)[0]])
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(len(batch.label_ids), 640, generator=random)
    there = batch.label_weights > 0
    logits[there, batch.label_ids[there]] = 20.0
    spoiled = [int(batch.label_answers[there][0]), int(batch.label_answers[there][-1])]
    for answer in spoiled:
        last = int(torch.nonzero(there & (batch.label_answers == answer))[-1])
        logits[last, (batch.label_ids[last] + 1) % 640] = 30.0
    result = measure(logits, batch, 0.0)
    real = batch.answer_tasks >= 0
    wrong = torch.nonzero(real & ~result.exact).flatten().tolist()
    assert wrong == sorted(spoiled)
    losses = torch.nn.functional.cross_entropy(logits, batch.label_ids, reduction="none")
    want = (losses * batch.label_weights).sum() / batch.label_weights.sum()
    torch.testing.assert_close(result.loss, want)
    tally = Tally(torch.device("cpu"))
    tally.add(result, batch)
    figures = tally.read()
    assert figures["answers"] == int(real.sum())
    assert figures["exact"] == pytest.approx(1 - 2 / int(real.sum()), abs=1e-4)
    assert tally.read()["answers"] == 0


def test_the_tables_are_short(runs: Path, whole: Weights, capsys: Any) -> None:
    from training import report

    assert whole
    capsys.readouterr()
    assert report.main([str(runs / "whole")]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "run"
    assert row.split()[:2] == ["whole", "4"]
    assert report.main([str(runs / "whole"), "--tasks", "tune long"]) == 0
    assert "of" in capsys.readouterr().out
