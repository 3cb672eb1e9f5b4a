"""Rules of Metal's language that clang's C++ does not have, looked for in the text of a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

RULES = (
    (r"(?:[=(,{;&|?:]|\breturn)\s*\[(?!\[)", "Metal has no lambdas"),
    (r"\b(?:try|throw|catch)\b", "Metal has no exceptions"),
    (r"\b(?:new|delete)\b", "Metal has no heap"),
    (r"\bvirtual\b", "Metal has no virtual functions"),
    (r"\b(?:dynamic_cast|typeid)\b", "Metal has no types at run time"),
    (r"\bgoto\b", "Metal has no goto"),
    (r"\bdouble\b", "Metal has no double"),
    (r"\bthread_local\b", "Metal has no thread_local"),
    (r"\bstd\s*::", "Metal's library is in namespace metal"),
    (r"^\s*#\s*include\s*(?!<metal_)\S", "a kernel includes Metal's own headers only"),
    (r"\bmetal_cpu\b|\b__\w+", "names of the compiler or of the harness"),
)
FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(([^;{}]*)\)\s*(?:const\s*)?\{")
NOT_FUNCTIONS = {"if", "for", "while", "switch", "return", "catch"}
SPACES = re.compile(r"\b(?:device|threadgroup|constant|thread)\b")


def rule_breaks(source: str) -> list[str]:
    """What Metal would refuse, as "line: rule", in the order of lines."""
    text = _without_comments(source)
    found = [
        (_line(text, match.end()), rule)
        for pattern, rule in RULES
        for match in re.finditer(pattern, text, re.M)
    ]
    functions = list(_functions(text))
    found += [
        (line, f"pointer without address space: {parameter.strip()}")
        for line, _, parameters, _ in functions
        for parameter in parameters.split(",")
        if re.search(r"[*&]", parameter) and not SPACES.search(parameter)
    ]
    calls: dict[str, set[str]] = {}
    for _, name, _, body in functions:
        calls.setdefault(name, set()).update(
            re.findall(r"\b([A-Za-z_]\w*)\s*(?:<[^;{}()]*>\s*)?\(", body)
        )
    found += [
        (line, f"Metal has no recursion: {name} calls itself")
        for line, name, _, _ in functions
        if name in _reached(calls, name)
    ]
    return [f"line {line}: {rule}" for line, rule in sorted(set(found))]


def _without_comments(text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def _functions(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Line, name, parameters and body of each function."""
    for found in FUNCTION.finditer(text):
        if found[1] in NOT_FUNCTIONS:
            continue
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield _line(text, found.start()), found[1], found[2], text[found.end() : at]


def _reached(calls: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = list(calls[start])
    while ahead:
        name = ahead.pop()
        if name in calls and name not in seen:
            seen.add(name)
            ahead += calls[name]
    return seen


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
