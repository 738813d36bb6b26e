"""The family's own layer: one layer of a checkpoint loaded and run by `transformers`, the outside judge of our block.

A checkpoint of that one layer is written in its own format and read back by transformers' own loader, so renamed, fused
and quantised tensors go through their code and not ours. Imports torch and transformers.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.gguf_source import GgufSource
from tblock.errors import ConfigError, RuntimeUnavailable
from tblock.weights import to_tensor

SMALL_VOCAB = 64
"""Rows of the stand-in token table: hidden states are given, tokens are not used."""

SMALL_WINDOW = 5
"""Keys a sliding window is shrunk to, so that a short sequence crosses it."""

GGUF_NAME = "layer.gguf"

_LISTS = ("layers", "h", "encoder.layer", "transformer.layer", "encoder.layers")
"""Where transformers' base models keep their layers."""


class FamilyLayer:
    """One layer inside its model, run with the model's own masks and rotation tables on hidden states of our choice.

    Attributes:
        layer: the transformers module.
        window: the model's sliding window before it was shrunk (tokens); None: it has none.
    """

    def __init__(self, model: nn.Module, index: int, window: int | None = None) -> None:
        self._model, self.window = model.eval(), window
        self.layer: nn.Module = _layer_list(model)[index]
        self._family = model.config.model_type

    @torch.no_grad()
    def __call__(self, x_BSD: Tensor, padding_mask_BS: Tensor | None, positions_BS: Tensor | None) -> Tensor:
        """Run the layer.

        Args:
            x_BSD: [B, S, D] hidden states, dtype of the model.
            padding_mask_BS: [B, S] bool, True for real tokens; None: all are.
            positions_BS: [B, S] int64; None: 0 .. S - 1.

        Returns:
            [B, S, D].
        """
        if self._family in ("vit", "whisper"):
            # Their models take images and sound and no mask; the layer itself takes hidden states and a mask.
            mask = (
                None
                if padding_mask_BS is None
                else padding_mask_BS[:, None, None, :].expand(-1, 1, x_BSD.shape[1], -1)
            )
            if mask is not None and self._model.config._attn_implementation == "eager":
                mask = torch.zeros(mask.shape, dtype=x_BSD.dtype).masked_fill(
                    ~mask, torch.finfo(x_BSD.dtype).min
                )
            return _first(self.layer(x_BSD, mask))
        seen: list[Tensor] = []

        def give(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return (x_BSD, *args[1:]) if args else (), kwargs if args else {**kwargs, "hidden_states": x_BSD}

        def take(module: nn.Module, args: tuple, output: Any) -> None:
            seen.append(_first(output))

        handles = (
            self.layer.register_forward_pre_hook(give, with_kwargs=True),
            self.layer.register_forward_hook(take),
        )
        inputs: dict[str, Tensor] = {"inputs_embeds": x_BSD}
        if padding_mask_BS is not None:
            inputs["attention_mask"] = padding_mask_BS.long()
        if positions_BS is not None and self._family not in ("bert", "roberta", "distilbert"):
            inputs["position_ids"] = positions_BS
        try:
            self._model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        return seen[0]


def load_family_layer(checkpoint: Checkpoint, layer: int, *, attention: str = "eager") -> FamilyLayer:
    """Load one layer of a checkpoint with transformers, in float32, from a one-layer copy.

    Sliding windows are shrunk to SMALL_WINDOW and the token table to SMALL_VOCAB rows.

    Args:
        checkpoint: any open checkpoint.
        layer: 0 .. num_layers - 1.
        attention: transformers' attention implementation.

    Raises:
        RuntimeUnavailable: transformers (or, for GGUF, accelerate) is missing.
        ConfigError: layer out of range.
    """
    transformers = _transformers()
    with tempfile.TemporaryDirectory() as scratch, _quiet(transformers):
        folder, more = Path(scratch), {}
        if isinstance(checkpoint.source, GgufSource):
            index, window = _write_gguf(checkpoint, layer, folder)
            # transformers' GGUF reader finds stacked experts only from the class with a head.
            auto = transformers.AutoModelForCausalLM
            more = {"gguf_file": GGUF_NAME, "config": _gguf_config(checkpoint, layer, folder, transformers)}
        else:
            auto = transformers.AutoModel
            index, window = _write_safetensors(checkpoint, layer, folder, transformers)
        try:
            model, report = auto.from_pretrained(
                folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True, **more
            )
        except ValueError as error:
            if "accelerate" not in str(error):
                raise
            raise RuntimeUnavailable(
                "transformers reads GGUF with accelerate: pip install 'tblock[dev]' or accelerate"
            ) from None
    own = {id(p) for p in _layer_list(model.base_model)[index].parameters()}
    lost = [name for name, p in model.named_parameters() if id(p) in own and name in report["missing_keys"]]
    if lost:
        raise ConfigError(f"{checkpoint.path}: transformers found no weights for {', '.join(sorted(lost))}")
    with contextlib.suppress(AttributeError):
        model.base_model.set_experts_implementation("eager")
    return FamilyLayer(model.base_model, index, window)


def _gguf_config(checkpoint: Checkpoint, layer: int, folder: Path, transformers: Any) -> Any:
    """transformers' own reading of the metadata, plus Llama 3's RoPE scaling, which it drops."""
    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=GGUF_NAME)
    ours = checkpoint.config(layer)
    if ours.rope_scaling == "llama3":
        config.rope_parameters = {
            "rope_type": "llama3",
            "rope_theta": ours.rope_base,
            "factor": ours.rope_factor,
            "low_freq_factor": ours.rope_low_freq_factor,
            "high_freq_factor": ours.rope_high_freq_factor,
            "original_max_position_embeddings": ours.rope_original_max_position,
        }
    return config


