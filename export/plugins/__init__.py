"""The TensorRT plugin library: kernels in Triton, plugins in C++, built ahead of time without a GPU.

README.md lists the files. Importing this package loads neither torch nor triton.
"""

from tblock.export.plugins.library import library_path, read_table
from tblock.export.plugins.library_builder import build

__all__ = ["build", "library_path", "read_table"]
