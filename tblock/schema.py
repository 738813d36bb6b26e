"""Checking a JSON value against a JSON Schema: the keywords that matter to a reader of manifests.

Source: JSON Schema 2020-12. Imports only the standard library.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def faults(
    value: Any, schema: Mapping[str, Any], defs: Mapping[str, Any], *, words: bool, at: str = ""
) -> Iterator[str]:
    """What is wrong with a value, a line each: where, what it is, what was wanted.

    Args:
        value: from json.loads.
        schema: what it should be.
        defs: what a `$ref` names.
        words: also look at enumerations, which a newer writer may have lengthened.
        at: where the value stands, for the lines.
    """
    if "$ref" in schema:
        yield from faults(value, defs[schema["$ref"].rpartition("/")[2]], defs, words=words, at=at)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{at}: got {_short(value)}, wanted {' or '.join(kinds)}"
        return
    if words and "enum" in schema and value not in schema["enum"]:
        yield f"{at}: got {_short(value)}, wanted one of {', '.join(schema['enum'])}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at}: got {_short(value)}, wanted text like {schema['pattern']}"
    if _is(value, "number") and value < schema.get("minimum", value):
        yield f"{at}: got {_short(value)}, wanted at least {schema['minimum']}"
    if isinstance(value, list):
        low, high = schema.get("minItems", 0), schema.get("maxItems", len(value))
        if not low <= len(value) <= high:
            yield f"{at}: got {len(value)} entries, wanted {low if len(value) < low else high}"
        for index, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), defs, words=words, at=f"{at}[{index}]")
    if isinstance(value, dict):
        below = f"{at}." if at else ""
        yield from (f"{below}{name}: missing" for name in schema.get("required", ()) if name not in value)
        others = schema.get("additionalProperties", {}) or {}
        for name, item in value.items():
            yield from faults(name, schema.get("propertyNames", {}), defs, words=words, at=f"{below}{name}")
            part = schema.get("properties", {}).get(name, others)
            yield from faults(item, part, defs, words=words, at=f"{below}{name}")


def _is(value: Any, kind: str) -> bool:
    # In Python, and not in JSON, true is a number.
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
