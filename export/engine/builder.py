"""TensorRT engines from an ONNX file: one way for `tensorrt` 10.13+, 11 and `tensorrt_rtx`.

Order: what the caller asks is checked, the file is looked at, profiles are checked, and only then a child
process loads TensorRT.
"""

from collections.abc import Sequence
from pathlib import Path

from tblock.errors import ConfigError
from tblock.export.engine import package as engine_package
from tblock.export.engine import profiles as engine_profiles
from tblock.export.engine.choice import Judge, Trial, choose_fusion, run_builder
from tblock.export.engine.onnx import read_onnx
from tblock.export.engine.options import EngineOptions, EngineRequest, Flavour, Profile
from tblock.export.engine.report import EngineReport
from tblock.files import check_writable_file, disk_error
from tblock.manifest import NAME, Manifest, read_artifact

__all__ = ["EngineOptions", "EngineReport", "Trial", "build_engine", "build_from_onnx"]


def build_engine(
    onnx: Path,
    output: Path,
    *,
    flavour: Flavour,
    profiles: Sequence[Profile],
    options: EngineOptions | None = None,
    manifest: Manifest | None = None,
    judge: Judge | None = None,
) -> EngineReport:
    """Build one engine in a child process.

    Args:
        onnx: the file; its external data lies beside it.
        output: the engine's path; replaced only by a whole new engine.
        flavour: `tensorrt` or `tensorrt-rtx`.
        profiles: optimization profiles: input name to min, opt and max shape.
        options: how; None: the defaults.
        manifest: of the artifact the file belongs to: its ranges limit the profiles.
        judge: needed by `--fusion auto` where both ways exist.

    Raises:
        RuntimeUnavailable: the package, or the GPU it needs, is not there.
        ArtifactError: the ONNX file is missing or damaged.
        ConfigError: a profile or option that makes no sense, a path that cannot be written, a plugin library
            that is not there.
        ExportError: the parser or builder refused, crashed or hung.
    """
    options = options or EngineOptions()
    found = engine_package.require(flavour)
    library = options.plugin_library
    if library and not Path(library).is_file():
        raise ConfigError(f"--plugin-library {library}: no such file; tblock plugin build makes one")
    if options.cache is not None:
        _check_cache(Path(options.cache))
    facts = read_onnx(Path(onnx))
    engine_profiles.check_profiles(profiles, facts.inputs, manifest)
    check_writable_file(output)
    if output.exists() and not _is_engine(output):
        raise ConfigError(f"--output {output}: is there and is no engine; it is not replaced")
    request = EngineRequest(
        onnx=str(facts.path.resolve()),
        output=str(output),
        flavour=flavour,
        profiles=tuple(profiles),
        options=options,
        opset=facts.opset,
        ir_version=facts.ir_version,
        fused=facts.fused,
        fused_nodes=facts.fused_nodes,
        plugin_versions=facts.plugin_versions,
        data=tuple(str(path.resolve()) for path in facts.data),
    )
    if not found.plugins:
        if options.fusion == "plugin":
            engine_package.check_options(found, options, None)
        unused = f"; --plugin-library {library} is unused" if library else ""
        return run_builder(
            request, "native", f"{found.title} has no plugin layers, only native exists{unused}"
        )
    return choose_fusion(request, judge)


def build_from_onnx(
    onnx: str | Path,
    *,
    flavour: Flavour,
    output: str | Path | None = None,
    min_shapes: str | Sequence[str] | None = None,
    opt_shapes: str | Sequence[str] | None = None,
    max_shapes: str | Sequence[str] | None = None,
    options: EngineOptions | None = None,
    judge: Judge | None = None,
) -> EngineReport:
    """What `tblock build` does: an ONNX file (or an artifact folder) and trtexec's shape flags to one engine.

    Args:
        onnx: the file, or an artifact folder with `model.onnx`. A manifest beside the file gives its digests,
            its ranges limit the shapes, and where no shapes are given it gives them.
        flavour: `tensorrt` or `tensorrt-rtx`.
        output: the engine's path; None: `<stem>.<flavour>.engine` beside the file.
        min_shapes, opt_shapes, max_shapes: trtexec's spelling; several texts make several profiles.
        options, judge: as for `build_engine`.

    Raises:
        TblockError: as `build_engine`; ArtifactError also for a file that is not what the manifest says.
    """
    path = Path(onnx)
    if path.is_dir() and (path / NAME).is_file():
        path = path / "model.onnx"
    engine_package.require(flavour)
    manifest = _manifest_beside(path)
    profiles = engine_profiles.from_flags(*map(_listed, (min_shapes, opt_shapes, max_shapes)))
    if not profiles and manifest is not None:
        profiles = engine_profiles.from_manifest(manifest)
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.{flavour}.engine")
    return build_engine(
        path, target, flavour=flavour, profiles=profiles, options=options, manifest=manifest, judge=judge
    )


def _is_engine(path: Path) -> bool:
    from tblock.runtimes.engine_file import TAGS

    with path.open("rb") as file:
        return file.read(4) in TAGS.values()


def _check_cache(folder: Path) -> None:
    """Refuse, before any work, a cache folder that cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--cache {folder}: cannot be made ({disk_error(error)})") from None
    check_writable_file(folder / "engine", "--cache")


def _listed(given: str | Sequence[str] | None) -> list[str]:
    return [given] if given and isinstance(given, str) else list(given or ())


def _manifest_beside(path: Path) -> Manifest | None:
    """The manifest of the artifact the file belongs to, its files found unchanged; None for a file on its
    own."""
    if not path.is_file() or not (path.parent / NAME).is_file():
        return None
    artifact = read_artifact(path.parent)
    if path.name not in artifact.manifest.files:
        return None
    artifact.path(path.name)
    for data in read_onnx(path).data:
        artifact.path(data.name)
    return artifact.manifest
