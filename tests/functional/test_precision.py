"""float16, bfloat16 and float32: the dtype that goes in comes out, and sums are formed in float32 at least."""

from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose, assert_array_equal

import attention.functional as F
import minigrad as mg
from minigrad import backend

HAVE = [name for name in ("float16", "bfloat16", "float32") if hasattr(backend.current().xp, name)]
HALF = [name for name in HAVE if name != "float32"]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}


def attention_with_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)


def weights(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, return_weights=True)[1] + 0 * mg.sum(v)


OPERATIONS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "softmax": (F.softmax, [(3, 5)]),
    "log_softmax": (F.log_softmax, [(3, 5)]),
    "linear": (F.linear, [(2, 3, 4), (4, 5), (5,)]),
    "layer_norm": (F.layer_norm, [(2, 3, 4), (4,), (4,)]),
    "rms_norm": (F.rms_norm, [(2, 3, 4), (4,)]),
    "relu": (F.relu, [(3, 5)]),
    "silu": (F.silu, [(3, 5)]),
    "erf": (F.erf, [(3, 5)]),
    "gelu": (F.gelu, [(3, 5)]),
    "gelu-tanh": (lambda x: F.gelu(x, approximate="tanh"), [(3, 5)]),
    "dropout": (lambda x: F.dropout(x, 0.4, generator=mg.random.Generator(1)), [(3, 5)]),
    "embedding": (lambda w: F.embedding(tensor([[0, 2], [2, 1]]), w), [(3, 4)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, tensor([1, 0, -100]), label_smoothing=0.1), [(3, 5)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 4), (2, 5, 4), (2, 5, 3)]),
    "attention-masked": (attention_with_mask, [(2, 3, 4), (2, 5, 4), (2, 5, 3), (3, 1)]),
    "attention-weights": (weights, [(2, 3, 4), (2, 5, 4), (2, 5, 3), (3, 5)]),
}


def as_float64(x: Any) -> Any:
    return value(mg.astype(x, "float64"))


@pytest.mark.parametrize("dtype", HAVE)
@pytest.mark.parametrize("name", OPERATIONS)
def test_result_and_gradients_are_the_exact_ones_rounded(name: str, dtype: str) -> None:
    """Against float64 on the same numbers. In half precision what is kept of the output is rounded as well."""
    f, shapes = OPERATIONS[name]
    rng = numpy.random.default_rng(0)
    low = [mg.astype(tensor(rng.normal(size=shape)), dtype) for shape in shapes]
    exact = [mg.astype(x, "float64") for x in low]
    for x in low + exact:
        x.requires_grad = True
    y, expected = f(*low), f(*exact)
    assert y.dtype == low[0].dtype
    assert_allclose(as_float64(y), value(expected), rtol=4 * EPS[dtype], atol=2 * EPS[dtype])
    seed = mg.astype(tensor(rng.normal(size=y.shape)), dtype)
    y.backward(seed)
    expected.backward(mg.astype(seed, "float64"))
    for x, x64 in zip(low, exact, strict=True):
        assert x.grad is not None
        assert x.grad.dtype == x.dtype
        assert_allclose(as_float64(x.grad), value(x64.grad), rtol=8 * EPS[dtype], atol=8 * EPS[dtype])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", OPERATIONS)
def test_second_derivatives_in_half_precision(name: str, dtype: str) -> None:
    """Rules on Tensors widen and narrow as rules on raw arrays do."""
    f, shapes = OPERATIONS[name]
    rng = numpy.random.default_rng(0)
    low = [mg.astype(tensor(rng.normal(size=shape)), dtype) for shape in shapes]

    def squares(xs: Any) -> Any:
        y = mg.astype(f(*xs), "float64")
        return mg.sum(y * y)

    found = mg.hvp(squares, [low], [low])
    wide = [mg.astype(x, "float64") for x in low]
    for x, product, exact in zip(low, found, mg.hvp(squares, [wide], [wide]), strict=True):
        assert product.dtype == x.dtype
        scale = max(1.0, numpy.abs(value(exact)).max())
        assert_allclose(as_float64(product), value(exact), atol=16 * EPS[dtype] * scale)


@pytest.mark.parametrize("dtype", HALF)
def test_sums_are_formed_in_float32(dtype: str) -> None:
    """4096 ones, added one by one in float16, stop at 2048; in bfloat16 at 256."""
    n = 4096
    ones = mg.astype(tensor(numpy.ones((n, 1))), dtype)
    x, w = mg.astype(tensor(numpy.ones((1, n))), dtype), ones
    assert_array_equal(as_float64(F.linear(x, w)), [[n]])

    weight = mg.astype(tensor(numpy.ones((1, 1))), dtype)
    bias = mg.astype(tensor(numpy.zeros((1,))), dtype)
    table = mg.astype(tensor(numpy.zeros((2, 1))), dtype)
    for parameter in (weight, bias, table):
        parameter.requires_grad = True
    F.linear(ones, weight, bias).backward(ones)
    F.embedding(tensor(numpy.ones(n, dtype=numpy.int64)), table).backward(ones)
    assert_array_equal(as_float64(weight.grad), [[n]])
    assert_array_equal(as_float64(bias.grad), [n])
    assert_array_equal(as_float64(table.grad), [[0], [n]])

    assert_array_equal(as_float64(F.softmax(x)), numpy.full((1, n), 1 / n))
    many = mg.astype(tensor(numpy.zeros((n, 2))), dtype)
    loss = F.cross_entropy(many, tensor(numpy.zeros(n, dtype=numpy.int64)))
    assert_allclose(as_float64(loss), numpy.log(2), rtol=EPS[dtype])


@pytest.mark.skipif("float16" not in HAVE, reason="the backend has no float16")
def test_float16_does_not_overflow_inside() -> None:
    """300² is beyond float16, as is a score of 64 · 60 · 60; the results are not."""
    x = mg.astype(tensor([[300.0, -300.0]]), "float16")
    assert_allclose(as_float64(F.layer_norm(x)), [[1, -1]], rtol=EPS["float16"])
    assert_allclose(as_float64(F.rms_norm(x)), [[1, -1]], rtol=EPS["float16"])
    q = mg.astype(tensor(numpy.full((1, 64), 60.0)), "float16")
    k = mg.astype(tensor(numpy.stack([numpy.full(64, 60.0), numpy.full(64, 59.0)])), "float16")
    v = mg.astype(tensor([[1.0], [2.0]]), "float16")
    assert_array_equal(as_float64(F.scaled_dot_product_attention(q, k, v, scale=1.0)), [[1]])
