"""`tblock inspect`: what an artifact holds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tblock.cli import output, running


def run(
    folder: Annotated[Path, typer.Argument(help="The artifact folder.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every file and compare its digest.")
    ] = False,
    json: running.Json = False,
) -> None:
    """Say what an artifact holds: fused nodes, attention form, opset, sizes, parameters, FLOPs."""
    from tblock.cli.export_report import print_targets, print_verdicts
    from tblock.manifest import read_artifact

    artifact = read_artifact(folder)
    manifest = artifact.manifest
    if verify:
        for name in manifest.files:
            artifact.path(name)
    batch, seq = manifest.ranges["B"].opt, manifest.ranges["S"].opt
    flops = sum(c.flop_count(batch=batch, seq=seq) for c in manifest.configs)
    if json:
        import dataclasses

        fields = dataclasses.asdict(manifest)
        output.print_json({**fields, "flops": {"B": batch, "S": seq, "count": flops}})
        return
    config, source = manifest.configs[0], manifest.source
    first, last = source["layers"]
    from_python = source["kind"] == "config" and not source["name"]
    origin = "a BlockConfig" if from_python else f"{source['kind']} {source['name']}"
    print(f"{folder}: {origin} layers {first}:{last}, {manifest.dtype}, tblock {manifest.tblock}")
    print(
        f"  block: D {config.dim}, H {config.num_heads}, K {config.num_kv_heads}, E {config.head_dim}, "
        f"F {config.ffn_dim}, {config.norm_position}-{config.norm}, {config.ffn}"
    )
    print(f"  parameters: {manifest.parameters} ({output.number(manifest.parameters)})")
    print(f"  FLOPs at B {batch} S {seq}: {flops} ({output.number(flops)})")
    if source["kind"] == "checkpoint":
        print(f"  import: {_import_line(source.get('import_verified'))}")
    for end, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        for spec in specs:
            print(f"  {end} {spec.name}: {spec.dtype} [{', '.join(map(str, spec.dims))}]")
    print("  ranges: " + ", ".join(f"{letter} {r}" for letter, r in manifest.ranges.items()))
    print_targets(manifest.targets, artifact)
    print_verdicts(manifest.verdicts)
    for note in manifest.notes:
        print(f"note: {note}")


def _import_line(verified: dict[str, Any] | None) -> str:
    """What the weights were compared with when they were read, and how near they came."""
    if not verified:
        return "not verified against the family's own code"
    layers = ", ".join(map(str, verified["layers"]))
    return (
        f"layer {layers} within {verified['worst']:.1e} per token of {verified['with']} "
        f"(limit {verified['limit']:.0e})"
    )
