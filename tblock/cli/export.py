"""`tblock export`: a block to an artifact folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tblock.cli import output, running, spelling


def run(
    output_folder: Annotated[Path, typer.Option("-o", "--output", help="The new artifact folder.")],
    preset: Annotated[str | None, typer.Option(help="A named config; see `tblock list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="A JSON file of BlockConfig fields.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A GGUF file, or a Hugging Face folder.")] = None,
    layer: Annotated[int | None, typer.Option(help="One layer; default 0.")] = None,
    layers: Annotated[str | None, typer.Option(help="A:B, or all: a stack.")] = None,
    to: Annotated[str, typer.Option(help="Comma list of onnx, aoti, tensorrt, tensorrt-rtx.")] = "onnx",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16 (fp32, fp16, bf16).")] = "float32",
    batch: Annotated[str, typer.Option(help="MIN:OPT:MAX, MIN:MAX or one number.")] = "1:1:8",
    seq: Annotated[
        str | None,
        typer.Option(help="Likewise, in tokens; default 1:128:2048, at most the block's max_position."),
    ] = None,
    opset: Annotated[int | None, typer.Option(help="Of the ONNX graph: 23 (the default) or 18.")] = None,
    padding_mask: Annotated[
        bool | None, typer.Option(help="The graph takes padding_mask [B, S]; default: where bidirectional.")
    ] = None,
    position_ids: Annotated[bool, typer.Option(help="The graph takes position_ids [B, S].")] = False,
    fusion: Annotated[
        str | None, typer.Option(help="For TensorRT: plugin, native or auto (the default).")
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let TensorRT multiply float32 in TF32.")] = False,
    cpu: Annotated[
        str | None, typer.Option(help="For AOTInductor: x86-64-v3 (AVX2, the default), x86-64-v4 or native.")
    ] = None,
    golden: Annotated[bool, typer.Option(help="Write golden data.")] = True,
    verify: Annotated[bool, typer.Option(help="Check the artifact on the runtimes of its targets.")] = True,
    verify_import: Annotated[
        bool | None,
        typer.Option(help="Run the first layer against transformers' own; default: where that is installed."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an artifact that is there.")] = False,
    json: running.Json = False,
) -> None:
    """Export a block to an artifact folder."""
    import tblock
    from tblock.config import BlockConfig
    from tblock.dtypes import float_dtype
    from tblock.errors import ConfigError
    from tblock.export.staging import check_output
    from tblock.ranges import Range

    given = [
        flag
        for flag, value in (("--preset", preset), ("--config", config), ("--checkpoint", checkpoint))
        if value
    ]
    if len(given) != 1:
        raise ConfigError(
            f"got {' and '.join(given) or 'no source'}; give one of --preset, --config, --checkpoint"
        )
    if verify_import and not checkpoint:
        raise ConfigError("--verify-import: only a --checkpoint can be verified")
    source: Any = tblock.preset(preset) if preset else BlockConfig.from_json(config) if config else checkpoint
    batch_range, seq_range = Range.parse(batch, "--batch"), spelling.optional_range(seq, "--seq")
    full_dtype = float_dtype(dtype)
    check_output(output_folder, force)
    output.progress("loading torch")
    from tblock.export.exporter import open_source, run_export
    from tblock.export.request import ExportOptions

    options = ExportOptions(
        to=spelling.names(to), dtype=full_dtype, batch=batch_range, seq=seq_range, opset=opset,
        padding_mask=padding_mask, position_ids=position_ids, fusion=fusion,  # type: ignore[arg-type]
        tf32=tf32, cpu=cpu, golden=golden, force=force,
    )  # fmt: skip
    opened = open_source(source, layer=layer, layers=layers, name=preset or "")
    if config:
        opened.description["name"] = config.name
    result = run_export(
        opened,
        output_folder,
        options,
        output.progress,
        verify=verify,
        verify_import=verify_import,
    )
    from tblock.cli.export_report import print_report

    print_report(result, json)
    error = result.error()
    if error:
        raise error
