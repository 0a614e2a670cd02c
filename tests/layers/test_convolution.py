"""Conv1d: PyTorch's convolution, of rows of features."""

from typing import Any

import numpy
import pytest

import minigrad as mg
from attention.layers import Conv1d


@pytest.mark.peers
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("width", "stride", "padding", "length"), [(3, 1, 1, 7), (3, 2, 1, 8), (4, 3, 0, 9), (1, 1, 0, 2)]
)
def test_as_in_pytorch(width: int, stride: int, padding: int, length: int, bias: bool) -> None:
    import torch

    layer = Conv1d(3, 5, width, stride, padding, bias, dtype="float64")
    rng = numpy.random.default_rng(0)
    values = rng.normal(size=(2, length, 3))
    x = mg.Tensor(values, requires_grad=True)
    y = layer(x)
    weight = mg.asarray(rng.normal(size=y.shape))
    mg.sum(y * weight).backward()

    theirs = torch.nn.Conv1d(3, 5, width, stride, padding, bias=bias, dtype=torch.float64)
    theirs.load_state_dict({name: torch.asarray(p.numpy()) for name, p in layer.state_dict().items()})
    their_x = torch.asarray(values, requires_grad=True)
    their_y = theirs(their_x.mT).mT
    (their_y * torch.asarray(weight.numpy())).sum().backward()

    numpy.testing.assert_allclose(y.numpy(), their_y.detach().numpy(), rtol=1e-12, atol=1e-12)
    numpy.testing.assert_allclose(x.grad.numpy(), their_x.grad.numpy(), rtol=1e-12, atol=1e-12)
    for name, parameter in theirs.named_parameters():
        found: Any = getattr(layer, name).grad
        numpy.testing.assert_allclose(found.numpy(), parameter.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_a_sequence_without_a_batch() -> None:
    layer = Conv1d(1, 1, width=2, bias=False, dtype="float64")
    layer.load_state_dict({"weight": numpy.array([[[10.0, 1.0]]])})
    assert layer(mg.asarray([[1.0], [2.0], [3.0]])).tolist() == [[12.0], [23.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Conv1d(3, 5, width=0), "Conv1d: expected width to be a positive integer, got 0"),
        (lambda: Conv1d(3, 5, width=3)(mg.ones((2, 3))), "Conv1d: a sequence of 2 positions, padding included"),
        (lambda: Conv1d(3, 5, width=3)(mg.ones((4, 2))), r"Conv1d: expected x of shape \(..., T, 3\), got \(4, 2\)"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
