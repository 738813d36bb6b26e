"""An ONNX file as a TensorRT network, and what must be true of it before a builder is asked."""

from collections import Counter
from pathlib import Path
from typing import Any

from tblock.errors import ExportError
from tblock.export.engine.package import network_flags

_FLOATS = ("FLOAT", "HALF", "BF16", "FP8", "FP4")
_REDUCTIONS = ("REDUCE", "NORMALIZATION")


def parse(trt: Any, builder: Any, logger: Any, path: Path, title: str) -> tuple[Any, Any]:
    """Parse from a path (not bytes: weights lie in files beside it).

    Args:
        trt: the package.
        builder, logger: of the package.
        path: of the ONNX file.
        title: in front of messages.

    Returns:
        The network and the parser, which must outlive the build: the network refers to weights that the
        parser holds.

    Raises:
        ExportError: the parser refuses the file; names node and reason.
    """
    network = builder.create_network(network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        if not errors:
            raise ExportError(f"{title}: the parser refuses {path.name} and does not say why")
        first = errors[0]
        raise ExportError(
            f"{title}: the parser refuses {path.name} at {first.node_operator()} node {first.node_name()!r}: "
            f"{_one_line(first.desc())}{_advice(first)}"
        )
    return network, parser


def layers(network: Any) -> list[Any]:
    """Every layer, in order."""
    return [network.get_layer(i) for i in range(network.num_layers)]


def layer_counts(network: Any) -> dict[str, int]:
    """Layer type to count."""
    return dict(sorted(Counter(layer.type.name for layer in layers(network)).items()))


def check_reductions(network: Any, title: str) -> dict[str, int]:
    """Sums over activations run in float32, whatever the block's dtype.

    Args:
        network: parsed.
        title: in front of messages.

    Returns:
        dtype to count, over REDUCE and NORMALIZATION layers that read a float tensor.

    Raises:
        ExportError: one of them reads another float type; names the layer.
    """
    found: Counter[str] = Counter()
    for layer in layers(network):
        if layer.type.name not in _REDUCTIONS:
            continue
        dtype = layer.get_input(0).dtype.name
        if dtype not in _FLOATS:
            continue
        if dtype != "FLOAT":
            raise ExportError(
                f"{title}: layer {layer.name} ({layer.type.name}) sums in {dtype}, wanted FLOAT: "
                "float16 squares overflow above 255; cast to float32 before the norm"
            )
        found[dtype] += 1
    return dict(found)


def softmax_dtypes(network: Any) -> set[str]:
    """What the softmax layers of the parsed network compute in; attention layers have none of their own."""
    return {layer.get_input(0).dtype.name for layer in layers(network) if layer.type.name == "SOFTMAX"}


def _advice(error: Any) -> str:
    """Operators are added with opsets, and the importer of one may come a version after the other."""
    return (
        "; export with --opset 18, which needs fewer operators" if "UNSUPPORTED" in str(error.code()) else ""
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
