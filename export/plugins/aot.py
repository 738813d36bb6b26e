"""Compiles every variant to PTX and cubin, without a GPU and without nvcc.

One module per op and architecture: Triton emits PTX per variant, the entries are merged into one text, and
the ptxas that Triton ships assembles it and reports registers, shared memory and spills. Owns nothing at run
time.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tblock.errors import ExportError
from tblock.export.plugins import kernels
from tblock.export.plugins.architectures import BASELINE, PTX_VERSIONS
from tblock.export.plugins.cache_folder import cache_folder
from tblock.export.plugins.variants import DTYPES, OPS, VARIANTS, Variant, arguments, check_arguments, row_of
from tblock.files import disk_error

_TRITON_CACHE_VARIABLES = ("TRITON_CACHE_DIR", "TRITON_HOME")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the assembler says about one variant on one architecture. Bytes, except registers (per thread)."""

    name: str
    arch: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    vector_bytes: int


@dataclass(frozen=True, kw_only=True)
class Module:
    """One op on one architecture: merged PTX, its cubin, and a resource row per variant."""

    op: str
    arch: int
    ptx: str
    cubin: bytes
    resources: tuple[Resources, ...] = field(repr=False)


def compile_variant(variant: Variant, arch: int, source: ModuleType | None = None) -> Any:
    """Run Triton's compiler on one variant.

    Args:
        variant: row of VARIANTS.
        arch: compute capability, as 80 or 90.
        source: module with the kernel, instead of the shipped one.

    Returns:
        Triton's CompiledKernel: `.asm` with ttir, ttgir, ptx; `.metadata.shared` in bytes.

    Raises:
        ExportError: the architecture is unknown, the kernel's arguments are not those of the contract's row,
            Triton is in interpreter mode, cannot write, or refuses the kernel.
    """
    if arch not in PTX_VERSIONS:
        raise ExportError(f"arch={arch}: no PTX version known for it; one of {sorted(PTX_VERSIONS)}")
    if knobs.runtime.interpret:
        raise ExportError("TRITON_INTERPRET is set: kernels cannot be compiled then; unset it")
    fn = getattr(source or kernels.module(variant.op), variant.op)
    row = row_of(variant.op)
    check_arguments(row, fn.arg_names)
    constants = variant.constants(fn.arg_names)
    types = arguments(row) | dict.fromkeys(constants, "constexpr")
    element = DTYPES[variant.dtype][0]
    signature = {name: f"*{element}" if types[name] == "T*" else types[name] for name in fn.arg_names}
    # Pointers are promised at 16 bytes only where the launcher checked them.
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(fn.arg_names)
        if types[name] == "T*" and variant.align > 1
    }
    knobs.compilation.disable_line_info = True
    with knobs.cache.scope():
        if not any(os.environ.get(name) for name in _TRITON_CACHE_VARIABLES):
            # Triton's own default is in the home folder, which not every user has.
            knobs.cache.dir = str(cache_folder("triton"))
        try:
            return triton.compile(
                ASTSource(fn, signature, constants, attributes),
                target=GPUTarget("cuda", arch, 32),
                options={
                    "num_warps": variant.warps,
                    "ptx_version": PTX_VERSIONS[arch],
                    "enable_fp_fusion": True,
                },
            )
        except OSError as error:
            raise ExportError(
                f"{variant.name} on sm_{arch}: Triton cannot write to its cache {knobs.cache.dir} or to "
                f"{tempfile.gettempdir()}: {disk_error(error)}; set TRITON_CACHE_DIR or TMPDIR"
            ) from error
        except Exception as error:
            # Triton says where in its first line, and what in its last.
            lines = (str(error).strip() or type(error).__name__).splitlines()
            words = " ".join(dict.fromkeys((lines[0], lines[-1])))
            raise ExportError(f"{variant.name} on sm_{arch}: does not compile: {words}") from error


