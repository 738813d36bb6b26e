"""One engine, built in this process: parse, check, configure, build. Runs inside
`tblock.export.engine.builder_process` only.

Strongly typed: dtypes come from the graph. A refused attention kernel is retried as decomposable, and the
report says so.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tblock.contract import PLUGINS
from tblock.errors import ExportError
from tblock.export.engine import attention_kernels, builder_config
from tblock.export.engine import fusion as engine_fusion
from tblock.export.engine import network as engine_network
from tblock.export.engine.log import Log, make_monitor
from tblock.export.engine.options import EngineRequest
from tblock.export.engine.package import Package
from tblock.export.engine.report import EngineReport
from tblock.machine import Gpu


def compile_engine(
    trt: Any, found: Package, request: EngineRequest, device: Gpu | None, say: Callable[[str], None]
) -> EngineReport:
    """Build and write one engine.

    Args:
        trt: the package's module.
        found: the package.
        request: what to build.
        device: the machine's GPU.
        say: takes progress, one line each.

    Raises:
        ExportError: the parser or the builder refuses, or a check after parsing fails.
        ConfigError: an option this version does not have.
    """
    started = time.perf_counter()
    title = f"{found.flavour} {trt.__version__}"
    onnx = Path(request.onnx)
    log = Log(trt)
    builder = trt.Builder(log.logger)
    if request.fusion == "plugin":
        assert request.library is not None
        library = Path(request.library)
        say(f"registering plugins of {library.name}")
        engine_fusion.register(trt, builder, library, request.plugin_versions, title)
    say(f"parsing {onnx.name}")
    # The parser stays referenced: the network points into its weights.
    network, parser = engine_network.parse(trt, builder, log.logger, onnx, title)
    plugin_layers = engine_fusion.check_taken(
        network, request.fusion, request.fused, request.fused_nodes, title
    )
    reductions = engine_network.check_reductions(network, title)
    rowwise = [str(r.onnx_name) for r in PLUGINS if r.kind == "rowwise" and r.onnx_name in request.fused]
    if request.fusion == "native" and rowwise and not reductions:
        raise ExportError(
            f"{title}: {onnx.name} has {', '.join(rowwise)}, the parsed network sums over no activations"
        )
    counts = engine_network.layer_counts(network)
    softmaxes = engine_network.softmax_dtypes(network)
    attention = attention_kernels.choose_kernels(trt, network)
    settings = builder_config.configure(trt, found, builder, request, device, make_monitor(trt, say))
    say(f"building for {settings.gpus}")
    engine = builder.build_serialized_network(network, settings.config)
    if engine is None and any(choice.kernel == "dedicated" for choice in attention.choices):
        say("building again with decomposable attention")
        refusal = log.settle()
        # A new network: heads that were padded before must not be padded twice.
        network, parser = engine_network.parse(trt, builder, log.logger, onnx, title)
        attention = attention_kernels.choose_kernels(trt, network, refused=refusal)
        engine = builder.build_serialized_network(network, settings.config)
        if engine is not None:
            log.warn(f"built again with decomposable attention; the builder had said: {refusal}")
    if engine is None:
        raise ExportError(f"{title}: the builder refuses {onnx.name}: {log.first_error()}")
    del network, parser
    with Path(request.output).open("wb") as file:
        size = file.write(memoryview(engine))
    caches = builder_config.save_caches(settings)
    softmax, softmax_reason = attention_kernels.softmax_precision(softmaxes, attention)
    return EngineReport(
        flavour=found.flavour,
        builder=trt.__version__,
        file=Path(request.output).name,
        seconds=round(time.perf_counter() - started, 3),
        bytes=size,
        opset=request.opset,
        ir_version=request.ir_version,
        layers=counts,
        reductions=reductions,
        softmax=softmax,
        softmax_reason=softmax_reason,
        attention=[asdict(choice) for choice in attention.choices],
        fusion=request.fusion,
        fusion_reason=request.fusion_reason,
        fused=request.fused,
        plugin_layers=plugin_layers,
        tf32=request.options.tf32,
        profiles=[{name: [list(s) for s in shapes] for name, shapes in p.items()} for p in request.profiles],
        compute_capability=settings.gpus,
        hardware_compatibility=request.options.hardware_compatibility,
        version_compatible=request.options.version_compatible,
        device=None if device is None else str(device),
        caches=caches,
        warnings=log.warnings(),
    )
