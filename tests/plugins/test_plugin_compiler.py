"""What Triton and the assembler make of every variant: vector width, offsets, rounding, registers, spills."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tblock.errors import ExportError
from tblock.export.plugins import library
from tests.plugins.plugin_harness import broken_kernel

aot = pytest.importorskip("tblock.export.plugins.aot", reason="triton is not installed (extra: plugins)")

from tblock.export.plugins.tiles import MAX_WIDTH  # noqa: E402
from tblock.export.plugins.variants import DTYPES, OPS, VARIANTS, VECTOR_BYTES, Variant, row_of, select  # noqa: E402

# Registers of one multiprocessor, and the most one thread can have (CUDA programming guide, sm_80 to sm_120).
_REGISTERS, _REGISTERS_PER_THREAD = 65536, 255
_STATIC_SHARED = 48 * 1024


def _by_name(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


@pytest.fixture(scope="module")
def table(plugin_library: Path) -> list[dict]:
    return library.read_table(plugin_library)["variants"]


def _has_32_bit_offset(ttir: str) -> bool:
    """A row offset is a product: no product may be 32-bit, and none may be cut to it."""
    return bool(re.search(r"arith\.(muli|trunci) .*(\bi32|xi32>)", ttir))


def _narrow_arithmetic(ttir: str) -> list[str]:
    """Float arithmetic that is not in float32."""
    return re.findall(r"arith\.(?:add|sub|mul|div)f .*\b(?:b?f16)\b.*", ttir)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_plugin_variant_offsets_are_64_bit_and_rounding_is_to_nearest(variant: Variant) -> None:
    kernel = aot.compile_variant(variant, aot.BASELINE)
    assert not _has_32_bit_offset(kernel.asm["ttir"])
    assert re.search(r"\b(mul|mad)\.(lo|wide)\.[su]64|mul\.lo\.s64", kernel.asm["ptx"])
    roundings = set(re.findall(r"cvt\.(r[a-z]+)\.(?:bf16|f16)(?:x2)?\.f32", kernel.asm["ptx"]))
    assert roundings == (set() if variant.dtype == "float32" else {"rn"})
    assert not _narrow_arithmetic(kernel.asm["ttir"])
    assert kernel.asm["ptx"].count(".version 8.0") == 1


def test_plugin_table_has_every_variant_on_every_architecture(table: list[dict]) -> None:
    assert {(r["name"], r["arch"]) for r in table} == {(v.name, a) for v in VARIANTS for a in (80, 90, 120)}


def test_plugin_variants_use_full_vectors_where_rows_allow(table: list[dict]) -> None:
    for row in table:
        size = DTYPES[row["dtype"]][1]
        wanted = VECTOR_BYTES if _by_name(row["name"]).align > 1 else size
        assert row["vector_bytes"] == wanted, row


def test_plugin_variants_fit_registers_and_shared_memory_without_spills(table: list[dict]) -> None:
    for row in table:
        threads = 32 * _by_name(row["name"]).warps
        assert row["registers"] <= min(_REGISTERS_PER_THREAD, _REGISTERS // threads), row
        assert row["shared_bytes"] <= _STATIC_SHARED, row
        assert row["spill_bytes"] == 0, row
        assert row["stack_bytes"] == 0, row


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_plugin_every_shape_selects_a_variant_that_holds_it(op: str, dtype: str) -> None:
    size = DTYPES[dtype][1]
    chosen = set()
    for width in [*range(1, 2100), 4096, 4097, 8192, 14336, 16384, 16385, 16388, 65535, MAX_WIDTH]:
        for rows in (1, 5, 100_000):
            for alignment in (size, VECTOR_BYTES):
                held = min(alignment, (width * size) & -(width * size))
                index = select(op, dtype, rows, width, held)
                assert index is not None
                variant = VARIANTS[index]
                assert width % variant.align == 0
                assert variant.cols >= width or not variant.one_pass or row_of(op).kind == "elementwise"
                chosen.add(variant.name)
    assert chosen == {v.name for v in VARIANTS if v.op == op and v.dtype == dtype}
    assert (select(op, dtype, 1, MAX_WIDTH + 1, size) is None) == (row_of(op).kind == "rowwise")


def _broken(op: str, shipped: str, broken: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("broken_kernels", broken_kernel(op, shipped, broken, path))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_NARROW = {
    "rms_norm": ("start = row * width", "start = row.to(tl.int32) * width.to(tl.int32)"),
    "add_rms_norm": ("start = row * width", "start = row.to(tl.int32) * width.to(tl.int32)"),
    "swiglu": (
        "source = row * (stride_units * ALIGN)",
        "source = (row * (stride_units * ALIGN)).to(tl.int32)",
    ),
}


@pytest.mark.parametrize("op", _NARROW)
def test_plugin_compiler_twin_with_32_bit_offsets_is_caught(op: str, tmp_path: Path) -> None:
    module = _broken(op, *_NARROW[op], tmp_path / "kernels.py")
    variant = next(v for v in VARIANTS if v.op == op)
    assert _has_32_bit_offset(aot.compile_variant(variant, aot.BASELINE, module).asm["ttir"])


def test_plugin_compiler_words_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = next(v for v in VARIANTS if v.op == "swiglu")
    module = _broken("swiglu", "y = gate /", "y = no_such_name /", tmp_path / "kernels.py")
    with pytest.raises(
        ExportError, match=f"{variant.name} on sm_80: does not compile: .*no_such_name"
    ) as caught:
        aot.compile_variant(variant, aot.BASELINE, module)
    assert "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    message = "Triton cannot write to its cache .*file/cache or .*: Not a directory; set TRITON_CACHE_DIR"
    with pytest.raises(ExportError, match=message):
        aot.compile_variant(variant, aot.BASELINE)


def test_plugin_compiler_twin_without_alignment_is_caught(tmp_path: Path) -> None:
    module = _broken("rms_norm", "width = units * ALIGN", "width = units", tmp_path / "kernels.py")
    variant = next(v for v in VARIANTS if v.op == "rms_norm" and v.dtype == "bfloat16" and v.cols == 4096)
    assert aot.vector_bytes(aot.compile_variant(variant, aot.BASELINE, module).asm["ptx"]) < VECTOR_BYTES
