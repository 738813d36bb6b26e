"""One GPU script: are the kernels inside the plugin library right, and how fast are they.

Usage: python bench/gpu_check.py --library libtblock_plugins.so --harness plugin_harness [--minutes 8] [-o F]
Launches the kernels of a library built elsewhere, through the C++ harness and through its C interface, and
compares them with float64. Only where all of that is right, times them by CUDA-graph replays beside a copy
with the same reads and writes, torch.compile, and other authors' kernels where they import. Needs torch and a
GPU; no TensorRT, no nvcc. `--dry-run` walks the same code on the CPU, with Triton's interpreter in place of
the library. Exits 1 where something was wrong, 2 on wrong use, 3 where there is no GPU.
"""

import argparse
import ctypes
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tblock.block import Block  # noqa: E402
from tblock.config import BlockConfig  # noqa: E402
from tblock.presets import preset  # noqa: E402

EPS = 1e-5
WIDTH = 4096
DECODE_ROWS = (1, 8, 32)
LARGE_BYTES = (
    640 * 2**20
)  # moved per call: well above the L2 cache (50 MiB on an H200) and the goal's 512 MiB
HARNESS_NOT_EXECUTED = 3
HARNESS_SECONDS = 120
# Smallest and largest node count of a timing graph, which fills about 20 ms of GPU time; replays per case.
NODES = (5, 400)
REPLAYS = 20


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where and with what this run works."""

    device: str
    library: ctypes.CDLL | None
    deadline: float

    @property
    def dry(self) -> bool:
        """On the CPU, to walk the code."""
        return self.device == "cpu"

    def spent(self) -> bool:
        """Whether the time is up: what is left is recorded as not executed."""
        return time.monotonic() > self.deadline


def library_launch(library: ctypes.CDLL) -> Callable[[str, list[Tensor], float, float], None]:
    """Launches through the library's C interface, on torch's current stream."""
    from tblock.export.plugins.variants import DTYPES, OPS

    library.tblock_plugin_error.restype = ctypes.c_char_p
    names = list(DTYPES)

    def launch(op: str, tensors: list[Tensor], eps: float, weight_offset: float) -> None:
        rows, width = tensors[0].shape
        stride = tensors[0].stride(0)
        if op == "swiglu" and stride == width:
            rows, width, stride = 1, rows * width, rows * width
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        dtype = names.index(str(tensors[0].dtype).removeprefix("torch."))
        sizes = (ctypes.c_int64(rows), ctypes.c_int64(width), ctypes.c_int64(stride))
        scalars = (ctypes.c_float(eps), ctypes.c_float(weight_offset))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if library.tblock_plugin_launch(OPS.index(op), dtype, pointers, *sizes, *scalars, stream):
            raise RuntimeError(f"{op}: {library.tblock_plugin_error().decode()}")

    return launch


def run_harness(harness: Path | None, library: Path | None, device: str) -> dict[str, Any]:
    """The C++ harness: plugins attached, enqueued and compared."""
    from tblock.export.plugins.selfcheck import BUDGET

    if harness is None or library is None:
        return {"status": "not executed", "reason": "no --harness or no --library"}
    command = [str(harness), str(library), "execute", "1", *(str(u) for u in BUDGET["gpu"].values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HARNESS_SECONDS)
    lines = done.stdout.splitlines()
    if done.returncode == HARNESS_NOT_EXECUTED and device == "cpu":
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
    results = list(selfcheck.run(cases, launch, setup.device))
    failed = [r.id for r in results if not r.passed(place)]
    worst = {d: max(r.units for r in results if r.dtype == d) for d in selfcheck.UNIT_ROUNDOFF}
    status = "fail" if failed or not results else "pass"
    return {"status": status, "cases": len(results), "failed": failed, "worst_units": worst, "place": place}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One kernel at one size: what to call, what it moves, and whom to compare with."""

    op: str
    rows: int
    packed: bool
    bytes_moved: int
    calls: dict[str, Callable[[], object]]


def make_timing(op: str, rows: int, packed: bool, setup: Setup) -> Timing:
    """Tensors and calls of one case, in bfloat16.

    Args:
        op: kernel.
        rows: rows of WIDTH columns.
        packed: swiglu on the halves of one tensor.
        setup: where.

    Returns:
        The case; `calls` has `tblock`, `copy` (same reads and writes) and the peers that import.
    """
    from tblock.export.plugins.selfcheck import triton_launch

    launch = triton_launch() if setup.library is None else library_launch(setup.library)
    make = {"device": setup.device, "dtype": torch.bfloat16}
    a, b = (torch.randn(rows, WIDTH, **make) for _ in range(2))
    y, z = torch.empty_like(a), torch.empty_like(a)
    weight = torch.randn(WIDTH, **make)
    ops = torch.ops.tblock
    options = {"eps": EPS, "weight_offset": 0.0}
    calls: dict[str, Callable[[], object]] = {}
    if op == "rms_norm":
        tensors = [a, weight, y]
        compiled = torch.compile(lambda x, w: ops.rms_norm(x, w, **options))
        calls["torch.compile"] = lambda: compiled(a, weight)
        calls["copy"] = lambda: y.copy_(a)
        moved = 2
    elif op == "add_rms_norm":
        tensors = [a, b, weight, y, z]
        compiled = torch.compile(lambda x, r, w: ops.add_rms_norm(x, r, w, **options))
        calls["torch.compile"] = lambda: compiled(a, b, weight)
        both, target = torch.cat([a, b]), torch.empty(2 * rows, WIDTH, **make)
        calls["copy"] = lambda: target.copy_(both)
        moved = 4
    else:
        both = torch.cat([a, b], dim=1)
        gate, up = (both[:, :WIDTH], both[:, WIDTH:]) if packed else (a, b)
        tensors = [gate, up, y]
        compiled = torch.compile(ops.swiglu)
        calls["torch.compile"] = lambda: compiled(gate, up)
        # Two reads and one write for each element, like the kernel.
        calls["copy"] = lambda: torch.add(gate, up, out=y)
        moved = 3
    calls = {"tblock": lambda: launch(op, tensors, EPS, 0.0), **calls, **peers(op, packed, a, b, weight)}
    return Timing(
        op=op, rows=rows, packed=packed, bytes_moved=moved * a.numel() * a.element_size(), calls=calls
    )


