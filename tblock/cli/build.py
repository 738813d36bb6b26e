"""`tblock build`: an ONNX file or an artifact to a TensorRT or TensorRT-RTX engine."""

from pathlib import Path
from typing import Annotated

import typer

from tblock.cli import output, spelling
from tblock.errors import ConfigError


def run(
    onnx: Annotated[Path, typer.Argument(help="An ONNX file, or an artifact folder with model.onnx.")],
    runtime: Annotated[str, typer.Option(help="tensorrt or tensorrt-rtx.")],
    min_shapes: Annotated[
        list[str] | None, typer.Option("--minShapes", help="x:1x1x64,... ; repeat for more profiles.")
    ] = None,
    opt_shapes: Annotated[list[str] | None, typer.Option("--optShapes", help="Likewise.")] = None,
    max_shapes: Annotated[list[str] | None, typer.Option("--maxShapes", help="Likewise.")] = None,
    engine: Annotated[
        Path | None, typer.Option("-o", "--output", "--saveEngine", help="Default: in the artifact folder.")
    ] = None,
    fusion: Annotated[str, typer.Option(help="plugin, native or auto.")] = "auto",
    plugin_library: Annotated[
        Path | None, typer.Option("--plugin-library", "--dynamicPlugins", help="Default: the built one.")
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let float32 products round to TF32.")] = False,
    strip_weights: Annotated[bool, typer.Option("--strip-weights", help="Leave the weights out.")] = False,
    refit: Annotated[bool, typer.Option("--refit", help="Keep the weights replaceable.")] = False,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Load with later versions.")
    ] = False,
    hardware_compatibility: Annotated[
        str, typer.Option(help="none, ampere_plus or same_compute_capability (TensorRT).")
    ] = "none",
    compute_capabilities: Annotated[str, typer.Option(help="Comma list such as 8.6,12.0 (RTX).")] = "",
    builder_flags: Annotated[str, typer.Option(help="Comma list of further builder flags.")] = "",
    cache: Annotated[Path | None, typer.Option(help="Folder of the engine and timing caches.")] = None,
    timeout: Annotated[float, typer.Option(help="Of one build, in seconds.")] = 3600.0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Build a TensorRT or TensorRT-RTX engine, in a process of its own."""
    from tblock.cli.engine_trial import trial
    from tblock.export.engine.builder import EngineOptions, build_from_onnx
    from tblock.export.recording import ENGINES, record_engine
    from tblock.manifest import NAME

    if runtime not in ENGINES:
        raise ConfigError(f"--runtime {runtime}: cannot be built; known: {', '.join(ENGINES)}")
    options = EngineOptions(
        fusion=fusion,  # type: ignore[arg-type]
        tf32=tf32,
        strip_weights=strip_weights,
        refit=refit,
        version_compatible=version_compatible,
        hardware_compatibility=hardware_compatibility,  # type: ignore[arg-type]
        compute_capabilities=spelling.names(compute_capabilities),
        builder_flags=spelling.names(builder_flags),
        plugin_library=str(plugin_library) if plugin_library else None,
        cache=str(cache) if cache else None,
        timeout=timeout,
    )
    folder = onnx if onnx.is_dir() else onnx.parent
    of_artifact = (folder / NAME).is_file()
    target = engine if engine or not of_artifact else folder / ENGINES[runtime]
    report = build_from_onnx(
        onnx,
        flavour=runtime,  # type: ignore[arg-type]
        output=target,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        options=options,
        judge=(lambda path: trial(folder, path, runtime)) if of_artifact else None,
    )
    if of_artifact and engine is None:
        record_engine(folder, runtime, report)
    if json:
        output.print_json(report.to_dict())
    else:
        print("\n".join(report.lines()))
