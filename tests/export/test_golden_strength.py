"""Golden data of seeded presets is strong enough.

A block with a sublayer removed or gate and up swapped fails by it.
"""

import copy
import functools
from collections.abc import Callable

import pytest
import torch

from tblock import Block, preset
from tblock.export.block_source import ConfigSource
from tblock.export.golden_cases import make_golden
from tblock.golden import GoldenCase
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.runtimes.verdict import judge
from tblock.weights import DTYPES, to_array, to_tensor

RANGES = {"B": Range(1, 1, 8), "S": Range(1, 16, 64)}


def _swap(block: Block) -> None:
    block.ffn.gate, block.ffn.up = block.ffn.up, block.ffn.gate


def _no_attention(block: Block) -> None:
    block.attn.forward = lambda x, *_: torch.zeros_like(x)


def _no_ffn(block: Block) -> None:
    block.ffn.forward = torch.zeros_like


FAULTS = {"sound": lambda block: None, "swap": _swap, "no attention": _no_attention, "no ffn": _no_ffn}
ROWS = [
    (name, fault)
    for name in ("tiny", "smollm2-135m", "gpt2", "bert-base")
    for fault in FAULTS
    if fault != "swap" or preset(name).gated
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "fault"), ROWS, ids=[f"{n}-{f}".replace(" ", "-") for n, f in ROWS])
def test_golden_data_of_preset_passes_sound_and_fails_faulty_block(name: str, fault: str, dtype: str) -> None:
    block, cases = _golden(name, dtype)
    block = copy.deepcopy(block)
    FAULTS[fault](block)
    passed = all(_passes(case, block, dtype) for case in cases)
    assert passed == (fault == "sound")


@functools.cache
def _golden(name: str, dtype: str) -> tuple[Block, list[GoldenCase]]:
    config = preset(name)
    source = ConfigSource(config, layers=range(1), description={})
    block = source.module(DTYPES[dtype])
    inputs = [TensorSpec(name="x", dims=("B", "S", config.dim), dtype=dtype)]
    outputs = [TensorSpec(name="y", dims=("B", "S", config.dim), dtype=dtype, residual="x")]
    return block, make_golden(source, block, inputs, outputs, RANGES, dtype)


def _passes(case: GoldenCase, block: Callable[[torch.Tensor], torch.Tensor], dtype: str) -> bool:
    x = case.inputs["x"]
    with torch.no_grad():
        y = to_array(block(to_tensor(x)))
    verdict = judge(output=y, reference=case.reference["y"], eager=case.eager["y"], inputs=x, dtype=dtype)
    return verdict.passed
