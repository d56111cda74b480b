"""Checks that one autograd step of the decoders equals the plain expressions, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from earl.models import logprobs, packing
from earl.models.fused import gated_silu, rms_norm
from earl.models.logprobs import token_logprobs
from earl.models.packing import Packing, causal_attention, take_rows

ROWS, HIDDEN, VOCABULARY = 40, 32, 61


def plain(hidden, weight, targets, temperature):
    heat = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
    distribution = torch.log_softmax(F.linear(hidden, weight).float() / heat, -1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, targets[:, None])[:, 0], entropy


def results(function, seed, dtype, temperature, uses):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g).to(dtype).requires_grad_()
    targets = torch.randint(VOCABULARY, (ROWS,), generator=g)
    factors = torch.randn(2, ROWS, generator=g)
    out = function(hidden, weight, targets, temperature)
    loss = sum((out[i] * factors[i]).sum() for i in uses)
    assert isinstance(loss, torch.Tensor)
    return *(one.detach() for one in out), *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("uses", [(0,), (1,), (0, 1)], ids=["logprob", "entropy", "both"])
@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.linspace(0.5, 2, ROWS)], ids=["1", "0.7", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_equal_the_whole(dtype, temperature, uses, monkeypatch):
    whole = results(plain, 3, dtype, temperature, uses)
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 4 * VOCABULARY * 7)
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for ours, expected in zip(results(token_logprobs, 3, dtype, temperature, uses), whole, strict=True):
        scale = float(expected.abs().max())
        assert float((ours - expected).abs().max()) < tolerance * scale


def test_a_frozen_head_gets_no_gradient():
    hidden = torch.randn(5, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN)
    token_logprobs(hidden, weight, torch.arange(5))[0].sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_no_tensor_of_all_logits_exists(monkeypatch):
    """The largest tensor that autograd keeps or makes is a chunk or the weight."""
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 4 * VOCABULARY * 7)
    sizes: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    with Watch():
        results(token_logprobs, 3, torch.bfloat16, 1.0, (0, 1))
    assert max(sizes) == VOCABULARY * HIDDEN < ROWS * VOCABULARY


def test_norm_and_gate_equal_the_plain_expressions():
    g = torch.Generator().manual_seed(1)
    x, y, grad = (torch.randn(7, 3, 24, generator=g, requires_grad=True) for _ in range(3))
    weight = torch.randn(24, generator=g, requires_grad=True)
    normed = weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
    for ours, theirs, inputs in (
        (rms_norm(x, weight, 1e-6), normed, (x, weight)),
        (gated_silu(x, y), F.silu(x) * y, (x, y)),
    ):
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(
            torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(theirs, inputs, grad), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_rows_are_taken_as_by_an_index():
    x = torch.randn(9, 4, requires_grad=True)
    rows = torch.tensor([7, 0, 3])
    ours, theirs = take_rows(x, rows), x[rows]
    assert torch.equal(ours, theirs)
    factor = torch.randn(3, 4)
    assert torch.equal(*(torch.autograd.grad((one * factor).sum(), x)[0] for one in (ours, theirs)))


def test_short_narrow_attention_has_the_wide_gradient(monkeypatch):
    """bfloat16 on the CPU: nearer to float32 than the kernel's own backward pass, or as near."""
    lengths = [30, 21, 9]
    g = torch.Generator().manual_seed(2)
    wide = [torch.randn(60, heads, 16, generator=g) for heads in (4, 2, 2, 4)]
    bucketed = Packing.of(lengths, torch.device("cpu"))

    def gradients(dtype):
        q, k, v = (one.to(dtype).requires_grad_() for one in wide[:3])
        out = causal_attention(q, k, v, bucketed)
        return [one.float() for one in torch.autograd.grad(out, (q, k, v), wide[3].to(dtype))]

    exact = gradients(torch.float32)
    short = gradients(torch.bfloat16)
    monkeypatch.setattr(packing, "NARROW_TOKENS", 0)
    kernel = gradients(torch.bfloat16)
    for a, b, c in zip(exact, short, kernel, strict=True):
        assert float((a - b).abs().mean()) < 1.1 * float((a - c).abs().mean())
