"""The engine cache: found again by everything that shapes an engine, and by nothing less."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tblock.errors import ConfigError
from tblock.export.engine import builder_process, engine_cache
from tblock.export.engine import package as engine_package
from tblock.export.engine.builder import EngineOptions, build_engine
from tblock.export.engine.options import EngineRequest
from tests.export import engine_models as models

pytest.importorskip(
    "tensorrt_rtx", reason="TensorRT-RTX is not installed: pip install 'tblock[tensorrt-rtx]'"
)


def test_engine_is_found_again_until_anything_changes(tmp_path: Path) -> None:
    model = models.copied(models.exported(), tmp_path)
    cache = tmp_path / "cache"
    output = tmp_path / "m.engine"

    def build(**changed: object):
        options = {"progress": False, "cache": str(cache), **changed.pop("options", {})}
        profiles = changed.pop("profiles", [models.profile()])
        return build_engine(
            model, output, flavour="tensorrt-rtx", profiles=profiles, options=EngineOptions(**options)
        )

    first = build()
    assert (first.cached, first.caches["engine"].split()[0]) == (False, "stored")
    bytes_of_first = output.read_bytes()
    output.unlink()
    again = build()
    assert (again.cached, again.caches["engine"].split()[0]) == (True, "hit")
    assert output.read_bytes() == bytes_of_first
    assert again.file == "m.engine"
    assert again.attention == first.attention

    narrower = {"x": (*models.profile()["x"][:2], (2, 32, 64))}
    assert not build(profiles=[narrower]).cached
    assert not build(options={"tf32": True}).cached
    assert build(options={"timeout": 50.0}).cached

    data = model.with_name("weights.safetensors")
    whole = bytearray(data.read_bytes())
    whole[-1] ^= 1
    data.write_bytes(whole)
    assert not build().cached


def test_byte_of_the_builder_changed_is_another_key(tmp_path: Path) -> None:
    """The key must not be a digest of nothing: each file of the builder is in it."""
    sources = builder_process.builder_sources()
    names = {path.name for path in sources}
    package = Path(builder_process.__file__).parent
    assert {path.name for path in package.glob("*.py")} <= names
    assert {"compilation.py", "attention_kernels.py", "network.py", "contract.py"} <= names
    whole = engine_cache.digest_of_files(sources)
    for path in sources:
        changed = tmp_path / path.name
        changed.write_bytes(path.read_bytes() + b" ")
        other = [changed if source == path else source for source in sources]
        assert engine_cache.digest_of_files(other) != whole, path.name


def test_damaged_entry_is_built_again(tmp_path: Path) -> None:
    model, cache = models.exported() / "model.onnx", tmp_path / "cache"
    options = EngineOptions(progress=False, cache=str(cache))
    arguments = {"flavour": "tensorrt-rtx", "profiles": [models.profile()], "options": options}
    build_engine(model, tmp_path / "m.engine", **arguments)
    (entry,) = cache.glob("*.engine")
    for damage in (entry.read_bytes()[:100], b""):
        entry.write_bytes(damage)
        report = build_engine(model, tmp_path / "m.engine", **arguments)
        assert not report.cached
        assert report.bytes == (tmp_path / "m.engine").stat().st_size == entry.stat().st_size
    whole = entry.with_suffix(".json").read_text()
    for damaged in ("{}", "[]", "", json.dumps({**json.loads(whole), "sha256": None})):
        entry.with_suffix(".json").write_text(damaged)
        (tmp_path / "m.engine").write_bytes(b"vtrt old")
        assert engine_cache.find(cache, entry.stem, tmp_path / "m.engine") is None
        assert (tmp_path / "m.engine").read_bytes() == b"vtrt old"
    body = json.loads(whole)
    del body["sha256"]
    entry.with_suffix(".json").write_text(json.dumps(body))
    assert not build_engine(model, tmp_path / "m.engine", **arguments).cached


def test_digest_of_no_file_is_refused() -> None:
    with pytest.raises(AssertionError):
        engine_cache.digest_of_files([])


CHANGES: dict[str, dict[str, Any]] = {
    "output": {"output": "/elsewhere/e"},
    "reason": {"fusion_reason": "another"},
    "profiles": {"profiles": (models.SMALL_PROFILE,)},
    "options": {"options": EngineOptions(tf32=True)},
    "timeout": {"options": EngineOptions(timeout=7, progress=True)},
    "fusion": {"fusion": "plugin"},
    "data": {"data": ()},
    "tensorrt": {"flavour": "tensorrt"},
}
UNSHAPING = {"output", "reason", "timeout"}
"""What does not change an engine's bytes."""


@pytest.mark.parametrize("change", CHANGES)
def test_key_depends_on_what_shapes_an_engine_and_on_nothing_else(change: str) -> None:
    def key(**changes: Any) -> str:
        request = replace(models.request(models.exported() / "model.onnx", Path("/e")), **changes)
        travelled = EngineRequest.from_dict(json.loads(json.dumps(request.to_dict())))
        assert travelled == request
        found = engine_package.package(request.flavour)
        package = SimpleNamespace(__version__="1")
        return engine_cache.key(builder_process.shaped_by(package, found, None, travelled))

    assert (key() == key(**CHANGES[change])) == (change in UNSHAPING)


def test_cache_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model, output = models.copied(models.exported(), tmp_path), tmp_path / "m.engine"
    for cache, message in (
        ("file", "cannot be made"),
        ("file/x", "cannot be made"),
        ("/proc", "cannot be written"),
    ):
        options = EngineOptions(progress=False, cache=str(tmp_path / cache))
        with pytest.raises(ConfigError, match=rf"--cache .*{message}"):
            build_engine(model, output, flavour="tensorrt-rtx", profiles=[models.profile()], options=options)
    assert not output.exists()


def test_engine_stays_where_the_cache_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorrt_rtx as trt

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(engine_cache.shutil, "copyfile", full)
    request = models.request(models.exported() / "model.onnx", tmp_path / "m.engine")
    request = replace(request, options=replace(request.options, cache=str(tmp_path / "cache")))
    report = builder_process._build(trt, engine_package.package("tensorrt-rtx"), None, request)
    assert report.caches["engine"] == f"not stored in {tmp_path / 'cache'}: the disk is full"
    assert (tmp_path / "m.engine").stat().st_size == report.bytes
