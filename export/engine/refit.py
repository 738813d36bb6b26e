"""Weights put into an engine that was built without them, or with others of the same shapes. Not executed
(needs a GPU).

The package's own ONNX refitter reads the weights from the file by name, so graph and engine must be of one
export.
"""

from pathlib import Path
from typing import Any

from tblock.errors import ArtifactError, ExportError, RuntimeUnavailable
from tblock.export.engine.log import Log
from tblock.export.engine.package import Package
from tblock.machine import Gpu


def refit(trt: Any, found: Package, device: Gpu | None, engine: Path, onnx: Path, output: Path) -> int:
    """Write the engine with the file's weights in it. Runs in the builder process.

    Args:
        trt, found: the package.
        device: the machine's GPU.
        engine: built with strip_weights or refit.
        onnx: the file it was built from, or one with other weights of the same shapes.
        output: path of the new engine.

    Returns:
        Its size (bytes).

    Raises:
        RuntimeUnavailable: no GPU, or this version cannot refit.
        ArtifactError: the engine does not load.
        ExportError: a weight is missing, or the refitter refuses.
    """
    if device is None:
        raise RuntimeUnavailable(f"{found.flavour}: refitting needs an NVIDIA GPU, none was found")
    if not hasattr(trt, "OnnxParserRefitter"):
        raise RuntimeUnavailable(
            f"{found.flavour} {trt.__version__}: has no ONNX refitter; build the engine with its weights"
        )
    title = f"{found.flavour} {trt.__version__}"
    log = Log(trt)
    runtime = trt.Runtime(log.logger)
    loaded = runtime.deserialize_cuda_engine(engine.read_bytes())
    if loaded is None:
        raise ArtifactError(f"{engine}: {title} cannot load it: {log.first_error()}")
    if not loaded.refittable:
        raise ExportError(f"{engine}: not refittable; build it with strip_weights or refit")
    refitter = trt.Refitter(loaded, log.logger)
    from_onnx = trt.OnnxParserRefitter(refitter, log.logger)
    if not from_onnx.refit_from_file(str(onnx)):
        errors = [from_onnx.get_error(i).desc() for i in range(from_onnx.num_errors)]
        raise ExportError(
            f"{title}: {onnx.name} does not fit {engine.name}: {errors[0] if errors else log.first_error()}"
        )
    missing = list(refitter.get_missing_weights())
    if missing:
        raise ExportError(
            f"{title}: {onnx.name} lacks {len(missing)} weights of {engine.name}, first {missing[0]}"
        )
    if not refitter.refit_cuda_engine():
        raise ExportError(f"{title}: refitting {engine.name} failed: {log.first_error()}")
    config = loaded.create_serialization_config()
    config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):
        # From 10.14 on: without it the written engine could not be refitted again.
        config.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    return output.write_bytes(memoryview(loaded.serialize_with_config(config)))