def vector_bytes(ptx: str) -> int:
    """Bytes of the narrowest global load or store in a PTX text: 16 means every access is a full vector."""
    widths = []
    for lanes, bits in re.findall(r"(?:ld|st)\.global(?:\.v(\d))?\.[bfu](\d+)", ptx):
        widths.append(int(lanes or 1) * int(bits) // 8)
    return min(widths)


def compile_module(op: str, arch: int, report: Callable[[str], None] = lambda _: None) -> Module:
    """Compile every variant of an op for one architecture and assemble them as one module.

    Args:
        op: of OPS.
        arch: compute capability.
        report: called with one line per module.

    Returns:
        The module.

    Raises:
        ExportError: the assembler refuses, or a variant spills registers.
    """
    parts, vectors, shared = [], {}, {}
    for variant in (v for v in VARIANTS if v.op == op):
        kernel = compile_variant(variant, arch)
        ptx = kernel.asm["ptx"]
        vectors[variant.name] = vector_bytes(ptx)
        shared[variant.name] = kernel.metadata.shared
        parts.append(
            ptx.replace(f"{op}_param_", f"{variant.name}_param_").replace(
                f".entry {op}(", f".entry {variant.name}("
            )
        )
    merged = _merge(parts)
    cubin, log = _assemble(merged, arch)
    rows = []
    for name, (registers, stack, spill) in _parse(log).items():
        row = Resources(
            name=name,
            arch=arch,
            registers=registers,
            shared_bytes=shared[name],
            spill_bytes=spill,
            stack_bytes=stack,
            vector_bytes=vectors[name],
        )
        if row.spill_bytes or row.stack_bytes:
            raise ExportError(
                f"{name} on sm_{arch}: {spill} bytes of spills, {stack} of stack; "
                "narrow its tile beside the kernel"
            )
        rows.append(row)
    if len(rows) != len(parts):
        raise ExportError(
            f"{op} on sm_{arch}: {len(parts)} variants in, {len(rows)} in the assembler's report"
        )
    report(
        f"{op} sm_{arch}: {len(rows)} variants, at most {max(r.registers for r in rows)} registers, no spills"
    )
    return Module(op=op, arch=arch, ptx=merged, cubin=cubin, resources=tuple(rows))


def compile_all(archs: Iterable[int], report: Callable[[str], None] = lambda _: None) -> list[Module]:
    """Every op for every architecture, the baseline always among them.

    Args:
        archs: compute capabilities that get a cubin.
        report: called with one line per module.

    Returns:
        Modules ordered by op, then architecture.
    """
    wanted = sorted({BASELINE, *archs})
    return [compile_module(op, arch, report) for op in OPS for arch in wanted]


def _merge(parts: list[str]) -> str:
    """One PTX text from several with the same header; every entry uses the same extern shared array."""
    header = re.search(r"\.version.*\n\.target.*\n\.address_size.*\n", parts[0])
    assert header
    bodies = [part[part.index(".visible .entry") :] for part in parts]
    # Without the `a`, the code also runs on the rest of its family; ptxas refuses if it needs the `a`.
    plain = re.sub(r"(\.target sm_\d+)a", r"\1", header.group())
    text = plain + ".extern .shared .align 16 .b8 global_smem[];\n" + "".join(bodies)
    return (
        "\n".join(line for line in (re.sub(r"\s*//.*", "", raw) for raw in text.splitlines()) if line.strip())
        + "\n"
    )


def _assemble(ptx: str, arch: int) -> tuple[bytes, str]:
    # The older of the two assemblers Triton ships: its cubins load on older drivers.
    ptxas = knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "module.ptx"), Path(folder, "module.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [ptxas, "-v", f"--gpu-name=sm_{arch}", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode:
            raise ExportError(f"ptxas refused sm_{arch}: {done.stderr.strip()[:500]}")
        return target.read_bytes(), done.stderr


def _parse(log: str) -> dict[str, tuple[int, int, int]]:
    """Entry name -> (registers, stack bytes, spill store + load bytes), from `ptxas -v`."""
    found = {}
    pattern = (
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers"
    )
    for name, stack, stores, loads, registers in re.findall(pattern, log, re.DOTALL):
        found[name] = (int(registers), int(stack), int(stores) + int(loads))
    return found
