"""The stages that turn a captured program into what each target loads, and what the manifest says of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from tblock.checkpoints.safetensors_source import Entry
from tblock.config import BlockConfig
from tblock.export import aoti, onnx_model
from tblock.export.recording import ENGINES, engine_entry
from tblock.export.request import OPSETS, ExportOptions
from tblock.manifest import GRAPH, STANDARD, WEIGHTS, Artifact, TensorSpec
from tblock.ranges import Range

PACKAGE = "model.pt2"


@dataclass(frozen=True)
class Job:
    """What every stage works on; `described` is the artifact as far as it is made."""

    program: ExportedProgram
    configs: Sequence[BlockConfig]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    ranges: dict[str, Range]
    weights: dict[str, Entry]
    folder: Path
    options: ExportOptions
    described: Callable[[], Artifact]


def stages_of(to: Sequence[str]) -> list[str]:
    """The stages for some targets, in order; engines are built from the ONNX graph, so it comes first."""
    engines = [t for t in ENGINES if t in to]
    graph = ["onnx"] if engines or "onnx" in to else []
    return graph + engines + (["aoti"] if "aoti" in to else [])


def run_stage(name: str, job: Job) -> dict[str, dict[str, Any]]:
    """Build one target.

    Returns:
        Target name to its manifest entry; empty where the stage only prepares another.
    """
    if name == "onnx":
        return _graph(job)
    if name == "aoti":
        cpu = job.options.cpu or aoti.default_cpu()
        entry = aoti.compile_package(job.described(), job.folder / PACKAGE, cpu)
        return {"aoti": {"files": [PACKAGE], **entry}}
    return {name: _engine(name, job)}


def _graph(job: Job) -> dict[str, dict[str, Any]]:
    graph = onnx_model.lower(
        job.program, job.configs, job.inputs, job.outputs, job.weights, job.options.opset or OPSETS[-1]
    )
    onnx_model.write(graph, job.folder / GRAPH)
    if "onnx" not in job.options.to:
        return {}
    onnx_model.write_standard(graph, job.folder / STANDARD)
    return {
        "onnx": {
            "files": [STANDARD, GRAPH, WEIGHTS],
            "opset": graph.opset,
            "ir_version": graph.model.ir_version,
            "attention": graph.attention.name,
            "attention_reason": graph.attention.reason,
            "softmax": "float32",
            "softmax_reason": graph.softmax_reason,
            "fused": graph.fused,
            "passes": graph.passes,
            "nodes": len(list(graph.model.graph)),
        }
    }


def _engine(flavour: str, job: Job) -> dict[str, Any]:
    from tblock.export.engine.builder import EngineOptions, build_engine
    from tblock.export.engine.options import default_library
    from tblock.export.trial import try_engine

    profile = {
        spec.name: (
            _shape(spec, job.ranges, "min"),
            _shape(spec, job.ranges, "opt"),
            _shape(spec, job.ranges, "max"),
        )
        for spec in job.inputs
    }
    library = default_library()
    report = build_engine(
        job.folder / GRAPH,
        job.folder / ENGINES[flavour],
        flavour=flavour,  # type: ignore[arg-type]
        profiles=[profile],
        options=EngineOptions(fusion=job.options.fusion or "auto", tf32=job.options.tf32),
        judge=lambda path, report: try_engine(
            job.described(), path, report, None if library is None else str(library)
        ),
    )
    return engine_entry(report)


def _shape(spec: TensorSpec, ranges: dict[str, Range], end: str) -> tuple[int, ...]:
    return tuple(getattr(ranges[d], end) if isinstance(d, str) else d for d in spec.dims)
