"""One step of training: forward, backward, clip, and both optimisers."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from training.learn.feed import Prepared
from training.learn.loss import Result, measure
from training.learn.muon import Muon
from training.learn.schedule import RunSettings
from training.model.thinker import Thinker
from training.rows.masks import Visibility

ATTENTIONS = ("flex", "sdpa")
"""Ways to attend: FlexAttention with a block mask, or a plain boolean mask."""

AHEAD = 2
"""Steps that the host may run ahead of the device, so that its clock means something."""


class Trainer:
    """A model with its optimisers.

    Attributes:
        model: Mutated by `step`.
    """

    def __init__(
        self, model: Thinker, run: RunSettings, device: torch.device, attention: str, compiled: bool
    ) -> None:
        """Take a model on.

        Args:
            model: On the device.
            run: Learning rates.
            device: "cuda" computes in bfloat16 where that is safe.
            attention: One of `ATTENTIONS`.
            compiled: Whether to compile the layers.
        """
        if attention not in ATTENTIONS:
            raise ValueError(f"[trainer] attention must be one of {ATTENTIONS}, got {attention!r}")
        self.model, self._run, self._device = model, run, device
        self._flex = attention == "flex"
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._muon = Muon(model.matrices(), weight_decay=run.matrix_decay)
        self._adam = self._make_adam()
        self._under_way: deque[torch.cuda.Event] = deque()
        if compiled:
            model.compile_layers()

    def step(self, item: Prepared, rate: float) -> Result:
        """Learn from a batch. Mutates the model.

        Args:
            item: On the device.
            rate: Factor on all learning rates.
        """
        result = self.measure(item)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, self._run.clip)
        self._muon.step(rate * self._run.matrix_rate)
        for group in self._adam.param_groups:
            group["lr"] = rate * group["full"]
        self._adam.step()
        self._adam.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None
        self._wait()
        return result

    def measure(self, item: Prepared) -> Result:
        """Loss and right answers of a batch. Leaves the model as it is.

        The forward pass is the one of training, gradients included, so that it is compiled once.
        """
        mask = self._mask(item.batch.visibility)
        with self._precision():
            logits = self.model(item.batch, item.frames, item.mel, mask)
        return measure(logits, item.batch, self._run.z_loss)

    def state(self) -> dict[str, Any]:
        """Model and optimisers, to be stored."""
        return {
            "model": self.model.state_dict(),
            "muon": self._muon.state(),
            "adam": self._adam.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.model.load_state_dict(state["model"])
        self._muon.load(state["muon"])
        self._adam.load_state_dict(state["adam"])

    def _make_adam(self) -> torch.optim.AdamW:
        run, model = self._run, self.model
        embedding, head = model.model.language_model.embed_tokens.weight, model.lm_head.weight
        vectors = [p for p in model.others() if p is not embedding and p is not head]
        groups: list[dict[str, Any]] = [
            {
                "params": [embedding],
                "full": run.embedding_rate,
                "weight_decay": run.vocabulary_decay,
            },
            {"params": [head], "full": run.head_rate, "weight_decay": run.vocabulary_decay},
            {"params": vectors, "full": run.vector_rate, "weight_decay": 0.0},
        ]
        fused = self._device.type == "cuda"
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, fused=fused)

    def _mask(self, visibility: Visibility) -> Any:
        return visibility.blocks() if self._flex else visibility.dense()

    def _precision(self) -> AbstractContextManager[Any]:
        if self._device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _wait(self) -> None:
        """Let the device catch up to a few steps."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._under_way.append(event)
        if len(self._under_way) > AHEAD:
            self._under_way.popleft().synchronize()
