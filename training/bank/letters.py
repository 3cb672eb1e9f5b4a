"""Words and digits as they look in several fonts: how much of each pixel is ink.

Style 0 is the needle's: Pillow's own font, upper case, as large as it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from omnitide.evaluation.needle.fact import DIGITS, WORDS
from training.world.unit import SIZE

STRIP = 32
"""Height of a strip of letters, pixels; its width is the picture's."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

MARGIN = 0.05
"""Of the bar above and below the letters, in parts of the picture."""


@dataclass(frozen=True, slots=True)
class Style:
    """A way to write.

    Attributes:
        font: File name of a TrueType font; None takes Pillow's own.
        case: What is done to a word.
    """

    font: str | None
    case: Callable[[str], str]


STYLES = (
    Style(None, str.upper),
    Style(None, str.lower),
    Style("DejaVuSans-Bold.ttf", str.upper),
    Style("DejaVuSans-Bold.ttf", str.lower),
    Style("DejaVuSans.ttf", str.upper),
    Style("DejaVuSans.ttf", str.capitalize),
    Style("DejaVuSerif-Bold.ttf", str.upper),
    Style("DejaVuSerif.ttf", str.lower),
    Style("DejaVuSansMono-Bold.ttf", str.upper),
    Style("DejaVuSansMono.ttf", str.lower),
)
"""All styles. The DejaVu fonts are free to use and to change."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Coverage and bars of all styles; the arrays are those of `Bank`."""

    words: NDArray[np.uint8]
    digits: NDArray[np.uint8]
    word_bars: NDArray[np.float32]
    digit_bars: NDArray[np.float32]


def draw_letters(styles: Sequence[Style] = STYLES) -> Letters:
    """All words and digits in some styles.

    Raises:
        OSError: A font is not on this machine.
    """
    words = np.zeros((len(styles), len(WORDS), STRIP, SIZE), np.uint8)
    digits = np.zeros((len(styles), 10, DIGITS, STRIP, SIZE), np.uint8)
    word_bars = np.zeros((len(styles), len(WORDS)), np.float32)
    digit_bars = np.zeros(len(styles), np.float32)
    for index, style in enumerate(styles):
        for number, word in enumerate(WORDS):
            text = style.case(word)
            words[index, number], word_bars[index, number] = _draw_word(style, text)
        digits[index], digit_bars[index] = _draw_digits(style)
    return Letters(words, digits, word_bars, digit_bars)


def _font(style: Style, size: int) -> Font:
    if style.font is None:
        return ImageFont.load_default(size)
    return ImageFont.truetype(style.font, size)


def _fit(style: Style, text: str) -> tuple[Font, tuple[float, float, float, float]]:
    """The largest font in which a text fits, stepped through as the needle does, and its box."""
    draw = ImageDraw.Draw(Image.new("L", (SIZE, SIZE)))
    height = SIZE // 2
    while True:
        font = _font(style, height)
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        if right - left <= 0.9 * SIZE and bottom - top <= STRIP - 2:
            return font, (left, top, right, bottom)
        height -= max(height // 16, 1)


def _draw_word(style: Style, text: str) -> tuple[NDArray[np.uint8], float]:
    font, (left, top, right, bottom) = _fit(style, text)
    place = (SIZE / 2 - (left + right) / 2, SIZE / 2 - (top + bottom) / 2)
    return _strip(text, font, place), _bar(bottom - top)


def _bar(height: float) -> float:
    """Half the height of the bar behind letters; all pixels that it touches are painted."""
    return float(np.ceil(height / 2 + SIZE * MARGIN))


def _strip(text: str, font: Font, place: tuple[float, float]) -> NDArray[np.uint8]:
    """The rows around the middle of a picture on which a text is drawn at a place."""
    picture = Image.new("L", (SIZE, SIZE))
    ImageDraw.Draw(picture).text(place, text, fill=255, font=font)
    first = (SIZE - STRIP) // 2
    return np.asarray(picture)[first : first + STRIP]


def _draw_digits(style: Style) -> tuple[NDArray[np.uint8], float]:
    """Each digit alone at each place of a number; digits are equally wide in all these fonts."""
    font, (left, top, right, bottom) = _fit(style, "0" * DIGITS)
    drawn = np.zeros((10, DIGITS, STRIP, SIZE), np.uint8)
    across, down = SIZE / 2 - (left + right) / 2, SIZE / 2 - (top + bottom) / 2
    pitch = font.getlength("0")
    for digit in range(10):
        for place in range(DIGITS):
            drawn[digit, place] = _strip(str(digit), font, (across + place * pitch, down))
    return drawn, _bar(bottom - top)
