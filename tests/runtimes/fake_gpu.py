"""Stand-ins for TensorRT and the CUDA runtime, so that the engine runner's own logic runs without a GPU.

Strict where a GPU would be silent: work on a stream happens only when it is synchronised, freed and fresh
memory is poisoned, every pointer must be one that was allocated, and a context starts without a profile.
They prove the order of calls, not that TensorRT takes them.
"""

import ctypes
from types import ModuleType, SimpleNamespace

import numpy as np

POISON = 0xAB


class FakeCudaRuntime(ModuleType):
    """cuda.bindings.runtime: functions return (code, values...)."""

    cudaStreamNonBlocking = 1  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)  # noqa: N815
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

    def __init__(self):
        super().__init__("cuda.bindings.runtime")
        self.memory = {}
        self.freed = []
        self.queue = []
        self.recording = None
        self.calls = []
        self.fail = None

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("cuda") and callable(value):
            self.calls.append(name)
            if name == self.fail:
                return lambda *args: (2, None)
        return value

    def enqueue(self, work):
        (self.queue if self.recording is None else self.recording).append(work)

    def cudaGetErrorString(self, code):  # noqa: N802
        return 0, b"out of memory"

    def cudaStreamCreateWithFlags(self, flags):  # noqa: N802
        return 0, 77

    def cudaMalloc(self, size):  # noqa: N802
        buffer = (ctypes.c_ubyte * size)(*([POISON] * min(size, 1 << 16)))
        pointer = ctypes.addressof(buffer)
        self.memory[pointer] = buffer
        return 0, pointer

    def cudaFree(self, pointer):  # noqa: N802
        buffer = self.memory.pop(pointer)
        ctypes.memset(buffer, POISON, len(buffer))
        self.freed.append(buffer)
        return (0,)

    def cudaMemcpyAsync(self, target, source, size, kind, stream):  # noqa: N802
        device = target if kind == 1 else source
        assert stream == 77
        assert size <= len(self.memory[device])
        self.enqueue(lambda: ctypes.memmove(target, source, size))
        return (0,)

    def cudaStreamSynchronize(self, stream):  # noqa: N802
        assert self.recording is None, "synchronise during capture"
        while self.queue:
            self.queue.pop(0)()
        return (0,)

    def cudaStreamBeginCapture(self, stream, mode):  # noqa: N802
        self.recording = []
        return (0,)

    def cudaStreamEndCapture(self, stream):  # noqa: N802
        graph, self.recording = self.recording, None
        return 0, graph

    def cudaGraphInstantiate(self, graph, flags):  # noqa: N802
        return 0, list(graph)

    def cudaGraphDestroy(self, graph):  # noqa: N802
        graph.clear()
        return (0,)

    def cudaGraphExecDestroy(self, graph):  # noqa: N802
        graph.clear()
        return (0,)

    def cudaGraphLaunch(self, graph, stream):  # noqa: N802
        assert graph, "a destroyed graph"
        for work in graph:
            self.enqueue(work)
        return (0,)


class FakeEngine:
    """y = 2 x where padding_mask, 0 elsewhere, plus position_ids: every input is used."""

    def __init__(self, cuda, profiles, dtype="FLOAT"):
        self.cuda, self.profiles, self.dtype = cuda, profiles, dtype
        self.names = ["x", "padding_mask", "position_ids", "y"]
        self.num_io_tensors, self.num_optimization_profiles = 4, len(profiles)
        self.contexts = []

    def get_tensor_name(self, index):
        return self.names[index]

    def get_tensor_dtype(self, name):
        kinds = {"padding_mask": "BOOL", "position_ids": "INT64"}
        return SimpleNamespace(name=kinds.get(name, self.dtype))

    def get_tensor_profile_shape(self, name, index):
        return [(*ends, 60) if name == "x" else ends for ends in self.profiles[index]]

    def create_execution_context(self):
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]


class FakeContext:
    """IExecutionContext."""

    def __init__(self, engine):
        self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, None

    def set_optimization_profile_async(self, index, stream):
        self.profile = index
        return True

    def set_input_shape(self, name, shape):
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        self.shapes[name] = shape
        return all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name, pointer):
        assert pointer in self.engine.cuda.memory
        self.addresses[name] = pointer
        return True

    def infer_shapes(self):
        return [name for name in self.engine.names[:3] if name not in self.shapes]

    def get_tensor_shape(self, name):
        return self.shapes["x"]

    def is_stream_capturable(self, stream):
        return True

    def execute_async_v3(self, stream):
        if set(self.addresses) != set(self.engine.names):
            return False
        self.engine.cuda.enqueue(self._compute)
        return True

    def _compute(self):
        def view(name, dtype, shape):
            size = int(np.prod(shape))
            raw = self.engine.cuda.memory[self.addresses[name]]
            return np.frombuffer(raw, dtype, size).reshape(shape)

        shape = self.shapes["x"]
        x, mask = view("x", np.float32, shape), view("padding_mask", np.bool_, shape[:2])
        view("y", np.float32, shape)[...] = expected(x, mask, view("position_ids", np.int64, shape[:2]))


def expected(x, mask, positions):
    """What FakeEngine computes."""
    return 2 * x * mask[..., None] + positions[..., None].astype(np.float32)


class FakeTensorRt(ModuleType):
    """The package, with one engine for whatever bytes come."""

    def __init__(self, version, engine):
        super().__init__("tensorrt")
        self.__version__ = version
        self.engine = engine
        self.loaded, self.deserialised = [], []
        package = self

        class ILogger:
            Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2)

        class Runtime:
            def __init__(self, logger):
                self.logger = logger

            def deserialize_cuda_engine(self, data):
                package.deserialised.append(data)
                if package.engine is None:
                    self.logger.log(1, "Magic tag does not match\nsecond line")
                return package.engine

        self.ILogger, self.Runtime = ILogger, Runtime

    def get_plugin_registry(self):
        """One that loads any library."""
        return SimpleNamespace(load_library=lambda path: self.loaded.append(path) or path)
