"""The exported ONNX file by its numbers in ONNX Runtime: masks, shapes, broken twins."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from tblock import Block, BlockConfig
from tblock.errors import ExportError
from tblock.export import attention_form, capture, onnx_bodies, onnx_model, onnx_translation, request
from tblock.manifest import Artifact
from tblock.ranges import Range
from tblock.runtimes import CheckRow, load
from tblock.runtimes.eager import build_module
from tblock.runtimes.parity import judge_runner
from tblock.runtimes.verdict import Verdict, judge
from tblock.weights import DTYPES, to_array
from tests.artifacts import export
from tests.export import onnx_reading as reading
from tests.export.odd_block import ODD, SMALL

Exported = Callable[..., Artifact]
LEVELS = ["off", "all"]
PADDED = np.array([[True] * 5 + [False] * 3, [False] * 2 + [True] * 6])
"""[2, 8], the last 3 keys padded; and 2 on the left, whose causal rows see no key."""


def checked(artifact: Artifact, optimization: str = "all") -> CheckRow:
    """The artifact's own golden data through ONNX Runtime, in this process."""
    runner = load(artifact.folder, "onnxruntime", optimization=optimization, threads=1)
    return judge_runner(runner, artifact)


def states(batch: int, seq: int, dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(batch * 100 + seq)
    return torch.randn(batch, seq, ODD.dim, generator=generator).to(DTYPES[dtype])


def judged(artifact: Artifact, shape: tuple[int, int], mask: np.ndarray | None, optimization: str) -> Verdict:
    """One call against the rebuilt block in float64, with eager in the artifact's dtype beside it."""
    dtype = artifact.manifest.dtype
    block, x = build_module(artifact), states(*shape, dtype)
    named = {} if mask is None else {"padding_mask": mask}
    runner = load(artifact.folder, "onnxruntime", optimization=optimization, threads=1)
    known = None if mask is None else torch.from_numpy(mask)
    with torch.no_grad():
        eager, reference = block(x, known), block(x.double(), known)
    return judge(
        output=runner(to_array(x), **named),
        reference=to_array(reference),
        eager=to_array(eager),
        inputs=to_array(x),
        dtype=dtype,
    )


MASKED = {
    # Causal, opset, dtype: every pair of them once.
    "causal-18-float32": (True, 18, "float32"),
    "causal-23-float16": (True, 23, "float16"),
    "bidirectional-23-float32": (False, 23, "float32"),
    "bidirectional-18-float16": (False, 18, "float16"),
}


def masked_artifact(name: str, exported: Exported) -> Artifact:
    causal, opset, dtype = MASKED[name]
    options = {"opset": opset, "dtype": dtype, "padding_mask": True, "golden": False}
    return exported(options=options, causal=causal)


@pytest.mark.parametrize("optimization", LEVELS)
@pytest.mark.parametrize(
    "name",
    [
        "causal-18-float32",
        "causal-23-float16",
        pytest.param("bidirectional-23-float32", marks=pytest.mark.exhaustive),
        pytest.param("bidirectional-18-float16", marks=pytest.mark.exhaustive),
    ],
)
def test_padding_mask_in_onnxruntime_equals_the_and_of_both_masks(
    name: str, optimization: str, exported: Exported
) -> None:
    verdict = judged(masked_artifact(name, exported), (2, 8), PADDED, optimization)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("optimization", LEVELS)
@pytest.mark.parametrize("name", ["causal-18-float32", "causal-23-float16"])
def test_fully_masked_row_of_the_block_is_x_plus_ffn_of_norm(
    name: str, optimization: str, exported: Exported
) -> None:
    """Such a row has no attention at all."""
    artifact = masked_artifact(name, exported)
    runner = load(artifact.folder, "onnxruntime", optimization=optimization, threads=1)
    block, x = build_module(artifact), states(2, 8, artifact.manifest.dtype)
    assert isinstance(block, Block)
    y = runner(to_array(x), padding_mask=PADDED)
    assert np.isfinite(y).all()
    with torch.no_grad():
        eager, reference = (w + block.ffn(block.ffn_norm(w)) for w in (x, x.double()))
    rows = {"output": y, "reference": to_array(reference), "eager": to_array(eager), "inputs": to_array(x)}
    verdict = judge(**{name: array[1, :2] for name, array in rows.items()}, dtype=artifact.manifest.dtype)
    assert verdict.passed, verdict.reason


class AttentionOnly(nn.Module):
    """The contract's attention with a mask, as a graph of its own."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.ops.tblock.attention(q, k, v, mask, scale=0.25, causal=0, window=0, soft_cap=0.0)


def attention_model(opset: int, form: str) -> onnx.ModelProto:
    """The emitted nodes at one opset, without anything around them."""
    q, mask = torch.zeros(2, 4, 8, 16), torch.ones(2, 1, 8, 8, dtype=torch.bool)
    program = torch.export.export(AttentionOnly(), (q, q.clone(), q.clone(), mask))
    written = min(opset, 23)
    table = onnx_translation.translation_table(written, form)
    with onnx_model._quiet():
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            opset_version=written,
            optimize=False,
            custom_translation_table=table,
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    # Attention-24 takes what Attention-23 takes; the kernel behind it is another.
    model.opset_import[0].version = opset
    return model


def run_attention(model: onnx.ModelProto, level: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that see no key: output, and the float64 reference."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, 4, 8, 16), np.float32) for _ in range(3))
    mask = np.ones((2, 1, 8, 8), bool)
    mask[0, :, 0] = False
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    y = session.run(None, dict(zip(names, (q, k, v, mask), strict=True)))[0]
    tensors = [torch.from_numpy(a) for a in (q, k, v)]
    reference = AttentionOnly()(*(t.double() for t in tensors), torch.from_numpy(mask))
    return y, reference.numpy()


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"], ids=LEVELS)
@pytest.mark.parametrize(
    ("opset", "form"),
    [(18, "decomposed"), (23, "decomposed"), (23, "attention-23"), (24, "attention-23")],
)
def test_attention_fully_masked_row_in_onnxruntime_is_exactly_zero(opset: int, form: str, level: str) -> None:
    y, reference = run_attention(attention_model(opset, form), level)
    assert not y[0, :, 0].any()
    verdict = judge(
        output=y, reference=reference, eager=reference.astype(np.float32), inputs=None, dtype="float32"
    )
    assert verdict.passed, verdict.reason


def test_attention_decomposed_without_the_guard_of_masked_rows_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twin: the softmax of nothing is NaN."""
    monkeypatch.setattr(attention_form, "_any", lambda op, mask: op.Equal(mask, mask))
    y, _ = run_attention(attention_model(18, "decomposed"), "ORT_DISABLE_ALL")
    assert np.isnan(y[0, :, 0]).all()


def test_attention_23_with_a_mask_has_the_guard_of_masked_rows() -> None:
    """By structure: ONNX Runtime gives 0 there by itself, the specification promises nothing."""
    graph = attention_model(23, "attention-23").graph
    attention = next(n for n in graph.node if n.op_type == "Attention")
    guards = [n for n in graph.node if n.op_type == "Where" and attention.output[0] in n.input]
    assert [n.output[0] for n in guards] == [o.name for o in graph.output]


SHAPES = [(2, 3), (1, 1), (1, 4)]
"""The optimum declared."""


@pytest.mark.parametrize(("batch", "seq"), SHAPES, ids=[f"B{b}S{s}" for b, s in SHAPES])
def test_one_file_runs_every_shape_whatever_optimum_was_declared(
    batch: int, seq: int, exported: Exported
) -> None:
    options = {"batch": Range(1, batch, 4), "seq": Range(1, seq, 12), "opset": 23 if seq == 1 else 18}
    artifact = exported(options={**options, "golden": False})
    for shape in [(1, 6), (1, 1), (2, 3), (3, 1), (4, 12)]:
        verdict = judged(artifact, shape, None, "all")
        assert verdict.passed, (shape, verdict.reason)
    sizes = set(capture.example_sizes(artifact.manifest.configs, artifact.manifest.ranges).values())
    model = reading.graph_of(artifact)
    assert not traced_sizes(model, sizes)
    assert traced_sizes(model, {artifact.manifest.configs[0].head_dim})


def traced_sizes(model: onnx.ModelProto, sizes: set[int]) -> set[int]:
    """Of these sizes those that a constant of the file equals."""
    values = {
        int(v)
        for c in reading.constants(model)
        if np.issubdtype(c.dtype, np.integer) or c.size == 1
        for v in c.flat
        if np.isfinite(v) and float(v).is_integer()
    }
    return values & sizes


@pytest.mark.parametrize(
    "seq", [Range(1, 1, 1), Range(2, 2, 2), Range(1, 1, 4)], ids=["one", "two", "up-to-four"]
)
def test_sequence_shorter_than_what_is_traced_with_still_exports(seq: Range, exported: Exported) -> None:
    row = checked(exported(options={"seq": seq, "batch": Range(1, 1, 2)}))
    assert row.passed, row.reason


def test_max_position_shorter_than_what_is_traced_with_still_exports(exported: Exported) -> None:
    row = checked(exported(options={"seq": None}, max_position=2))
    assert row.passed, row.reason


def swapped(name: str, wanted: str, broken: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A body whose shipped text is changed."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        text = getattr(onnx_bodies, name)
        assert wanted in text
        monkeypatch.setattr(onnx_bodies, name, text.replace(wanted, broken))

    return apply


def no_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attention_form._causal
    monkeypatch.setattr(
        attention_form,
        "_causal",
        lambda op, q, k, window: op.Or(seen := original(op, q, k, window), op.Not(seen)),
    )


def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attention_form._causal
    monkeypatch.setattr(attention_form, "_causal", lambda op, q, k, window: original(op, q, k, 0))


def turned_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    original = onnx_translation._rope
    monkeypatch.setattr(
        onnx_translation, "_rope", lambda op, x, cos, sin, i: original(op, x, cos, sin, 1 - i)
    )


def back_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    original = onnx_translation._rope
    monkeypatch.setattr(
        onnx_translation, "_rope", lambda op, x, cos, sin, i: original(op, x, cos, op.Neg(sin), i)
    )


def scale_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attention_form.emit
    monkeypatch.setattr(
        attention_form, "emit", lambda *a, **k: original(*a, **{**k, "scale": k["scale"] * 1.01})
    )


TWINS: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[pytest.MonkeyPatch], None]]] = {
    # Changes of the config, options of the export, what is broken in the shipped lowering.
    "swiglu-on-up": ({}, {"opset": 23}, swapped("_SWIGLU", "Sigmoid (wide_gate)", "Sigmoid (wide_up)")),
    "eps-dropped": (
        {"norm_eps": 0.5},
        {"opset": 18},
        swapped("_RMS_18", "variance = Add (mean, epsilon)", "variance = Identity (mean)"),
    ),
    "offset-dropped": (
        {"norm_weight_offset": 1.0},
        {"opset": 23},
        swapped("_RMS_23", "gain = Add (wide_weight, offset)", "gain = Identity (wide_weight)"),
    ),
    "mask-not-combined": ({}, {"opset": 23, "padding_mask": True}, no_causal),
    "window-ignored": ({"sliding_window": 5}, {"opset": 23}, no_window),
    "rope-layout": ({}, {"opset": 23}, turned_rope),
    "rope-backwards-one-side-only": ({"rope_layout": "interleaved"}, {"opset": 18}, back_rope),
    "scale-off-by-1-percent": ({}, {"opset": 18}, scale_lost),
}


