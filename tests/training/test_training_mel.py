"""Log-mel of many streams at once against omnitide's own, stream by stream."""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.models.qwen2_5_omni.mel import MelStream

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SHAPES = ["noise", "louder", "quieter", "silence", "click at the edge", "burst before it"]


def _sound(shape: str, units: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    sound = random.standard_normal((units, 32_000)) * 0.1
    if shape == "louder":
        sound *= 10.0 ** np.arange(-units, 0)[:, None]
    elif shape == "quieter":
        sound *= 10.0 ** -np.arange(units)[:, None]
    elif shape == "silence":
        sound[1:] = 0
    elif shape == "click at the edge":
        # Seen whole only by the frame that a unit's last one becomes once more is known.
        sound *= 1e-4
        sound[0, -20:] = 1.0
        sound[1, :30] = -1.0
    elif shape == "burst before it":
        # Loudest in a unit's last frame, whose mirrored edge makes it louder than it is.
        sound *= 1e-5
        wave = np.cos(2 * np.pi * np.arange(-199, 1) / 16)
        wave[80:160] = 0
        sound[0, -200:] += wave
    return sound.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_stream_of_omnitide(shape: str, seed: int) -> None:
    from training.model.mel import LogMel

    lengths = [3, 1, 2]
    streams = [_sound(shape, max(units, 2), seed + i)[:units] for i, units in enumerate(lengths)]
    names = np.repeat([7, 3, 9], lengths)
    got = LogMel()(torch.from_numpy(np.concatenate(streams)), torch.from_numpy(names)).numpy()
    want = []
    for sound in streams:
        stream = MelStream()
        for unit in sound:
            frames, stream = stream.push(unit)
            want.append(frames)
    assert got.shape == (6, 200, 128)
    np.testing.assert_allclose(got, np.stack(want), rtol=0, atol=1e-4)
