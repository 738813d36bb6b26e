"""`tblock doctor`: what is installed, what is missing, and what brings it."""

import ctypes
import importlib.metadata
import importlib.util
import platform
import shutil
from typing import Annotated

import typer

from tblock.cli import output

DISTRIBUTIONS = {
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt_rtx"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
}
"""Import name to the distributions that may bring it, where the two differ."""

PACKAGES = (
    ("torch", "export", "eager, compile and aoti; every export"),
    ("onnx", "export", "every export to onnx or TensorRT"),
    ("onnx_ir", "export", "every export to onnx or TensorRT"),
    ("onnxscript", "export", "every export to onnx or TensorRT"),
    ("onnxruntime", "onnxruntime", "the onnxruntime runtime"),
    ("tensorrt_rtx", "tensorrt-rtx", "building TensorRT-RTX engines; running them needs a GPU"),
    ("tensorrt", "tensorrt", "building and running TensorRT engines, with a GPU"),
    ("cuda", "tensorrt", "running TensorRT engines (cuda-python)"),
    ("gguf", "checkpoints", "reading GGUF checkpoints"),
    ("transformers", "verify-import", "comparing a family with its own implementation"),
    ("triton", "plugins", "building the plugin library"),
)
"""Package, the extra that brings it, what it is for."""


def run(json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Say what is installed, what is missing and what brings it."""
    rows = [["python", platform.python_version(), "", "tblock"]]
    for package, extra, purpose in PACKAGES:
        version = package_version(package)
        rows.append(
            [package, version or "missing", "" if version else f"pip install 'tblock[{extra}]'", purpose]
        )
    for tool, hint, purpose in (
        ("g++", "apt-get install g++ (Debian, Ubuntu)", "aoti and torch.compile; the plugin library"),
        ("cmake", "apt-get install cmake (Debian, Ubuntu)", "the plugin library"),
    ):
        path = shutil.which(tool)
        rows.append([tool, path or "missing", "" if path else hint, purpose])
    driver = has_driver()
    hint = "" if driver else "a machine with an NVIDIA GPU and its driver"
    rows.append(["NVIDIA driver", "libcuda.so.1" if driver else "missing", hint, "running on a GPU"])
    if json:
        output.print_json([dict(zip(("what", "found", "bring", "for"), row, strict=True)) for row in rows])
    else:
        output.print_table(["what", "found", "what brings it", "for"], rows)


def package_version(package: str) -> str | None:
    """Version of an installed package by its import name, None where there is none. Imports nothing."""
    try:
        if importlib.util.find_spec(package) is None:
            return None
    except (ImportError, ValueError):
        return None
    for name in DISTRIBUTIONS.get(package, (package, f"{package}-python")):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


def extra_of(package: str) -> str | None:
    """The extra that brings a package, by its import name; None where it is not one of ours."""
    return next((extra for name, extra, _ in PACKAGES if name == package), None)


def has_driver() -> bool:
    """Whether the CUDA driver's library can be opened."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
