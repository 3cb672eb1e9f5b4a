"""MLX's generated source as C++: rewritten line by line, with an entry point for one thread.

No line is added or removed before the entry point, so that clang and the runtime name the lines of
the Metal source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNEL = re.compile(r"\[\[kernel\]\] void (custom_kernel_\w+)\(")
PARAMETER = re.compile(r"^\s*(.+?) ?(\w+) \[\[(\w+)(?:\(\d+\))?\]\]", re.M)
INSTANCE = re.compile(r"^template \[\[host_name.*decltype\((.*?)\).*$", re.M)
ARRAY = re.compile(r"\bthreadgroup\s+([\w:]+(?:\s*<[^;<>]*>)?)\s+(\w+)\s*((?:\[[^;\]]*\]\s*)*);")
NUMBER = re.compile(
    r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)([a-zA-Z_]\w*)?"
)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>.*$", re.M)
UNROLL = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+(?:clang[ \t]+loop[ \t]+)?unroll.*$", re.M)
"""A hint that changes nothing here but makes clang three times slower."""
VECTOR = re.compile(
    r"\b(vec\s*<[^<>;()]*>|(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234])\s*\("
)
VECTOR_MADE = r"metal_cpu::make_vector<\1>("
SUFFIXES = {"": "f", "h": "f16", "H": "f16"}

TRIPLES = {
    "thread_position_in_grid": "position",
    "thread_position_in_threadgroup": "local",
    "threadgroup_position_in_grid": "group",
    "threadgroups_per_grid": "num_groups",
    "threads_per_grid": "grid",
    "grid_size": "grid",
    "threads_per_threadgroup": "group_size",
    "dispatch_threads_per_threadgroup": "asked_group_size",
}
SINGLES = {
    "thread_index_in_threadgroup": "t.index",
    "thread_index_in_simdgroup": "t.index % 32",
    "simdgroup_index_in_threadgroup": "t.index / 32",
    "simdgroups_per_threadgroup": "(size(t.group_size) + 31) / 32",
    "dispatch_simdgroups_per_threadgroup": "(size(t.asked_group_size) + 31) / 32",
    "threads_per_simdgroup": "32",
    "thread_execution_width": "32",
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A kernel as C++.

    Attributes:
        text: The translation unit.
        name: The kernel's name.
        buffers: Names of the buffers it takes, in the order of their indices.
    """

    text: str
    name: str
    buffers: tuple[str, ...]


def translate(source: str) -> Translated:
    """Rewrite generated source for clang.

    Raises:
        ValueError: An attribute of the kernel is not known here.
    """
    begin = KERNEL.search(source)
    if begin is None:
        raise ValueError("[metal_cpu] the source holds no kernel of MLX's")
    name = begin[1]
    body = source.index(") {", begin.end())
    parameters = PARAMETER.findall(source[begin.end() : body + 1])
    instance = INSTANCE.search(source)
    called = instance[1] if instance else name
    buffers = tuple(name for _, name, attribute in parameters if attribute == "buffer")
    arguments, index = [], 0
    for kind, _, attribute in parameters:
        if attribute == "buffer":
            pointer = f"({kind.replace('&', '*')})b[{index}]"
            arguments.append(f"*{pointer}" if kind.endswith("&") else pointer)
            index += 1
        else:
            arguments.append(_attribute(attribute))
    kernel = INSTANCE.sub("", source[body:])
    kernel = ARRAY.sub(_threadgroup_array, VECTOR.sub(VECTOR_MADE, kernel))
    text = INCLUDE.sub("", VECTOR.sub(VECTOR_MADE, source[:body]) + kernel)
    text = UNROLL.sub("", text)
    text = NUMBER.sub(_number, text)
    return Translated(
        f'#include "metal.h"\n#line 1 "{name}.metal"\n{text}\n{_entry(called, arguments)}',
        name,
        buffers,
    )


def _attribute(name: str) -> str:
    if name in TRIPLES:
        field = TRIPLES[name]
        return f"uint3{{t.{field}.x, t.{field}.y, t.{field}.z}}"
    if name in SINGLES:
        return SINGLES[name]
    raise ValueError(f"[metal_cpu] attribute {name} is not known here; add it to translate.py")


def _threadgroup_array(found: re.Match[str]) -> str:
    element, name, extents = found.groups()
    array = f"threadgroup {element}{extents}"
    declared = f"threadgroup {element} (&{name}){extents}"
    return f'{declared} = metal_cpu::threadgroup_array<{array}>("{name}");'


def _number(found: re.Match[str]) -> str:
    """Metal has no double: a literal without a suffix is a float."""
    suffix = found[2] or ""
    return found[1] + SUFFIXES.get(suffix, suffix)


def _entry(kernel: str, arguments: list[str]) -> str:
    return f"""#line 1 "entry"

namespace metal_cpu {{
static uint32_t size(const Triple& t) {{ return t.x * t.y * t.z; }}
METAL_CPU_UNSEEN void run_thread(void* const* b, const Thread& t) {{
  {kernel}({", ".join(arguments)});
}}
}}
"""