@pytest.mark.parametrize("name", TWINS)
def test_broken_twin_of_the_lowering_fails_the_verdict(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, options, break_it = TWINS[name]
    break_it(monkeypatch)
    artifact = export(ODD.replace(**changes), tmp_path / "a", **{**SMALL, **options})
    assert checked(artifact).status == "FAIL"


LOW: dict[str, Any] = {"opset": 23, "dtype": "float16"}
ARRANGEMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "post-layernorm-mlp": (
        {
            "norm": "layernorm", "norm_bias": True, "norm_position": "post", "ffn": "gelu", "causal": False,
            "rope": False, "rope_dim": 0, "q_bias": True, "out_bias": True, "ffn_bias": True,
        },
        LOW,
    ),
    "sandwich-offset-qk-norm": (
        {"norm_position": "sandwich", "norm_weight_offset": 1.0, "qk_norm": "head"},
        {"opset": 18},
    ),
    "inner-post-qk-norm-full": ({"norm_position": "inner_post", "qk_norm": "full"}, LOW),
    "parallel-partial-rope": ({"parallel": "one_norm", "rope_dim": 10, "ffn": "gelu_tanh"}, LOW),
    "window-soft-cap-geglu": (
        {"sliding_window": 5, "attn_soft_cap": 2.0, "ffn": "geglu_tanh"},
        {"opset": 18},
    ),
    "mqa-interleaved-relu2": (
        {"num_kv_heads": 1, "rope_layout": "interleaved", "ffn": "relu2"},
        {"opset": 18},
    ),
    # float32: in float16 the router's choice itself depends on rounding, and the verdict says so.
    "experts-shared": (
        {"num_experts": 4, "experts_per_token": 2, "shared_ffn_dim": 28, "router": "sigmoid"},
        {"opset": 23},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "post-layernorm-mlp",
        "sandwich-offset-qk-norm",
        "parallel-partial-rope",
        "experts-shared",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("inner-post-qk-norm-full", "window-soft-cap-geglu", "mqa-interleaved-relu2")
        ),
    ],
)
def test_arrangement_of_the_block_agrees_in_onnxruntime(name: str, exported: Exported) -> None:
    changes, options = ARRANGEMENTS[name]
    artifact = exported(options=options, **changes)
    for level in LEVELS:
        row = checked(artifact, level)
        assert row.passed, row.reason


