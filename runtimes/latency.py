"""bench: how long one call takes, per runtime and shape, in a process that first passes its own check.

Owns the measurement (warm-up, then median, p10 and p90 of single calls with inputs in place), the judgement
of what the timed calls gave, and what a row says about both. FLOPs and bytes come from shapes, never from a
profiler.
"""

import datetime
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tblock import machine
from tblock.dtypes import DTYPES
from tblock.errors import ArtifactError
from tblock.golden import GoldenCase
from tblock.manifest import Artifact, Manifest, read_artifact
from tblock.runtimes.inputs import check_size, output_shape, shape_label
from tblock.runtimes.jobs import Progress, ask_each, check_options, chosen_runtimes
from tblock.runtimes.parity import golden_cases, golden_path, judge_outputs, worst_verdict
from tblock.runtimes.rows import BenchRow, CheckRow
from tblock.runtimes.runner import Arrays, Bound, Runner
from tblock.runtimes.statuses import EXIT_CODES
from tblock.runtimes.table import runtime_row

WARM_UP = (3, 0.2)
"""At least so many calls, and so large a share of the measuring time, before the first that counts."""
CALLS = (10, 100_000)
"""At least and at most so many calls count, whatever the time."""
QUIET_SHARE, QUIET_SPREAD = 0.9, 1.5
"""Below this CPU time over wall time of the calling thread, and above this p90 over p10, a row says that the
machine was busy.

Measured on 2 cores (SmolLM2's block at S 128; eager, aoti, onnxruntime; 1 and 2 threads): alone, the calling
thread computes or spins all the time (share 0.99 to 1.01) and the spread is at most 1.2. Beside two other
busy processes the share is 0.24 to 0.73 and the median up to 100 times too high, at a spread that can be as
small as 1.1: threads that wait for each other are late every time. So the spread alone is no proof of quiet.
"""


