"""How fast the kernels inside the plugin library are: the timing half of `gpu_check`, which calls it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_setup import Setup, library_launch
from torch import Tensor

EPS = 1e-5
WIDTH = 4096
DECODE_ROWS = (1, 8, 32)
# Moved per call: well above the L2 cache (50 MiB on an H200) and the goal's 512 MiB.
LARGE_BYTES = 640 * 2**20
# Smallest and largest node count of a timing graph, which fills about 20 ms of GPU time; replays per case.
NODES = (5, 400)
REPLAYS = 20


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
    fields = () if op == "swiglu" else tuple(options.values())
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
    calls = {"tblock": lambda: launch(op, tensors, fields), **calls, **peers(op, packed, a, b, weight)}
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
            if skipped := setup.skipped():
                rows.append(label | {"who": "tblock"} | skipped)
                continue
            timing = make_timing(op, count, packed, setup)
            copy = None
            for who in sorted(timing.calls, key=lambda name: name != "copy"):
                if skipped := setup.skipped(compiles=who == "torch.compile"):
                    rows.append(label | {"who": who} | skipped)
                    continue
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
