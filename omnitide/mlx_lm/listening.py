"""Which tokens a model is given: its embedding is listened to.

A cache of mlx-lm is handed keys and values, never tokens; but turns and paragraphs are made of
tokens. So the class of the model's embedding, of this one instance, is replaced by a subclass that
remembers the ids of the last call. Weights, names of parameters and results stay what they are.
"""

from __future__ import annotations

import threading
from typing import Any

import mlx.nn as nn


class Heard(threading.local):
    """Ids of the last call of an embedding, by thread. Threads that share a model don't mix."""

    ids: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Heard:
        return self  # a part of the model, which copies of a cache share

    def take(self, count: int) -> Any:
        """The ids of a pass of `count` tokens, shape (count,), and forget them.

        None if the pass was given embeddings instead, or a batch.
        """
        ids, self.ids = self.ids, None
        if ids is None or ids.size != count:
            return None
        return ids.reshape(-1)


def embeddings(model: Any) -> list[Any]:
    """The embeddings of a model, those that are listened to included."""
    kinds = (nn.Embedding, nn.QuantizedEmbedding)
    return [module for module in model.modules() if isinstance(module, kinds)]


def listen(embedding: Any) -> Heard:
    """Listen to an embedding from now on. Asked twice, the same ears answer."""
    heard = getattr(embedding, "omnitide_heard", None)
    if not isinstance(heard, Heard):
        heard = Heard()
        embedding.omnitide_heard = heard
        embedding.__class__ = _listening(type(embedding))
    return heard


def leave(embedding: Any) -> None:
    """Listen no longer."""
    if isinstance(getattr(embedding, "omnitide_heard", None), Heard):
        del embedding.omnitide_heard
        embedding.__class__ = type(embedding).__mro__[1]


def _listening(kind: type) -> type:
    def call(self: Any, ids: Any) -> Any:
        self.omnitide_heard.ids = ids
        return kind.__call__(self, ids)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
