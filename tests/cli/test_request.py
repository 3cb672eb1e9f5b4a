"""Every option arrives where it belongs, and defaults are the configuration's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.cli.parser import parse
from omnitide.cli.request import read_request
from omnitide.config import (
    DEFAULTS,
    DuplexConfig,
    FamilyDefaults,
    MediaOptions,
    RetentionConfig,
    SamplingConfig,
)
from omnitide.errors import ConfigError
from omnitide.following import DEFAULT_PROMPT, Question
from omnitide.session import Session

# As the issue lists them, with ours.
OPTIONS = [
    "--model",
    "--video",
    "--audio",
    "--image",
    "--prompt",
    "-p",
    "--ask-at",
    "--system-prompt",
    "--max-tokens",
    "-m",
    "--temp",
    "--temperature",
    "--top-p",
    "--top-k",
    "--min-p",
    "--seed",
    "--policy",
    "--layout",
    "--high-watermark",
    "--low-watermark",
    "--recent-units",
    "--image-sink",
    "--audio-sink",
    "--text-budget",
    "--sink-tokens",
    "--heavy-share",
    "--text-sink",
    "--text-window",
    "--vision-window",
    "--max-kv-size",
    "--fps",
    "--chunk-seconds",
    "--max-pixels",
    "--sound-memory",
    "--duplex",
    "--voice",
    "--force-listen",
    "--unit-tokens",
    "--recall",
    "--backend",
    "--dtype",
    "--json",
    "--verbose",
]


def test_every_option_arrives() -> None:
    line = (
        "generate --model M --video V --audio A --image I --image J -p one --prompt two "
        "--ask-at 1.5 --ask-at 4 --system-prompt S -m 7 --temp 0.5 --top-p 0.9 --top-k 3 "
        "--min-p 0.1 --seed 11 --policy fifo --layout native --high-watermark 900 "
        "--low-watermark 700 --recent-units 2 --image-sink 3 --audio-sink 4 --text-budget 5 "
        "--sink-tokens 6 --heavy-share 0.25 --text-sink 7 --text-window 8 --vision-window 9.5 "
        "--max-kv-size 2048 --fps 1 --chunk-seconds 1 --max-pixels 3136 --sound-memory 4 "
        "--backend mlx "
        "--dtype float16 --json --verbose"
    )
    request = read_request(parse(line.split()))
    assert (request.model, request.video, request.audio) == ("M", "V", "A")
    assert request.images == ("I", "J")
    assert request.questions == (Question("one", 1.5), Question("two", 4.0))
    assert (request.system_prompt, request.max_tokens) == ("S", 7)
    assert request.sampling == SamplingConfig(0.5, 0.9, 3, 0.1, 11)
    assert request.media(DEFAULTS) == MediaOptions(1.0, 1.0, 3136, 4.0)
    assert (request.duplex, request.voice) == (None, None)
    assert request.retention(DEFAULTS) == RetentionConfig(
        900,
        700,
        2,
        3,
        4,
        5,
        sink_tokens=6,
        heavy_share=0.25,
        text_sink=7,
        text_window=8,
        vision_window=9.5,
    )
    assert (request.policy, request.layout, request.max_kv_size) == ("fifo", "native", 2048)
    assert (request.backend, request.dtype) == ("mlx", "float16")
    assert request.as_json
    assert request.verbose


def test_defaults_are_those_of_the_configuration() -> None:
    request = read_request(parse(["generate"]))
    session = inspect.signature(Session).parameters
    assert request.questions == (Question(DEFAULT_PROMPT, None),)
    assert request.sampling == SamplingConfig()
    assert request.media(DEFAULTS) == MediaOptions()
    assert request.media(FamilyDefaults(fps=1.0, chunk_seconds=0.5)) == MediaOptions(1.0, 0.5)
    assert request.kept == {}
    assert request.retention(DEFAULTS) == RetentionConfig()
    assert request.max_tokens == session["max_tokens"].default
    assert request.policy == session["policy"].default
    assert request.layout == session["layout"].default
    assert (request.backend, request.dtype) == ("auto", None)
    assert not request.has_media
    assert not request.as_json


def test_duplex_options_arrive() -> None:
    line = "generate --duplex --voice V --force-listen 0 --unit-tokens 9 --recall 40"
    request = read_request(parse(line.split()))
    assert request.duplex == DuplexConfig(force_listen=0, unit_tokens=9, recall=40)
    assert request.voice == "V"
    assert request.questions == ()
    assert read_request(parse(["generate", "--duplex"])).duplex == DuplexConfig()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--voice V", "--voice needs --duplex"),
        ("--force-listen 1", "--force-listen needs --duplex"),
        ("--recall 5", "--recall needs --duplex"),
        ("--duplex --prompt Why?", "takes no questions"),
        ("--duplex --ask-at 3", "takes no questions"),
        ("--duplex --unit-tokens 1", "unit_tokens must be at least 2"),
        ("--duplex --force-listen -1", "force_listen must be at least 0"),
        ("--sound-memory -1", "sound_memory must be at least 0"),
    ],
)
def test_contradictions_are_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_request(parse(["generate", *line.split()]))


def test_temperature_has_two_spellings() -> None:
    assert parse(["generate", "--temperature", "0.25"]).temperature == 0.25


def test_help_lists_every_option_in_100_columns(call: Callable[..., Any]) -> None:
    result = call("generate", "--help")
    assert result.code == 0
    words = result.out.replace(",", " ").split()
    assert [option for option in OPTIONS if option not in words] == []
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("option", "default"),
    [
        ("--fps", MediaOptions().fps),
        ("--chunk-seconds", MediaOptions().chunk_seconds),
        ("--max-pixels", MediaOptions().max_pixels),
        ("--temperature", SamplingConfig().temperature),
        ("--high-watermark", RetentionConfig().high_watermark),
        ("--low-watermark", RetentionConfig().low_watermark),
        ("--image-sink", RetentionConfig().image_sink),
        ("--text-budget", RetentionConfig().text_budget),
        ("--sink-tokens", RetentionConfig().sink_tokens),
        ("--heavy-share", RetentionConfig().heavy_share),
        ("--text-sink", RetentionConfig().text_sink),
        ("--text-window", RetentionConfig().text_window),
        ("--vision-window", RetentionConfig().vision_window),
        ("--sound-memory", MediaOptions().sound_memory),
        ("--force-listen", DuplexConfig().force_listen),
        ("--unit-tokens", DuplexConfig().unit_tokens),
        ("--recall", DuplexConfig().recall),
    ],
)
def test_help_states_defaults(call: Callable[..., Any], option: str, default: float) -> None:
    text = " ".join(call("generate", "--help").out.split())
    after = text.partition("show this help")[2].partition(f" {option} ")[2]
    assert f"(default: {default})" in after.partition(" --")[0]


def test_without_a_command_help_is_printed(call: Callable[..., Any]) -> None:
    result = call()
    assert result.code == 0
    assert result.out.startswith("usage: omnitide")


def test_version(call: Callable[..., Any]) -> None:
    result = call("--version")
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert result.code == 0
    name, number = result.out.split()
    assert name == "omnitide"
    assert f'version = "{number}"' in project.read_text()
