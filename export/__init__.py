"""From a block to an artifact: capture, ONNX, AOTInductor, TensorRT engines.

Import it as `tblock.export`; it may import `tblock`, torch, onnx and, lazily, the builders.
"""

from typing import TYPE_CHECKING, Any

if __name__ == "export":
    raise ImportError("import tblock.export, not export: this folder is only the source of that package")

if TYPE_CHECKING:
    from tblock.export.exporter import export
    from tblock.manifest import Artifact

__all__ = ["Artifact", "export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from tblock.export.exporter import export

        return export
    if name == "Artifact":
        from tblock.manifest import Artifact

        return Artifact
    raise AttributeError(f"module 'tblock.export' has no attribute {name!r}")
