"""Finding out what a path holds and opening it: a Hugging Face folder, a .safetensors file or a GGUF file.

Pickle files are refused by name, never opened.
"""

import dataclasses
import re
from pathlib import Path

from tblock.checkpoints import families_encoder, families_gated, families_gguf, families_layernorm
from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.family import Family
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.gguf_source import GgufSource
from tblock.checkpoints.published import published_defaults
from tblock.checkpoints.safetensors_source import SafetensorsSource
from tblock.errors import ConfigError
from tblock.files import read_json

FAMILIES: dict[str, Family] = {
    row.name: row for row in families_gated.ROWS + families_layernorm.ROWS + families_encoder.ROWS
}
"""`model_type` of config.json to its row."""

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "internvl": "qwen2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_audio": "qwen2",
    "smolvlm": "llama",
}
"""`model_type` of a model that shows a language model images or sound, to the family its `text_config` is of
where that does not say so. On text they run the language model as it is."""

_WRAPPED_PREFIXES = tuple(
    f"{outer}{inner}."
    for outer in ("model.", "")
    for inner in ("language_model.model", "language_model", "text_model")
)
"""What stands before the language model's names in such a file, by the age of the checkpoint."""

MISSING_FEATURES: dict[str, str] = {
    "gpt_oss": "attention sinks, clamped SwiGLU with alpha, biases in router and experts",
    "granitemoe": "a row here: nothing of it was proven yet",
    "voxtral": "the wrapper's own defaults for its language model",
    "paligemma": "a mask under which the prompt sees itself in both directions",
    "llama4_text": "chunked attention, QK norm after RoPE",
    "deepseek_v2": "multi-head latent attention",
    "deepseek_v3": "multi-head latent attention, grouped router with correction bias",
    "qwen2_moe": "a gate on the shared expert",
    "qwen3_next": "gated delta-rule layers, a gate on attention",
    "bloom": "ALiBi positions",
    "mpt": "ALiBi positions",
    "t5": "relative position bias, cross-attention",
    "bart": "cross-attention",
    "mamba": "state-space layers",
    "deberta-v2": "disentangled attention",
    "modernbert": "bidirectional sliding windows",
}
"""Families people ask for that the block cannot say, and why."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint; only headers are read.

    Args:
        path: a folder with config.json and safetensors (one file or shards with an index), a .safetensors
            file with config.json beside it, or a .gguf file.

    Raises:
        ConfigError: missing, damaged, not a checkpoint, a pickle, or of a family that is not supported.
        RuntimeUnavailable: a GGUF file without the gguf package.
    """
    path = Path(path)
    try:
        there = path.exists()
    except OSError as error:
        raise ConfigError(f"{str(path)[:200]}: {error.strerror}; give a checkpoint") from None
    if not there:
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
        what = "download the model first and give its folder" if hub else "give a checkpoint"
        raise ConfigError(f"{path}: no such file or folder; {what}")
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file; give a checkpoint")
    if path.suffix in _PICKLES:
        raise ConfigError(f"{path}: {_pickle_hint()}")
    if path.suffix == ".safetensors":
        return _open_safetensors(path, path.parent, [path])
    if path.suffix == ".gguf" or _begins(path, b"GGUF"):
        _refuse_pointer(path)
        return _open_gguf(path)
    raise ConfigError(f"{path}: not a checkpoint; give a Hugging Face folder, a .safetensors or a .gguf file")


def _open_gguf(path: Path) -> Checkpoint:
    source = GgufSource(path)
    fields = Fields(str(path), source.metadata)
    arch = fields.text("general.architecture")
    if arch not in families_gguf.ROWS:
        raise ConfigError(
            f"{path}: architecture {arch!r} is not supported in GGUF; "
            f"known: {', '.join(families_gguf.ROWS)}; "
            "give the Hugging Face folder instead"
        )
    if families_gguf.ROPE_FREQS in source.names():
        fields.values[families_gguf.ROPE_FREQS] = source.read(families_gguf.ROPE_FREQS).tolist()
    return Checkpoint(family=families_gguf.ROWS[arch], fields=fields, source=source)


