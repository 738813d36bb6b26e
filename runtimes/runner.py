"""Runner: what every runtime looks like from outside, numpy in and numpy out.

Owns the order of things in a call (check the inputs, then execute); each runtime has a file of its own.
Imports no runtime.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tblock.manifest import Artifact
from tblock.runtimes import machine
from tblock.runtimes.inputs import check_inputs

Arrays = dict[str, np.ndarray]


class Runner(ABC):
    """One artifact loaded into one runtime.

    Attributes:
        name: of the runtime (DESIGN section 3).
        artifact: what was loaded.
        provider: where it computes: a torch device for eager, compile and aoti, an execution provider for
            onnxruntime, a `cuda` for TensorRT.
        device: name of the CPU or GPU.
        details: what is worth recording with a result (node placement, graphs compiled, profile), JSON-ready.
    """

    name: str

    def __init__(self, artifact: Artifact, *, provider: str, device: str | None = None) -> None:
        self.artifact = artifact
        self.provider = provider
        self.device = device or machine.cpu_name()
        self.details: dict[str, Any] = {}

    def __call__(self, x: Any, **named: Any) -> Any:
        """Run once.

        Args:
            x: [B, S, D] in the artifact's dtype; numpy, or anything with DLPack on the CPU.
            **named: the other inputs by name: `padding_mask` [B, S] bool, `position_ids` [B, S] int64.

        Returns:
            The output as numpy (bfloat16 as ml_dtypes.bfloat16); a dict by name where there are several.

        Raises:
            ArtifactError: an input is outside the manifest.
        """
        outputs = self.run({"x": x, **named})
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once, inputs and outputs by name. Raises as `__call__`."""
        arrays, sizes = check_inputs(self.artifact.manifest, inputs)
        return self._run(arrays, sizes)

    def bind(self, inputs: Mapping[str, Any]) -> Callable[[], None]:
        """Check and place the inputs once, for timing.

        Returns:
            A function that executes on them and waits until it is done.

        Raises:
            ArtifactError: an input is outside the manifest.
        """
        return self._bind(*check_inputs(self.artifact.manifest, inputs))

    @abstractmethod
    def _run(self, arrays: Arrays, sizes: dict[str, int]) -> Arrays:
        """Execute on checked, contiguous arrays."""

    @abstractmethod
    def _bind(self, arrays: Arrays, sizes: dict[str, int]) -> Callable[[], None]:
        """As bind, on checked arrays."""
