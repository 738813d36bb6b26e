"""One GPU script: are the kernels inside the plugin library right, and how fast are they.

Usage: python bench/gpu_check.py --library libtblock_plugins.so --harness plugin_harness [--minutes 8] [-o F]
Launches the kernels of a library built elsewhere, through the C++ harness and through its C interface, and
compares them with float64. Only where all of that was run and is right, times them by CUDA-graph replays
beside a copy with the same reads and writes, torch.compile, and other authors' kernels where they import.
Needs torch, ml_dtypes (the judge of the blocks) and a GPU; no TensorRT, no nvcc. `--dry-run` walks the same
code on the CPU, with Triton's interpreter in place of the library. Exits 1 where something was wrong or not
run, 2 on wrong use, 3 where there is no GPU. The result file is written after each part.
"""

import argparse
import ctypes
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from gpu_setup import TIME_IS_UP, Setup, library_launch  # noqa: E402
from gpu_timing import time_kernels  # noqa: E402
from torch import Tensor  # noqa: E402

from tblock.block import Block  # noqa: E402
from tblock.config import BlockConfig  # noqa: E402
from tblock.presets import preset  # noqa: E402

HARNESS_NOT_EXECUTED = 3
HARNESS_SECONDS = 120


def run_harness(harness: Path | None, library: Path | None, setup: Setup) -> dict[str, Any]:
    """The C++ harness: plugins attached, enqueued and compared."""
    from tblock.export.plugins import case_file
    from tblock.export.plugins.selfcheck import BUDGET

    if harness is None or library is None:
        return {"status": "not executed", "reason": "no --harness or no --library"}
    with tempfile.TemporaryDirectory() as scratch:
        cases = case_file.write(Path(scratch, "cases"))
        budgets = [str(units) for units in BUDGET["gpu"].values()]
        command = [str(harness), str(library), "execute", "1", str(cases), *budgets]
        seconds = min(HARNESS_SECONDS, setup.left())
        if seconds <= 0:
            return dict(TIME_IS_UP)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            status = "fail" if seconds == HARNESS_SECONDS else "not executed"
            return {"status": status, "reason": f"stopped after {seconds:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode == HARNESS_NOT_EXECUTED and setup.dry:
        return {"status": "not executed", "reason": lines[0] if lines else ""}
    status = "pass" if done.returncode == 0 else "fail"
    return {"status": status, "output": lines, "errors": done.stderr.splitlines()[:20]}


def check_kernels(setup: Setup) -> dict[str, Any]:
    """The table of cases of `selfcheck`, on the library (on the interpreter when dry)."""
    from tblock.export.plugins import selfcheck

    if setup.dry:
        cases = tuple(c for c in selfcheck.CASES if c.width <= 1000 and c.rows > 1)
        launch, place = selfcheck.triton_launch(), "interpreter"
    else:
        assert setup.library
        cases, place = selfcheck.CASES, "gpu"
        launch = library_launch(setup.library)
    results = []
    for case in cases:
        results.append(selfcheck.run_case(case, launch, setup.device))
        if setup.left() <= 0:
            break
    failed = [r.id for r in results if not r.passed(place)]
    worst = {d: max((r.units for r in results if r.dtype == d), default=0.0) for d in selfcheck.UNIT_ROUNDOFF}
    row = {"cases": len(results), "failed": failed, "worst_units": worst, "place": place}
    if failed or not results:
        return row | {"status": "fail"}
    if len(results) < len(cases):
        return row | TIME_IS_UP | {"reason": f"time was up after {len(results)} of {len(cases)} cases"}
    return row | {"status": "pass"}


def check_blocks(setup: Setup) -> list[dict[str, Any]]:
    """Eager and compiled blocks in float16 and bfloat16 against float64, judged as every runtime is."""
    config = (
        BlockConfig(dim=64, num_heads=4, num_kv_heads=2, ffn_dim=96) if setup.dry else preset("smollm2-135m")
    )
    torch.manual_seed(0)
    exact = Block(config).double().requires_grad_(False).to(setup.device)
    x = torch.randn(2, 33, config.dim, dtype=torch.float64, device=setup.device)
    rows = []
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        block = Block(config).to(setup.device, dtype).requires_grad_(False)
        block.load_state_dict(exact.state_dict())
        rounded = Block(config).double().to(setup.device).requires_grad_(False)
        rounded.load_state_dict(block.state_dict())
        given = x.to(dtype)
        wanted = rounded(given.double())
        eager = block(given)
        for who, run in (("eager", block), ("compile", torch.compile(block))):
            if skipped := setup.skipped(compiles=who == "compile"):
                rows.append({"who": who, "dtype": name} | skipped)
                continue
            rows.append({"who": who, "dtype": name, **judge_block(run(given), wanted, eager, given)})
    return rows


def judge_block(output: Tensor, wanted: Tensor, eager: Tensor, given: Tensor) -> dict[str, Any]:
    """Worst per-token relative L2 error, and the verdict where the judge can be imported."""
    errors = [
        float(((t.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()) for t in (output, eager)
    ]
    row: dict[str, Any] = {"error": errors[0], "eager_error": errors[1]}
    try:
        import ml_dtypes
        import numpy as np

        from tblock.runtimes.verdict import judge
    except ImportError as error:
        return row | {"status": "not judged", "reason": str(error)}

    def array(tensor: Tensor) -> np.ndarray:
        host = tensor.detach().cpu().contiguous()
        if host.dtype == torch.bfloat16:
            return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return host.numpy()

    name = str(output.dtype).removeprefix("torch.")
    arrays = {
        "output": array(output),
        "reference": array(wanted),
        "eager": array(eager),
        "inputs": array(given),
    }
    verdict = judge(**arrays, dtype=name)
    return row | {"status": verdict.status.lower(), "ratio": verdict.ratio, "reason": verdict.reason}


def machine(setup: Setup) -> dict[str, Any]:
    """What a result row needs to be read later: device, versions, commit, time."""
    name = "cpu (dry run)" if setup.dry else torch.cuda.get_device_name()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    found = {"torch": torch.__version__, "python": platform.python_version()}
    for package in ("triton", "liger-kernel", "flash-linear-attention"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    if not setup.dry:
        found["cuda"] = torch.version.cuda
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"device": name, "versions": found, "commit": commit or None, "time": now}


def status_of(result: dict[str, Any], dry: bool) -> str:
    """What harness, kernels and blocks say together.

    Args:
        result: with those three parts.
        dry: on the CPU a part may be not executed.

    Returns:
        `wrong`; `incomplete`: on a GPU, something was not run or not judged; `right`.
    """
    parts = [result["harness"], result["kernels"], *result["blocks"]]
    verdicts = {part["status"] for part in parts}
    if verdicts & {"fail", "ambiguous", "refused"}:
        return "wrong"
    complete = dry or (verdicts == {"pass"} and bool(result["blocks"]))
    return "right" if complete else "incomplete"


def print_table(result: dict[str, Any]) -> None:
    """The result as a table on stdout."""
    print(f"{result['machine']['device']}: {result['status']}")
    print(f"harness: {result['harness']['status']} {result['harness'].get('reason', '')}")
    kernels = result["kernels"]
    worst = ", ".join(f"{d} {u:.2f}" for d, u in kernels["worst_units"].items())
    print(f"kernels ({kernels['place']}): {kernels['status']}, {kernels['cases']} cases, worst units {worst}")
    if result["status"] == "incomplete":
        print("no timings: on a GPU every part must have run and passed first")
    for row in result["blocks"]:
        detail = row.get("ratio") or row.get("reason") or ""
        print(f"block {row['who']:8} {row['dtype']:9} {row['status']} {detail}")
    for row in result["timings"]:
        name = f"{row['op']}{' packed' if row['packed'] else ''} {row['rows']}x{row['width']}"
        if row["status"] != "timed":
            print(f"{name:32} {row['who']:14} {row['status']}: {row['reason']}")
            continue
        share = f"{100 * row['share_of_copy']:5.0f} % of copy" if row["share_of_copy"] else ""
        micro, rate = 1e6 * row["seconds"]["median"], row["bytes_per_second"] / 1e9
        print(f"{name:32} {row['who']:14} {micro:10.2f} us {rate:8.0f} GB/s {share}")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, help="libtblock_plugins.so, built elsewhere")
    parser.add_argument("--harness", type=Path, help="the C++ harness, built elsewhere")
    parser.add_argument("--minutes", type=float, default=8.0, help="nothing is begun after this long")
    parser.add_argument("--dry-run", action="store_true", help="walk the code on the CPU")
    parser.add_argument("-o", "--output", type=Path, help="result file (bench/results/gpu-<device>.json)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run; returns the exit status."""
    options = parse(arguments)
    if options.dry_run:
        # Read when triton is first imported, which is below.
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        print("gpu_check: no GPU; --dry-run walks the code on the CPU", file=sys.stderr)
        return 3
    elif options.library is None or not options.library.is_file():
        print(f"gpu_check: --library {options.library}: no such file", file=sys.stderr)
        return 2
    library = None if options.dry_run else ctypes.CDLL(str(options.library.resolve()))
    deadline = time.monotonic() + 60 * options.minutes
    setup = Setup(device="cpu" if options.dry_run else "cuda", library=library, deadline=deadline)
    if not setup.dry:
        torch.cuda.init()
    result: dict[str, Any] = {"machine": machine(setup), "status": "incomplete", "timings": []}
    device = "".join(c if c.isalnum() else "-" for c in result["machine"]["device"]).strip("-").lower()
    output = options.output or ROOT / "bench" / "results" / f"gpu-{device}.json"
    output.parent.mkdir(parents=True, exist_ok=True)

    def write(**part: Any) -> None:
        result.update(part)
        output.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")

    write()
    write(harness=run_harness(options.harness, options.library, setup))
    write(kernels=check_kernels(setup))
    write(blocks=check_blocks(setup))
    status = status_of(result, setup.dry)
    # No number while something is wrong or was not run.
    if status == "right":
        write(timings=time_kernels(setup))
    write(status=status)
    print_table(result)
    print(f"written: {output}")
    return 0 if status == "right" else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
