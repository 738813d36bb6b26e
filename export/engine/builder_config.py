"""The builder's configuration: flags, GPUs, profiles and caches, from our options."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tblock.errors import ConfigError
from tblock.export.engine.options import EngineRequest
from tblock.export.engine.package import Package, set_flag, set_gpus
from tblock.machine import Gpu


@dataclass(frozen=True)
class Settings:
    """A configuration and what the report says of it.

    Attributes:
        config: of the package.
        gpus: which the engine is for.
        timing_cache: where the timing cache lies, or None.
        caches: what to report of other caches.
        keep: what must live as long as the configuration.
    """

    config: Any
    gpus: str
    timing_cache: Path | None
    caches: Mapping[str, str]
    keep: tuple[Any, ...]


def configure(
    trt: Any, found: Package, builder: Any, request: EngineRequest, device: Gpu | None, monitor: Any
) -> Settings:
    """Make the configuration of one build.

    Args:
        trt, found, builder: the package.
        request: what is built.
        device: the machine's GPU.
        monitor: progress monitor, or None.

    Raises:
        ConfigError: an option or profile that this version refuses.
    """
    options = request.options
    config = builder.create_builder_config()
    gpus = set_gpus(trt, config, found, options)
    # On by default; a float32 block with TF32 products is no float32 block.
    config.set_flag(trt.BuilderFlag.TF32) if options.tf32 else config.clear_flag(trt.BuilderFlag.TF32)
    for name in (*["VERSION_COMPATIBLE"] * options.version_compatible, *options.builder_flags):
        set_flag(trt, config, name, found.title)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if request.library is not None and options.version_compatible:
        # Only a version-compatible engine may carry the library; others need it beside them at run time.
        config.plugins_to_serialize = [request.library]
    if monitor is not None and hasattr(config, "progress_monitor"):
        config.progress_monitor = monitor
    profiles = [_add_profile(builder, config, index, request) for index in range(len(request.profiles))]
    path, cache = _timing_cache(found, config, options.cache, trt.__version__, device)
    caches = (
        {}
        if found.compiles_at_build
        else {"runtime": "written at the first load, which compiles for the GPU (JIT)"}
    )
    return Settings(config, gpus, path, caches, (monitor, cache, *profiles))


def _add_profile(builder: Any, config: Any, index: int, request: EngineRequest) -> Any:
    profile = builder.create_optimization_profile()
    for name, (low, opt, high) in request.profiles[index].items():
        profile.set_shape(name, low, opt, high)
    if config.add_optimization_profile(profile) < 0:
        raise ConfigError(f"profile {index}: the builder refuses {dict(request.profiles[index])}")
    return profile


def _timing_cache(
    found: Package, config: Any, folder: str | None, version: str, device: Gpu | None
) -> tuple[Path | None, Any]:
    """Load the timing cache of this version and GPU; TensorRT only. Not executed (needs a GPU)."""
    if folder is None or found.flavour != "tensorrt" or device is None:
        return None, None
    name = f"timing-{version}-{device.name}-{device.compute_capability}".replace(" ", "_").replace("/", "_")
    path = Path(folder, f"{name}.cache")
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return path, cache


def save_caches(settings: Settings) -> dict[str, str]:
    """Write the timing cache back.

    Returns:
        For the report: cache to what became of it.
    """
    if settings.timing_cache is None:
        return dict(settings.caches)
    path = settings.timing_cache
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(memoryview(settings.config.get_timing_cache().serialize()))
    os.replace(fresh, path)
    return {**settings.caches, "timing": path.name}
