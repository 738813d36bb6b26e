"""Parameter and FLOP counts of a block, from its fields alone. Imports no torch."""

from tblock.config_fields import BlockFields


def parameter_count(c: BlockFields, *, active: bool = False) -> int:
    """Weights of one block.

    Args:
        c: the block.
        active: of a mixture of experts, only those one token meets.

    Returns:
        Number of scalars.
    """
    kv_dim, q_dim = c.kv_dim, c.q_dim
    attention = c.dim * (2 * q_dim + 2 * kv_dim)
    attention += c.q_bias * q_dim + (c.k_bias + c.v_bias) * kv_dim + c.out_bias * c.dim
    per_norm = 2 if c.norm_bias else 1
    if c.qk_norm == "head":
        attention += per_norm * 2 * c.head_dim
    elif c.qk_norm in ("per_head", "full"):
        attention += per_norm * (q_dim + kv_dim)
    norms = {"pre": 2, "post": 2, "inner_post": 2, "sandwich": 4}[c.norm_position] - (
        c.parallel == "one_norm"
    )
    return attention + norms * per_norm * c.dim + _ffn_parameters(c, active)


def _ffn_parameters(c: BlockFields, active: bool) -> int:
    hidden, matrices = c.ffn_dim, 3 if c.gated else 2
    biases = c.ffn_bias * ((matrices - 1) * hidden + c.dim)
    if not c.num_experts:
        return matrices * c.dim * hidden + biases
    experts = c.experts_per_token if active else c.num_experts
    return matrices * c.dim * (experts * hidden + c.shared_ffn_dim) + c.dim * c.num_experts


def flop_count(c: BlockFields, *, batch: int, seq: int, past: int = 0) -> int:
    """Floating point operations of one forward pass of one block, a multiply-add counted as two.

    Matrix products only (norms, activations and softmax are below 1 % at usual sizes); causal attention
    counts only the keys a query sees; every expert counts, since every expert computes every token.

    Args:
        c: the block.
        batch, seq, past: B, S, P (tokens).

    Returns:
        FLOPs.
    """
    matrices = 3 if c.gated else 2
    experts = max(c.num_experts, 1) * c.ffn_dim + c.shared_ffn_dim
    per_token = c.dim * (2 * c.q_dim + 2 * c.kv_dim) + matrices * c.dim * experts + c.dim * c.num_experts
    if c.causal:
        window = c.sliding_window or past + seq
        pairs = sum(min(past + i + 1, window) for i in range(seq))
    else:
        pairs = seq * (past + seq)
    return 2 * batch * (seq * per_token + 2 * pairs * c.q_dim)
