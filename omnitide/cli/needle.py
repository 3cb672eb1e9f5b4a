"""`omnitide eval needle`: facts in made-up streams, under a sweep of settings."""

from __future__ import annotations

import argparse

from omnitide.cli.eval import follow, read_eval
from omnitide.cli.plot import open_picture
from omnitide.cli.terminal import printable, write_words
from omnitide.evaluation.needle.benchmark import Needle
from omnitide.evaluation.needle.options import NeedleOptions
from omnitide.evaluation.needle.tables import grid
from omnitide.evaluation.report import write_text
from omnitide.evaluation.results import read_results
from omnitide.evaluation.summary import summarise

TABLES = "needle.md"


def run_needle(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code.

    Raises:
        OmnitideError: Nothing could be begun, or a worker met what ends the run.
    """
    made = NeedleOptions(
        modalities=None if options.modality is None else tuple(options.modality),
        distances=tuple(options.distance),
        samples=options.samples,
        lead=float(options.lead),
        size=options.size,
        seed=options.seed,
    )
    request, needle = read_eval(options, "needle"), Needle(made)
    with open_picture(options.plot) as picture:
        dataset = needle.read()
        code = follow(request, needle, dataset, dataset, made.as_dict())
        results = read_results(request.folder)
        if not results.results:
            return code
        summary = summarise(results, needle.scores, request.against)
        tables = grid(summary)
        write_text(request.folder / TABLES, tables)
        if not request.as_json:
            write_words("\n" + printable(tables))
        if picture is not None:
            from omnitide.evaluation.needle.picture import draw

            picture.write(lambda: draw(summary))
    return code
