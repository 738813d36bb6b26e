"""What an export may be asked, and the checks that come before any work."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tblock.config import BlockConfig
from tblock.dtypes import float_dtype
from tblock.errors import ConfigError, RuntimeUnavailable
from tblock.export.aoti import check_cpu, default_cpu
from tblock.machine import require_cxx_compiler
from tblock.manifest import TensorSpec
from tblock.ranges import Range

ENGINES = ("tensorrt", "tensorrt-rtx")
TARGETS = ("onnx", "aoti", *ENGINES)
OPSETS = (18, 23)
"""Opsets we can write: the last older runtimes take, and the default."""

MOST = 2**31 - 1
"""Of a batch or a sequence: engines count axes in int32."""

DEFAULT_BATCH = Range(1, 1, 8)
DEFAULT_SEQ = Range(1, 128, 2048)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export may be asked besides its source.

    Attributes:
        to: targets, in order; also one text, a comma list.
        dtype: float32, float16 or bfloat16, a spelling of one (fp16), or torch's.
        batch, seq: declared ranges of B and S, also as texts or tuples; seq None: 1:128:2048 within
            max_position.
        opset: of the ONNX graph; None: 23.
        padding_mask: the graph takes `padding_mask` [B, S] bool; None: where attention is bidirectional.
        position_ids: the graph takes `position_ids` [B, S] int64 (left padding with RoPE needs them).
        fusion: `plugin`, `native` or `auto`, for TensorRT; None: auto.
        tf32: let TensorRT multiply float32 in TF32.
        cpu: that AOTInductor compiles for: `x86-64-v3` (AVX2), `x86-64-v4` (AVX512) or `native`; None:
            x86-64-v3, and native where the CPU is no x86.
        golden: write golden data.
        force: replace an artifact that is there.
    """

    to: tuple[str, ...] = ("onnx",)
    dtype: str = "float32"
    batch: Range = DEFAULT_BATCH
    seq: Range | None = None
    opset: int | None = None
    padding_mask: bool | None = None
    position_ids: bool = False
    fusion: Literal["plugin", "native", "auto"] | None = None
    tf32: bool = False
    cpu: str | None = None
    golden: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        to: Any = self.to.split(",") if isinstance(self.to, str) else self.to
        if not isinstance(to, (tuple, list)) or not all(isinstance(name, str) for name in to):
            raise ConfigError(f"to={to!r}: wanted names of targets; known: {', '.join(TARGETS)}")
        object.__setattr__(self, "to", tuple(dict.fromkeys(name.strip() for name in to if name.strip())))
        object.__setattr__(self, "dtype", float_dtype(str(self.dtype).removeprefix("torch.")))
        for name in ("batch", "seq"):
            value: Any = getattr(self, name)
            if not isinstance(value, Range) and (value is not None or name == "batch"):
                numbers = value if isinstance(value, (tuple, list)) else (value,)
                text = ":".join(str(number) for number in numbers)
                object.__setattr__(self, name, Range.parse(text, f"--{name}"))


def checked(
    options: ExportOptions, configs: Sequence[BlockConfig]
) -> tuple[dict[str, Range], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Check a request and say what the graph's ends will be.

    Returns:
        ranges: letter to Range; inputs, outputs: of the graph, in order.

    Raises:
        ConfigError: an unknown target, opset or fusion, an option that nothing would read, a dtype that the
            target cannot compute, or a sequence above max_position.
        RuntimeUnavailable: the target's package is missing.
    """
    for name, value, known in (
        *(("--to", target, TARGETS) for target in options.to),
        ("--opset", options.opset or OPSETS[-1], OPSETS),
        ("--fusion", options.fusion or "auto", ("plugin", "native", "auto")),
    ):
        if value not in known:
            raise ConfigError(f"{name} {value}: unknown; known: {', '.join(map(str, known))}")
    if not options.to:
        raise ConfigError(f"--to: no target; known: {', '.join(TARGETS)}")
    engines = [target for target in ENGINES if target in options.to]
    for name, value, needed in (
        ("--opset", options.opset, ["onnx", *ENGINES]),
        ("--fusion", options.fusion, list(ENGINES)),
        ("--tf32", options.tf32 or None, list(ENGINES)),
        ("--cpu", options.cpu, ["aoti"]),
    ):
        if value is not None and not set(needed) & set(options.to):
            raise ConfigError(f"{name} {value}: nothing would read it; needs --to {' or '.join(needed)}")
    if "onnx" in options.to and options.dtype == "bfloat16":
        raise ConfigError(
            "--to onnx --dtype bfloat16: ONNX Runtime on CPU has no bfloat16 MatMul; "
            "use float32 or float16, or --to aoti or tensorrt-rtx"
        )
    for target in engines:
        package = target.replace("-", "_")
        if importlib.util.find_spec(package) is None:
            raise RuntimeUnavailable(
                f"--to {target}: {package} is not installed; pip install 'tblock[{target}]'"
            )
    if "aoti" in options.to:
        # Inductor takes $CXX or g++, nothing else.
        require_cxx_compiler("--to aoti", "g++")
        check_cpu(options.cpu or default_cpu())
    limit = min(c.max_position for c in configs)
    seq = options.seq or Range(1, min(DEFAULT_SEQ.opt, limit), min(DEFAULT_SEQ.max, limit))
    if seq.max > limit:
        raise ConfigError(f"--seq {seq}: MAX is above the block's max_position; give at most {limit}")
    if options.batch.min < 1 or seq.min < 1:
        raise ConfigError(f"--batch {options.batch} --seq {seq}: MIN must be at least 1")
    if max(options.batch.max, seq.max) > MOST:
        raise ConfigError(f"--batch {options.batch} --seq {seq}: MAX must be at most {MOST}")
    _check_memory(configs)
    return {"B": options.batch, "S": seq}, *_ends(options, configs)


def _check_memory(configs: Sequence[BlockConfig]) -> None:
    """Refuse what this machine cannot hold once: parameters as float32, RoPE tables as they are computed."""
    rope = max(16 * c.max_position * (c.rope_dim or 0) if c.rope else 0 for c in configs)
    needed = 4 * sum(c.parameter_count() for c in configs) + rope
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ConfigError(
            f"{len(configs)} blocks of dim={configs[0].dim}, max_position={configs[0].max_position} take "
            f"{needed >> 30} GiB, this machine has {there >> 30}; export fewer layers"
        )


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
