"""bench: how long one call takes, per runtime and shape, in a process that first passes its own check.

Owns the measurement (warm-up, then median, p10 and p90 of single calls with inputs in place) and what a row
says about it. FLOPs and bytes come from shapes, never from a profiler.
"""

import datetime
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tblock.errors import ArtifactError
from tblock.manifest import Manifest, read_artifact
from tblock.runtimes import machine
from tblock.runtimes.child import ChildFailure, ask
from tblock.runtimes.inputs import DTYPES, check_size, output_shape, shape_label
from tblock.runtimes.parity import failure_row, golden_path, job_options
from tblock.runtimes.rows import BenchRow, CheckRow
from tblock.runtimes.runner import Arrays, Runner
from tblock.runtimes.table import known_runtimes, missing_target, runtime_row

WARM_UP = (3, 0.2)
"""At least so many calls, and so large a share of the measuring time, before the first that counts."""
CALLS = (10, 100_000)
"""At least and at most so many calls count, whatever the time."""


def bench_artifact(
    folder: str | Path,
    runtimes: Sequence[str] | None,
    *,
    shapes: Sequence[Mapping[str, int]] | None,
    threads: int | None,
    seconds: float,
    timeout: float,
    progress: Callable[[str], None] | None,
    **options: Any,
) -> list[BenchRow]:
    """As `tblock.runtimes.bench`."""
    names = known_runtimes(runtimes)
    artifact = read_artifact(folder)
    golden_path(artifact)
    sizes = [full_sizes(artifact.manifest, shape) for shape in shapes or [{}]]
    if runtimes is None:
        names = [name for name in names if missing_target(artifact, name) is None]
    threads = threads or machine.usable_cpus()
    rows: list[BenchRow] = []
    for name in names:
        reason = missing_target(artifact, name)
        if reason:
            check, measured = CheckRow(runtime=name, status="NOT BUILT", reason=reason), {}
        else:
            if progress:
                progress(f"bench {name} ...")
            job = {
                "verb": "bench",
                "folder": str(artifact.folder),
                "runtime": name,
                "options": job_options(name, threads=threads, **options),
                "shapes": sizes,
                "seconds": seconds,
            }
            try:
                answer = ask(job, timeout=timeout)
                check, measured = CheckRow.from_dict(answer["check"]), answer.get("times", {})
            except ChildFailure as error:
                check, measured = failure_row(name, error), {}
        cpu_threads = threads if measured and "threads" in runtime_row(name).options else None
        rows += _rows(artifact.manifest, check, sizes, measured, cpu_threads)
    return rows


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


def time_runner(runner: Runner, shapes: Sequence[Mapping[str, int]], *, seconds: float) -> dict[str, Any]:
    """Measure in this process.

    Args:
        runner: has passed its check.
        shapes: letter to size, every letter.
        seconds: for each shape, after warm-up.

    Returns:
        JSON-ready: `device`, `provider`, `versions`, and `calls`, the seconds of each call (a list for each
        shape).
    """
    calls = []
    for sizes in shapes:
        execute = runner.bind(bench_inputs(runner.artifact.manifest, sizes))
        calls.append(_measure(execute, seconds))
    package = runtime_row(runner.name).package
    return {
        "device": runner.device,
        "provider": runner.provider,
        "versions": machine.versions(package, "numpy"),
        "calls": calls,
    }


def bench_inputs(manifest: Manifest, sizes: Mapping[str, int]) -> Arrays:
    """Seeded inputs: x normal, every token real, positions 0 .. S - 1."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for spec in manifest.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)
        if spec.dtype == "bool":
            arrays[spec.name] = np.ones(shape, np.bool_)
        elif spec.dtype == "int64":
            arrays[spec.name] = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape).copy()
        else:
            arrays[spec.name] = rng.standard_normal(shape, np.float32).astype(DTYPES[spec.dtype])
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


def _measure(execute: Callable[[], None], seconds: float) -> list[float]:
    clock = time.perf_counter
    start, done = clock(), 0
    while done < WARM_UP[0] or clock() - start < seconds * WARM_UP[1]:
        execute()
        done += 1
    times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        while len(times) < CALLS[0] or (clock() - start < seconds and len(times) < CALLS[1]):
            before = clock()
            execute()
            times.append(clock() - before)
    finally:
        if collecting:
            gc.enable()
    return times


def _rows(
    manifest: Manifest,
    check: CheckRow,
    shapes: Sequence[Mapping[str, int]],
    measured: Mapping[str, Any],
    threads: int | None,
) -> list[BenchRow]:
    rows, commit = [], machine.commit()
    calls = measured.get("calls", [None] * len(shapes))
    for sizes, times in zip(shapes, calls, strict=True):
        flops, moved = work(manifest, sizes)
        p10, median, p90 = np.percentile(times, (10, 50, 90)).tolist() if times else (None, None, None)
        rows.append(
            BenchRow(
                case=shape_label(sizes),
                runtime=check.runtime,
                provider=measured.get("provider", ""),
                dtype=manifest.dtype,
                device=measured.get("device", ""),
                threads=threads,
                status=check.status,
                reason=check.reason,
                median_s=median,
                p10_s=p10,
                p90_s=p90,
                iterations=len(times or ()),
                flops=flops,
                bytes=moved,
                versions=measured.get("versions", {}),
                commit=commit,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
        )
    return rows
