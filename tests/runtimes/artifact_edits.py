"""Making artifacts for the runners' tests, and damaging them so that only the damage is left to find."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tblock import BlockConfig
from tblock.manifest import NAME, Manifest, file_digest, read_artifact
from tblock.ranges import Range

ODD = BlockConfig(dim=60, num_heads=3, num_kv_heads=1, head_dim=20, ffn_dim=100, max_position=64)
"""No power of two, K < H."""

LIMITS = {"batch": Range(1, 2, 4), "seq": Range(1, 16, 32)}
"""Small, and not what golden shapes start from."""


def copy(folder: Path, to: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(folder, to / folder.name))


def reseal(folder: Path, edit: Callable[[Manifest], dict[str, Any]] = lambda manifest: {}) -> Path:
    """Write the manifest again for the files as they are, so that digests find nothing.

    Args:
        folder: the artifact, changed.
        edit: gives the manifest fields to replace.
    """
    manifest = read_artifact(folder).manifest
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": file_digest(folder / name)}
        for name in manifest.files
        if (folder / name).exists()
    }
    changed = dataclasses.replace(manifest, **{"files": files, **edit(manifest)})
    (folder / NAME).write_text(changed.to_json(), encoding="utf-8")
    return folder


def swap_gate_and_up(folder: Path) -> Path:
    """Silu meets the wrong projection in the ONNX graph: shapes fit, all runs, the numbers are wrong."""
    import onnx

    path = folder / "model.standard.onnx"
    model = onnx.load(path, load_external_data=False)
    other = {"gate": "up", "up": "gate"}
    swapped = 0
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            module, _, part = name.removesuffix(".weight").rpartition(".")
            if part in other and name.endswith(".weight"):
                node.input[index], swapped = f"{module}.{other[part]}.weight", swapped + 1
    assert swapped
    onnx.save(model, path)
    return reseal(folder)