def _open_folder(path: Path) -> Checkpoint:
    index = path / "model.safetensors.index.json"
    # As transformers does: a whole file beside an index, which may be of older shards, is the model.
    if index.exists() and not (path / "model.safetensors").exists():
        weight_map = _read_index(index)
        shards = sorted({path / name for name in weight_map.values()})
        for shard in shards:
            if not shard.exists():
                raise ConfigError(f"{path}: shard {shard.name} of {index.name} is missing; fetch it again")
        return _open_safetensors(path, path, shards, weight_map)
    files = sorted(path.glob("*.safetensors"))
    if (path / "model.safetensors") in files:
        files = [path / "model.safetensors"]
    if len(files) == 1:
        return _open_safetensors(path, path, files)
    if files:
        raise ConfigError(f"{path}: {len(files)} .safetensors files but no {index.name}; give one file")
    pickles = [p.name for p in sorted(path.iterdir()) if p.suffix in _PICKLES]
    if pickles:
        raise ConfigError(f"{path}: has only {pickles[0]}; {_pickle_hint()}")
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        _refuse_pointer(ggufs[0])
        return _open_gguf(ggufs[0])
    if ggufs:
        names = ", ".join(p.name for p in ggufs)
        raise ConfigError(f"{path}: {len(ggufs)} GGUF files ({names}); give the one to open")
    snapshots = sorted(path.glob("snapshots/*/config.json"))
    if snapshots:
        raise ConfigError(f"{path}: the root of a hub's cache; give {snapshots[-1].parent}")
    raise ConfigError(
        f"{path}: not a checkpoint; wanted config.json and model.safetensors, or one .gguf file"
    )


def _open_safetensors(
    path: Path, folder: Path, files: list[Path], weight_map: dict[str, str] | None = None
) -> Checkpoint:
    for file in files:
        _refuse_pointer(file)
    fields = Fields.from_json(folder / "config.json")
    if "quantization_config" in fields:
        method = fields.sub("quantization_config").values.get("quant_method")
        raise ConfigError(
            f"{fields.where}: quantized by {method}: save it dequantized first, or give a GGUF file"
        )
    kind = fields.text("model_type")
    wrapped = kind in WRAPPERS
    if wrapped:
        fields = fields.sub("text_config")
        kind = fields.text("model_type", WRAPPERS[kind])
    family = find_family(kind, fields.where)
    if wrapped:
        family = dataclasses.replace(family, prefixes=(*_WRAPPED_PREFIXES, *family.prefixes))
    fields = Fields(fields.where, fields.values, published_defaults(family.name))
    return Checkpoint(family=family, fields=fields, source=SafetensorsSource(path, files, weight_map))


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = read_json(index)["weight_map"]
        good = isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values())
    except (OSError, ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise ConfigError(f"{index}: not a safetensors index, wanted an object with weight_map")
    return weight_map


def find_family(model_type: str, where: str) -> Family:
    """Look up a family by `model_type`.

    Raises:
        ConfigError: unknown, or known and lacking features, which are named.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in MISSING_FEATURES:
        raise ConfigError(
            f"{where}: family {model_type!r} is not supported: it needs {MISSING_FEATURES[model_type]}"
        )
    # Another spelling of the same name only: the family next to it in the alphabet gives wrong numbers.
    plain = re.sub(r"[^a-z0-9]", "", model_type.lower())
    same = [name for name in FAMILIES if name.replace("_", "").replace("-", "") == plain]
    hint = f"did you mean {same[0]}? " if same else ""
    raise ConfigError(f"{where}: unknown family {model_type!r}; {hint}known: {', '.join(FAMILIES)}")


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _refuse_pointer(path: Path) -> None:
    """What git leaves in a file's place where its large-file storage is not installed."""
    if _begins(path, b"version https://git-lfs"):
        raise ConfigError(f"{path}: a Git LFS pointer, not the file; run `git lfs pull` in its repository")


def _pickle_hint() -> str:
    return (
        "pickle runs code and is never loaded; where you trust it, convert it with transformers: "
        "AutoModel.from_pretrained(OLD).save_pretrained(NEW)"
    )
