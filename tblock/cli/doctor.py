"""`tblock doctor`: what is installed, what is missing, and what brings it."""

import importlib.metadata
import importlib.util
import platform
import shutil

from tblock import machine
from tblock.cli import output, running
from tblock.errors import TblockError

BUILDING = (
    ("torch", "export", "every export"),
    ("onnx", "export", "every export to onnx or TensorRT"),
    ("onnx_ir", "export", "every export to onnx or TensorRT"),
    ("onnxscript", "export", "every export to onnx or TensorRT"),
    ("tensorrt_rtx", "tensorrt-rtx", "building TensorRT-RTX engines"),
    ("tensorrt", "tensorrt", "building TensorRT engines, on a GPU"),
    ("gguf", "checkpoints", "reading GGUF checkpoints"),
    ("transformers", "verify-import", "comparing a family with its own implementation"),
    ("triton", "plugins", "building the plugin library"),
)
"""Package, the extra that brings it, what it is for; what runtimes need is in their rows."""


def run(json: running.Json = False) -> None:
    """Say what is installed, what is missing and what brings it."""
    rows = [["python", platform.python_version(), "", "tblock"]]
    for package, (extra, purpose) in packages().items():
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
    try:
        gpu, hint = str(machine.find_gpu()), ""
    except TblockError as error:
        gpu, hint = "missing", f"a machine with an NVIDIA GPU and its driver ({error})"
    rows.append(["NVIDIA GPU", gpu, hint, "running on a GPU"])
    if json:
        output.print_json([dict(zip(("what", "found", "bring", "for"), row, strict=True)) for row in rows])
    else:
        output.print_table(["what", "found", "what brings it", "for"], rows)


def packages() -> dict[str, tuple[str, str]]:
    """Every optional package by its import name: the extra that brings it, and what it is for."""
    from tblock.runtimes import RUNTIMES

    found: dict[str, tuple[str, list[str]]] = {}
    for name, row in RUNTIMES.items():
        for package in (row.package, *row.also):
            found.setdefault(package, (row.extra, []))[1].append(name)
    texts = {package: (extra, f"running {', '.join(names)}") for package, (extra, names) in found.items()}
    for package, extra, purpose in BUILDING:
        running = f"; {texts[package][1]}" if package in texts else ""
        texts[package] = (extra, purpose + running)
    return texts


def package_version(package: str) -> str | None:
    """Version of an installed package by its import name, None where there is none. Imports nothing."""
    try:
        if importlib.util.find_spec(package) is None:
            return None
    except (ImportError, ValueError):
        return None
    # Some wheels are not named as what they are imported as (onnxruntime-gpu, tensorrt-rtx-cu13).
    for name in (package.replace(".", "-"), *importlib.metadata.packages_distributions().get(package, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


def extra_of(package: str) -> str | None:
    """The extra that brings a package, by its import name; None where it is not one of ours."""
    return packages().get(package, (None,))[0]
