"""A manifest with something in every field, and a folder that it makes an artifact of."""

import hashlib
from pathlib import Path

from tblock import preset
from tblock.manifest import NAME, Manifest, TensorSpec
from tblock.ranges import Range

SHA = hashlib.sha256(b"weights").hexdigest()


def manifest() -> Manifest:
    return Manifest(
        tblock="0.1.0",
        created="2026-01-02T03:04:05+00:00",
        tools={"torch": "2.13.0", "numpy": "2.4"},
        source={"kind": "preset", "name": "tïny", "layers": [0, 2]},
        configs=(preset("tiny"), preset("tiny").replace(norm_eps=1e-5)),
        dtype="float32",
        parameters=2 * preset("tiny").parameter_count(),
        inputs=(
            TensorSpec(name="x", dims=("B", "S", 64), dtype="float32"),
            TensorSpec(name="padding_mask", dims=("B", "S"), dtype="bool"),
        ),
        outputs=(TensorSpec(name="y", dims=("B", "S", 64), dtype="float32"),),
        ranges={"B": Range(1, 2, 8), "S": Range(1, 33, 100)},
        targets={
            "onnx": {
                "files": ["model.onnx", "weights.safetensors"],
                "opset": 23,
                "ir_version": 10,
                "attention": "attention-23",
                "attention_reason": "because",
                "fused": {"TblockRMSNorm": 2},
                "nodes": 40,
            }
        },
        files={name: {"size": 7, "sha256": SHA} for name in ("weights.safetensors", "model.onnx")},
        verdicts={
            "onnxruntime": {
                "status": "PASS", "ratio": 0.1, "error": 1e-7, "eager_error": None, "where": "", "reason": "",
            }
        },
        notes=("one", "two"),
    )  # fmt: skip


def empty_artifact(folder: Path) -> bytes:
    """A folder that holds a manifest of ours and nothing else.

    Returns:
        The manifest's bytes.
    """
    folder.mkdir(parents=True)
    (folder / NAME).write_text(manifest().to_json())
    return (folder / NAME).read_bytes()
