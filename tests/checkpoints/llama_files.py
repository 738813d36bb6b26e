"""A small Llama checkpoint as plain arrays, and writers that can be told to damage it."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DIM, HEADS, KV_HEADS, FFN, LAYERS, VOCAB = 24, 4, 2, 40, 3, 31

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": DIM,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
}

_DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "F8_E4M3": np.uint8,
}


def arrays(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """All tensors of the model, by their Hugging Face names."""
    rng = np.random.default_rng(0)
    kv = DIM // HEADS * KV_HEADS
    shapes = {"self_attn.q_proj": (DIM, DIM), "self_attn.k_proj": (kv, DIM), "self_attn.v_proj": (kv, DIM)}
    shapes |= {"self_attn.o_proj": (DIM, DIM), "mlp.gate_proj": (FFN, DIM), "mlp.up_proj": (FFN, DIM)}
    shapes |= {"mlp.down_proj": (DIM, FFN), "input_layernorm": (DIM,), "post_attention_layernorm": (DIM,)}
    names = {f"model.layers.{n}.{m}.weight": s for n in range(LAYERS) for m, s in shapes.items()}
    names |= {"model.embed_tokens.weight": (VOCAB, DIM), "model.norm.weight": (DIM,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in names.items()}


def safetensors_bytes(
    tensors: dict[str, np.ndarray],
    *,
    shift: dict[str, int] | None = None,
    dtypes: dict[str, str] | None = None,
) -> bytes:
    """A .safetensors file; `shift` moves a tensor's offsets, `dtypes` overrides what the header calls it."""
    header, data, position = {}, b"", 0
    for name, array in tensors.items():
        kind = next(k for k, v in _DTYPES.items() if array.dtype == v)
        moved = (shift or {}).get(name, 0)
        header[name] = {
            "dtype": (dtypes or {}).get(name, kind),
            "shape": list(array.shape),
            "data_offsets": [position + moved, position + array.nbytes + moved],
        }
        data += array.tobytes()
        position += array.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_folder(
    folder: Path,
    tensors: dict[str, np.ndarray] | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A Hugging Face folder with one safetensors file; returns the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    content = safetensors_bytes(arrays() if tensors is None else tensors, **more)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def write_shards(folder: Path, count: int = 3) -> Path:
    """The same model in shards with an index; returns the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = arrays()
    weight_map = {}
    for shard in range(count):
        name = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        part = {k: v for i, (k, v) in enumerate(tensors.items()) if i % count == shard}
        (folder / name).write_bytes(safetensors_bytes(part))
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
