"""Runtimes one after the other, each in a process of its own: what check and bench have in common.

Owns which runtimes are asked, and that every way a process can end becomes a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tblock.child import ask
from tblock.errors import ArtifactError, TblockError
from tblock.manifest import Artifact
from tblock.runtimes.rows import CheckRow
from tblock.runtimes.table import ALL, RUNTIMES, check_threads, missing_target, runtime_row

Progress = Callable[[str], None]


def chosen_runtimes(artifact: Artifact, names: Sequence[str] | None, *, torch_too: bool) -> list[str]:
    """The runtimes to ask, each once, in the order given or of RUNTIMES.

    Args:
        artifact: what they are to run.
        names: keys of RUNTIMES, or `all`; None: those of the artifact's targets.
        torch_too: whether None also means those that need no target.

    Raises:
        ArtifactError: one is unknown.
    """
    if names is not None:
        for name in names:
            if name != ALL:
                runtime_row(name)
        return list(RUNTIMES) if ALL in names else list(dict.fromkeys(names))
    built = [name for name, row in RUNTIMES.items() if row.target in artifact.manifest.targets]
    free = [name for name, row in RUNTIMES.items() if row.target is None]
    return [name for name in RUNTIMES if name in built or (name in free and (torch_too or not built))]


def check_options(options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse an option that no runtime takes, or none of those asked, or that none can take at that value.

    Raises:
        ArtifactError: names it and the known ones, or those that take it.
    """
    check_threads(options.get("threads"))
    takers: dict[str, list[str]] = {}
    for name, row in RUNTIMES.items():
        for option in row.options:
            takers.setdefault(option, []).append(name)
    for option, value in options.items():
        if option not in takers:
            known = ", ".join(sorted(takers))
            raise ArtifactError(f"{option}={value!r}: no runtime has such an option; known: {known}")
        if value is not None and not set(takers[option]) & set(names):
            raise ArtifactError(
                f"{option}={value!r}: nothing would read it, {', '.join(names)} does not take it; "
                f"{', '.join(takers[option])} would"
            )


def ask_each(
    artifact: Artifact,
    names: Sequence[str],
    *,
    options: Mapping[str, Any],
    timeout: float,
    progress: Progress | None,
    work: Mapping[str, Any] | None = None,
) -> Iterator[tuple[CheckRow, dict[str, Any]]]:
    """Let each runtime do its job.

    Args:
        artifact: with golden data.
        names: keys of RUNTIMES.
        options: of `load`; each runtime gets those that it takes.
        timeout: seconds for one runtime.
        progress: called with a line when a runtime starts and as it goes on.
        work: `shapes` and `seconds` where it is to be timed as well.

    Yields:
        The row of its check, and what it measured; {} where it was not timed.
    """
    for name in names:
        missing = missing_target(artifact, name)
        if missing:
            yield CheckRow.without_cases(name, "NOT BUILT", missing), {}
            continue
        taken = runtime_row(name).options
        job = {
            "folder": str(artifact.folder),
            "runtime": name,
            "options": {o: value for o, value in options.items() if value is not None and o in taken},
            **(work or {}),
        }
        said = (lambda line, name=name: progress(f"{name}: {line}")) if progress else None
        try:
            answer = ask("tblock.runtimes.worker", job, timeout=timeout, title=name, progress=said)
            yield CheckRow.from_dict(answer["check"]), answer.get("times", {})
        except TblockError as error:
            yield CheckRow.of_error(name, error), {}
