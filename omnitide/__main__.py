"""`python -m omnitide` is `omnitide`."""

from __future__ import annotations

import sys

from omnitide.cli import main

if __name__ == "__main__":
    sys.exit(main())
