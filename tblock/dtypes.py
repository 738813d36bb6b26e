"""The tensor dtypes of an artifact, one row each: every other table of dtypes is read from here.

torch's dtype of a row is `getattr(torch, row.name)`. numpy and ml_dtypes only.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tblock.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DType:
    """One dtype.

    Attributes:
        name: in manifests, in numpy and in torch.
        numpy: numpy's; bfloat16 is ml_dtypes'.
        safetensors: tag in a safetensors header.
        onnx: TensorProto.DataType (onnx.proto).
        spellings: what users type besides the name.
    """

    name: str
    numpy: np.dtype
    safetensors: str
    onnx: int
    spellings: tuple[str, ...] = ()

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.numpy.itemsize


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType(
            name="float32", numpy=np.dtype(np.float32), safetensors="F32", onnx=1, spellings=("fp32", "float")
        ),
        DType(
            name="float16", numpy=np.dtype(np.float16), safetensors="F16", onnx=10, spellings=("fp16", "half")
        ),
        DType(
            name="bfloat16",
            numpy=np.dtype(ml_dtypes.bfloat16),
            safetensors="BF16",
            onnx=16,
            spellings=("bf16",),
        ),
        DType(name="int64", numpy=np.dtype(np.int64), safetensors="I64", onnx=7),
        DType(name="bool", numpy=np.dtype(np.bool_), safetensors="BOOL", onnx=9),
    )
}
"""By name, as in a manifest."""

FLOATS: tuple[str, ...] = ("float32", "float16", "bfloat16")
"""What a block's weights can be."""


def float_dtype(text: str, where: str = "--dtype") -> str:
    """The full name of a block's dtype.

    Args:
        text: a name of FLOATS or one of its spellings.
        where: named in front of the message.

    Raises:
        ConfigError: unknown; lists the known ones.
    """
    known = {spelling: name for name in FLOATS for spelling in (name, *DTYPES[name].spellings)}
    if text not in known:
        raise ConfigError(f"{where} {text!r}: unknown; known: {', '.join(known)}")
    return known[text]
