"""Who runs the field cases: each runner turns a module and example inputs into a callable.

Adding a runtime is adding a row: its value exports the module (as `tblock.export` would) and returns a
function of tensors to a tensor. A twin patches the shipped code, so a row must export inside the call, not at
import.
"""

import tempfile
from collections.abc import Callable
from functools import partial

import onnx_ir
import onnxruntime
import torch
from torch import Tensor, nn

from tblock import BlockConfig
from tblock.export.onnx_model import OnnxGraph, lower
from tblock.export.request import OPSETS
from tblock.manifest import TensorSpec
from tblock.weights import DTYPES

Run = Callable[..., Tensor]

PLAIN = BlockConfig(dim=4, num_heads=1, ffn_dim=4)
"""Stands in for the config of a module that has none: it only chooses the form of attention."""


def eager(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """The module itself."""

    def run(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return module(*inputs)

    return run


def exported(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """The graph torch.export takes, composite ops kept: what every target is lowered from."""
    graph = torch.export.export(module.requires_grad_(False), examples).module()

    def run(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return graph(*inputs)

    return run


def compiled(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """torch.compile, as the `compile` runtime asks for it."""
    graph = torch.compile(module, dynamic=True)

    def run(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return graph(*inputs)

    return run


def aoti_package(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """The graph torch.export takes, through AOTInductor to a package and back."""
    program = torch.export.export(module.requires_grad_(False), examples)
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/m.pt2")
        package = torch._inductor.aoti_load_package(path)
    return lambda *inputs: package(*inputs)


def lowered(module: nn.Module, examples: tuple[Tensor, ...], opset: int) -> OnnxGraph:
    """The module as `tblock.export` writes it in ONNX, weights inside, sizes those of the examples.

    Args:
        module: gives its `config`, if it has one, to the choice of the attention's form.
        examples: positional inputs.
        opset: of the graph.
    """
    program = torch.export.export(module.requires_grad_(False), examples)
    names = {dtype: name for name, dtype in DTYPES.items()} | {torch.bool: "bool", torch.int64: "int64"}

    def spec(name: str, tensor: Tensor) -> TensorSpec:
        return TensorSpec(name=name, dims=tuple(tensor.shape), dtype=names[tensor.dtype])

    inputs = [spec(f"input{n}", tensor) for n, tensor in enumerate(examples)]
    with torch.no_grad():
        outputs = [spec("y", module(*examples))]
    return lower(program, [getattr(module, "config", PLAIN)], inputs, outputs, {}, opset)


def onnx_in_onnxruntime(module: nn.Module, examples: tuple[Tensor, ...], *, opset: int) -> Run:
    """The ONNX graph in ONNX Runtime, without and with its optimizer.

    The function returned runs both, asserts that they agree, and gives the first.
    """
    graph = onnx_ir.serde.serialize_model(lowered(module, examples, opset).model).SerializeToString()
    sessions = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        sessions.append(onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]))

    def run(*inputs: Tensor) -> Tensor:
        named = {f"input{n}": tensor.numpy() for n, tensor in enumerate(inputs)}
        plain, optimized = (torch.from_numpy(session.run(None, named)[0]) for session in sessions)
        assert torch.equal(plain == 0, optimized == 0)
        assert rows_off(optimized, plain).max() <= LIMIT
        return plain

    return run


IN_TORCH: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Run]] = {"eager": eager, "exported": exported}
"""Name to runner, torch only: for what tests/export already shows of the ONNX file."""

IN_ONNX = {f"onnx-{opset}": partial(onnx_in_onnxruntime, opset=opset) for opset in OPSETS}
"""Name to runner, by opset. There is none at 24: the exporter writes 18 and 23 (tests/export runs the
attention nodes alone in ONNX Runtime's opset 24 kernel)."""

RUNNERS = IN_TORCH | IN_ONNX

INDUCTOR = {"compile": compiled, "aoti": aoti_package}
"""Name to runner; each takes a C++ compiler and many seconds."""

LIMIT = 1e-5
"""Relative L2 distance per row in float32 ("about 1e-5" of the cases)."""


def rows_off(y: Tensor, wanted: Tensor) -> Tensor:
    """Relative L2 distance of each row of the last axis; a row wanted as 0 counts by its size."""
    size = wanted.double().norm(dim=-1)
    return (y.double() - wanted.double()).norm(dim=-1) / torch.where(size > 0, size, 1.0)
