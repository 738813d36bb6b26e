"""The highest ONNX opset and IR version each TensorRT version is known to read: one table, with its sources.

The parsers themselves do not say: tensorrt_rtx 1.7.1 parses a file that claims opset 30 and IR 15 without a
word, and then gives whatever its importers make of operators they never heard of. So the limit is ours.
"""

import re
from dataclasses import dataclass

from tblock.errors import ExportError


@dataclass(frozen=True)
class Limit:
    """From this version of the package on, until the next row.

    Attributes:
        version: first version of the row, major and minor.
        opset: highest opset of the standard domain.
        ir_version: highest IR version of the file.
        source: where the numbers come from.
    """

    version: tuple[int, int]
    opset: int
    ir_version: int
    source: str


_ONNX = "IR version: of the onnx release with that opset (onnx.helper.VERSION_TABLE)"

LIMITS: dict[str, tuple[Limit, ...]] = {
    "tensorrt": (
        Limit(
            (10, 13),
            22,
            10,
            "last opset before Attention, which 10.14 added (onnx-tensorrt 10.14 release notes)",
        ),
        Limit((10, 14), 23, 11, f"imports Attention-23 (onnx-tensorrt 10.14 release notes); {_ONNX}"),
        Limit((10, 15), 24, 12, f"onnx-tensorrt docs/operators.md of 10.15: opset 9 to 24; {_ONNX}"),
        Limit((11, 5), 25, 13, f"TensorRT 11.5 release notes: opset 25; {_ONNX}"),
    ),
    "tensorrt-rtx": (
        Limit((1, 5), 23, 10, "what tblock writes by default; not measured with this version"),
        Limit((1, 7), 25, 13, "the onnx.proto inside libtensorrt_onnxparser_rtx 1.7.1 is that of onnx 1.20"),
    ),
}


def limit_of(flavour: str, version: str) -> Limit:
    """The row for one installed version.

    Args:
        flavour: `tensorrt` or `tensorrt-rtx`.
        version: as the package says, such as `10.13.3.9`.

    Raises:
        ExportError: a version before the first row.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    rows = [row for row in LIMITS[flavour] if row.version <= numbers]
    if not rows:
        first = ".".join(map(str, LIMITS[flavour][0].version))
        raise ExportError(f"{flavour} {version}: too old; tblock needs {first} or later (pip install -U)")
    return rows[-1]


def check(name: str, opset: int, ir_version: int, flavour: str, version: str) -> None:
    """Refuse a file that this version was not made for.

    Args:
        name: of the ONNX file.
        opset, ir_version: of the file.
        flavour, version: of the package.

    Raises:
        ExportError: the file's opset or IR version is above the table's.
    """
    limit = limit_of(flavour, version)
    if opset > limit.opset:
        raise ExportError(
            f"{name}: opset {opset}, {flavour} {version} reads up to opset {limit.opset}; "
            "export with a lower --opset"
        )
    if ir_version > limit.ir_version:
        raise ExportError(
            f"{name}: IR version {ir_version}, {flavour} {version} reads up to IR version "
            f"{limit.ir_version}; export again with tblock, or lower ir_version in the file"
        )
