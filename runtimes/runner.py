"""Runner: what every runtime looks like from outside, numpy in and numpy out.

Owns the order of things in a call (check the inputs, put them in place, execute, read) and that whatever a
runtime raises leaves as one of tblock.errors. Each runtime has a file of its own; imports none.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tblock.errors import ExportError, TblockError, reason
from tblock.machine import cpu_name
from tblock.manifest import Artifact
from tblock.runtimes.inputs import check_inputs

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Bound:
    """Inputs in place, ready to be run on again and again.

    Attributes:
        execute: runs once and waits until it is done: what bench times.
        read: the outputs of the last `execute`, by name; valid until the runner's next `run` or `bind`.
    """

    execute: Callable[[], None]
    read: Callable[[], Arrays]


class Runner(ABC):
    """One artifact loaded into one runtime.

    Attributes:
        name: of the runtime, a key of RUNTIMES.
        artifact: what was loaded.
        provider: where it computes: a torch device for eager, compile and aoti, an execution provider for
            onnxruntime, `cuda` for TensorRT.
        device: name of the CPU or GPU.
        covers: what one execution includes, in words; the same for all that compute at the same place.
        details: what is worth recording with a result (node placement, graphs compiled, profile), JSON-ready.
    """

    name: str

    def __init__(self, artifact: Artifact, *, provider: str, device: str | None = None) -> None:
        self.artifact = artifact
        self.provider = provider
        self.device = device or cpu_name()
        self.details: dict[str, Any] = {}

    @property
    def covers(self) -> str:
        """In words."""
        where = "host" if self.provider == "cpu" else f"{self.provider} device"
        return f"one call until its outputs are complete, inputs and outputs in {where} memory, no copies"

    def __call__(self, x: Any, **named: Any) -> Any:
        """Run once.

        Args:
            x: the first input, in the artifact's dtype; numpy, or anything with DLPack on the CPU.
            **named: the other inputs by name: `padding_mask` [B, S] bool, `position_ids` [B, S] int64.

        Returns:
            The output as numpy (bfloat16 as ml_dtypes.bfloat16); a dict by name where there are several.

        Raises:
            TblockError: as `run`.
        """
        outputs = self.run({self.artifact.manifest.inputs[0].name: x, **named})
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once, inputs and outputs by name: `bind`, execute, read, so what is judged is what is timed.

        Raises:
            ArtifactError: an input is outside the manifest.
            ExportError: the runtime failed on it.
        """
        bound = self.bind(inputs)
        bound.execute()
        return bound.read()

    def bind(self, inputs: Mapping[str, Any]) -> Bound:
        """Check and place the inputs once.

        Raises:
            ArtifactError: an input is outside the manifest.
            ExportError: the runtime failed on it.
        """
        arrays, sizes = check_inputs(self.artifact.manifest, inputs)
        with our_errors(self.name):
            bound = self._bind(arrays, sizes)

        def execute() -> None:
            with our_errors(self.name):
                bound.execute()

        def read() -> Arrays:
            with our_errors(self.name):
                return bound.read()

        return Bound(execute, read)

    @abstractmethod
    def _bind(self, arrays: Arrays, sizes: dict[str, int]) -> Bound:
        """As bind, on checked, contiguous arrays; `execute` runs at least once before `read`."""


@contextlib.contextmanager
def our_errors(runtime: str) -> Iterator[None]:
    """Let only errors of ours out.

    Raises:
        ExportError: the runtime raised one of its own; names both.
    """
    try:
        yield
    except TblockError:
        raise
    except Exception as error:  # each runtime has its own kinds
        raise ExportError(f"{runtime}: {type(error).__name__}: {reason(error)}") from error
