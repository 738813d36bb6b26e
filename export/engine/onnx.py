"""An ONNX file looked at before a builder sees it: is it whole, what does it need, and what would a parser
drop silently.

Ensures that every message about a bad file is one line that names the file. Reads the graph with the onnx
package; weights in external data are measured, not read.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, NodeProto, TensorProto

from tblock.contract import DOMAIN, PLUGINS
from tblock.errors import ArtifactError, ExportError

_FOUR_BITS = {TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1}
_FUSED = {row.onnx_name: row for row in PLUGINS}
_KV_LENGTHS, _PAST_KEY, _MASK = 6, 4, 3
"""Inputs of ONNX Attention (opset 24)."""


@dataclass(frozen=True, kw_only=True)
class OnnxFacts:
    """What a builder must know of a file.

    Attributes:
        path: the file.
        ir_version, opset: of the file.
        inputs: graph input to its dims: a number, or the name of a dynamic dimension.
        fused: our op_type to count, in the whole graph.
        fused_nodes: names of the fused nodes in the main graph.
        plugin_versions: our op_type to the plugin_version the nodes ask for.
        data: files with the weights.
    """

    path: Path
    ir_version: int
    opset: int
    inputs: dict[str, tuple[int | str, ...]]
    fused: dict[str, int]
    fused_nodes: tuple[str, ...]
    plugin_versions: dict[str, str]
    data: tuple[Path, ...]


def read_onnx(path: Path) -> OnnxFacts:
    """Look at a file.

    Raises:
        ArtifactError: missing, not ONNX, damaged, or without (all of) its external data.
        ExportError: a fused node without what a plugin needs, or something the parser would drop without a
        word.
    """
    model = _load(path)
    data = _check_data(path, model)
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    for node in nodes:
        if node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
            _check_attention(path, node)
    plain = [n for n in model.graph.node if n.domain == DOMAIN and n.op_type in _FUSED]
    for node in plain:
        _check_fused(path, node)
    _check_structure(path, model)
    initialized = {t.name for t in model.graph.initializer}
    opsets = {o.domain: o.version for o in model.opset_import}
    return OnnxFacts(
        path=path,
        ir_version=model.ir_version,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        inputs={i.name: _dims(i) for i in model.graph.input if i.name not in initialized},
        fused=dict(sorted(_count(model.graph.node, model).items())),
        fused_nodes=tuple(n.name for n in plain),
        plugin_versions={n.op_type: _text(n, "plugin_version") for n in plain},
        data=data,
    )


def _load(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ArtifactError(
            f"{path}: is a folder, wanted an .onnx file (in an artifact folder: {path}/model.onnx)"
        )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such ONNX file; make one with tblock export --to onnx") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None
    if not content:
        raise ArtifactError(f"{path}: empty, not an ONNX model; export again")
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError:
        raise ArtifactError(f"{path}: not an ONNX model, or damaged; export again") from None
    if not model.ir_version or not model.graph.node or not model.opset_import:
        raise ArtifactError(f"{path}: not an ONNX model (no IR version, opset or nodes); export again")
    return model


def _check_structure(path: Path, model: onnx.ModelProto) -> None:
    if model.ir_version > onnx.IR_VERSION:
        # The checker knows no newer IR; whether the builder does is decided by engine_limits.
        return
    # Given the file, the checker refuses weights behind a symbolic or a second hard link (caches).
    # So it sees the graph alone, with empty tensors for the data that was looked at above.
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    for tensor in _tensors(graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            for field in ("external_data", "data_location", "dims"):
                tensor.ClearField(field)
            tensor.dims.append(0)
    try:
        onnx.checker.check_model(graph)
    except (onnx.checker.ValidationError, UnicodeDecodeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ArtifactError(f"{path}: damaged, the ONNX checker refuses it ({why}); export again") from None


def _check_data(path: Path, model: onnx.ModelProto) -> tuple[Path, ...]:
    """Every file that holds external data, found and long enough."""
    files: dict[str, int] = {}
    for tensor in _tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entry = {e.key: e.value for e in tensor.external_data}
        location = entry.get("location", "")
        if not location or Path(location).name != location:
            raise ArtifactError(
                f"{path}: the data of {tensor.name} is at {location!r}, wanted a bare file name"
            )
        file = path.parent / location
        if location not in files:
            if not file.is_file():
                raise ArtifactError(
                    f"{path}: its external data {file.name} is missing; copy the whole folder"
                )
            files[location] = file.stat().st_size
        try:
            offset, length = int(entry.get("offset", 0)), int(entry.get("length", 0))
        except ValueError:
            raise ArtifactError(
                f"{path}: damaged, the place of {tensor.name} in {location} is not a number"
            ) from None
        needed = offset + (length or _bytes(tensor))
        if needed > files[location]:
            raise ArtifactError(
                f"{file}: truncated: {files[location]} bytes, {tensor.name} of {path.name} ends at {needed}; "
                "copy it again"
            )
        if length and length != _bytes(tensor):
            raise ArtifactError(
                f"{path}: damaged, {tensor.name} has {length} bytes in {location}, "
                f"its shape needs {_bytes(tensor)}"
            )
    return tuple(path.parent / name for name in sorted(files))


def _bytes(tensor: TensorProto) -> int:
    count = math.prod(tensor.dims)
    if tensor.data_type in _FOUR_BITS:
        return (count + 1) // 2
    try:
        return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        return 0


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    pending: list[Iterable[NodeProto]] = [model.graph.node, *(f.node for f in model.functions)]
    while pending:
        for node in pending.pop():
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                elif attribute.type == AttributeProto.GRAPH:
                    yield from attribute.g.initializer
                    pending.append(attribute.g.node)


def _check_attention(path: Path, node: NodeProto) -> None:
    """Two things tensorrt_rtx 1.7.1 drops or bends without a word (seen in the parsed network)."""
    present = [bool(name) for name in node.input]
    causal = any(a.name == "is_causal" and a.i for a in node.attribute)
    if len(present) > _KV_LENGTHS and present[_KV_LENGTHS]:
        raise ExportError(
            f"{path.name}: Attention {node.name} uses nonpad_kv_seqlen, which TensorRT's parser drops "
            "silently; export with an explicit mask"
        )
    if causal and len(present) > _PAST_KEY and present[_PAST_KEY]:
        raise ExportError(
            f"{path.name}: Attention {node.name} is causal with past inputs, which TensorRT's parser aligns "
            "upper-left; export with an explicit mask"
        )
    if causal and len(present) > _MASK and present[_MASK]:
        raise ExportError(
            f"{path.name}: Attention {node.name} has a mask and is_causal, TensorRT takes only one; "
            "combine them in the mask"
        )


def _check_fused(path: Path, node: NodeProto) -> None:
    """Without these attributes the plugin is not found, or computes with another epsilon."""
    row = _FUSED[node.op_type]
    kinds = {a.name: a.type for a in node.attribute}
    for name in ("plugin_version", "plugin_namespace"):
        if kinds.get(name) != AttributeProto.STRING:
            raise ExportError(
                f"{path.name}: {node.op_type} {node.name} has no {name}; export again with this tblock"
            )
    for wanted in row.attributes:
        kind = AttributeProto.FLOAT if wanted.kind == "float" else AttributeProto.INT
        if kinds.get(wanted.name) != kind:
            raise ExportError(
                f"{path.name}: {node.op_type} {node.name}: attribute {wanted.name} must be a {wanted.kind}"
            )


def _count(nodes: Iterable[NodeProto], model: onnx.ModelProto) -> Counter[str]:
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    total: Counter[str] = Counter()
    for node in nodes:
        if node.domain == DOMAIN and node.op_type in _FUSED:
            total[node.op_type] += 1
        elif (node.domain, node.op_type) in bodies:
            total += _count(bodies[node.domain, node.op_type], model)
    return total


def _dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or "?" for d in dims)


def _text(node: NodeProto, name: str) -> str:
    return next(a.s.decode() for a in node.attribute if a.name == name)
