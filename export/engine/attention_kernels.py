"""Attention layers of a parsed network: a dedicated kernel where the builder has one, otherwise decomposable.

A layer that has no dedicated kernel and is not decomposable is refused by the builder. Setting `decomposable`
where there is a dedicated kernel does not lose it (the engines have the same size), but hides whether there
is one; so it is set only where none is known. What the parser drops without a word is refused in
`tblock.export.engine.onnx`, before it gets here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

DEDICATED_DTYPES = ("HALF", "BF16")
DEDICATED_WIDTHS = range(9, 257)
"""Head widths with a dedicated kernel. Source: every multiple of 8 to 328 and 33 others to 512, in float16
and bfloat16, causal, with and without mask, one or two query heads per key head; tensorrt_rtx 1.7.1 without a
GPU."""

MULTIPLE = 8
"""Other widths are padded to a multiple of this by the builder, whose compiler then fails on a mask (same
sweep)."""


@dataclass(frozen=True)
class AttentionChoice:
    """What one attention layer was set to.

    Attributes:
        layer: name in the network.
        kernel: `dedicated` or `decomposable`.
        reason: one line.
        dtype: of its inputs, as TensorRT calls it.
    """

    layer: str
    kernel: str
    reason: str
    dtype: str


@dataclass(frozen=True)
class AttentionPlan:
    """Every choice, and the constants that must live until the engine is built."""

    choices: list[AttentionChoice]
    constants: list[np.ndarray]


def choose_kernels(trt: Any, network: Any, *, refused: str | None = None) -> AttentionPlan:
    """Set up every attention layer.

    Args:
        trt: the package.
        network: freshly parsed.
        refused: what the builder said before: every layer then becomes decomposable.

    Returns:
        One choice per attention layer; none where this version has no attention layers.
    """
    wanted = getattr(trt.LayerType, "ATTENTION_OUTPUT", None)
    plan = AttentionPlan([], [])
    if wanted is None:
        return plan
    for layer in [network.get_layer(i) for i in range(network.num_layers)]:
        if layer.type != wanted:
            continue
        # The bindings hand out the base class; the layer is what its type says.
        layer.__class__ = trt.IAttentionOutputLayer
        attention = layer.attention
        dtype, width = attention.get_input(0).dtype.name, attention.get_input(0).shape[-1]
        lacks = _lacks(dtype, width)
        reason = lacks or f"{dtype}, head width {width}"
        if lacks is None and width % MULTIPLE and attention.mask is not None:
            padded = width + -width % MULTIPLE
            plan.constants.append(_pad(trt, network, layer, padded))
            reason += f", padded to {padded} here because the builder's own padding fails on a mask"
        if lacks is None and refused is not None:
            lacks = reason = f"the builder refused a dedicated kernel: {refused}"
        attention.decomposable = lacks is not None
        plan.choices.append(
            AttentionChoice(layer.name, "decomposable" if lacks else "dedicated", reason, dtype)
        )
    return plan


def softmax_precision(softmaxes: set[str], plan: AttentionPlan) -> tuple[str, str]:
    """In which precision an engine's softmax runs, as far as can be known, and why.

    Args:
        softmaxes: dtypes of the network's own softmax layers.
        plan: its attention layers.

    Returns:
        `float32`, `float16`, ... or `kernel`, and the reason.
    """
    words = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
    narrow = [choice for choice in plan.choices if choice.dtype in DEDICATED_DTYPES]
    if any(choice.kernel == "dedicated" for choice in narrow):
        return "kernel", (
            "a fused attention kernel computes it; TensorRT's importer takes no softmax precision and its "
            "API has none to set, so only a run on a GPU can judge it"
        )
    found = softmaxes | {choice.dtype for choice in plan.choices}
    worst = next((dtype for dtype in ("BF16", "HALF") if dtype in found), "FLOAT")
    if worst != "FLOAT":
        return words[worst], "the builder takes attention apart, or the file asks for it"
    return "float32", "by the dtypes of the parsed network's layers"


def _lacks(dtype: str, width: int) -> str | None:
    if dtype not in DEDICATED_DTYPES:
        return f"no dedicated kernel takes {dtype}"
    if width not in DEDICATED_WIDTHS:
        known = f"{DEDICATED_WIDTHS.start} .. {DEDICATED_WIDTHS.stop - 1}"
        return f"no dedicated kernel for head width {width}, only for {known}"
    return None


def _pad(trt: Any, network: Any, layer: Any, padded: int) -> np.ndarray:
    """Widen q, k and v with zeros and cut the result: exact, as each product is with one 1 and zeros.

    A slice would need the dynamic sizes as shape tensors; a product with the first rows of an identity does
    not.

    Returns:
        [1, 1, E, padded] float32: what the network's constant points to.
    """
    attention, output = layer.attention, layer.get_output(0)
    query = attention.get_input(0)
    after = [
        (other, index)
        for other in (network.get_layer(i) for i in range(network.num_layers))
        for index in range(other.num_inputs)
        if other.get_input(index) is not None and other.get_input(index).name == output.name
    ]
    eye = np.eye(query.shape[-1], padded, dtype=np.float32).reshape(1, 1, -1, padded)
    constant = network.add_constant(eye.shape, trt.Weights(eye))
    constant.name = f"{layer.name}_eye"
    cast = network.add_cast(constant.get_output(0), query.dtype)
    cast.name = f"{layer.name}_eye_cast"
    plain, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    for index in range(3):
        wide = network.add_matrix_multiply(attention.get_input(index), plain, cast.get_output(0), plain)
        wide.name = f"{layer.name}_pad_{index}"
        attention.set_input(index, wide.get_output(0))
    cut = network.add_matrix_multiply(output, plain, cast.get_output(0), turned)
    cut.name = f"{layer.name}_cut"
    for other, index in after:
        other.set_input(index, cut.get_output(0))
    return eye
