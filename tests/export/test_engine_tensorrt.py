"""The way of the package `tensorrt`, which needs a GPU: a stand-in for the builder, fakes for the numbers.

The stand-in is tensorrt_rtx under the name `tensorrt` with a made-up GPU: it shows that the shared API takes
the calls. That TensorRT itself takes them, and any plugin layer, is NOT executed here.
"""

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tblock.errors import ConfigError, ExportError, RuntimeUnavailable
from tblock.export.engine import choice as engine_choice
from tblock.export.engine import package as engine_package
from tblock.export.engine.builder import EngineOptions, EngineReport, Trial, build_engine
from tests.export import engine_models as models

STAND_IN = """
import sys, types, warnings
import tensorrt_rtx
warnings.simplefilter("ignore")
stand_in = types.ModuleType("tensorrt")
stand_in.__dict__.update({name: getattr(tensorrt_rtx, name) for name in dir(tensorrt_rtx)})
stand_in.__version__ = "10.15.1"
sys.modules["tensorrt"] = stand_in
from tblock import machine
from tblock.export.engine import builder_process
builder_process.gpu_or_none = lambda: DEVICE
builder_process.main()
"""
GPU = 'machine.Gpu("NVIDIA Test", "9.0", "13.0")'


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch) -> None:
    """`tensorrt` counts as installed and is tensorrt_rtx in the child."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("TensorRT-RTX is not installed: pip install 'tblock[tensorrt-rtx]'")
    _pretend(tmp_path, monkeypatch, GPU)


def _pretend(tmp_path: Path, monkeypatch, device: str) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "stand_in.py").write_text(STAND_IN.replace("DEVICE", device))
    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    monkeypatch.setattr(engine_choice, "WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]))


def _build(tmp_path: Path, judge=None, **options) -> EngineReport:
    return build_engine(
        models.exported() / "model.onnx",
        tmp_path / "m.engine",
        flavour="tensorrt",
        profiles=[models.profile()],
        options=EngineOptions(progress=False, **options),
        judge=judge,
    )


@pytest.mark.usefixtures("stand_in")
def test_native_engine_has_a_timing_cache_and_names_the_device(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = {"fusion": "native", "cache": str(cache), "hardware_compatibility": "ampere_plus"}
    report = _build(tmp_path, **options)
    assert (report.flavour, report.builder, report.fusion) == ("tensorrt", "10.15.1", "native")
    assert report.fusion_reason == "asked for; the plugin library is not loaded"
    assert report.compute_capability == "hardware compatible: ampere_plus"
    assert report.device == "NVIDIA Test, compute capability 9.0, driver CUDA 13.0"
    assert report.caches["timing"] == "timing-10.15.1-NVIDIA_Test-9.0.cache"
    assert (cache / report.caches["timing"]).stat().st_size > 0
    assert _build(tmp_path, **options).cached
    # A second engine reads the timing cache of the first.
    assert not _build(tmp_path, **{**options, "tf32": True}).cached


@pytest.mark.usefixtures("stand_in")
def test_auto_without_a_library_or_a_judge_builds_native_and_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine_choice, "default_library", lambda: None)
    assert _build(tmp_path).fusion_reason.startswith(
        "auto: no plugin library found, so only native could be built"
    )
    library = tmp_path / "lib.so"
    library.write_bytes(b"")
    assert "nothing here can run the engines" in _build(tmp_path, plugin_library=str(library)).fusion_reason


@pytest.mark.usefixtures("stand_in")
def test_auto_keeps_native_where_the_plugin_cannot_be_built(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"no library")
    report = _build(tmp_path, lambda path, report: Trial(True, 0.5, "fine"), plugin_library=str(library))
    assert (report.fusion, report.executed) == ("native", True)
    assert report.fusion_reason.startswith(
        "auto: native kept at 0.5 ms; plugin failed: tensorrt 10.15.1: the plugin"
    )
    assert [t["correct"] for t in report.trials] == [True, False]
    assert report.trials[1]["milliseconds"] is None
    assert sorted(p.name for p in tmp_path.glob("*engine*")) == ["m.engine"]


@pytest.mark.usefixtures("stand_in")
def test_plugin_that_cannot_be_had_is_an_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine_choice, "default_library", lambda: None)
    with pytest.raises(ExportError, match="--fusion plugin: no plugin library found; tblock plugin build"):
        _build(tmp_path, fusion="plugin")
    library = tmp_path / "lib.so"
    library.write_bytes(b"no library")
    with pytest.raises(ExportError, match=r"tensorrt 10\.15\.1: the plugin library .*lib\.so does not load"):
        _build(tmp_path, fusion="plugin", plugin_library=str(library))


@pytest.mark.usefixtures("stand_in")
def test_compute_capabilities_are_for_the_other_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compute_capabilities: only TensorRT-RTX builds for named GPUs"):
        _build(tmp_path, compute_capabilities=("9.0",))


def test_machine_without_a_gpu_is_told_what_builds_without_one(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    _pretend(tmp_path, monkeypatch, "None")
    with pytest.raises(RuntimeUnavailable) as caught:
        _build(tmp_path)
    assert str(caught.value) == (
        "tensorrt: TensorRT needs an NVIDIA GPU to build, none was found; tensorrt-rtx builds without one"
    )


BLANK = EngineReport(
    **dict.fromkeys(
        (
            "flavour",
            "builder",
            "file",
            "fusion",
            "fusion_reason",
            "compute_capability",
            "softmax",
            "softmax_reason",
        ),
        "",
    ),
    **dict.fromkeys(("seconds", "bytes", "opset", "ir_version", "plugin_layers"), 0),
    **{name: {} for name in ("layers", "reductions", "fused", "caches")},
    **{name: [] for name in ("attention", "profiles")},
    **dict.fromkeys(("tf32", "version_compatible"), False),
    hardware_compatibility="none",
    device=None,
)


@pytest.fixture
def fake_builder(tmp_path: Path, monkeypatch) -> Path:
    """A builder that writes the name of the fusion as the engine; returns a plugin library."""

    def ask(module: str, request: dict, **_: object) -> dict:
        Path(request["output"]).write_text(request["fusion"])
        report = replace(BLANK, fusion=request["fusion"], fusion_reason=request["fusion_reason"])
        return {"report": report.to_dict()}

    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    monkeypatch.setattr(engine_choice, "ask", ask)
    library = tmp_path / "lib.so"
    library.write_bytes(b"")
    return library


@pytest.mark.parametrize(
    ("native", "plugin", "kept", "reason"),
    [
        (
            Trial(True, 2.0, ""),
            Trial(True, 1.0, ""),
            "plugin",
            "auto: native 2 ms, plugin 1 ms inside the whole",
        ),
        (
            Trial(True, 1.0, ""),
            Trial(True, 2.0, ""),
            "native",
            "auto: native 1 ms, plugin 2 ms inside the whole",
        ),
        # The broken twin: faster and wrong is not kept.
        (
            Trial(True, 2.0, ""),
            Trial(False, 1.0, "off by 7"),
            "native",
            "native kept at 2 ms; plugin failed: off by 7",
        ),
        (Trial(False, 1.0, "NaN"), Trial(True, 2.0, ""), "plugin", "plugin kept at 2 ms; native failed: NaN"),
    ],
    ids=["plugin-faster", "native-faster", "plugin-wrong", "native-wrong"],
)
def test_auto_keeps_the_faster_correct_engine_and_both_numbers(
    native: Trial, plugin: Trial, kept: str, reason: str, tmp_path: Path, fake_builder: Path
) -> None:
    trials = {"native": native, "plugin": plugin}

    def judge(path: Path, report: EngineReport) -> Trial:
        assert (report.file, report.fusion) == (path.name, path.read_text())
        return trials[report.fusion]

    report = _build(tmp_path, judge, plugin_library=str(fake_builder))
    assert report.fusion == kept == (tmp_path / "m.engine").read_text()
    assert reason in report.fusion_reason
    assert [(t["fusion"], t["milliseconds"]) for t in report.trials] == [
        ("native", native.milliseconds),
        ("plugin", plugin.milliseconds),
    ]
    assert sorted(os.listdir(tmp_path)) == ["lib.so", "m.engine"]


def test_auto_with_no_correct_engine_is_an_error(tmp_path: Path, fake_builder: Path) -> None:
    with pytest.raises(ExportError, match="no engine is right on the golden data: native: bad; plugin: bad"):
        _build(tmp_path, lambda path, report: Trial(False, 1.0, "bad"), plugin_library=str(fake_builder))
    assert os.listdir(tmp_path) == ["lib.so"]


def test_auto_that_cannot_be_judged_keeps_native_and_says_why(tmp_path: Path, fake_builder: Path) -> None:
    trial = Trial(False, float("inf"), "no golden data", judged=False)
    report = _build(tmp_path, lambda path, report: trial, plugin_library=str(fake_builder))
    assert report.fusion == (tmp_path / "m.engine").read_text() == "native"
    assert report.fusion_reason == "auto: native kept, nothing could be compared: no golden data"
    assert (report.file, report.executed, report.trials) == ("m.engine", False, [])
    assert sorted(os.listdir(tmp_path)) == ["lib.so", "m.engine"]


@pytest.mark.parametrize("fusion", ["native", "plugin", "auto"])
def test_plugin_library_that_is_not_there_is_refused(fusion: str, tmp_path: Path, fake_builder: Path) -> None:
    for flavour in ("tensorrt", "tensorrt-rtx"):
        with pytest.raises(ConfigError, match=r"--plugin-library /no/such\.so: no such file; tblock plugin"):
            build_engine(
                models.exported() / "model.onnx",
                tmp_path / "m.engine",
                flavour=flavour,  # type: ignore[arg-type]
                profiles=[models.profile()],
                options=EngineOptions(fusion=fusion, plugin_library="/no/such.so"),  # type: ignore[arg-type]
            )


def test_plugin_library_on_rtx_is_reported_unused(tmp_path: Path, fake_builder: Path) -> None:
    report = build_engine(
        models.exported() / "model.onnx",
        tmp_path / "m.engine",
        flavour="tensorrt-rtx",
        profiles=[models.profile()],
        options=EngineOptions(plugin_library=str(fake_builder)),
    )
    assert report.fusion_reason.endswith(f"only native exists; --plugin-library {fake_builder} is unused")


def test_graph_without_fused_nodes_needs_no_library(tmp_path: Path, fake_builder: Path) -> None:
    from onnx import helper

    path = models.small(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    arguments = {"flavour": "tensorrt", "profiles": [models.SMALL_PROFILE]}
    assert "no fused nodes" in build_engine(path, tmp_path / "e", **arguments).fusion_reason
    with pytest.raises(ConfigError, match=r"--fusion plugin: m\.onnx has no fused nodes"):
        build_engine(path, tmp_path / "f", options=EngineOptions(fusion="plugin"), **arguments)
