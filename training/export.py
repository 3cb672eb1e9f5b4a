"""Writes a trained model as a checkpoint that any loader of the family reads.

    python -m training.export --run RUN --out FOLDER [--keep image_sink=0,audio_sink=0]

FOLDER gets the model with an 8-bit decoder and encoders in bfloat16; --full keeps float32 as well.
--keep says what the model was found to need of older units: the default of whoever loads it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omnitide.errors import OmnitideError
from omnitide.models.own_defaults import KEPT
from training.learn import snapshots
from training.model.checkpoint import write_eight_bit, write_full
from training.settings import NAMED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of a run of training.train")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--full", type=Path, help="also write the float32 checkpoint there")
    parser.add_argument(
        "--keep",
        type=_kept,
        metavar="NAME=TOKENS,...",
        help=f"tokens that stay: {', '.join(KEPT)} (default: the family's)",
    )
    options = parser.parse_args(arguments)
    try:
        state = snapshots.read(options.run)
        settings = NAMED[state["options"]["settings"]]()
        with tempfile.TemporaryDirectory() as scratch:
            full = options.full or Path(scratch)
            write_full(state["model"], settings, options.run, full, options.keep)
            size = write_eight_bit(full, options.out)
    except (OSError, OmnitideError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: step {state['step']:,}, {size / 1e6:.1f} MB")
    return 0


def _kept(text: str) -> dict[str, int]:
    kept = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in KEPT or not value.isdecimal():
            raise argparse.ArgumentTypeError(f"NAME=TOKENS of {', '.join(KEPT)}, got {part!r}")
        kept[name] = int(value)
    return kept


if __name__ == "__main__":
    sys.exit(main())
