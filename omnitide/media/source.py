"""Opening a file or URL, and what it may reach.

FFmpeg reads far more than films: a text file that is a playlist can name other files and addresses,
and any text can be "played" as a terminal recording. So a source is opened with two allow-lists.

- Protocols. A local file may read itself through `file` and nothing else: no network. A URL may
  use the protocols of its scheme: `http`, `https`, `rtsp`, `rtsps`, `rtmp`, `rtmps`, `udp`, `rtp`.
  None of them may reach `file`. Other schemes are refused.
- Formats. Locally only containers that hold their media themselves: no playlist, no concatenation
  script, no text. From a URL also HLS and DASH, whose parts then come over the same protocols.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import av
from av.container import InputContainer
from av.error import ArgumentError, FFmpegError

from omnitide.errors import MediaError

Source = str | os.PathLike[str]
"""A path, or a URL with one of `PROTOCOLS`."""

_HTTP = "http,https,httpproxy,tcp,tls,crypto"
_RTSP = "rtsp,rtsps,rtp,srtp,udp,tcp,tls,http,https"
_RTMP = "rtmp,rtmps,rtmpt,rtmpts,tcp,tls,http,https"

PROTOCOLS = {
    "http": _HTTP,
    "https": _HTTP,
    "rtsp": _RTSP,
    "rtsps": _RTSP,
    "rtmp": _RTMP,
    "rtmps": _RTMP,
    "udp": "udp",
    "rtp": "rtp,udp",
}
"""URL schemes that are read, each with the FFmpeg protocols it may use."""

CONTAINERS = (
    "mov,matroska,avi,flv,mpegts,mpeg,mpegvideo,m4v,asf,ogg,ivf,nut,mxf,dv,rm,gif,apng,"
    "yuv4mpegpipe,h264,hevc,vvc,obu,av1,mjpeg,wav,w64,aiff,au,caf,mp3,aac,loas,ac3,eac3,dts,"
    "truehd,flac,amr,wv,tta,ape,mpc,mpc8,aptx,sbc,g722,gsm"
)
"""FFmpeg demuxers of self-contained media."""

STREAMED = "hls,dash,rtsp,rtp,sdp,mpjpeg,live_flv"
"""FFmpeg demuxers allowed besides `CONTAINERS` when the source is a URL."""

OPEN_TIMEOUT = 20.0
"""Seconds a URL may take to answer."""

READ_TIMEOUT = 30.0
"""Seconds without data after which a URL counts as broken off."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def scheme_of(source: Source) -> str | None:
    """The URL scheme of a source in lower case; None for a path (also a Windows path)."""
    match = _URL.match(os.fspath(source))
    return match.group(1).lower() if match else None


def name_of(source: Source) -> str:
    """The source for messages: a URL without user name, password and query."""
    text = os.fspath(source)
    if scheme_of(source) is None:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:  # no address at all, such as http://[::1
        return text.partition("://")[0] + "://..."
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_regular_file(source: Source) -> bool:
    """Whether the source can be opened twice and read at two places at once."""
    return scheme_of(source) is None and Path(source).is_file()


def open_container(source: Source) -> InputContainer:
    """Open a source for reading, within the allow-lists of this module.

    Raises:
        MediaError: The source is missing, a directory, empty, unreadable, of a scheme that is not
            allowed, or holds no media.
    """
    scheme = scheme_of(source)
    if scheme is None:
        path = checked_path(source)
        # Absolute, so that a colon in the name can't be taken for a protocol.
        address, protocols, formats, timeout = str(path.absolute()), "file", CONTAINERS, None
    elif scheme in PROTOCOLS:
        address, protocols = os.fspath(source), PROTOCOLS[scheme]
        formats, timeout = f"{CONTAINERS},{STREAMED}", (OPEN_TIMEOUT, READ_TIMEOUT)
    else:
        raise MediaError(
            f"[media] a URL must start with one of {', '.join(PROTOCOLS)}, got {scheme}://; "
            "for a file give its path"
        )
    try:
        return av.open(
            address,
            "r",
            container_options={"protocol_whitelist": protocols, "format_whitelist": formats},
            metadata_errors="replace",
            timeout=timeout,
        )
    except ArgumentError as error:
        raise MediaError(
            f"[media] {name_of(source)} is of a format that is not read here, such as a text or a "
            "playlist; give a film or a recording"
        ) from error
    except (FFmpegError, OSError) as error:
        if scheme is not None:
            raise MediaError(
                f"[media] {name_of(source)} can't be opened ({reason_of(error)}); "
                "check the address and the connection"
            ) from error
        raise MediaError(
            f"[media] {name_of(source)} is no film or sound that can be read ({reason_of(error)}); "
            "if it was cut off while it was written, its index is missing"
        ) from error


def checked_path(source: Source) -> Path:
    """The path of a local file that exists, is readable and is not empty.

    Raises:
        MediaError: Anything else, each with its own words.
    """
    path = Path(source)
    if not path.exists():
        raise MediaError(f"[media] there must be a file to read, {path} does not exist")
    if path.is_dir():
        raise MediaError(f"[media] a file is needed, {path} is a directory; name a file in it")
    if not os.access(path, os.R_OK):
        raise MediaError(f"[media] {path} may not be read by you; change its permissions")
    if path.is_file() and path.stat().st_size == 0:
        raise MediaError(f"[media] {path} is empty (0 bytes); fetch or record it again")
    return path


def reason_of(error: Exception) -> str:
    """What FFmpeg says about an error, in lower case, without number and address."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text[:1]).lower() + str(text[1:])
