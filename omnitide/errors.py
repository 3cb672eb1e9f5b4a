"""Errors that a user can cause or meet.

Each message says what was expected, what came, and what to do. The command line prints the message
alone and exits with code 2; none of these ever shows a traceback.
"""

from __future__ import annotations


class OmnitideError(Exception):
    """Base of all errors that carry a message meant for the user."""


class ConfigError(OmnitideError, ValueError):
    """An option or a combination of options makes no sense."""


class CapacityError(OmnitideError):
    """A unit, a reply or a history does not fit into the physical capacity."""


class CheckpointError(OmnitideError):
    """A model folder is missing something, or holds what it should not."""


class MediaError(OmnitideError):
    """A file or stream can't be read as sound or pictures."""


class TraceError(OmnitideError):
    """A trace of a stream can't be written, or what is read is none."""


class BackendError(OmnitideError):
    """A backend or a device is missing; the message says what to install."""


class MissingPackageError(BackendError, ImportError):
    """A package that an optional part needs is not installed; the message says which."""


class CacheFileError(OmnitideError):
    """A prompt cache can't be saved, or a file does not hold one that fits."""


class SessionError(OmnitideError):
    """A session was used in an order that makes no sense, as a reply after what came behind it."""


class NumericsError(OmnitideError):
    """A model gives values that are no numbers."""


class JudgeError(OmnitideError):
    """The judge of an evaluation does not answer, or refuses."""


class IntegrityError(AssertionError):
    """A page table and a history disagree. Always a bug of ours, never the user's."""


def reason_of(error: Exception) -> str:
    """Why the system refused something, in its words, without a path."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def first_line_of(error: Exception) -> str:
    """The first line of `reason_of`: some libraries say much."""
    lines = reason_of(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
