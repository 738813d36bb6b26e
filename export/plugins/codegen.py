"""Generates what the C++ side would otherwise repeat: the contract's names and indices, variants and images.

Owns text only: the signature comes from `tblock.contract`, the table from `variants`, the images from `aot`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tblock.contract import DOMAIN, PLUGINS, OpRow, Port
from tblock.errors import ExportError
from tblock.export.plugins.variants import DTYPES, MAX_WIDTH, OPS, VARIANTS

if TYPE_CHECKING:
    from tblock.export.plugins.aot import Module

_HEADER = "// Generated from tblock/contract.py and export/plugins/variants.py; edit those.\n"


def constant(name: str) -> str:
    """`weight_offset` -> `kWeightOffset`."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


def contract_header() -> str:
    """The C++ header of names, versions, field names and tensor indices.

    Raises:
        ExportError: a row of the contract has something the C++ side does not know yet.
    """
    if tuple(row.name for row in PLUGINS) != OPS:
        raise ExportError(f"plugin rows {[r.name for r in PLUGINS]} differ from kernels {list(OPS)}")
    lines = [
        _HEADER,
        "#pragma once",
        "#include <cstdint>",
        '#include "op_row.h"',
        "",
        "namespace tblock::contract",
        "{",
        f'inline constexpr char kNamespace[] = "{DOMAIN}";',
    ]
    for row in PLUGINS:
        lines += _row_lines(row)
    names = [f"{row.name}::kRow" for row in PLUGINS]
    lines += ["", f"inline constexpr OpRow const* kRows[] = {{&{', &'.join(names)}}};"]
    lines += ["} // namespace tblock::contract", ""]
    return "\n".join(lines)


def _row_lines(row: OpRow) -> list[str]:
    for attribute in row.attributes:
        if attribute.kind != "float":
            raise ExportError(f"{row.name}.{attribute.name}: kind {attribute.kind} has no plugin field yet")
    fields = ", ".join(f'{{"{a.name}", {str(a.name == "eps").lower()}}}' for a in row.attributes)
    field_table = [f"inline constexpr FieldRow kFields[] = {{{fields}}};"] if fields else []
    return [
        "",
        f"namespace {row.name}",
        "{",
        *_index_lines("in", [p.name for p in row.inputs]),
        *_index_lines("out", [p.name for p in row.outputs]),
        *_index_lines("field", [a.name for a in row.attributes]),
        f"inline constexpr PortRow kInputs[] = {{{', '.join(map(_port, row.inputs))}}};",
        f"inline constexpr PortRow kOutputs[] = {{{', '.join(map(_port, row.outputs))}}};",
        *field_table,
        f'inline constexpr OpRow kRow{{"{row.name}", "{row.onnx_name}", "{row.version}", '
        f"kInputs, in::kCount, kOutputs, out::kCount, {'kFields' if fields else 'nullptr'}, field::kCount}};",
        f"}} // namespace {row.name}",
    ]


def _index_lines(scope: str, names: list[str]) -> list[str]:
    entries = ", ".join(
        [*(f"{constant(name)} = {i}" for i, name in enumerate(names)), f"kCount = {len(names)}"]
    )
    return [f"namespace {scope}", "{", f"enum Index : int32_t {{ {entries} }};", "}"]


def _port(port: Port) -> str:
    leading = port.dims.startswith("...")
    if port.dtype != "T" or port.optional or (not leading and " " in port.dims):
        raise ExportError(f"port {port.name}: dims {port.dims!r}, dtype {port.dtype}: no plugin support yet")
    return f'{{"{port.name}", {"PortShape::kRows" if leading else "PortShape::kVector"}}}'


def variant_table(shared: dict[str, int]) -> str:
    """The C++ rows of VARIANTS.

    Args:
        shared: variant name -> dynamic shared memory in bytes, the largest over all architectures.
    """
    lines = [
        _HEADER,
        f"constexpr int64_t kMaxNormWidth = {MAX_WIDTH};",
        f"constexpr int32_t kSwiglu = {OPS.index('swiglu')};",
        f"constexpr int32_t kDtypeBytes[] = {{{', '.join(str(size) for _, size in DTYPES.values())}}};",
        "constexpr Variant kVariants[] = {",
    ]
    dtypes = list(DTYPES)
    for v in VARIANTS:
        ids = f"{OPS.index(v.op)}, {dtypes.index(v.dtype)}"
        tile = f"{v.align}, {v.tile_rows}, {v.cols}, {v.warps}"
        lines.append(f'    {{"{v.name}", {ids}, {tile}, {v.max_width}, {v.max_rows}, {shared[v.name]}}},')
    return "\n".join([*lines, "};", ""])


def write(
    folder: Path, modules: "list[Module]", cubins: tuple[int, ...], baseline: int, versions: dict[str, str]
) -> None:
    """Write every generated file of the library.

    Args:
        folder: an existing folder.
        modules: of `aot.compile_all`.
        cubins: architectures whose cubin is embedded.
        baseline: architecture whose PTX is embedded.
        versions: what to record about the build.
    """
    resources = [r for module in modules for r in module.resources]
    shared: dict[str, int] = {}
    for r in resources:
        shared[r.name] = max(shared.get(r.name, 0), r.shared_bytes)
    images = []
    for module in modules:
        if module.arch == baseline:
            images.append((module.op, module.arch, "ptx", module.ptx.encode() + b"\0"))
        if module.arch in cubins:
            images.append((module.op, module.arch, "cubin", module.cubin))
    rows, assembly = [], [".section .rodata"]
    for op, arch, kind, data in images:
        symbol = f"tblock_image_{op}_sm{arch}_{kind}"
        path = folder / f"{symbol}.bin"
        path.write_bytes(data)
        assembly += _embed(symbol, path)
        rows.append((symbol, OPS.index(op), arch, kind == "ptx"))
    by_name = {v.name: v for v in VARIANTS}
    table = [
        {
            "op": by_name[r.name].op,
            "dtype": by_name[r.name].dtype,
            **{k: getattr(r, k) for k in r.__dataclass_fields__},
        }
        for r in resources
    ]
    record = {"versions": versions, "cubins": list(cubins), "ptx": baseline, "variants": table}
    record_path = folder / "table.json"
    record_path.write_bytes(b"TBLOCK-PLUGIN-TABLE" + json.dumps(record, sort_keys=True).encode() + b"\0")
    assembly += [*_embed("tblock_table_text", record_path), '.section .note.GNU-stack,"",@progbits', ""]
    declarations = [f'extern "C" {{ extern unsigned char const {symbol}[]; }}' for symbol, *_ in rows]
    entries = [f"    {{{symbol}, {op}, {arch}, {str(ptx).lower()}}}," for symbol, op, arch, ptx in rows]
    (folder / "contract.h").write_text(contract_header())
    (folder / "variants.inc").write_text(variant_table(shared))
    (folder / "images.inc").write_text(
        "\n".join([_HEADER, *declarations, "constexpr Image kImages[] = {", *entries, "};", ""])
    )
    (folder / "images.S").write_text("\n".join(assembly))


def _embed(symbol: str, path: Path) -> list[str]:
    return [f".hidden {symbol}", f".globl {symbol}", ".balign 64", f"{symbol}:", f'.incbin "{path}"']
