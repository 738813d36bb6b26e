"""The compile runner: the same rebuilt block as eager, through torch.compile, in as few graphs as can be.

Owns how sizes are made symbolic. Loads torch; compiling for the CPU needs a C++ compiler.
"""

import inspect
import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._dynamo.decorators import mark_unbacked

from tblock.errors import RuntimeUnavailable, reason
from tblock.manifest import Artifact
from tblock.runtimes.eager import EagerRunner
from tblock.runtimes.inputs import DTYPES
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
        if self._device.type == "cpu" and not _compiler():
            raise RuntimeUnavailable(
                "compile: no C++ compiler found; install g++ (Debian: apt-get install g++)"
            )
        self.details |= {"graphs": 0, "symbols": "unbacked" if _SHARED_SYMBOLS else "dynamic"}
        self._compiled = torch.compile(self._module, backend=self._backend, fullgraph=True)
        try:
            self._run(*self._example())
        except torch._dynamo.exc.UserError as error:
            if not _SHARED_SYMBOLS:
                raise
            self.details["symbols"] = f"dynamic: unbacked sizes do not compile here ({reason(error)})"
            self._run(*self._example())

    def _example(self) -> tuple[Arrays, dict[str, int]]:
        manifest = self.artifact.manifest
        sizes = {letter: limits.opt for letter, limits in manifest.ranges.items()}
        arrays: Arrays = {}
        for spec in manifest.inputs:
            shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)
            arrays[spec.name] = np.full(shape, spec.dtype != "int64", DTYPES[spec.dtype])
        return arrays, sizes

    def _backend(self, graph: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        compiled = torch._dynamo.lookup_backend("inductor")(graph, examples)
        # Counted after success: dynamo calls a backend again when it restarts its analysis.
        self.details["graphs"] += 1
        return compiled

    def _call(self, tensors: dict[str, Tensor]) -> Any:
        return self._compiled(**tensors)

    def _tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        tensors = super()._tensors(arrays)
        manifest = self.artifact.manifest
        for spec, tensor in zip(manifest.inputs, tensors.values(), strict=True):
            for axis, dim in enumerate(spec.dims):
                limits = manifest.ranges.get(dim) if isinstance(dim, str) else None
                if limits is None or limits.min == limits.max:
                    continue
                if self.details["symbols"] == "unbacked":
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


def _compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)
