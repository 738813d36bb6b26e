"""The aoti runner: the AOTInductor package, native code for the machine and torch it was compiled for.

Owns the comparison of this machine with the manifest before the code is loaded. Loads torch.
"""

import contextlib
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import treespec_loads

from tblock.block import ARGUMENTS
from tblock.errors import ArtifactError, RuntimeUnavailable, reason
from tblock.machine import cpu_flags
from tblock.manifest import Artifact
from tblock.runtimes.eager import TorchRunner

_PREFIX = "tblock-aoti-"
"""Of a folder that a package is unpacked into."""
_LONGEST_LOAD = 3600
"""Seconds; a folder older than that belongs to a process that was killed."""


class AotiRunner(TorchRunner):
    """model.pt2 through torch._inductor.aoti_load_package; inputs in manifest order.

    The package itself takes any width, rank and stride and computes on what it finds: the check in front of
    it is not a convenience.
    """

    name = "aoti"

    def __init__(self, artifact: Artifact, *, threads: int | None = None) -> None:
        """Compare, verify, load.

        Args:
            artifact: with an `aoti` target.
            threads: torch's, for the whole process; None: as they are.

        Raises:
            ArtifactError: built for another torch or instruction set, or the package is damaged.
            RuntimeUnavailable: built for a device this machine lacks.
        """
        target = artifact.manifest.targets["aoti"]
        name = next((n for n in target["files"] if n.endswith(".pt2")), None)
        if name is None:
            raise ArtifactError(f"{artifact.folder}: the aoti target lists no .pt2 file")
        check_build(f"{artifact.folder / name}", target)
        super().__init__(artifact, provider=target.get("device", "cpu"), threads=threads)
        path = artifact.path(name)
        try:
            with _unpacking():
                self._package = torch._inductor.aoti_load_package(str(path))
            self._order = _input_order(self._package, [spec.name for spec in artifact.manifest.inputs])
        except (
            Exception
        ) as error:  # the loader raises whatever its zip reader, compiler check or linker raise
            room = (
                f"unpacked into {tempfile.gettempdir()}, set TMPDIR to a folder with room: "
                if _full()
                else ""
            )
            raise ArtifactError(f"{path}: AOTInductor cannot load it: {room}{reason(error)}") from error

    def _call(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        # The package's own __call__ parses its signature from JSON at each call; the list is consumed.
        return self._package.loader.boxed_run([tensors[name] for name in self._order])


@contextlib.contextmanager
def _unpacking() -> Iterator[None]:
    """Let the package be unpacked into a folder that goes once it is loaded: its files are mapped by then.

    So a process killed later leaves nothing, and what one killed here left goes with a later load. torch's
    warning of CPUs that merely differ is left out: `check_build` has compared them.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}????????"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LONGEST_LOAD:
                shutil.rmtree(left, ignore_errors=True)
    log = logging.getLogger("torch.export.pt2_archive._package")
    level, before = log.level, os.environ.get("TMPDIR")
    log.setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            log.setLevel(level)
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def _full() -> bool:
    return shutil.disk_usage(tempfile.gettempdir()).free < 1 << 20


def _input_order(package: Any, names: list[str]) -> list[str]:
    """Manifest names in the order the package takes its inputs; a wrong one would compute without a word.

    Args:
        package: what aoti_load_package gave.
        names: of the manifest's inputs, in order.

    Raises:
        ValueError: the package takes others.
    """
    spec = treespec_loads(package.loader.get_call_spec()[0])
    positional, keywords = spec.child(0).num_leaves, list(spec.child(1).context)
    by_argument = {argument: name for name, argument in ARGUMENTS.items()}
    order = names[:positional] + [by_argument.get(argument, argument) for argument in keywords]
    if sorted(order) != sorted(names):
        raise ValueError(f"it takes {', '.join(order)}, the manifest says {', '.join(names)}")
    return order


def check_build(where: str, target: Mapping[str, Any]) -> None:
    """Refuse a package that this torch or this CPU would run wrongly or die on.

    Args:
        where: the package, for the message.
        target: its manifest entry: `torch`, `device`, `architecture`, `cpu`, `cpu_flags`.

    Raises:
        ArtifactError: built by another torch release, or for a CPU that has what this one lacks.
        RuntimeUnavailable: built for CUDA, and torch sees none.
    """
    built, here = str(target.get("torch", "unknown")), torch.__version__
    if _release(built) != _release(here):
        raise ArtifactError(f"{where}: built by torch {built}, this is torch {here}; export again")
    device = target.get("device", "cpu")
    if device != "cpu":
        if not torch.cuda.is_available():
            raise RuntimeUnavailable(f"aoti: {where} is built for {device}, torch {here} sees no CUDA device")
        return
    if "cpu_flags" not in target:
        raise ArtifactError(f"{where}: its manifest does not say which CPUs run it; export again")
    wanted, mine = target.get("architecture"), platform.machine()
    lacking = [flag for flag in target["cpu_flags"] if flag not in cpu_flags()]
    if wanted != mine or lacking:
        lacks = f"has no {', '.join(lacking)}" if wanted == mine else f"is {mine}"
        raise ArtifactError(
            f"{where}: built for {wanted} CPUs of level {target.get('cpu')}, this one {lacks}; "
            "export again here, or with a lower --cpu"
        )


def _release(version: str) -> str:
    """`2.13.0+cpu` to `2.13`: the shims an AOTInductor package links to are kept within a minor release."""
    return ".".join(version.split("+")[0].split(".")[:2])
