"""check: every runtime on every golden case, judged by float64, one process per runtime.

Owns how verdicts of cases become the row of a runtime. The measure itself is `verdict`, the golden file
`tblock.golden`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tblock.errors import ArtifactError
from tblock.golden import GoldenCase, read_golden
from tblock.manifest import GOLDEN, Artifact, read_artifact
from tblock.runtimes.child import ChildFailure, ask
from tblock.runtimes.inputs import check_inputs, shape_label
from tblock.runtimes.rows import WORST_FIRST, CaseRow, CheckRow
from tblock.runtimes.runner import Arrays, Runner
from tblock.runtimes.table import known_runtimes, missing_target, runtime_row
from tblock.runtimes.verdict import judge


def check_artifact(
    folder: str | Path,
    runtimes: Sequence[str] | None,
    *,
    threads: int | None,
    timeout: float,
    progress: Callable[[str], None] | None,
    **options: Any,
) -> list[CheckRow]:
    """As `tblock.runtimes.check`."""
    names = known_runtimes(runtimes)
    artifact = read_artifact(folder)
    golden_path(artifact)
    rows = []
    for name in names:
        reason = missing_target(artifact, name)
        if reason:
            rows.append(CheckRow(runtime=name, status="NOT BUILT", reason=reason, exit_code=2))
            continue
        if progress:
            progress(f"check {name} ...")
        job = {
            "verb": "check",
            "folder": str(artifact.folder),
            "runtime": name,
            "options": job_options(name, threads=threads, **options),
        }
        try:
            rows.append(CheckRow.from_dict(ask(job, timeout=timeout)["check"]))
        except ChildFailure as error:
            rows.append(failure_row(name, error))
    return rows


def failure_row(runtime: str, error: ChildFailure) -> CheckRow:
    """The row of a runtime whose process gave no answer."""
    return CheckRow(runtime=runtime, status="ERROR", reason=str(error), exit_code=error.exit_code)


def job_options(runtime: str, **options: Any) -> dict[str, Any]:
    """Of these options those that were given and that the runtime takes."""
    taken = runtime_row(runtime).options
    return {name: value for name, value in options.items() if value is not None and name in taken}


def golden_path(artifact: Artifact) -> Path:
    """The golden file, verified.

    Raises:
        ArtifactError: exported without, missing or damaged.
    """
    if GOLDEN not in artifact.manifest.files:
        raise ArtifactError(
            f"{artifact.folder}: exported without golden data, so there is nothing to check against"
        )
    return artifact.path(GOLDEN)


def golden_cases(artifact: Artifact) -> list[tuple[str, GoldenCase]]:
    """The golden cases with a label each, `B2 S7`, with a number behind where several share it.

    Raises:
        ArtifactError: no golden data, or it is not for this manifest.
    """
    cases = read_golden(golden_path(artifact))
    if not cases:
        raise ArtifactError(f"{artifact.folder / GOLDEN}: holds no case; export again")
    labels = [shape_label(check_inputs(artifact.manifest, case.inputs)[1]) for case in cases]
    total, seen, named = Counter(labels), Counter[str](), []
    for label, case in zip(labels, cases, strict=True):
        seen[label] += 1
        named.append((f"{label} #{seen[label]}" if total[label] > 1 else label, case))
    return named


def judge_runner(runner: Runner, artifact: Artifact) -> CheckRow:
    """Run and judge every golden case in this process.

    Raises:
        ArtifactError: the golden data does not fit the manifest; and whatever the runtime raises.
    """
    rows = []
    for label, case in golden_cases(artifact):
        rows.append(_judge_case(artifact, label, case, runner.run(case.inputs)))
    worst = min(rows, key=lambda row: (WORST_FIRST.index(row.status), -(row.ratio or 0.0)))
    return CheckRow(
        runtime=runner.name,
        status=worst.status,
        ratio=_highest([row.ratio for row in rows]),
        error=_highest([row.error for row in rows]),
        eager_error=_highest([row.eager_error for row in rows]),
        where=f"{worst.case}, {worst.where}",
        reason="" if worst.status == "PASS" else f"{worst.case}: {worst.reason}",
        shapes=tuple(row.case for row in rows),
        provider=runner.provider,
        cases=tuple(rows),
        details=runner.details,
        exit_code=0 if worst.status == "PASS" else 1,
    )


def _judge_case(artifact: Artifact, label: str, case: GoldenCase, outputs: Arrays) -> CaseRow:
    found = []
    for spec in artifact.manifest.outputs:
        if spec.name not in outputs:
            raise ArtifactError(f"output {spec.name}: the runtime gave only {', '.join(outputs)}")
        reference = case.reference[spec.name]
        x, mask = case.inputs["x"], case.inputs.get("padding_mask")
        verdict = judge(
            output=outputs[spec.name],
            reference=reference,
            eager=case.eager[spec.name],
            inputs=x if x.shape == reference.shape else None,
            dtype=spec.dtype,
            live=mask if mask is not None and mask.shape == reference.shape[:-1] else None,
            name=spec.name,
        )
        found.append(verdict)
    worst = min(found, key=lambda v: (WORST_FIRST.index(v.status), -(v.ratio or 0.0)))
    token = "" if worst.token is None else f" at token {worst.token}"
    return CaseRow(
        case=label,
        status=worst.status,
        ratio=_highest([v.ratio for v in found]),
        error=_highest([v.error for v in found]),
        eager_error=_highest([v.eager_error for v in found]),
        where=f"{worst.measure}{token}",
        reason=worst.reason,
    )


def _highest(values: list[float | None]) -> float | None:
    """The largest; None where one is missing (it may be anything) or infinite (JSON cannot say that)."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return max(known) if known and len(known) == len(values) else None
