"""Is it flat? Memory and update latency, minute by minute, of a long encoded film.

    python benchmarks/long_stream.py --minutes 30
    python benchmarks/long_stream.py --minutes 5 --policy full

Writes a film of that length to a temporary folder, follows it with the embedded model, and prints a
line a minute. The figures are of this machine; read the trend.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import omnitide
from omnitide import MediaOptions, RetentionConfig, Session
from omnitide.layouts import LAYOUTS
from omnitide.media.clip import write_clip
from omnitide.media.stream import MediaStream
from omnitide.policies import POLICIES

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mib() -> float:
    """Resident memory of this process now, MiB. Linux only: macOS tells no more than the peak."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * PAGE_BYTES / 2**20


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--size", type=int, default=112, help="width and height of the film")
    parser.add_argument("--policy", choices=POLICIES, default="omnipick")
    parser.add_argument("--layout", choices=LAYOUTS, default="predictive")
    parser.add_argument("--high-watermark", type=int, default=600)
    parser.add_argument("--low-watermark", type=int, default=400)
    options = parser.parse_args()

    media = MediaOptions(max_pixels=options.size**2)
    model = omnitide.load(backend="reference", media=media)
    session = Session(
        model,
        policy=options.policy,
        layout=options.layout,
        retention=RetentionConfig(options.high_watermark, options.low_watermark),
    )
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mp4"
        write_clip(film, seconds=60 * options.minutes, width=options.size, height=options.size)
        print(f"{options.policy}, {options.layout}, {session.capacity_tokens:,} tokens capacity")
        print("minute  resident MiB  update p50 ms  p95 ms   seen   kept  most  evictions  moved")
        follow(session, film, media)


def follow(session: Session, film: Path, media: MediaOptions) -> None:
    """Take the film in, with a line for every minute of it."""
    seconds: list[float] = []
    most = 0
    with MediaStream(video=film, options=media) as stream:
        for chunk in stream:
            update = session.append_media(chunk)
            seconds.append(update.seconds * 1e3)
            most = max(most, update.tokens_kept)
            if update.time % 60 < chunk.seconds and update.time >= 60:
                p50, p95 = np.percentile(seconds, [50, 95])
                stats = session.stats()
                print(
                    f"{update.time / 60:6.0f}  {resident_mib():12.1f}  {p50:13.1f}  {p95:6.1f}"
                    f"  {stats.tokens_seen:6,} {stats.tokens_kept:5,} {most:5,}"
                    f"  {stats.evictions:9,}  {stats.rows_moved:5,}",
                    flush=True,
                )
                seconds.clear()
    session.cache.check_integrity()


if __name__ == "__main__":
    main()
