"""How many tokens picture and sound become, without weights."""

from __future__ import annotations

import math
from fractions import Fraction

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.minicpm_o.config import AudioConfig, MiniCPMConfig, SliceConfig
from omnitide.models.minicpm_o.image import plan_slices
from omnitide.models.minicpm_o.stream_encoder import most_stream_tokens

FRAMES_PER_SECOND = 50
"""Frames of the audio tower behind its convolutions."""

MARKERS = 2
"""Tokens around a picture, a slice, sound and a unit."""

MOST_DIGITS = 4
"""Digits that the number of a still picture is given room for."""


def live_slices(options: MediaOptions, slices: SliceConfig) -> int:
    """Most slices of a picture of a stream: one for each `scale` x `scale` pixels allowed.

    One means none beside the source image.

    Raises:
        ConfigError: The pixels allowed make more slices than the model takes.
    """
    area = slices.scale**2
    count = max(options.max_pixels // area, 1)
    if count > slices.max_slices:
        raise ConfigError(
            f"[media] --max-pixels may ask for at most {slices.max_slices} slices of "
            f"{area:,} pixels, got {options.max_pixels:,}, which are {count}; lower it to "
            f"{slices.max_slices * area:,}"
        )
    return count


def sound_memory(options: MediaOptions, audio: AudioConfig) -> int:
    """Frames of the audio tower that it hears again when its positions begin anew.

    Raises:
        ConfigError: They leave no room for two chunks in the table of positions.
    """
    most = max(audio.max_frames - 2 * audio.chunk_frames, 0) / FRAMES_PER_SECOND
    if options.sound_memory > most:
        raise ConfigError(
            f"[media] --sound-memory must be at most {most:g} s, the audio tower's positions "
            f"without two chunks, got {options.sound_memory:g}"
        )
    return round(options.sound_memory * FRAMES_PER_SECOND)


def media_tokens(
    config: MiniCPMConfig,
    options: MediaOptions,
    frames: int,
    height: int,
    width: int,
    samples: int,
) -> int:
    """Tokens of a unit of a stream; exact for whole seconds in a row, never too small.

    Args:
        config: Of the checkpoint.
        options: Largest picture.
        frames: Number of frames.
        height, width: Pixels of a frame, as decoded.
        samples: Number of 16 kHz samples.

    Raises:
        MediaError: A shape that `plan_slices` refuses.
        ConfigError: See `live_slices`.
    """
    total = sound_tokens(config, samples) + (unit_marker(config) if frames or samples else 0)
    if frames:
        most = live_slices(options, config.slices)
        plan = plan_slices(width, height, most, config.slices.scale)
        total += frames * (1 + plan.num_slices) * (config.resampler.num_queries + MARKERS)
    return total


def largest_live_unit(config: MiniCPMConfig, options: MediaOptions) -> int:
    """Tokens that no unit of a stream under these options exceeds, pictures of prompts apart."""
    picture = config.resampler.num_queries + MARKERS
    samples = math.ceil(_chunk_seconds(options) * SAMPLE_RATE)
    total = _live_pictures(config, options) * picture
    return total + sound_tokens(config, samples) + unit_marker(config)


def largest_media_unit(config: MiniCPMConfig, options: MediaOptions) -> int:
    """Tokens that no media unit under these options exceeds, a picture of a prompt included."""
    picture, most = config.resampler.num_queries + MARKERS, config.slices.max_slices
    # Number and markers of it, and a line break for each row.
    still = picture * _with_source(most) + MARKERS + MOST_DIGITS + most
    return max(largest_live_unit(config, options), still)


def most_pictures(config: MiniCPMConfig, options: MediaOptions) -> int:
    """Source images and slices that no media unit exceeds, a still picture included."""
    return max(_live_pictures(config, options), _with_source(config.slices.max_slices))


def _live_pictures(config: MiniCPMConfig, options: MediaOptions) -> int:
    fps = Fraction(options.fps).limit_denominator(1_000_000)
    frames = math.ceil(_chunk_seconds(options) * fps)
    return frames * _with_source(live_slices(options, config.slices))


def _chunk_seconds(options: MediaOptions) -> Fraction:
    return Fraction(options.chunk_seconds).limit_denominator(1_000_000)


def _with_source(slices: int) -> int:
    """Most slices with their source image, which is alone where one slice would do."""
    return 1 + slices if slices > 1 else 1


def sound_tokens(config: MiniCPMConfig, samples: int) -> int:
    """Tokens of sound with its markers, at most."""
    tokens = most_stream_tokens(samples, config.audio.pool)
    return tokens + MARKERS if tokens else 0


def unit_marker(config: MiniCPMConfig) -> int:
    """Tokens that open a unit in the user's turn: 2.6 has one, 4.5 in duplex mode alone."""
    return int(config.version == "2.6")
