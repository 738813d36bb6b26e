"""pytest plugin: `pytest --tblock DIR` turns an artifact into one test per runtime, dtype and shape.

pytest loads this in every run of every project that has tblock installed, so without `--tblock` it imports
nothing more than its first lines do. A runtime missing here skips with the reason; a missed budget fails with
the verdict's line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tblock.errors import ParityError, TblockError

if TYPE_CHECKING:
    from tblock.runtimes.rows import CaseRow, CheckRow


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("tblock", "tblock: runtimes against the float64 reference")
    group.addoption(
        "--tblock",
        action="append",
        default=[],
        metavar="DIR",
        help="an artifact folder; one test per runtime, dtype and shape (repeatable)",
    )
    group.addoption(
        "--tblock-runtimes",
        metavar="LIST",
        help="comma list of runtimes; default: all that have something to run in the artifact",
    )
    group.addoption(
        "--tblock-timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="for one runtime (default 900)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the artifacts' tests to what was collected; first, so that -k and the like see them."""
    folders = list(dict.fromkeys(config.getoption("--tblock")))
    if not folders:
        return
    root = _Root.from_parent(session, name="tblock", nodeid="tblock")
    names = [Path(folder).resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        label = name if names.count(name) == 1 else str(folder)
        artifact = ArtifactTests.from_parent(root, name=label, folder=Path(folder))
        try:
            items.extend(artifact.collect())
        except TblockError as error:
            raise pytest.UsageError(f"--tblock {folder}: {error}") from None


class _Root(pytest.Collector):
    """The `tblock` in front of every test id."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return []


class ArtifactTests(pytest.Collector):
    """The tests of one artifact; a runtime is checked once, in its own process, when its first test runs."""

    def __init__(self, folder: Path, **rest: Any) -> None:
        super().__init__(**rest)
        self.folder = folder
        self._rows: dict[str, CheckRow] = {}

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each runtime and golden case.

        Raises:
            TblockError: no artifact, an unknown runtime, or damaged golden data.
        """
        from tblock.manifest import read_artifact
        from tblock.runtimes.jobs import chosen_runtimes
        from tblock.runtimes.parity import golden_cases

        artifact = read_artifact(self.folder)
        asked = self.config.getoption("--tblock-runtimes")
        names = chosen_runtimes(artifact, asked.split(",") if asked else None, torch_too=True)
        labels = [label for label, _ in golden_cases(artifact)]
        for runtime in names:
            for label in labels:
                name = f"{runtime}-{artifact.manifest.dtype}-{label.replace(' ', '')}"
                yield CaseTest.from_parent(self, name=name, runtime=runtime, case=label)

    def row(self, runtime: str) -> "CheckRow":
        """The check of one runtime."""
        if runtime not in self._rows:
            from tblock.runtimes import check

            (self._rows[runtime],) = check(
                self.folder, [runtime], timeout=self.config.getoption("--tblock-timeout")
            )
        return self._rows[runtime]


class CaseTest(pytest.Item):
    """One runtime on one golden case."""

    parent: ArtifactTests

    def __init__(self, runtime: str, case: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.runtime, self.case = runtime, case

    def runtest(self) -> None:
        """Pass, skip or raise ParityError.

        Raises:
            ParityError: the budget is missed, or the runtime broke or was not built.
        """
        row = self.parent.row(self.runtime)
        if row.status == "UNAVAILABLE":
            pytest.skip(row.reason)
        case = next((case for case in row.cases if case.case == self.case), None)
        if case is None:
            raise ParityError(f"{row.status}: {row.reason}")
        self._record(row, case)
        if case.status != "PASS":
            raise ParityError(f"{case.status}: {case.reason}")

    def _record(self, row: "CheckRow", case: "CaseRow") -> None:
        """Into the JUnit file, where one is written."""
        self.user_properties += [
            ("provider", row.provider),
            ("ratio", case.ratio),
            ("error", case.error),
            ("eager_error", case.eager_error),
        ]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The verdict's line alone: a traceback through the plugin tells a user nothing."""
        if isinstance(excinfo.value, TblockError):
            return f"{self.runtime} on {self.parent.folder}, {self.case}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where and what, for the report's heading."""
        return self.parent.folder, None, f"{self.parent.name}: {self.name}"