def measure_artifact(
    folder: str | Path,
    runtimes: Sequence[str] | None = None,
    *,
    shapes: Sequence[Mapping[str, int]] | None = None,
    threads: int | None = None,
    seconds: float = 1.0,
    timeout: float = 900.0,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[tuple[CheckRow, list[BenchRow]]]:
    """As `tblock.runtimes.measure`."""
    artifact = read_artifact(folder)
    names = chosen_runtimes(artifact, runtimes, torch_too=False)
    check_options({**options, "threads": threads}, names)
    golden_path(artifact)
    sizes = [full_sizes(artifact.manifest, shape) for shape in shapes or [{}]]
    threads = threads or machine.usable_cpus()
    work = {"shapes": sizes, "seconds": seconds}
    asked = ask_each(
        artifact,
        names,
        options={**options, "threads": threads},
        timeout=timeout,
        progress=progress,
        work=work,
    )
    for check, measured in asked:
        yield check, _rows(artifact.manifest, check, sizes, measured, threads)


def full_sizes(manifest: Manifest, shape: Mapping[str, int]) -> dict[str, int]:
    """A size for every letter: given, or the optimum of its range.

    Raises:
        ArtifactError: a letter the artifact does not have, or a size outside its range.
    """
    for letter, size in shape.items():
        if letter not in manifest.ranges:
            raise ArtifactError(
                f"shape {letter}={size}: no such dimension; known: {', '.join(manifest.ranges)}"
            )
        check_size(manifest, "shape ", letter, size)
    return {letter: shape.get(letter, limits.opt) for letter, limits in manifest.ranges.items()}


def time_runner(
    runner: Runner,
    shapes: Sequence[Mapping[str, int]],
    *,
    seconds: float,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Measure in this process, and judge what the timed calls gave.

    Args:
        runner: has passed its check.
        shapes: letter to size, every letter.
        seconds: for each shape, after warm-up.
        progress: called with a line at each shape.

    Returns:
        JSON-ready: `device`, `provider`, `versions`, `covers`, and `shapes`: for each shape `calls` (the
        seconds of each call), `share` (CPU time over wall time of this thread), `status`, `reason` and
        `judged_by`.
    """
    artifact, results = runner.artifact, []
    for sizes in shapes:
        progress(f"timing {shape_label(sizes)}")
        label, case = _timed_case(runner, artifact, sizes)
        bound = runner.bind(case.inputs)
        calls, share = _measure(bound, seconds)
        verdict = worst_verdict(judge_outputs(artifact, case, bound.read()))
        reason = "" if verdict.passed else f"what was timed is not what was judged: {verdict.reason}"
        results.append(
            {
                "calls": calls,
                "share": share if runner.provider == "cpu" else None,
                "status": verdict.status,
                "reason": reason,
                "judged_by": label,
            }
        )
    package = runtime_row(runner.name).package
    return {
        "device": runner.device,
        "provider": runner.provider,
        "versions": machine.versions(package, "numpy"),
        "covers": runner.covers,
        "shapes": results,
    }


def _timed_case(runner: Runner, artifact: Artifact, sizes: Mapping[str, int]) -> tuple[str, GoldenCase]:
    """Inputs of a shape, and what the timed calls must give on them.

    The golden case of that shape where there is one; elsewhere seeded inputs, and as reference the outputs of
    this runtime's own `run`, which was judged at the golden shapes.
    """
    for label, case in golden_cases(artifact):
        if shape_label(sizes) == label.partition(" #")[0]:
            return f"float64, golden case {label}", case
    inputs = bench_inputs(artifact.manifest, sizes)
    outputs = runner.run(inputs)
    reference = {name: array.astype(np.float64) for name, array in outputs.items()}
    return "run, which passed at the golden shapes", GoldenCase(inputs, reference, outputs)


def bench_inputs(manifest: Manifest, sizes: Mapping[str, int]) -> Arrays:
    """Seeded inputs: numbers normal, every token real, positions 0 .. S - 1."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for spec in manifest.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)
        if spec.dtype == "bool":
            arrays[spec.name] = np.ones(shape, np.bool_)
        elif spec.dtype == "int64":
            arrays[spec.name] = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape).copy()
        else:
            arrays[spec.name] = rng.standard_normal(shape, np.float32).astype(DTYPES[spec.dtype].numpy)
    return arrays


def work(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[int, int]:
    """FLOPs of one call and the bytes it moves at least (every weight, input and output once)."""
    flops = sum(
        c.flop_count(batch=sizes.get("B", 1), seq=sizes.get("S", 1), past=sizes.get("P", 0))
        for c in manifest.configs
    )
    letters = {**sizes, "T": sizes.get("P", 0) + sizes.get("S", 0)}
    moved = manifest.parameters * DTYPES[manifest.dtype].itemsize
    for spec in (*manifest.inputs, *manifest.outputs):
        moved += int(np.prod(output_shape(spec, letters) or (0,))) * DTYPES[spec.dtype].itemsize
    return flops, moved


def _measure(bound: Bound, seconds: float) -> tuple[list[float], float]:
    """Seconds of each call, and the share of the time in which this thread had a CPU."""
    clock, execute = time.perf_counter, bound.execute
    start, done = clock(), 0
    while done < WARM_UP[0] or clock() - start < seconds * WARM_UP[1]:
        execute()
        done += 1
    times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        start, used = clock(), time.thread_time()
        while len(times) < CALLS[0] or (clock() - start < seconds and len(times) < CALLS[1]):
            before = clock()
            execute()
            times.append(clock() - before)
        share = (time.thread_time() - used) / (clock() - start)
    finally:
        if collecting:
            gc.enable()
    return times, share


def _rows(
    manifest: Manifest,
    check: CheckRow,
    shapes: Sequence[Mapping[str, int]],
    measured: Mapping[str, Any],
    threads: int,
) -> list[BenchRow]:
    rows, commit = [], machine.commit()
    cpu_threads = threads if measured and "threads" in runtime_row(check.runtime).options else None
    unmeasured = {"status": check.status, "reason": check.reason, "calls": [], "judged_by": ""}
    for sizes, found in zip(shapes, measured.get("shapes", [unmeasured] * len(shapes)), strict=True):
        flops, moved = work(manifest, sizes)
        times = found["calls"] if found["status"] == "PASS" else []
        p10, median, p90 = np.percentile(times, (10, 50, 90)).tolist() if times else (None, None, None)
        rows.append(
            BenchRow(
                case=shape_label(sizes),
                runtime=check.runtime,
                provider=measured.get("provider", ""),
                dtype=manifest.dtype,
                device=measured.get("device", ""),
                threads=cpu_threads,
                status=found["status"],
                reason=found["reason"],
                median_s=median,
                p10_s=p10,
                p90_s=p90,
                iterations=len(times),
                covers=measured.get("covers", ""),
                judged_by=found["judged_by"],
                notes=disturbances(times, cpu_threads, found["share"]) if times else (),
                flops=flops,
                bytes=moved,
                versions=measured.get("versions", {}),
                commit=commit,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                exit_code=check.exit_code or EXIT_CODES[found["status"]],
            )
        )
    return rows


def disturbances(times: Sequence[float], threads: int | None, share: float | None) -> tuple[str, ...]:
    """Why the times of one shape are not the runtime's alone, a line each.

    Args:
        times: of the calls (seconds).
        threads: that it computed with; None: not on the CPU.
        share: of the time in which the calling thread had a CPU; None likewise.
    """
    notes = []
    quota = machine.cpu_quota()
    if threads is not None and quota is not None and quota < threads:
        notes.append(f"CPU quota of {quota:g} for {threads} threads: give --threads {max(1, int(quota))}")
    p10, p90 = np.percentile(times, (10, 90))
    busy = "the machine is busy with other work, the times are not the runtime's; repeat when it is quiet"
    if share is not None and share < QUIET_SHARE:
        notes.append(f"{busy} (it had a CPU for {share:.0%} of the time)")
    elif p90 > QUIET_SPREAD * p10:
        notes.append(f"{busy} (p90 is {p90 / p10:.1f} times p10)")
    return tuple(notes)
