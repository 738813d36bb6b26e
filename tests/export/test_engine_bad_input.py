"""A wrong file, profile or option: one line that says what, before any builder is asked."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tblock import preset
from tblock.errors import ArtifactError, ConfigError, ExportError, RuntimeUnavailable, TblockError
from tblock.export.engine import (
    choice as engine_choice,
)
from tblock.export.engine import (
    limits as engine_limits,
)
from tblock.export.engine import (
    package as engine_package,
)
from tblock.export.engine import (
    profiles as engine_profiles,
)
from tblock.export.engine.builder import EngineOptions, build_engine, build_from_onnx
from tblock.manifest import Manifest, TensorSpec, file_digest
from tblock.ranges import Range
from tests.export import engine_models as models

QUIET = EngineOptions(progress=False)
SHAPES = {"min_shapes": "x:1x1x64", "opt_shapes": "x:1x16x64", "max_shapes": "x:4x32x64"}
RELU = helper.make_node("Relu", ["x"], ["y"])


@pytest.fixture
def no_builder(monkeypatch):
    """The package counts as installed, and asking the builder fails the test."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the builder was asked")

    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    monkeypatch.setattr(engine_choice, "ask", refuse)


def _line(kind: type[TblockError], path: Path, **arguments: object) -> str:
    with pytest.raises(kind) as caught:
        build_from_onnx(path, **{"flavour": "tensorrt-rtx", "options": QUIET, **SHAPES, **arguments})
    assert "\n" not in str(caught.value)
    assert not list(path.parent.glob("*.engine"))
    return str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole exported block that the test may damage."""
    return models.copied(models.exported(), tmp_path)


@pytest.mark.usefixtures("no_builder")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "m.onnx: empty, not an ONNX model"),
        (b"hello, this is text\n" * 40, "m.onnx: not an ONNX model"),
        (b"PK\x03\x04" + bytes(400), "m.onnx: not an ONNX model"),
        (b"vtrt" + bytes(400), "m.onnx: not an ONNX model"),
        (json.dumps({"a": 1}).encode(), "m.onnx: not an ONNX model"),
    ],
    ids=["empty", "text", "zip", "engine", "json"],
)
def test_file_that_is_not_onnx_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert message in _line(ArtifactError, path)


@pytest.mark.usefixtures("no_builder")
def test_missing_file_is_named(tmp_path: Path) -> None:
    assert _line(ArtifactError, tmp_path / "m.onnx").startswith(f"{tmp_path}/m.onnx: no such ONNX file")
    assert "is a folder, wanted an .onnx file" in _line(ArtifactError, tmp_path)


@pytest.mark.usefixtures("no_builder")
def test_damaged_graph_is_named(model: Path) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    assert f"{model}: not an ONNX model, or damaged" in _line(ArtifactError, model)
    broken = onnx.ModelProto.FromString(whole)
    broken.graph.node[3].input[0] = "nothing_makes_this"
    model.write_bytes(broken.SerializeToString())
    assert f"{model}: damaged, the ONNX checker refuses it" in _line(ArtifactError, model)


@pytest.mark.usefixtures("no_builder")
def test_external_data_that_is_missing_or_cut_is_named(model: Path) -> None:
    data = model.with_name("weights.safetensors")
    whole = data.read_bytes()
    data.write_bytes(whole[:1000])
    line = _line(ArtifactError, model)
    assert line.startswith(f"{data}: truncated: 1000 bytes, ")
    data.unlink()
    assert "its external data weights.safetensors is missing" in _line(ArtifactError, model)


@pytest.mark.usefixtures("no_builder")
def test_external_data_elsewhere_is_refused(model: Path) -> None:
    graph = onnx.ModelProto.FromString(model.read_bytes())
    entry = next(e for t in graph.graph.initializer for e in t.external_data if e.key == "location")
    entry.value = "../weights.safetensors"
    model.write_bytes(graph.SerializeToString())
    assert "is at '../weights.safetensors', wanted a bare file name" in _line(ArtifactError, model)


@pytest.mark.usefixtures("no_builder")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"min_shapes": "x:1x17x64"}, "input x axis 1 (S): min 17, opt 16, max 32: wanted min <= opt <= max"),
        ({"opt_shapes": "x:5x16x64"}, "input x axis 0 (B): min 1, opt 5, max 4: wanted min <= opt <= max"),
        ({"max_shapes": "x:4x8x64"}, "input x axis 1 (S): min 1, opt 16, max 8: wanted min <= opt <= max"),
        ({"max_shapes": "x:4x32x65"}, "input x axis 2: min 64, opt 64, max 65: it is 64 in the graph"),
        ({"max_shapes": "x:4x32"}, "input x: max 4x32 has 2 axes, the graph's BxSx64 has 3"),
        ({"max_shapes": "x:4x32x64,z:1"}, "input z: --minShapes is missing; give all of --minShapes, --opt"),
        ({"max_shapes": None}, "input x: --maxShapes is missing; give all of"),
        ({"max_shapes": None, "opt_shapes": None}, "input x: --optShapes is missing; give all of"),
        ({"min_shapes": None, "opt_shapes": None}, "input x: --minShapes is missing; give all of"),
        ({"max_shapes": "x=4x32x64"}, "--maxShapes 'x=4x32x64': 'x=4x32x64' is not NAME:AxBxC"),
        ({"max_shapes": "x:-1x32x64"}, "--maxShapes 'x:-1x32x64': 'x:-1x32x64' is not NAME:AxBxC"),
        ({"max_shapes": ["x:4x32x64"] * 2}, "--minShapes 1 times, --optShapes 1 times, --maxShapes 2 times"),
        (dict.fromkeys(SHAPES, ""), "input x BxSx64: dynamic and without a profile; give --minShapes"),
        (dict.fromkeys(SHAPES, "z:1x1x64"), "input z: the graph has no such input; it has x"),
        ({"output": "/no/such/folder/m.engine"}, "/no/such/folder/m.engine: no such folder /no/such/folder"),
        ({"output": "/proc/m.engine"}, "/proc/m.engine: the folder /proc cannot be written (No such file"),
        ({"output": "/proc"}, "/proc: is a folder, wanted a path for a file"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()),
)
def test_wrong_profile_names_input_and_axis(changed: dict, message: str, model: Path) -> None:
    assert message in _line(ConfigError, model, **changed)


def test_missing_profile_names_the_input() -> None:
    inputs = {"x": ("B", "S", 64), "padding_mask": ("B", "S"), "fixed": (3,)}
    with pytest.raises(ConfigError, match=r"^input padding_mask BxS: no shapes given"):
        engine_profiles.check_profiles([models.profile()], inputs)
    different = {**models.profile(), "padding_mask": ((1, 1), (1, 16), (4, 33))}
    with pytest.raises(ConfigError, match=r"input padding_mask axis 1 \(S\): 1/16/33, input x has 1/16/32"):
        engine_profiles.check_profiles([different], inputs)
    engine_profiles.check_profiles([models.profile(masked=True)], inputs)


def _manifest(folder: Path) -> Manifest:
    names = ("model.onnx", "weights.safetensors")
    files = {n: {"size": (folder / n).stat().st_size, "sha256": file_digest(folder / n)} for n in names}
    return Manifest(
        tblock="0",
        created="2026-01-02T03:04:05Z",
        tools={},
        source={"kind": "config", "name": "", "layers": [0, 1]},
        configs=(preset("tiny"),),
        dtype="float32",
        parameters=1,
        inputs=(TensorSpec(name="x", dims=("B", "S", 64), dtype="float32"),),
        outputs=(TensorSpec(name="y", dims=("B", "S", 64), dtype="float32"),),
        ranges={"B": Range(1, 1, 4), "S": Range(1, 16, 32)},
        targets={},
        files=files,
    )


@pytest.mark.usefixtures("no_builder")
def test_profile_outside_the_manifest_is_refused(model: Path) -> None:
    (model.parent / "manifest.json").write_text(_manifest(model.parent).to_json())
    line = _line(ConfigError, model, max_shapes="x:4x64x64")
    assert "input x axis 1 (S): 1 .. 64 is outside the manifest's 1 .. 32" in line
    with model.with_name("weights.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert "weights.safetensors: digest mismatch" in _line(ArtifactError, model)


def test_parse_shapes_reads_trtexec_spelling() -> None:
    read = engine_profiles.parse_shapes("x:1x16x64,padding_mask:1x16, a:b:2", "--minShapes")
    assert read == {"x": (1, 16, 64), "padding_mask": (1, 16), "a:b": (2,)}
    with pytest.raises(ConfigError, match="input x is given twice"):
        engine_profiles.parse_shapes("x:1,x:2", "--minShapes")
    assert engine_profiles.from_flags([], ["x:1x2"], []) == [{"x": ((1, 2), (1, 2), (1, 2))}]


@pytest.mark.parametrize(
    ("opset", "ir_version", "message"),
    [
        (26, 10, r"m\.onnx: opset 26, tensorrt-rtx [\d.]+ reads up to opset 25; export with a lower --opset"),
        (23, 14, r"m\.onnx: IR version 14, tensorrt-rtx [\d.]+ reads up to IR version 13"),
    ],
)
def test_opset_or_ir_above_the_table_names_both(
    opset: int, ir_version: int, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    path = models.small(tmp_path / "m.onnx", [RELU], opset=opset, ir_version=ir_version)
    with pytest.raises(ExportError, match=message):
        build_engine(
            path, tmp_path / "e", flavour="tensorrt-rtx", profiles=[models.SMALL_PROFILE], options=QUIET
        )


@pytest.mark.parametrize(
    ("flavour", "version", "opset"),
    [
        ("tensorrt", "10.13.3.9", 22),
        ("tensorrt", "10.14.1", 23),
        ("tensorrt", "10.15.1", 24),
        ("tensorrt", "11.0", 24),
        ("tensorrt", "11.5.0", 25),
        ("tensorrt-rtx", "1.7.1.116", 25),
    ],
)
def test_limit_table_has_a_row_for_each_version(flavour: str, version: str, opset: int) -> None:
    assert engine_limits.limit_of(flavour, version).opset == opset
    engine_limits.check("m.onnx", opset, 10, flavour, version)
    with pytest.raises(
        ExportError, match=f"opset {opset + 1}, {flavour} {version} reads up to opset {opset}"
    ):
        engine_limits.check("m.onnx", opset + 1, 10, flavour, version)


def test_limit_table_refuses_versions_before_it() -> None:
    with pytest.raises(ExportError, match=r"tensorrt 10\.3\.0: too old; tblock needs 10\.13 or later"):
        engine_limits.limit_of("tensorrt", "10.3.0")


@pytest.mark.parametrize("flag", ["fp16", "BF16", "--fp16", "int8", "best"])
def test_precision_flag_is_explained(flag: str) -> None:
    with pytest.raises(
        ConfigError, match=f"builder flag {flag}: the network is strongly typed, its dtypes come"
    ):
        EngineOptions(builder_flags=(flag,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "both"}, "--fusion both: known: plugin, native, auto"),
        ({"hardware_compatibility": "all"}, "hardware_compatibility=all: known: none, ampere_plus"),
        ({"optimization_level": 6}, "optimization_level=6: must be 0 .. 5"),
        ({"timeout": 0}, "timeout=0: must be above 0"),
        (
            {"builder_flags": ("STRIP_PLAN",)},
            "STRIP_PLAN: an engine is written with its weights",
        ),
        ({"builder_flags": ("noTF32",)}, "builder flag noTF32: TF32 is off unless asked for"),
    ],
)
def test_option_that_makes_no_sense_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineOptions(**options)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"fusion": "plugin"}, ConfigError, "--fusion plugin: TensorRT-RTX has no plugin layers"),
        ({"version_compatible": True}, ConfigError, "TensorRT-RTX has no version-compatible engines"),
        ({"hardware_compatibility": "ampere_plus"}, ConfigError, "TensorRT-RTX engines are portable"),
    ],
)
def test_option_of_the_other_package_is_explained(options: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        engine_package.check_options(engine_package.package("tensorrt-rtx"), EngineOptions(**options), None)


def test_options_of_this_version_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    path = models.small(tmp_path / "m.onnx", [RELU])
    for options, message in (
        (
            {"compute_capabilities": ("9.0",)},
            "compute capability 9.0: TensorRT-RTX .* builds for 7.5, 8.0, 8.6",
        ),
        ({"builder_flags": ("FASTER",)}, "builder flag FASTER: TensorRT-RTX .* has: DEBUG, "),
    ):
        with pytest.raises(ConfigError, match=message):
            build_engine(
                path,
                tmp_path / "e",
                flavour="tensorrt-rtx",
                profiles=[models.SMALL_PROFILE],
                options=EngineOptions(progress=False, **options),
            )


def test_node_the_parser_does_not_know_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    node = helper.make_node("Nonsense", ["x"], ["y"], name="odd", domain="tblock")
    path = models.small(tmp_path / "m.onnx", [node])
    with pytest.raises(ExportError, match=r"parser refuses m\.onnx at Nonsense node 'odd'"):
        build_engine(
            path, tmp_path / "e", flavour="tensorrt-rtx", profiles=[models.SMALL_PROFILE], options=QUIET
        )


def test_package_that_is_not_installed_names_the_extra(model: Path, monkeypatch) -> None:
    monkeypatch.setattr(engine_package, "installed", lambda found: False)
    for flavour, module in (("tensorrt", "tensorrt"), ("tensorrt-rtx", "tensorrt_rtx")):
        line = _line(RuntimeUnavailable, model, flavour=flavour)
        assert line == (
            f"{flavour}: Python package {module} is not installed; pip install 'tblock[{flavour}]'"
        )
    assert "engines can be built for: tensorrt, tensorrt-rtx" in _line(ConfigError, model, flavour="openvino")


@pytest.mark.usefixtures("no_builder")
@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            helper.make_node("Attention", ["x", "x", "x", "", "", "", "x"], ["y"], name="a"),
            "Attention a uses nonpad_kv_seqlen, which TensorRT's parser drops silently",
        ),
        (
            helper.make_node("Attention", ["x", "x", "x", "", "x", "x"], ["y"], name="a", is_causal=1),
            "Attention a is causal with past inputs, which TensorRT's parser aligns upper-left",
        ),
        (
            helper.make_node("Attention", ["x", "x", "x", "x"], ["y"], name="a", is_causal=1),
            "Attention a has a mask and is_causal, TensorRT takes only one",
        ),
    ],
    ids=["lengths", "past", "mask"],
)
def test_attention_that_the_parser_would_bend_is_refused(
    node: onnx.NodeProto, message: str, tmp_path: Path
) -> None:
    path = models.small(tmp_path / "m.onnx", [node], opset=24)
    assert message in _line(ExportError, path)


def test_engine_that_cannot_be_put_in_place_is_one_line(model: Path, monkeypatch) -> None:
    output = model.with_name("m.engine")

    def ask(module: str, request: dict, **_: object) -> dict:
        Path(request["output"]).write_bytes(b"whole")
        output.mkdir()  # came while the engine was built
        return {}

    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    monkeypatch.setattr(engine_choice, "ask", ask)
    with pytest.raises(ExportError, match=r"m\.engine: Is a directory; nothing was changed$"):
        build_from_onnx(model, flavour="tensorrt-rtx", output=output, options=QUIET, **SHAPES)
    assert not list(model.parent.glob(".*part"))


@pytest.mark.parametrize("name", ["m.onnx", "weights.safetensors", "notes"])
def test_file_that_is_no_engine_is_not_replaced(model: Path, name: str, monkeypatch) -> None:
    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    output = model.with_name(name)
    output = model if name == "m.onnx" else output
    if not output.exists():
        output.write_text("mine")
    before = output.read_bytes()
    with pytest.raises(
        ConfigError, match=f"--output {output}: is there and is no engine; it is not replaced"
    ):
        build_from_onnx(model, flavour="tensorrt-rtx", output=output, options=QUIET, **SHAPES)
    assert output.read_bytes() == before


def test_engine_that_is_there_survives_a_failed_build(model: Path, monkeypatch) -> None:
    def fail(module: str, request: dict, **_: object) -> dict:
        Path(request["output"]).write_bytes(b"half")
        raise ExportError("no luck")

    monkeypatch.setattr(engine_package, "installed", lambda found: True)
    monkeypatch.setattr(engine_choice, "ask", fail)
    output = model.with_name("m.engine")
    output.write_bytes(b"vtrt old")
    before = sorted(p.name for p in model.parent.iterdir())
    with pytest.raises(ExportError, match="no luck"):
        build_from_onnx(model, flavour="tensorrt-rtx", output=output, options=QUIET, **SHAPES)
    assert output.read_bytes() == b"vtrt old"
    assert sorted(p.name for p in model.parent.iterdir()) == before
    shutil.rmtree(model.parent)
