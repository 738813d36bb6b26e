"""The eager runner: the block itself, rebuilt from config and weights; the capture is never its own judge.

Owns `TorchRunner`, which compile and aoti share, and `build_module`. Loads torch.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor, nn

from tblock.block import ARGUMENTS, Block, Stack
from tblock.errors import ArtifactError, ConfigError, RuntimeUnavailable
from tblock.manifest import WEIGHTS, Artifact
from tblock.runtimes.runner import Arrays, Bound, Runner
from tblock.weights import DTYPES, fill, to_array, to_tensor


class TorchRunner(Runner):
    """What is called with torch tensors: eager, compile and aoti."""

    def __init__(self, artifact: Artifact, *, provider: str, threads: int | None) -> None:
        """Choose the device.

        Args:
            artifact: to run.
            provider: `cpu` or `cuda`.
            threads: torch's, for the whole process; None: as they are.

        Raises:
            ArtifactError: another provider.
            RuntimeUnavailable: no such device here.
        """
        self._device = torch_device(self.name, provider)
        super().__init__(
            artifact,
            provider=provider,
            device=torch.cuda.get_device_name() if self._device.type == "cuda" else None,
        )
        if threads is not None:
            torch.set_num_threads(threads)

    @abstractmethod
    def _call(self, tensors: dict[str, Tensor]) -> Any:
        """One call on tensors by input name, on the device."""

    def _bind(self, arrays: Arrays, sizes: dict[str, int]) -> Bound:
        tensors = self._tensors(arrays)
        values: list[Any] = [None]

        def execute() -> None:
            with torch.inference_mode():
                values[0] = self._call(tensors)
            if self._device.type == "cuda":
                torch.cuda.synchronize()

        def read() -> Arrays:
            (result,) = values
            found = result if isinstance(result, (tuple, list)) else (result,)
            specs = self.artifact.manifest.outputs
            return {spec.name: to_array(value) for spec, value in zip(specs, found, strict=True)}

        return Bound(execute, read)

    def _tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        return {name: as_tensor(array).to(self._device) for name, array in arrays.items()}


class EagerRunner(TorchRunner):
    """Block or Stack called as plain PyTorch."""

    name = "eager"

    def __init__(
        self, artifact: Artifact, *, provider: str | None = None, threads: int | None = None
    ) -> None:
        """Build and fill the block.

        Args:
            artifact: any; its weights.safetensors is read.
            provider: `cpu` (the default) or `cuda`.
            threads: torch's, for the whole process; None: as they are.

        Raises:
            RuntimeUnavailable: no such device here.
            ArtifactError: weights missing, damaged or not those of the config.
        """
        super().__init__(artifact, provider=provider or "cpu", threads=threads)
        self._module = build_module(artifact).to(self._device)

    def _call(self, tensors: dict[str, Tensor]) -> Any:
        return self._module(**{ARGUMENTS[name]: tensor for name, tensor in tensors.items()})


def build_module(artifact: Artifact) -> nn.Module:
    """The Block, or the Stack of several, in the artifact's dtype with its weights, on the CPU.

    Raises:
        ArtifactError: weights missing, damaged or not those of the config.
    """
    manifest = artifact.manifest
    if manifest.unread:
        raise ArtifactError(
            f"{artifact.folder}: its block has {', '.join(manifest.unread)}, unknown to this tblock; "
            "use a newer one, or a runtime of its targets"
        )
    path = artifact.path(WEIGHTS)
    try:
        weights = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ArtifactError(f"{path}: not a safetensors file ({error}); export again") from None
    with torch.device("meta"):
        single = len(manifest.configs) == 1 and not any(name.startswith("layers.") for name in weights)
        module: nn.Module = Block(manifest.configs[0]) if single else Stack(manifest.configs)
    try:
        fill(module, weights, dtype=DTYPES[manifest.dtype], where=str(path), tied=manifest.source.get("tied"))
    except ConfigError as error:
        raise ArtifactError(f"{error}; export again") from None
    return module.eval()


def torch_device(runtime: str, provider: str) -> torch.device:
    """The torch device of a provider word.

    Raises:
        ArtifactError: neither cpu nor cuda.
        RuntimeUnavailable: torch sees no GPU.
    """
    if provider not in ("cpu", "cuda"):
        raise ArtifactError(f"provider {provider!r}: unknown to {runtime}; known: cpu, cuda")
    if provider == "cuda" and not torch.cuda.is_available():
        raise RuntimeUnavailable(
            f"{runtime}: torch {torch.__version__} sees no CUDA device; use --provider cpu"
        )
    return torch.device(provider)


def as_tensor(array: np.ndarray) -> Tensor:
    """numpy to torch; shares memory where torch can."""
    # torch warns about sharing read-only memory, so such an array is copied.
    return to_tensor(array if array.flags.writeable else array.copy())
