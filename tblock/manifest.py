"""The manifest: what an artifact folder holds, for whom it was built, and the digests that detect damage.

Owns reading, checking and the canonical form of `manifest.json` (schema: `tblock/manifest.schema.json`).
Digests detect damage, not attackers: `.pt2`, `.engine` and plugin libraries are code, so load artifacts only
from people you trust. Imports no torch.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tblock.config import BlockConfig
from tblock.errors import ArtifactError
from tblock.files import read_json
from tblock.ranges import Range
from tblock.schema import faults

FORMAT = "1.1"
"""MAJOR.MINOR. A reader refuses a MAJOR it does not know, and ignores what it does not know of a newer MINOR
(a field of a config is noted, and the runtimes that rebuild the block from the config refuse it)."""

NAME = "manifest.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
GRAPH = "model.onnx"
STANDARD = "model.standard.onnx"
"""The ONNX graph with fused ops as nodes, and with standard operators only."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One graph input or output.

    Attributes:
        name: in every runtime.
        dims: a letter for a dynamic dimension (B batch, S query length, P past length, T = P + S), a number
            for a fixed one.
        dtype: a key of `tblock.dtypes.DTYPES`.
        residual: of an output: the input it is added to; judged with and without it. None: no such input.
        live: of an output: the bool input that says which of its tokens count. None: all do.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: str
    residual: str | None = None
    live: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without what is None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        tblock: version that wrote it.
        created: UTC time, ISO 8601.
        tools: package to version at export.
        source: where the weights come from: `kind` (preset, config, module, checkpoint), `name`, `layers`
            [first, last + 1]; `tied`: parameter to the one whose weights it shares, where some do.
        configs: one BlockConfig for each block, in order.
        dtype: of weights, inputs and outputs.
        parameters: scalars in all blocks.
        inputs, outputs: of the graph.
        ranges: letter to [min, opt, max].
        targets: target name to what is known of it; always `files` (names in the folder).
        files: name to `size` (bytes) and `sha256`.
        verdicts: runtime to the verdict at export, where one was run.
        notes: what the exporter adjusted and why, one line each.
        unread: fields of the configs that a newer tblock wrote and this one does not know; not written.
    """

    tblock: str
    created: str
    tools: dict[str, str]
    source: dict[str, Any]
    configs: tuple[BlockConfig, ...]
    dtype: str
    parameters: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: dict[str, Range]
    targets: dict[str, dict[str, Any]]
    files: dict[str, dict[str, Any]]
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The file's text, with the digest of itself."""
        body = self._body()
        return json.dumps({**body, "digest": digest(body)}, indent=1) + "\n"

    def _body(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "tblock": self.tblock,
            "created": self.created,
            "tools": self.tools,
            "source": self.source,
            "configs": [c.to_dict() for c in self.configs],
            "dtype": self.dtype,
            "parameters": self.parameters,
            "inputs": [t.to_dict() for t in self.inputs],
            "outputs": [t.to_dict() for t in self.outputs],
            "ranges": {letter: [r.min, r.opt, r.max] for letter, r in self.ranges.items()},
            "targets": self.targets,
            "files": self.files,
            "verdicts": self.verdicts,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Artifact:
    """An artifact folder and its manifest."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where a file of the manifest lies, once its size and digest are found right.

        Raises:
            ArtifactError: the file is not in the manifest, is missing, or is not what was written.
        """
        entry = self.manifest.files.get(name)
        path = self.folder / name
        if entry is None:
            raise ArtifactError(f"{self.folder}: the manifest lists no file {name!r}")
        if not path.is_file():
            raise ArtifactError(f"{path}: missing; copy the whole artifact folder, or export again")
        size = path.stat().st_size
        if size != entry["size"]:
            raise ArtifactError(f"{path}: {size} bytes, the manifest says {entry['size']}; export again")
        if file_digest(path) != entry["sha256"]:
            raise ArtifactError(f"{path}: digest mismatch, the file was changed or damaged; export again")
        return path


def read_artifact(folder: str | Path) -> Artifact:
    """Open an artifact folder: read and check its manifest (each file is checked when it is used).

    Raises:
        ArtifactError: no folder, no manifest, an unknown format, a digest that does not match, or missing
            entries.
    """
    folder = Path(folder)
    path = folder / NAME
    try:
        body = read_json(path)
    except FileNotFoundError:
        what = "no manifest.json in it" if folder.is_dir() else "no such folder"
        raise ArtifactError(
            f"{folder}: {what}; make an artifact with `tblock export ... -o {folder}`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read as JSON ({error}); export again") from None
    if not isinstance(body, dict) or not isinstance(body.get("format"), str):
        raise ArtifactError(f"{path}: not a tblock manifest (no format)")
    if body["format"].split(".")[0] != FORMAT.split(".")[0]:
        raise ArtifactError(
            f"{path}: format {body['format']}, this tblock reads {FORMAT}; use a newer tblock"
        )
    said = body.pop("digest", None)
    if said != digest(body):
        raise ArtifactError(f"{path}: digest mismatch, the manifest was changed or damaged; export again")
    newer = _minor(body["format"]) > _minor(FORMAT)
    schema = _schema()
    fault = next(faults({**body, "digest": said}, schema, schema["$defs"], words=not newer), None)
    if fault:
        raise ArtifactError(f"{path}: {fault}; export again")
    try:
        return Artifact(folder, _parse(body))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: entry missing or of the wrong kind ({error}); export again") from None


def _parse(body: dict[str, Any]) -> Manifest:
    _check_names(body)
    specs = {
        side: tuple(
            TensorSpec(
                name=t["name"],
                dims=tuple(t["dims"]),
                dtype=t["dtype"],
                residual=t.get("residual"),
                live=t.get("live"),
            )
            for t in body[side]
        )
        for side in ("inputs", "outputs")
    }
    newer = _minor(body["format"]) > _minor(FORMAT)
    fields = {f.name for f in dataclasses.fields(BlockConfig)}
    unread = tuple(sorted({name for c in body["configs"] for name in c} - fields)) if newer else ()
    notes = tuple(body["notes"])
    if unread:
        notes += (f"format {body['format']} is newer than {FORMAT}: config {', '.join(unread)} not read",)
    kept = ("tblock", "created", "tools", "source", "dtype", "parameters", "targets", "files", "verdicts")
    return Manifest(
        **{name: body[name] for name in kept},
        configs=tuple(
            BlockConfig.from_dict({n: v for n, v in c.items() if n not in unread}) for c in body["configs"]
        ),
        inputs=specs["inputs"],
        outputs=specs["outputs"],
        ranges={letter: Range(*numbers) for letter, numbers in body["ranges"].items()},
        notes=notes,
        unread=unread,
    )


def _minor(version: str) -> int:
    minor = version.partition(".")[2]
    return int(minor) if minor.isdecimal() else 0


@functools.cache
def _schema() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "manifest.schema.json").read_text(encoding="utf-8"))


def _check_names(body: dict[str, Any]) -> None:
    """Refuse a name that stands for nothing: a file, a dimension's letter, an input (ValueError)."""
    inputs = [spec["name"] for spec in body["inputs"]]
    for target, entry in body["targets"].items():
        _require(entry["files"], body["files"], f"targets.{target}.files")
    for spec in (*body["inputs"], *body["outputs"]):
        _require([d for d in spec["dims"] if isinstance(d, str)], body["ranges"], f"{spec['name']}: dims")
        _require([spec[n] for n in ("residual", "live") if n in spec], inputs, spec["name"])


def _require(names: Iterable[str], known: Container[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not in the manifest")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(body: dict[str, Any]) -> str:
    """Of a manifest's body without its own digest: SHA-256 over canonical JSON, hexadecimal."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
