"""The shaders of `metal_shaders/`: their text, their arguments, and the instances there are.

A `.metal` file is one text: what its kernels share, then each kernel behind a line `// kernel:`
and lines that name its inputs, outputs and template parameters, in order. MLX writes the signature
from these names, so Python and Metal can't disagree.

Importing this module imports no array library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from omnitide.errors import BackendError

FILES = ("decode_attention", "prefill_attention", "rotate", "append", "migrate")
"""Files of `metal_shaders/` with kernels in them."""

WRITING = ("append", "scatter_rows")
"""Kernels that are launched only where writing through is on."""

SHARED = "shared"
"""The file that goes before each."""

DTYPES = ("float16", "bfloat16", "float32")
"""What T may be."""

HEAD_DIMS = (64, 80, 96, 128)
"""What D may be."""

_KERNEL = re.compile(r"^// kernel: (\w+)\n((?:// (?:inputs|outputs|template): .*\n)+)", re.M)
_NAMES = re.compile(r"^// (inputs|outputs|template): (.*)$", re.M)


@dataclass(frozen=True, slots=True)
class MetalKernel:
    """An instance of a kernel, all that MLX needs to make it.

    Attributes:
        name: The kernel's.
        source: The body of the function; `#line` makes messages name the file's own line.
        header: What goes before the function.
        input_names, output_names: Arguments, in order.
        template: Name and value of each template parameter: int, bool or an MLX dtype.
    """

    name: str
    source: str
    header: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    template: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Shader:
    """A kernel as its file states it. Attributes as `MetalKernel`; `template` has names alone."""

    name: str
    source: str
    header: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    template: tuple[str, ...]

    def instance(self, **values: Any) -> MetalKernel:
        """The instance with these template values.

        Args:
            values: One for each name in `template`: T an MLX dtype, all others int.

        Raises:
            BackendError: There is no such instance; the message names those there are.
        """
        if set(values) != set(self.template):
            raise BackendError(
                f"[{self.name}] template parameters are {', '.join(self.template)}; got "
                f"{', '.join(values)}"
            )
        dtype = str(values["T"]).rpartition(".")[2]
        if dtype not in DTYPES:
            raise BackendError(
                f"[{self.name}] there are instances for {', '.join(DTYPES)}; got {dtype}"
            )
        if values["D"] not in HEAD_DIMS:
            raise BackendError(
                f"[{self.name}] there are instances for head sizes "
                f"{', '.join(map(str, HEAD_DIMS))}; got {values['D']}"
            )
        return MetalKernel(
            self.name,
            self.source,
            self.header,
            self.input_names,
            self.output_names,
            tuple((name, values[name]) for name in self.template),
        )


def read_shaders() -> dict[str, Shader]:
    """All kernels of `FILES`, by name."""
    return {shader.name: shader for file in FILES for shader in parse(file, text_of(file))}


def text_of(file: str) -> str:
    """The text of a file of `metal_shaders/`, named without its ending."""
    return (files("omnitide.metal_shaders") / f"{file}.metal").read_text(encoding="utf-8")


def parse(file: str, text: str) -> Iterator[Shader]:
    """The kernels of a file's text.

    Raises:
        BackendError: A kernel does not name its inputs, outputs and template parameters.
    """
    starts = list(_KERNEL.finditer(text))
    own = text[: starts[0].start()] if starts else text
    header = f'#line 1 "{SHARED}.metal"\n{text_of(SHARED)}#line 1 "{file}.metal"\n{own}'
    stops = [start.start() for start in starts[1:]] + [len(text)]
    for start, stop in zip(starts, stops, strict=True):
        names: dict[str, tuple[str, ...]] = {}
        for kind, words in _NAMES.findall(start.group(2)):
            names[kind] = names.get(kind, ()) + tuple(words.split())
        if set(names) != {"inputs", "outputs", "template"}:
            raise BackendError(
                f"[{start.group(1)}] {file}.metal must name inputs, outputs and template "
                f"parameters, got {', '.join(names)}"
            )
        line = text.count("\n", 0, start.end()) + 1
        yield Shader(
            start.group(1),
            f'\n#line {line} "{file}.metal"\n{text[start.end() : stop]}',
            header,
            names["inputs"],
            names["outputs"],
            names["template"],
        )
