"""BlockConfig: derived sizes, the JSON round trip, and what each nonsensical combination prints."""

import dataclasses
import math
import os
import threading
from typing import Any

import pytest

from tblock import BlockConfig, preset
from tblock.errors import ConfigError
from tblock.presets import PRESETS

DEFAULT: dict[str, Any] = {"dim": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 256}
GELU = {"ffn": "gelu"}
MOE = {"num_experts": 4, "experts_per_token": 2}


@pytest.mark.parametrize(
    ("fields", "derived"),
    [
        ({"dim": 64, "num_heads": 4}, {"num_kv_heads": 4, "head_dim": 16, "ffn_dim": 128, "rope_dim": 16}),
        ({"dim": 576, "num_heads": 9, "num_kv_heads": 3}, {"head_dim": 64, "ffn_dim": 1536, "kv_dim": 192}),
        (
            {"dim": 60, "num_heads": 3, "head_dim": 8},
            {"q_dim": 24, "ffn_dim": 128, "attn_scale": 1 / math.sqrt(8)},
        ),
        ({"dim": 48, "num_heads": 3, **GELU}, {"ffn_dim": 192, "gated": False, "activation": "gelu"}),
        ({"dim": 48, "num_heads": 3, "ffn": "geglu_tanh"}, {"gated": True, "activation": "gelu_tanh"}),
        ({"dim": 48, "num_heads": 3, "rope": False}, {"rope_dim": 0, "rope_attention_factor": 1.0}),
        ({"dim": 48, "num_heads": 3, "norm": "layernorm"}, {"norm_bias": True}),
        ({"dim": 48, "num_heads": 3}, {"norm_bias": False}),
        (
            {
                "dim": 64,
                "num_heads": 4,
                "rope_scaling": "yarn",
                "rope_factor": 4.0,
                "rope_original_max_position": 99,
            },
            {"rope_attention_factor": 0.1 * math.log(4.0) + 1.0},
        ),
    ],
    ids=["mha", "gqa", "own-head-width", "mlp", "geglu", "no-rope", "layernorm", "rmsnorm", "yarn"],
)
def test_derived_sizes_left_out_are_filled_in(fields: dict[str, Any], derived: dict[str, Any]) -> None:
    config = BlockConfig(**fields)
    assert {name: getattr(config, name) for name in derived} == derived


