"""The TensorRT plugin library: kernels in Triton, plugins in C++, built ahead of time without a GPU.

Reading order: `kernels` (the math), `variants` (which one a shape takes), `launcher` (from Python),
`selfcheck` (against float64), `aot` (to PTX and cubin), `codegen` (what C++ needs from Python), `trt-plugin/`
(the C++), `build`, `library`. Importing this package loads neither torch nor triton.
"""

from tblock.export.plugins.build import build
from tblock.export.plugins.library import describe, library_path, read_table

__all__ = ["build", "describe", "library_path", "read_table"]
