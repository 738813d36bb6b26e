"""The manifest: what an artifact folder holds, for whom it was built, and the digests that detect damage.

Owns reading, checking and the canonical form of `manifest.json` (schema: `tblock/manifest.schema.json`).
Digests detect damage, not attackers: `.pt2`, `.engine` and plugin libraries are code, so load artifacts only
from people you trust. Imports no torch.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tblock.config import BlockConfig
from tblock.errors import ArtifactError
from tblock.ranges import Range

FORMAT = "1.0"
"""MAJOR.MINOR; a reader refuses a MAJOR it does not know."""

NAME = "manifest.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One graph input or output.

    Attributes:
        name: in every runtime.
        dims: a letter (DESIGN section 5) for a dynamic dimension, a number for a fixed one.
        dtype: `float32`, `float16`, `bfloat16`, `int64` or `bool`.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        tblock: version that wrote it.
        created: UTC time, ISO 8601.
        tools: package to version at export.
        source: where the weights come from: `kind` (preset, config, module, checkpoint), `name`, `layers`
            [first, last + 1]; `shared` where layers share weights: layer n has those of layer shared[n].
        configs: one BlockConfig for each block, in order.
        dtype: of weights, inputs and outputs.
        parameters: scalars in all blocks.
        inputs, outputs: of the graph.
        ranges: letter to [min, opt, max].
        targets: target name to what is known of it; always `files` (names in the folder).
        files: name to `size` (bytes) and `sha256`.
        verdicts: runtime to the verdict at export, where one was run.
        notes: what the exporter adjusted and why, one line each.
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

    def to_json(self) -> str:
        """The file's text, with the digest of itself."""
        body = self._body()
        return json.dumps({**body, "digest": _digest(body)}, indent=1) + "\n"

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
            "inputs": [asdict(t) for t in self.inputs],
            "outputs": [asdict(t) for t in self.outputs],
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
        body = json.loads(path.read_text(encoding="utf-8"))
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
    digest = body.pop("digest", None)
    if digest != _digest(body):
        raise ArtifactError(f"{path}: digest mismatch, the manifest was changed or damaged; export again")
    try:
        return Artifact(folder, _parse(body))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: entry missing or of the wrong kind ({error}); export again") from None


def _parse(body: dict[str, Any]) -> Manifest:
    specs = {
        side: tuple(TensorSpec(name=t["name"], dims=tuple(t["dims"]), dtype=t["dtype"]) for t in body[side])
        for side in ("inputs", "outputs")
    }
    kept = ("tblock", "created", "tools", "source", "dtype", "parameters", "targets", "files", "verdicts")
    return Manifest(
        **{name: body[name] for name in kept},
        configs=tuple(BlockConfig.from_dict(c) for c in body["configs"]),
        inputs=specs["inputs"],
        outputs=specs["outputs"],
        ranges={letter: Range(*numbers) for letter, numbers in body["ranges"].items()},
        notes=tuple(body["notes"]),
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
