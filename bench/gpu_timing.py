"""How fast the kernels inside the plugin library are: the timing half of `gpu_check`, which calls it."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_setup import Setup, library_launch
from torch import Tensor

from tblock.contract import PLUGINS, OpRow

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
        packed: the inputs are the parts of one tensor.
        setup: where.

    Returns:
        The case; `calls` has `tblock`, `copy` (same reads and writes) and the peers that import.
    """
    from tblock.export.plugins.selfcheck import field_sets, triton_launch

    row = next(row for row in PLUGINS if row.name == op)
    launch = triton_launch() if setup.library is None else library_launch(setup.library)
    make = {"device": setup.device, "dtype": torch.bfloat16}
    shapes = [(rows, WIDTH) if port.dims.startswith("...") else (WIDTH,) for port in row.inputs]
    inputs = [torch.randn(shape, **make) for shape in shapes]
    if packed:
        inputs = list(torch.cat(inputs, -1).tensor_split(len(inputs), -1))
    outputs = [torch.empty(rows, WIDTH, **make) for _ in row.outputs]
    fields = field_sets(row)[0]
    options = dict(zip((a.name for a in row.attributes), fields, strict=True))
    compiled = torch.compile(lambda *tensors: getattr(torch.ops.tblock, op)(*tensors, **options))
    calls: dict[str, Callable[[], object]] = {
        "tblock": lambda: launch(op, [*inputs, *outputs], fields),
        "torch.compile": lambda: compiled(*inputs),
        "copy": _copy([t for t in inputs if t.dim() == 2], outputs),
    }
    if not packed and setup.device != "cpu":
        calls |= peers(op, inputs)
    moved = moved_per_row(row) * rows
    return Timing(op=op, rows=rows, packed=packed, bytes_moved=moved, calls=calls)


def moved_per_row(row: OpRow) -> int:
    """Bytes that one row of an op reads and writes, in bfloat16; the weight stays in the cache."""
    return sum(port.dims.startswith("...") for port in (*row.inputs, *row.outputs)) * WIDTH * 2


def _copy(read: list[Tensor], written: list[Tensor]) -> Callable[[], object]:
    """As many reads and writes of the same size, and next to no math."""
    if len(read) == len(written):
        source, target = torch.cat(read), torch.cat(written)
        return lambda: target.copy_(source)
    assert (len(read), len(written)) == (2, 1)
    return lambda: torch.add(*read, out=written[0])


def peers(op: str, inputs: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Other authors' kernels for the same call, where they are installed."""
    found: dict[str, dict[str, Callable[[], object]]] = {"liger": {}, "fla": {}}
    a, b, weight = inputs[0], inputs[1], inputs[-1]
    with contextlib.suppress(ImportError):
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        found["liger"] = {
            "rms_norm": lambda: LigerRMSNormFunction.apply(a, weight, EPS),
            "swiglu": lambda: LigerSiLUMulFunction.apply(a, b),
        }
    with contextlib.suppress(ImportError):
        from fla.modules.activations import swiglu as fla_swiglu
        from fla.modules.layernorm import rms_norm as fla_rms_norm

        found["fla"] = {
            "rms_norm": lambda: fla_rms_norm(a, weight, None, eps=EPS),
            "add_rms_norm": lambda: fla_rms_norm(a, weight, None, residual=b, eps=EPS, prenorm=True),
            "swiglu": lambda: fla_swiglu(a, b),
        }
    return {who: calls[op] for who, calls in found.items() if op in calls}


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
    kinds = [
        (row.name, packed) for row in PLUGINS for packed in (False, True)[: 1 + (row.kind == "elementwise")]
    ]
    moved = {row.name: moved_per_row(row) for row in PLUGINS}
    for op, packed in kinds:
        for count in (2,) if setup.dry else (*DECODE_ROWS, -(-LARGE_BYTES // moved[op])):
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
