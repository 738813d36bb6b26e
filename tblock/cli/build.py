"""`tblock build`: an ONNX file or an artifact to a TensorRT or TensorRT-RTX engine."""

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tblock.cli import output, running, spelling
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
    force: Annotated[bool, typer.Option("--force", help="Replace the artifact's engine.")] = False,
    fusion: Annotated[str, typer.Option(help="plugin, native or auto.")] = "auto",
    plugin_library: Annotated[
        Path | None, typer.Option("--plugin-library", "--dynamicPlugins", help="Default: the built one.")
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let float32 products round to TF32.")] = False,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Load with later versions.")
    ] = False,
    hardware_compatibility: Annotated[
        str, typer.Option(help="none, ampere_plus or same_compute_capability (TensorRT).")
    ] = "none",
    compute_capabilities: Annotated[str, typer.Option(help="Comma list such as 8.6,12.0 (RTX).")] = "",
    builder_flags: Annotated[str, typer.Option(help="Comma list of further builder flags.")] = "",
    fp16: Annotated[
        bool, typer.Option("--fp16", hidden=True, help="Explained, not taken: dtypes come from the graph.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", hidden=True, help="As --fp16.")] = False,
    int8: Annotated[bool, typer.Option("--int8", hidden=True, help="As --fp16.")] = False,
    best: Annotated[bool, typer.Option("--best", hidden=True, help="As --fp16.")] = False,
    strongly_typed: Annotated[bool, typer.Option("--stronglyTyped", hidden=True, help="Always so.")] = True,
    no_tf32: Annotated[bool, typer.Option("--noTF32", hidden=True, help="Always so, but for --tf32.")] = True,
    cache: Annotated[Path | None, typer.Option(help="Folder of the engine and timing caches.")] = None,
    timeout: Annotated[float, typer.Option(help="Of one build, in seconds.")] = 3600.0,
    json: running.Json = False,
) -> None:
    """Build a TensorRT or TensorRT-RTX engine, in a process of its own."""
    from tblock.export.engine.builder import EngineOptions, build_from_onnx
    from tblock.export.engine.options import default_library
    from tblock.export.recording import ENGINES, record_engine
    from tblock.export.trial import try_engine
    from tblock.manifest import GRAPH, NAME, read_artifact

    if runtime not in ENGINES:
        raise ConfigError(f"--runtime {runtime}: cannot be built; known: {', '.join(ENGINES)}")
    library = plugin_library or default_library()
    asked = [name for name, on in (("fp16", fp16), ("bf16", bf16), ("int8", int8), ("best", best)) if on]
    options = EngineOptions(
        fusion=fusion,  # type: ignore[arg-type]
        tf32=tf32,
        version_compatible=version_compatible,
        hardware_compatibility=hardware_compatibility,  # type: ignore[arg-type]
        compute_capabilities=spelling.names(compute_capabilities),
        builder_flags=(*spelling.names(builder_flags), *asked),
        plugin_library=str(plugin_library) if plugin_library else None,
        cache=str(cache) if cache else None,
        timeout=timeout,
    )
    folder = onnx if onnx.is_dir() else onnx.parent
    graph = GRAPH if onnx.is_dir() else onnx.name
    of_artifact = (folder / NAME).is_file() and graph == GRAPH
    if engine and (engine.parent / NAME).is_file():
        _refuse_listed(engine)
    # Into an artifact it gets its name, and its place in the manifest, once it is whole.
    unnamed = folder / f".{ENGINES[runtime]}.{os.getpid()}.part"
    target = engine if engine or not of_artifact else unnamed
    if target == unnamed and not force:
        _refuse_replacing(folder, runtime)
    artifact = read_artifact(folder) if of_artifact else None

    given = str(library) if library else None
    try:
        report = build_from_onnx(
            onnx,
            flavour=runtime,  # type: ignore[arg-type]
            output=target,
            min_shapes=min_shapes,
            opt_shapes=opt_shapes,
            max_shapes=max_shapes,
            options=options,
            judge=partial(try_engine, artifact, library=given) if artifact else None,
        )
        if artifact is not None and target == unnamed:
            artifact = record_engine(artifact, runtime, report, unnamed)
            report = dataclasses.replace(report, file=artifact.manifest.targets[runtime]["file"])
    finally:
        unnamed.unlink(missing_ok=True)
    if json:
        output.print_json(report.to_dict())
    else:
        print("\n".join(report.lines()))


def _refuse_replacing(folder: Path, runtime: str) -> None:
    """The new engine may serve fewer shapes than the one that is there."""
    from tblock.cli.export_report import profile_lines
    from tblock.manifest import read_artifact

    entry = read_artifact(folder).manifest.targets.get(runtime)
    if entry:
        raise ConfigError(
            f"{folder}: has a {runtime} engine already ({'; '.join(profile_lines(entry))}); "
            "--force replaces it, --output writes another"
        )


def _refuse_listed(engine: Path) -> None:
    """A file of an artifact is replaced together with its manifest, or not at all."""
    from tblock.manifest import read_artifact

    if engine.name in read_artifact(engine.parent).manifest.files:
        raise ConfigError(f"--output {engine}: is a file of the artifact there; give another name")
