"""The tensorrt and tensorrt-rtx runners: an engine on an NVIDIA GPU, without torch, one code path for both.

Owns the order of checks before an engine is deserialised, profile choice, and one prepared context per shape.
The GPU half is tested against stand-ins for TensorRT and CUDA and was not executed on a GPU yet.
"""

import sys
from collections import OrderedDict
from typing import Any

import numpy as np

from tblock.dtypes import DTYPES
from tblock.errors import ArtifactError, RuntimeUnavailable
from tblock.machine import find_gpu
from tblock.manifest import Artifact
from tblock.runtimes.cuda import Cuda
from tblock.runtimes.engine_file import check_architecture, check_bytes, check_version
from tblock.runtimes.engine_plan import Plan, choose_profile, dtype_name
from tblock.runtimes.inputs import output_shape
from tblock.runtimes.runner import Arrays, Bound, Runner

KEPT_PLANS = 8
"""Shapes that keep their context and buffers; the least recently used goes first."""


class TensorRtRunner(Runner):
    """<name>.engine in TensorRT 10.13 or later."""

    name = "tensorrt"
    module = "tensorrt"

    def __init__(
        self, artifact: Artifact, *, cuda_graph: bool = False, plugin_library: str | None = None
    ) -> None:
        """Check file, version, driver and GPU, in this order, then deserialise.

        Args:
            artifact: with a target of this runtime's name.
            cuda_graph: replay a CUDA graph for each shape instead of launching kernel by kernel.
            plugin_library: path of libtblock_plugins.so, for an engine with plugin layers.

        Raises:
            ArtifactError: the engine is damaged, of another kind, version or GPU, or does not fit the
                manifest.
            RuntimeUnavailable: the package, the driver, a GPU or cuda-python is missing.
        """
        target = artifact.manifest.targets[self.name]
        file = next((n for n in target["files"] if n.endswith(".engine")), None)
        if file is None:
            raise ArtifactError(f"{artifact.folder}: the {self.name} target lists no .engine file")
        check_bytes(artifact.folder / file, self.name)
        path = artifact.path(file)
        trt = sys.modules[self.module]
        check_version(path, target, trt.__version__)
        try:
            gpu = find_gpu()
        except RuntimeUnavailable as error:
            raise RuntimeUnavailable(
                f"{self.name}: {error}; the engine is built, running it needs a GPU"
            ) from None
        check_architecture(path, target, gpu)
        super().__init__(artifact, provider="cuda", device=gpu.name)
        self._cuda = Cuda.load(self.name, self.name)
        self._trt, self._graphs = trt, cuda_graph
        self._log = _logger(trt)
        # A version-compatible engine carries its plugin library; loaded once more it would be refused.
        if target.get("fusion") == "plugin" and not target.get("version_compatible"):
            self._load_plugins(plugin_library)
        self._runtime = trt.Runtime(self._log)
        if target.get("version_compatible"):
            self._runtime.engine_host_code_allowed = True
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise ArtifactError(f"{path}: {self.module} cannot deserialise it: {self._log.last}")
        self._check_tensors(str(path))
        self._stream = self._cuda.stream()
        self._plans: OrderedDict[tuple[int, ...], Plan] = OrderedDict()
        self.details |= {"gpu": gpu.compute_capability, "cuda_graph": cuda_graph}

    def _bind(self, arrays: Arrays, sizes: dict[str, int]) -> Bound:
        plan = self._plan(arrays, sizes)
        plan.upload(arrays)

        def execute() -> None:
            plan.execute()
            self._cuda.synchronize(self._stream)

        return Bound(execute, plan.download)

    def _plan(self, arrays: Arrays, sizes: dict[str, int]) -> Plan:
        shapes = {name: array.shape for name, array in arrays.items()}
        key = tuple(n for shape in shapes.values() for n in shape)
        plan = self._plans.pop(key, None)
        if plan is None:
            outputs = {}
            for spec in self.artifact.manifest.outputs:
                shape = output_shape(spec, sizes)
                if shape is None:
                    raise ArtifactError(
                        f"output {spec.name}: {list(spec.dims)} does not follow from the inputs"
                    )
                outputs[spec.name] = np.empty(shape, DTYPES[spec.dtype].numpy)
            profile = choose_profile(self._engine, shapes)
            self.details["profile"] = profile
            plan = Plan(
                self._engine, self._cuda, self._stream, profile, arrays, outputs, self._graphs, self._log
            )
        self._plans[key] = plan
        while len(self._plans) > KEPT_PLANS:
            self._plans.popitem(last=False)[1].close()
        return plan

    def _load_plugins(self, library: str | None) -> None:
        if library is None:
            raise ArtifactError(
                f"{self.name}: the engine has plugin layers; give plugin_library, "
                "the path that tblock plugin path prints"
            )
        if self._trt.get_plugin_registry().load_library(library) is None:
            raise ArtifactError(
                f"{library}: {self.module} cannot load it as a plugin library: {self._log.last}"
            )

    def _check_tensors(self, where: str) -> None:
        """The engine's inputs and outputs are those of the manifest."""
        manifest, engine = self.artifact.manifest, self._engine
        found = {engine.get_tensor_name(i): i for i in range(engine.num_io_tensors)}
        wanted = {spec.name: spec for spec in (*manifest.inputs, *manifest.outputs)}
        if found.keys() != wanted.keys():
            raise ArtifactError(f"{where}: has tensors {', '.join(found)}, the manifest {', '.join(wanted)}")
        for name, spec in wanted.items():
            dtype = dtype_name(engine.get_tensor_dtype(name))
            if dtype != spec.dtype:
                raise ArtifactError(f"{where}: {name} is {dtype}, the manifest says {spec.dtype}")


class TensorRtRtxRunner(TensorRtRunner):
    """<name>.engine in TensorRT-RTX; kernels are compiled when a context is first used."""

    name = "tensorrt-rtx"
    module = "tensorrt_rtx"


def _logger(trt: Any) -> Any:
    """A TensorRT logger that keeps its last error, for the message of our own."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.last = "no reason given"

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.last = msg.splitlines()[0] if msg else self.last

    return Log()
