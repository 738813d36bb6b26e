"""The input check alone, on manifests made by hand: names, ranks, dims, dtypes, limits, tensors of torch."""

import ml_dtypes
import numpy as np
import pytest
import torch

from tblock.errors import ArtifactError
from tblock.manifest import Manifest, TensorSpec
from tblock.ranges import Range
from tblock.runtimes.inputs import check_inputs, output_shape, shape_label
from tests.runtimes.artifact_edits import ODD


def make_manifest(dtype: str = "float32") -> Manifest:
    return Manifest(
        tblock="0",
        created="",
        tools={},
        source={},
        configs=(ODD,),
        dtype=dtype,
        parameters=0,
        inputs=(
            TensorSpec(name="x", dims=("B", "S", 60), dtype=dtype),
            TensorSpec(name="padding_mask", dims=("B", "S"), dtype="bool"),
            TensorSpec(name="position_ids", dims=("B", "S"), dtype="int64"),
        ),
        outputs=(TensorSpec(name="y", dims=("B", "S", 60), dtype=dtype),),
        ranges={"B": Range(1, 2, 4), "S": Range(1, 16, 32)},
        targets={},
        files={},
    )


def good(batch: int = 2, seq: int = 7) -> dict[str, np.ndarray]:
    return {
        "x": np.zeros((batch, seq, 60), np.float32),
        "padding_mask": np.ones((batch, seq), np.bool_),
        "position_ids": np.broadcast_to(np.arange(seq), (batch, seq)).copy(),
    }


WRONG = {
    "batch-0": ({**good(0)}, "input x: B=0: below the declared minimum 1"),
    "seq-0": ({**good(2, 0)}, "input x: S=0: below the declared minimum 1"),
    "batch-9": (good(9), "input x: B=9: above the declared maximum 4; export with a wider --batch"),
    "seq-64": (good(1, 64), "input x: S=64: above the declared maximum 32; export with a wider --seq"),
    "width-15": (
        {**good(), "x": np.zeros((2, 7, 15), np.float32)},
        "input x: axis 2 is 15, wanted 60 (dims [B, S, 60])",
    ),
    "rank-2": (
        {**good(), "x": np.zeros((7, 60), np.float32)},
        "input x: rank 2 [7, 60], wanted [B, S, 60]",
    ),
    "float64": ({**good(), "x": np.zeros((2, 7, 60))}, "input x: dtype float64, wanted float32"),
    "big-endian": ({**good(), "x": np.zeros((2, 7, 60), ">f4")}, "input x: dtype >f4, wanted float32"),
    "mask-int": (
        {**good(), "padding_mask": np.ones((2, 7), np.int64)},
        "input padding_mask: dtype int64, wanted bool",
    ),
    "mask-batch": (
        {**good(), "padding_mask": np.ones((3, 7), np.bool_)},
        "input padding_mask: B=3: input x has B=2",
    ),
    "mask-seq": (
        {**good(), "padding_mask": np.ones((2, 8), np.bool_)},
        "input padding_mask: S=8: input x has S=7",
    ),
    "position-minus-1": (
        {**good(), "position_ids": np.full((2, 7), -1)},
        "input position_ids: -1 at [0, 0], wanted 0 .. 63 (max_position=64)",
    ),
    "position-64": (
        {**good(), "position_ids": np.arange(51, 65).reshape(2, 7)},
        "input position_ids: 64 at [1, 6], wanted 0 .. 63 (max_position=64)",
    ),
    "unknown-name": (
        {**good(), "mask": np.ones((2, 7), np.bool_)},
        "input mask: not an input of this artifact; it takes x, padding_mask, position_ids",
    ),
    "missing-name": (
        {"x": good()["x"]},
        "input padding_mask: missing; this artifact takes x, padding_mask, position_ids",
    ),
    "list": (
        {**good(), "x": [[1.0]]},
        "input x: got list, wanted a numpy array or anything with DLPack",
    ),
}


@pytest.mark.parametrize(("inputs", "message"), WRONG.values(), ids=WRONG)
def test_inputs_wrong_are_named(inputs, message):
    with pytest.raises(ArtifactError) as error:
        check_inputs(make_manifest(), inputs)
    assert str(error.value) == message


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (4, 32), (2, 7)])
def test_inputs_at_the_limits_pass(batch, seq):
    arrays, sizes = check_inputs(make_manifest(), good(batch, seq))
    assert list(arrays) == ["x", "padding_mask", "position_ids"]
    assert sizes == {"B": batch, "S": seq}
    assert shape_label(sizes) == f"B{batch} S{seq}"
    assert output_shape(make_manifest().outputs[0], sizes) == (batch, seq, 60)


def test_inputs_noncontiguous_become_contiguous():
    wide = np.random.default_rng(0).standard_normal((2, 14, 60)).astype(np.float32)
    arrays, _ = check_inputs(make_manifest(), {**good(), "x": wide[:, ::2]})
    assert arrays["x"].flags.c_contiguous
    assert np.array_equal(arrays["x"], wide[:, ::2])


def test_inputs_sequence_past_the_rope_table_is_an_error_without_positions():
    manifest = make_manifest()
    object.__setattr__(manifest, "inputs", manifest.inputs[:1])
    object.__setattr__(manifest, "ranges", {"B": Range(1, 1, 4), "S": Range(1, 1, 100)})
    with pytest.raises(ArtifactError, match="S=65: above max_position=64"):
        check_inputs(manifest, {"x": np.zeros((1, 65, 60), np.float32)})


TENSORS = {
    "float32": lambda: torch.randn(2, 7, 60),
    "bfloat16": lambda: torch.randn(2, 7, 60).to(torch.bfloat16),
    "bfloat16-strided": lambda: torch.randn(2, 60, 7).to(torch.bfloat16).transpose(1, 2),
    "bfloat16-offset": lambda: torch.randn(3, 7, 60).to(torch.bfloat16)[1:],
    "float16": lambda: torch.randn(2, 7, 60).half(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_torch_tensor_arrives_bit_for_bit(name):
    tensor = TENSORS[name]()
    dtype = name.partition("-")[0]
    arrays, _ = check_inputs(make_manifest(dtype), {**good(), "x": tensor})
    assert arrays["x"].dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype))
    assert np.array_equal(arrays["x"].astype(np.float64), tensor.double().numpy())


def test_torch_tensor_that_requires_grad_says_so():
    with pytest.raises(ArtifactError, match=r"input x: .*detach"):
        check_inputs(make_manifest(), {**good(), "x": torch.zeros(2, 7, 60, requires_grad=True)})


def test_tensor_on_another_device_says_so():
    class OnGpu:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self):
            raise AssertionError("not to be read")

    with pytest.raises(ArtifactError, match="input x: on DLPack device 2, wanted the CPU"):
        check_inputs(make_manifest(), {**good(), "x": OnGpu()})
