"""The memory that a session will take, told before a weight is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.capacity import CLOSING, plan_capacity
from omnitide.config import DuplexConfig, MediaOptions, RetentionConfig
from omnitide.duplex import recall_room, speaks_only_when_asked, unit_room
from omnitide.figures import ITEMSIZES
from omnitide.models.outline import ModelOutline
from omnitide.pages import PAGE_SIZE
from omnitide.policies import make_policy
from omnitide.rotary import LEAST_KEPT, MOST_KEPT
from omnitide.session import SMALLEST_UNIT_ROOM, check_kv_bits
from omnitide.units import CELL

STEP_BYTES = 64
"""Of each cell in a step, without angles: its slot, order, page and row, and its tile's lists."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a session plans its capacity around, in tokens.

    Attributes:
        prefix: The system prefix, as long as it may become.
        unit: The largest unit.
        reply: The longest reply, or what is decided on in a unit, without what closes it.
    """

    prefix: int
    unit: int
    reply: int


def session_room(
    outline: ModelOutline, media: MediaOptions, system_prompt: str | None, max_tokens: int
) -> Room:
    """That of `Session` with these arguments.

    Raises:
        ConfigError: The model can't take such media.
    """
    unit = max(outline.largest_media_unit(media), SMALLEST_UNIT_ROOM)
    return Room(outline.count_system(system_prompt), unit, max_tokens)


def duplex_room(
    outline: ModelOutline,
    media: MediaOptions,
    system_prompt: str | None,
    duplex: DuplexConfig,
    voice: NDArray[np.float32] | None,
) -> Room:
    """That of `DuplexSession` with these arguments.

    Raises:
        ConfigError: The model speaks only when it is asked, or can't take such media.
    """
    rules = outline.duplex
    if rules is None:
        raise speaks_only_when_asked(outline.spec.name)
    prefix = rules.count_system(system_prompt, voice) + recall_room(rules.recall_marker, duplex)
    return Room(prefix, unit_room(rules.largest_unit(media), duplex), duplex.unit_tokens)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a session takes on a backend, and bytes that there are.

    Attributes:
        weight_bytes: All weights.
        kv_bytes: The pools, as large as they are at the start.
        kv_tokens: Most tokens of the history; None: the pools grow with the stream.
        token_bytes: Of one token in the pools.
        scratch_bytes: At most held beside these: by a pass of the language model, by the encoders,
            or while the largest weight is loaded; what the encoders remember of a stream; and,
            where the backend's memory is the host's, what is recorded of the history and what
            allocators keep. An estimate. Of a history that grows, as long as it is at the start.
        free_bytes: That can be allocated now.
    """

    weight_bytes: int
    kv_bytes: int
    kv_tokens: int | None
    token_bytes: int
    scratch_bytes: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """All that is needed at once."""
        return self.weight_bytes + self.kv_bytes + self.scratch_bytes

    @property
    def fits(self) -> bool:
        """Whether what is needed is free."""
        return self.total_bytes <= self.free_bytes


def memory_need(
    outline: ModelOutline,
    backend: Backend,
    *,
    policy: str,
    retention: RetentionConfig,
    media: MediaOptions,
    room: Room,
    max_kv_size: int | None,
    kv_bits: int | None = None,
) -> MemoryNeed:
    """What a session with these arguments will take. Call on the backend's thread.

    Args:
        outline: Of the model.
        backend: Says its dtype, its pools, and what is free.
        room: Of the session.
        policy, retention, media, max_kv_size, kv_bits: As in `Session`.

    Raises:
        ConfigError: The numbers can't be met.
    """
    _, capacity = plan_capacity(
        retention,
        make_policy(policy).bounded,
        room.prefix,
        room.unit,
        room.reply + CLOSING,
        max_kv_size,
    )
    itemsize = ITEMSIZES[backend.dtype]
    outline = outline.kept_by(backend)
    check_kv_bits(backend, kv_bits)
    spec = outline.spec
    token = spec.kv_bytes_per_token(itemsize) * backend.pool_arrays // 2
    factors = 0
    if kv_bits is not None:
        # Elements, and a float32 scale of each head of keys and of values.
        scales = 2 * 4 * spec.num_layers * spec.num_kv_heads
        token = spec.kv_bytes_per_token(1) * kv_bits // 8 + scales
        # Of each channel of the keys: float32.
        factors = 4 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    held = capacity.pages * PAGE_SIZE
    unit = max(room.unit, room.prefix)
    of_pass = pass_bytes(outline, backend, held, unit, kv_bits)
    scratch = max(of_pass, outline.encoder_values(media) * itemsize)
    if backend.keeps_passes:
        scratch += of_pass
    if backend.in_main_memory:
        scratch = in_process(scratch + record_bytes(held, spec.head_dim))
    scratch += backend.kept_bytes + outline.stream_values * itemsize
    sizes = spec.num_kv_heads, spec.head_dim, capacity.pages
    scratch += backend.pool_scratch_bytes(*sizes, kv_bits)
    return MemoryNeed(
        weight_bytes=outline.weight_bytes(itemsize),
        kv_bytes=capacity.pages * PAGE_SIZE * token + factors,
        kv_tokens=capacity.tokens,
        token_bytes=token,
        scratch_bytes=max(scratch, outline.largest_weight(itemsize)),
        free_bytes=backend.memory_free(),
    )


def pass_bytes(
    outline: ModelOutline, backend: Backend, held: int, unit: int, kv_bits: int | None
) -> int:
    """Bytes that the passes over a unit hold at most, beside weights and pools.

    Args:
        outline: Of the model, with the weights as the backend keeps them.
        backend: What it runs on.
        held: Tokens that the pools have room for.
        unit: Tokens of the unit.
        kv_bits: As in `Session`.
    """
    spec, tokens = outline.spec, min(unit, backend.prefill_step)
    states = outline.pass_values(tokens, unit) + outline.largest_dequantized()
    attention = backend.attention_bytes(
        held, tokens, spec.num_heads, spec.num_kv_heads, spec.head_dim, kv_bits
    )
    return states * ITEMSIZES[backend.dtype] + attention


def in_process(array_bytes: int) -> int:
    """Bytes of main memory that a process takes for arrays that come and go.

    A quarter more: allocators keep some of what is freed, in pieces, and BLAS has buffers.
    Measured: docs/quantization.md.
    """
    return array_bytes * 5 // 4


def record_bytes(held: int, head_dim: int) -> int:
    """Bytes that the host keeps of so many tokens, at most, with the step of a pass.

    Records and angles lie in buffers that double, angles of positions in a table that does.
    """
    table = min(max(2 * held, LEAST_KEPT), MOST_KEPT)
    angles = 4 * head_dim * (2 * held + table)
    return angles + held * (2 * CELL.itemsize + STEP_BYTES)