def _layer_list(model: nn.Module) -> nn.ModuleList:
    for path in _LISTS:
        with contextlib.suppress(AttributeError):
            found = model.get_submodule(path)
            if isinstance(found, nn.ModuleList):
                return found
    raise ConfigError(f"transformers' {type(model).__name__} keeps its layers in an unknown place")


def _write_safetensors(
    checkpoint: Checkpoint, layer: int, folder: Path, transformers: Any
) -> tuple[int, int | None]:
    """Returns the layer's number in the copy, and the window before it was shrunk."""
    from safetensors.torch import save_file

    values = dict(checkpoint.fields.values)
    values.setdefault("model_type", checkpoint.family)
    # The full config decides what kind of layer this one is; its own class does that, not our row.
    full = transformers.AutoConfig.for_model(**values)
    # GPT-2 can scale scores by the layer's number: then the number has to stay.
    index = layer if values.get("scale_attn_by_inverse_layer_idx") else 0
    values[checkpoint.depth_key] = index + 1
    values |= {"vocab_size": SMALL_VOCAB, "decoder_layers": 1}
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        values[key] = min(values[key], 3) if isinstance(values.get(key), int) else None
    if getattr(full, "layer_types", None):
        values["layer_types"] = [full.layer_types[layer]]
    window = getattr(full, "sliding_window", None)
    if window is not None:
        values["sliding_window"] = min(window, SMALL_WINDOW)
    if checkpoint.family == "qwen3_moe":
        sparse = layer not in full.mlp_only_layers and (layer + 1) % full.decoder_sparse_step == 0
        values |= {"mlp_only_layers": [] if sparse else [0], "decoder_sparse_step": 1}
    (folder / "config.json").write_text(json.dumps(values))
    root = checkpoint.layer_root
    behind = root.removeprefix(checkpoint.prefix)
    tensors = {
        f"{behind}{index}.{name.removeprefix(f'{root}{layer}.')}": to_tensor(
            checkpoint.source.read(name)
        ).clone()
        for name in checkpoint.tensor_names(layer)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return index, window


def _write_gguf(checkpoint: Checkpoint, layer: int, folder: Path) -> tuple[int, int | None]:
    """Returns the layer's number in the copy, and the window before it was shrunk."""
    import gguf

    source = checkpoint.source
    assert isinstance(source, GgufSource)
    arch = source.metadata["general.architecture"]
    # Gemma 2 alternates windows by the layer's number, which the file does not spell out: keep it even or odd.
    index = layer % 2 if arch == "gemma2" else 0
    writer = gguf.GGUFWriter(folder / GGUF_NAME, arch)
    for key, value in source.metadata.items():
        if not key.startswith(f"{arch}.") or key in (f"{arch}.block_count", f"{arch}.vocab_size"):
            continue
        if key == f"{arch}.attention.sliding_window":
            value = min(value, SMALL_WINDOW)
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add.get(type(value), writer.add_array)(key, value)
    writer.add_uint32(f"{arch}.block_count", index + 1)
    writer.add_uint32(f"{arch}.vocab_size", SMALL_VOCAB)
    root = checkpoint.layer_root
    for name in checkpoint.tensor_names(layer):
        raw, kind = source.read_stored(name)
        renamed = f"{root}{index}.{name.removeprefix(f'{root}{layer}.')}"
        writer.add_tensor(renamed, np.ascontiguousarray(raw), raw_dtype=gguf.GGMLQuantizationType(kind))
    dim = checkpoint.config(layer).dim
    writer.add_tensor("token_embd.weight", np.zeros((SMALL_VOCAB, dim), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return index, source.metadata.get(f"{arch}.attention.sliding_window")


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise RuntimeUnavailable("the import probe needs transformers: pip install transformers") from None
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no load report: half of the one-layer model is missing on purpose."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF loader draws its bar past that switch.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
