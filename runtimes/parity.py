"""check: a runtime on every golden case, judged by float64.

Owns how verdicts of cases become the row of a runtime. The measure itself is `verdict`, the golden file
`tblock.golden`, the processes `jobs`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tblock.errors import ArtifactError
from tblock.golden import GoldenCase, read_golden
from tblock.manifest import GOLDEN, Artifact, Manifest, read_artifact
from tblock.runtimes.inputs import check_inputs, shape_label
from tblock.runtimes.jobs import Progress, ask_each, check_options, chosen_runtimes
from tblock.runtimes.rows import CaseRow, CheckRow
from tblock.runtimes.runner import Arrays, Runner
from tblock.runtimes.statuses import EXIT_CODES, badness
from tblock.runtimes.table import runtime_row
from tblock.runtimes.verdict import Verdict, judge


def check_artifact(
    folder: str | Path,
    runtimes: Sequence[str] | None,
    *,
    timeout: float,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> list[CheckRow]:
    """As `tblock.runtimes.check`."""
    artifact = read_artifact(folder)
    names = chosen_runtimes(artifact, runtimes, torch_too=False)
    check_options(options, names)
    golden_path(artifact)
    asked = ask_each(artifact, names, options=options, timeout=timeout, progress=progress)
    return [row for row, _ in asked]


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
    """Run and judge in this process every golden case that the runtime's target was built for.

    Raises:
        ArtifactError: the golden data does not fit the manifest; and whatever the runtime raises.
    """
    target = artifact.manifest.targets.get(runtime_row(runner.name).target or "", {})
    cases = golden_cases(artifact)
    inside = [(label, case) for label, case in cases if takes(target, case.inputs)]
    notes = list(import_note(artifact.manifest))
    if len(inside) < len(cases):
        outside = [label for label, case in cases if not takes(target, case.inputs)]
        notes.append(f"not judged, outside the profiles the engine was built with: {', '.join(outside)}")
    if not inside:
        return CheckRow(
            runtime=runner.name,
            status="REFUSED",
            reason="no golden case lies inside the profiles the engine was built with; build it for one "
            f"({', '.join(label for label, _ in cases)}), or export with ranges like the profiles",
            provider=runner.provider,
            notes=tuple(notes),
            details=runner.details,
            exit_code=EXIT_CODES["REFUSED"],
        )
    rows = [
        _case_row(label, judge_outputs(artifact, case, runner.run(case.inputs))) for label, case in inside
    ]
    worst = min(rows, key=lambda row: badness(row.status, row.ratio))
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
        notes=tuple(notes),
        exit_code=EXIT_CODES[worst.status],
    )


def takes(target: Mapping[str, Any], inputs: Arrays) -> bool:
    """Whether an engine's profiles (input name to [min, opt, max] shape) take inputs that the manifest takes.

    Targets without profiles take all of them.
    """
    profiles = target.get("profiles") or [{}]
    return any(
        all(
            low <= size <= high
            for name, (least, _, most) in profile.items()
            if name in inputs
            for low, size, high in zip(least, inputs[name].shape, most, strict=True)
        )
        for profile in profiles
    )


def import_note(manifest: Manifest) -> tuple[str, ...]:
    """A line where the weights came from a checkpoint and nobody compared the import.

    The verdict compares an artifact with its own block: it cannot see a weight that was read wrongly.
    """
    source = manifest.source
    if source.get("kind") != "checkpoint" or source.get("import_verified"):
        return ()
    return ("import not verified: the weights were not compared with the family's own code at export",)


def judge_outputs(artifact: Artifact, case: GoldenCase, outputs: Arrays) -> list[Verdict]:
    """A verdict for each output that the manifest declares.

    Raises:
        ArtifactError: one is missing, or the golden data does not belong together.
    """
    verdicts = []
    for spec in artifact.manifest.outputs:
        if spec.name not in outputs:
            raise ArtifactError(f"output {spec.name}: the runtime gave only {', '.join(outputs)}")
        reference = case.reference[spec.name]
        verdict = judge(
            output=outputs[spec.name],
            reference=reference,
            eager=case.eager[spec.name],
            inputs=None if spec.residual is None else case.inputs[spec.residual],
            dtype=spec.dtype,
            live=None if spec.live is None else case.inputs[spec.live],
            name=spec.name,
        )
        verdicts.append(verdict)
    return verdicts


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that decides."""
    return min(verdicts, key=lambda v: badness(v.status, v.ratio))


def _case_row(label: str, found: Sequence[Verdict]) -> CaseRow:
    worst = worst_verdict(found)
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