@pytest.mark.parametrize("name", PRESETS)
def test_json_of_a_preset_reads_back_equal(name: str, tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(PRESETS[name].to_json())
    assert BlockConfig.from_json(path) == PRESETS[name]


def test_json_of_every_field_changed_reads_back_equal(tmp_path: Any) -> None:
    """Twin of the one above: a field that the JSON form drops would come back as its default."""
    config = BlockConfig(
        dim=60, num_heads=6, num_kv_heads=3, head_dim=12, num_layers=5, max_position=77, norm_eps=3e-5,
        norm_weight_offset=1.0, norm_position="sandwich", sliding_window=9, attn_scale=0.3,
        residual_multiplier=0.5,
        attn_soft_cap=30.0, qk_norm="head", rope_base=1e5, rope_dim=8, rope_layout="interleaved",
        rope_scaling="yarn", rope_factor=2.0, rope_original_max_position=32,
        rope_beta_fast=16.0, rope_beta_slow=2.0, rope_attention_factor=1.5,
        q_bias=True, k_bias=True, v_bias=True, out_bias=True, ffn="geglu", ffn_dim=100, num_experts=5,
        experts_per_token=2, router="sigmoid", router_normalized=False, shared_ffn_dim=20, init_std=0.5,
    )  # fmt: skip
    default = BlockConfig(dim=64, num_heads=4)
    same = {f.name for f in dataclasses.fields(config) if getattr(config, f.name) == getattr(default, f.name)}
    llama3 = {"rope_low_freq_factor", "rope_high_freq_factor"}
    assert same == {"causal", "ffn_bias", "norm", "norm_bias", "parallel", "rope"} | llama3
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert BlockConfig.from_json(path) == config


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"dim": 0}, "dim=0: must be above 0"),
    ({"dim": 64.0}, "dim=64.0: must be an int"),
    ({"dim": True}, "dim=True: must be an int"),
    ({"dim": 63}, "num_heads=4: must divide dim=63, or give head_dim"),
    ({"num_heads": 0}, "num_heads=0: must be above 0"),
    ({"num_kv_heads": 3}, "num_kv_heads=3: must divide num_heads=4"),
    ({"num_kv_heads": 0}, "num_kv_heads=0: must be above 0"),
    ({"num_kv_heads": 8}, "num_kv_heads=8: must divide num_heads=4"),
    ({"head_dim": 0, "rope": False}, "head_dim=0: must be above 0"),
    ({"head_dim": 15}, "head_dim=15: RoPE rotates pairs; make it even, or give an even rope_dim"),
    ({"num_layers": 0}, "num_layers=0: must be above 0"),
    ({"max_position": 0}, "max_position=0: must be above 0"),
    ({"norm": "batchnorm"}, "norm='batchnorm': must be one of rmsnorm, layernorm"),
    ({"norm_position": "after"}, "norm_position='after': must be one of pre, post, sandwich, inner_post"),
    ({"norm_eps": None}, "norm_eps=None: must be a finite float"),
    ({"norm_eps": 0.0}, "norm_eps=0.0: must be above 0"),
    ({"norm_eps": float("nan")}, "norm_eps=nan: must be a finite float"),
    ({"norm_eps": "1e-6"}, "norm_eps='1e-6': must be a finite float"),
    ({"norm_bias": True}, "norm_bias=True: RMSNorm has no bias; use norm='layernorm'"),
    ({"norm": "layernorm", "norm_weight_offset": 1.0}, "norm_weight_offset=1.0: only RMSNorm has one"),
    (
        {"parallel": "one_norm", "norm_position": "post"},
        "parallel='one_norm': needs norm_position='pre', got 'post'",
    ),
    ({"max_position": 10**11}, "max_position=100000000000: must be at most 2.14748e+09"),
    ({"ffn_dim": 10**30}, "ffn_dim=10000000000000000000...: must be at most 2.14748e+09"),
    ({"rope_base": 10**400}, "rope_base=10000000000000000000...: must be at most 1e+30"),
    ({"num_layers": 10**9}, "num_layers=1000000000: must be at most 10000"),
    ({"causal": 1}, "causal=1: must be true or false"),
    ({"causal": False, "sliding_window": 8}, "sliding_window=8: needs causal=True"),
    ({"sliding_window": 0}, "sliding_window=0: must be above 0"),
    ({"attn_scale": 0.0}, "attn_scale=0.0: must be above 0"),
    ({"attn_soft_cap": -1.0}, "attn_soft_cap=-1.0: must be above 0"),
    ({"rope_dim": 7}, "rope_dim=7: must be even, above 0 and at most head_dim=16"),
    ({"rope_dim": 18}, "rope_dim=18: must be even, above 0 and at most head_dim=16"),
    ({"rope_base": 0.0}, "rope_base=0.0: must be above 0"),
    ({"rope": False, "rope_dim": 8}, "rope_dim=8: needs rope=True"),
    ({"rope": False, "rope_scaling": "linear"}, "rope_scaling='linear': needs rope=True"),
    ({"rope": False, "rope_base": 1e5}, "rope_base=100000.0: needs rope=True"),
    ({"rope": False, "rope_layout": "interleaved"}, "rope_layout='interleaved': needs rope=True"),
    (
        {"rope_original_max_position": 9},
        "rope_original_max_position=9: needs rope_scaling='llama3' or 'yarn'",
    ),
    ({"rope_low_freq_factor": 2.0}, "rope_low_freq_factor=2.0: needs rope_scaling='llama3'"),
    ({"rope_beta_fast": 16.0}, "rope_beta_fast=16.0: needs rope_scaling='yarn'"),
    ({"rope_attention_factor": 3.0}, "rope_attention_factor=3.0: needs rope_scaling='yarn'"),
    (
        {"rope_scaling": "yarn", "rope_original_max_position": 64, "rope_base": 1.0},
        "rope_base=1.0: must be above 1 for rope_scaling='yarn'",
    ),
    ({"router": "sigmoid"}, "router='sigmoid': needs num_experts"),
    ({"router_normalized": False}, "router_normalized=False: needs num_experts"),
    ({"rope_factor": 2.0}, "rope_factor=2.0: needs rope_scaling"),
    ({"rope_scaling": "dynamic"}, "rope_scaling='dynamic': must be one of none, linear, llama3, yarn"),
    ({"rope_scaling": "linear", "rope_factor": 0.5}, "rope_factor=0.5: must be at least 1"),
    ({"rope_scaling": "llama3"}, "rope_scaling='llama3': needs rope_original_max_position"),
    (
        {"rope_scaling": "llama3", "rope_original_max_position": 64, "rope_low_freq_factor": 4.0},
        "rope_low_freq_factor=4.0: must be above 0 and below rope_high_freq_factor=4.0",
    ),
    (
        {"rope_scaling": "yarn", "rope_original_max_position": 64, "rope_beta_slow": 40.0},
        "rope_beta_slow=40.0: must be above 0 and below rope_beta_fast=32.0",
    ),
    ({"ffn": "mlp"}, "ffn='mlp': must be one of swiglu, geglu, geglu_tanh, gelu, gelu_tanh, relu, relu2"),
    ({"ffn_dim": 0, **GELU}, "ffn_dim=0: must be above 0"),
    ({"dim": 16, "ffn_dim": None}, "dim=16: 8/3 dim rounds down to 0; give ffn_dim"),
    ({"init_std": 0.0}, "init_std=0.0: must be above 0"),
    ({"num_experts": -1}, "num_experts=-1: must be 0 or more"),
    ({"experts_per_token": 2}, "experts_per_token=2: needs num_experts"),
    ({"shared_ffn_dim": 64}, "shared_ffn_dim=64: needs num_experts"),
    ({"num_experts": 4}, "experts_per_token=0: must be 1 to num_experts=4"),
    ({"num_experts": 4, "experts_per_token": 5}, "experts_per_token=5: must be 1 to num_experts=4"),
    ({**MOE, "ffn_bias": True}, "ffn_bias=True: experts have no biases in any supported family"),
]


