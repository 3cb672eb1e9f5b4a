"""What is done with a kernel's text before clang sees it, and where clang is looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metal_cpu_harness import availability
from metal_cpu_harness.lint import rule_breaks
from metal_cpu_harness.translate import translate

GENERATED = """#include <metal_stdlib>
using namespace metal;
template <typename T, int D>
[[kernel]] void custom_kernel_some(
  const device float16_t* q [[buffer(0)]],
  const constant int* q_shape [[buffer(1)]],
  const constant float& scale [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint3 thread_position_in_grid [[thread_position_in_grid]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]]) {
BODY
}

template [[host_name("custom_kernel_some")]] [[kernel]] decltype(INSTANCE) INSTANCE;
""".replace("INSTANCE", "custom_kernel_some<half, 64>")


def translated(body: str) -> str:
    return translate(GENERATED.replace("BODY", body)).text.split("{\n", 1)[1]


REWRITTEN = {
    "threadgroup T x[4 * D];": "threadgroup T (&x)[4 * D] = "
    'metal_cpu::threadgroup_array<threadgroup T[4 * D]>("x");',
    "threadgroup float s[2][D + 1];": "threadgroup float (&s)[2][D + 1] = "
    'metal_cpu::threadgroup_array<threadgroup float[2][D + 1]>("s");',
    "threadgroup vec<T, 4> v[2];": "threadgroup vec<T, 4> (&v)[2] = "
    'metal_cpu::threadgroup_array<threadgroup vec<T, 4>[2]>("v");',
    "threadgroup float one;": "threadgroup float (&one) = "
    'metal_cpu::threadgroup_array<threadgroup float>("one");',
    "threadgroup float* p = x;": "threadgroup float* p = x;",
    "1.0 + 2. - .5 * 1e-3 + 1.5e3": "1.0f + 2.f - .5f * 1e-3f + 1.5e3f",
    "1.0f + 2.5h + 3 + 0x1e5 + v.x2 + a1.y": "1.0f + 2.5f16 + 3 + 0x1e5 + v.x2 + a1.y",
    "float4(1, 2, 3, 4) + vec<T, 4>(x)": "metal_cpu::make_vector<float4>(1, 2, 3, 4) + "
    "metal_cpu::make_vector<vec<T, 4>>(x)",
    "float4 f; float2x4(1)": "float4 f; float2x4(1)",
    "#pragma clang loop unroll(full)": "",
}


@pytest.mark.parametrize(("body", "want"), REWRITTEN.items(), ids=REWRITTEN.keys())
def test_lines_are_rewritten_in_place(body: str, want: str) -> None:
    lines = translated(f"first;\n\n{body}\n\nlast;").split("\n")
    assert lines[:5] == ["first;", "", want, "", "last;"]


def test_the_entry_passes_what_the_signature_asks_for() -> None:
    made = translate(GENERATED)
    assert made.buffers == ("q", "q_shape", "scale", "out")
    call = (
        "custom_kernel_some<half, 64>((const device float16_t*)b[0], (const constant int*)b[1], "
        "*(const constant float*)b[2], (device float*)b[3], "
        "uint3{t.position.x, t.position.y, t.position.z}, t.index % 32);"
    )
    assert call in made.text


def test_an_attribute_that_is_not_known_is_named() -> None:
    source = GENERATED.replace("thread_index_in_simdgroup", "thread_index_in_quadgroup")
    with pytest.raises(ValueError, match="attribute thread_index_in_quadgroup is not known"):
        translate(source)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("auto f = [](float x) { return x; };", "no lambdas"),
        ("use(3, [=] { return 1; });", "no lambdas"),
        ("try { f(); } catch (...) {}", "no exceptions"),
        ("float* p = new float[3];", "no heap"),
        ("struct S { virtual void f(); };", "no virtual functions"),
        ("goto end;", "no goto"),
        ("double x;", "no double"),
        ("#include <cmath>", "Metal's own headers only"),
        ("float f(float* x) { return *x; }", "without address space: float* x"),
        ("float f(thread float* x, const float& y) { return y; }", "address space: const float& y"),
        ("int f(int n) { return n ? f(n - 1) : 0; }", "no recursion: f calls itself"),
        (
            "int g(int n);\nint f(int n) { return g(n); }\nint g(int n) { return f(n); }",
            "recursion",
        ),
        ("template <int N> int f() { return f<N - 1>(); }", "recursion"),
        ("__builtin_trap();", "names of the compiler"),
    ],
)
def test_rules_of_the_language(text: str, rule: str) -> None:
    (broken, *_) = rule_breaks("// two lines\n\n" + text)
    assert rule in broken
    assert broken.startswith(("line 3: ", "line 4: "))


@pytest.mark.parametrize(
    "text",
    [
        "x[i] = y[j]; float z[2] = {a[0], b[1]}; f(x[[0]]);",
        "// a double, a lambda [&] { } and try it\n/* new\n goto */ int x;",
        "float f(const device float* x, thread float& y) { return f2(x) * y; }",
        "METAL_FUNC T f(T x) { return x & 1 ? x * 2 : g(x); }\nT g(T x) { return x; }",
        "if (f(a * b)) { while (g(a & b)) { for (int i = 0; i < n; ++i) { } } }",
        "#include <metal_simdgroup_matrix>\n[[max_total_threads_per_threadgroup(64)]] int x;",
        "renew(); retry(); newest = deleted;",
    ],
)
def test_what_is_metal_passes(text: str) -> None:
    assert rule_breaks(text) == []


@pytest.fixture
def looked_for_anew() -> Any:
    availability.find_clang.cache_clear()
    yield
    availability.find_clang.cache_clear()


@pytest.mark.usefixtures("looked_for_anew")
@pytest.mark.parametrize("says", ["clang version 16.0.6", "g++ (GCC) 14.2.0", ""])
def test_a_compiler_that_does_not_serve_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    fake = tmp_path / "clang++"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("OMNITIDE_CLANG", str(fake))
    monkeypatch.setattr(availability.sys, "platform", "linux")
    reason = availability.why_not()
    assert reason is not None
    assert "needs clang 17 or newer: apt-get install clang-19" in reason


@pytest.mark.usefixtures("looked_for_anew")
def test_no_clang_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNITIDE_CLANG", "/nowhere/clang++")
    monkeypatch.setattr(availability.sys, "platform", "linux")
    assert "OMNITIDE_CLANG" in str(availability.why_not())


def test_a_mac_is_told_that_it_has_the_real_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability.sys, "platform", "darwin")
    assert "a Mac runs the kernels on its GPU" in str(availability.why_not())
