"""The photographs behind the pictures, as scikit-image ships them, cut square and made small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.world.grounds import PHOTOGRAPHS

SIZE = 256


def read_photographs() -> NDArray[np.uint8]:
    """The middle square of each photograph. Shape (photographs, SIZE, SIZE, 3).

    Raises:
        ImportError: There is no scikit-image.
    """
    import skimage  # needed here alone

    folder = Path(skimage.__file__).parent / "data"
    squares = []
    for photograph in PHOTOGRAPHS:
        with Image.open(folder / photograph.file) as opened:
            picture = opened.convert("RGB")
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        square = picture.crop((left, top, left + side, top + side))
        squares.append(np.asarray(square.resize((SIZE, SIZE), Image.Resampling.LANCZOS)))
    return np.stack(squares)
