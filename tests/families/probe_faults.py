"""How well the import probe tells right from wrong: planted faults it must catch, random models it must pass.

Usage: python -m tests.families.probe_faults [--configs 300] [--exports 30] [-o FILE].
Prints the numbers and writes them; exits 1 where a fault passed, or a sound model was refused by the probe
or, exported to ONNX, by its check in ONNX Runtime. CPU only, about six minutes.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tblock.checkpoints import open_checkpoint
from tblock.checkpoints.probe import LIMITS, measure
from tblock.export import export
from tblock.ranges import Range
from tblock.runtimes import CheckRow, load
from tblock.runtimes.parity import judge_runner
from tests.families.family_cases import CASES, Case, save_model
from tests.families.faults import FAULTS
from tests.families.random_models import random_case
from tests.family_report import provenance

RESULT = Path(__file__).with_suffix(".json")


def planted_faults() -> list[dict[str, Any]]:
    """Each fault in each layer of the family table where it changes anything.

    Returns:
        One row for each fault: how often planted and caught, the smallest error it made, and where it was
        missed.
    """
    rows = {f.id: {"fault": f.id, "planted": 0, "caught": 0, "weakest": None, "missed": []} for f in FAULTS}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            save_model(case, Path(folder))
            checkpoint = open_checkpoint(folder)
            for layer in case.layers:
                config = checkpoint.config(layer)
                for fault in FAULTS:
                    if not fault.applies(config):
                        continue
                    row = rows[fault.id]
                    row["planted"] += 1
                    with fault.plant():
                        error = measure(checkpoint, layer).worst
                    row["weakest"] = error if row["weakest"] is None else min(row["weakest"], error)
                    if error > LIMITS["float32"]:
                        row["caught"] += 1
                    else:
                        row["missed"].append(f"{case.id} layer {layer}")
    return list(rows.values())


def false_alarms(configs: int) -> dict[str, Any]:
    """Probe random sound models, one random layer each.

    Returns:
        Counts, the errors' spread, and the alarms with their case.
    """
    errors, alarms, families = [], [], set()
    for seed in range(configs):
        case = random_case(seed)
        families.add(case.family)
        error, alarm = _probe_random(case, seed)
        errors.append(error)
        alarms += alarm
    errors.sort()
    return {
        "configs": configs,
        "families": len(families),
        "alarms": alarms,
        "error_median": errors[len(errors) // 2],
        "error_worst": errors[-1],
        "limit": LIMITS["float32"],
    }


def _probe_random(case: Case, seed: int) -> tuple[float, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        save_model(case, Path(folder), seed)
        error = measure(open_checkpoint(folder), seed % 2, seed=seed).worst
        return error, [] if error <= LIMITS["float32"] else [f"{case.id}: {error:.2e}"]


def exported_alarms(configs: int, exports: int) -> dict[str, Any]:
    """Export some of the same models to ONNX and check them in ONNX Runtime by the artifact's golden data.

    Returns:
        Counts, the share of the verdict's allowance that was used, and the alarms with their case.
    """
    alarms, ratios, families = [], [], set()
    for n in range(exports):
        seed = n * configs // exports
        case = random_case(seed)
        families.add(case.family)
        row = _check_random(case, seed)
        ratios.append(row.ratio or 0.0)
        alarms += [] if row.passed else [f"{case.id}: {row.status}: {row.reason}"]
    return {
        "exports": exports,
        "families": len(families),
        "alarms": alarms,
        "ratio_median": sorted(ratios)[len(ratios) // 2],
        "ratio_worst": max(ratios),
    }


def _check_random(case: Case, seed: int) -> CheckRow:
    """One layer as its probe took it, with padding on both sides, in float32."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(case, folder / "model", seed)
        artifact = export(
            folder / "model", folder / "artifact", layer=seed % 2, padding_mask=True,
            batch=Range(1, 2, 3), seq=Range(1, 7, 33),
        )  # fmt: skip
        return judge_runner(load(artifact.folder, "onnxruntime", threads=1), artifact)


def main() -> int:
    """Run all of it and print it."""
    import transformers

    about = provenance("python -m tests.families.probe_faults")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--exports", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(2)
    start = time.perf_counter()
    faults, sound = planted_faults(), false_alarms(options.configs)
    exported = exported_alarms(options.configs, options.exports)
    for row in faults:
        missed = f"  missed: {', '.join(row['missed'])}" if row["missed"] else ""
        counts = f"caught {row['caught']:3} of {row['planted']:3}, weakest {row['weakest']:.1e}"
        print(f"{row['fault']:34} {counts}{missed}")
    alarms = f"{len(sound['alarms'])} false alarms"
    spread = f"error median {sound['error_median']:.1e}, worst {sound['error_worst']:.1e}"
    print(
        f"{sound['configs']} random models of {sound['families']} families: {alarms}, {spread}, "
        f"limit {sound['limit']:.0e}"
    )
    print(
        f"{exported['exports']} of them, of {exported['families']} families, exported to ONNX Runtime: "
        f"{len(exported['alarms'])} false alarms, "
        f"share of the allowance median {exported['ratio_median']:.2f}, worst {exported['ratio_worst']:.2f}"
    )
    for alarm in sound["alarms"] + exported["alarms"]:
        print(f"  {alarm}")
    about["seconds"] = round(time.perf_counter() - start, 1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"about": about, "faults": faults, "random": sound, "random_exported": exported}
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    alarms = sound["alarms"] + exported["alarms"]
    return 1 if alarms or any(row["missed"] or not row["planted"] for row in faults) else 0


if __name__ == "__main__":
    sys.exit(main())
