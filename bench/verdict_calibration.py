"""Calibration of the verdict: the ratio `judge` gives sound executions of the same block, and broken ones.

    python bench/verdict_calibration.py [--checkpoint SMOLLM2.gguf] [--seeds 20]

Every row of the result is one case, dtype and execution over all seeds; each seed draws weights (except a
checkpoint's) and inputs anew. An execution is sound when it computes the same block in another order, or with
more precision inside. The numbers in `tblock.runtimes.verdict.BUDGETS` come from the file this writes; the
tests run the same cases again with fewer seeds.
"""

import argparse
import copy
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tblock import BlockConfig, preset
from tblock.block import Block, Stack
from tblock.linear import Linear
from tblock.runtimes.statuses import Judged
from tblock.runtimes.verdict import BUDGETS, Verdict, judge
from tblock.weights import DTYPES, random_block_weights, to_array

RESULT = Path(__file__).parent / "results" / "verdict-calibration.json"
SHAPES = ((1, 33), (2, 7), (3, 1), (1, 64))
"""(B, S) by turns, one for each seed."""
QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "max": 1.0}
LAYERS = (0, 2, 12, 13, 28, 29)
"""Of SmolLM2-135M: both ends, and where channels far above the rest appear (2, 12), stand (13), go (28)."""
VOCABULARY = 49152


@dataclass(frozen=True)
class Case:
    """A block or a stack; `draw(seed, B, S)` gives its weights and its input [B, S, D] float32."""

    name: str
    configs: tuple[BlockConfig, ...]
    draw: Callable[[int, int, int], tuple[dict[str, np.ndarray], np.ndarray]]


