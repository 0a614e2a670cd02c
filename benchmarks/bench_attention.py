"""Attention, forward and backward, beside PyTorch's fused kernel on the same arrays. The results are compared first."""

import pytest

import minigrad as mg
from attention.functional import scaled_dot_product_attention

SHAPES = [(4, 8, 512, 64), (8, 4, 128, 32), (12, 4, 64, 32)]  # (B, H, T, D)


def arrays(shape):
    generator = mg.random.Generator(0)
    return [generator.normal(shape, dtype="float32").numpy() for _ in range(4)]


def ours(q, k, v, g, causal):
    q, k, v = (mg.Tensor(x, requires_grad=True) for x in (q, k, v))
    y = scaled_dot_product_attention(q, k, v, is_causal=causal)
    y.backward(mg.asarray(g))
    return [x.numpy() for x in (y, q.grad, k.grad, v.grad)]


def pytorch(q, k, v, g, causal):
    torch = pytest.importorskip("torch", reason="the peer is optional: pip install -e '.[peers]'")
    q, k, v, g = (torch.tensor(x) for x in (q, k, v, g))
    for x in (q, k, v):
        x.requires_grad = True
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    y.backward(g)
    return [x.detach().numpy() for x in (y, q.grad, k.grad, v.grad)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("implementation", [ours, pytorch])
def test_attention(benchmark, implementation, shape, causal):
    given = arrays(shape)
    if implementation is ours:
        for mine, theirs in zip(ours(*given, causal), pytorch(*given, causal), strict=True):
            assert abs(mine - theirs).max() <= 1e-4 * abs(theirs).max()
    benchmark(implementation, *given, causal)
