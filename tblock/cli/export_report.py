"""What `tblock export` prints."""

import dataclasses
from typing import TYPE_CHECKING, Any

from tblock.cli import output
from tblock.cli.running import number
from tblock.manifest import Artifact

if TYPE_CHECKING:
    from tblock.export.exporter import ExportResult


def print_report(result: "ExportResult", json: bool) -> None:
    """Stages with time and peak memory, then targets with files, forms and reasons, then verdicts."""
    manifest = result.artifact.manifest
    weights = manifest.parameters * {"float32": 4}.get(manifest.dtype, 2)
    if json:
        stages = {name: dataclasses.asdict(stage) for name, stage in result.stages.items()}
        output.print_json(
            {
                "folder": str(result.artifact.folder),
                "weights_bytes": weights,
                "stages": stages,
                "targets": manifest.targets,
                "failed": result.failed,
                "verdicts": manifest.verdicts,
            }
        )
        return
    rows = [
        [name, f"{stage.seconds:.1f} s", output.size(stage.peak_bytes),
         _share(stage.peak_bytes, weights)]
        for name, stage in result.stages.items()
    ]  # fmt: skip
    title = f"{result.artifact.folder}: weights {output.size(weights)}; memory above the imported libraries"
    output.print_table(["stage", ">time", ">peak memory", ">of the weights, x"], rows, title)
    if result.bytes_read is not None:
        print(f"checkpoint: {output.size(result.bytes_read)} of tensor data read")
    print_targets(manifest.targets, result.artifact)
    print_verdicts(manifest.verdicts)
    for note in manifest.notes:
        print(f"note: {note}")


def print_targets(targets: dict[str, dict[str, Any]], artifact: Artifact) -> None:
    """One line for each target: its files and what was decided."""
    for name, entry in targets.items():
        files = ", ".join(f"{f} ({output.size(artifact.manifest.files[f]['size'])})" for f in entry["files"])
        print(f"{name}: {files}")
        for key in (
            "opset",
            "fused",
            "passes",
            "attention",
            "attention_reason",
            "softmax",
            "softmax_reason",
            "fusion",
            "fusion_reason",
            "builder",
        ):
            if key in entry:
                print(f"  {key.replace('_', ' ')}: {_plain(entry[key])}")
        for line in profile_lines(entry):
            print(f"  {line}")


def profile_lines(entry: dict[str, Any]) -> list[str]:
    """The optimization profiles of an engine target: min, opt and max of each input."""
    return [
        f"profile {index}, {name}: min {low}, opt {opt}, max {high}"
        for index, profile in enumerate(entry.get("profiles", ()))
        for name, shapes in profile.items()
        for low, opt, high in [["x".join(map(str, shape)) for shape in shapes]]
    ]


def print_verdicts(verdicts: dict[str, dict[str, Any]]) -> None:
    """The verdicts a manifest carries."""
    for runtime, verdict in verdicts.items():
        error, eager = (number(verdict[name], ".2e") for name in ("error", "eager_error"))
        figures = "" if error == eager == "-" else f" error {error}, eager {eager}"
        print(f"verdict {runtime}: {verdict['status']}{figures} {verdict['reason']}".rstrip())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(dict.fromkeys(" ".join(map(str, list(item.values())[1:3])) for item in value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items()) or "none"
    return str(value)


def _share(peak: int | None, weights: int) -> str:
    """A peak as a multiple of the weights; a dash where they are too small for it to mean anything."""
    return "-" if peak is None or weights < 10**7 else f"{peak / weights:.2f}"