def random_case(name: str, config: BlockConfig, outlier: float = 0.0) -> Case:
    """Random weights on Normal(0, 1) inputs; `outlier`: added to channel 3 of the first token."""

    def draw(seed: int, batch: int, seq: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        x = np.random.default_rng(seed).standard_normal((batch, seq, config.dim), dtype=np.float32)
        if outlier:
            x[:, 0, 3] += outlier
        return random_block_weights(config, seed), x

    return Case(name, (config,), draw)


def smollm2_cases(path: str) -> Iterator[Case]:
    """Trained layers on their real hidden states: random tokens through the layers before, in float32."""
    from tblock.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(path)
    configs = tuple(checkpoint.config(i) for i in range(checkpoint.num_layers))
    weights = [checkpoint.weights(i) for i in range(checkpoint.num_layers)]
    states: dict[int, list[np.ndarray]] = {}

    def hidden(layer: int, seed: int, batch: int, seq: int) -> np.ndarray:
        if seed not in states:
            ids = np.random.default_rng(seed).integers(0, VOCABULARY, (batch, seq))
            states[seed] = [np.stack([checkpoint.embed(row) for row in ids])]
            block = Block(configs[0]).requires_grad_(False)
            for i in range(max(LAYERS)):
                load(block, weights[i])
                states[seed].append(block(torch.from_numpy(states[seed][-1])).numpy())
        return states[seed][layer]

    for i in LAYERS:
        yield Case(
            f"smollm2-135m layer {i}",
            configs[i : i + 1],
            lambda seed, batch, seq, i=i: (weights[i], hidden(i, seed, batch, seq)),
        )
    stacked = {
        f"layers.{i}.{name}": array for i, layer in enumerate(weights) for name, array in layer.items()
    }
    yield Case(
        f"smollm2-135m layers 0:{len(configs)}",
        configs,
        lambda seed, batch, seq: (stacked, hidden(0, seed, batch, seq)),
    )


def cases(checkpoint: str | None) -> list[Case]:
    """All cases; the trained ones only with a checkpoint."""
    odd = BlockConfig(dim=60, num_heads=5, num_kv_heads=1, head_dim=20, ffn_dim=100, num_layers=3)
    sandwich = BlockConfig(
        dim=96, num_heads=6, num_kv_heads=3, norm_position="sandwich", qk_norm="head", ffn="geglu_tanh"
    )
    # What a layer adds is scaled down; in bfloat16 rounding x + f(x) is 0.3 of it, token by token.
    granite = BlockConfig(
        dim=512,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        ffn_dim=1024,
        num_layers=16,
        residual_multiplier=0.05,
    )
    found = [
        *(random_case(name, preset(name)) for name in ("tiny", "gpt2", "bert-base", "smollm2-135m")),
        random_case("odd sizes", odd),
        random_case("sandwich", sandwich),
        random_case("granite-like", granite),
        random_case("tiny, outlier 24000", preset("tiny"), outlier=24000.0),
        random_case("smollm2-135m, outlier 700", preset("smollm2-135m"), outlier=700.0),
    ]
    return found + list(smollm2_cases(checkpoint) if checkpoint else [])


def load(block: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Copy weights in place, so that a compiled block stays compiled."""
    for name, parameter in block.named_parameters():
        parameter.copy_(torch.from_numpy(np.array(weights[name], dtype=np.float32)))


def permuted(block: nn.Module, x: Tensor) -> Tensor:
    """Every matrix product sums in another order."""

    def forward(self: Linear, x: Tensor) -> Tensor:
        order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(0))
        return F.linear(x[..., order], self.weight[:, order], self.bias)

    with patch.object(Linear, "forward", forward):
        return block(x)


def split_k(block: nn.Module, x: Tensor) -> Tensor:
    """Every matrix product in four parts, each rounded to the dtype before they are added (split-K GEMMs)."""

    def forward(self: Linear, x: Tensor) -> Tensor:
        y = sum(F.linear(a, w) for a, w in zip(x.chunk(4, -1), self.weight.chunk(4, -1), strict=True))
        return y if self.bias is None else y + self.bias

    with patch.object(Linear, "forward", forward):
        return block(x)


def math_attention(block: nn.Module, x: Tensor) -> Tensor:
    """Attention by torch's math path instead of the fused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return block(x)


def decomposed_attention(block: nn.Module, x: Tensor) -> Tensor:
    """Attention as separate nodes, scores and weights rounded to the dtype, as a decomposed graph has it."""

    def attend(  # type: ignore[no-untyped-def]
        q, k, v, attn_mask=None, is_causal=False, scale=1.0, enable_gqa=False
    ):
        if enable_gqa:
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        scores = (q * scale**0.5) @ (k * scale**0.5).transpose(-1, -2)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return torch.softmax(scores.float(), -1).to(q.dtype) @ v

    with patch.object(F, "scaled_dot_product_attention", attend):
        return block(x)


def float32_inside(block: nn.Module, x: Tensor) -> Tensor:
    """Everything in float32, rounded once at the end (ONNX Runtime's CPU kernels come near this)."""
    return copy.deepcopy(block).float()(x.float()).to(x.dtype)


def one_thread(block: nn.Module, x: Tensor) -> Tensor:
    """Eager on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return block(x)
    finally:
        torch.set_num_threads(threads)


def without(name: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """Broken: the named sublayer adds nothing."""

    def run(block: nn.Module, x: Tensor) -> Tensor:
        with patch.object(block, name, Zero()):
            return block(x)

    return run


def nothing(block: nn.Module, x: Tensor) -> Tensor:
    """Broken: the block adds nothing."""
    return x.clone()


def flipped(block: nn.Module, x: Tensor) -> Tensor:
    """Broken: the block takes away what it should add."""
    return (2 * x.double() - block(x.double())).to(x.dtype)


def gate_up_swapped(block: nn.Module, x: Tensor) -> Tensor:
    """Broken: gate and up change places."""
    ffn = block.ffn
    with patch.object(ffn, "gate", ffn.up), patch.object(ffn, "up", ffn.gate):
        return block(x)


class Zero(nn.Module):
    """0 x."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """[B, S, D] zeros."""
        return torch.zeros_like(x)


SOUND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "permuted": permuted,
    "split_k": split_k,
    "math_attention": math_attention,
    "decomposed_attention": decomposed_attention,
    "float32_inside": float32_inside,
    "one_thread": one_thread,
}
BROKEN = {
    "no attention": without("attn"),
    "no ffn": without("ffn"),
    "nothing": nothing,
    "flipped": flipped,
    "gate_up_swapped": gate_up_swapped,
}


def onnxruntime_of(
    block: Block, dtype: str, folder: Path
) -> dict[str, Callable[[nn.Module, Tensor], Tensor]]:
    """The exported ONNX graph in ONNX Runtime, optimized and not; it follows the block's weights."""
    import onnxruntime

    from tblock.export import export
    from tblock.export.weights_file import write_weights
    from tblock.manifest import WEIGHTS

    export(block, folder, to=("onnx",), dtype=dtype, golden=False)

    def session(level: onnxruntime.GraphOptimizationLevel) -> Callable[[nn.Module, Tensor], Tensor]:
        def run(block: nn.Module, x: Tensor) -> Tensor:
            write_weights(dict(block.named_parameters()), folder / WEIGHTS)
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = level
            options.log_severity_level = 3
            options.intra_op_num_threads = torch.get_num_threads()
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            runtime = onnxruntime.InferenceSession(folder / "model.onnx", options, ["CPUExecutionProvider"])
            given = {"x": to_array(x)}
            if any(i.name == "padding_mask" for i in runtime.get_inputs()):
                given["padding_mask"] = np.ones(x.shape[:2], bool)
            return torch.from_numpy(runtime.run(["y"], given)[0])

        return run

    levels = onnxruntime.GraphOptimizationLevel
    return {
        "onnxruntime": session(levels.ORT_ENABLE_ALL),
        "onnxruntime_unoptimized": session(levels.ORT_DISABLE_ALL),
    }


def calibrate(case: Case, dtype: str, seeds: int, folder: Path | None) -> list[dict[str, Any]]:
    """All executions of one case in one dtype, a row each; `folder` is scratch, None: eager ones only."""
    single = len(case.configs) == 1
    block = Block(case.configs[0]) if single else Stack(case.configs)
    block = block.requires_grad_(False).to(DTYPES[dtype])
    sound, broken = dict(SOUND), {}
    if single:
        gated = case.configs[0].gated
        broken = {name: run for name, run in BROKEN.items() if gated or run is not gate_up_swapped}
    if single and folder is not None:
        compiled = torch.compile(block, dynamic=True)
        sound["inductor"] = lambda _, x: compiled(x)
        if dtype != "bfloat16":
            sound |= onnxruntime_of(block, dtype, folder)
    verdicts: dict[str, list[Verdict]] = {name: [] for name in (*sound, *broken)}
    for seed in range(seeds):
        weights, states = case.draw(seed, *SHAPES[seed % len(SHAPES)])
        load(block, weights)
        x = torch.from_numpy(states).to(DTYPES[dtype])
        given = {"reference": to_array(block(x.double())), "eager": to_array(block(x)), "inputs": to_array(x)}
        for name, execute in (sound | broken).items():
            verdicts[name].append(judge(output=to_array(execute(block, x)), dtype=dtype, **given))
    torch._dynamo.reset()
    return [
        row(case.name, dtype, name, "sound" if name in sound else "broken", found)
        for name, found in verdicts.items()
    ]


def row(case: str, dtype: str, execution: str, kind: str, verdicts: list[Verdict]) -> dict[str, Any]:
    """One line of the result."""
    ratios = [v.ratio for v in verdicts if v.ratio is not None]
    eager = [v.eager_error for v in verdicts if v.eager_error is not None]
    return {
        "case": case,
        "dtype": dtype,
        "execution": execution,
        "kind": kind,
        "runs": len(verdicts),
        **{s.lower(): sum(v.status == s for v in verdicts) for s in get_args(Judged)},
        **{f"ratio_{n}": rounded(np.quantile(ratios, q)) if ratios else None for n, q in QUANTILES.items()},
        "eager_error_max": rounded(max(eager)) if eager else None,
    }


def rounded(value: float) -> float:
    """Three digits: enough to set a budget by, and the file stays readable."""
    return float(f"{value:.3g}")


def summary(rows: list[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """All sound runs of one dtype together: what the table is held to."""
    sound = [r for r in rows if r["dtype"] == dtype and r["kind"] == "sound"]
    runs = sum(r["runs"] for r in sound)
    trained = [r for r in rows if r["dtype"] == dtype and r["kind"] == "broken" and "layer" in r["case"]]
    return {
        "runs": runs,
        **{s: sum(r[s] for r in sound) / runs for s in ("ambiguous", "fail", "refused")},
        "ratio_max": max(r["ratio_max"] for r in sound if r["ratio_max"] is not None),
        "eager_error_max": max(r["eager_error_max"] for r in sound if r["eager_error_max"] is not None),
        "trained_twins_ratio_median_min": min((r["ratio_median"] for r in trained), default=None),
    }


def main() -> None:
    """Run everything, print a line for each row and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", help="SmolLM2-135M GGUF; without it no trained layers")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    # Asked before the run, which takes long: this is the code that was loaded.
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(
        asked, capture_output=True, text=True, cwd=RESULT.parent, check=False
    ).stdout.strip()
    rows: list[dict[str, Any]] = []
    for case in cases(given.checkpoint):
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory() as scratch:
                found = calibrate(case, dtype, given.seeds, Path(scratch) / "artifact")
            for r in found:
                words = (r[n] for n in ("case", "dtype", "execution", "kind", "ratio_median", "ratio_max"))
                print("{:28} {:9} {:24} {:7} {!s:9} {!s}".format(*words), flush=True)
            rows += found
    result = {
        "budgets": {name: dataclasses.asdict(budget) for name, budget in BUDGETS.items()},
        "summary": {dtype: summary(rows, dtype) for dtype in DTYPES},
        "seeds": given.seeds,
        "shapes": SHAPES,
        "device": f"{platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "versions": {
            n: importlib.metadata.version(n) for n in ("torch", "onnxruntime", "numpy", "ml_dtypes")
        },
        "commit": commit,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rows": rows,
    }
    lines = ",\n".join("  " + json.dumps(r) for r in result.pop("rows"))
    head = json.dumps(result, indent=1).removesuffix("\n}")
    given.output.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
