"""`tblock demo`: one block, every target this machine can build, every runtime it can run, one table."""

import importlib.util
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tblock.cli import output, spelling
from tblock.cli.bench import milliseconds
from tblock.cli.check import exit_code, number
from tblock.cli.doctor import has_driver

if TYPE_CHECKING:
    from tblock.manifest import Artifact
    from tblock.runtimes import BenchRow, CheckRow

PRESET = "smollm2-135m"


def run(
    folder: Annotated[Path, typer.Option("-o", "--output", help="Artifact folder.")] = Path("tblock-demo"),
    preset: Annotated[str, typer.Option(help="A named config.")] = PRESET,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Export one block of a preset, run it everywhere this machine can, and print one table."""
    import tblock
    from tblock.export.staging import check_output

    start = time.perf_counter()
    config, full_dtype = tblock.preset(preset), spelling.dtype(dtype)
    check_output(folder, force=True)
    output.progress("loading torch")
    from tblock.export.exporter import open_source, run_export
    from tblock.export.options import ExportOptions
    from tblock.runtimes import bench, check

    to, why_not = _targets()
    options = ExportOptions(to=to, dtype=full_dtype, force=True)
    artifact = run_export(open_source(config, name=preset), folder, options, output.progress).artifact
    rows = check(folder, progress=output.progress)
    ran = [row.runtime for row in rows if row.passed]
    times = {row.runtime: row for row in bench(folder, ran, progress=output.progress)}
    if json:
        output.print_json([{**row.to_dict(), "bench": _dict(times.get(row.runtime))} for row in rows])
    else:
        case = next(iter(times.values())).case if times else ""
        errors = [">error vs float64", ">eager's error", "verdict"]
        header = ["runtime", "built", "ran", *errors, f">median at {case}", "why not"]
        table = [_cells(row, times.get(row.runtime), artifact, why_not) for row in rows]
        title = f"{preset}, one block, {full_dtype}, seeded weights: {folder}"
        output.print_table(header, table, title)
        print(f"took {time.perf_counter() - start:.0f} s; look closer with `tblock inspect {folder}`")
    code = exit_code(rows, asked=False)
    if code:
        raise typer.Exit(code)


def _targets() -> tuple[tuple[str, ...], dict[str, str]]:
    """What this machine can build, and why it cannot build the rest."""
    why_not = {}
    to = ["onnx"]
    if shutil.which("g++") or shutil.which("clang++"):
        to.append("aoti")
    else:
        why_not["aoti"] = "building needs g++"
    if importlib.util.find_spec("tensorrt_rtx"):
        to.append("tensorrt-rtx")
    else:
        why_not["tensorrt-rtx"] = "building needs pip install 'tblock[tensorrt-rtx]'"
    lacking = [
        what
        for what, here in (
            ("an NVIDIA GPU", has_driver()),
            ("pip install 'tblock[tensorrt]'", importlib.util.find_spec("tensorrt")),
        )
        if not here
    ]
    if lacking:
        why_not["tensorrt"] = f"building needs {' and '.join(lacking)}"
    else:
        to.append("tensorrt")
    return tuple(to), why_not


def _cells(
    row: "CheckRow", timed: "BenchRow | None", artifact: "Artifact", why_not: dict[str, str]
) -> list[str]:
    from tblock.runtimes import RUNTIMES

    target = RUNTIMES[row.runtime].target
    built = "-" if target is None else "yes" if target in artifact.manifest.targets else "no"
    reason = why_not.get(row.runtime, row.reason) if built == "no" else row.reason
    verdict = row.status if row.shapes else "-"
    ran = "yes" if row.shapes else "no"
    latency = milliseconds(timed.median_s) if timed else "-"
    errors = [number(row.error, ".2e"), number(row.eager_error, ".2e")]
    return [row.runtime, built, ran, *errors, verdict, latency, reason]


def _dict(row: "BenchRow | None") -> dict[str, object] | None:
    return None if row is None else row.to_dict()
