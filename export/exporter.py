"""`export`: from a source of blocks to an artifact folder, stage by stage, all of it or nothing.

Owns the order of the stages and the manifest's content; each stage has a file of its own.
"""

import datetime
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

import tblock
from tblock.block import Block, Stack
from tblock.checkpoints import open_checkpoint
from tblock.config import BlockConfig
from tblock.export.capture import capture, example_sizes
from tblock.export.golden import golden_notes, make_golden
from tblock.export.memory import Stage, load_libraries, measured, resident_bytes
from tblock.export.options import ExportOptions, checked
from tblock.export.source import CheckpointSource, ConfigSource, ModuleSource, Source, parse_layers
from tblock.export.staging import check_output, staged_folder
from tblock.export.targets import Job, run_stage, stages_of
from tblock.export.weights_file import write_weights
from tblock.golden import write_golden
from tblock.manifest import GOLDEN, NAME, WEIGHTS, Artifact, Manifest, file_digest
from tblock.ranges import Range
from tblock.rope_table import RopeTable
from tblock.weights import DTYPES


@dataclass
class ExportResult:
    """An artifact and what making it took.

    Attributes:
        artifact: the folder and its manifest.
        bytes_read: tensor data touched in the checkpoint; None for other sources.
        stages: stage name to seconds and peak bytes above the process with its libraries loaded.
    """

    artifact: Artifact
    stages: dict[str, Stage] = field(default_factory=dict)
    bytes_read: int | None = None


def export(
    source: BlockConfig | Block | Stack | str | Path,
    output: str | Path,
    *,
    layer: int | None = None,
    layers: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Artifact:
    """Export blocks to an artifact folder.

    Args:
        source: a config (seeded weights), a Block or Stack (its weights), or a checkpoint's path.
        output: the new folder.
        layer: one layer of a config or checkpoint; None: the first.
        layers: `A:B` or `all` instead.
        progress: gets a line as each stage starts.
        **options: fields of ExportOptions.

    Returns:
        The artifact.

    Raises:
        ConfigError: the request makes no sense; nothing was written.
        ExportError: a stage failed; an older artifact is intact.
        RuntimeUnavailable: a tool that a target needs is missing.
    """
    request = ExportOptions(**options)
    described = open_source(source, layer=layer, layers=layers)
    return run_export(described, Path(output), request, progress).artifact


def open_source(
    source: BlockConfig | Block | Stack | str | Path,
    *,
    layer: int | None = None,
    layers: str | None = None,
    name: str = "",
) -> Source:
    """Turn what a caller has into a Source.

    Args:
        source: as in `export`.
        layer, layers: as in `export`.
        name: of a preset, for the manifest.

    Raises:
        ConfigError: layers out of range, or a checkpoint that cannot be read.
    """
    if isinstance(source, (Block, Stack)):
        return ModuleSource(source)
    if isinstance(source, BlockConfig):
        chosen = parse_layers(layers, layer, source.num_layers)
        description = {
            "kind": "preset" if name else "config",
            "name": name,
            "layers": [chosen.start, chosen.stop],
        }
        return ConfigSource(source, layers=chosen, description=description)
    checkpoint = open_checkpoint(source)
    return CheckpointSource(checkpoint, layers=parse_layers(layers, layer, checkpoint.num_layers))


def run_export(
    source: Source, output: Path, options: ExportOptions, progress: Callable[[str], None]
) -> ExportResult:
    """`export` on an opened source, with the cost of each stage."""
    ranges, inputs, outputs = checked(options, source.configs)
    check_output(output, options.force)
    if options.golden:
        source.require_golden()
    stages: dict[str, Stage] = {}
    load_libraries()
    baseline = resident_bytes()
    with staged_folder(output, options.force) as folder:
        progress("weights")
        with measured(baseline) as stages["weights"]:
            module = source.module(DTYPES[options.dtype])
            named = dict(module.named_parameters(remove_duplicate=False))
            slices = write_weights(named, folder / WEIGHTS)
        progress("capture")
        with measured(baseline) as stages["capture"]:
            trimmed = _trimmed(module, source.configs, ranges, options)
            program = capture(trimmed, source.configs, inputs, ranges)
        job = Job(program, source.configs, inputs, outputs, ranges, slices, folder, options)
        done: dict[str, dict[str, Any]] = {}
        for name in stages_of(options.to):
            progress(name)
            with measured(baseline) as stages[name]:
                done |= run_stage(name, job)
        if options.golden:
            progress("golden data")
            with measured(baseline) as stages["golden"]:
                cases = make_golden(source, module, inputs, outputs, ranges, options.dtype)
                write_golden(folder / GOLDEN, cases)
        manifest = Manifest(
            tblock=tblock.__version__,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            tools=_tool_versions(),
            source=source.description,
            configs=source.configs,
            dtype=options.dtype,
            parameters=sum(p.numel() for p in module.parameters()),
            inputs=inputs,
            outputs=outputs,
            ranges=ranges,
            targets=done,
            files={
                p.name: {"size": p.stat().st_size, "sha256": file_digest(p)} for p in sorted(folder.iterdir())
            },
            notes=(*_notes(done), *(golden_notes(ranges, source.configs) if options.golden else ())),
        )
        (folder / NAME).write_text(manifest.to_json(), encoding="utf-8")
    return ExportResult(Artifact(output, manifest), stages, source.bytes_read)


def _trimmed(
    module: nn.Module, configs: Sequence[BlockConfig], ranges: dict[str, Range], options: ExportOptions
) -> nn.Module:
    """The module with RoPE tables cut to the declared sequence; whole where positions are an input.

    Never shorter than what capture traces with: the end of a table would become a size of the graph.
    """
    if not options.position_ids:
        tokens = max(ranges["S"].max, example_sizes(configs, ranges)["S"])
        for part in module.modules():
            if isinstance(part, RopeTable):
                part.resize(tokens)
    return module


def _tool_versions() -> dict[str, str]:
    names = ("torch", "onnx", "onnxscript", "onnx-ir", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def _notes(done: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    notes = [f"weights are stored once, in {WEIGHTS}; the ONNX graph points into it"]
    for name, own in (("aoti", "package"), ("tensorrt", "engine"), ("tensorrt-rtx", "engine")):
        if name in done:
            notes.append(f"{name}: the {own} holds a second copy of the weights, in the builder's own layout")
    return tuple(notes)
