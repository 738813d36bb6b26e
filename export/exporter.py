"""`export`: from a source of blocks to a judged artifact folder; the one way for command line and Python.

Owns the order: compare the import with the family's own code, build stage by stage, all of it or nothing,
then run what was built and judge it. Each stage has a file of its own.
"""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tblock
from tblock.block import Block, Stack
from tblock.checkpoints import open_checkpoint
from tblock.config import BlockConfig
from tblock.errors import ConfigError, ExportError, ParityError, TblockError
from tblock.export.block_source import CheckpointSource, ConfigSource, ModuleSource, Source, parse_layers
from tblock.export.capture import capture, trim_tables
from tblock.export.golden_cases import golden_notes, make_golden
from tblock.export.memory import Stage, load_libraries, measured, resident_bytes
from tblock.export.recording import record_verdicts
from tblock.export.request import ExportOptions, checked
from tblock.export.staging import check_output, staged_folder
from tblock.export.targets import Job, run_stage, stages_of
from tblock.export.weights_file import write_weights
from tblock.golden import write_golden
from tblock.manifest import GOLDEN, GRAPH, NAME, WEIGHTS, Artifact, Manifest, file_digest
from tblock.ranges import Range
from tblock.weights import DTYPES

if TYPE_CHECKING:
    from tblock.runtimes import CheckRow

ABSENT = "UNAVAILABLE"
"""Status of a runtime that this machine lacks: what was built for it stays, unjudged."""


@dataclass
class ExportResult:
    """An artifact and what making it took.

    Attributes:
        artifact: the folder and its manifest, verdicts included.
        bytes_read: tensor data touched in the checkpoint; None for other sources.
        stages: stage name to seconds and peak bytes above the process with its libraries loaded.
        failed: target that could not be built, to why; the others are in the artifact.
        rows: of the check, one for each runtime of the targets; empty where none was wanted.
    """

    artifact: Artifact
    stages: dict[str, Stage] = field(default_factory=dict)
    bytes_read: int | None = None
    failed: dict[str, str] = field(default_factory=dict)
    rows: "list[CheckRow]" = field(default_factory=list)

    def error(self) -> TblockError | None:
        """What went wrong although the artifact is there: a target not built, a runtime that is wrong.

        Returns:
            ExportError where a target failed or a runtime broke, ParityError where one is outside the budget.
        """
        folder = self.artifact.folder
        for target, why in self.failed.items():
            return ExportError(f"{folder}: written without {target}: {why}")
        bad = [row for row in self.rows if not row.passed and row.status != ABSENT]
        missed = [row for row in bad if row.exit_code == ParityError.exit_code]
        for row in missed or bad:
            kind = ParityError if missed else ExportError
            # Eager is finite on these inputs, or the golden data would have been refused.
            half = "is not finite" in row.reason and self.artifact.manifest.dtype == "float16"
            hint = (
                "; where attention's scores pass 65504, --opset 18 or --dtype float32 helps" if half else ""
            )
            return kind(f"{folder}: {row.runtime} {row.status}: {row.reason}{hint}; the artifact is there")
        return None


