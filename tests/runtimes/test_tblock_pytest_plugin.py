"""`pytest --tblock DIR` as a user runs it, and what it costs those who do not."""

import subprocess
import sys

import pytest

from tests.runtimes import artifact_edits as edits

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester):
    """pytest in a folder without tests of its own, with the plugin from its entry point."""

    def call(*arguments):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *map(str, arguments))

    return call


def test_artifact_becomes_one_test_for_each_runtime_and_shape(run, odd16):
    result = run("--tblock", odd16, "--tblock-runtimes", "onnxruntime", "-v")
    result.assert_outcomes(passed=5)
    for shape in ("B1S1", "B2S7", "B1S32", "B3S16"):
        result.stdout.fnmatch_lines(f"*tblock::odd16::onnxruntime-float16-{shape} PASSED*")


def test_wrong_graph_fails_with_the_verdict(run, odd32, tmp_path):
    folder = edits.swap_gate_and_up(edits.copy(odd32, tmp_path))
    result = run("--tblock", folder, "--tblock-runtimes", "onnxruntime")
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(f"onnxruntime on {folder}, B2 S7: FAIL: y* off by * of the allowance *")
    result.stdout.no_fnmatch_line("*Traceback*")
    assert result.ret == 1


def test_runtime_missing_here_skips_with_the_reason(run, odd32):
    from tblock.machine import gpu_or_none

    if gpu_or_none() is not None:
        pytest.skip("this machine has what the test needs to be missing")
    result = run("--tblock", odd32, "--tblock-runtimes", "tensorrt-rtx", "-rs")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines("SKIPPED*tensorrt-rtx: no NVIDIA driver found*running it needs a GPU")


def test_runtime_asked_for_and_not_built_fails(run, odd16):
    result = run("--tblock", odd16, "--tblock-runtimes", "aoti", "-k", "B2S7")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines("*NOT BUILT: artifact has no aoti target; export with --to aoti")


def test_several_artifacts_and_own_tests_run_together(run, pytester, odd16, tmp_path):
    pytester.makepyfile(test_mine="def test_mine(): pass")
    twin = edits.copy(odd16, tmp_path)
    arguments = [
        "--tblock",
        odd16,
        "--tblock",
        twin,
        "--tblock-runtimes",
        "onnxruntime",
        "-k",
        "B2S7 or mine",
    ]
    result = run(*arguments, "-v", "--junitxml=report.xml")
    result.assert_outcomes(passed=3, deselected=8)
    result.stdout.fnmatch_lines(f"*{twin}::onnxruntime-float16-B2S7 PASSED*")
    assert '<property name="ratio" value="' in (pytester.path / "report.xml").read_text()


WRONG = {
    "no-such-folder": (["--tblock", "nowhere"], "*--tblock nowhere: nowhere: no such folder*"),
    "unknown-runtime": (["--tblock-runtimes", "ort"], "*runtime 'ort': unknown; *known: eager, compile*"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line(run, odd16, case):
    arguments, message = WRONG[case]
    if "--tblock" not in arguments:
        arguments = ["--tblock", odd16, *arguments]
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: {message}")


def test_plugin_alone_imports_nothing_heavy():
    code = (
        "import sys, tblock.runtimes.pytest_plugin\n"
        "print([m for m in ('torch', 'numpy', 'ml_dtypes', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_run_without_the_option_imports_nothing_heavy(run, pytester):
    pytester.makepyfile(
        test_mine="""
        import sys

        def test_mine():
            assert "tblock.runtimes.pytest_plugin" in sys.modules
            assert "torch" not in sys.modules
            assert "numpy" not in sys.modules
        """
    )
    run().assert_outcomes(passed=1)
