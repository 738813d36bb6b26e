"""The child's side of `child`: one job from stdin, one runtime, one JSON answer on stdout.

A job is `{"verb": "check" or "bench", "folder", "runtime", "options": {...}}`, for bench also `"shapes"` and
`"seconds"`. The answer is `{"check": CheckRow}`, for bench also `"times"`, see tblock.runtimes.latency.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from tblock.errors import RuntimeUnavailable, TblockError, reason
from tblock.manifest import read_artifact
from tblock.runtimes.loading import load_runner
from tblock.runtimes.parity import judge_runner
from tblock.runtimes.rows import CheckRow


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do a job. Errors of the runtime are a row, with their traceback on stderr where nobody foresaw them."""
    runtime = job["runtime"]
    try:
        runner = load_runner(job["folder"], runtime, **job["options"])
        row = judge_runner(runner, read_artifact(job["folder"]))
        if job["verb"] == "check" or not row.passed:
            return {"check": row.to_dict()}
        from tblock.runtimes.latency import time_runner

        times = time_runner(runner, job["shapes"], seconds=job["seconds"])
        return {"check": row.to_dict(), "times": times}
    except RuntimeUnavailable as error:
        row = CheckRow(runtime=runtime, status="UNAVAILABLE", reason=str(error), exit_code=error.exit_code)
    except TblockError as error:
        row = CheckRow(runtime=runtime, status="ERROR", reason=str(error), exit_code=error.exit_code)
    except Exception as error:
        traceback.print_exc()
        line = f"{type(error).__name__}: {reason(error)}"
        row = CheckRow(runtime=runtime, status="ERROR", reason=line, exit_code=4)
    return {"check": row.to_dict()}


def main() -> None:
    """Keep stdout for the answer: what runtimes print there, from C++ too, goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        out.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
