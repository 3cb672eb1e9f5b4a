"""Short tables from the logs of runs: speed and loss, or right answers by task.

python -m training.report RUN [RUN ...] [--tasks "tune long"]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from training.learn.progress import read_log, speed_table, tasks_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of training.train")
    parser.add_argument("--tasks", metavar="KIND", help='"train", "tune short" or "tune long"')
    options = parser.parse_args(arguments)
    try:
        logs = {run.name: read_log(run) for run in options.runs}
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(tasks_table(logs, options.tasks) if options.tasks else speed_table(logs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
