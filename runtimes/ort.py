"""The onnxruntime runner: the portable ONNX graph in ONNX Runtime, without torch.

Owns sessions, providers and their honesty: a provider that is asked for and not used is an error, and which
provider got which node is recorded.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tblock.dtypes import DTYPES
from tblock.errors import ArtifactError, RuntimeUnavailable, reason
from tblock.manifest import Artifact
from tblock.runtimes.inputs import output_shape
from tblock.runtimes.onnx_file import external_files
from tblock.runtimes.runner import Arrays, Bound, Runner

OPTIMIZATION = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""Our word for each graph optimization level to ONNX Runtime's name."""

_MEMORY = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda"}
"""Provider to ONNX Runtime's word for its memory; the others compute in the host's."""

_WHEELS = {"CUDAExecutionProvider": "onnxruntime-gpu", "TensorrtExecutionProvider": "onnxruntime-gpu"}
"""Provider to the extra of tblock that brings it."""


class OnnxRuntimeRunner(Runner):
    """model.onnx in an InferenceSession; inputs and outputs bound to numpy buffers."""

    name = "onnxruntime"

    def __init__(
        self,
        artifact: Artifact,
        *,
        provider: str | None = None,
        optimization: str = "all",
        threads: int | None = None,
    ) -> None:
        """Load.

        Args:
            artifact: with an `onnx` target.
            provider: `cpu` (the default), `cuda`, ..., or ONNX Runtime's own name for one.
            optimization: a key of OPTIMIZATION.
            threads: of one operator; None: ONNX Runtime's choice.

        Raises:
            RuntimeUnavailable: no onnxruntime, or this one lacks the provider.
            ArtifactError: unknown provider or level, a file missing or damaged, or ONNX Runtime refuses the
                graph.
        """
        import onnxruntime as ort

        full = resolve_provider(provider or "cpu", ort.get_available_providers(), ort.get_all_providers())
        device = None if full == "CPUExecutionProvider" else f"{_short(full)} device 0"
        super().__init__(artifact, provider=_short(full), device=device)
        files, self._memory = model_files(artifact), _MEMORY.get(full, "cpu")
        self._on_device = self._memory != "cpu"
        if optimization not in OPTIMIZATION:
            raise ArtifactError(f"optimization {optimization!r}: unknown; known: {', '.join(OPTIMIZATION)}")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, OPTIMIZATION[optimization])
        if threads is not None:
            options.intra_op_num_threads = threads
        recorded = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
        if recorded:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        elif full != "CPUExecutionProvider":
            # Without the record no fallback could be seen, so none is allowed.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            session = ort.InferenceSession(str(files[0]), options, providers=[full])
        except Exception as error:  # onnxruntime raises a class of its own for each status code
            raise ArtifactError(f"{files[0]}: onnxruntime cannot load it: {reason(error)}") from error
        session.disable_fallback()
        if session.get_providers()[0] != full:
            raise RuntimeUnavailable(
                f"onnxruntime: {full} could not start (session has {', '.join(session.get_providers())}); "
                f"check its driver and libraries, or use --provider cpu"
            )
        self._session = session
        self.details["optimization"] = optimization
        self.details["placement"] = _placement(session) if recorded else {_short(full): {}}
        if recorded and _short(full) not in self.details["placement"]:
            raise RuntimeUnavailable(
                f"onnxruntime: {full} took no node of {files[0].name}; use --provider cpu"
            )

    def _bind(self, arrays: Arrays, sizes: dict[str, int]) -> Bound:
        """Inputs and outputs where the provider computes: no call copies between host and device."""
        import onnxruntime as ort

        session, binding = self._session, self._session.io_binding()
        for spec in self.artifact.manifest.inputs:
            array, element = arrays[spec.name], DTYPES[spec.dtype].onnx
            # A session on a device copies it there at once, not at each call (IOBinding::BindInput).
            binding.bind_input(spec.name, "cpu", 0, element, array.shape, array.ctypes.data)
        outputs: Arrays = {}
        placed: dict[str, Any] = {}
        for spec in self.artifact.manifest.outputs:
            shape, element = output_shape(spec, sizes), DTYPES[spec.dtype].onnx
            if shape is None:
                binding.bind_output(spec.name, self._memory)
                continue
            outputs[spec.name] = array = np.empty(shape, DTYPES[spec.dtype].numpy)
            if not self._on_device:
                binding.bind_output(spec.name, "cpu", 0, element, array.shape, array.ctypes.data)
            else:
                placed[spec.name] = ort.OrtValue.ortvalue_from_shape_and_type(shape, element, self._memory, 0)
                binding.bind_ortvalue_output(spec.name, placed[spec.name])

        def execute(_keep: Any = (arrays, outputs)) -> None:  # the binding holds bare pointers into them
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        def read() -> Arrays:
            found: Arrays = {}
            for spec, value in zip(self.artifact.manifest.outputs, binding.get_outputs(), strict=True):
                if spec.name in outputs and spec.name not in placed:
                    found[spec.name] = outputs[spec.name]
                elif spec.name not in outputs or spec.dtype != "bfloat16":
                    found[spec.name] = value.numpy()
                else:  # which numpy() does not know; not executed, the CPU alone has no such copy
                    found[spec.name] = outputs[spec.name]
                    host = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                        outputs[spec.name], DTYPES[spec.dtype].onnx
                    )
                    ort.copy_tensors([placed[spec.name]], [host])
            return found

        return Bound(execute, read)


def resolve_provider(asked: str, available: list[str], known: list[str]) -> str:
    """ONNX Runtime's name of a provider: `cpu` is `CPUExecutionProvider`.

    Raises:
        ArtifactError: no such provider anywhere; lists the available ones.
        RuntimeUnavailable: this onnxruntime was built without it.
    """
    by_word = {word: name for name in known for word in (name.lower(), _short(name))}
    here = ", ".join(_short(name) for name in available)
    full = by_word.get(asked.lower())
    if full is None:
        raise ArtifactError(f"provider {asked!r}: unknown to onnxruntime; available here: {here}")
    if full not in available:
        extra = (
            f"pip install 'tblock[{_WHEELS[full]}]'" if full in _WHEELS else "an onnxruntime built with it"
        )
        raise RuntimeUnavailable(f"onnxruntime: no {full} here (available: {here}); it needs {extra}")
    return full


def model_files(artifact: Artifact) -> list[Path]:
    """The graph and every file it takes weights from, each with its digest verified.

    Raises:
        ArtifactError: one is missing, damaged or outside the folder.
    """
    names = artifact.manifest.targets["onnx"]["files"]
    model = next((name for name in names if name.endswith(".onnx")), None)
    if model is None:
        raise ArtifactError(f"{artifact.folder}: the onnx target lists no .onnx file ({', '.join(names)})")
    paths = [artifact.path(model)]
    for name in external_files(paths[0]):
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            raise ArtifactError(f"{paths[0]}: external data {name!r} is not a bare file name; export again")
        paths.append(artifact.path(name))
    return paths


def _placement(session: Any) -> dict[str, dict[str, int]]:
    """Provider to op type to number of nodes, after optimization."""
    placement: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        ops = placement.setdefault(_short(part.ep_name), Counter())
        ops.update(f"{n.domain}.{n.op_type}".lstrip(".") for n in part.get_nodes())
    return {provider: dict(sorted(ops.items())) for provider, ops in placement.items()}


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()
