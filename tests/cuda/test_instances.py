"""Names of kernel instances and their texts, and whether the catalog misses a kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from omnitide import pages
from omnitide.backends.cuda import catalog, instances
from omnitide.backends.cuda.catalog import all_instances
from omnitide.backends.cuda.instances import Instance

KERNELS = Path(instances.__file__).parent / "kernels"
FILES = sorted(path.stem for path in KERNELS.glob("*.cu"))


def kernels_of(file: str) -> set[str]:
    """Names of the __global__ functions of a file."""
    attributes = r"(?:\s+__(?:launch_bounds|cluster_dims)__\([^)]*\))*"
    kernel = rf"__global__{attributes}\s+void{attributes}\s+(\w+)\s*\("
    return set(re.findall(kernel, Instance(file, "").source))


@pytest.mark.parametrize("file", FILES)
def test_the_catalog_names_every_kernel_of_every_file(file: str) -> None:
    listed = {i.name.partition("<")[0] for i in all_instances() if i.file == file}
    assert listed == kernels_of(file)
    assert listed


def test_the_catalog_names_nothing_twice_and_no_other_file() -> None:
    found = all_instances()
    assert len(set(found)) == len(found)
    assert {instance.file for instance in found} == set(FILES)


def test_the_catalog_names_every_module_that_lists_instances() -> None:
    folder = Path(instances.__file__).parent
    listing = {p.stem for p in folder.glob("*.py") if "\ndef instances() ->" in p.read_text()}
    assert {module.__name__.rpartition(".")[2] for module in catalog.HOST_MODULES} == listing


def test_instances_are_listed_without_cupy() -> None:
    code = (
        "import sys; sys.modules['cupy'] = None; "
        "from omnitide.backends.cuda.catalog import all_instances; print(len(all_instances()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(all_instances())


@pytest.mark.parametrize("file", FILES)
def test_a_source_holds_each_of_our_headers_once(file: str) -> None:
    source = Instance(file, "any").source
    assert '#include "' not in source
    # A header of ours is pasted with its first line; types.cuh comes with most of the others.
    for header in KERNELS.glob("*.cuh"):
        first = header.read_text(encoding="utf-8").splitlines()[0]
        assert source.count(first) <= 1
    own = (KERNELS / f"{file}.cu").read_text(encoding="utf-8")
    for header in re.findall(r'#include "(\w+\.cuh)"', own):
        assert (KERNELS / header).read_text(encoding="utf-8").splitlines()[0] in source


def test_a_source_keeps_what_is_not_ours_and_all_of_the_file() -> None:
    source = Instance("append", "any").source
    assert "#include <cuda_bf16.h>" in source
    own = (KERNELS / "append.cu").read_text(encoding="utf-8")
    assert source.startswith(own.splitlines()[0])
    assert source.endswith(own[-200:])


def test_sizes_of_pages_are_those_of_the_core() -> None:
    text = (KERNELS / "cells.cuh").read_text(encoding="utf-8")
    sizes = {name: int(size) for name, size in re.findall(r"int (\w+_SIZE) = (\d+);", text)}
    assert sizes == {"PAGE_SIZE": pages.PAGE_SIZE, "SUBBLOCK_SIZE": pages.SUBBLOCK_SIZE}
