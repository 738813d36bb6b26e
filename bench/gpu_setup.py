"""What the parts of `gpu_check` share: where it runs, how long it may, and the launch through the library."""

import ctypes
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# torch.compile cannot be interrupted: not begun with less time left than a slow one takes (a guess).
COMPILE_SECONDS = 30
TIME_IS_UP = {"status": "not executed", "reason": "time is up"}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where and with what this run works."""

    device: str
    library: ctypes.CDLL | None
    deadline: float

    @property
    def dry(self) -> bool:
        """On the CPU, to walk the code."""
        return self.device == "cpu"

    def left(self) -> float:
        """Seconds to the deadline; what is not begun by then is recorded as not executed."""
        return self.deadline - time.monotonic()

    def skipped(self, compiles: bool = False) -> dict[str, str] | None:
        """What to record instead of a row for which there is no time; None: there is time."""
        left = self.left()
        if left <= 0:
            return TIME_IS_UP
        if compiles and left < COMPILE_SECONDS:
            reason = f"{left:.0f} s left, torch.compile may need {COMPILE_SECONDS} s"
            return {"status": "not executed", "reason": reason}
        return None


def library_launch(library: ctypes.CDLL) -> Callable[[str, list[Tensor], tuple[float, ...]], None]:
    """Launches through the library's C interface, on torch's current stream."""
    from tblock.export.plugins.variants import DTYPES, OPS, row_of

    library.tblock_plugin_error.restype = ctypes.c_char_p
    names = list(DTYPES)

    def launch(op: str, tensors: list[Tensor], fields: tuple[float, ...]) -> None:
        row = row_of(op)
        rows, width = tensors[0].shape
        stride = tensors[0].stride(0)
        if row.kind == "elementwise" and stride == width:
            rows, width, stride = 1, rows * width, rows * width
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        dtype = names.index(str(tensors[0].dtype).removeprefix("torch."))
        sizes = (ctypes.c_int64(rows), ctypes.c_int64(width), ctypes.c_int64(stride))
        formats = "".join("f" if a.kind == "float" else "i" for a in row.attributes)
        scalars = ctypes.create_string_buffer(struct.pack(f"={formats}", *fields))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if library.tblock_plugin_launch(OPS.index(op), dtype, pointers, *sizes, scalars, stream):
            raise RuntimeError(f"{op}: {library.tblock_plugin_error().decode()}")

    return launch
