"""Small GGUF files, written by the gguf package after llama.cpp's conventions, for tests of the reader.

The names and transforms are those of llama.cpp's convert_hf_to_gguf.py: q and k rows interleaved for `llama`,
Gemma norms with the unit offset added, experts stacked.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

VOCAB, DIM, HEADS, KV_HEADS, LAYERS = 97, 96, 6, 2, 2
HEAD_DIM = {"llama": 16, "qwen2": 16, "qwen3": 128, "qwen3moe": 16, "gemma2": 256}
"""transformers takes some of them from its own defaults instead of the file."""


def metadata(arch: str, **more: Any) -> dict[str, Any]:
    """The keys every architecture here has."""
    return {
        f"{arch}.{key}": value
        for key, value in {
            "context_length": 64,
            "embedding_length": DIM,
            "block_count": LAYERS,
            "feed_forward_length": 160,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD_DIM[arch],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM[arch],
            "rope.freq_base": 50000.0,
            "vocab_size": VOCAB,
            **more,
        }.items()
    }


def tensors(arch: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random tensors of a whole model."""

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 1.3 / shape[-1] ** 0.5).astype(np.float32)

    def vector(width: int, centre: float) -> np.ndarray:
        return (centre + 0.3 * rng.standard_normal(width)).astype(np.float32)

    result = {"token_embd.weight": matrix(VOCAB, DIM), "output_norm.weight": vector(DIM, 1.0)}
    for layer in range(LAYERS):
        q, kv = HEADS * HEAD_DIM[arch], KV_HEADS * HEAD_DIM[arch]
        block = {
            "attn_q.weight": matrix(q, DIM),
            "attn_k.weight": matrix(kv, DIM),
            "attn_v.weight": matrix(kv, DIM),
            "attn_output.weight": matrix(DIM, q),
            "attn_norm.weight": vector(DIM, 1.0),
            "ffn_norm.weight": vector(DIM, 1.0),
        }
        if arch == "qwen2":
            block |= {f"attn_{n}.bias": vector(w, 0.0) for n, w in (("q", q), ("k", kv), ("v", kv))}
        if arch in ("qwen3", "qwen3moe"):
            block |= {f"attn_{n}_norm.weight": vector(HEAD_DIM[arch], 1.0) for n in "qk"}
        if arch == "gemma2":
            block |= {f"post_{n}_norm.weight": vector(DIM, 1.0) for n in ("attention", "ffw")}
        if arch == "qwen3moe":
            # transformers takes the experts' width from its own default, so the file has to have that one.
            experts, width = 4, 768
            block["ffn_gate_inp.weight"] = matrix(experts, DIM)
            block |= {f"ffn_{n}_exps.weight": matrix(experts, width, DIM) for n in ("gate", "up")}
            block["ffn_down_exps.weight"] = matrix(experts, DIM, width)
        else:
            block |= {f"ffn_{n}.weight": matrix(160, DIM) for n in ("gate", "up")}
            block["ffn_down.weight"] = matrix(DIM, 160)
        result |= {f"blk.{layer}.{name}": array for name, array in block.items()}
    return result


def write_gguf(
    path: Path, arch: str, values: dict[str, Any], arrays: dict[str, np.ndarray], quantized: str | None = None
) -> Path:
    """Write one file; `quantized` names the type that matrices of the layers are stored in."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        (adders | {str: writer.add_string})[type(value)](key, value)
    for name, array in arrays.items():
        if quantized and name.startswith("blk.") and array.ndim > 1:
            kind = gguf.GGMLQuantizationType[quantized]
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_file(folder: Path, arch: str, quantized: str | None = None, **more: Any) -> Path:
    """A whole random model of an architecture."""
    own: dict[str, Any] = dict(more)
    if arch == "qwen3moe":
        own |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 768}
    if arch == "gemma2":
        own |= {"attention.sliding_window": 5, "attn_logit_softcapping": 50.0}
    arrays = tensors(arch, np.random.default_rng(0))
    return write_gguf(folder / f"{arch}.gguf", arch, metadata(arch, **own), arrays, quantized)
