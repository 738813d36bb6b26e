"""Filling a block from named arrays: strictly, in every dtype, and out again."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tblock import Block, BlockConfig, Stack
from tblock.errors import ConfigError
from tblock.weights import DTYPES, fill, random_block_weights, to_array, to_tensor

CONFIG = BlockConfig(dim=60, num_heads=6, num_kv_heads=3, head_dim=12, ffn_dim=100, num_layers=2, q_bias=True)


def empty(config: BlockConfig | list[BlockConfig] = CONFIG) -> Any:
    with torch.device("meta"):
        return Block(config) if isinstance(config, BlockConfig) else Stack(config)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_of_every_parameter_rounds_once_to_the_dtype(dtype: str) -> None:
    weights, block = random_block_weights(CONFIG, seed=3), empty()
    fill(block, weights, dtype=DTYPES[dtype], where="here")
    assert {n for n, _ in block.named_parameters()} == set(weights)
    for name, parameter in block.named_parameters():
        assert parameter.dtype == DTYPES[dtype]
        assert not parameter.requires_grad
        assert torch.equal(parameter, torch.from_numpy(weights[name]).to(DTYPES[dtype]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("attn.q.weight"), "weights do not fit the block: missing attn.q.weight"),
        (lambda w: w.update(extra=np.zeros(3, np.float32)), "weights do not fit the block: unused extra"),
        (
            lambda w: w.update(extra=w.pop("ffn.up.weight")),
            "weights do not fit the block: missing ffn.up.weight; unused extra",
        ),
        (
            lambda w: w.update({"attn.k.weight": w["attn.k.weight"].T}),
            "attn.k.weight has shape (60, 36), the config wants (36, 60)",
        ),
        (lambda w: w["ffn.down.weight"].__setitem__((0, 0), np.nan), "ffn.down.weight has NaN or Inf"),
        (lambda w: w["ffn.down.weight"].__setitem__((0, 0), 1e6), "ffn.down.weight overflows float16"),
    ],
    ids=["missing", "unused", "renamed", "transposed", "nan", "overflow"],
)
def test_fill_with_weights_that_do_not_fit_names_the_tensor(change: Any, message: str) -> None:
    weights = random_block_weights(CONFIG, seed=3)
    change(weights)
    with pytest.raises(ConfigError) as caught:
        fill(empty(), weights, dtype=torch.float16, where="here")
    assert str(caught.value) == f"here: {message}"


def test_fill_of_a_stack_with_a_shared_layer_takes_its_weights_once() -> None:
    stack = empty([CONFIG, CONFIG])
    stack.share([0, 0])
    weights = {f"layers.0.{name}": array for name, array in random_block_weights(CONFIG, seed=3).items()}
    fill(stack, weights, dtype=torch.float32, where="here")
    x = torch.ones(1, 3, 60)
    assert torch.equal(stack(x), stack.layers[0](stack.layers[0](x)))
    with pytest.raises(ConfigError, match=r"missing layers\.1\.attn\.k\.weight"):
        fill(empty([CONFIG, CONFIG]), weights, dtype=torch.float32, where="here")


def test_random_weights_of_one_seed_repeat_and_leave_nothing_trivial() -> None:
    first, again, other = (random_block_weights(CONFIG, seed=s) for s in (3, 3, 4))
    for name, array in first.items():
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
        assert len(np.unique(array)) > array.size // 2, f"{name} would hide a runtime that forgets it"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_])
def test_array_to_tensor_and_back_is_the_same_without_a_copy(dtype: Any) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    tensor = to_tensor(array)
    assert np.array_equal(to_array(tensor), array)
    assert to_array(tensor).dtype == array.dtype
    assert tensor.data_ptr() == array.ctypes.data


def test_tensor_to_array_of_a_strided_bfloat16_with_grad_is_its_values() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).bfloat16().T.requires_grad_()
    assert np.array_equal(to_array(tensor).astype(np.float32), tensor.detach().float().numpy())
