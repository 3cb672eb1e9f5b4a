"""Physical capacity: how many tokens the pools must hold, known before a stream starts.

After every eviction a history holds at most `rest` tokens: the high watermark, or the system prefix
and the largest unit or reply if that is more (the newest unit always stays whole, and a reply is
one). The next unit and a reply come on top, and that is all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omnitide.config import RetentionConfig
from omnitide.errors import CapacityError, ConfigError
from omnitide.pages import PAGE_SIZE

CLOSING = 16
"""Tokens kept free behind the longest reply for the markers that end it; families keep to it."""

SPARE_PAGES = 6
"""Pages beyond the tokens' own, so that the layout may leave its last pages partly filled."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bounds of a session's history.

    Attributes:
        prefix: Tokens of the system prefix.
        rest: Most tokens after an eviction. None: the history is not bounded.
        reply: Most tokens of a reply with its closing, kept free for it.
        tokens: Most tokens at any time. None: grows with the stream.
        pages: Pages of the pools at the start.
    """

    prefix: int
    rest: int | None
    reply: int
    tokens: int | None
    pages: int

    def left(self, held: int, is_reply: bool = False) -> int | None:
        """Tokens that the next unit may have beside `held` ones; None where nothing bounds it."""
        if self.tokens is None:
            return None
        left = self.tokens - held - (0 if is_reply else self.reply)
        if self.rest is not None and not is_reply:
            left = min(left, self.rest - self.prefix)
        return max(left, 0)

    def check_fits(self, kind: str, count: int, held: int, is_reply: bool = False) -> None:
        """Refuse a unit that the pools can't take, before anything is written.

        Args:
            kind: What it is, for the message.
            count: Its tokens.
            held: Tokens of the history now.
            is_reply: Whether it may use the room kept free for replies.

        Raises:
            CapacityError: It does not fit; the message has the numbers and what to change.
        """
        left = self.left(held, is_reply)
        if left is not None and count > left:
            more = "--high-watermark" if self.rest is not None else "--max-kv-size"
            less = "lower --max-pixels" if kind.startswith("media") else "shorten it"
            raise CapacityError(
                f"[append] {kind} has {count:,} tokens, capacity leaves {left:,}; "
                f"raise {more} or {less}"
            )


@dataclass(frozen=True, slots=True)
class Advice:
    """What a message advises beside raising the bounds, where there is such an option.

    Attributes:
        prefix: Against a long system prefix.
        units: Against large units and replies.
    """

    prefix: str = " or shorten --system-prompt"
    units: str = ", or lower --max-pixels, --chunk-seconds or --max-tokens"


ADVICE = Advice()


def bounded_capacity(
    config: RetentionConfig,
    prefix: int,
    largest_unit: int,
    reply: int,
    advice: Advice = ADVICE,
) -> Capacity:
    """Capacity of a policy that keeps the history near its watermarks.

    Raises:
        ConfigError: The system prefix alone exceeds the low watermark.
    """
    if prefix > config.low_watermark:
        raise ConfigError(
            f"[capacity] the system prefix has {prefix:,} tokens, the low watermark is "
            f"{config.low_watermark:,}; raise --low-watermark and --high-watermark{advice.prefix}"
        )
    rest = max(config.high_watermark, prefix + max(largest_unit, reply))
    tokens = rest + largest_unit + reply
    return Capacity(prefix, rest, reply, tokens, -(-tokens // PAGE_SIZE) + SPARE_PAGES)


def unbounded_capacity(prefix: int, reply: int, max_kv_size: int | None) -> Capacity:
    """Capacity of a policy that drops nothing: grows, or ends at `max_kv_size` tokens.

    Raises:
        ConfigError: `max_kv_size` does not hold the prefix and a reply.
    """
    if max_kv_size is None:
        return Capacity(prefix, None, reply, None, -(-(prefix + reply) // PAGE_SIZE) + SPARE_PAGES)
    pages = max_kv_size // PAGE_SIZE
    if pages * PAGE_SIZE < prefix + reply:
        raise ConfigError(
            f"[capacity] --max-kv-size {max_kv_size:,} must hold the system prefix "
            f"({prefix:,} tokens) and a reply ({reply:,}), in whole pages of {PAGE_SIZE}"
        )
    return Capacity(prefix, None, reply, pages * PAGE_SIZE, pages)


def fit_watermarks(
    config: RetentionConfig,
    prefix: int,
    largest_unit: int,
    reply: int,
    max_kv_size: int,
    advice: Advice = ADVICE,
) -> tuple[RetentionConfig, Capacity]:
    """Lower the watermarks so that the pools hold at most `max_kv_size` tokens.

    Raises:
        ConfigError: Not even the prefix, two largest units (or a unit and a longer reply) and a
            reply fit.
    """
    pages = max_kv_size // PAGE_SIZE
    rest = pages * PAGE_SIZE - largest_unit - reply
    newest = max(largest_unit, reply)
    if rest < prefix + newest:
        need = prefix + newest + largest_unit + reply
        held = (
            f"two largest units ({largest_unit:,} each) and a reply ({reply:,})"
            if newest == largest_unit
            else f"a largest unit ({largest_unit:,}) and two replies ({reply:,} each)"
        )
        raise ConfigError(
            f"[capacity] --max-kv-size {max_kv_size:,} is too small: the system prefix "
            f"({prefix:,}), {held} need "
            f"{-(-need // PAGE_SIZE) * PAGE_SIZE:,}; raise it{advice.units}"
        )
    high = min(config.high_watermark, rest)
    low = min(config.low_watermark, high * config.low_watermark // config.high_watermark)
    fitted = replace(config, high_watermark=high, low_watermark=max(low, 1))
    bound = bounded_capacity(fitted, prefix, largest_unit, reply, advice)
    return fitted, replace(bound, rest=rest, tokens=pages * PAGE_SIZE, pages=pages)


def plan_capacity(
    config: RetentionConfig,
    bounded: bool,
    prefix: int,
    largest_unit: int,
    reply: int,
    max_kv_size: int | None,
    advice: Advice = ADVICE,
) -> tuple[RetentionConfig, Capacity]:
    """Watermarks and capacity of a stream.

    Args:
        config: What was asked for.
        bounded: Whether the policy keeps the history near the watermarks.
        prefix, largest_unit, reply: Tokens of the system prefix, of the largest unit beside it and
            of the longest reply with its closing.
        max_kv_size: Tokens that the pools may hold, which may lower the watermarks.
        advice: For the messages.

    Raises:
        ConfigError: The numbers can't be met.
    """
    if not bounded:
        return config, unbounded_capacity(prefix, reply, max_kv_size)
    if max_kv_size is not None:
        return fit_watermarks(config, prefix, largest_unit, reply, max_kv_size, advice)
    return config, bounded_capacity(config, prefix, largest_unit, reply, advice)
