"""How the packages `tensorrt` 10.13+, `tensorrt` 11 and `tensorrt_rtx` differ; the rest is one code path.

| | tensorrt 10.13+ | tensorrt 11 | tensorrt_rtx 1.5+ |
| --- | --- | --- | --- |
| needs a GPU to build | yes | yes | no |
| network | STRONGLY_TYPED flag | strongly typed only; the flag may be gone | always in force |
| fp16, bf16 builder flags | exist, refused with a strongly typed network | gone | gone |
| plugin layers | IPluginV3 | IPluginV3 | none: its parser ends the process at one |
| IAttention | 10.14 on | yes | yes |
| portability | hardware_compatibility_level | the same | compute capabilities; the level is ignored |
| VERSION_COMPATIBLE | yes | yes | the flag exists, its lean runtime library does not |
| cache | timing cache, at build | timing cache | timing cache does nothing; runtime cache, at load (JIT) |

Measured with tensorrt_rtx 1.7.1 on Linux without a GPU; the two other columns are from the API reference of
10.13 and 11.0 and were not executed. What differs between versions of one package is probed with hasattr,
never by comparing versions.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tblock.errors import ConfigError, RuntimeUnavailable
from tblock.export.engine.options import EngineOptions, Flavour


@dataclass(frozen=True, kw_only=True)
class Package:
    """One TensorRT package.

    Attributes:
        flavour: our name.
        module: Python module.
        title: for messages.
        plugins: whether a network can hold plugin layers.
        compiles_at_build: whether an engine holds GPU code; otherwise it is compiled when it is loaded.
        builds_without_gpu: whether the builder runs on a machine without a GPU.
        default_gpus: the GPUs that an engine is for when nothing is asked.
    """

    flavour: Flavour
    module: str
    title: str
    plugins: bool
    compiles_at_build: bool
    builds_without_gpu: bool
    default_gpus: str


PACKAGES: dict[str, Package] = {
    "tensorrt": Package(
        flavour="tensorrt",
        module="tensorrt",
        title="TensorRT",
        plugins=True,
        compiles_at_build=True,
        builds_without_gpu=False,
        default_gpus="the builder's GPU model",
    ),
    "tensorrt-rtx": Package(
        flavour="tensorrt-rtx",
        module="tensorrt_rtx",
        title="TensorRT-RTX",
        plugins=False,
        compiles_at_build=False,
        builds_without_gpu=True,
        # NVIDIA TensorRT-RTX support matrix, 1.1 to 1.5: the default is portable across these.
        default_gpus="portable default (compute capability 8.6, 8.9, 12.0)",
    ),
}


def package(flavour: str) -> Package:
    """The package of a flavour.

    Raises:
        ConfigError: an unknown flavour.
    """
    if flavour not in PACKAGES:
        raise ConfigError(f"--runtime {flavour}: engines can be built for: {', '.join(PACKAGES)}")
    return PACKAGES[flavour]


def require(flavour: str) -> Package:
    """The package, found importable (it is imported in the builder process only).

    Raises:
        RuntimeUnavailable: not installed.
    """
    found = package(flavour)
    if not installed(found):
        raise _missing(found, "not installed")
    return found


def installed(found: Package) -> bool:
    """Whether the package can be found, without importing it."""
    return importlib.util.find_spec(found.module) is not None


def load(found: Package) -> ModuleType:
    """Import the package.

    Raises:
        RuntimeUnavailable: it cannot be imported.
    """
    try:
        return importlib.import_module(found.module)
    except (ImportError, OSError) as error:
        raise _missing(found, f"cannot be imported ({str(error).splitlines()[0]})") from error


def _missing(found: Package, why: str) -> RuntimeUnavailable:
    return RuntimeUnavailable(
        f"{found.flavour}: Python package {found.module} is {why}; pip install 'tblock[{found.flavour}]'"
    )


def check_options(found: Package, options: EngineOptions, gpu: str | None) -> None:
    """Refuse what this package or machine cannot do, before the builder is asked.

    Args:
        found: the package.
        options: as asked.
        gpu: the machine's first GPU, or None.

    Raises:
        ConfigError: an option of the other flavour.
        RuntimeUnavailable: a GPU is needed.
    """
    if gpu is None and not found.builds_without_gpu:
        raise RuntimeUnavailable(
            f"{found.flavour}: TensorRT needs an NVIDIA GPU to build, none was found; "
            "tensorrt-rtx builds without one"
        )
    if found.flavour == "tensorrt-rtx":
        if options.version_compatible:
            raise ConfigError(
                "version_compatible: TensorRT-RTX has no version-compatible engines (no lean runtime); "
                "build again for each version"
            )
        if options.hardware_compatibility != "none":
            raise ConfigError(
                f"hardware_compatibility={options.hardware_compatibility}: TensorRT-RTX engines are portable "
                "already; narrow them with compute_capabilities"
            )
        if options.fusion == "plugin":
            raise ConfigError(
                "--fusion plugin: TensorRT-RTX has no plugin layers (its parser ends the process at one); "
                "use --fusion native, or --runtime tensorrt"
            )
    elif options.compute_capabilities:
        raise ConfigError(
            "compute_capabilities: only TensorRT-RTX builds for named GPUs; "
            "use hardware_compatibility with TensorRT"
        )


def network_flags(trt: Any) -> int:
    """The creation flags of a strongly typed network."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def set_flag(trt: Any, config: Any, name: str, title: str) -> None:
    """Set a builder flag by name.

    Raises:
        ConfigError: this version has no such flag.
    """
    flag = getattr(trt.BuilderFlag, name.upper(), None)
    if flag is None:
        known = ", ".join(sorted(trt.BuilderFlag.__members__))
        raise ConfigError(f"builder flag {name}: {title} {trt.__version__} has: {known}")
    config.set_flag(flag)


def set_gpus(trt: Any, config: Any, found: Package, options: EngineOptions) -> str:
    """Say which GPUs the engine is for.

    Returns:
        For the report.

    Raises:
        ConfigError: a compute capability that this version cannot build for.
    """
    if options.hardware_compatibility != "none":
        level = options.hardware_compatibility.upper()
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
        return f"hardware compatible: {options.hardware_compatibility}"
    if not options.compute_capabilities:
        return found.default_gpus
    config.num_compute_capabilities = len(options.compute_capabilities)
    for index, wanted in enumerate(options.compute_capabilities):
        member = trt.ComputeCapability.__members__.get(f"SM{wanted.replace('.', '')}")
        if member is None:
            names = [n[2:] for n in trt.ComputeCapability.__members__ if n.startswith("SM")]
            known = ", ".join(f"{n[:-1]}.{n[-1]}" for n in names)
            raise ConfigError(
                f"compute capability {wanted}: {found.title} {trt.__version__} builds for {known}"
            )
        config.set_compute_capability(member, index)
    return "compute capability " + ", ".join(options.compute_capabilities)
