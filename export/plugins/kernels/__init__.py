"""The GPU kernels behind the plugins, in Triton: one file for each op, with its math and its tiles.

A file holds a kernel of the row's name and `TILES` (see `tiles`). The kernel's arguments are `<port>_ptr` for
the row's inputs, then its outputs; then the sizes of its kind (`variants.SIZES`); then the row's attributes;
then compile-time constants, any of ALIGN, ROWS, COLS, ONE_PASS. `aot` refuses a kernel that differs.

Cast policy of all of them: read in the tensor's dtype, compute in float32, round once on the way out. Offsets
of rows are 64-bit (a row index times a width passes 2^31 in a long prefill). Widths and strides come in units
of `ALIGN` elements, so the compiler knows that every row starts on a multiple of 16 bytes where the variant
says so, and reads 16 bytes at a time. Sizes are not specialized: a recompile per size would be of no use, and
size 1 would lose its type. Which variant runs is decided in `variants`, who launches in `launcher` (Python)
and `trt-plugin` (C++).
"""

import importlib
from types import ModuleType


def module(op: str) -> ModuleType:
    """The file of one op; loads triton."""
    return importlib.import_module(f"{__name__}.{op}")
