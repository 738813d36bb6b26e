"""The builder process, for real: an abort inside the parser is one line, a full disk is named."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tblock.errors import ExportError
from tblock.export.engine import builder_process
from tblock.export.engine import choice as engine_choice
from tblock.export.engine.builder import EngineOptions, build_engine
from tests.export import engine_models as models


def test_terminate_inside_the_parser_is_one_line(tmp_path: Path, monkeypatch) -> None:
    # The real thing: TensorRT-RTX's parser calls terminate() when it finds a creator for a fused node.
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    (tmp_path / "registering_worker.py").write_text(REGISTER_THEN_WORK)
    monkeypatch.setattr(engine_choice, "WORKER", "registering_worker")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    output = tmp_path / "m.engine"
    output.write_bytes(b"vtrt old")
    with pytest.raises(
        ExportError, match=r"killed by SIGABRT while parsing model\.onnx; its last words: terminate"
    ):
        build_engine(
            models.exported() / "model.onnx",
            output,
            flavour="tensorrt-rtx",
            profiles=[models.profile()],
            options=EngineOptions(progress=False),
        )
    assert output.read_bytes() == b"vtrt old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.engine", "registering_worker.py"]


def test_builder_process_does_not_import_torch() -> None:
    code = (
        "import sys, tblock.export.engine.builder_process\n"
        "sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_full_disk_names_the_folder(tmp_path: Path, monkeypatch) -> None:
    """What the builder writes with says only that there is no space."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(builder_process, "_build", full)
    monkeypatch.setattr(builder_process.engine_package, "load", lambda found: None)
    monkeypatch.setattr(builder_process.EngineRequest, "from_dict", lambda job: None)
    with pytest.raises(
        ExportError, match=r"^tensorrt-rtx: the disk is full; the engine was to be written to /out$"
    ):
        builder_process.run({"flavour": "tensorrt-rtx", "output": "/out/m.engine"})


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
from tblock.export.engine import builder_process
builder_process.main()
"""
