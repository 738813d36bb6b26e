"""GGUF: each architecture against transformers reading the same file, and bad files."""

import builtins
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from tblock import BlockConfig
from tblock.checkpoints import families_gguf, open_checkpoint, rope_layout
from tblock.checkpoints.probe import LIMITS, measure, probe
from tblock.errors import ConfigError, ParityError, RuntimeUnavailable
from tblock.rope import inverse_frequencies
from tests.checkpoints.gguf_files import HEAD_DIM, metadata, model_file, tensors, write_gguf


@pytest.mark.parametrize("stored", [None, "Q8_0"], ids=["float32", "Q8_0"])
@pytest.mark.parametrize("arch", HEAD_DIM)
def test_families_gguf_equals_transformers(
    tmp_path: Path, arch: str, stored: str | None, family_report
) -> None:
    checkpoint = open_checkpoint(model_file(tmp_path, arch, stored))
    for layer in (0, 1):
        error = measure(checkpoint, layer).worst
        passed = error <= LIMITS["float32"]
        family_report.note(
            checkpoint.family, "gguf", f"{arch}-{stored or 'float32'}", error=error, passed=passed
        )
        assert passed, f"layer {layer}: {error:.2e}"


def test_unpermuted_rows_are_caught_by_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(model_file(tmp_path, "llama"))
    monkeypatch.setattr(rope_layout, "row_order", lambda config, layout: np.arange(config.head_dim))
    assert measure(checkpoint, 0).worst > 1000 * LIMITS["float32"]


LINEAR = {
    "factor without a type": {"rope.scaling.factor": 4.0},
    "old key": {"rope.scale_linear": 4.0},
    "new key before the old": {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0},
    "type": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
}
UNSCALED = {
    "none": {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
    "zero": {"rope.scale_linear": 0.0},
    "one": {"rope.scaling.factor": 1.0},
}


@pytest.mark.parametrize("keys", (LINEAR | UNSCALED).values(), ids=list(LINEAR | UNSCALED))
def test_rope_scaling_is_read_as_llama_cpp_does(tmp_path: Path, keys: dict, monkeypatch) -> None:
    checkpoint = open_checkpoint(model_file(tmp_path, "llama", **keys))
    linear = keys in LINEAR.values()
    config = checkpoint.config(0)
    assert (config.rope_scaling, config.rope_factor) == (("linear", 4.0) if linear else ("none", 1.0))
    probe(checkpoint, 0)
    if linear:
        real = families_gguf._rope_scaling
        monkeypatch.setattr(families_gguf, "_rope_scaling", lambda fields, arch: real(fields, arch) and {})
        with pytest.raises(ParityError, match="differs from transformers"):
            probe(checkpoint, 0)
        monkeypatch.setattr(families_gguf, "_rope_scaling", lambda fields, arch: {})
        with pytest.raises(ConfigError, match=r"llama\.rope\.scal\S+: not known for llama"):
            open_checkpoint(checkpoint.path).config(0)


UNREAD = {
    "bidirectional": ("llama", {"attention.causal": False}, r"llama.attention.causal=False"),
    "window of a llama": ("llama", {"attention.sliding_window": 8}, r"llama.attention.sliding_window=8"),
    "window pattern": ("gemma2", {"attention.sliding_window_pattern": 6}, r"sliding_window_pattern=6"),
    "another base": ("qwen2", {"rope.freq_base_swa": 1e4}, r"qwen2.rope.freq_base_swa=10000.0: not known"),
    "score scale": ("llama", {"attention.scale": 0.5}, r"llama.attention.scale=0.5: not known"),
    "sections": ("qwen2", {"rope.dimension_sections": 4}, r"rope.dimension_sections=4: not known"),
    "value width": ("llama", {"attention.value_length": 8}, r"llama.attention.value_length=8"),
    "router": ("qwen3moe", {"expert_gating_func": 2}, r"qwen3moe.expert_gating_func=2"),
    "key of the future": ("qwen3", {"attention.newer": 1}, r"qwen3.attention.newer=1: not known"),
}


@pytest.mark.parametrize(("arch", "keys", "message"), UNREAD.values(), ids=UNREAD)
def test_key_that_may_change_the_layer_is_refused_by_name(
    tmp_path: Path, arch: str, keys: dict, message: str
) -> None:
    checkpoint = open_checkpoint(model_file(tmp_path, arch, **keys))
    with pytest.raises(ConfigError, match=message):
        checkpoint.config(0)


def test_irrelevant_keys_change_nothing(tmp_path: Path) -> None:
    plain = open_checkpoint(model_file(tmp_path, "llama")).config(0)
    keys = dict.fromkeys(families_gguf.IRRELEVANT.keys() - {"block_count", "vocab_size"}, 7)
    assert open_checkpoint(model_file(tmp_path, "llama", **keys)).config(0) == plain


def test_llama3_scaling_is_recognised_behind_its_divisors(tmp_path: Path) -> None:
    config = BlockConfig(dim=96, num_heads=6, head_dim=16, rope_base=500000.0)
    scaled = config.replace(rope_scaling="llama3", rope_factor=8.0, rope_original_max_position=8192)
    divisors = inverse_frequencies(config) / inverse_frequencies(scaled)
    values, arrays = metadata("llama"), tensors("llama", np.random.default_rng(0))
    values["llama.rope.freq_base"] = 500000.0
    arrays["rope_freqs.weight"] = divisors.astype(np.float32)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", "llama", values, arrays))
    assert checkpoint.config(0).rope_scaling == "llama3"
    assert checkpoint.config(0).rope_factor == 8.0
    probe(checkpoint, 0)
    arrays["rope_freqs.weight"] = np.linspace(1, 9, 8, dtype=np.float32)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "b.gguf", "llama", values, arrays))
    with pytest.raises(ConfigError, match=r"rope_freqs.weight is no Llama 3 scaling"):
        checkpoint.config(0)


