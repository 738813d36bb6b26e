"""ONNX files for the engine tests: exported blocks, made once per session, and the smallest wrong graphs."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tblock import Block, BlockConfig
from tblock.export import capture, onnx_model, weights_file
from tblock.export.engine.options import EngineOptions, EngineRequest, Profile
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.runtimes.verdict import Verdict, judge
from tblock.weights import DTYPES, fill, random_block_weights

RANGES = {"B": Range(1, 1, 4), "S": Range(1, 16, 32)}
"""Declared sizes; there is no past."""

DIM = 64

FUSED = {"TblockAddRMSNorm": 1, "TblockRMSNorm": 1, "TblockSwiGLU": 1}
"""Fused nodes of the default block."""

EPS = 1e-6
"""Of the default block's norms."""


@functools.cache
def _root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tblock-test-engines-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _block(head_dim: int, dtype: str, norm: str = "rmsnorm") -> tuple[BlockConfig, Block]:
    config = BlockConfig(
        dim=DIM,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        ffn_dim=256,
        max_position=64,
        norm=norm,
        norm_eps=EPS,
    )
    block = Block(config)
    fill(block, random_block_weights(config, 0), dtype=DTYPES[dtype], where="test")
    return config, block


def verdict_of(path: Path, dtype: str, batch: int, seq: int) -> Verdict:
    """Run an export of the default block in stock ONNX Runtime and judge it against float64."""
    import onnxruntime

    _, block = _block(16, dtype)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((batch, seq, DIM))).to(DTYPES[dtype])
    with torch.no_grad():
        eager, reference = block(x).numpy(), block(x.double()).numpy()
    (output,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x.numpy()})
    return judge(output=output, reference=reference, eager=eager, inputs=x.numpy(), dtype=dtype)


def exported(
    *,
    head_dim: int = 16,
    dtype: str = "float32",
    opset: int = 23,
    masked: bool = False,
    norm: str = "rmsnorm",
) -> Path:
    """The default block with another head width, as a folder with model.onnx and its weights."""
    folder = _root() / f"{head_dim}-{dtype}-{opset}-{masked}-{norm}"
    if not folder.is_dir():
        folder.mkdir()
        export_into(folder, head_dim=head_dim, dtype=dtype, opset=opset, masked=masked, norm=norm)
    return folder


def export_into(
    folder: Path,
    *,
    head_dim: int = 16,
    dtype: str,
    opset: int = 23,
    masked: bool = False,
    norm: str = "rmsnorm",
) -> Path:
    """The same into a folder that exists, whatever was exported before; the path of model.onnx."""
    config, block = _block(head_dim, dtype, norm)
    inputs = [TensorSpec(name="x", dims=("B", "S", DIM), dtype=dtype)]
    if masked:
        inputs.append(TensorSpec(name="padding_mask", dims=("B", "S"), dtype="bool"))
    outputs = [TensorSpec(name="y", dims=("B", "S", DIM), dtype=dtype)]
    program = capture.capture(block, [config], inputs, RANGES)
    slices = weights_file.write_weights(block.state_dict(), folder / "weights.safetensors")
    graph = onnx_model.lower(program, [config], inputs, outputs, slices, opset)
    onnx_model.write(graph, folder / "model.onnx")
    return folder / "model.onnx"


def exported_unfused(folder: Path, *, dtype: str, opset: int) -> Path:
    """The default block before its residual Add is fused into the norm; the path of its model.onnx."""

    class Nothing:
        def __init__(self) -> None:
            self.fired: dict[str, int] = {}

        def __call__(self, model: object) -> None:
            """Leave the model as it is."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_model, "FuseAddPass", Nothing)
        return export_into(folder, dtype=dtype, opset=opset)


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


def request(onnx: Path, output: Path, **changes: Any) -> EngineRequest:
    """A build of the default block, as it travels to the builder process."""
    fields: dict[str, Any] = {
        "flavour": "tensorrt-rtx",
        "profiles": (profile(),),
        "options": EngineOptions(progress=False),
        "opset": 23,
        "ir_version": 10,
        "fused": {"TblockRMSNorm": 2},
        "fused_nodes": (),
        "plugin_versions": {},
        "data": (str(onnx.with_name("weights.safetensors")),),
        "fusion_reason": "test",
    }
    return EngineRequest(onnx=str(onnx), output=str(output), **{**fields, **changes})


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
        [helper.make_tensor_value_info("y", dtype, ["B", "out"])],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tblock", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions)
    path.write_bytes(model.SerializeToString())
    return path


SMALL_PROFILE: Profile = {"x": ((1, 8), (2, 8), (4, 8))}
