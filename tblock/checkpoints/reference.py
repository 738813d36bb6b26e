"""The family's own layer: one layer of a checkpoint, loaded and run by `transformers`: our outside judge.

A checkpoint of that one layer is written in its own format and read back by transformers' own loader, so
renamed, fused and quantised tensors go through their code and not ours. Imports torch and transformers.
"""

import contextlib
import inspect
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.gguf_copy import GGUF_NAME, copy_gguf_layer, scale_rotation
from tblock.checkpoints.gguf_source import GgufSource
from tblock.checkpoints.layer_copy import copy_safetensors_layer
from tblock.errors import ConfigError, RuntimeUnavailable, TblockError
from tblock.files import system_error

_LISTS = ("layers", "h", "encoder.layer", "transformer.layer", "encoder.layers")
"""Where transformers' base models keep their layers."""

_LONGEST_REASON = 200
"""Characters of a foreign error in our one line."""


class FamilyLayer:
    """One layer inside its model, run with the model's own masks and rotation on hidden states we choose.

    Attributes:
        layer: the transformers module.
        window: the model's sliding window before it was shrunk (tokens); None: it has none.
    """

    def __init__(self, model: nn.Module, index: int, window: int | None = None) -> None:
        self._model = cast(Any, model.eval())
        self.window = window
        self.layer: nn.Module = _layer_list(model)[index]
        self._takes = inspect.signature(model.forward).parameters

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
        if "inputs_embeds" not in self._takes or "input_features" in self._takes:
            # A model of images or sound takes no mask; the layer itself takes hidden states and a mask.
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
        if positions_BS is not None and hasattr(self._model, "rotary_emb"):
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
        RuntimeUnavailable: transformers (or, for GGUF, accelerate) is missing, or too old for the family.
        ConfigError: layer out of range, or transformers cannot read the checkpoint.
    """
    transformers = _transformers()
    with tempfile.TemporaryDirectory() as scratch, _quiet(transformers):
        folder, more = Path(scratch), dict[str, Any]()
        try:
            if isinstance(checkpoint.source, GgufSource):
                index, window = copy_gguf_layer(checkpoint, layer, folder)
                # transformers' GGUF reader finds stacked experts only from the class with a head.
                auto = transformers.AutoModelForCausalLM
                more["gguf_file"] = GGUF_NAME
            else:
                auto = transformers.AutoModel
                more["config"], index, window = copy_safetensors_layer(
                    checkpoint, layer, folder, transformers
                )
            # Shapes that differ are refused here by name: transformers only points to a report in its log.
            more |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
            model, report = auto.from_pretrained(
                folder, dtype=torch.float32, attn_implementation=attention, **more
            )
            for name, shape, wanted in sorted(report["mismatched_keys"]):
                name = name.partition(f".{index}.")[2] or name
                raise ConfigError(
                    f"{checkpoint.path}: transformers cannot read this checkpoint (layer {layer}: it takes "
                    f"{name} as {list(wanted)}, got {list(shape)}); --no-verify-import skips the probe"
                )
            if isinstance(checkpoint.source, GgufSource):
                scale_rotation(model.base_model, checkpoint.source)
        except TblockError:
            raise
        except Exception as error:
            # transformers says "OSError" of what it cannot read as well: only the system's own has a number.
            system = system_error(error)
            if system is not None:
                raise system from error
            lacking = _lacking(str(error), checkpoint.family, transformers.__version__)
            raise lacking or unreadable(checkpoint, error) from None
    own = {id(p) for p in _layer_list(model.base_model)[index].parameters()}
    lost = [name for name, p in model.named_parameters() if id(p) in own and name in report["missing_keys"]]
    if lost:
        raise ConfigError(f"{checkpoint.path}: transformers found no weights for {', '.join(sorted(lost))}")
    with contextlib.suppress(AttributeError):
        model.base_model.set_experts_implementation("eager")
    return FamilyLayer(model.base_model, index, window)


def _lacking(error: str, family: str, version: str) -> RuntimeUnavailable | None:
    """What is missing here where transformers refuses a checkpoint; None: nothing, the checkpoint is bad."""
    if "accelerate" in error:
        return RuntimeUnavailable(
            "transformers reads GGUF with accelerate; pip install 'tblock[verify-import]'"
        )
    unknown = (
        "Unrecognized model identifier",
        "does not recognize this architecture",
        "is not supported yet",
    )
    if any(text in error for text in unknown):
        return RuntimeUnavailable(f"transformers {version} has no {family}; pip install -U transformers")
    return None


def unreadable(checkpoint: Checkpoint, error: Exception) -> ConfigError:
    """transformers checks little by itself: a bad setting ends in whatever its code stumbles over, at load or
    when it runs."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
    return ConfigError(
        f"{checkpoint.path}: transformers cannot read this checkpoint ({reason}); "
        "--no-verify-import skips the probe"
    )


def _layer_list(model: nn.Module) -> nn.ModuleList:
    for path in _LISTS:
        with contextlib.suppress(AttributeError):
            found = model.get_submodule(path)
            if isinstance(found, nn.ModuleList):
                return found
    raise ConfigError(f"transformers' {type(model).__name__} keeps its layers in an unknown place")


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise RuntimeUnavailable(
            "the import probe needs transformers; pip install 'tblock[verify-import]'"
        ) from None
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
