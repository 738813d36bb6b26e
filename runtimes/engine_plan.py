"""One engine prepared for one set of shapes: context, profile, device buffers and, if wanted, a CUDA graph.

A context per shape, because a CUDA graph stays valid only while its context keeps the shapes it was captured
with. Not executed on a GPU yet.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tblock.errors import ArtifactError, TblockError
from tblock.runtimes.cuda import Cuda

_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "BOOL": "bool"}
"""TensorRT's DataType to ours."""


class Plan:
    """Buffers and context for one set of input shapes; upload, execute, download, on one stream."""

    def __init__(
        self,
        engine: Any,
        cuda: Cuda,
        stream: int,
        profile: int,
        inputs: Mapping[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        graph: bool,
        log: Any,
    ) -> None:
        """Allocate and set everything that stays the same from call to call.

        Args:
            engine: ICudaEngine.
            cuda: calls into the CUDA runtime.
            stream: everything runs on it.
            profile: index of the optimization profile.
            inputs: arrays of the shapes and dtypes to prepare for.
            outputs: host arrays the results are shaped like.
            graph: record the first execution and replay it.
            log: has `last`, TensorRT's last error.

        Raises:
            TblockError: TensorRT or CUDA refuses a step; names it.
        """
        self._cuda, self._stream, self._log = cuda, stream, log
        self._outputs, self._wants_graph, self._graph = outputs, graph, None
        self._inputs: dict[str, np.ndarray] = {}
        self._buffers: dict[str, int] = {}
        self._context = engine.create_execution_context()
        if self._context is None:
            raise TblockError(f"create_execution_context: {log.last}")
        # Also for the only profile: just an engine's first context starts with one set.
        self._require(
            "set_optimization_profile_async", self._context.set_optimization_profile_async(profile, stream)
        )
        for name, array in inputs.items():
            self._require(f"set_input_shape {name}", self._context.set_input_shape(name, tuple(array.shape)))
        for name, array in {**inputs, **outputs}.items():
            self._buffers[name] = cuda.allocate(array.nbytes)
            self._require(
                f"set_tensor_address {name}", self._context.set_tensor_address(name, self._buffers[name])
            )
        missing = self._context.infer_shapes()
        if missing:
            raise TblockError(f"infer_shapes: shapes of {', '.join(missing)} are not known")
        for name, array in outputs.items():
            shape = tuple(self._context.get_tensor_shape(name))
            if shape != array.shape:
                raise ArtifactError(
                    f"output {name}: the engine gives {shape}, the manifest wants {tuple(array.shape)}"
                )

    def upload(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs to the device."""
        self._inputs = dict(arrays)  # alive until the copies are done, which download waits for
        for name, array in arrays.items():
            self._cuda.upload(self._buffers[name], array, self._stream)

    def execute(self) -> None:
        """Launch; does not wait."""
        if self._graph is not None:
            self._cuda.call("cudaGraphLaunch", self._graph, self._stream)
            return
        self._launch()
        if self._wants_graph:
            # The first launch was for real: what TensorRT sets up lazily must not be recorded.
            self._cuda.synchronize(self._stream)
            self._graph = self._record()
            self._wants_graph = False

    def download(self) -> dict[str, np.ndarray]:
        """Wait, and give fresh host arrays."""
        results = {}
        for name, like in self._outputs.items():
            results[name] = np.empty_like(like)
            self._cuda.download(results[name], self._buffers[name], self._stream)
        self._cuda.synchronize(self._stream)
        return results

    def close(self) -> None:
        """Give the device memory back."""
        self._cuda.synchronize(self._stream)
        if self._graph is not None:
            self._cuda.call("cudaGraphExecDestroy", self._graph)
            self._graph = None
        self._context = None
        while self._buffers:
            self._cuda.call("cudaFree", self._buffers.popitem()[1])

    def _launch(self) -> None:
        self._require("execute_async_v3", self._context.execute_async_v3(self._stream))

    def _record(self) -> Any:
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream):
            raise TblockError("cuda_graph: this engine cannot be captured; run it without")
        self._cuda.begin_capture(self._stream)
        self._launch()
        return self._cuda.end_capture(self._stream)

    def _require(self, step: str, done: Any) -> None:
        if not done:
            raise TblockError(f"{step}: {self._log.last}")


def choose_profile(engine: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The optimization profile that takes these shapes, with the nearest optimum (by number of elements).

    Raises:
        ArtifactError: none takes them; lists what each does.
    """
    best, ranges = None, []
    for index in range(engine.num_optimization_profiles):
        distance, fits, limits = 0, True, []
        for name, shape in shapes.items():
            low, opt, high = (tuple(dims) for dims in engine.get_tensor_profile_shape(name, index))
            limits.append(f"{name} {list(low)} .. {list(high)}")
            fits &= len(low) == len(shape) and all(
                a <= n <= b for a, n, b in zip(low, shape, high, strict=True)
            )
            distance += abs(int(np.prod(opt)) - int(np.prod(shape)))
        ranges.append(f"profile {index}: {', '.join(limits)}")
        if fits and (best is None or distance < best[0]):
            best = (distance, index)
    if best is None:
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ArtifactError(f"{given}: no optimization profile of the engine takes it; {'; '.join(ranges)}")
    return best[1]


def dtype_name(data_type: Any) -> str:
    """Our name of a TensorRT DataType, or its own where no artifact has it."""
    return _NAMES.get(data_type.name, data_type.name)
