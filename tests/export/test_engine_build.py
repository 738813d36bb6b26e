"""TensorRT-RTX engines, built for real: no past, and what the report says of them.

Nothing here executes an engine: that needs a GPU. What is proven is that the builder takes the graph.
"""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tblock.errors import ExportError
from tblock.export import attention_form
from tblock.export.engine import attention_kernels
from tblock.export.engine import package as engine_package
from tblock.export.engine.builder import EngineOptions, EngineReport, build_engine, build_from_onnx
from tblock.export.engine.compilation import compile_engine
from tests.export import engine_models as models

pytest.importorskip(
    "tensorrt_rtx", reason="TensorRT-RTX is not installed: pip install 'tblock[tensorrt-rtx]'"
)

QUIET = EngineOptions(progress=False)


def _build(
    folder: Path, output: Path, *, masked: bool = False, options: EngineOptions = QUIET
) -> EngineReport:
    profiles = [models.profile(masked=masked)]
    report = build_engine(
        folder / "model.onnx", output, flavour="tensorrt-rtx", profiles=profiles, options=options
    )
    assert report.bytes == output.stat().st_size > 100_000
    return report


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        *((width, "float16") for width in (6, 20, 64, 320)),
        (64, "float32"),
        *(pytest.param(width, "float16", marks=pytest.mark.exhaustive) for width in (100, 128)),
        *(pytest.param(width, "float32", marks=pytest.mark.exhaustive) for width in (6, 20, 100, 128, 320)),
    ],
)
def test_engine_of_every_head_width_is_built_and_says_how_attention_runs(
    head_dim: int, dtype: str, tmp_path: Path
) -> None:
    report = _build(models.exported(head_dim=head_dim, dtype=dtype), tmp_path / "m.engine")
    half = dtype == "float16"
    if half and not 9 <= head_dim <= 256:
        # Spelled out in the graph, in float32: the builder's own way would be in float16.
        assert (report.attention, report.softmax) == ([], "float32")
    else:
        (attention,) = report.attention
        assert attention["kernel"] == ("dedicated" if half else "decomposable")
        assert (str(head_dim) if half else "FLOAT") in attention["reason"]
        assert report.softmax == ("kernel" if half else "float32")
    assert report.softmax_reason
    assert report.reductions == {"FLOAT": 2}
    assert (report.fusion, report.plugin_layers, report.tf32, report.executed) == ("native", 0, False, False)
    assert report.fused == models.FUSED
    assert "TensorRT-RTX has no plugin layers" in report.fusion_reason
    assert report.caches == {"runtime": "written at the first load, which compiles for the GPU (JIT)"}
    assert not report.warnings


@pytest.mark.parametrize("head_dim", [20, 64])
def test_engine_with_a_padding_mask_is_built_where_the_builder_cannot_pad_heads(
    head_dim: int, tmp_path: Path
) -> None:
    folder = models.exported(head_dim=head_dim, dtype="float16", masked=True)
    report = _build(folder, tmp_path / "m.engine", masked=True)
    assert report.attention[0]["kernel"] == "dedicated"
    assert ("padded to 24" in report.attention[0]["reason"]) == (head_dim == 20)
    assert set(report.reductions) == {"FLOAT"}


@pytest.mark.parametrize(("dtype", "opset"), [("bfloat16", 23), ("float16", 18)])
def test_engine_of_other_dtype_and_opset_is_built(dtype: str, opset: int, tmp_path: Path) -> None:
    report = _build(models.exported(dtype=dtype, opset=opset), tmp_path / "m.engine")
    assert report.opset == opset
    assert len(report.attention) == (opset >= 23)
    assert report.reductions == {"FLOAT": 2}


def test_engine_of_a_layernorm_block_normalizes_in_float32(tmp_path: Path) -> None:
    report = _build(models.exported(dtype="float16", norm="layernorm"), tmp_path / "m.engine")
    assert set(report.reductions) == {"FLOAT"}


def test_sum_in_float16_is_refused_naming_the_layer(tmp_path: Path) -> None:
    # The broken twin of sums in float32: the chain without the cast to float32.
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[-1])
    mean = helper.make_node("ReduceMean", ["x", "axes"], ["y"], name="mean_of_squares", keepdims=1)
    path = models.small(tmp_path / "m.onnx", [axes, mean], dtype=TensorProto.FLOAT16)
    with pytest.raises(ExportError, match=r"layer mean_of_squares \(REDUCE\) sums in HALF, wanted FLOAT"):
        build_engine(
            path,
            tmp_path / "m.engine",
            flavour="tensorrt-rtx",
            profiles=[models.SMALL_PROFILE],
            options=QUIET,
        )
    assert not list(tmp_path.glob("*engine*"))


def test_refused_dedicated_kernel_is_built_again_decomposable(tmp_path: Path, monkeypatch) -> None:
    # In this process, so that the table can be made wrong: 320 has no dedicated kernel.
    import tensorrt_rtx as trt

    for module in (attention_kernels, attention_form):
        monkeypatch.setattr(module, "DEDICATED_WIDTHS", range(9, 1000))
    graph = models.export_into(tmp_path, head_dim=320, dtype="float16")
    request = models.request(graph, tmp_path / "m.engine")
    said: list[str] = []
    report = compile_engine(trt, engine_package.package("tensorrt-rtx"), request, None, said.append)
    assert "building again with decomposable attention" in said
    assert report.attention[0]["kernel"] == "decomposable"
    assert "the builder refused a dedicated kernel" in report.attention[0]["reason"]
    assert "built again with decomposable attention" in report.warnings[-1]
    assert report.softmax == "float16"


def test_several_profiles_and_options_go_into_one_engine(tmp_path: Path) -> None:
    folder = models.exported()
    options = EngineOptions(
        progress=False,
        tf32=True,
        optimization_level=1,
        compute_capabilities=("8.9", "12.0"),
    )
    report = build_from_onnx(
        folder / "model.onnx",
        flavour="tensorrt-rtx",
        output=tmp_path / "two.engine",
        min_shapes=["x:1x1x64", "x:1x1x64"],
        opt_shapes=["x:1x1x64", "x:1x16x64"],
        max_shapes=["x:4x1x64", "x:4x32x64"],
        options=options,
    )
    assert report.profiles == [
        {"x": [[1, 1, 64], [1, 1, 64], [4, 1, 64]]},
        {"x": [[1, 1, 64], [1, 16, 64], [4, 32, 64]]},
    ]
    assert report.tf32
    assert report.compute_capability == "compute capability 8.9, 12.0"
    assert report.file == "two.engine"
    assert EngineReport.from_dict(report.to_dict()) == report
    assert any("TF32 on; 2 profile(s)" in line for line in report.lines())


def test_tf32_flag_is_cleared_unless_asked(tmp_path: Path) -> None:
    import tensorrt_rtx as trt

    from tblock.export.engine import builder_config
    from tblock.export.engine.log import Log

    builder = trt.Builder(Log(trt).logger)
    for asked in (False, True):
        settings = builder_config.configure(
            trt,
            engine_package.package("tensorrt-rtx"),
            builder,
            models.request(tmp_path / "m.onnx", tmp_path, profiles=(), options=EngineOptions(tf32=asked)),
            None,
            None,
        )
        assert settings.config.get_flag(trt.BuilderFlag.TF32) == asked


def test_progress_goes_to_stderr(tmp_path: Path, capfd) -> None:
    _build(models.exported(), tmp_path / "m.engine", options=EngineOptions())
    out, err = capfd.readouterr()
    assert not out
    assert "tensorrt-rtx: parsing model.onnx\n" in err
    assert "tensorrt-rtx: Building engine (" in err
