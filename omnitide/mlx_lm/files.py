"""A prompt cache in one safetensors file: written whole, read only where it fits.

The file holds its version, the configuration that it needs (model, options, marks of the tokenizer)
and a hash of that. The caches of other layers, which the model made itself, are stored with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from omnitide.errors import CacheFileError, ConfigError, reason_of
from omnitide.mlx_lm.caches import caches_of, ledger_of
from omnitide.mlx_lm.encoding import VERSION, check_rows, decode_ledger
from omnitide.mlx_lm.fingerprint import differences, digest, model_configuration
from omnitide.mlx_lm.layer import BoundedKVCache
from omnitide.mlx_lm.listening import embeddings
from omnitide.mlx_lm.options import CacheOptions
from omnitide.mlx_lm.rows import Rows

FORMAT = "omnitide-prompt-cache"

_SHARED = ("cells", "pending", "written")
_ROWS = ("keys", "values", "written")


def save_prompt_cache(
    file: str | Path,
    cache: Sequence[Any],
    model: Any,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a prompt cache to a safetensors file, which appears under its name once it is whole.

    Args:
        file: Its place; `.safetensors` is added where it is missing.
        cache: As `make_prompt_cache` returned it.
        model: That it was made for.
        metadata: Words of your own, given back by `load_prompt_cache`.

    Returns:
        Where it lies.

    Raises:
        CacheFileError: It can't be written.
        ConfigError: The cache is another one or another model's, or metadata are no strings.
    """
    ledger = ledger_of(cache)
    ears = [getattr(embedding, "omnitide_heard", None) for embedding in embeddings(model)]
    if ledger.heard is not None and ledger.heard not in ears:
        raise ConfigError(
            f"[mlx-lm] the cache was made for another model than this {type(model).__module__}, or "
            "its embedding was replaced since; give save_prompt_cache the model it was made for"
        )
    words_given = metadata or {}
    if not all(isinstance(w, str) for pair in words_given.items() for w in pair):
        raise ConfigError(
            "[mlx-lm] metadata must be a dict of strings, got other values; make them strings"
        )
    version, words, *shared = ledger.encoded()
    arrays: dict[str, Any] = {f"ledger.{name}": a for name, a in zip(_SHARED, shared, strict=True)}
    layers: list[Any] = []
    for index, layer in enumerate(cache):
        if isinstance(layer, BoundedKVCache):
            parts = dict(zip(_ROWS, layer.state[:3], strict=True))
            held = {k: a for k, a in parts.items() if a is not None}
            arrays.update({f"layers.{index}.{k}": a for k, a in held.items()})
            layers.append({"kind": "bounded", "arrays": list(held)})
        else:
            kind = type(layer).__name__
            state = _pack(layer.state, f"layers.{index}.state", arrays)
            layers.append({"kind": kind, "state": state})
    configuration = {
        "model": model_configuration(model),
        "options": ledger.options.described(),
        "markers": ledger.markers.described(),
    }
    texts = {
        "format": FORMAT,
        "version": str(version),
        "configuration": json.dumps(configuration),
        "hash": digest(configuration),
        "ledger": words,
        "layers": json.dumps(layers),
        "metadata": json.dumps(words_given),
    }
    return _write(_named(file), arrays, texts)


