"""The op contract: every registered op has its row, and no name of ours is taken for a standard one."""

import dataclasses
import inspect
import re
from pathlib import Path

import onnx.defs
import pytest
import torch

from tblock import contract, ops
from tblock.contract import DOMAIN, PLUGINS, ROWS


def registered() -> dict[str, str]:
    """Name to schema of every torch op in our namespace."""
    schemas = torch._C._jit_get_all_schemas()
    return {s.name.split("::")[1]: str(s).split("::")[1] for s in schemas if s.name.startswith(f"{DOMAIN}::")}


def unrowed(names: set[str]) -> set[str]:
    return names - {row.name for row in ROWS}


def test_registered_ops_are_exactly_the_rows() -> None:
    names = set(registered())
    assert not unrowed(names)
    assert {row.name for row in ROWS} == names


def test_op_added_without_its_row_is_caught() -> None:
    library = torch.library.Library(DOMAIN, "FRAGMENT")
    try:
        library.define("stray(Tensor x) -> Tensor")
        assert unrowed(set(registered())) == {"stray"}
    finally:
        library._destroy()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_schema_in_torch_is_that_of_the_row(row: contract.OpRow) -> None:
    assert registered()[row.name].replace("SymInt", "int") == row.torch_schema


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_body_takes_the_rows_inputs_and_attributes_without_defaults(row: contract.OpRow) -> None:
    parameters = inspect.signature(getattr(ops, row.name)).parameters
    assert list(parameters) == [p.name for p in row.inputs] + [a.name for a in row.attributes]
    keyword_only = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert keyword_only == [a.name for a in row.attributes]
    assert all(p.default is inspect.Parameter.empty for p in parameters.values())


def taken_names(names: list[str]) -> set[str]:
    """Of these op_types those an ONNX standard op has in any domain; TensorRT's parser ignores the domain."""
    standard = {s.name.lower() for s in onnx.defs.get_all_schemas() if s.domain != DOMAIN}
    return {name for name in names if name.lower() in standard}


def test_onnx_names_are_prefixed_and_none_is_a_standard_one() -> None:
    names = [row.onnx_name for row in PLUGINS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("Tblock") for name in names)
    assert not taken_names(names)


@pytest.mark.parametrize("name", ["RMSNormalization", "Swish", "attention"])
def test_onnx_name_that_is_a_standard_one_is_caught(name: str) -> None:
    assert taken_names([name]) == {name}


def test_rows_share_no_name_and_start_at_version_one() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.version >= 1 and row.cast_policy == "float32" for row in ROWS)


def test_rows_with_a_kernel_say_how_it_works() -> None:
    for row in ROWS:
        assert (row.kind is not None) == (row in PLUGINS)
    for attribute in (a for row in PLUGINS for a in row.attributes):
        assert attribute.examples
        assert all(value > 0 or not attribute.positive for value in attribute.examples)


def misfits(rows: tuple[contract.OpRow, ...]) -> list[str]:
    """Rows that do not take an Add and then the op they say they fuse."""
    by_name = {row.name: row for row in rows}
    wrong = []
    for row in (r for r in rows if r.fuses is not None):
        fused = by_name[str(row.fuses)]
        summands, rest = row.inputs[:2], row.inputs[2:]
        fits = (
            [p.dims for p in summands] == [fused.inputs[0].dims] * 2 == [row.outputs[0].dims] * 2
            and rest == fused.inputs[1:]
            and row.outputs[1:] == fused.outputs
            and (row.attributes, row.kind, row.cast_policy)
            == (fused.attributes, fused.kind, fused.cast_policy)
        )
        wrong += [] if fits else [row.name]
    return wrong


def test_fusing_rows_are_an_add_and_the_op_they_name() -> None:
    assert misfits(ROWS) == []
    assert [row.fuses for row in ROWS if row.fuses] == ["rms_norm"]


@pytest.mark.parametrize(
    "change", [{"fuses": "swiglu"}, {"attributes": ()}, {"outputs": contract.ADD_RMS_NORM.outputs[::-1][:1]}]
)
def test_fusing_row_that_is_no_add_and_its_op_is_caught(change: dict) -> None:
    broken = dataclasses.replace(contract.ADD_RMS_NORM, **change)
    assert misfits(tuple(broken if row == contract.ADD_RMS_NORM else row for row in ROWS)) == ["add_rms_norm"]


def test_names_of_ops_stand_only_where_an_op_is_defined() -> None:
    """A new op is a row and three files: no other product file may know an op with a kernel by its name."""
    root = Path(contract.__file__).parents[1]
    allowed = {"tblock/contract.py", "tblock/ops.py", "export/onnx_bodies.py"}
    # The block calls the ops; the configuration's words for activations are the same English words.
    allowed |= {
        "tblock/norm.py",
        "tblock/ffn.py",
        "tblock/choices.py",
        "tblock/config_fields.py",
        "tblock/config.py",
        "tblock/checkpoints",
    }
    names = {name for row in PLUGINS for name in (row.name, str(row.onnx_name))}
    words = re.compile(rf"\b({'|'.join(names)})\b")
    found, where_defined = set(), set()
    for room in ("tblock", "export", "runtimes"):
        for path in (root / room).rglob("*"):
            name = path.relative_to(root).as_posix()
            if path.suffix not in (".py", ".cpp", ".h") or not words.search(path.read_text()):
                continue
            defines = name.startswith("export/plugins/kernels/") or any(name.startswith(a) for a in allowed)
            (where_defined if defines else found).add(name)
    assert not found
    assert {"tblock/contract.py", "export/plugins/kernels/swiglu.py"} <= where_defined
