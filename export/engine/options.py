"""What the caller may ask of an engine builder, and one build of it: plain values that travel to the builder
process as JSON.

Owns no TensorRT: which package can do what is said in `tblock.export.engine.package`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tblock.errors import ConfigError

Flavour = Literal["tensorrt", "tensorrt-rtx"]
Fusion = Literal["plugin", "native", "auto"]
HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]

Shape = tuple[int, ...]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]
"""One optimization profile: input name to its min, opt and max shape."""

PRECISION_FLAGS = ("fp16", "bf16", "int8", "fp8", "int4", "best", "noTF32")
"""Spellings of trtexec and of weakly typed TensorRT that a strongly typed network has no use for."""

STRIPPING_FLAGS = ("strip_plan", "refit", "refit_individual", "refit_identical", "weight_streaming")
"""Ask for an engine whose weights come from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How to build.

    Attributes:
        fusion: `plugin`: every fused node becomes a layer of our plugin library; `native`: TensorRT sees the
            bodies; `auto`: both are built and the faster correct one is kept (TensorRT), native on
            TensorRT-RTX.
        tf32: allow float32 matrix products to round their inputs to TF32.
        optimization_level: 0 .. 5, or None for the package's own.
        workspace: limit of scratch memory (bytes), or None.
        version_compatible: run on later versions of the same major (TensorRT).
        hardware_compatibility: run on other GPUs than the builder's (TensorRT).
        compute_capabilities: GPUs to build for, such as `8.6` (TensorRT-RTX). Empty: the package's portable
            default.
        builder_flags: further `BuilderFlag` names, for what has no option here.
        plugin_library: path of the plugin library; None: the one `tblock plugin build` made.
        cache: folder of the engine and timing caches; None: no cache.
        timeout: of one build (seconds).
        progress: show the builder's phases on stderr.
    """

    fusion: Fusion = "auto"
    tf32: bool = False
    optimization_level: int | None = None
    workspace: int | None = None
    version_compatible: bool = False
    hardware_compatibility: HardwareCompatibility = "none"
    compute_capabilities: tuple[str, ...] = ()
    builder_flags: tuple[str, ...] = ()
    plugin_library: str | None = None
    cache: str | None = None
    timeout: float = 3600.0
    progress: bool = True

    def __post_init__(self) -> None:
        if self.fusion not in get_args(Fusion):
            raise ConfigError(f"--fusion {self.fusion}: known: {', '.join(get_args(Fusion))}")
        if self.hardware_compatibility not in get_args(HardwareCompatibility):
            known = ", ".join(get_args(HardwareCompatibility))
            raise ConfigError(f"hardware_compatibility={self.hardware_compatibility}: known: {known}")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise ConfigError(f"optimization_level={self.optimization_level}: must be 0 .. 5")
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout={self.timeout}: must be above 0 and finite (seconds)")
        for flag in self.builder_flags:
            _refuse_flag(flag)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EngineOptions":
        """Inverse of `to_dict`, also after a trip through JSON."""
        lists = {f.name for f in fields(cls) if isinstance(f.default, tuple)}
        kept: dict[str, Any] = {n: tuple(v) if n in lists else v for n, v in values.items()}
        return cls(**kept)

    def shaping(self) -> dict[str, Any]:
        """The options that change the engine's bytes: part of the engine cache's key."""
        kept = self.to_dict()
        for name in ("fusion", "plugin_library", "cache", "timeout", "progress"):
            del kept[name]
        return kept


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One engine to build: what the parent decides, the builder process does and the cache's key is made of.

    Attributes:
        onnx, output: absolute paths of the graph and the engine.
        flavour, profiles, options: as asked.
        opset, ir_version, fused, fused_nodes, plugin_versions: of the graph, as in OnnxFacts.
        data: absolute paths of the files with its weights.
        fusion: `plugin` or `native`.
        fusion_reason: for the report.
        library: path of the plugin library, with `plugin`.
    """

    onnx: str
    output: str
    flavour: Flavour
    profiles: tuple[Profile, ...]
    options: EngineOptions
    opset: int
    ir_version: int
    fused: dict[str, int]
    fused_nodes: tuple[str, ...]
    plugin_versions: dict[str, str]
    data: tuple[str, ...]
    fusion: Literal["plugin", "native"] = "native"
    fusion_reason: str = ""
    library: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EngineRequest":
        """Inverse of `to_dict`, also after a trip through JSON."""
        profiles: Any = tuple(
            {name: tuple(map(tuple, shapes)) for name, shapes in p.items()} for p in values["profiles"]
        )
        lists = {name: tuple(values[name]) for name in ("fused_nodes", "data")}
        options = EngineOptions.from_dict(values["options"])
        return cls(**{**values, **lists, "profiles": profiles, "options": options})


def _refuse_flag(flag: str) -> None:
    plain = flag.lower().lstrip("-")
    if plain in (name.lower() for name in PRECISION_FLAGS) and plain != "notf32":
        raise ConfigError(
            f"builder flag {flag}: the network is strongly typed, its dtypes come from the graph; "
            f"export with --dtype instead (for example tblock export --dtype {_dtype(plain)})"
        )
    if plain in STRIPPING_FLAGS:
        raise ConfigError(
            f"builder flag {flag}: an engine is written with its weights; nothing here can put them back"
        )
    if plain in ("tf32", "notf32"):
        raise ConfigError(f"builder flag {flag}: TF32 is off unless asked for; use --tf32 (option tf32=True)")


def _dtype(flag: str) -> str:
    return {"bf16": "bfloat16"}.get(flag, "float16")


def default_library() -> Path | None:
    """The plugin library that was built or came with the package, or None."""
    try:
        from tblock.export import plugins

        path = plugins.library_path()
    except (ImportError, AttributeError, OSError):
        return None
    return Path(path) if path is not None and Path(path).is_file() else None


def library_for(targets: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The plugin library that is here, where an engine among a manifest's targets has plugin layers."""
    needed = any(entry.get("fusion") == "plugin" for entry in targets.values())
    library = default_library() if needed else None
    return None if library is None else str(library)
