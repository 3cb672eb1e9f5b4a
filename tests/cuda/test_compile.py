"""Every kernel instance compiles for every chip without spilling, and the check can fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from omnitide.backends.cuda import compile_check
from omnitide.backends.cuda.catalog import all_instances
from omnitide.backends.cuda.compile_check import Program, Report, check, check_text, programs
from omnitide.backends.cuda.compiled_logs import compile_or_recall
from omnitide.backends.cuda.instances import ARCHITECTURES, Instance
from omnitide.backends.cuda.nvrtc import Compiled, Nvrtc
from omnitide.backends.cuda.ptxas_log import Usage, read_usage, warnings
from omnitide.backends.cuda.quantized_matvec import static_bytes

if sys.platform != "linux":
    pytest.skip("NVRTC's wheels are for Linux", allow_module_level=True)

PROGRAMS = programs(all_instances())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.file}-{p.arch}")
def test_every_instance_compiles_and_nothing_spills(program: Program) -> None:
    report = check(program)
    assert not report.problems, "\n".join(report.problems)
    assert set(report.usages) == set(program.names)
    assert all(usage.registers > 0 for usage in report.usages.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_host_counts_the_shared_memory_that_instances_have_anyway(arch: str) -> None:
    """`quantized_matvec` fills a block's memory to the last bytes: none may be forgotten."""
    (program,) = (p for p in PROGRAMS if (p.file, p.arch) == ("quantized_matvec", arch))
    for name, usage in check(program).usages.items():
        room = int(name.rstrip(">").rpartition(", ")[2])
        assert usage.shared <= static_bytes(room)
        assert arch != "sm_90" or usage.shared == static_bytes(room)


GOOD = """
template <typename T>
__global__ void copy(T* to, const T* from) {
  __shared__ T kept[64];
  kept[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = kept[63 - threadIdx.x];
}
"""

# 200 values live at once, in the 64 registers that 1,024 threads leave each.
SPILLING = """
__global__ void __launch_bounds__(1024) crowded(float* x) {
  float held[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) held[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 200; ++i) x[i * 1024 + threadIdx.x] = held[199 - i] * held[i];
}
"""

SPILLING_FUNCTION = SPILLING.replace("__global__", "__device__ __noinline__").replace(
    "__launch_bounds__(1024)", ""
) + ("__global__ void __launch_bounds__(1024) calls(float* x) { crowded(x); crowded(x + 1); }\n")

WARNED = """
__global__ void careless(float* x) {
  int unused = 3;
  x[0] = 1.0f;
}
"""


def test_a_good_text_has_no_problems_and_its_usage_is_told() -> None:
    report = check_text(Program("copy", "sm_80", ("copy<float>", "copy<double>")), GOOD)
    assert not report.problems
    assert {name: usage.shared for name, usage in report.usages.items()} == {
        "copy<float>": 256,
        "copy<double>": 512,
    }


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_a_text_that_spills_is_a_problem(arch: str) -> None:
    report = check_text(Program("crowded", arch, ("crowded",)), SPILLING)
    assert report.usages["crowded"].spilled > 0
    assert any("crowded spills" in problem for problem in report.problems)


def test_a_function_of_its_own_that_spills_is_a_problem() -> None:
    report = check_text(Program("calls", "sm_90", ("calls",)), SPILLING_FUNCTION)
    assert any("spills" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GOOD.replace("kept[63", "lost[63"), "copy<float>"),
        (GOOD, "copy<nothing>"),
        (GOOD, "absent"),
        (GOOD.replace("T kept[64]", "T kept[1 << 20]"), "copy<float>"),
    ],
    ids=["wrong-text", "wrong-type", "wrong-name", "too-much-shared-memory"],
)
def test_a_text_that_does_not_compile_is_a_problem(text: str, name: str) -> None:
    report = check_text(Program("copy", "sm_80", (name,)), text)
    assert report.usages == {}
    assert "does not compile" in report.problems[0]


def test_a_warning_is_a_problem() -> None:
    report = check_text(Program("careless", "sm_80", ("careless",)), WARNED)
    assert any("never referenced" in problem for problem in report.problems)


