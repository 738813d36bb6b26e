"""The few CUDA runtime calls a TensorRT runner needs, through cuda-python, each with its error checked.

Owns device memory, streams and graphs. Not executed on a GPU yet; signatures checked against cuda-bindings
13.5.
"""

from typing import Any

import numpy as np

from tblock.errors import RuntimeUnavailable, TblockError


class Cuda:
    """cuda.bindings.runtime with exceptions.

    Every function there returns a tuple whose first element is a cudaError_t.
    """

    def __init__(self, runtime: Any) -> None:
        """Wrap the module (or a stand-in for it)."""
        self._runtime = runtime

    @classmethod
    def load(cls, asked_by: str, extra: str) -> "Cuda":
        """Import cuda-python.

        Raises:
            RuntimeUnavailable: it is not installed.
        """
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise RuntimeUnavailable(
                f"{asked_by}: cuda-python is not installed ({error}); pip install 'tblock[{extra}]'"
            ) from None
        return cls(runtime)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call and check.

        Returns:
            What comes after the error code: nothing, a value or a tuple.

        Raises:
            TblockError: the call failed; names it and CUDA's reason.
        """
        code, *values = getattr(self._runtime, function)(*arguments)
        if int(code) != 0:
            _, text = self._runtime.cudaGetErrorString(code)
            reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            raise TblockError(f"{function}: {reason} (cudaError {int(code)})")
        return values[0] if len(values) == 1 else tuple(values) or None

    def stream(self) -> int:
        """A new stream that does not wait for the default one."""
        return int(self.call("cudaStreamCreateWithFlags", self._runtime.cudaStreamNonBlocking))

    def allocate(self, size: int) -> int:
        """Device memory of at least one byte: TensorRT takes no null address for an empty tensor."""
        return int(self.call("cudaMalloc", max(size, 1)))

    def upload(self, pointer: int, array: np.ndarray, stream: int) -> None:
        """Host to device, asynchronous; the array must live until the stream is synchronised."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpyAsync", pointer, array.ctypes.data, array.nbytes, kind, stream)

    def download(self, array: np.ndarray, pointer: int, stream: int) -> None:
        """Device to host, asynchronous."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpyAsync", array.ctypes.data, pointer, array.nbytes, kind, stream)

    def begin_capture(self, stream: int) -> None:
        """What is launched on the stream from here is recorded, not run."""
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> Any:
        """The recorded work, ready for `cudaGraphLaunch`."""
        graph = self.call("cudaStreamEndCapture", stream)
        try:
            return self.call("cudaGraphInstantiate", graph, 0)
        finally:
            self.call("cudaGraphDestroy", graph)

    def synchronize(self, stream: int) -> None:
        """Wait for everything on the stream."""
        self.call("cudaStreamSynchronize", stream)
