"""`tblock demo`: one block, every target this machine can build, every runtime it can run, one table."""

import contextlib
import importlib.util
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tblock import machine
from tblock.cli import output, running

if TYPE_CHECKING:
    from tblock.config import BlockConfig
    from tblock.manifest import Artifact
    from tblock.runtimes import BenchRow, CheckRow

PRESET = "smollm2-135m"
STILL = 10.0
"""Seconds of silence after which the last line is said again."""


def run(
    folder: Annotated[Path, typer.Option("-o", "--output", help="Artifact folder.")] = Path("tblock-demo"),
    preset: Annotated[str, typer.Option(help="A named config.")] = PRESET,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    json: running.Json = False,
) -> None:
    """Export one block of a preset, run it everywhere this machine can, and print one table."""
    import tblock
    from tblock.dtypes import float_dtype
    from tblock.export.staging import check_output

    config, full_dtype = tblock.preset(preset), float_dtype(dtype)
    check_output(folder, force=True)
    progress = _Clock()
    progress("loading torch")
    from tblock.export.exporter import open_source, run_export
    from tblock.export.request import ExportOptions
    from tblock.runtimes import exit_code, measure

    to, why_not = _targets()
    options = ExportOptions(to=to, dtype=full_dtype, force=True)
    opened = open_source(config, name=preset)
    with _compiling_meanwhile(config, full_dtype, progress):
        exported = run_export(opened, folder, options, progress, verify=False)
    artifact, why_not = exported.artifact, {**why_not, **exported.failed}
    # One process for each runtime, which is judged and then timed in it; alone, or the times are not its own.
    rows = [(check, timed) for check, (timed,) in measure(folder, ["all"], progress=progress)]
    progress.stop()
    checks = [check for check, _ in rows]
    if json:
        output.print_json(
            [{**check.to_dict(), "bench": timed.to_dict() if check.passed else None} for check, timed in rows]
        )
    else:
        errors = [">error vs float64", ">eager's error", "verdict"]
        header = ["runtime", "built", "ran", *errors, f">median at {rows[0][1].case}", "why not"]
        table = [_cells(check, timed, artifact, why_not) for check, timed in rows]
        title = f"{preset}, one block, {full_dtype}, seeded weights: {folder}"
        output.print_table(header, table, title)
        running.print_notes(timed for _, timed in rows)
        print(f"took {progress.seconds():.0f} s; look closer with `tblock inspect {folder}`")
    code = exit_code(checks, asked=False)
    error = exported.error()
    if error:
        raise error
    if code:
        raise typer.Exit(code)


@contextlib.contextmanager
def _compiling_meanwhile(
    config: "BlockConfig", dtype: str, progress: Callable[[str], None]
) -> Iterator[None]:
    """Let torch.compile fill its cache of compiled code on one core while AOTInductor keeps another busy.

    Both compile C++ on one thread for most of their time, and what is timed later must have no neighbour.
    """
    cpus = machine.usable_cpus()
    if cpus < 2 or machine.cxx_compiler("g++", "clang++") is None:
        yield
        return
    from tblock.export import export
    from tblock.runtimes import check

    with tempfile.TemporaryDirectory(prefix="tblock-demo-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch, "artifact")
        progress("compile: its block")
        export(config, folder, to=("onnx",), dtype=dtype, verify=False)
        work = threading.Thread(
            # Whatever goes wrong is found again, and said, when the runtime has its turn.
            target=lambda: check(folder, ["compile"], threads=cpus, progress=progress),
            daemon=True,
        )
        work.start()
        yield
        progress("compile: compiling")
        work.join()


class _Clock:
    """Progress with the seconds since the start, said again while nothing new happens."""

    def __init__(self) -> None:
        self._start = self._since = time.perf_counter()
        self._line, self._stopped = "", threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def __call__(self, line: str) -> None:
        self._line, self._since = line, time.perf_counter()
        output.progress(f"{self.seconds():3.0f} s  {line}")

    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start

    def stop(self) -> None:
        """No more lines."""
        self._stopped.set()

    def _wait(self) -> None:
        while not self._stopped.wait(STILL):
            silent = time.perf_counter() - self._since
            if silent >= STILL:
                output.progress(f"{self.seconds():3.0f} s  {self._line} (since {silent:.0f} s)")


def _targets() -> tuple[tuple[str, ...], dict[str, str]]:
    """What this machine can build, and why it cannot build the rest."""
    why_not = {}
    to = ["onnx"]
    if machine.cxx_compiler("g++", "clang++"):
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
            ("an NVIDIA GPU", machine.gpu_or_none()),
            ("pip install 'tblock[tensorrt]'", importlib.util.find_spec("tensorrt")),
        )
        if not here
    ]
    if lacking:
        why_not["tensorrt"] = f"building needs {' and '.join(lacking)}"
    else:
        to.append("tensorrt")
    return tuple(to), why_not


def _cells(check: "CheckRow", timed: "BenchRow", artifact: "Artifact", why_not: dict[str, str]) -> list[str]:
    from tblock.runtimes import RUNTIMES

    target = RUNTIMES[check.runtime].target
    built = "-" if target is None else "yes" if target in artifact.manifest.targets else "no"
    reason = why_not.get(check.runtime, check.reason) if built == "no" else timed.reason
    ran = "yes" if check.shapes else "no"
    errors = [running.number(check.error, ".2e"), running.number(check.eager_error, ".2e")]
    verdict = timed.status if check.shapes else "-"
    return [check.runtime, built, ran, *errors, verdict, running.milliseconds(timed.median_s), reason]