def peers(op: str, packed: bool, a: Tensor, b: Tensor, weight: Tensor) -> dict[str, Callable[[], object]]:
    """Other authors' kernels for the same call, where they are installed."""
    found: dict[str, Callable[[], object]] = {}
    if packed or a.device.type == "cpu":
        return found
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        if op == "rms_norm":
            found["liger"] = lambda: LigerRMSNormFunction.apply(a, weight, EPS)
        elif op == "swiglu":
            found["liger"] = lambda: LigerSiLUMulFunction.apply(a, b)
    except ImportError:
        pass
    try:
        from fla.modules.activations import swiglu as fla_swiglu
        from fla.modules.layernorm import rms_norm as fla_rms_norm

        if op == "rms_norm":
            found["fla"] = lambda: fla_rms_norm(a, weight, None, eps=EPS)
        elif op == "add_rms_norm":
            found["fla"] = lambda: fla_rms_norm(a, weight, None, residual=b, eps=EPS, prenorm=True)
        else:
            found["fla"] = lambda: fla_swiglu(a, b)
    except ImportError:
        pass
    return found


def time_call(call: Callable[[], object], setup: Setup) -> dict[str, float]:
    """Seconds of one call: median, p10, p90 over replays of a graph that holds many of it."""
    for _ in range(1 if setup.dry else 3):
        call()
    if setup.dry:
        samples = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    else:
        samples = _graph_samples(call)
    cuts = statistics.quantiles(samples, n=10, method="inclusive")
    return {"median": statistics.median(samples), "p10": cuts[0], "p90": cuts[-1]}


def _graph_samples(call: Callable[[], object]) -> list[float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    nodes = int(min(max(0.02 / (start.elapsed_time(end) / 1e3), NODES[0]), NODES[1]))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            call()
    graph.replay()
    samples = []
    for _ in range(REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / nodes)
    return samples


def time_kernels(setup: Setup) -> list[dict[str, Any]]:
    """One row per case and competitor; cases past the deadline are rows that say so."""
    rows = []
    for op, packed in (("rms_norm", False), ("add_rms_norm", False), ("swiglu", False), ("swiglu", True)):
        moved = {"rms_norm": 2, "add_rms_norm": 4, "swiglu": 3}[op] * WIDTH * 2
        for count in (2,) if setup.dry else (*DECODE_ROWS, -(-LARGE_BYTES // moved)):
            label = {"op": op, "packed": packed, "rows": count, "width": WIDTH, "dtype": "bfloat16"}
            if setup.spent():
                rows.append(label | {"who": "tblock", "status": "not executed", "reason": "time is up"})
                continue
            timing = make_timing(op, count, packed, setup)
            copy = None
            for who in sorted(timing.calls, key=lambda name: name != "copy"):
                try:
                    seconds = time_call(timing.calls[who], setup)
                except Exception as error:  # a peer's failure is its row, not the end of the run
                    if who == "tblock":
                        raise
                    reason = f"{type(error).__name__}: {error}"[:200]
                    rows.append(label | {"who": who, "status": "failed", "reason": reason})
                    continue
                copy = seconds["median"] if who == "copy" else copy
                rate = timing.bytes_moved / seconds["median"]
                share = copy / seconds["median"] if copy else None
                row = {"who": who, "status": "timed", "seconds": seconds, "bytes": timing.bytes_moved}
                rows.append(label | row | {"bytes_per_second": rate, "share_of_copy": share})
            del timing
    return rows


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
            if setup.spent():
                rows.append({"who": who, "dtype": name, "status": "not executed", "reason": "time is up"})
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


def print_table(result: dict[str, Any]) -> None:
    """The result as a table on stdout."""
    print(f"{result['machine']['device']}: {result['status']}")
    print(f"harness: {result['harness']['status']} {result['harness'].get('reason', '')}")
    kernels = result["kernels"]
    worst = ", ".join(f"{d} {u:.2f}" for d, u in kernels["worst_units"].items())
    print(f"kernels ({kernels['place']}): {kernels['status']}, {kernels['cases']} cases, worst units {worst}")
    for row in result["blocks"]:
        print(f"block {row['who']:8} {row['dtype']:9} {row['status']} {row.get('ratio') or ''}")
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
    parser.add_argument("--minutes", type=float, default=8.0, help="stop starting new parts after this long")
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
    result: dict[str, Any] = {"machine": machine(setup)}
    result["harness"] = run_harness(options.harness, options.library, setup.device)
    result["kernels"] = check_kernels(setup)
    result["blocks"] = check_blocks(setup)
    verdicts = [
        result["harness"]["status"],
        result["kernels"]["status"],
        *(r["status"] for r in result["blocks"]),
    ]
    right = not {"fail", "ambiguous", "refused"} & set(verdicts)
    result["status"] = "right" if right else "wrong"
    # No number while something is wrong.
    result["timings"] = time_kernels(setup) if right else []
    device = "".join(c if c.isalnum() else "-" for c in result["machine"]["device"]).strip("-").lower()
    output = options.output or ROOT / "bench" / "results" / f"gpu-{device}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    print_table(result)
    print(f"written: {output}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
