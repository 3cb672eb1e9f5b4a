"""`omnitide eval BENCHMARK`: follow items under a sweep of settings, judge, summarise."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omnitide.cli import FAILED, INTERRUPTED
from omnitide.cli.console import PlainConsole
from omnitide.cli.eval_defaults import CONTEXT, KEPT, WATERMARKS
from omnitide.cli.eval_meter import EvalMeter
from omnitide.cli.eval_results import make_judge, show_summary
from omnitide.cli.terminal import say
from omnitide.config import SamplingConfig
from omnitide.embedded import default_checkpoint
from omnitide.errors import ConfigError, JudgeError
from omnitide.evaluation.benchmark import Benchmark
from omnitide.evaluation.checksum import checkpoint_hash
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.judge import Judge
from omnitide.evaluation.judging import judge_all
from omnitide.evaluation.machine import backend_name, machine_facts
from omnitide.evaluation.manifest import NAME as MANIFEST
from omnitide.evaluation.manifest import Manifest, options_dict
from omnitide.evaluation.pool import InlinePool, LoadPlan, Pool
from omnitide.evaluation.problem import LEFT_OUT, counted
from omnitide.evaluation.processes import ProcessPool
from omnitide.evaluation.ray_pool import RayPool, check_ray
from omnitide.evaluation.registry import make_benchmark
from omnitide.evaluation.report import write_predictions, write_summary
from omnitide.evaluation.results import read_results
from omnitide.evaluation.run import run_all
from omnitide.evaluation.runner import RunOptions
from omnitide.evaluation.setting import Setting, parse_policies, parse_watermarks, sweep
from omnitide.loading import defaults_of
from omnitide.models.checkpoint import read_config
from omnitide.models.hub import resolve


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """A checked command line, as far as all evaluations share it.

    Attributes:
        settings: The sweep.
        plan: How the model is loaded.
        folder: Of the results.
        workers, ray, ray_gpus: Who follows. `ray` is None without Ray.
        judge: None: judge-free.
        against: Setting to compare with, or None.
        retry_failed, as_json, verbose: Switches.
    """

    settings: tuple[Setting, ...]
    plan: LoadPlan
    folder: Path
    workers: int
    ray: str | None
    ray_gpus: float
    judge: Judge | None
    against: str | None
    retry_failed: bool
    as_json: bool
    verbose: bool


def run_benchmark(options: argparse.Namespace) -> int:
    """Run a benchmark with published files. Returns the exit code.

    Raises:
        OmnitideError: Nothing could be begun, or a worker met what ends the run.
    """
    request = read_eval(options, options.evaluation)
    if not options.data or not options.videos:
        raise ConfigError(f"[eval] {options.evaluation} needs --data and --videos")
    baseline = getattr(options, "baseline", None)
    reading = Reading(
        data=tuple(Path(path) for path in options.data),
        videos=Path(options.videos),
        protocol=getattr(options, "protocol", "stream"),
        context=_context(getattr(options, "context", None)),
        sound={"auto": None, "on": True, "off": False}[options.audio],
        track=getattr(options, "track", ""),
        as_published=getattr(options, "as_published", False),
    )
    benchmark = make_benchmark(options.evaluation, Path(baseline) if baseline else None)
    dataset = benchmark.read(reading)
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"[eval] --limit must be at least 1, got {options.limit}")
    chosen = dataset.selected(options.task, options.limit)
    return follow(request, benchmark, dataset, chosen, reading.as_dict())


def read_eval(options: argparse.Namespace, name: str) -> EvalRequest:
    """Check what all evaluations share.

    Raises:
        ConfigError: An option, or what they make together, makes no sense.
    """
    if options.workers < 1:
        raise ConfigError(f"[eval] --workers must be at least 1, got {options.workers}")
    if options.ray is not None:
        check_ray(options.ray_gpus)
    names = [flag.removeprefix("--").replace("-", "_") for flag, _, _ in KEPT]
    kept = {key: getattr(options, key) for key in names if getattr(options, key) is not None}
    settings = sweep(
        parse_policies("omnipick" if options.policy is None else options.policy),
        parse_watermarks(WATERMARKS if options.watermarks is None else options.watermarks),
        options.layout,
        kept,
    )
    run = RunOptions(
        media=defaults_of(options.model).media(
            options.fps, options.chunk_seconds, options.max_pixels
        ),
        sampling=SamplingConfig(options.temperature, seed=options.seed),
        system_prompt=options.system_prompt,
    )
    folder = Path(options.out or f"omnitide-{name}")
    _check_against(options.against, settings, folder)
    return EvalRequest(
        settings=settings,
        plan=LoadPlan(options.model, options.backend, options.dtype, run),
        folder=folder,
        workers=options.workers,
        ray=options.ray,
        ray_gpus=options.ray_gpus,
        judge=make_judge(options),
        against=options.against,
        retry_failed=options.retry_failed,
        as_json=options.json,
        verbose=options.verbose,
    )


def follow(
    request: EvalRequest,
    benchmark: Benchmark,
    dataset: Dataset,
    chosen: Dataset,
    reading: dict[str, Any],
) -> int:
    """Follow the chosen items of a data set, judge, and report. Returns the exit code.

    Args:
        request: The command line.
        benchmark: Gives marks and scores.
        dataset: All of the data set; results of another one are refused.
        chosen: What of it is followed now.
        reading: What its maker was told, for the manifest.

    Raises:
        OmnitideError: Nothing could be begun, or a worker met what ends the run.
    """
    folder = default_checkpoint() if request.plan.model is None else resolve(request.plan.model)
    plan = request.plan
    if plan.model is not None and (request.ray is None or Path(plan.model).is_dir()):
        plan = replace(
            plan, model=str(folder.absolute())
        )  # on a cluster, a name is looked up there
    trained = bool(read_config(folder).get("trained", True))
    manifest = _manifest(request, benchmark, dataset, chosen, reading, folder, trained)
    if not trained:
        say("note", "the model is untrained (random weights): scores mean nothing; give --model")
    for kind, count in counted(dataset.problems).items():
        lost = sum(p.questions for p in dataset.problems if p.kind == kind)
        words = f", {lost:,} questions left out" if kind in LEFT_OUT else ""
        say("note", f"{kind}: {count:,}{words}; listed in {request.folder / 'run.json'}")
    make_pool = _pool_maker(request, plan)
    manifest.save(request.folder)
    code = 0
    with EvalMeter(PlainConsole(stderr=True), request.verbose) as meter:
        try:
            run_all(
                benchmark,
                chosen,
                request.settings,
                request.folder,
                make_pool,
                retry_failed=request.retry_failed,
                tell=meter.show,
            )
            if request.judge is not None:
                judge_all(
                    request.folder,
                    request.judge,
                    retry_failed=request.retry_failed,
                    tell=meter.judged,
                )
        except KeyboardInterrupt:
            say("error", f"interrupted; run the same command again to go on{meter.so_far}")
            code = INTERRUPTED
        except JudgeError as error:
            say("error", str(error))
            code = FAILED
    results = read_results(request.folder)
    if not results.results:
        return code or FAILED
    summary = write_summary(request.folder, benchmark, request.against)
    write_predictions(request.folder, benchmark, chosen.items, results)
    show_summary(summary, results.manifest.problems, request.as_json, all_scores=False)
    failed = sum(coverage.failed for coverage in summary.coverage.values())
    if failed:
        say("error", f"{failed:,} items failed and are in no score; --retry-failed tries again")
    return code or (FAILED if failed else 0)


def _manifest(
    request: EvalRequest,
    benchmark: Benchmark,
    dataset: Dataset,
    chosen: Dataset,
    reading: dict[str, Any],
    folder: Path,
    trained: bool,
) -> Manifest:
    plan = request.plan
    machine = machine_facts(plan.backend, plan.dtype)
    return Manifest(
        benchmark=benchmark.name,
        reading=reading,
        data=dataset.digest,
        model=plan.model or "embedded default",
        checkpoint=checkpoint_hash(folder),
        backend=backend_name(plan.backend),
        dtype=machine["dtype"],
        trained=trained,
        options=options_dict(plan.options),
        machine={**machine, "workers": request.workers, "ray": request.ray is not None},
        selection={
            "clips": len({item.clip for item in chosen.items}),
            "items": len(chosen.items),
            "questions": sum(len(item.questions) for item in chosen.items),
            "of_clips": len({item.clip for item in dataset.items}),
            "of_items": len(dataset.items),
        },
        problems=[problem.as_dict() for problem in dataset.problems],
    )


def _check_against(against: str | None, settings: Sequence[Setting], folder: Path) -> None:
    """Refuse a setting that will not be there, before hours are spent."""
    names = [setting.name for setting in settings]
    if against is None or against in names:
        return
    if (folder / MANIFEST).is_file():
        names += read_results(folder).settings
    if against not in names:
        raise ConfigError(f"[eval] --against must be one of {'; '.join(names)}; got {against!r}")


def _pool_maker(request: EvalRequest, plan: LoadPlan) -> Callable[[], Pool]:
    if request.ray is not None:
        address = None if request.ray == "local" else request.ray
        return lambda: RayPool(plan, request.workers, address, request.ray_gpus)
    if request.workers > 1:
        return lambda: ProcessPool(plan, request.workers)
    return lambda: InlinePool(plan.load(), plan.options)


def _context(text: str | None) -> float | None:
    if text is None:
        return CONTEXT
    if text == "all":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"[eval] --context must be seconds or all, got {text!r}") from None
