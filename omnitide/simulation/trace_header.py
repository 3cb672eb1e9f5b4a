"""The first line of a trace: what it is, and the settings of the run that wrote it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.errors import ConfigError, TraceError
from omnitide.session import Session

FORMAT = "omnitide trace"
VERSION = 1
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """Settings of the recorded run; a simulation takes them where it is given no others.

    Attributes:
        model: Name of the model.
        policy, layout: Names.
        retention: Watermarks and budgets that held.
        largest_unit, reply: Tokens that the capacity was made for.
        max_kv_size: As given, or None.
        migration: The rule of moves as given, and the costs by which it judged, if it needs any.
    """

    model: str
    policy: str
    layout: str
    retention: RetentionConfig
    largest_unit: int
    reply: int
    max_kv_size: int | None
    migration: MigrationConfig

    @classmethod
    def of(cls, session: Session) -> TraceHeader:
        """The settings of a session; its rule asks for its costs now, if it has not yet."""
        stats, migration = session.stats(), session.migration
        costs = session.model.backend.run(session.cache.acceptance.price)
        if costs is not None:
            migration = replace(migration, tile_cost_us=costs.tile_us, row_cost_us=costs.row_us)
        return cls(
            stats.model,
            stats.policy,
            session.cache.layout.name,
            session.retention,
            session.largest_unit,
            session.cache.capacity.reply,
            session.max_kv_size,
            migration,
        )

    def write(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


def read_header(line: Any) -> TraceHeader:
    """A header from plain data that came from anywhere.

    Raises:
        TraceError: It is none, or of another version.
    """
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        raise TraceError("is not a trace of omnitide; record one with omnitide generate --trace")
    version = line.get("version")
    if type(version) is not int or version != VERSION:
        raise TraceError(f"has version {repr(version)[:20]}, this omnitide reads {VERSION}")
    retention = line.get("retention")
    if not isinstance(retention, dict):
        raise TraceError("must have an object retention")
    given = {
        field.name: _setting(retention, field.name, field.default)
        for field in fields(RetentionConfig)
        if field.name in retention  # a later version may know more settings
    }
    try:
        config = RetentionConfig(**given)
        migration = _migration(line)
    except ConfigError as error:
        raise TraceError(f"has settings that make no sense: {error}") from error
    return TraceHeader(
        _name(line, "model"),
        _name(line, "policy"),
        _name(line, "layout"),
        config,
        _count(line, "largest_unit") or 0,
        _count(line, "reply") or 0,
        _count(line, "max_kv_size", optional=True),
        migration,
    )


def _migration(line: dict[str, Any]) -> MigrationConfig:
    """The rule of moves.

    Raises:
        TraceError: It is none.
        ConfigError: Its values contradict each other.
    """
    found = line.get("migration")
    if not isinstance(found, dict):
        raise TraceError("must have an object migration")
    return MigrationConfig(
        None if found.get("accept") is None else _name(found, "accept"),
        _count(found, "span_pages") or 0,
        _number(found, "tile_cost_us", optional=True),
        _number(found, "row_cost_us", optional=True),
    )


def _setting(retention: dict[str, Any], key: str, default: object) -> Any:
    """A value of the kind of its default."""
    if not isinstance(default, float):
        return _count(retention, key, optional=default is None)
    return _number(retention, key)


def _number(line: dict[str, Any], key: str, optional: bool = False) -> Any:
    value = line.get(key)
    if type(value) not in (int, float) and not (value is None and optional):
        raise TraceError(f"{key} must be a number")
    return value


def _name(line: dict[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str) or len(value) > 1000:
        raise TraceError(f"{key} must be a name")
    return value


def _count(line: dict[str, Any], key: str, optional: bool = False) -> int | None:
    value = line.get(key)
    if value is None and optional:
        return None
    if type(value) is not int or not 0 <= value <= MOST:
        raise TraceError(f"{key} must be a whole number from 0 to {MOST:,}")
    return value
