"""The builder process: `python -m tblock.export.engine.worker`, one request on stdin, one answer in the file
it names.

Everything that loads native TensorRT code runs here, so that a crash in it ends this process and nothing
else. Imports no torch.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import tblock
import tblock.contract
from tblock.errors import ExportError, TblockError
from tblock.export.engine import cache as engine_cache
from tblock.export.engine import limits as engine_limits
from tblock.export.engine import package as engine_package
from tblock.export.engine.build import Job, build
from tblock.export.engine.device import Device, first_device
from tblock.export.engine.log import say
from tblock.export.engine.options import EngineOptions
from tblock.manifest import file_digest


def main() -> None:
    """Read a request, work, write the answer."""
    request = json.load(sys.stdin)
    try:
        answer = run(request)
    except TblockError as error:
        answer = {"error": {"type": type(error).__name__, "message": str(error)}}
    except Exception as error:
        # A fault of ours or of TensorRT's bindings: the parent still gets its line, the log the rest.
        traceback.print_exc()
        what = str(error).strip().splitlines()
        line = f"{request['flavour']}: {type(error).__name__}: {what[0] if what else 'no message'}"
        answer = {"error": {"type": ExportError.__name__, "message": line}}
    response = Path(request["response"])
    fresh = response.with_suffix(".part")
    fresh.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(fresh, response)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks, in this process.

    Args:
        request: `action` (`build` or `refit`), `flavour`, and what the action needs.

    Returns:
        `build`: `report`. `refit`: `bytes`.
    """
    found = engine_package.package(request["flavour"])
    say(f"loading {found.module}")
    trt = engine_package.load(found)
    device = first_device()
    if request["action"] == "refit":
        from tblock.export.engine.refit import refit

        return {
            "bytes": refit(
                trt, found, device, Path(request["engine"]), Path(request["onnx"]), Path(request["output"])
            )
        }
    return {"report": _build(trt, found, device, request).to_dict()}


def _build(trt: Any, found: engine_package.Package, device: Device | None, request: dict[str, Any]) -> Any:
    options = EngineOptions.from_dict(request["options"])
    engine_package.check_options(found, options, None if device is None else str(device))
    path = Path(request["onnx"])
    engine_limits.check(path.name, request["opset"], request["ir_version"], found.flavour, trt.__version__)
    job = Job(
        onnx=path,
        output=Path(request["output"]),
        profiles=[{n: tuple(tuple(s) for s in ends) for n, ends in p.items()} for p in request["profiles"]],  # type: ignore[misc]
        options=options,
        fusion=request["fusion"],
        fusion_reason=request["fusion_reason"],
        library=Path(request["library"]) if request["library"] else None,
        fused=request["fused"],
        fused_nodes=tuple(request["fused_nodes"]),
        plugin_versions=request["plugin_versions"],
        opset=request["opset"],
        ir_version=request["ir_version"],
    )
    if options.cache is None:
        return build(trt, found, job, device, say)
    folder = Path(options.cache)
    say("looking in the engine cache")
    name = engine_cache.key(_shaped_by(trt, found, device, job, request))
    report = engine_cache.find(folder, name, job.output)
    if report is not None:
        return report
    return engine_cache.store(folder, name, job.output, build(trt, found, job, device, say))


def builder_sources() -> list[Path]:
    """The code that shapes an engine: every file of this package, and the contract that it reads."""
    package = Path(__file__).parent
    return [*sorted(package.glob("*.py")), Path(tblock.contract.__file__)]


def _shaped_by(
    trt: Any, found: engine_package.Package, device: Device | None, job: Job, request: dict[str, Any]
) -> dict[str, Any]:
    # A TensorRT-RTX engine is portable: the builder's GPU does not shape it.
    gpu = "portable" if found.builds_without_gpu else str(device)
    return {
        "graph": file_digest(job.onnx),
        "weights": [[Path(p).name, file_digest(Path(p))] for p in request["data"]],
        "package": [found.flavour, trt.__version__],
        "tblock": [
            tblock.__version__,
            engine_cache.digest_of_files(builder_sources()),
        ],
        "device": gpu,
        "profiles": request["profiles"],
        "options": job.options.shaping(),
        "fusion": job.fusion,
        "library": file_digest(job.library) if job.library else None,
    }


if __name__ == "__main__":
    main()
