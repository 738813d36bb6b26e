"""Tools of others on the files of an artifact, as the README's table says which takes which."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tblock import preset
from tblock.dtypes import DTYPES
from tblock.manifest import GRAPH, STANDARD, read_artifact
from tblock.runtimes.parity import golden_cases, judge_outputs
from tests.artifacts import export

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module", params=["float32", "float16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tools") / request.param
    export(preset("tiny"), path, to=("onnx",), dtype=request.param)
    return path


def run(*words: object) -> str:
    """What a tool of this environment prints; it must succeed."""
    command = [str(Path(sys.executable).parent / str(words[0])), *map(str, words[1:])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("file", [GRAPH, STANDARD])
def test_polygraphy_inspects_and_runs_it(file: str, folder: Path) -> None:
    assert re.search(r"Initializer\(s\)", run("polygraphy", "inspect", "model", folder / file))
    assert "PASSED" in run("polygraphy", "run", "--onnxrt", folder / file, "--input-shapes", "x:[1,8,64]")


@pytest.mark.parametrize("file", [GRAPH, STANDARD])
def test_onnxslim_keeps_what_it_computes(file: str, folder: Path, tmp_path: Path) -> None:
    run("onnxslim", folder / file, tmp_path / "slim.onnx")
    judged(folder, lambda feeds: session(tmp_path / "slim.onnx").run(None, feeds)[0])


def test_openvino_reads_the_standard_graph_and_only_that(folder: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    core = openvino.Core()
    with pytest.raises(Exception, match=r"No conversion rule found for operations: tblock"):
        core.compile_model(core.read_model(folder / GRAPH), "CPU")
    compiled = core.compile_model(
        core.read_model(folder / STANDARD), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    judged(folder, lambda feeds: compiled(feeds)[0])


@pytest.mark.parametrize("name", ["tiny", "transformer-2017", "gpt2", "bert-base", "smollm2-135m"])
def test_quantizer_finds_every_weight_after_its_own_pre_processing(name: str, tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    config, folder = preset(name), tmp_path / "a"
    export(config, folder, to=("onnx",), seq=(1, 8, 16), padding_mask=False)
    direct, prepared, done = (tmp_path / f"{name}.onnx" for name in ("direct", "prepared", "done"))
    quantize_dynamic(folder / STANDARD, direct)
    assert ops(direct)["MatMulInteger"] == 0
    if any((config.q_bias, config.ffn_bias)):
        # Why README loads it first: what it saves for itself points to a file that is not there.
        with pytest.raises(Exception, match=r"not regular file"):
            quant_pre_process(folder / STANDARD, prepared, skip_symbolic_shape=True)
    quant_pre_process(onnx.load(folder / STANDARD), prepared, skip_symbolic_shape=True)
    quantize_dynamic(prepared, done, op_types_to_quantize=["MatMul"])
    assert (ops(done)["MatMulInteger"], ops(done)["MatMul"]) == (7 if config.gated else 6, 0)
    x = np.random.default_rng(0).standard_normal((2, 9, config.dim)).astype(np.float32)
    y, wanted = (session(path).run(None, {"x": x})[0] for path in (done, folder / STANDARD))
    # Eight bits are no parity: only that it is the block, and not nothing, that was quantized.
    assert 0 < np.linalg.norm(y - wanted) < 0.1 * np.linalg.norm(wanted - x)


def ops(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def judged(folder: Path, compute: Any) -> None:
    """The golden cases within the float64 budget."""
    artifact = read_artifact(folder)
    dtype = DTYPES[artifact.manifest.dtype].numpy
    for label, case in golden_cases(artifact):
        (verdict,) = judge_outputs(artifact, case, {"y": np.asarray(compute(case.inputs)).astype(dtype)})
        assert verdict.passed, f"{label}: {verdict.reason}"
