"""The builder process: `python -m tblock.export.engine.builder_process`, asked through `tblock.child`.

Everything that loads native TensorRT code runs here, so that a crash in it ends this process and nothing
else. Imports no torch.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tblock
import tblock.contract
from tblock.child import say, serve
from tblock.errors import ExportError
from tblock.export.engine import engine_cache
from tblock.export.engine import limits as engine_limits
from tblock.export.engine import package as engine_package
from tblock.export.engine.compilation import compile_engine
from tblock.export.engine.options import EngineRequest
from tblock.export.engine.report import EngineReport
from tblock.files import disk_error
from tblock.machine import Gpu, gpu_or_none
from tblock.manifest import file_digest


def main() -> None:
    """Answer the one job on stdin."""
    serve(run)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, in this process.

    Args:
        job: the fields of an EngineRequest.

    Returns:
        `report`.

    Raises:
        TblockError: as `compile_engine`; ExportError also for a disk that takes no more.
    """
    found = engine_package.package(job["flavour"])
    say(f"loading {found.module}")
    trt = engine_package.load(found)
    device = gpu_or_none()
    try:
        return {"report": _build(trt, found, device, EngineRequest.from_dict(job)).to_dict()}
    except OSError as error:
        place = Path(job["output"]).parent
        raise ExportError(
            f"{found.flavour}: {disk_error(error)}; the engine was to be written to {place}"
        ) from error


def _build(
    trt: Any, found: engine_package.Package, device: Gpu | None, request: EngineRequest
) -> EngineReport:
    engine_package.check_options(found, request.options, None if device is None else str(device))
    name = Path(request.onnx).name
    engine_limits.check(name, request.opset, request.ir_version, found.flavour, trt.__version__)
    if request.options.cache is None:
        return compile_engine(trt, found, request, device, say)
    folder, output = Path(request.options.cache), Path(request.output)
    say("looking in the engine cache")
    key = engine_cache.key(shaped_by(trt, found, device, request))
    report = engine_cache.find(folder, key, output)
    if report is not None:
        return report
    report = compile_engine(trt, found, request, device, say)
    try:
        return engine_cache.store(folder, key, output, report)
    except OSError as error:
        # The engine is whole; only the next build will not find it.
        caches = {**report.caches, "engine": f"not stored in {folder}: {disk_error(error)}"}
        return replace(report, caches=caches)


def builder_sources() -> list[Path]:
    """The code that shapes an engine: every file of this package, and the contract that it reads."""
    package = Path(__file__).parent
    return [*sorted(package.glob("*.py")), Path(tblock.contract.__file__)]


def shaped_by(
    trt: Any, found: engine_package.Package, device: Gpu | None, request: EngineRequest
) -> dict[str, Any]:
    """Everything that shapes an engine: its name in the cache is made of it."""
    return {
        "graph": file_digest(Path(request.onnx)),
        "weights": [[Path(p).name, file_digest(Path(p))] for p in request.data],
        "package": [found.flavour, trt.__version__],
        "tblock": [tblock.__version__, engine_cache.digest_of_files(builder_sources())],
        # A TensorRT-RTX engine is portable: the builder's GPU does not shape it.
        "device": "portable" if found.builds_without_gpu else str(device),
        "profiles": request.to_dict()["profiles"],
        "options": request.options.shaping(),
        "fusion": request.fusion,
        "library": file_digest(Path(request.library)) if request.library else None,
    }


if __name__ == "__main__":
    main()