def test_a_text_is_compiled_again_when_anything_changes(tmp_path: Path) -> None:
    compiled: list[tuple[str, ...]] = []

    class Counting(Nvrtc):
        build = "one"

        def compile(self, source: str, arch: str, names: Sequence[str]) -> Compiled:
            compiled.append((self.build, source, arch, *names))
            return Compiled(f"log {len(compiled)}", {"f": "_f"})

    nvrtc = Counting()
    asked = [("a", "sm_80", ("f",)), ("b", "sm_80", ("f",)), ("a", "sm_90", ("f",))]
    asked.append(("a", "sm_80", ("f", "g")))
    for _ in range(2):
        for text, arch, names in asked:
            compile_or_recall(nvrtc, text, arch, names, tmp_path)
    assert len(compiled) == len(set(compiled)) == 4
    assert compile_or_recall(nvrtc, *asked[1], tmp_path) == Compiled("log 2", {"f": "_f"})
    nvrtc.build = "another"
    assert compile_or_recall(nvrtc, *asked[1], tmp_path).log == "log 5"


def test_a_damaged_log_is_made_again(tmp_path: Path) -> None:
    first = compile_or_recall(Nvrtc(), GOOD, "sm_80", ["copy<float>"], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text('["half')
    again = compile_or_recall(Nvrtc(), GOOD, "sm_80", ["copy<float>"], tmp_path)
    assert again.symbols == first.symbols


def test_programs_join_the_instances_of_a_file_and_a_chip() -> None:
    made = programs([Instance("a", "x"), Instance("b", "y", "sm_90a"), Instance("a", "z")])
    assert made == (
        *(Program("a", arch, ("x", "z")) for arch in ARCHITECTURES),
        Program("b", "sm_90a", ("y",)),
    )


LOG = """
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function '_Z3oneIfEvPf' for 'sm_90'
ptxas info    : Function properties for _Z3oneIfEvPf
{indent}0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 46 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3twoPf' for 'sm_90'
ptxas info    : Function properties for _Z3twoPf
{indent}16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 16 bytes cumulative stack size
ptxas info    : Function properties for _Z6helperPf
{indent}8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


@pytest.mark.parametrize("indent", ["    ", "ptxas         .     "])
def test_the_log_is_read(indent: str) -> None:
    assert read_usage(LOG.format(indent=indent)) == {
        "_Z3oneIfEvPf": Usage(46, 1024, 0, 0),
        "_Z3twoPf": Usage(255, 0, 16, 20),
        "_Z6helperPf": Usage(0, 0, 8, 8),
    }


@pytest.mark.parametrize("lost", ["Used 255", "16 bytes stack frame"])
def test_a_log_that_does_not_tell_all_is_refused(lost: str) -> None:
    lines = [line for line in LOG.format(indent="    ").splitlines() if lost not in line]
    with pytest.raises(ValueError, match="_Z3twoPf"):
        read_usage("\n".join(lines))


def test_warnings_of_the_compiler_and_the_assembler_are_found() -> None:
    log = "kernel.cu(3): warning #177-D: never\nptxas warning : setmaxnreg ignored\nRemark: none\n"
    assert len(warnings(log)) == 2
    assert warnings(LOG) == ()


def test_the_table_has_a_row_an_instance_and_a_column_a_chip() -> None:
    reports = [
        Report(Program("a", "sm_120", ("f<1>",)), {"f<1>": Usage(40, 2048, 0, 0)}, ()),
        Report(Program("a", "sm_90a", ("g",)), {"g": Usage(168, 0, 8, 0)}, ()),
        Report(Program("a", "sm_80", ("f<1>",)), {"f<1>": Usage(32, 1024, 0, 0)}, ()),
    ]
    assert compile_check.table(reports).splitlines()[2:] == [
        "| file | instance | sm_80 | sm_90a | sm_120 |",
        "|---|---|---|---|---|",
        "| a | `f<1>` | 32, 1,024, 0 |  | 40, 2,048, 0 |",
        "| a | `g` |  | 168, 0, 8 |  |",
    ]


@pytest.mark.parametrize(
    ("name", "code", "told"), [("add<float, 4>", 0, ""), ("add<float, x>", 1, "does not compile")]
)
def test_the_command_writes_the_table_and_fails_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
    told: str,
) -> None:
    chosen = (Instance("elementwise", name, "sm_80"),)
    monkeypatch.setattr(compile_check, "all_instances", lambda: chosen)
    file = tmp_path / "kernels.md"
    assert compile_check.main(["--markdown", str(file)]) == code
    printed = capsys.readouterr()
    assert told in printed.err
    rows = file.read_text().splitlines()[2:]
    assert rows[0] == "| file | instance | sm_80 |"
    assert (f"`{name}`" in rows[-1]) is (code == 0)
    assert "programs: 1, " in printed.out
