"""Experts: a trace freezes no expert; and the mixture against a plain float64 loop over tokens."""

import pytest
import torch
from torch import Tensor

from tblock import Block, BlockConfig
from tblock.moe import MixtureOfExperts
from tblock.runtimes.verdict import judge
from tblock.weights import fill, random_block_weights
from tests.checkpoints.field_runners import INDUCTOR, LIMIT, RUNNERS, rows_off

BASE = {"dim": 24, "num_heads": 2, "ffn_dim": 40, "num_experts": 4, "init_std": 0.3}


def build(**more) -> Block:
    """A block of four experts with random weights."""
    config = BlockConfig(**(BASE | more))
    block = Block(config)
    fill(block, random_block_weights(config, seed=0), dtype=torch.float32, where="experts")
    return block


def plain_mixture(moe: MixtureOfExperts, x_BSD: Tensor) -> Tensor:
    """Token by token in float64: only the chosen experts, in Python."""
    c, x_BSD = moe.config, x_BSD.double()
    out_BSD = torch.zeros_like(x_BSD)
    for b, s in torch.cartesian_prod(torch.arange(x_BSD.shape[0]), torch.arange(x_BSD.shape[1])).tolist():
        x = x_BSD[b, s]
        logits = moe.router.weight.double() @ x
        scores = logits.softmax(0) if c.router == "softmax" else 1 / (1 + (-logits).exp())
        chosen = sorted(range(c.num_experts), key=lambda n: -scores[n])[: c.experts_per_token]
        total = sum(scores[n] for n in chosen) if c.router_normalized else 1.0
        for n in chosen:
            out_BSD[b, s] += scores[n] / total * moe.experts[n](x[None, None])[0, 0]
        if c.shared_ffn_dim:
            out_BSD[b, s] += moe.shared(x[None, None])[0, 0]
    return out_BSD


@pytest.mark.parametrize("shared", [0, 20], ids=["", "shared"])
@pytest.mark.parametrize("normalized", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_mixture_equals_the_plain_loop(chosen: int, router: str, normalized: bool, shared: int) -> None:
    block = build(
        experts_per_token=chosen, router=router, router_normalized=normalized, shared_ffn_dim=shared
    )
    x_BSD = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted_BSD = plain_mixture(block.ffn, x_BSD)
        assert rows_off(block.ffn(x_BSD), wanted_BSD).max() <= LIMIT
        assert rows_off(block.ffn(x_BSD.double()), wanted_BSD).max() <= 1e-12


def overflowing() -> tuple[MixtureOfExperts, Tensor]:
    """Float16, top-1 of four: the router sends token 0 to expert 1, and expert 3 would overflow on it."""
    moe = build(experts_per_token=1).ffn.half()
    x_BSD = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(3)).half()
    with torch.no_grad():
        moe.router.weight[1] = x_BSD[0, 0]
        moe.router.weight[3] = -x_BSD[0, 0]
        moe.experts[3].down.weight.fill_(6e4)
        moe.experts[3].up.weight.copy_(moe.experts[3].gate.weight)
        assert moe.mixing_weights(x_BSD)[0, 0].tolist() == [0.0, 1.0, 0.0, 0.0]
        assert not moe.experts[3](x_BSD[:, :1]).isfinite().all()
    return moe, x_BSD[:, :1]


def check_unchosen_overflow(runner: str) -> None:
    moe, x_BSD = overflowing()
    with torch.no_grad():
        wanted, alone = plain_mixture(moe, x_BSD), moe.experts[1](x_BSD)
    y = (RUNNERS | INDUCTOR)[runner](moe, (x_BSD,))(x_BSD)
    # The chosen expert by itself is the eager result that the budget is made of.
    verdict = judge(
        output=y.numpy(), reference=wanted.numpy(), eager=alone.numpy(), inputs=None, dtype="float16"
    )
    assert verdict.passed, verdict


@pytest.mark.parametrize("runner", RUNNERS)
def test_expert_that_overflows_on_a_token_of_another_does_not_reach_it(runner: str) -> None:
    check_unchosen_overflow(runner)


@pytest.mark.exhaustive
@pytest.mark.parametrize("runner", INDUCTOR)
def test_expert_that_overflows_does_not_reach_it_in_compiled_code(runner: str) -> None:
    check_unchosen_overflow(runner)


def test_twin_that_multiplies_by_zero_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "masked_fill", lambda tensor, mask, value: tensor)
    with pytest.raises(AssertionError, match="NaN"):
        check_unchosen_overflow("eager")


def one_token_of(block: Block, expert: int) -> Tensor:
    """x [1, 1, D] whose only token goes to that expert."""
    for seed in range(1000):
        x_BSD = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            normed = block.ffn_norm(
                x_BSD + block.attn(block.attn_norm(x_BSD), None, *block.rope(x_BSD, None))
            )
            if block.ffn.mixing_weights(normed)[0, 0].argmax() == expert:
                return x_BSD
    raise AssertionError(f"no token for expert {expert}")


def check_trace(runner: str) -> None:
    block = build(experts_per_token=1, max_position=8)
    first, *others = (one_token_of(block, n) for n in (0, 1, 2, 3, 1, 0))
    run = RUNNERS[runner](block, (first,))
    for x_BSD in others:
        with torch.no_grad():
            wanted_BSD = block.double()(x_BSD.double())
        block.float()
        assert rows_off(run(x_BSD), wanted_BSD).max() <= LIMIT


@pytest.mark.parametrize("runner", RUNNERS)
def test_trace_of_one_token_serves_every_expert(runner: str) -> None:
    check_trace(runner)


def test_twin_of_a_frozen_choice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real, frozen = MixtureOfExperts.mixing_weights, []

    def freezing(self, x_BSD):
        weights_BSN = real(self, x_BSD)
        if torch.compiler.is_compiling() and not frozen:
            frozen.append(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]))
        return frozen[0] if torch.compiler.is_compiling() else weights_BSN

    monkeypatch.setattr(MixtureOfExperts, "mixing_weights", freezing)
    with pytest.raises(AssertionError):
        check_trace("exported")


def test_expert_without_a_token_is_fine() -> None:
    block = build(experts_per_token=1)
    x_BSD = one_token_of(block, 2).expand(1, 3, 24)
    assert not block(x_BSD).isnan().any()
    block.ffn.experts[1].down.weight.data.fill_(1e6)
    with torch.no_grad():
        changed_BSD = block(one_token_of(block, 2))
        block.ffn.experts[1].down.weight.data.fill_(0.0)
        assert torch.equal(block(one_token_of(block, 2)), changed_BSD)
