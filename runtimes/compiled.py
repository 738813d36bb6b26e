"""The compile runner: the same rebuilt block as eager, through torch.compile, in as few graphs as can be.

Owns how sizes are made symbolic. Loads torch; compiling for the CPU needs a C++ compiler.
"""

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._dynamo.decorators import mark_unbacked

from tblock.block import ARGUMENTS
from tblock.dtypes import DTYPES
from tblock.errors import ExportError, reason
from tblock.machine import require_cxx_compiler
from tblock.manifest import Artifact
from tblock.runtimes.eager import EagerRunner
from tblock.runtimes.runner import Arrays

_SHARED_SYMBOLS = "shape_id" in inspect.signature(mark_unbacked).parameters
"""Unbacked dimensions can share a symbol: torch 2.13 has it, 2.11 has not."""


class CompileRunner(EagerRunner):
    """torch.compile(fullgraph=True); every declared dimension is one symbol that is free to be 1.

    Dynamic sizes alone compile anew for size 1, up to four graphs for B and S. Unbacked symbols with the
    manifest's limits make one graph do. Where torch lacks them (2.11) or cannot compile the block with them,
    sizes are dynamic as usual; `details["symbols"]` says which it is, `details["graphs"]` how many graphs.
    """

    name = "compile"

    def __init__(
        self, artifact: Artifact, *, provider: str | None = None, threads: int | None = None
    ) -> None:
        """Build the block and compile its first graph. Args and Raises as EagerRunner.

        Raises:
            RuntimeUnavailable: also when there is no C++ compiler.
        """
        super().__init__(artifact, provider=provider, threads=threads)
        if self._device.type == "cpu":
            require_cxx_compiler(self.name, "g++", "clang++")
        attempts = ["dynamic"]
        if _SHARED_SYMBOLS:
            attempts.insert(0, "unbacked")
        self.details |= {"graphs": 0, "symbols": attempts[0]}
        self._compiled = torch.compile(_own_code(self._module), backend=self._backend, fullgraph=True)
        for attempt in attempts:
            self._symbols = attempt
            try:
                self._bind(*self._example()).execute()
                return
            except Exception as error:  # dynamo and inductor raise dozens of kinds
                failed = error
                self.details["symbols"] = f"dynamic: unbacked sizes do not compile here ({reason(error)})"
        raise ExportError(f"{self.name}: torch.compile failed: {reason(failed)}") from failed

    def _example(self) -> tuple[Arrays, dict[str, int]]:
        manifest = self.artifact.manifest
        sizes = {letter: limits.opt for letter, limits in manifest.ranges.items()}
        arrays: Arrays = {}
        for spec in manifest.inputs:
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)
            arrays[spec.name] = np.full(shape, spec.dtype != "int64", DTYPES[spec.dtype].numpy)
        return arrays, sizes

    def _backend(self, graph: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        compiled = torch._dynamo.lookup_backend("inductor")(graph, examples)
        # Counted after success: dynamo calls a backend again when it restarts its analysis.
        self.details["graphs"] += 1
        return compiled

    def _call(self, tensors: dict[str, Tensor]) -> Any:
        return self._compiled(**{ARGUMENTS[name]: tensor for name, tensor in tensors.items()})

    def _tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        tensors = super()._tensors(arrays)
        manifest = self.artifact.manifest
        for spec, tensor in zip(manifest.inputs, tensors.values(), strict=True):
            for axis, dim in enumerate(spec.dims):
                limits = manifest.ranges.get(dim) if isinstance(dim, str) else None
                if limits is None or limits.min == limits.max:
                    continue
                if self._symbols == "unbacked":
                    mark_unbacked(
                        tensor,
                        axis,
                        hint_override=limits.opt,
                        shape_id=str(dim),
                        min=limits.min,
                        max=limits.max,
                    )
                else:
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)
        return tensors


def _own_code(module: nn.Module) -> Callable[..., Any]:
    """A call of the module with a code object of its own.

    Dynamo counts recompilations per code object, and every Block shares that of Block.forward: the ninth
    block compiled in a process would be refused.
    """

    def forward(**arguments: Tensor) -> Any:
        return module(**arguments)

    return types.FunctionType(forward.__code__.replace(), forward.__globals__, closure=forward.__closure__)
