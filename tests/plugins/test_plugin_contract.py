"""Names, versions, fields and indices: the same in `tblock.contract`, in C++ and in the kernels."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tblock.contract import DOMAIN, PLUGINS, Attribute, Port
from tblock.errors import ExportError
from tblock.export.plugins import codegen, library, variants
from tests.plugins.plugin_harness import Harness

_FLOAT32_FIELD = 1  # nvinfer1::PluginFieldType::kFLOAT32


def test_plugin_creators_match_contract(harness: Harness, plugin_library: Path) -> None:
    found = json.loads(harness.run(plugin_library, "describe").stdout)
    wanted = [
        {
            "name": row.onnx_name,
            "version": str(row.version),
            "namespace": DOMAIN,
            "interface": "PLUGIN CREATOR_V3ONE 1.0",
            "outputs": len(row.outputs),
            "fields": [{"name": a.name, "type": _FLOAT32_FIELD, "length": 1} for a in row.attributes],
        }
        for row in PLUGINS
    ]
    assert found == wanted


def test_plugin_header_indices_match_contract() -> None:
    header = codegen.contract_header()
    for row in PLUGINS:
        block = re.search(
            rf"namespace {row.name}\n\{{\n(.*?)\}} // namespace {row.name}\n", header, re.DOTALL
        )
        assert block
        found = [re.findall(r"(k\w+) = (\d+)", line) for line in re.findall(r"enum Index.*", block.group(1))]
        for entries, names in zip(found, (row.inputs, row.outputs, row.attributes), strict=True):
            assert entries == [
                *((codegen.constant(n.name), str(i)) for i, n in enumerate(names)),
                ("kCount", str(len(names))),
            ]


def test_plugin_kernel_arguments_follow_contract_order() -> None:
    kernels = pytest.importorskip(
        "tblock.export.plugins.kernels", reason="triton is not installed (extra: plugins)"
    )
    for row in PLUGINS:
        names = getattr(kernels, row.name).arg_names
        tensors = [name.removesuffix("_ptr") for name in names if name.endswith("_ptr")]
        assert tensors == [port.name for port in (*row.inputs, *row.outputs)]
        assert names[: len(tensors)] == [f"{t}_ptr" for t in tensors]
        scalars = [name for name in names if name in {a.name for a in row.attributes}]
        assert scalars == [a.name for a in row.attributes]


def test_plugin_cpp_repeats_no_name_of_the_contract() -> None:
    text = "".join(
        path.read_text() for path in sorted((library.package_folder() / "trt-plugin").glob("*.cpp"))
    )
    literals = set(re.findall(r'"([^"\n]*)"', text))
    words = {row.onnx_name for row in PLUGINS} | {row.name for row in PLUGINS} | {DOMAIN}
    words |= {x.name for row in PLUGINS for x in (*row.inputs, *row.outputs, *row.attributes)}
    assert not literals & words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attributes": (Attribute(name="mode", kind="int", doc=""),)}, "rms_norm.mode: kind int"),
        ({"inputs": (Port(name="x", dims="B S D"),)}, "port x: dims 'B S D'"),
        ({"inputs": (Port(name="x", dims="... D", optional=True),)}, "port x"),
    ],
)
def test_plugin_header_row_beyond_cpp_is_refused(
    change: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (dataclasses.replace(PLUGINS[0], **change), *PLUGINS[1:])
    monkeypatch.setattr(codegen, "PLUGINS", rows)
    with pytest.raises(ExportError, match=re.escape(message)):
        codegen.contract_header()


def test_plugin_header_without_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "PLUGINS", PLUGINS[:-1])
    with pytest.raises(ExportError, match="differ from kernels"):
        codegen.contract_header()


def test_plugin_selection_agrees_between_python_and_cpp(harness: Harness, plugin_library: Path) -> None:
    shapes = [
        (op, dtype, rows, width, alignment)
        for op in range(len(variants.OPS))
        for dtype in range(len(variants.DTYPES))
        for rows in (1, 4, 5, 2**33)
        for width in (
            1,
            7,
            127,
            128,
            129,
            512,
            576,
            1000,
            2048,
            2049,
            4096,
            16384,
            16385,
            65536,
            65537,
            2**40,
        )
        for alignment in (2, 4, 8, 16)
    ]
    lines = "\n".join(" ".join(map(str, shape)) for shape in shapes)
    found = [int(line) for line in harness.run(plugin_library, "select", stdin=lines).stdout.split()]
    names = list(variants.DTYPES)
    for (op, dtype, *shape), index in zip(shapes, found, strict=True):
        wanted = variants.select(variants.OPS[op], names[dtype], *shape)
        assert index == (-1 if wanted is None else wanted)
