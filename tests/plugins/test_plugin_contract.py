"""Names, versions, fields and indices: the same in `tblock.contract`, in C++ and in the kernels."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tblock.contract import DOMAIN, PLUGINS, Attribute, OpRow, Port
from tblock.errors import ExportError
from tblock.export.plugins import kernels, library
from tests.plugins.plugin_harness import Harness

pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")

from tblock.export.plugins import codegen, variants

_FIELD_TYPES = {"float": 1, "int": 5}  # nvinfer1::PluginFieldType::kFLOAT32, kINT32


def test_plugin_creators_match_contract(harness: Harness, plugin_library: Path) -> None:
    found = json.loads(harness.run(plugin_library, "describe").stdout)
    wanted = [
        {
            "name": row.onnx_name,
            "version": str(row.version),
            "namespace": DOMAIN,
            "interface": "PLUGIN CREATOR_V3ONE 1.0",
            "outputs": len(row.outputs),
            "fields": [{"name": a.name, "type": _FIELD_TYPES[a.kind], "length": 1} for a in row.attributes],
        }
        for row in PLUGINS
    ]
    assert found == wanted


def test_plugin_table_names_the_creators_that_cpp_registers(harness: Harness, plugin_library: Path) -> None:
    registered = json.loads(harness.run(plugin_library, "describe").stdout)
    told = library.read_table(plugin_library)["creators"]
    keys = ("name", "version", "namespace")
    assert [[r[k] for k in keys] for r in registered] == [[t[k] for k in keys] for t in told]
    assert [[f["name"] for f in r["fields"]] for r in registered] == [list(t["fields"]) for t in told]
    assert [r["outputs"] for r in registered] == [len(t["outputs"]) for t in told]


@pytest.mark.parametrize("row", PLUGINS, ids=lambda row: row.name)
def test_plugin_kernel_of_another_signature_is_refused(row: OpRow) -> None:
    names = getattr(kernels.module(row.name), row.name).arg_names
    variants.check_arguments(row, names)
    port = names.index(f"{row.inputs[1].name}_ptr")
    for broken in (names[1:], [names[port], *names[:port], *names[port + 1 :]], [*names, "more"]):
        with pytest.raises(ExportError, match=f"kernel {row.name} takes .*; the contract's row: "):
            variants.check_arguments(row, broken)


def test_plugin_callbacks_are_noexcept() -> None:
    folder = library.package_folder() / "trt-plugin"
    for header in folder.glob("*.h"):
        overrides = re.findall(r"[^;{}]*\boverride;", header.read_text())
        assert all("noexcept" in declaration for declaration in overrides), header
    declarations = re.findall(r"\nTBLOCK_EXPORT ([^{]*?)\n(?:try\n)?\{", (folder / "exports.cpp").read_text())
    assert len(declarations) == 5
    assert all(declaration.rstrip().endswith("noexcept") for declaration in declarations)


def test_plugin_cpp_repeats_no_name_of_the_contract() -> None:
    text = "".join(
        path.read_text() for path in sorted((library.package_folder() / "trt-plugin").glob("*.cpp"))
    )
    literals = set(re.findall(r'"([^"\n]*)"', text))
    words = {row.onnx_name for row in PLUGINS} | {row.name for row in PLUGINS}
    assert not words & set(re.findall(r"\w+", text))
    assert "Plugin" in re.findall(r"\w+", text)
    words.add(DOMAIN)
    words |= {x.name for row in PLUGINS for x in (*row.inputs, *row.outputs, *row.attributes)}
    assert not literals & words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (Port(name="x", dims="B S D"),)}, "rms_norm: port x: dims 'B S D'"),
        ({"inputs": (Port(name="x", dims="... D", optional=True),)}, "rms_norm: port x"),
        ({"outputs": (Port(name="y", dims="... E"),)}, "rms_norm: port y: dims '... E'"),
        ({"outputs": (Port(name="y", dims="D"),)}, "rms_norm: port y: dims 'D'"),
    ],
)
def test_plugin_header_row_beyond_cpp_is_refused(
    change: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (dataclasses.replace(PLUGINS[0], **change), *PLUGINS[1:])
    monkeypatch.setattr(codegen, "PLUGINS", rows)
    with pytest.raises(ExportError, match=re.escape(message)):
        codegen.contract_header()


def test_plugin_field_kinds_and_limits_come_from_the_row() -> None:
    header = codegen.contract_header()
    assert '{"eps", FieldKind::kFloat, true}, {"weight_offset", FieldKind::kFloat, false}' in header
    assert '"TblockRMSNorm", "1", OpKind::kRowwise, 65536, ' in header
    assert f'"TblockSwiGLU", "1", OpKind::kElementwise, {2**62}, ' in header
    mode = dataclasses.replace(
        PLUGINS[0], attributes=(Attribute(name="mode", kind="int", doc="", positive=True),)
    )
    assert '{"mode", FieldKind::kInt, true}' in "\n".join(codegen._row_lines(mode))
    assert variants.arguments(mode)["mode"] == "i32"


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
