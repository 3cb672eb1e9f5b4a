"""The text of the shaders and their table: what MLX is given, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import pytest

from omnitide.backends.mlx.shaders import FILES, HEAD_DIMS, SHARED, parse, read_shaders, text_of
from omnitide.errors import BackendError

SHADERS = read_shaders()
FOLDER = Path(__file__).parents[2] / "metal_shaders"
ORDER_ALONE = {"written", "read"}  # inputs that only order launches
TEMPLATES = {"D": 64, "GROUP": 1, "ROWS": 1}


def test_every_file_is_read() -> None:
    assert {path.stem for path in FOLDER.glob("*.metal")} == {*FILES, SHARED}
    assert set(SHADERS) == {
        "decode_attention",
        "decode_reduce",
        "prefill_attention",
        "rotate",
        "append",
        "gather_rows",
        "scatter_rows",
    }


@pytest.mark.parametrize("name", SHADERS)
def test_line_numbers_are_those_of_the_file(name: str) -> None:
    shader = SHADERS[name]
    blank, directive, first, *_ = shader.source.split("\n")
    found = re.fullmatch(r'#line (\d+) "(\w+)\.metal"', directive)
    assert blank == ""
    assert found is not None
    lines = (FOLDER / f"{found[2]}.metal").read_text(encoding="utf-8").splitlines()
    assert lines[int(found[1]) - 1] == first
    assert f"// kernel: {name}" in lines[: int(found[1]) - 1]
    assert shader.header.startswith('#line 1 "shared.metal"\n// What')
    assert f'\n#line 1 "{found[2]}.metal"\n{lines[0]}\n' in shader.header


@pytest.mark.parametrize("name", SHADERS)
def test_a_body_ends_where_the_next_kernel_starts(name: str) -> None:
    source = SHADERS[name].source
    assert "// kernel:" not in source
    assert source.count("{") == source.count("}")
    assert source.rstrip().endswith((";", "}"))


@pytest.mark.parametrize("name", SHADERS)
def test_arguments_are_used_and_documented(name: str) -> None:
    shader = SHADERS[name]
    for argument in (*shader.input_names, *shader.output_names, *shader.template):
        used = re.search(rf"\b{argument}(_shape)?\b", shader.source) is not None
        assert used or argument in ORDER_ALONE, argument
        assert re.search(rf"\b{argument}\b", shader.header), argument


@pytest.mark.parametrize("name", SHADERS)
def test_no_argument_is_part_of_an_attribute_or_of_another_shape(name: str) -> None:
    """MLX looks for names by substring: `k` would find the shape of `mask`."""
    shader = SHADERS[name]
    for asked in re.findall(r"\b(\w+)_(?:shape|strides|ndim)\b", shader.source):
        matching = [n for n in shader.input_names if asked.endswith(n)]
        assert matching == [asked]
    assert "grid_size" not in shader.source


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
@pytest.mark.parametrize("name", SHADERS)
def test_instances_of_every_head_size(name: str, dtype: mx.Dtype) -> None:
    shader = SHADERS[name]
    for head_dim in HEAD_DIMS:
        values = {"T": dtype, **TEMPLATES, "D": head_dim}
        kernel = shader.instance(**{parameter: values[parameter] for parameter in shader.template})
        assert [parameter for parameter, _ in kernel.template] == list(shader.template)
        assert dict(kernel.template)["D"] == head_dim
        assert (kernel.source, kernel.header) == (shader.source, shader.header)
        assert kernel.input_names == shader.input_names


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"T": mx.float16, "D": 72}, "head sizes 64, 80, 96, 128; got 72"),
        ({"T": mx.int32, "D": 64}, "for float16, bfloat16, float32; got int32"),
        ({"T": mx.float16}, "template parameters are T, D; got T"),
    ],
)
def test_what_there_is_no_instance_of(values: dict[str, object], words: str) -> None:
    with pytest.raises(BackendError, match=re.escape(words)):
        SHADERS["rotate"].instance(**values)


def test_a_kernel_without_outputs_is_refused() -> None:
    text = "// kernel: lost\n// inputs: x\n// template: T\n  x;\n"
    with pytest.raises(
        BackendError, match=r"\[lost\] own\.metal must name .* got inputs, template"
    ):
        list(parse("own", text))


def test_lists_may_go_on_over_several_lines() -> None:
    text = "// a\n// kernel: f\n// inputs: x y\n// inputs: z\n// outputs: o\n// template: T\n  x;\n"
    (shader,) = parse("own", text)
    assert shader.input_names == ("x", "y", "z")
    assert shader.source == '\n#line 7 "own.metal"\n  x;\n'
    assert shader.header == f'#line 1 "shared.metal"\n{text_of(SHARED)}#line 1 "own.metal"\n// a\n'
