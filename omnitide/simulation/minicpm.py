"""Units as MiniCPM-o 4.5 lays them out in duplex mode: one a second, one position a token.

    system  <|im_start|>system\\n ... <|audio_start|> the voice <|audio_end|><|im_end|>
    unit    <unit> <image> 64 </image> [<slice> 64 </slice>]... 10 of sound, decision, </unit>

The decision is <|listen|>, or <|speak|>, words and <|chunk_eos|>: what is spoken is part of its
unit. Ids as in the published added_tokens.json.
"""

from __future__ import annotations

from omnitide.models.minicpm_o.layout import Layout
from omnitide.models.minicpm_o.markers import Markers
from omnitide.units import Role, Unit, UnitBuilder, UnitKind

UNIT, UNIT_END = 151683, 151684
LISTEN, SPEAK, CHUNK_END = 151705, 151706, 151718
IM_START, IM_END = 151644, 151645
WORD = 1000
"""Stands for any word; retention never looks at it."""

MARKERS = Markers(
    feature=128244,
    image=151669,
    image_end=151670,
    slice=151679,
    slice_end=151680,
    image_id=151681,
    image_id_end=151682,
    audio=151697,
    audio_end=151699,
    speech=151703,
    speech_end=151704,
    newline=(198,),
)

LAYOUT = Layout(MARKERS, num_queries=64)

AUDIO_TOKENS = 10
"""Tokens of a second of sound."""

VOICE_TOKENS = 60
"""Tokens of the reference voice in the prefix: six seconds."""

SPOKEN = 20
"""Most tokens that a unit may speak, its decision included."""


def system() -> Unit:
    """The session's prefix."""
    builder = UnitBuilder().text([IM_START, WORD, WORD], Role.BOUNDARY).text([WORD] * 5)
    LAYOUT.bare_sound(builder.text([MARKERS.audio], Role.BOUNDARY), VOICE_TOKENS)
    return builder.text([MARKERS.audio_end, IM_END], Role.BOUNDARY).build(UnitKind.SYSTEM)


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
        LAYOUT.picture(builder, (slices, 1) if slices else (0, 0))
    LAYOUT.bare_sound(builder, AUDIO_TOKENS)
    if words:
        builder.text([SPEAK], Role.BOUNDARY).text([WORD] * words)
        builder.text([CHUNK_END, UNIT_END], Role.BOUNDARY)
    else:
        builder.text([LISTEN, UNIT_END], Role.BOUNDARY)
    return builder.build(UnitKind.MEDIA, second, 1.0)
