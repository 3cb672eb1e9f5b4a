"""What lmms-eval's entry point names.

Apart from the adapter: lmms-eval asks for it while it is still being imported.
"""

from __future__ import annotations

from typing import Any


def lmms_eval_manifest() -> Any:
    """The `ModelManifest` under which lmms-eval finds OmniTide."""
    from lmms_eval.models.registry_v2 import ModelManifest

    adapter = f"{__package__}.lmms_eval.OmniTide"
    return ModelManifest(model_id="omnitide", chat_class_path=adapter)
