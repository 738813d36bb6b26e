"""The op contract: one row per fused op, the single place where its name and signature are written down.

The torch schema, the ONNX node and function, the graph pass, the plugin's fields, the order of a kernel's
arguments and the C++ header are generated from a row or tested against it. A new op is a row here, its math
in `tblock/ops.py`, its ONNX form in `export/onnx_bodies.py` and its kernel in `export/plugins/kernels/`.
Owns no math and imports only the standard library.
"""

from dataclasses import dataclass
from typing import Literal

DOMAIN = "tblock"
"""ONNX domain of the nodes and TensorRT namespace of the plugins."""

CastPolicy = Literal["float32"]
"""`float32`: read in the tensor's dtype, compute in float32 (float64 in float64), round once at the end."""

Kind = Literal["rowwise", "elementwise"]
"""How a kernel of ours works: `rowwise` sums over the last axis, so one program holds whole rows;
`elementwise` knows no rows, so a contiguous tensor is one long row."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """One tensor of an op.

    Attributes:
        name: argument name in torch, ONNX and C++.
        dims: dimension letters (B batch, S and T lengths, D width, F FFN width, H and K heads, E head width,
            R rotated width), space separated; `...` stands for any leading dims.
        dtype: `T` (the op's float type) or `bool`.
        optional: whether the caller may leave it out.
    """

    name: str
    dims: str
    dtype: Literal["T", "float32", "bool"] = "T"
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One attribute of an op. Attributes have no defaults: every node and plugin field is explicit.

    Attributes:
        name: in torch, ONNX and C++, and of the kernel's argument.
        kind: `float` (float32 in a kernel) or `int` (int32).
        doc: what it does.
        positive: whether it must be above 0; a float must be finite in any case.
        examples: the values that kernels are checked with, for ops that have one.
    """

    name: str
    kind: Literal["float", "int"]
    doc: str
    positive: bool = False
    examples: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One fused op.

    Attributes:
        name: torch name in namespace `tblock`, snake case.
        version: contract version; also the ONNX opset version of the domain's node and the plugin version.
        onnx_name: ONNX op_type and TensorRT plugin name, or None where the op is lowered to standard ONNX
            ops at translation (no runtime has a kernel of ours for it).
        inputs, outputs: tensors in order.
        attributes: attributes in order.
        cast_policy: how low precision is handled.
        kind: how its kernel works; None where there is none of ours.
        fuses: the op that this one computes on a sum: its first two inputs are added, the other inputs and
            all attributes are those of the fused op, and the sum is its first output.
    """

    name: str
    version: int
    onnx_name: str | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[Attribute, ...] = ()
    cast_policy: CastPolicy = "float32"
    kind: Kind | None = None
    fuses: str | None = None

    @property
    def torch_schema(self) -> str:
        """The `torch.library` schema, without the namespace."""
        kinds = {"float": "float", "int": "int"}
        args = [f"Tensor{'?' if p.optional else ''} {p.name}" for p in self.inputs]
        if self.attributes:
            args += ["*"] + [f"{kinds[a.kind]} {a.name}" for a in self.attributes]
        returns = ", ".join("Tensor" for _ in self.outputs)
        return f"{self.name}({', '.join(args)}) -> {returns if len(self.outputs) == 1 else f'({returns})'}"


_EPS = Attribute(
    name="eps",
    kind="float",
    doc="added to the mean square inside the root; finite and above 0",
    positive=True,
    examples=(1e-5,),
)
_OFFSET = Attribute(
    name="weight_offset",
    kind="float",
    doc="added to the weight: 0, or 1 in the Gemma family",
    examples=(0.0, 1.0),
)

RMS_NORM = OpRow(
    name="rms_norm",
    version=1,
    onnx_name="TblockRMSNorm",
    inputs=(Port(name="x", dims="... D"), Port(name="weight", dims="D")),
    outputs=(Port(name="y", dims="... D"),),
    attributes=(_EPS, _OFFSET),
    kind="rowwise",
)
ADD_RMS_NORM = OpRow(
    name="add_rms_norm",
    version=1,
    onnx_name="TblockAddRMSNorm",
    inputs=(Port(name="x", dims="... D"), Port(name="residual", dims="... D"), Port(name="weight", dims="D")),
    outputs=(Port(name="sum", dims="... D"), Port(name="y", dims="... D")),
    attributes=(_EPS, _OFFSET),
    kind="rowwise",
    fuses="rms_norm",
)
SWIGLU = OpRow(
    name="swiglu",
    version=1,
    onnx_name="TblockSwiGLU",
    inputs=(Port(name="gate", dims="... F"), Port(name="up", dims="... F")),
    outputs=(Port(name="y", dims="... F"),),
    kind="elementwise",
)
ROPE = OpRow(
    name="rope",
    version=1,
    onnx_name=None,
    inputs=(
        Port(name="x", dims="B X S E"),
        Port(name="cos", dims="... S R/2", dtype="float32"),
        Port(name="sin", dims="... S R/2", dtype="float32"),
    ),
    outputs=(Port(name="y", dims="B X S E"),),
    attributes=(
        Attribute(name="interleaved", kind="int", doc="1: pairs (0,1), (2,3), ...; 0: pairs (i, i + R/2)"),
    ),
)
ATTENTION = OpRow(
    name="attention",
    version=1,
    onnx_name=None,
    inputs=(
        Port(name="q", dims="B H S E"),
        Port(name="k", dims="B K T E"),
        Port(name="v", dims="B K T E"),
        Port(name="mask", dims="B 1 S T", dtype="bool", optional=True),
    ),
    outputs=(Port(name="y", dims="B H S E"),),
    attributes=(
        Attribute(name="scale", kind="float", doc="multiplies the scores, before soft cap and mask"),
        Attribute(name="causal", kind="int", doc="1: query i sees keys 0 .. i + T - S (lower-right aligned)"),
        Attribute(name="window", kind="int", doc="above 0: and only the last `window` of those keys; 0: all"),
        Attribute(
            name="soft_cap", kind="float", doc="above 0: scores become cap * tanh(scores / cap); 0: off"
        ),
    ),
)

ROWS: tuple[OpRow, ...] = (RMS_NORM, ADD_RMS_NORM, SWIGLU, ROPE, ATTENTION)
"""Every op of the contract, in the order they entered it."""

PLUGINS: tuple[OpRow, ...] = tuple(row for row in ROWS if row.onnx_name is not None)
"""The rows that stay one node in the ONNX graph and have a TensorRT plugin."""
