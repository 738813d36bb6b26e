"""What was built and why: the record of one engine, ready for JSON, the manifest and the terminal."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """One engine.

    Attributes:
        flavour: `tensorrt` or `tensorrt-rtx`.
        builder: version of the package that built it.
        file: name of the engine.
        seconds: wall time of parsing and building.
        bytes: size of the engine.
        opset, ir_version: of the ONNX file.
        layers: layer type to count, in the parsed network.
        reductions: dtype to count of the REDUCE and NORMALIZATION layers over activations (all
            FLOAT).
        softmax: what the softmax computes in: `float32`, another dtype, or `kernel` where the builder's fused
            kernel decides.
        softmax_reason: why.
        attention: one entry per attention layer: `layer`, `kernel` (dedicated or decomposable), `reason`.
        fusion: `plugin` or `native`, what the engine uses.
        fusion_reason: why.
        fused: fused op_type to count, in the ONNX graph.
        plugin_layers: plugin layers in the parsed network.
        trials: of `--fusion auto`: one entry per build: `fusion`, `correct`, `milliseconds`, `detail`.
        tf32: whether float32 products may round to TF32.
        profiles: input name to [min, opt, max] shape, one entry per optimization profile.
        compute_capability: the GPUs that the engine is for.
        hardware_compatibility, version_compatible: as built.
        device: the builder's GPU, or None.
        caches: what the timing, runtime and engine caches did, by name.
        cached: whether the engine came from the engine cache.
        executed: whether the engine ran on a GPU here; building alone proves that it was accepted, not that
            it is right.
        warnings: one line each.
    """

    flavour: str
    builder: str
    file: str
    seconds: float
    bytes: int
    opset: int
    ir_version: int
    layers: dict[str, int]
    reductions: dict[str, int]
    softmax: str
    softmax_reason: str
    attention: list[dict[str, str]]
    fusion: str
    fusion_reason: str
    fused: dict[str, int]
    plugin_layers: int
    tf32: bool
    profiles: list[dict[str, list[list[int]]]]
    compute_capability: str
    hardware_compatibility: str
    version_compatible: bool
    device: str | None
    caches: dict[str, str]
    trials: list[dict[str, Any]] = field(default_factory=list)
    cached: bool = False
    executed: bool = False
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EngineReport":
        """Inverse of `to_dict`, also after a trip through JSON."""
        return cls(**values)

    def lines(self) -> list[str]:
        """For people: what was built, and each choice with its reason."""
        text = [
            f"{self.file}: {self.bytes:,} bytes by {self.flavour} {self.builder} in {self.seconds:.1f} s"
            + (" (from the engine cache)" if self.cached else ""),
            f"GPUs: {self.compute_capability}; TF32 {'on' if self.tf32 else 'off'}; "
            f"{len(self.profiles)} profile(s)",
            f"fusion: {self.fusion} ({self.fusion_reason})",
        ]
        text.append(f"softmax: {self.softmax} ({self.softmax_reason})")
        for entry in self.attention:
            text.append(f"attention {entry['layer']}: {entry['kernel']} ({entry['reason']})")
        return text + [f"warning: {line}" for line in self.warnings]
