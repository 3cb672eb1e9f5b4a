"""What a stream tells its user: pieces of a reply, updates, and statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GenerationResponse:
    """One piece of a reply. The first ten fields are mlx-lm's `GenerationResponse`.

    Attributes:
        text: Text that became whole with this token.
        token: Its id.
        read_logprobs: Gives `logprobs`; holds the logits on the device while the response lives.
        from_draft: Always False; there is no draft model.
        prompt_tokens: Tokens of the question.
        prompt_tps: Tokens a second of its prefill.
        generation_tokens: Tokens of the reply so far.
        generation_tps: Tokens a second so far.
        peak_memory: Most memory held so far, GB.
        finish_reason: "stop" or "length" on the last piece, else None.
        time: Second of the stream at which the question was asked.
        tokens_seen, tokens_kept: Of the history.
        evictions: Since the start of the session.
    """

    text: str
    token: int
    read_logprobs: Callable[[], NDArray[np.float32]] = field(repr=False)
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: Literal["stop", "length"] | None
    time: float
    tokens_seen: int
    tokens_kept: int
    evictions: int

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probabilities that the token was drawn from, shape (vocab_size,), on the host.

        Computed and copied from the device each time they are asked for.
        """
        return self.read_logprobs()


@dataclass(frozen=True, slots=True)
class Update:
    """What appending one unit did.

    Attributes:
        time: Second of the stream after it.
        tokens: Tokens of the unit.
        seconds: Wall seconds: encoding, prefill, eviction, migration.
        evicted: Tokens that left.
        rows_moved: Rows migrated.
        tokens_seen, tokens_kept, active_pages: After it.
    """

    time: float
    tokens: int
    seconds: float
    evicted: int
    rows_moved: int
    tokens_seen: int
    tokens_kept: int
    active_pages: int


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a model that may speak at any time decided in one unit.

    Attributes:
        start, stop: Seconds of the stream that the unit covers; what is said follows them.
        speaks: Whether it said anything.
        text: Text that became whole, possibly none.
        tokens: Tokens that it decided on, control tokens included.
        in_turn: Whether its turn goes on after the unit.
    """

    start: float
    stop: float
    speaks: bool
    text: str
    tokens: tuple[int, ...]
    in_turn: bool


@dataclass(frozen=True, slots=True)
class DuplexUpdate(Update):
    """What appending one unit of a duplex stream did; `tokens` counts what was decided too.

    Attributes:
        said: What the model decided; None for a unit without picture and sound.
    """

    said: Utterance | None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Figures of a session; the keys of `omnitide generate --json` beside the replies.

    Latencies are of the latest updates (`figures.LATENCIES` of them). Bytes of the full history are
    what K and V of all tokens seen would take. `accept` is the rule of moves; its costs are None
    until a plan had to be judged by them.
    """

    units: int
    tokens_seen: int
    tokens_kept: int
    capacity_tokens: int
    evictions: int
    rows_moved: int
    active_pages: int
    active_subblocks: int
    physical_span: int
    physical_kv_bytes: int
    full_kv_bytes: int
    update_ms_p50: float
    update_ms_p95: float
    decode_tokens_per_s: float
    peak_memory_bytes: int
    model: str
    backend: str
    policy: str
    high_watermark: int
    low_watermark: int
    accept: str
    tile_cost_us: float | None
    row_cost_us: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