def load_prompt_cache(
    file: str | Path, model: Any, *, tokenizer: Any = None, return_metadata: bool = False
) -> Any:
    """Read a prompt cache that `save_prompt_cache` wrote, with the options it was made with.

    Args:
        file: Its place; `.safetensors` is added where it is missing.
        model: The same model; it is looked at as `make_prompt_cache` does.
        tokenizer: The same tokenizer, if the cache was made with one.
        return_metadata: Whether to give back the words that were saved with it.

    Returns:
        The caches, or a pair of caches and metadata.

    Raises:
        CacheFileError: The file can't be read, is of another version or does not fit.
        ConfigError, BackendError: As `make_prompt_cache`.
    """
    path = _named(file)
    arrays, texts = _read(path)
    try:
        saved = json.loads(texts["configuration"])
        layers = list(json.loads(texts["layers"]))
        metadata = json.loads(texts["metadata"])
        options = CacheOptions.from_described(saved["options"])
        ledger_part = (
            VERSION,
            texts["ledger"],
            *(arrays[f"ledger.{name}"] for name in _SHARED),
        )
    except (ValueError, TypeError, KeyError, ConfigError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error
    if digest(saved) != texts.get("hash"):
        raise _broken(path, "its hash is not that of its configuration")
    caches = caches_of(model, options, tokenizer)
    ledger = ledger_of(caches)
    now = {
        "model": model_configuration(model),
        "options": saved["options"],
        "markers": ledger.markers.described(),
    }
    _check_fits(path, saved, now)
    if len(layers) != len(caches):
        raise _broken(path, f"{len(layers)} layers for a model of {len(caches)}")
    rows: list[Rows] = []
    for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
        bounded = isinstance(cache, BoundedKVCache)
        kind = "bounded" if bounded else type(cache).__name__
        try:
            if layer["kind"] != kind:
                raise _broken(path, f"layer {index} is {layer['kind']}, the model's is {kind}")
            if bounded:
                rows.append(Rows(**{k: arrays[f"layers.{index}.{k}"] for k in layer["arrays"]}))
            else:
                cache.state = _unpack(layer["state"], arrays)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _broken(path, f"layer {index}: {type(error).__name__}: {error}") from error
    state, pending = decode_ledger(ledger_part, tuple(rows))
    for index, (layer_rows, shape) in enumerate(zip(rows, ledger.shapes, strict=True)):
        check_rows(layer_rows, state.rows, len(state.written))
        if layer_rows.keys is not None and shape != (
            *(layer_rows.keys.shape[i] for i in (1, 3)),
            layer_rows.values.shape[3],
        ):
            raise _broken(path, f"keys of bounded layer {index} are not of the model's size")
    ledger.replace_all(state, pending)
    return (caches, metadata) if return_metadata else caches


def _check_fits(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    if digest(saved) == digest(now):
        return
    found = {where: (then, here) for where, then, here in differences(saved, now)}
    telling = ("markers.tokenizer", "model.class")  # the others follow from these
    where = next((key for key in telling if key in found), next(iter(found)))
    then, here = found[where]
    if where == "markers.tokenizer":
        advice = "give load_prompt_cache the tokenizer" if then else "leave out tokenizer"
        raise CacheFileError(
            f"[mlx-lm] {path} was saved {'with' if then else 'without'} a tokenizer; {advice}"
        )
    what = "another tokenizer" if where.startswith("markers") else "another model"
    raise CacheFileError(
        f"[mlx-lm] {path} was saved for {what}: {where} was {_short(then)}, is {_short(here)}; "
        "load it with what it was saved with"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _named(file: str | Path) -> Path:
    path = Path(file)
    return path if path.suffix == ".safetensors" else path.with_name(f"{path.name}.safetensors")


def _write(path: Path, arrays: dict[str, Any], texts: dict[str, str]) -> Path:
    part = path.with_name(f".{path.stem}.{os.getpid()}.safetensors")
    try:
        mx.save_safetensors(str(part), arrays, texts)
        part.replace(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise CacheFileError(f"[mlx-lm] can't write {path}: {reason_of(error)}") from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    if not path.is_file():
        raise CacheFileError(f"[mlx-lm] there is no prompt cache at {path}")
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, texts = loaded
        mx.eval(arrays)
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise CacheFileError(f"[mlx-lm] can't read {path}: {reason_of(error)}") from error
    if texts.get("format") != FORMAT:
        raise CacheFileError(
            f"[mlx-lm] {path} holds no prompt cache of omnitide; those of mlx-lm are read by "
            "mlx_lm.models.cache.load_prompt_cache"
        )
    if texts.get("version") != str(VERSION):
        raise CacheFileError(
            f"[mlx-lm] {path} has version {texts.get('version')}, this is version {VERSION}; "
            "make the cache anew"
        )
    return arrays, texts


def _pack(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """A state of mlx-lm's caches as JSON, its arrays put aside under names."""
    if isinstance(value, mx.array):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return [_pack(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise CacheFileError(
        f"[mlx-lm] a {type(value).__name__} in the state of a cache can't be saved"
    )


def _unpack(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, arrays) for v in value]
    return arrays[value["array"]] if "array" in value else value["value"]


def _broken(path: Path, what: str) -> CacheFileError:
    return CacheFileError(f"[mlx-lm] {path} does not hold together: {what}; make the cache anew")