def export(
    source: BlockConfig | Block | Stack | str | Path,
    output: str | Path,
    *,
    layer: int | None = None,
    layers: str | None = None,
    verify: bool = True,
    verify_import: bool | None = None,
    progress: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Artifact:
    """Export blocks to an artifact folder and judge it: what `tblock export` does.

    Args:
        source: a config (seeded weights), a Block or Stack (its weights), or a checkpoint's path.
        output: the new folder.
        layer: one layer; None: of a config or checkpoint the first, of a Stack all.
        layers: `A:B` or `all` instead.
        verify: run the runtimes of the targets that this machine has and judge them (needs golden data).
        verify_import: compare the layers of a checkpoint with the family's own implementation; None: where
            that is installed.
        progress: gets a line as each stage starts.
        **options: fields of ExportOptions.

    Returns:
        The artifact, verdicts in its manifest.

    Raises:
        ConfigError: the request makes no sense; nothing was written.
        ExportError: a stage failed; an older artifact is intact, and where none was there the targets that
            succeeded are in the new one.
        ParityError: the import differs from the family's own code (nothing was written), or a runtime is
            outside the float64 budget (the artifact is there).
        RuntimeUnavailable: a tool that a target or `verify_import` needs is missing.
    """
    known = [f.name for f in dataclasses.fields(ExportOptions)]
    for name in options.keys() - set(known):
        raise ConfigError(f"export({name}=...): unknown option; known: {', '.join(known)}")
    request = ExportOptions(**options)
    described = open_source(source, layer=layer, layers=layers)
    result = run_export(
        described, Path(output), request, progress, verify=verify, verify_import=verify_import
    )
    error = result.error()
    if error:
        raise error
    return result.artifact


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
        ConfigError: layers out of range, a module changed beside its config and weights, a checkpoint that
            cannot be read, or anything else.
    """
    if isinstance(source, (Block, Stack)):
        return ModuleSource(source, layer=layer, layers=layers)
    if isinstance(source, BlockConfig):
        chosen = parse_layers(layers, layer, source.num_layers)
        description = {
            "kind": "preset" if name else "config",
            "name": name,
            "layers": [chosen.start, chosen.stop],
        }
        return ConfigSource(source, layers=chosen, description=description)
    if not isinstance(source, (str, Path)):
        raise ConfigError(
            f"source: got a {type(source).__name__}, wanted a BlockConfig, Block, Stack or path; "
            "a torch.nn.TransformerEncoderLayer goes through tblock.checkpoints.from_torch_layer"
        )
    checkpoint = open_checkpoint(source)
    return CheckpointSource(checkpoint, layers=parse_layers(layers, layer, checkpoint.num_layers))


def run_export(
    source: Source,
    output: Path,
    options: ExportOptions,
    progress: Callable[[str], None],
    *,
    verify: bool = True,
    verify_import: bool | None = None,
) -> ExportResult:
    """`export` on an opened source, with the cost of each stage; what went wrong late is in the result."""
    ranges, inputs, outputs = checked(options, source.configs)
    check_output(output, options.force)
    if options.golden:
        source.require_golden()
    if isinstance(source, CheckpointSource):
        source.verify_import(verify_import, progress)
    elif verify_import:
        raise ConfigError("verify_import=True: only a checkpoint can be verified")
    keep_partial = not output.exists()
    stages: dict[str, Stage] = {}
    failed: dict[str, str] = {}
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
            trim_tables(module, source.configs, inputs, ranges)
            program = capture(module, source.configs, inputs, ranges)
        done: dict[str, dict[str, Any]] = {}

        def described() -> Artifact:
            """The artifact as far as it is made."""
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
                files=_files(folder),
                notes=(*_notes(folder, done, failed), *_golden_notes(options, ranges, source.configs)),
            )
            return Artifact(folder, manifest)

        job = Job(program, source.configs, inputs, outputs, ranges, slices, folder, options, described)
        if options.golden:
            progress("golden data")
            with measured(baseline) as stages["golden"]:
                cases = make_golden(source, module, inputs, outputs, ranges, options.dtype)
                write_golden(folder / GOLDEN, cases)
        for name in stages_of(options.to):
            progress(name)
            try:
                with measured(baseline) as stages[name]:
                    done |= run_stage(name, job)
            except ExportError as error:
                # What was built before is not thrown away, unless it would replace an older artifact.
                if not (done and keep_partial and name in options.to):
                    raise
                failed[name] = str(error)
        manifest = described().manifest
        (folder / NAME).write_text(manifest.to_json(), encoding="utf-8")
    result = ExportResult(Artifact(output, manifest), stages, source.bytes_read, failed)
    if verify and options.golden:
        _judge(result, progress)
    elif verify:
        progress("no golden data, so nothing to verify")
    return result


def _judge(result: ExportResult, progress: Callable[[str], None]) -> None:
    """Check the artifact on every runtime of its targets and write the verdicts into its manifest."""
    from tblock.export.engine.options import library_for
    from tblock.runtimes import RUNTIMES, check

    targets = result.artifact.manifest.targets
    runtimes = [name for name, row in RUNTIMES.items() if row.target in targets]
    result.rows = check(
        result.artifact.folder, runtimes, plugin_library=library_for(targets), progress=progress
    )
    kept = ("status", "ratio", "error", "eager_error", "where", "reason")
    verdicts = {row.runtime: {name: getattr(row, name) for name in kept} for row in result.rows}
    result.artifact = record_verdicts(result.artifact, verdicts)


def _tool_versions() -> dict[str, str]:
    names = ("torch", "onnx", "onnxscript", "onnx-ir", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        p.name: {"size": p.stat().st_size, "sha256": file_digest(p)}
        for p in sorted(folder.iterdir())
        if not p.name.startswith(".")
    }


def _notes(folder: Path, done: dict[str, dict[str, Any]], failed: dict[str, str]) -> list[str]:
    graph = "; the ONNX graph points into it" if (folder / GRAPH).is_file() else ""
    notes = [f"weights are stored once, in {WEIGHTS}{graph}"]
    for name, own in (("aoti", "package"), ("tensorrt", "engine"), ("tensorrt-rtx", "engine")):
        if name in done:
            notes.append(f"{name}: the {own} holds a second copy of the weights, in the builder's own layout")
    return [*notes, *(f"{name} was asked for and could not be built: {why}" for name, why in failed.items())]


def _golden_notes(
    options: ExportOptions, ranges: dict[str, Range], configs: Sequence[BlockConfig]
) -> list[str]:
    return golden_notes(ranges, configs) if options.golden else []
