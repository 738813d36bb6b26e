"""The contract's fused ops as ONNX operators: schema, node, and the attributes TensorRT looks for.

All generated from `tblock.contract`.
"""

from functools import cache

import onnx
import onnxscript

from tblock.contract import DOMAIN, PLUGINS, OpRow

FLOATS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_ATTRIBUTE_TYPES = {"float": onnx.defs.OpSchema.AttrType.FLOAT, "int": onnx.defs.OpSchema.AttrType.INT}


def plugin_attributes(row: OpRow) -> dict[str, str]:
    """Without both of these TensorRT's parser takes the function body even where the plugin is registered."""
    return {"plugin_version": str(row.version), "plugin_namespace": DOMAIN}


@cache
def opset() -> onnxscript.values.Opset:
    """The `tblock` opset, its schemas registered with onnx in this process."""
    for row in PLUGINS:
        assert row.onnx_name is not None
        if not onnx.defs.has(row.onnx_name, domain=DOMAIN):
            onnx.defs.register_schema(schema(row))
    return onnxscript.values.Opset(DOMAIN, max(row.version for row in PLUGINS))


def schema(row: OpRow) -> onnx.defs.OpSchema:
    """The ONNX schema of one row; float32, float16 and bfloat16."""
    assert row.onnx_name is not None
    schema_type = onnx.defs.OpSchema
    strings = [
        schema_type.Attribute(name, schema_type.AttrType.STRING, "") for name in plugin_attributes(row)
    ]
    return schema_type(
        row.onnx_name,
        DOMAIN,
        row.version,
        inputs=[schema_type.FormalParameter(p.name, "T") for p in row.inputs],
        outputs=[schema_type.FormalParameter(p.name, "T") for p in row.outputs],
        type_constraints=[("T", FLOATS, "float types")],
        attributes=[schema_type.Attribute(a.name, _ATTRIBUTE_TYPES[a.kind], a.doc) for a in row.attributes]
        + strings,
    )
