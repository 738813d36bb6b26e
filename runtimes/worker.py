"""A runtime in a process of its own: one job, one answer (the protocol is tblock.child's).

A runtime can crash, hang, or slow down what runs after it in the same process (ONNX Runtime's threads spin),
so each one that is judged or timed has its own.

A job is `{"folder", "runtime", "options": {...}}`, to be timed also with `"shapes"` and `"seconds"`. The
answer is `{"check": CheckRow}`, with times also `"times"`, see tblock.runtimes.latency.
"""

from collections.abc import Mapping
from typing import Any

from tblock.child import say, serve
from tblock.errors import TblockError
from tblock.manifest import read_artifact
from tblock.runtimes.loading import load_runner
from tblock.runtimes.parity import judge_runner
from tblock.runtimes.rows import CheckRow


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do a job. An error of the runtime is its row."""
    try:
        say("loading")
        runner = load_runner(job["folder"], job["runtime"], **job["options"])
        say("running the golden cases")
        row = judge_runner(runner, read_artifact(job["folder"]))
        if "shapes" not in job or not row.passed:
            return {"check": row.to_dict()}
        from tblock.runtimes.latency import time_runner

        return {
            "check": row.to_dict(),
            "times": time_runner(runner, job["shapes"], seconds=job["seconds"], progress=say),
        }
    except TblockError as error:
        return {"check": CheckRow.of_error(job["runtime"], error).to_dict()}


if __name__ == "__main__":
    serve(answer)
