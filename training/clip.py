"""`python -m training.clip`: the clip of the package, with questions whose answers are known.

Its voices, photographs and pairs are those of the split "test", which training never sees. Beside
the film lies a file of JSON with its questions and answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omnitide.errors import OmnitideError
from training.measure.film import UNITS, draw_clip, known_answers, write_script_film

MOST_BYTES = 1_200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.clip", description=__doc__)
    parser.add_argument("--speech", type=Path, required=True, help="bank of training.speech")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="of the script (default: 0)")
    parser.add_argument("--units", type=int, default=UNITS, help=f"of 2 s (default: {UNITS})")
    options = parser.parse_args(arguments)
    script = draw_clip(options.seed, options.units)
    options.out.mkdir(parents=True, exist_ok=True)
    film = options.out / "clip.mp4"
    try:
        write_script_film(film, script, str(options.speech))
    except OmnitideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    told = {"questions": known_answers(script), "script": asdict(script)}
    (options.out / "clip.json").write_text(json.dumps(told, indent=1) + "\n")
    size = film.stat().st_size
    print(f"{film}: {size:,} bytes, {len(script.questions)} questions")
    if size > MOST_BYTES:
        print(f"error: a clip has at most {MOST_BYTES:,} bytes; take another --seed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
