"""A builder process that crashes, hangs or says nothing: one line, and no engine or process left behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tblock.errors import ExportError
from tblock.export.engine import child as engine_child
from tblock.export.engine.builder import EngineOptions, build_engine
from tests.export import engine_models as models


def _ask(code: str, timeout: float = 60.0) -> dict:
    engine_child_command = (sys.executable, "-c", code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_child, "COMMAND", engine_child_command)
        return engine_child.ask({"action": "none"}, title="tensorrt-rtx", timeout=timeout, progress=False)


SAY = "import sys; print('@tblock parsing model.onnx', file=sys.stderr, flush=True); "


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import os; print('[E] out of luck', flush=True); os.abort()",
            "ended by SIGABRT while parsing model.onnx",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "ended by SIGSEGV while parsing model.onnx",
        ),
        ("sys.exit(7)", "ended with exit code 7 while parsing model.onnx"),
        ("pass", "ended with exit code 0 while parsing model.onnx"),
    ],
    ids=["abort", "segfault", "exit", "silence"],
)
def test_child_that_dies_is_one_line(code: str, message: str) -> None:
    with pytest.raises(ExportError) as caught:
        _ask(SAY + code)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if "[E]" in code:
        assert str(caught.value).endswith("its last words: [E] out of luck")


def test_child_that_hangs_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(ExportError, match=r"no answer after 1 s while parsing model\.onnx; stopped"):
        _ask(SAY + "import time; time.sleep(600)", timeout=1)
    assert time.monotonic() - started < 30


def test_error_of_the_child_keeps_its_type() -> None:
    code = (
        "import sys, json; r = json.load(sys.stdin); "
        "open(r['response'], 'w').write(json.dumps({'error': {'type': '%s', 'message': 'no luck'}}))"
    )
    for name in ("ConfigError", "RuntimeUnavailable", "ExportError"):
        with pytest.raises(Exception, match="no luck") as caught:
            _ask(code % name)
        assert type(caught.value).__name__ == name
    with pytest.raises(ExportError, match="no luck"):
        _ask(code % "SystemExit")


def test_terminate_inside_the_parser_is_one_line(tmp_path: Path, monkeypatch) -> None:
    # The real thing: TensorRT-RTX's parser calls terminate() when it finds a creator for a fused node.
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    script = tmp_path / "worker.py"
    script.write_text(REGISTER_THEN_WORK)
    monkeypatch.setattr(engine_child, "COMMAND", (sys.executable, str(script)))
    output = tmp_path / "m.engine"
    output.write_bytes(b"old")
    with pytest.raises(
        ExportError, match=r"ended by SIGABRT while parsing model\.onnx; its last words: terminate"
    ):
        build_engine(
            models.exported() / "model.onnx",
            output,
            flavour="tensorrt-rtx",
            profiles=[models.profile()],
            options=EngineOptions(progress=False),
        )
    assert output.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.engine", "worker.py"]


def test_worker_does_not_import_torch() -> None:
    code = (
        "import sys, tblock.export.engine.worker; sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


REGISTER_THEN_WORK = """
import tensorrt_rtx as trt

class Plugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    def __init__(self):
        for base in Plugin.__mro__[1:5]:
            base.__init__(self)
        self.num_outputs = 1
        self.plugin_name, self.plugin_version, self.plugin_namespace = "TblockRMSNorm", "1", "tblock"

    def get_capability_interface(self, kind):
        return self

class Creator(trt.IPluginCreatorV3One):
    def __init__(self):
        super().__init__()
        self.name, self.plugin_version, self.plugin_namespace = "TblockRMSNorm", "1", "tblock"
        fields = [trt.PluginField("eps"), trt.PluginField("weight_offset")]
        self.field_names = trt.PluginFieldCollection(fields)

    def create_plugin(self, name, fields, phase):
        return Plugin()

creator = Creator()
trt.get_plugin_registry().register_creator(creator, "tblock")
from tblock.export.engine import worker as engine_worker
engine_worker.main()
"""
