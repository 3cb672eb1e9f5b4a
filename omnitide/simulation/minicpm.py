"""Units as MiniCPM-o 4.5 lays them out in duplex mode: one a second, one position a token.

    system  <|im_start|>system\\n ... <|audio_start|> the voice <|audio_end|><|im_end|>
    unit    <unit> <image> 64 </image> [<slice> 64 </slice>]... 10 of sound, decision, </unit>

The decision is <|listen|>, or <|speak|>, words and <|chunk_eos|>: what is spoken is part of its
unit. Ids as in the published added_tokens.json.
"""

from __future__ import annotations

import numpy as np

from omnitide.units import AXES, Modality, Role, Unit, UnitBuilder, UnitKind

FEATURE = 128244
UNIT, UNIT_END = 151683, 151684
IMAGE, IMAGE_END = 151669, 151670
SLICE, SLICE_END = 151679, 151680
AUDIO, AUDIO_END = 151697, 151699
LISTEN, SPEAK, CHUNK_END = 151705, 151706, 151718
IM_START, IM_END = 151644, 151645
WORD = 1000
"""Stands for any word; retention never looks at it."""

IMAGE_TOKENS = 64
"""Tokens of a picture of 448x448 and of a slice."""

AUDIO_TOKENS = 10
"""Tokens of a second of sound."""

VOICE_TOKENS = 60
"""Tokens of the reference voice in the prefix: six seconds."""

SPOKEN = 20
"""Most tokens that a unit may speak, its decision included."""


def system() -> Unit:
    """The session's prefix."""
    builder = UnitBuilder().text([IM_START, WORD, WORD], Role.BOUNDARY).text([WORD] * 5)
    builder.text([AUDIO], Role.BOUNDARY)
    _feature(builder, VOICE_TOKENS, Modality.AUDIO)
    return builder.text([AUDIO_END, IM_END], Role.BOUNDARY).build(UnitKind.SYSTEM)


def unit(second: float, frames: int = 1, slices: int = 0, words: int = 0) -> Unit:
    """One second of the stream.

    Args:
        second: When it starts.
        frames: Pictures in it; 0 is sound only.
        slices: Slices of each picture, which is then a source image.
        words: Words spoken in it; 0 is listening.
    """
    builder = UnitBuilder().text([UNIT], Role.BOUNDARY)
    for _ in range(frames):
        builder.text([IMAGE], Role.BOUNDARY)
        role = Role.SOURCE_IMAGE if slices else Role.CONTENT
        _feature(builder, IMAGE_TOKENS, Modality.IMAGE, role)
        builder.text([IMAGE_END], Role.BOUNDARY)
        for _ in range(slices):
            builder.text([SLICE], Role.BOUNDARY)
            _feature(builder, IMAGE_TOKENS, Modality.IMAGE, Role.SLICE)
            builder.text([SLICE_END], Role.BOUNDARY)
    _feature(builder, AUDIO_TOKENS, Modality.AUDIO)
    if words:
        builder.text([SPEAK], Role.BOUNDARY).text([WORD] * words)
        builder.text([CHUNK_END, UNIT_END], Role.BOUNDARY)
    else:
        builder.text([LISTEN, UNIT_END], Role.BOUNDARY)
    return builder.build(UnitKind.MEDIA, second, 1.0)


def _feature(
    builder: UnitBuilder, count: int, modality: Modality, role: Role = Role.CONTENT
) -> None:
    offsets = np.repeat(np.arange(count, dtype=np.int32)[:, None], AXES, axis=1)
    builder.content(FEATURE, offsets, modality, role).end_step()
