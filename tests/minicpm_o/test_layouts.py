"""Where media lie among the tokens: the published ids, spans and roles, and end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide import RetentionConfig
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit
from omnitide.models.minicpm_o.config import MiniCPMConfig
from omnitide.models.minicpm_o.duplex import DuplexRules, DuplexTokens
from omnitide.models.minicpm_o.encoder import MediaEncoder
from omnitide.models.minicpm_o.layout import Layout
from omnitide.models.minicpm_o.markers import DuplexMarkers, Markers
from omnitide.models.minicpm_o.template import THINKING_CHATML
from omnitide.models.template import ChatTemplate
from omnitide.policies.omnipick import OmniPick
from omnitide.positions import lay_out as lay_out_positions
from omnitide.units import Cells, Modality, Role, Unit, UnitBuilder, UnitKind, spans_of

RATE = 16_000
LISTEN = 151705


class CountingEncoder(MediaEncoder):
    """Lays media out without weights: of every picture and sound it knows the tokens alone."""

    def __init__(self, config: MiniCPMConfig, layout: Layout, live_slices: int) -> None:
        self.config = config
        self.layout = layout
        self._live_slices = live_slices
        self.audio = self

    def encode_sound(self, samples: NDArray[np.float32]) -> Any:
        return np.empty((len(samples) // 1600, 1))

    def sound(self, chunk: MediaChunk, stream: Any) -> tuple[Any, Any]:
        return None if chunk.samples is None else self.encode_sound(chunk.samples), stream

    def assemble(self, unit: Unit, pictures: Any = None, sounds: Any = None) -> EncodedUnit:
        return EncodedUnit(unit, None)

    def _encoded(self, pictures: Any) -> Any:
        return np.empty((64 * len(pictures), 1))


@pytest.fixture(scope="session")
def template(published_tokenizer: Path) -> ChatTemplate:
    return ChatTemplate(published_tokenizer, THINKING_CHATML, enable_thinking=False)


@pytest.fixture(scope="session")
def layout(template: ChatTemplate) -> Layout:
    return Layout(Markers.of(template.tokenizer), 64)


@pytest.fixture
def lay_out(
    template: ChatTemplate, layout: Layout, golden_config: MiniCPMConfig, golden: Any
) -> Callable[..., list[Cells]]:
    """Cells of a duplex prefix and of listening units: `lay_out(slices, [(pictures, sound)])`."""

    def make(live_slices: int, seconds: list[tuple[list[str], bool]]) -> list[Cells]:
        encoder = CountingEncoder(golden_config, layout, live_slices)
        markers = DuplexMarkers.of(template.tokenizer)
        assert markers is not None
        rules = DuplexRules(DuplexTokens(markers), template, encoder)
        units = [rules.encode_system(None, np.zeros(20_800, np.float32)).unit.cells]
        for start, (names, sound) in enumerate(seconds):
            frames = tuple(golden(name)["rgb"] for name in names)
            samples = np.zeros(RATE, np.float32) if sound else None
            chunk = MediaChunk(start, start + 1.0, frames, (start,) * len(frames), samples)
            cells = rules.encode_media(chunk, None)[0].unit.cells
            for decided in (rules.decided([LISTEN], cells), None):
                more = decided or rules.closing(cells)
                cells = np.concatenate([cells, more.cells])
            units.append(cells)
        return units

    return make


def ids_of(cells: Cells) -> list[int]:
    """Token ids, features as the golden files mark them."""
    marks = np.select(
        [cells["modality"] == Modality.IMAGE, cells["modality"] == Modality.AUDIO],
        [-1, -2],
        cells["token"],
    )
    return [int(i) for i in marks]


SECONDS = {
    "duplex_omni": (1, [(["02_image_wide"], True)] * 3),
    "duplex_audio": (1, [([], True)] * 3),
    "duplex_vision": (1, [(["02_image_wide"], False)] * 3),
    "duplex_slices": (
        9,
        [
            (["02_image_wide"], True),
            (["02_image_square", "02_image_wide"], True),
            (["02_image_large"], True),
        ],
    ),
}


@pytest.mark.parametrize("name", SECONDS)
def test_duplex_units_have_the_published_ids(lay_out: Any, golden: Any, name: str) -> None:
    units = lay_out(*SECONDS[name])
    want = golden("13_layout_ids")
    assert [i for cells in units for i in ids_of(cells)] == want[name].tolist()
    lengths = want[f"{name}_unit_lengths"].tolist()
    assert [len(cells) for cells in units[1:]] == lengths


@pytest.mark.parametrize(
    ("name", "system", "stills", "seconds", "joined", "text"),
    [
        ("a", None, ["02_image_wide"], 2, True, "Describe what you see and hear."),
        (
            "c",
            "You are a helpful assistant.",
            ["02_image_large"],
            0,
            True,
            "Describe what you see and hear.",
        ),
        ("d", None, [], 1, False, ""),
    ],
)
def test_offline_prompts_have_the_published_ids(
    template: ChatTemplate,
    layout: Layout,
    golden_config: MiniCPMConfig,
    golden: Any,
    name: str,
    system: str | None,
    stills: list[str],
    seconds: int,
    joined: bool,
    text: str,
) -> None:
    want = golden("13_layout_ids")
    encoder, builder = CountingEncoder(golden_config, layout, 1), UnitBuilder()
    for number, still in enumerate(stills):
        encoder.still(builder, golden(still)["rgb"], template.tokenizer.encode(str(number)))
    if seconds:
        layout.sound(builder, 10 * seconds)
        builder.text(layout.markers.newline if joined else [])
    opening = [layout.markers.speech] if seconds else []
    units = [
        template.system(system or "").cells,
        builder.build(UnitKind.MEDIA).cells,
        template.prompt(text, None, opening).cells,
    ]
    got = np.concatenate(units)["token"].tolist()
    wanted = want[f"offline_{name}_ids"].tolist()
    # A prompt without a system message begins with the user's turn, the last three tokens.
    begin = 0 if system else len(units[0]) - 3
    assert got[begin:] == wanted
    first = len(units[0]) - begin
    pictures = [s for s in spans_of(units[1]) if s.modality == Modality.IMAGE]
    bounds = want[f"offline_{name}_image_bound"].tolist() if stills else []
    assert [[s.start + first, s.stop + first] for s in pictures] == bounds


def test_spans_have_the_roles_that_retention_reads(lay_out: Any) -> None:
    """Boundaries, a source image with its slices, a picture without any, and sound."""
    _, unit = lay_out(9, [(["02_image_wide", "02_image_square"], True)])
    spans = [(s.modality.name, s.role.name, s.stop - s.start) for s in spans_of(unit)]
    boundary = ("TEXT", "BOUNDARY", 1)
    assert spans == [
        boundary,
        boundary,
        ("IMAGE", "SOURCE_IMAGE", 64),
        boundary,
        boundary,
        ("IMAGE", "SLICE", 64),
        boundary,
        boundary,
        ("IMAGE", "SLICE", 64),
        boundary,
        boundary,
        ("IMAGE", "CONTENT", 64),
        boundary,
        ("AUDIO", "CONTENT", 10),
        ("TEXT", "BOUNDARY", 2),
    ]


def test_omnipick_keeps_a_source_image_whole_and_sinks_of_slices(lay_out: Any) -> None:
    _, unit = lay_out(9, [(["02_image_wide"], True)])
    config = RetentionConfig(image_sink=5, audio_sink=3)
    kept = OmniPick().survivors(unit, config)
    spans = spans_of(unit)
    counts = {(s.modality, s.role): int(kept[s.start : s.stop].sum()) for s in spans}
    assert counts[Modality.IMAGE, Role.SOURCE_IMAGE] == 64
    assert counts[Modality.IMAGE, Role.SLICE] == 5
    assert counts[Modality.AUDIO, Role.CONTENT] == 3
    assert kept[[s.start for s in spans if s.role == Role.BOUNDARY]].all()


def test_every_token_takes_one_position(lay_out: Any) -> None:
    cells = np.concatenate(lay_out(9, [(["02_image_wide"], True)])[1:])
    position, counter = lay_out_positions(cells, 7)
    assert (position == 7 + np.arange(len(cells))[:, None]).all()
    assert counter == 7 + len(cells)
