"""Names and shapes of a block's parameters from its config alone: checkpoints are checked without torch.

Tested against the state dict of `tblock.Block` over every variant.
"""

from tblock.config import BlockConfig


def parameter_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """State-dict name to shape of one block."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    def norm(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        if c.norm_bias:
            shapes[f"{name}.bias"] = shape

    def ffn(name: str, hidden: int) -> None:
        for part in ("gate", "up") if c.gated else ("up",):
            linear(f"{name}.{part}", hidden, c.dim, c.ffn_bias)
        linear(f"{name}.down", c.dim, hidden, c.ffn_bias)

    head, hidden = c.head_dim, c.ffn_dim
    linear("attn.q", c.q_dim, c.dim, c.q_bias)
    linear("attn.k", c.kv_dim, c.dim, c.k_bias)
    linear("attn.v", c.kv_dim, c.dim, c.v_bias)
    linear("attn.out", c.dim, c.q_dim, c.out_bias)
    if c.qk_norm != "none":
        for name, heads in (("attn.q_norm", c.num_heads), ("attn.k_norm", c.num_kv_heads)):
            norm(name, *{"head": (head,), "per_head": (heads, head), "full": (heads * head,)}[c.qk_norm])
    if c.num_experts:
        linear("ffn.router", c.num_experts, c.dim, False)
        for expert in range(c.num_experts):
            ffn(f"ffn.experts.{expert}", hidden)
        if c.shared_ffn_dim:
            ffn("ffn.shared", c.shared_ffn_dim)
    else:
        ffn("ffn", hidden)
    if c.norm_position != "inner_post":
        norm("attn_norm", c.dim)
        if c.parallel != "one_norm":
            norm("ffn_norm", c.dim)
    if c.norm_position in ("sandwich", "inner_post"):
        norm("attn_out_norm", c.dim)
        norm("ffn_out_norm", c.dim)
    return shapes
