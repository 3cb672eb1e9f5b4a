"""`python -m omnitide.generate` is `omnitide generate`."""

from __future__ import annotations

import sys

from omnitide.cli import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))
