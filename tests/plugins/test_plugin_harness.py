"""The library under a C++ program that plays TensorRT: interfaces, bad input, threads, sanitizers, launches.

Without a GPU, launches go to a stand-in driver: it proves what our C++ hands to the driver, not the kernels.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tblock.export.plugins import library
from tblock.export.plugins.headers import find_headers
from tblock.export.plugins.library_builder import compile_library
from tests.plugins.plugin_harness import Harness, build_harness, harness_of

pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")

from tblock.export.plugins import case_file

_NOT_EXECUTED = 3


def _passed(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and ", failed: 0" in done.stdout and "checks: 0," not in done.stdout


@pytest.mark.parametrize("threads", [1, 8])
def test_plugin_interfaces_hold(harness: Harness, plugin_library: Path, threads: int) -> None:
    done = harness.run(plugin_library, "walk", str(threads))
    assert _passed(done), done.stderr


@pytest.mark.exhaustive
def test_plugin_interfaces_hold_under_sanitizers(generated: Path, cases_file: Path, tmp_path: Path) -> None:
    source, include = library.package_folder() / "trt-plugin", find_headers()[0]
    built = compile_library(
        source, generated, include, tmp_path / "library", build_type="RelWithDebInfo", sanitize=True
    )
    build_harness(generated, tmp_path / "harness", sanitize=True)
    program = harness_of(tmp_path / "harness", cases_file)
    done = program.run(built, "walk", "8")
    assert _passed(done), done.stderr
    done = program.execute(built, 8, FAKE_CUDA_ARCH="90")
    assert _passed(done), done.stderr


@pytest.mark.parametrize(
    ("arch", "image"), [(80, "PTX"), (86, "PTX"), (90, "cubin"), (100, "PTX"), (120, "cubin"), (121, "cubin")]
)
def test_plugin_launches_on_stand_in_driver(
    harness: Harness, plugin_library: Path, arch: int, image: str
) -> None:
    done = harness.execute(plugin_library, 2, FAKE_CUDA_ARCH=str(arch))
    assert _passed(done), done.stderr
    assert f"PTX fallback: {'yes' if image == 'PTX' else 'no'}" in done.stdout


def test_plugin_launches_every_shape_on_stand_in_driver(harness: Harness, plugin_library: Path) -> None:
    done = harness.execute(plugin_library, 1, FAKE_CUDA_ARCH="90")
    assert _passed(done), done.stderr
    executed = re.search(r"executed: (\d+) cases", done.stdout)
    assert executed
    assert int(executed.group(1)) >= len(list(case_file.plugin_cases()))


def test_plugin_cubin_refused_by_driver_falls_back_to_ptx(harness: Harness, plugin_library: Path) -> None:
    done = harness.execute(plugin_library, 2, FAKE_CUDA_ARCH="90", FAKE_CUDA_REFUSE_CUBIN="1")
    assert _passed(done), done.stderr
    assert "PTX fallback: yes" in done.stdout


def test_plugin_device_below_sm_80_is_refused_by_name(harness: Harness, plugin_library: Path) -> None:
    done = harness.execute(plugin_library, 2, FAKE_CUDA_ARCH="75")
    assert _passed(done), done.stderr
    assert "executed: 0 cases" in done.stdout


def test_plugin_kernels_on_a_gpu_match_float64(harness: Harness, plugin_library: Path) -> None:
    done = harness.execute(plugin_library, 1)
    if done.returncode == _NOT_EXECUTED:
        assert ", failed: 0" in done.stdout, done.stderr
        pytest.skip(next(line for line in done.stdout.splitlines() if "not executed" in line))
    assert _passed(done), done.stderr


# file, shipped text, broken text, command that must fail
_TWINS = {
    "field_of_another": ("kernels.cpp", "= &fields[i];", "= &fields[0];", "execute"),
    "halves_swapped": ("plugin.cpp", "(inputs[i])", "(inputs[mRow.inputCount - 1 - i])", "execute"),
    "rows_tail_dropped": (
        "kernels.cpp",
        "(call.rows + v.tileRows - 1) / v.tileRows",
        "call.rows / v.tileRows",
        "execute",
    ),
    "columns_tail_dropped": (
        "kernels.cpp",
        "(call.width + v.cols - 1) / v.cols",
        "(call.width / v.cols + (call.width < v.cols))",
        "execute",
    ),
    "stride_dropped": ("kernels.cpp", "call.inputStride / v.align", "call.width / v.align", "execute"),
    "stride_of_rows_accepted": ("exports.cpp", "|| input_stride == width)", "|| true)", "execute"),
    "alignment_ignored": ("kernels.cpp", "aligned = v.align == 1", "aligned = alignment > 0", "execute"),
    "missing_field_accepted": ("fields.cpp", "if (!seen[i])", "if (false)", "walk"),
    "nan_eps_accepted": (
        "fields.cpp",
        "std::isnormal(value.f) && value.f > 0.0F",
        "!(value.f <= 0.0F)",
        "walk",
    ),
    "field_type_ignored": ("fields.cpp", "field.type != typeOf(row)", "false", "walk"),
    "offset_not_serialized": (
        "fields.cpp",
        "&values[i], typeOf",
        "&values[0], typeOf",
        "walk",
    ),
    "old_device_accepted": ("kernels.cpp", "if (arch < kBaseline)", "if (false)", "old"),
}


@pytest.fixture(scope="module")
def twin_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the C++ sources to break, and its build folder, which every twin reuses."""
    folder = tmp_path_factory.mktemp("plugin-twins")
    shutil.copytree(library.package_folder() / "trt-plugin", folder / "source")
    return folder / "source", folder / "build"


@pytest.mark.exhaustive
@pytest.mark.parametrize("twin", _TWINS)
def test_plugin_cpp_broken_twin_is_caught(
    twin: str, twin_folders: tuple[Path, Path], generated: Path, harness: Harness
) -> None:
    file, shipped, broken, command = _TWINS[twin]
    source, work = twin_folders
    path = source / file
    text = path.read_text()
    assert shipped in text
    try:
        path.write_text(text.replace(shipped, broken))
        built = compile_library(source, generated, find_headers()[0], work, build_type="Debug")
    finally:
        path.write_text(text)
    if command == "walk":
        done = harness.run(built, "walk", "1")
    else:
        done = harness.execute(built, 2, FAKE_CUDA_ARCH="75" if command == "old" else "90")
    assert done.returncode == 1, done.stdout
    assert "FAILED" in done.stderr
