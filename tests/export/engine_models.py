"""ONNX files for the engine tests: exported blocks, made once per session, and the smallest graphs that are wrong."""

import functools
import shutil
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tblock import Block, BlockConfig
from tblock.export import capture, onnx_model, weights_file
from tblock.export.engine_options import Profile
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.weights import DTYPES, fill, random_block_weights

RANGES = {"B": Range(1, 1, 4), "S": Range(1, 16, 32)}
"""Case C13, without a past."""

DIM = 64


@functools.cache
def _root() -> Path:
    return Path(tempfile.mkdtemp(prefix="tblock-test-engines-"))


@functools.cache
def exported(
    *, head_dim: int = 16, dtype: str = "float32", opset: int = 23, masked: bool = False, norm: str = "rmsnorm"
) -> Path:
    """The default block of CASES.md with another head width, as a folder with model.onnx and its weights."""
    config = BlockConfig(
        dim=DIM, num_heads=4, num_kv_heads=2, head_dim=head_dim, ffn_dim=256, max_position=64, norm=norm
    )
    block = Block(config)
    fill(block, random_block_weights(config, 0), dtype=DTYPES[dtype], where="test")
    inputs = [TensorSpec(name="x", dims=("B", "S", DIM), dtype=dtype)]
    if masked:
        inputs.append(TensorSpec(name="padding_mask", dims=("B", "S"), dtype="bool"))
    outputs = [TensorSpec(name="y", dims=("B", "S", DIM), dtype=dtype)]
    folder = _root() / f"{head_dim}-{dtype}-{opset}-{masked}-{norm}"
    folder.mkdir()
    program = capture.capture(block, [config], inputs, RANGES)
    slices = weights_file.write_weights(block.state_dict(), folder / "weights.safetensors")
    graph = onnx_model.lower(program, [config], inputs, outputs, slices, opset)
    onnx_model.write(graph, folder / "model.onnx")
    return folder


def copied(source: Path, folder: Path) -> Path:
    """A copy of an exported block that a test may damage; the path of its model.onnx."""
    for file in source.iterdir():
        shutil.copy(file, folder)
    return folder / "model.onnx"


def profile(*, masked: bool = False) -> Profile:
    """The ranges above."""
    low, opt, high = ((getattr(RANGES["B"], e), getattr(RANGES["S"], e)) for e in ("min", "opt", "max"))
    shapes = {"x": ((*low, DIM), (*opt, DIM), (*high, DIM))}
    return {**shapes, "padding_mask": (low, opt, high)} if masked else shapes


def small(
    path: Path,
    nodes: list[onnx.NodeProto],
    *,
    dtype: int = TensorProto.FLOAT,
    inputs: tuple[str, ...] = ("x",),
    opset: int = 23,
    ir_version: int = 10,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> Path:
    """A graph from `inputs`, each [B, 8], to `y`, written to `path`."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, dtype, ["B", 8]) for name in inputs],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tblock", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions)
    path.write_bytes(model.SerializeToString())
    return path


SMALL_PROFILE: Profile = {"x": ((1, 8), (2, 8), (4, 8))}
