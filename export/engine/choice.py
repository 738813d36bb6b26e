"""Plugin or native: what `--fusion` means, and the gate that keeps the faster correct engine.

Builds through the child process; runs nothing itself: who can run engines hands in a judge.
"""

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tblock.child import ask
from tblock.errors import ConfigError, ExportError, TblockError
from tblock.export.engine.options import EngineRequest, Fusion, default_library
from tblock.export.engine.report import EngineReport
from tblock.files import whole_file

WORKER = "tblock.export.engine.builder_process"
"""The builder process."""

WAYS: tuple[Fusion, ...] = ("native", "plugin")


@dataclass(frozen=True)
class Trial:
    """How one engine did inside the whole block, told by whoever can run it.

    Attributes:
        correct: within the float64 budget on the golden data.
        milliseconds: median latency of the block at the profile's optimum.
        detail: one line for the report.
        judged: False where nothing could be compared, such as without golden data: then `correct` says
            nothing.
    """

    correct: bool
    milliseconds: float
    detail: str
    judged: bool = True


Judge = Callable[[Path, EngineReport], Trial]
"""Runs an engine file, of which the report tells what it is: the runtimes room does, and the caller hands it
in, so that this room need not know it."""


def run_builder(
    request: EngineRequest,
    fusion: Fusion,
    reason: str,
    library: Path | None = None,
    output: Path | None = None,
) -> EngineReport:
    """Build one engine in a child process.

    Args:
        request: what to build; what follows is put in.
        fusion: `plugin` or `native`.
        reason: for the report.
        library: the plugin library, with `plugin`.
        output: instead of the engine's path.

    Raises:
        TblockError: as raised in the child; the file at the path is then as it was.
    """
    target = output or Path(request.output)
    with whole_file(target) as fresh:
        request = replace(
            request,
            output=str(fresh.resolve()),
            fusion=fusion,  # type: ignore[arg-type]
            fusion_reason=reason,
            library=str(library) if library else None,
        )
        answer = ask(
            WORKER,
            request.to_dict(),
            timeout=request.options.timeout,
            title=request.flavour,
            progress=shown(request.flavour) if request.options.progress else None,
        )
    return replace(EngineReport.from_dict(answer["report"]), file=target.name)


def shown(flavour: str) -> Callable[[str], None]:
    """Progress of the builder for people, on stderr."""
    return lambda line: print(f"{flavour}: {line}", file=sys.stderr, flush=True)


def choose_fusion(request: EngineRequest, judge: Judge | None) -> EngineReport:
    """The three ways of `--fusion` where plugin layers exist.

    Not executed with the package `tensorrt` (it needs a GPU); tested with a stand-in for the builder process.
    """
    wanted = request.options.fusion
    if not request.fused:
        if wanted == "plugin":
            raise ConfigError(
                f"--fusion plugin: {Path(request.onnx).name} has no fused nodes; use --fusion native"
            )
        return run_builder(request, "native", "the graph has no fused nodes")
    if wanted == "native":
        return run_builder(request, "native", "asked for; the plugin library is not loaded")
    library = Path(request.options.plugin_library) if request.options.plugin_library else default_library()
    if library is None:
        if wanted == "plugin":
            raise ExportError("--fusion plugin: no plugin library found; tblock plugin build makes one")
        return run_builder(
            request,
            "native",
            "auto: no plugin library found, so only native could be built (tblock plugin build makes one)",
        )
    if wanted == "plugin":
        return run_builder(request, "plugin", "asked for", library)
    if judge is None:
        return run_builder(
            request,
            "native",
            "auto: nothing here can run the engines to compare them; native is what needs no library",
        )
    return _faster(request, library, judge)


def _faster(request: EngineRequest, library: Path, judge: Judge) -> EngineReport:
    """Build both, run both inside the whole block, keep the faster correct one; native where the judge cannot
    judge."""
    reports: dict[str, EngineReport] = {}
    trials: dict[str, Trial] = {}
    output = Path(request.output)
    paths = {f: output.with_name(f".{f}.{output.name}") for f in WAYS}
    try:
        for fusion, path in paths.items():
            try:
                used = library if fusion == "plugin" else None
                reports[fusion] = run_builder(request, fusion, "auto", used, path)
                trials[fusion] = judge(path, reports[fusion])
            except TblockError as error:
                # One way that fails leaves the other: the report carries the reason.
                trials[fusion] = Trial(False, math.nan, str(error))
            if fusion == "native" and not trials[fusion].judged:
                _keep(path, output)
                reason = f"auto: native kept, nothing could be compared: {trials[fusion].detail}"
                return replace(reports[fusion], file=output.name, fusion_reason=reason)
        correct = [fusion for fusion in paths if trials[fusion].correct]
        if not correct:
            details = "; ".join(f"{fusion}: {trial.detail}" for fusion, trial in trials.items())
            raise ExportError(f"--fusion auto: no engine is right on the golden data: {details}")
        kept = min(correct, key=lambda fusion: trials[fusion].milliseconds)
        _keep(paths[kept], output)
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)
    return replace(
        reports[kept],
        file=output.name,
        fusion_reason=_reason(kept, trials),
        trials=[{"fusion": fusion, **_entry(trial)} for fusion, trial in trials.items()],
        executed=True,
    )


def _keep(engine: Path, output: Path) -> None:
    with whole_file(output) as fresh:
        os.replace(engine, fresh)


def _reason(kept: str, trials: dict[str, Trial]) -> str:
    other = next(fusion for fusion in trials if fusion != kept)
    if not trials[other].correct:
        return (
            f"auto: {kept} kept at {trials[kept].milliseconds:.4g} ms; {other} failed: {trials[other].detail}"
        )
    numbers = ", ".join(f"{fusion} {trial.milliseconds:.4g} ms" for fusion, trial in trials.items())
    return f"auto: {numbers} inside the whole block, both correct; the faster is kept"


def _entry(trial: Trial) -> dict[str, Any]:
    milliseconds = trial.milliseconds if math.isfinite(trial.milliseconds) else None
    return {"correct": trial.correct, "milliseconds": milliseconds, "detail": trial.detail}