@pytest.mark.parametrize(("fields", "message"), NONSENSE, ids=["-".join(map(str, f)) for f, _ in NONSENSE])
def test_combination_without_sense_is_refused_with_its_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BlockConfig(**{**DEFAULT, **fields})
    assert str(caught.value) == message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dim": 64, "num_heads": 4, "nun_layers": 2},
            "unknown field 'nun_layers'; did you mean num_layers?",
        ),
        ({"dim": 64, "num_heads": 4, "xyzzy": 2}, "unknown field 'xyzzy'; known: dim, num_heads,"),
        ({"num_heads": 4}, "field 'dim' is missing"),
        ([64, 4], "got list, wanted a JSON object of BlockConfig fields"),
    ],
    ids=["near", "far", "missing", "not-an-object"],
)
def test_from_dict_bad_fields_are_named(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: ") as caught:
        BlockConfig.from_dict(fields, where="here")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; give a JSON file of BlockConfig fields"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"dim": 64, "num_heads": 4, "norm_eps": null}', "norm_eps=None: must be a finite float"),
        (b"[" * 100_000, "not JSON (nested too deep)"),
    ],
    ids=["no-file", "cut", "binary", "eps-null", "deep"],
)
def test_from_json_bad_file_is_one_line(content: bytes | None, message: str, tmp_path: Any) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        BlockConfig.from_json(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_without_an_end_is_refused_and_a_pipe_is_read(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"^config /dev/zero: not JSON \(more than 256 MiB\)"):
        BlockConfig.from_json("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text('{"dim": 64, "num_heads": 4}'))
    writer.start()
    assert BlockConfig.from_json(tmp_path / "pipe").dim == 64
    writer.join()


def test_replace_of_one_field_checks_the_whole_again() -> None:
    config = BlockConfig(**DEFAULT)
    assert config.replace(norm_eps=1e-5).norm_eps == 1e-5
    with pytest.raises(ConfigError, match="num_kv_heads=2: must divide num_heads=3"):
        config.replace(num_heads=3, head_dim=16)


YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_max_position": 512}
FOLLOWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (YARN, {"rope_attention_factor": 1.138629436111989}),
    ({"head_dim": 32}, {"attn_scale": 32**-0.5, "rope_dim": 32}),
    ({"norm": "layernorm"}, {"norm_bias": True}),
    ({"dim": 96}, {"head_dim": 24, "ffn_dim": 256, "attn_scale": 24**-0.5}),
    ({"ffn": "gelu"}, {"ffn_dim": 256}),
    ({"rope": False}, {"rope_dim": 0}),
    ({"head_dim": 32, "attn_scale": 0.3}, {"attn_scale": 0.3}),
]


def values(config: BlockConfig, names: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


@pytest.mark.parametrize(("changes", "wanted"), FOLLOWS, ids=["-".join(c) for c, _ in FOLLOWS])
def test_what_follows_from_a_changed_field_follows_anew(
    changes: dict[str, Any], wanted: dict[str, Any]
) -> None:
    tiny = preset("tiny")
    assert values(tiny.replace(**changes), wanted) == pytest.approx(wanted)
    # The same after a trip through JSON, which spells every field out.
    assert BlockConfig.from_dict(tiny.to_dict()).replace(**changes) == tiny.replace(**changes)


def test_copy_that_keeps_stale_values_is_caught() -> None:
    changes, wanted = FOLLOWS[0]
    stale = BlockConfig.from_dict({**preset("tiny").to_dict(), **changes})
    assert values(stale, wanted) != pytest.approx(wanted)


def test_value_that_was_given_is_kept_in_a_copy() -> None:
    config = BlockConfig(**{**DEFAULT, "attn_scale": 0.3, "head_dim": 20}).replace(dim=96)
    assert (config.attn_scale, config.head_dim) == (0.3, 20)


def test_config_is_frozen_and_hashable() -> None:
    config = BlockConfig(**DEFAULT)
    assert hash(config) == hash(BlockConfig(**DEFAULT))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dim = 128  # type: ignore[misc]
