"""Opening good checkpoints in every form, and refusing each kind of bad one in one line that names it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tblock.checkpoints import open_checkpoint
from tblock.errors import ConfigError
from tests.checkpoints.llama_files import (
    CONFIG,
    LAYERS,
    arrays,
    safetensors_bytes,
    write_folder,
    write_shards,
)

_LAST = f"model.layers.{LAYERS - 1}.self_attn.k_proj.weight"


def test_three_forms_give_the_same_weights(tmp_path: Path) -> None:
    folder, shards = write_folder(tmp_path / "one"), write_shards(tmp_path / "shards")
    checkpoints = [open_checkpoint(p) for p in (folder, shards, folder / "model.safetensors")]
    for layer in range(LAYERS):
        first, *others = (c.weights(layer) for c in checkpoints)
        assert len(first) == 9
        for other in others:
            assert first.keys() == other.keys()
            assert all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_keep_the_stored_dtype(tmp_path: Path, dtype) -> None:
    weights = open_checkpoint(write_folder(tmp_path / "c", arrays(dtype))).weights(1)
    assert {array.dtype for array in weights.values()} == {np.dtype(dtype)}
    wanted = arrays(dtype)["model.layers.1.mlp.down_proj.weight"]
    assert np.array_equal(weights["ffn.down.weight"], wanted)


def test_one_layer_reads_only_its_own_bytes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_shards(tmp_path / "c"))
    assert checkpoint.bytes_read == 0
    weights = checkpoint.weights(1)
    layer_bytes = sum(array.nbytes for array in weights.values())
    assert checkpoint.bytes_read == layer_bytes
    checkpoint.embed([3, 5])
    assert checkpoint.bytes_read == layer_bytes + 2 * CONFIG["hidden_size"] * 4


def test_weights_can_be_written_to_without_changing_the_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    before = (folder / "model.safetensors").read_bytes()
    open_checkpoint(folder).weights(0)["attn.q.weight"][:] = 7
    assert (folder / "model.safetensors").read_bytes() == before


def test_opening_and_reading_loads_no_torch(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    code = (
        "import sys; from tblock.checkpoints import open_checkpoint\n"
        f"c = open_checkpoint({str(folder)!r}); c.weights(0); c.config(0)\n"
        "assert 'torch' not in sys.modules and 'gguf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _edited(**changes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        return write_folder(path, config={k: v for k, v in (CONFIG | changes).items() if v is not ...})

    return make


def _tensors(change: Callable[[dict[str, np.ndarray]], None], **more) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        tensors = arrays()
        change(tensors)
        return write_folder(path, tensors, **more)

    return make


def _raw(content: Callable[[bytes], bytes], name: str = "model.safetensors") -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_folder(path)
        good = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").unlink()
        (path / name).write_bytes(content(good))
        return path

    return make


def _shards(change: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_shards(path)
        change(path)
        return path

    return make


def _file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.mkdir()
        (path / name).write_bytes(content)
        return path / name

    return make


def _bare_folder(path: Path) -> Path:
    path.mkdir()
    return path


def _two_ggufs(path: Path) -> Path:
    path.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (path / name).write_bytes(b"GGUF")
    return path


def _cache_root(path: Path) -> Path:
    (path / "snapshots" / "abc").mkdir(parents=True)
    (path / "snapshots" / "abc" / "config.json").write_text("{}")
    return path


def _overlap(path: Path) -> None:
    first, second, *_ = sorted(path.glob("*.safetensors"))
    tensors = {"model.embed_tokens.weight": arrays()["model.embed_tokens.weight"]}
    first.write_bytes(safetensors_bytes(tensors))
    second.write_bytes(safetensors_bytes(tensors))


def _wrong_index(path: Path) -> None:
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00003.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _nan(tensors: dict[str, np.ndarray]) -> None:
    tensors[_LAST][1, 2] = np.nan


def _rename(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.2.self_attn.key.weight"] = tensors.pop(_LAST)


def _header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


BAD = {
    "missing": (lambda path: path, r"no such file or folder"),
    "pointer": (
        _raw(lambda b: b"version https://git-lfs.example/spec/v1\n"),
        r"model.safetensors: a Git LFS pointer, not the file; run `git lfs pull`",
    ),
    "pointer to gguf": (
        _file("m.gguf", b"version https://git-lfs.example/spec/v1\n"),
        r"m.gguf: a Git LFS pointer",
    ),
    "two ggufs": (_two_ggufs, r"2 GGUF files \(a.gguf, b.gguf\); give the one to open"),
    "cache root": (_cache_root, r"the root of a hub's cache; give .*/snapshots/abc$"),
    "empty folder": (_bare_folder, r"not a checkpoint; wanted config.json and model.safetensors"),
    "text file": (_file("notes.txt", b"hello"), r"notes.txt: not a checkpoint"),
    "pickle file": (
        _file("model.pt", b"\x80\x02"),
        r"model.pt: pickle runs code and is never loaded.*save_pretrained",
    ),
    "pickle folder": (
        _raw(lambda b: b, "pytorch_model.bin"),
        r"has only pytorch_model.bin; pickle runs code",
    ),
    "no config": (_file("model.safetensors", b"{}"), r"config.json: No such file.*needs its config.json"),
    "config not json": (_shards(lambda p: (p / "config.json").write_text("{")), r"config.json: not JSON"),
    "empty file": (_raw(lambda b: b""), r"model.safetensors: empty file"),
    "not safetensors": (_raw(lambda b: b"x" * 100), r"model.safetensors: not a safetensors file"),
    "cut in header": (_raw(lambda b: b[:200]), r"truncated in the header \(200 bytes"),
    "cut in data": (_raw(lambda b: b[:-8]), r"model.safetensors: truncated \(\d+ bytes, wanted \d+\)"),
    "grown": (_raw(lambda b: b + b"0"), r"longer than its header says"),
    "header not json": (_raw(lambda b: b[:9] + b"!" + b[10:]), r"malformed safetensors header"),
    "overlap": (
        _tensors(lambda t: None, shift={_LAST: -4}),
        rf"tensor {_LAST}.*overlaps the tensor before it",
    ),
    "hole": (_tensors(lambda t: None, shift={_LAST: 4}), rf"tensor {_LAST}.*leaves a hole before it"),
    "unknown dtype": (
        _tensors(lambda t: None, dtypes={_LAST: "F5"}),
        rf"tensor {_LAST} has unknown dtype 'F5'",
    ),
    "wrong width": (
        _tensors(lambda t: None, dtypes={_LAST: "F16"}),
        rf"tensor {_LAST} has \d+ bytes, not those of F16",
    ),
    "shard missing": (
        _shards(lambda p: next(p.glob("*-00002-*")).unlink()),
        r"shard model-00002-of-00003.*is missing",
    ),
    "shard cut": (
        _shards(lambda p: next(p.glob("*-00002-*")).write_bytes(next(p.glob("*-00002-*")).read_bytes()[:-4])),
        r"model-00002-of-00003.safetensors: truncated",
    ),
    "shards overlap": (_shards(_overlap), r"tensor model.embed_tokens.weight is in two shards"),
    "index wrong": (_shards(_wrong_index), r"the index puts tensor model\.\w+.weight in model-00001"),
    "index malformed": (
        _shards(lambda p: (p / "model.safetensors.index.json").write_text("[]")),
        r"index.json: not a safetensors index",
    ),
    "spelling": (_edited(model_type="Qwen-3"), r"unknown family 'Qwen-3'; did you mean qwen3\?"),
    "not causal": (
        _edited(is_causal=False),
        r"config.json: is_causal=False: llama is supported with True only",
    ),
    "two scalings": (
        _edited(rope_scaling={"type": "linear", "factor": 4.0}, rope_parameters={"rope_type": "default"}),
        r"config.json: rope_scaling stands beside rope_parameters",
    ),
    "another family": (_edited(model_type="olmo3"), r"unknown family 'olmo3'; known: "),
    "neighbour": (_edited(model_type="llama4"), r"unknown family 'llama4'; known: "),
    "no family": (_edited(model_type=...), r"model_type is missing"),
    "missing features": (
        _edited(model_type="gpt_oss"),
        r"'gpt_oss' is not supported: it needs attention sinks, clamped",
    ),
    "unknown activation": (_edited(hidden_act="mish"), r"hidden_act='mish': unknown activation"),
    "ungated activation": (_edited(hidden_act="relu"), r"hidden_act='relu': a gated FFN has silu, gelu"),
    "unknown rope": (
        _edited(rope_scaling={"type": "spiral", "factor": 2}),
        r"rope_type='spiral': unknown rope type",
    ),
    "dynamic rope": (
        _edited(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        r"rope_type='dynamic': depends on the run-time length",
    ),
    "quantized": (
        _edited(quantization_config={"quant_method": "gptq"}),
        r"config.json: quantized by gptq: save it dequantized",
    ),
    "layer kinds too few": (
        _edited(model_type="gemma2", hidden_act=..., layer_types=["full_attention"]),
        r"layer_types has nothing for layer 2, wanted one for each layer",
    ),
    "unknown layer kind": (
        _edited(model_type="qwen2", use_sliding_window=True, layer_types=["linear_attention"] * 3),
        r"layer_types has 'linear_attention' for layer 2",
    ),
    "unsupported setting": (
        _edited(model_type="gemma3_text", hidden_act=..., attn_logit_softcapping=30.0),
        r"attn_logit_softcapping=30.0: gemma3 is not supported with it",
    ),
    "setting null": (_edited(hidden_size=None), r"config.json: hidden_size is missing, wanted an integer"),
    "setting missing": (
        _edited(rope_scaling={"type": "linear"}),
        r"config.json: rope_scaling: factor is missing, wanted a number",
    ),
    "setting nobody knows": (
        _edited(score_bias=0.5),
        r"config.json: score_bias=0.5: not known for llama and may change the layer; remove it where",
    ),
    "RoPE setting nobody knows": (
        _edited(rope_scaling={"type": "default", "mrope_section": [1, 1]}),
        r"config.json: rope_scaling: mrope_section=\[1, 1\]: not known for llama",
    ),
    "width left to the default": (
        _edited(hidden_size=...),
        r"q_proj.weight has shape \[24, 24\], the config wants attn.q.weight \[4096, 4096\]",
    ),
    "setting of another type": (_edited(hidden_size="24"), r"hidden_size='24', wanted an integer"),
    "ungated SiLU": (
        _edited(model_type="phi", hidden_act="silu"),
        r"layer 2: ffn='silu': must be one of swiglu",
    ),
    "no heads": (_edited(num_attention_heads=0), r"num_attention_heads=0, wanted an integer above 0"),
    "no heads in another family": (
        _edited(model_type="phi", hidden_act="gelu", num_attention_heads=0),
        r"num_attention_heads=0, wanted an integer above 0",
    ),
    "no sparse step": (
        _edited(model_type="qwen3_moe", decoder_sparse_step=0),
        r"decoder_sparse_step=0, wanted an integer above 0",
    ),
    "endless experts": (
        _edited(model_type="mixtral", num_local_experts=2**40),
        r"layer 2: num_experts=1099511627776: must be at most 10000",
    ),
    "no window pattern": (
        _edited(model_type="gemma3_text", hidden_act=..., sliding_window_pattern=0),
        r"sliding_window_pattern=0, wanted an integer above 0",
    ),
    "broken window": (
        _edited(model_type="mistral", sliding_window=2.5),
        r"sliding_window=2.5, wanted an integer",
    ),
    "no score scale": (
        _edited(model_type="gemma2", hidden_act=..., query_pre_attn_scalar=-4),
        r"query_pre_attn_scalar=-4.0, wanted a number above 0",
    ),
    "infinite": (_edited(rms_norm_eps=float("inf")), r"rms_norm_eps=inf, wanted a finite number"),
    "rotated share of a family without": (
        _edited(partial_rotary_factor=0.5),
        r"config.json: partial_rotary_factor=0.5: llama is supported with 1.0 only",
    ),
    "rotated share": (
        _edited(model_type="phi3", partial_rotary_factor=1.5),
        r"partial_rotary_factor=1.5, wanted a number above 0 and at most 1",
    ),
    "activation transformers lacks": (_edited(hidden_act="relu_2"), r"hidden_act='relu_2': unknown"),
    "config too deep": (
        _shards(lambda p: (p / "config.json").write_text("[" * 100_000)),
        r"config.json: not JSON",
    ),
    "header too deep": (_raw(lambda b: _header(b'{"a":' + b"[" * 100_000)), r"malformed safetensors header"),
    "impossible config": (
        _edited(num_key_value_heads=3),
        r"layer 2: num_kv_heads=3: must divide num_heads=4",
    ),
    "wrong width in config": (
        _edited(intermediate_size=41),
        r"mlp\.\w+.weight has shape \[\d+, \d+\], the config wants ffn",
    ),
    "fewer layers in config": (_edited(num_hidden_layers=2), r"the file has layer 2, .*num_hidden_layers=2"),
    "no layers": (
        _tensors(lambda t: [t.pop(k) for k in list(t) if "layers" in k]),
        r"no tensor under model.layers. or layers., wanted the layers of llama",
    ),
    "tensor missing": (
        _tensors(lambda t: t.pop(_LAST)),
        rf"layer 2 does not fit llama; missing: attn.k.weight.*{_LAST}",
    ),
    "tensor unused": (
        _tensors(lambda t: t.setdefault("model.layers.2.self_attn.q_proj.bias", np.zeros(24, np.float32))),
        r"unused: model.layers.2.self_attn.q_proj.bias",
    ),
    "both sides": (
        _tensors(_rename),
        r"missing: attn.k.weight .*; unused: model.layers.2.self_attn.key.weight",
    ),
    "NaN": (_tensors(_nan), rf"tensor {_LAST}: NaN or Inf in 1 of 288 values"),
    "integers": (
        _tensors(lambda t: t.update({_LAST: np.zeros((12, 24), np.int64)})),
        rf"tensor {_LAST} has dtype I64, wanted F64, F32, F16, BF16",
    ),
    "eight bits": (
        _tensors(lambda t: t.update({_LAST: np.zeros((12, 24), np.uint8)})),
        rf"tensor {_LAST} has dtype F8_E4M3.*dequantize",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_checkpoint_is_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    make, message = BAD[kind]
    path = make(tmp_path / "c")
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(path).weights(LAYERS - 1)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_layer_out_of_range(tmp_path: Path, layer: int) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "c"))
    for ask in (checkpoint.config, checkpoint.weights, checkpoint.tensor_names):
        with pytest.raises(ConfigError, match=rf"layer {layer} is out of range, wanted 0 to 2"):
            ask(layer)


def test_token_out_of_range(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "c"))
    assert checkpoint.vocab_size == 31
    with pytest.raises(
        ConfigError, match=r"row 31 of model.embed_tokens.weight is out of range, wanted 0 to 30"
    ):
        checkpoint.embed([1, 31])


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_ENTRIES = {
    "no object": 5,
    "dtype": ENTRY | {"dtype": ["F32"]},
    "no shape": {"dtype": "F32", "data_offsets": [0, 8]},
    "negative shape": ENTRY | {"shape": [-1, -2]},
    "boolean shape": ENTRY | {"shape": [True, 2]},
    "huge shape": ENTRY | {"shape": [0, 10**30]},
    "one offset": ENTRY | {"data_offsets": [0]},
    "fraction": ENTRY | {"data_offsets": [0.5, 8]},
    "backwards": ENTRY | {"data_offsets": [8, 0]},
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_malformed_header_entry_names_the_tensor(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path / "c")
    text = json.dumps({"a": BAD_ENTRIES[kind]}).encode()
    (folder / "model.safetensors").write_bytes(_header(text) + bytes(8))
    with pytest.raises(
        ConfigError, match=r"model.safetensors: tensor a has a malformed header entry, wanted"
    ):
        open_checkpoint(folder)


_TOKENS = "model.embed_tokens.weight"
BAD_TOKENS = {
    "missing": (lambda t: t.pop(_TOKENS), r"is missing; .* or --no-golden$"),
    "width": (
        lambda t: t.update({_TOKENS: np.ones((31, 23), np.float32)}),
        r"has shape \[31, 23\], wanted \[rows, 24\]; .* or --no-golden$",
    ),
    "rank": (
        lambda t: t.update({_TOKENS: np.ones(24, np.float32)}),
        r"has shape \[24\], wanted \[rows, 24\]",
    ),
}


@pytest.mark.parametrize("kind", BAD_TOKENS)
def test_bad_embedding_is_found_without_reading_it(tmp_path: Path, kind: str) -> None:
    change, message = BAD_TOKENS[kind]
    checkpoint = open_checkpoint(_tensors(change)(tmp_path / "c"))
    for ask in (checkpoint.require_embedding, lambda: checkpoint.embed([3])):
        with pytest.raises(ConfigError, match=rf"tensor {_TOKENS} {message}"):
            ask()
    assert checkpoint.bytes_read == 0


def test_nan_in_the_embedding_names_the_tensor(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_tensors(lambda t: t[_TOKENS].fill(np.nan))(tmp_path / "c"))
    checkpoint.require_embedding()
    with pytest.raises(ConfigError, match=rf"tensor {_TOKENS}: NaN or Inf in 24 of 24 values"):
        checkpoint.embed([3])


def test_two_tensors_for_one_parameter(tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3}
    shape = {"weight": (24, 24), "bias": (24,)}
    modules = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    tensors = {f"encoder.layer.0.{m}.{k}": np.ones(s, np.float32) for m in modules for k, s in shape.items()}
    tensors |= {f"encoder.layer.0.output.LayerNorm.{k}": np.ones(24, np.float32) for k in ("gamma", "weight")}
    with pytest.raises(
        ConfigError, match=r"both .*LayerNorm.gamma and .*LayerNorm.weight fill ffn_norm.weight"
    ):
        open_checkpoint(write_folder(tmp_path / "c", tensors, config)).weights(0)


def test_name_of_a_hubs_repository_is_told_from_a_path() -> None:
    with pytest.raises(ConfigError, match=r"download the model first and give its folder$"):
        open_checkpoint("some-org/some-model")
    with pytest.raises(ConfigError, match=r"give a checkpoint$"):
        open_checkpoint("/nowhere/some-org/some-model")
