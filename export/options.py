"""What an export may be asked, and the checks that come before any work."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tblock.config import BlockConfig
from tblock.errors import ConfigError, ExportError, RuntimeUnavailable
from tblock.manifest import TensorSpec
from tblock.ranges import Range
from tblock.weights import DTYPES

TARGETS = ("onnx", "aoti", "tensorrt", "tensorrt-rtx")
OPSETS = (18, 23)
"""Opsets we can write: the last older runtimes take, and the default."""

DEFAULT_BATCH = Range(1, 1, 8)
DEFAULT_SEQ = Range(1, 128, 2048)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export may be asked besides its source.

    Attributes:
        to: targets, in order.
        dtype: float32, float16 or bfloat16.
        batch, seq: declared ranges of B and S; seq None: 1:128:2048 within max_position.
        opset: of the ONNX graph.
        padding_mask: the graph takes `padding_mask` [B, S] bool; None: where attention is bidirectional.
        position_ids: the graph takes `position_ids` [B, S] int64 (left padding with RoPE needs them).
        fusion: `plugin`, `native` or `auto`, for TensorRT.
        tf32: let TensorRT multiply float32 in TF32.
        golden: write golden data.
        force: replace an artifact that is there.
    """

    to: tuple[str, ...] = ("onnx",)
    dtype: str = "float32"
    batch: Range = DEFAULT_BATCH
    seq: Range | None = None
    opset: int = 23
    padding_mask: bool | None = None
    position_ids: bool = False
    fusion: Literal["plugin", "native", "auto"] = "auto"
    tf32: bool = False
    golden: bool = True
    force: bool = False


def checked(
    options: ExportOptions, configs: Sequence[BlockConfig]
) -> tuple[dict[str, Range], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Check a request and say what the graph's ends will be.

    Returns:
        ranges: letter to Range; inputs, outputs: of the graph, in order.

    Raises:
        ConfigError: an unknown target, dtype, opset or fusion, or a sequence above max_position.
        ExportError: the target cannot compute the dtype.
        RuntimeUnavailable: the target's package is missing.
    """
    for name, value, known in (
        *(("--to", target, TARGETS) for target in options.to),
        ("--dtype", options.dtype, tuple(DTYPES)),
        ("--opset", options.opset, OPSETS),
        ("--fusion", options.fusion, ("plugin", "native", "auto")),
    ):
        if value not in known:
            raise ConfigError(f"{name} {value}: unknown; known: {', '.join(map(str, known))}")
    if not options.to:
        raise ConfigError(f"--to: no target; known: {', '.join(TARGETS)}")
    if "onnx" in options.to and options.dtype == "bfloat16":
        raise ExportError(
            "--to onnx --dtype bfloat16: ONNX Runtime on CPU has no bfloat16 MatMul; "
            "use float32 or float16, or --to tensorrt-rtx"
        )
    for target, package in (("tensorrt", "tensorrt"), ("tensorrt-rtx", "tensorrt_rtx")):
        if target in options.to and importlib.util.find_spec(package) is None:
            raise RuntimeUnavailable(
                f"--to {target}: {package} is not installed; pip install 'tblock[{target}]'"
            )
    limit = min(c.max_position for c in configs)
    seq = options.seq or Range(1, min(DEFAULT_SEQ.opt, limit), min(DEFAULT_SEQ.max, limit))
    if seq.max > limit:
        raise ConfigError(f"--seq {seq}: MAX is above max_position={limit}")
    if options.batch.min < 1 or seq.min < 1:
        raise ConfigError(f"--batch {options.batch} --seq {seq}: MIN must be at least 1")
    return {"B": options.batch, "S": seq}, *_ends(options, configs)


def _ends(
    options: ExportOptions, configs: Sequence[BlockConfig]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    hidden = ("B", "S", configs[0].dim)
    inputs = [TensorSpec(name="x", dims=hidden, dtype=options.dtype)]
    bidirectional = not all(c.causal for c in configs)
    if bidirectional if options.padding_mask is None else options.padding_mask:
        inputs.append(TensorSpec(name="padding_mask", dims=("B", "S"), dtype="bool"))
    if options.position_ids:
        if not any(c.rope for c in configs):
            raise ConfigError("position_ids=True: the block has no RoPE, so nothing would read them")
        inputs.append(TensorSpec(name="position_ids", dims=("B", "S"), dtype="int64"))
    live = next((spec.name for spec in inputs if spec.name == "padding_mask"), None)
    y = TensorSpec(name="y", dims=hidden, dtype=options.dtype, residual="x", live=live)
    return tuple(inputs), (y,)
