"""Golden data: inputs, float64 reference outputs and eager outputs, to check any runtime by.

Owns the layout of `golden.safetensors`: tensors `case<N>/input/<name>`, `case<N>/reference/<name>` (float64)
and `case<N>/eager/<name>` (the artifact's dtype), N from 0. numpy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import safetensors.numpy

from tblock.errors import ArtifactError


@dataclass(frozen=True)
class GoldenCase:
    """One set of inputs and what must come out.

    Attributes:
        inputs: graph input name to array, those the manifest declares.
        reference: output name to float64 array.
        eager: output name to array in the output's dtype.
    """

    inputs: dict[str, np.ndarray]
    reference: dict[str, np.ndarray]
    eager: dict[str, np.ndarray]


def write_golden(path: Path, cases: Sequence[GoldenCase]) -> None:
    """Write all cases to one file."""
    tensors = {}
    for n, case in enumerate(cases):
        for kind, arrays in (("input", case.inputs), ("reference", case.reference), ("eager", case.eager)):
            for name, array in arrays.items():
                tensors[f"case{n}/{kind}/{name}"] = np.ascontiguousarray(array)
    safetensors.numpy.save_file(tensors, path)


def read_golden(path: Path) -> list[GoldenCase]:
    """Read all cases.

    Raises:
        ArtifactError: not such a file.
    """
    cases: dict[int, GoldenCase] = {}
    try:
        for key, array in safetensors.numpy.load_file(path).items():
            case, kind, name = key.split("/")
            entry = cases.setdefault(int(case.removeprefix("case")), GoldenCase({}, {}, {}))
            {"input": entry.inputs, "reference": entry.reference, "eager": entry.eager}[kind][name] = array
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"{path}: not golden data ({error}); export again") from None
    return [cases[n] for n in sorted(cases)]
