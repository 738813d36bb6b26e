"""Lowering to ONNX: one portable graph with fused ops as nodes with function bodies, weights outside.

The graph requires a program from `tblock.export.capture`; it ensures named inputs and outputs with symbolic
axes, the opset asked, no double tensor, weights that point into the artifact's `weights.safetensors`, and a
full checker pass.
"""

import contextlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch.export import ExportedProgram

from tblock.checkpoints.safetensors_source import Entry
from tblock.config import BlockConfig
from tblock.contract import DOMAIN, PLUGINS
from tblock.errors import ExportError, reason
from tblock.export import attention_form, onnx_bodies
from tblock.export.fuse_add_pass import FuseAddPass
from tblock.export.onnx_translation import translation_table
from tblock.export.standard_graph import standard_graph
from tblock.export.weights_file import as_external
from tblock.manifest import GRAPH, STANDARD, TensorSpec

IR_VERSION = 10
"""Of the file. ONNX Runtime 1.20 and TensorRT 10.5 read 10; function overloads need it."""


@dataclass(frozen=True, kw_only=True)
class OnnxGraph:
    """A lowered graph and what the report says of it."""

    model: ir.Model
    standard: onnx.ModelProto
    opset: int
    attention: attention_form.AttentionForm
    softmax_reason: str
    fused: dict[str, int]
    passes: dict[str, int]


def lower(
    program: ExportedProgram,
    configs: Sequence[BlockConfig],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: dict[str, Entry],
    opset: int,
) -> OnnxGraph:
    """Translate a captured program.

    Args:
        program: of `capture`.
        configs: of its blocks.
        inputs, outputs: names and dims of the graph's ends, in order.
        weights: where each parameter lies in the weights file.
        opset: one of `tblock.export.request.OPSETS`.

    Raises:
        ExportError: torch.onnx failed, or the graph misses a promise above.
    """
    form = attention_form.choose(tuple(configs), opset, outputs[0].dtype)
    with _quiet():
        try:
            translated = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=opset,
                optimize=False,
                custom_translation_table=translation_table(opset, form.name),
                verbose=False,
            )
        except Exception as error:
            raise ExportError(f"onnx: torch.onnx.export failed: {reason(error)}") from error
    assert translated is not None
    model = translated.model
    _name_ends(model, inputs, outputs)
    _store_weights_outside(model, weights)
    _clean(model)
    fuse_add = FuseAddPass()
    fuse_add(model)
    fused = Counter(node.op_type for node in model.graph if node.domain == DOMAIN)
    for proto in onnx_bodies.functions(set(fused), opset):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "tblock", ""
    _promise(model, opset)
    standard, unstated = standard_graph(ir.to_proto(model))
    return OnnxGraph(
        model=model,
        standard=standard,
        opset=opset,
        attention=form,
        softmax_reason=_softmax_reason(form.name, unstated),
        fused=dict(sorted(fused.items())),
        passes=fuse_add.fired,
    )


def _softmax_reason(form: str, unstated: int) -> str:
    if unstated:
        return (
            f"{STANDARD} states it (softmax_precision) for runtimes that honour it; {GRAPH} cannot, since "
            "TensorRT's importer refuses that attribute: there it is the runtime's choice"
        )
    return "attention is spelled out in it" if form == "decomposed" else "the block's own precision"


def write(graph: OnnxGraph, path: Path) -> None:
    """Write the graph beside the weights file it points into, and check it fully.

    Raises:
        ExportError: the checker refuses the file.
    """
    ir.save(graph.model, path)
    _check(path)


def write_standard(graph: OnnxGraph, path: Path) -> None:
    """Likewise its flavour of standard operators only."""
    path.write_bytes(graph.standard.SerializeToString())
    _check(path)


def _check(path: Path) -> None:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"onnx: the checker refuses {path.name}: {reason(error)}") from error


def _name_ends(model: ir.Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    for values, specs in ((model.graph.inputs, inputs), (model.graph.outputs, outputs)):
        if len(values) != len(specs):
            raise ExportError(f"onnx: the graph has {len(values)} ends, wanted {[s.name for s in specs]}")
        for value, spec in zip(values, specs, strict=True):
            value.name = spec.name
            value.shape = ir.Shape(spec.dims)


def _store_weights_outside(model: ir.Model, weights: dict[str, Entry]) -> None:
    """Point every parameter into the weights file; small constants and RoPE tables stay in the graph."""
    for name, value in model.graph.initializers.items():
        part = weights.get(name)
        if part is not None:
            value.const_value = as_external(part, name)


def _clean(model: ir.Model) -> None:
    for node in model.graph:
        if node.op_type == "Attention" and node.domain == "":
            # Its optional outputs are never used, and TensorRT-RTX takes one output only.
            node.resize_outputs(1)
    ir.passes.Sequential(
        passes.IdentityEliminationPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.ClearMetadataAndDocStringPass(),
    )(model)
    model.opset_imports.setdefault(DOMAIN, max(row.version for row in PLUGINS))


def _promise(model: ir.Model, opset: int) -> None:
    if model.opset_imports.get("") != opset:
        raise ExportError(f"onnx: asked for opset {opset}, torch wrote {model.opset_imports.get('')}")
    for node in model.graph:
        if node.op_type in ("If", "Loop", "Scan"):
            raise ExportError(f"onnx: node {node.name} is {node.op_type}: a branch was traced")
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype == ir.DataType.DOUBLE:
                raise ExportError(
                    f"onnx: {value.name} is float64; the graph must stay in the block's dtype and float32"
                )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch.onnx's progress and warnings about packages that we do not use off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            open(os.devnull, "w", encoding="utf-8") as sink,
            contextlib.redirect_stdout(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