def test_experts_of_other_inputs_than_the_traced_agree(exported: Exported) -> None:
    """Tracing on zeros must not freeze the experts of the example."""
    experts = {"num_experts": 4, "experts_per_token": 1}
    artifact = exported(options={"opset": 23, "golden": False}, **experts)
    block = build_module(artifact)
    chosen = set()
    for shape in [(1, 5), (2, 7), (3, 8), (4, 2), (1, 33)]:
        verdict = judged(artifact, shape, None, "all")
        assert verdict.passed, verdict.reason
        weights = block.ffn.mixing_weights(block.ffn_norm(states(*shape, "float32")))
        chosen |= set(weights.argmax(-1).flatten().tolist())
    assert len(chosen) > 1


def test_capture_that_specialises_a_size_is_an_export_error(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: a batch of 1 to trace with is what torch.export would make a constant of."""

    def ones(_: Any, ranges: dict[str, Range]) -> dict[str, int]:
        return dict.fromkeys(ranges, 1)

    monkeypatch.setattr(capture, "example_sizes", ones)
    with pytest.raises(ExportError, match=r"^capture: torch\.export failed: "):
        export(ODD, tmp_path / "a", **SMALL)


@pytest.mark.parametrize(
    "config",
    [
        ODD,
        BlockConfig(dim=15, num_heads=3, head_dim=5, rope=False, ffn_dim=7),
        BlockConfig(
            dim=60, num_heads=15, num_kv_heads=3, head_dim=18, rope_dim=14, ffn_dim=21, max_position=11
        ),
    ],
    ids=["odd", "tiny-widths", "odd-derived"],
)
def test_example_sizes_are_odd_above_one_and_collide_with_nothing(config: BlockConfig) -> None:
    ranges = {"B": Range(1, 3, 8), "S": Range(5, 9, 33)}
    sizes = capture.example_sizes([config], ranges)
    taken = {v for v in config.to_dict().values() if isinstance(v, int)}
    taken |= {config.q_dim, config.kv_dim, config.num_heads // config.num_kv_heads, config.rope_dim // 2}
    taken |= {n for r in ranges.values() for n in (r.min, r.opt, r.max)}
    assert sizes.keys() == ranges.keys()
    assert len(set(sizes.values())) == len(sizes)
    for size in sizes.values():
        assert size > 1
        assert size % 2 == 1
        assert size not in taken


def test_capture_keeps_composite_ops_and_both_axes_symbolic() -> None:
    ranges, inputs, _ = request.checked(request.ExportOptions(**SMALL), [ODD])
    program = capture.capture(Block(ODD).requires_grad_(False), [ODD], inputs, ranges)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    counts = {
        name: targets.count(f"tblock.{name}.default") for name in ("rms_norm", "swiglu", "rope", "attention")
    }
    assert counts == {"rms_norm": 2, "swiglu": 1, "rope": 2, "attention": 1}
    x = next(n for n in program.graph.nodes if n.op == "placeholder" and n.meta["val"].ndim == 3)
    batch, seq, width = x.meta["val"].shape
    assert isinstance(batch, torch.SymInt)
    assert isinstance(seq, torch.SymInt)
    assert str(batch) != str(seq)
    assert width == ODD.dim
