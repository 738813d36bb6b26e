"""Optimization profiles: their spelling on the command line, and their checks against the graph and the
manifest.

Every message names the input and the axis, and comes before any builder is started.
"""

import re
from collections.abc import Mapping, Sequence

from tblock.errors import ConfigError
from tblock.export.engine.options import Profile, Shape
from tblock.manifest import Manifest

ENDS = ("min", "opt", "max")

Dims = Mapping[str, tuple[int | str, ...]]
"""Graph input to its dims: a number, or the letter of a dynamic dimension."""


def parse_shapes(text: str, flag: str) -> dict[str, Shape]:
    """Read trtexec's spelling of shapes.

    Args:
        text: such as `x:1x16x64,padding_mask:1x16`.
        flag: named in front of messages, such as `--minShapes`.

    Returns:
        Input name to shape.

    Raises:
        ConfigError: not such a text, a negative or repeated entry.
    """
    shapes: dict[str, Shape] = {}
    for part in text.split(","):
        # An input name may hold colons itself; the shape never does.
        found = re.fullmatch(r"\s*(.+):([0-9]+(?:x[0-9]+)*)\s*", part)
        if found is None:
            raise ConfigError(
                f"{flag} {text!r}: {part!r} is not NAME:AxBxC (for example x:1x16x64,mask:1x16)"
            )
        name = found[1].strip("'\"")
        if name in shapes:
            raise ConfigError(f"{flag} {text!r}: input {name} is given twice")
        shapes[name] = tuple(int(size) for size in found[2].split("x"))
    return shapes


def from_flags(minima: Sequence[str], optima: Sequence[str], maxima: Sequence[str]) -> list[Profile]:
    """Profiles from trtexec's three flags, each given once per profile.

    Args:
        minima, optima, maxima: texts of `--minShapes`, `--optShapes`, `--maxShapes`. `--optShapes` alone is a
            fixed shape, as with trtexec; otherwise all three are needed.

    Raises:
        ConfigError: the flags are given a different number of times, or an input has a shape in only some.
    """
    given = {"--minShapes": minima, "--optShapes": optima, "--maxShapes": maxima}
    counts = {flag: len(texts) for flag, texts in given.items() if texts}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            ", ".join(f"{flag} {n} times" for flag, n in counts.items()) + ": give each once per profile"
        )
    if list(counts) == ["--optShapes"]:
        given = dict.fromkeys(given, optima)
    profiles: list[Profile] = []
    for index in range(max(counts.values(), default=0)):
        ends = [parse_shapes(texts[index], flag) if texts else {} for flag, texts in given.items()]
        for flag, shapes in zip(given, ends, strict=True):
            for name in sorted(set().union(*ends) - set(shapes)):
                raise ConfigError(
                    f"input {name}: {flag} is missing; give all of {', '.join(given)}, "
                    "or --optShapes alone for a fixed shape"
                )
        profiles.append({name: (ends[0][name], ends[1][name], ends[2][name]) for name in ends[0]})
    return profiles


def from_manifest(manifest: Manifest) -> list[Profile]:
    """The one profile that an artifact declares."""

    def shape(dims: tuple[str | int, ...], end: str) -> Shape:
        return tuple(getattr(manifest.ranges[d], end) if isinstance(d, str) else d for d in dims)

    return [
        {t.name: (shape(t.dims, "min"), shape(t.dims, "opt"), shape(t.dims, "max")) for t in manifest.inputs}
    ]


def check_profiles(profiles: Sequence[Profile], inputs: Dims, manifest: Manifest | None = None) -> None:
    """Refuse what a builder would refuse later, or accept and never serve.

    Args:
        profiles: at least one where an input is dynamic.
        inputs: of the graph.
        manifest: of the artifact, where there is one: its ranges limit the profiles.

    Raises:
        ConfigError: naming profile, input and axis.
    """
    dynamic = [name for name, dims in inputs.items() if any(isinstance(d, str) for d in dims)]
    if dynamic and not profiles:
        raise ConfigError(
            f"input {dynamic[0]} {_spell(inputs[dynamic[0]])}: dynamic and without a profile; "
            "give --minShapes, --optShapes and --maxShapes"
        )
    for index, profile in enumerate(profiles):
        where = f"profile {index}: " if len(profiles) > 1 else ""
        for name in profile:
            if name not in inputs:
                raise ConfigError(
                    f"{where}input {name}: the graph has no such input; it has {', '.join(inputs)}"
                )
        for name in dynamic:
            if name not in profile:
                raise ConfigError(
                    f"{where}input {name} {_spell(inputs[name])}: no shapes given, "
                    "every dynamic input needs them"
                )
        for name, shapes in profile.items():
            _check_input(f"{where}input {name}", shapes, inputs[name], manifest)
        _check_shared(where, profile, inputs)


def _check_input(
    where: str, shapes: Sequence[Shape], dims: tuple[int | str, ...], manifest: Manifest | None
) -> None:
    for end, shape in zip(ENDS, shapes, strict=True):
        if len(shape) != len(dims):
            raise ConfigError(
                f"{where}: {end} {_spell(shape)} has {len(shape)} axes, "
                f"the graph's {_spell(dims)} has {len(dims)}"
            )
    for axis, dim in enumerate(dims):
        low, opt, high = (shape[axis] for shape in shapes)
        at = f"{where} axis {axis}" + (f" ({dim})" if isinstance(dim, str) else "")
        if not low <= opt <= high:
            raise ConfigError(f"{at}: min {low}, opt {opt}, max {high}: wanted min <= opt <= max")
        if isinstance(dim, int):
            if (low, high) != (dim, dim):
                raise ConfigError(f"{at}: min {low}, opt {opt}, max {high}: it is {dim} in the graph")
            continue
        declared = manifest.ranges.get(dim) if manifest else None
        if declared and (low not in declared or high not in declared):
            raise ConfigError(
                f"{at}: {low} .. {high} is outside the manifest's {declared.min} .. {declared.max}; "
                "export with a wider range"
            )


def _check_shared(where: str, profile: Profile, inputs: Dims) -> None:
    """Axes with one letter are one size: a profile that gives them different ranges can serve no input at the
    ends."""
    first: dict[str, tuple[str, Shape]] = {}
    for name, shapes in profile.items():
        for axis, dim in enumerate(inputs[name]):
            if not isinstance(dim, str) or dim == "?":
                continue
            sizes = tuple(shape[axis] for shape in shapes)
            other, seen = first.setdefault(dim, (name, sizes))
            if seen != sizes:
                raise ConfigError(
                    f"{where}input {name} axis {axis} ({dim}): {'/'.join(map(str, sizes))}, "
                    f"input {other} has {'/'.join(map(str, seen))} for the same dimension"
                )


def _spell(dims: Sequence[int | str]) -> str:
    return "x".join(map(str, dims))
