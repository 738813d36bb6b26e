"""manifest.json: round trip, what is refused, digests, and the published schema."""

import copy
import dataclasses
import functools
import hashlib
import json
import operator
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tblock
from tblock import BlockConfig
from tblock.errors import ArtifactError
from tblock.manifest import FORMAT, NAME, Manifest, file_digest, read_artifact
from tests.manifests import SHA, manifest

ROOT = Path(tblock.__file__).parent
SCHEMA = json.loads((ROOT / "manifest.schema.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text(manifest().to_json(), encoding="utf-8")
    for name in manifest().files:
        (tmp_path / name).write_bytes(b"weights")
    return tmp_path


def signed(body: dict[str, Any]) -> str:
    """A body with the digest that the schema describes, computed here a second time."""
    body = {k: v for k, v in body.items() if k != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**body, "digest": hashlib.sha256(text.encode()).hexdigest()})


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and sign it anew."""
    body = json.loads((folder / NAME).read_text(encoding="utf-8"))
    change(body)
    (folder / NAME).write_text(signed(body), encoding="utf-8")


def test_manifest_written_reads_back_equal(folder: Path) -> None:
    assert read_artifact(folder).manifest == manifest()


def test_manifest_digest_follows_the_published_rule(folder: Path) -> None:
    body = json.loads((folder / NAME).read_text(encoding="utf-8"))
    assert json.loads(signed(body)) == body


def test_artifact_path_of_intact_file_is_given(folder: Path) -> None:
    assert read_artifact(folder).path("model.onnx") == folder / "model.onnx"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda p: p.write_bytes(b"weightz"),
            "digest mismatch, the file was changed or damaged; export again",
        ),
        (lambda p: p.write_bytes(b"weig"), "4 bytes, the manifest says 7; export again"),
        (lambda p: p.write_bytes(b""), "0 bytes, the manifest says 7; export again"),
        (lambda p: p.unlink(), "missing; copy the whole artifact folder, or export again"),
    ],
    ids=["changed", "cut", "empty", "missing"],
)
def test_artifact_path_of_damaged_file_names_it(folder: Path, damage: Any, message: str) -> None:
    damage(folder / "model.onnx")
    artifact = read_artifact(folder)
    with pytest.raises(ArtifactError) as caught:
        artifact.path("model.onnx")
    assert str(caught.value) == f"{folder / 'model.onnx'}: {message}"


def test_artifact_path_of_a_file_the_manifest_does_not_list_is_refused(folder: Path) -> None:
    (folder / "other.pt2").write_bytes(b"code")
    with pytest.raises(ArtifactError, match=r"the manifest lists no file 'other\.pt2'"):
        read_artifact(folder).path("other.pt2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(format="2.0"), f"format 2.0, this tblock reads {FORMAT}; use a newer tblock"),
        (lambda b: b.update(format="0.9"), f"format 0.9, this tblock reads {FORMAT}; use a newer tblock"),
        (lambda b: b.pop("format"), "not a tblock manifest (no format)"),
        (lambda b: b.update(format=1), "not a tblock manifest (no format)"),
        (lambda b: b.pop("dtype"), "dtype: missing; export again"),
        (lambda b: b.update(ranges=[1]), "ranges: got [1], wanted object; export again"),
        (lambda b: b["ranges"].update(B=[4, 2, 1]), "entry missing or of the wrong kind"),
        (lambda b: b["inputs"].append("x"), "inputs[2]: got 'x', wanted object; export again"),
        (lambda b: b["configs"][0].update(num_kv_heads=3), "num_kv_heads=3: must divide num_heads=4"),
        (lambda b: b.update(targets=[]), "targets: got [], wanted object"),
        (lambda b: b.update(configs=[]), "configs: got 0 entries, wanted 1"),
        (lambda b: b["source"].update(layers=None), "source.layers: got None, wanted array"),
        (lambda b: b.update(parameters="x"), "parameters: got 'x', wanted integer"),
        (lambda b: b["verdicts"]["onnxruntime"].update(error="x"), "error: got 'x', wanted number or null"),
        (
            lambda b: b["targets"]["onnx"].update(files=["a"]),
            "targets.onnx.files: 'a' is not in the manifest",
        ),
        (lambda b: b["files"].update({"../x": {}}), "files.../x: got '../x', wanted text like"),
        (lambda b: b["inputs"][0].update(dims=["P", 64]), "x: dims: 'P' is not in the manifest"),
        (lambda b: b.update(dtype="int4"), "dtype: got 'int4', wanted one of float32, float16, bfloat16"),
        (lambda b: b["ranges"].update(B=[True, 2, 3]), "ranges.B[0]: got True, wanted integer"),
    ],
    ids=[
        "newer",
        "older",
        "no-format",
        "number",
        "no-dtype",
        "ranges",
        "order",
        "input",
        "config",
        "targets",
        "no-configs",
        "layers",
        "text",
        "verdict",
        "file",
        "path",
        "letter",
        "dtype",
        "bool",
    ],
)
def test_manifest_signed_but_wrong_is_one_line(folder: Path, change: Any, message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(folder)
    assert str(caught.value).startswith(f"{folder / NAME}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def of_a_newer_minor(body: dict[str, Any]) -> None:
    body.update(format="1.7", invented={"later": True})
    body["configs"][1]["sink_dim"] = 4
    body["targets"]["onnx"]["later"] = 1
    body["outputs"][0]["scale"] = 0.5


def test_manifest_of_a_newer_minor_with_unknown_fields_is_read_and_says_so(folder: Path) -> None:
    rewrite(folder, of_a_newer_minor)
    found = read_artifact(folder).manifest
    assert found.configs == manifest().configs
    assert found.unread == ("sink_dim",)
    assert found.notes[-1] == f"format 1.7 is newer than {FORMAT}: config sink_dim not read"


def test_unknown_config_field_of_our_own_minor_is_damage(folder: Path) -> None:
    rewrite(folder, lambda body: body["configs"][1].update(sink_dim=4))
    with pytest.raises(ArtifactError, match="unknown field 'sink_dim'"):
        read_artifact(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no manifest.json in it; make an artifact with `tblock export ... -o "),
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[]", "not a tblock manifest (no format)"),
        ("[" * 100_000, "cannot be read as JSON (nested too deep)"),
        ('{"format": "1.1", "tblock": "\\ud800"}', "cannot be read as JSON ('utf-8' codec can't encode"),
    ],
    ids=["none", "empty", "cut", "list", "deep", "surrogate"],
)
def test_manifest_unreadable_says_so(folder: Path, content: str | None, message: str) -> None:
    (folder / NAME).unlink()
    if content is not None:
        (folder / NAME).write_text(content)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def test_pipe_in_the_manifests_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_artifact(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_any_value_at_any_place_is_read_or_refused(folder: Path, seed: int) -> None:
    """Every entry becomes every kind of value; a line of inspect needs no more than what was checked."""
    from tblock.cli.inspect import run

    values = [None, -1, 10**30, 1.5, "x", [], {}, True, [[]], "a\nb", {"a": 1}]
    body = json.loads((folder / NAME).read_text(encoding="utf-8"))
    places = [p for p in places_of(body) if p[0] not in ("digest", "configs") or len(p) < 4]
    refused = 0
    for at, place in enumerate(places):
        changed = copy.deepcopy(body)
        part = functools.reduce(operator.getitem, place[:-1], changed)
        part[place[-1]] = values[(at + seed) % len(values)]
        (folder / NAME).write_text(signed(changed), encoding="utf-8")
        try:
            run(folder, json=False)
        except ArtifactError:
            refused += 1
    assert refused > len(places) / 3


def places_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every entry below."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in inner for place in [(*at, key), *places_of(part, (*at, key))]]


def test_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder; make an artifact with"):
        read_artifact(tmp_path / "nothing")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Manifest)])
def test_manifest_field_changed_without_signing_is_a_digest_mismatch(folder: Path, field: str) -> None:
    body = json.loads((folder / NAME).read_text(encoding="utf-8"))
    body[field] = "changed"
    (folder / NAME).write_text(json.dumps(body))
    with pytest.raises(
        ArtifactError, match="digest mismatch, the manifest was changed or damaged; export again"
    ):
        read_artifact(folder)


def test_file_digest_is_sha256_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(range(256)) * 5000)
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_schema_is_valid_and_shipped_in_the_package() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    pyproject = ROOT.parent / "pyproject.toml"
    if pyproject.exists():
        data = tomllib.loads(pyproject.read_text())["tool"]["setuptools"]["package-data"]
        assert "*.json" in data["tblock"]


def test_schema_takes_a_manifest() -> None:
    jsonschema.validate(json.loads(manifest().to_json()), SCHEMA)


def test_schema_names_every_field_of_config_and_manifest() -> None:
    assert set(SCHEMA["$defs"]["config"]["required"]) == {f.name for f in dataclasses.fields(BlockConfig)}
    assert set(SCHEMA["$defs"]["config"]["properties"]) == {f.name for f in dataclasses.fields(BlockConfig)}
    written = {f.name for f in dataclasses.fields(Manifest)} - {"unread"}
    assert set(SCHEMA["required"]) == written | {"format", "digest"}


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no-digest": lambda b: b.pop("digest"),
    "short-digest": lambda b: b.update(digest="abc"),
    "other-major": lambda b: b.update(format="2.0"),
    "unknown-dtype": lambda b: b.update(dtype="float8"),
    "no-configs": lambda b: b.update(configs=[]),
    "config-field-missing": lambda b: b["configs"][0].pop("rope_base"),
    "config-field-of-wrong-kind": lambda b: b["configs"][0].update(causal="yes"),
    "file-outside-the-folder": lambda b: b["files"].update({"../x": {"size": 1, "sha256": SHA}}),
    "file-without-size": lambda b: b["files"]["model.onnx"].pop("size"),
    "weights-not-listed": lambda b: b["files"].pop("weights.safetensors"),
    "unknown-target": lambda b: b["targets"].update(tflite={"files": ["m"]}),
    "target-without-files": lambda b: b["targets"]["onnx"].pop("files"),
    "onnx-without-opset": lambda b: b["targets"]["onnx"].pop("opset"),
    "range-of-two": lambda b: b["ranges"].update(B=[1, 2]),
    "unknown-letter": lambda b: b["inputs"][0].update(dims=["Q"]),
    "verdict-unknown": lambda b: b["verdicts"]["onnxruntime"].update(status="FINE"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_schema_refuses_a_broken_twin(name: str) -> None:
    body = copy.deepcopy(json.loads(manifest().to_json()))
    BROKEN[name](body)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, SCHEMA)