def test_quantised_layer_reads_only_its_stored_bytes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model_file(tmp_path, "llama", "Q4_1"))
    weights = checkpoint.weights(1)
    stored = sum(a.size * 20 // 32 if a.ndim > 1 else a.nbytes for a in weights.values())
    assert checkpoint.bytes_read == stored
    assert {a.dtype for a in weights.values()} == {np.dtype(np.float32)}


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _patched(path: Path, offset: int, new: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(new)] = new
    path.write_bytes(content)


def _offset_flipped(path: Path) -> None:
    """One bit, so that attn_v lies where another tensor does: nothing but the offset says so."""
    content = path.read_bytes()
    name = b"blk.0.attn_v.weight"
    # After the name: rank, two axes, type, offset.
    at = content.index(name) + len(name) + 4 + 16 + 4
    _patched(path, at, bytes([content[at], content[at + 1] ^ 0x20]))


BAD_FILES = {
    "cut in header": (lambda p: _cut(p, 100), r"truncated in the header \(100 bytes\)"),
    "cut in data": (lambda p: _cut(p, 200_000), r"truncated \(200000 bytes, tensor \S+ ends at \d+\)"),
    "empty": (lambda p: _cut(p, 0), r"empty file"),
    "another magic": (lambda p: _patched(p, 0, b"GGML"), r"not a GGUF file"),
    "another version": (
        lambda p: _patched(p, 4, b"\x07"),
        r"GGUF version 7, wanted little-endian version 2 or 3",
    ),
    "version 1": (lambda p: _patched(p, 4, b"\x01"), r"GGUF version 1, wanted .*; convert it again$"),
    "offset": (
        _offset_flipped,
        r"tensor blk\.0\.attn_v\.weight has offset \d+, wanted \d+; fetch the file again",
    ),
    "big-endian": (lambda p: _patched(p, 4, b"\0\0\0\3"), r"big-endian GGUF"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    damage, message = BAD_FILES[kind]
    path = model_file(tmp_path, "llama")
    damage(path)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(path)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    assert "damaged" not in str(caught.value)


def _without(name: str):
    def change(values, arrays):
        (values if name in values else arrays).pop(name)

    return change


def _with(values=None, arrays=None):
    return lambda v, a: (v.update(values or {}), a.update(arrays or {}))


_K = "blk.1.attn_k.weight"
BAD_CONTENT = {
    "no heads": (_without("llama.attention.head_count"), r"llama.attention.head_count is missing"),
    "zero heads": (_with({"llama.attention.head_count": 0}), r"llama.attention.head_count=0, wanted"),
    "zero alignment": (_with({"general.alignment": 0}), r"general.alignment is 0, wanted a power of two"),
    "odd alignment": (_with({"general.alignment": 48}), r"general.alignment is 48, wanted a power of two"),
    "alignment of a float": (
        _with({"general.alignment": 32.0}),
        r"general.alignment is 32.0, wanted a power",
    ),
    "text for a number": (_with({"split.count": "two"}), r"damaged GGUF header"),
    "scaling": (
        _with({"llama.rope.scaling.type": "yarn"}),
        r"llama.rope.scaling.type='yarn'.*'none' or 'linear' only",
    ),
    "experts": (_with({"llama.expert_count": 8}), r"llama.expert_count=8"),
    "part": (_with({"split.count": 2}), r"^\S+bad.gguf: one part of a split GGUF; join it"),
    "tensor missing": (_without(_K), rf"layer 1 does not fit llama; missing: attn.k.weight \(from {_K}\)"),
    "tensor unused": (
        _with(arrays={"blk.1.attn_k.bias": np.zeros(32, np.float32)}),
        r"unused: blk.1.attn_k.bias",
    ),
    "shape": (
        _with(arrays={_K: np.zeros((16, 96), np.float32)}),
        rf"{_K} has shape \[16, 96\], the config wants attn.k",
    ),
    "NaN": (
        _with(arrays={_K: np.full((32, 96), np.nan, np.float32)}),
        rf"tensor {_K}: NaN or Inf in 3072 of 3072",
    ),
    "integers": (
        _with(arrays={_K: np.zeros((32, 96), np.int32)}),
        rf"tensor {_K} has type I32, which is no weight type",
    ),
}


@pytest.mark.parametrize("kind", BAD_CONTENT)
def test_bad_content_is_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    change, message = BAD_CONTENT[kind]
    values, arrays = metadata("llama"), tensors("llama", np.random.default_rng(0))
    change(values, arrays)
    path = write_gguf(tmp_path / "bad.gguf", "llama", values, arrays)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(path).weights(1)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_shape_the_familys_own_code_does_not_take_is_named(tmp_path: Path) -> None:
    """transformers takes the experts' width from its own default, 768, and only points to its log."""
    own = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96}
    arrays = {
        name: array.take(range(96), 2 if "down" in name else 1) if "_exps" in name else array
        for name, array in tensors("qwen3moe", np.random.default_rng(0)).items()
    }
    path = write_gguf(tmp_path / "m.gguf", "qwen3moe", metadata("qwen3moe", **own), arrays)
    wanted = r"\(layer 1: it takes mlp.experts.down_proj as \[4, 96, 768\], got \[4, 96, 96\]\); --no-verify"
    with pytest.raises(ConfigError, match=wanted):
        measure(open_checkpoint(path), 1)


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf", "bloom", metadata("llama"), {"token_embd.weight": np.zeros((4, 4), np.float32)}
    )
    with pytest.raises(
        ConfigError, match=r"architecture 'bloom' is not supported in GGUF; known: llama, qwen2"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", [4, 5, 31, 32, 33, 36, 37, 38, 999])
def test_unreadable_tensor_type_names_the_tensor(tmp_path: Path, kind: int) -> None:
    path = model_file(tmp_path, "llama")
    content = path.read_bytes()
    name = b"blk.1.attn_k.weight"
    kind_at = content.index(name) + len(name) + 4 + 2 * 8
    _patched(path, kind_at, kind.to_bytes(4, "little"))
    says = "unknown type 999; update" if kind == 999 else f"type {kind}, which ggml withdrew; quantize"
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: tensor blk.1.attn_k.weight has {says}"):
        open_checkpoint(path)


@pytest.mark.parametrize("size", [0, 2**62])
def test_impossible_axis_names_the_tensor(tmp_path: Path, size: int) -> None:
    path = model_file(tmp_path, "llama")
    name = b"blk.1.attn_k.weight"
    _patched(path, path.read_bytes().index(name) + len(name) + 4, size.to_bytes(8, "little"))
    with pytest.raises(
        ConfigError, match=rf"tensor blk.1.attn_k.weight has 2 axes \[32, {size}\], which the file"
    ):
        open_checkpoint(path)


def test_without_the_gguf_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(tmp_path, "llama")
    real = builtins.__import__

    def absent(name, *more):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'tblock\[checkpoints\]'"):
        open_checkpoint(path)


def test_header_reader_agrees_with_the_gguf_package(smollm2_gguf: Path) -> None:
    checkpoint = open_checkpoint(smollm2_gguf)
    theirs = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in gguf.GGUFReader(smollm2_gguf).tensors}
    assert {name: checkpoint.source.shape(name) for name in checkpoint.source.names()} == theirs
