"""The canonical transformer block and a stack of them: the definition every runtime is judged by.

Owns how sublayers, residuals and norms are put together; the sublayers have a file each. Imports no backend.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tblock.attention import Attention
from tblock.config import BlockConfig
from tblock.errors import ConfigError
from tblock.ffn import FeedForward
from tblock.moe import MixtureOfExperts
from tblock.norm import make_norm
from tblock.rope_table import RopeTable

ARGUMENTS = {"x": "x_BSD", "padding_mask": "padding_mask_BS", "position_ids": "positions_BS"}
"""Graph input name, as in a manifest, to the argument of Block.forward and Stack.forward."""


class Block(nn.Module):
    """x + attn(norm(x)), then x + ffn(norm(x)), in the arrangement `norm_position` and `parallel` name.

    pre: x + f(n(x)); post: n(x + f(x)); sandwich: x + n(f(n(x))); inner_post: x + n(f(x)).
    Sources: Vaswani et al. 2017 (post), Radford et al. 2019 (pre), Gemma 2 (sandwich), OLMo 2 (inner_post).
    """

    def __init__(self, config: BlockConfig, rope: RopeTable | None = None) -> None:
        """Build with random weights.

        Args:
            config: what to build.
            rope: the rotation tables of another block with the same RoPE fields, to share; None: own ones.
        """
        super().__init__()
        self.config = config
        self.rope = rope if rope is not None or not config.rope else RopeTable(config)
        self.attn = Attention(config)
        self.ffn = MixtureOfExperts(config) if config.num_experts else FeedForward(config)
        if config.norm_position != "inner_post":
            self.attn_norm = make_norm(config)
            if config.parallel != "one_norm":
                self.ffn_norm = make_norm(config)
        if config.norm_position in ("sandwich", "inner_post"):
            self.attn_out_norm = make_norm(config)
            self.ffn_out_norm = make_norm(config)
        self.reset_parameters()

    def forward(
        self, x_BSD: Tensor, padding_mask_BS: Tensor | None = None, positions_BS: Tensor | None = None
    ) -> Tensor:
        """Run the block on a whole sequence.

        Args:
            x_BSD: [B, S, D] hidden states, in the dtype of the weights (or float64, as the reference).
            padding_mask_BS: [B, S] bool, True for real tokens; None: all are real.
            positions_BS: [B, S] int64, 0 .. max_position - 1, for RoPE; None: 0 .. S - 1.

        Returns:
            [B, S, D], dtype of x.
        """
        return self.layer(x_BSD, *self.shared_inputs(x_BSD, padding_mask_BS, positions_BS))

    def shared_inputs(
        self, x_BSD: Tensor, padding_mask_BS: Tensor | None, positions_BS: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What `layer` takes besides x, the same for every block of one config.

        Returns:
            mask: [B, 1, 1, S] bool or None; cos, sin: [S, R/2] or [B, 1, S, R/2], float32 or float64, or
            None.
        """
        mask = None if padding_mask_BS is None else padding_mask_BS[:, None, None, :]
        return (mask, None, None) if self.rope is None else (mask, *self.rope(x_BSD, positions_BS))

    def layer(self, x_BSD: Tensor, mask: Tensor | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        """The block on inputs prepared once for a whole stack."""
        position, scale = self.config.norm_position, self.config.residual_multiplier

        def scaled(f_BSD: Tensor) -> Tensor:
            return f_BSD if scale == 1.0 else f_BSD * scale

        if self.config.parallel != "none":
            n_BSD = self.attn_norm(x_BSD)
            m_BSD = n_BSD if self.config.parallel == "one_norm" else self.ffn_norm(x_BSD)
            return x_BSD + scaled(self.attn(n_BSD, mask, cos, sin)) + scaled(self.ffn(m_BSD))
        if position == "post":
            x_BSD = self.attn_norm(x_BSD + scaled(self.attn(x_BSD, mask, cos, sin)))
            return self.ffn_norm(x_BSD + scaled(self.ffn(x_BSD)))
        if position == "inner_post":
            x_BSD = x_BSD + scaled(self.attn_out_norm(self.attn(x_BSD, mask, cos, sin)))
            return x_BSD + scaled(self.ffn_out_norm(self.ffn(x_BSD)))
        a_BSD = self.attn(self.attn_norm(x_BSD), mask, cos, sin)
        x_BSD = x_BSD + scaled(self.attn_out_norm(a_BSD) if position == "sandwich" else a_BSD)
        f_BSD = self.ffn(self.ffn_norm(x_BSD))
        return x_BSD + scaled(self.ffn_out_norm(f_BSD) if position == "sandwich" else f_BSD)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw anew: matrices Normal(0, init_std), over sqrt(2L) those that write to the residual; biases 0.

        Args:
            generator: source of randomness; None: torch's global one.
        """
        residual_std = self.config.init_std / math.sqrt(2 * self.config.num_layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                writes_residual = name.rsplit(".", 1)[-1] in ("out", "down")
                std = residual_std if writes_residual else self.config.init_std
                nn.init.normal_(module.weight, std=std, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class Stack(nn.Module):
    """Blocks one after the other: layers[L-1](... layers[0](x)).

    Embedding, final norm and head are the caller's.
    """

    def __init__(self, configs: BlockConfig | Sequence[BlockConfig]) -> None:
        """Build the blocks.

        Args:
            configs: one config for all of its `num_layers` blocks, or one for each block.

        Raises:
            ConfigError: no config, something else, or blocks of different model width.
        """
        super().__init__()
        if isinstance(configs, BlockConfig):
            configs = [configs] * configs.num_layers
        for config in configs:
            if not isinstance(config, BlockConfig):
                raise ConfigError(f"configs: got a {type(config).__name__}, wanted BlockConfigs")
        if not configs:
            raise ConfigError("configs=[]: a stack needs at least one block")
        if len({c.dim for c in configs}) > 1:
            raise ConfigError(
                f"configs: dim must be the same in every block, got {sorted({c.dim for c in configs})}"
            )
        tables: dict[BlockConfig, RopeTable | None] = {}
        self.layers = nn.ModuleList()
        for config in configs:
            block = Block(config, rope=tables.get(config))
            tables[config] = block.rope
            self.layers.append(block)

    def share(self, owners: Sequence[int]) -> None:
        """Let layer n be the very block of layer `owners[n]`, as ALBERT does with one at every depth."""
        for n, owner in enumerate(owners):
            self.layers[n] = self.layers[owner]

    def forward(
        self, x_BSD: Tensor, padding_mask_BS: Tensor | None = None, positions_BS: Tensor | None = None
    ) -> Tensor:
        """As Block.forward."""
        prepared: dict[BlockConfig, tuple[Tensor | None, Tensor | None, Tensor | None]] = {}
        for block in self.layers:
            assert isinstance(block, Block)
            if block.config not in prepared:
                prepared[block.config] = block.shared_inputs(x_BSD, padding_mask_BS, positions_BS)
            x_BSD = block.layer(x_BSD, *prepared[block.config])
        return x_BSD
