"""Generates what the C++ side would otherwise repeat: the contract's rows, the variants and the images.

Owns text only: the signature comes from `tblock.contract`, the table from `variants`, the images from `aot`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tblock.contract import DOMAIN, PLUGINS, OpRow, Port
from tblock.errors import ExportError
from tblock.export.plugins.architectures import BASELINE
from tblock.export.plugins.variants import DTYPES, OPS, VARIANTS, max_width

if TYPE_CHECKING:
    from tblock.export.plugins.aot import Module

_HEADER = "// Generated from tblock/contract.py and export/plugins/kernels; edit those.\n"


def contract_header() -> str:
    """The C++ header of the contract's rows that have a plugin.

    Raises:
        ExportError: a row of the contract has something the C++ side does not know yet.
    """
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
    fields = ", ".join(
        f'{{"{a.name}", FieldKind::k{a.kind.capitalize()}, {str(a.positive).lower()}}}'
        for a in row.attributes
    )
    field_table = [f"inline constexpr FieldRow kFields[] = {{{fields}}};"] if fields else []
    counts = (len(row.inputs), len(row.outputs), len(row.attributes))
    return [
        "",
        f"namespace {row.name}",
        "{",
        f"inline constexpr PortRow kInputs[] = {{{', '.join(_port(row, p) for p in row.inputs)}}};",
        f"inline constexpr PortRow kOutputs[] = {{{', '.join(_port(row, p) for p in row.outputs)}}};",
        *field_table,
        f"static_assert({counts[0] + counts[1]} <= kMaxTensors && {counts[2]} <= kMaxFields);",
        f'inline constexpr OpRow kRow{{"{row.name}", "{row.onnx_name}", "{row.version}", '
        f"OpKind::k{str(row.kind).capitalize()}, {max_width(row.name)}, kInputs, {counts[0]}, "
        f"kOutputs, {counts[1]}, {'kFields' if fields else 'nullptr'}, {counts[2]}}};",
        f"}} // namespace {row.name}",
    ]


def _port(row: OpRow, port: Port) -> str:
    leading = port.dims.startswith("... ")
    letters = port.dims.removeprefix("... ")
    known = letters == row.inputs[0].dims.removeprefix("... ") and (leading or port in row.inputs[1:])
    if port.dtype != "T" or port.optional or not known:
        raise ExportError(
            f"{row.name}: port {port.name}: dims {port.dims!r}, dtype {port.dtype}: no plugin support yet"
        )
    return f'{{"{port.name}", {"PortShape::kRows" if leading else "PortShape::kVector"}}}'


def creators() -> list[dict[str, Any]]:
    """What the library's creators say, for its embedded table."""
    return [
        {
            "name": row.onnx_name,
            "namespace": DOMAIN,
            "version": str(row.version),
            "inputs": [port.name for port in row.inputs],
            "outputs": [port.name for port in row.outputs],
            "fields": {a.name: a.kind for a in row.attributes},
        }
        for row in PLUGINS
    ]


def variant_table(shared: dict[str, int]) -> str:
    """The C++ rows of VARIANTS.

    Args:
        shared: variant name -> dynamic shared memory in bytes, the largest over all architectures.
    """
    lines = [
        _HEADER,
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
    folder: Path,
    modules: "list[Module]",
    cubins: tuple[int, ...],
    versions: dict[str, str],
    ingredients: dict[str, Any],
) -> None:
    """Write every generated file of the library.

    Args:
        folder: an existing folder.
        modules: of `aot.compile_all`.
        cubins: architectures whose cubin is embedded.
        versions: what to record about the build.
        ingredients: everything that shaped it, by which a later build knows that it would be the same.
    """
    resources = [r for module in modules for r in module.resources]
    shared: dict[str, int] = {}
    for r in resources:
        shared[r.name] = max(shared.get(r.name, 0), r.shared_bytes)
    images = []
    for module in modules:
        if module.arch == BASELINE:
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
    record = {
        "versions": versions,
        "ingredients": ingredients,
        "cubins": list(cubins),
        "ptx": BASELINE,
        "creators": creators(),
        "variants": table,
    }
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
