"""What the engine costs: 1,000 operations on a scalar, forward and backward, where the arithmetic itself is nothing."""

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy
import pytest
import torch

import minigrad as mg

OPERATIONS = 1000


def chain(x: Any, operation: Callable[[Any], Any]) -> Any:
    for _ in range(OPERATIONS):
        x = operation(x)
    return x


class Value:
    """A scalar that remembers how it was made: what micrograd does, without arrays (for the floor of pure Python)."""

    __slots__ = ("_backward", "_parents", "data", "grad")

    def __init__(self, data: float, parents: tuple[Any, ...] = ()) -> None:
        self.data, self.grad, self._parents, self._backward = data, 0.0, parents, None

    def __add__(self, other: float) -> Any:
        out = Value(self.data + other, (self,))

        def backward() -> None:
            self.grad += out.grad

        out._backward = backward
        return out

    def __mul__(self, other: float) -> Any:
        out = Value(self.data * other, (self,))

        def backward() -> None:
            self.grad += other * out.grad

        out._backward = backward
        return out

    def backward(self) -> None:
        order, stack = [], [self]
        while stack:
            order.append(value := stack.pop())
            stack.extend(value._parents)
        self.grad = 1.0
        for value in order:
            if value._backward:
                value._backward()


@pytest.mark.parametrize("name", ["x + 1", "x · 1.0001", "sin x", "x + x / 1000"])
def test_chain_of_scalars(compete: Any, name: str) -> None:
    operation = {
        "x + 1": lambda x: x + 1.0,
        "x · 1.0001": lambda x: x * 1.0001,
        "x + x / 1000": lambda x: x + x * 0.001,
    }.get(name)

    def ours() -> Any:
        x = mg.Tensor(1.0, requires_grad=True)
        chain(x, operation or mg.sin).backward()
        return x.grad

    def pytorch() -> Any:
        x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        chain(x, operation or torch.sin).backward()
        return x.grad

    def hips() -> Any:
        return autograd.grad(lambda x: chain(x, operation or anp.sin))(numpy.array(1.0))

    def micrograd_like() -> Any:
        x = Value(1.0)
        chain(x, operation).backward()
        return x.grad

    peers = {"PyTorch": pytorch, "HIPS autograd": hips}
    if name in ("x + 1", "x · 1.0001"):
        peers["scalars in Python"] = micrograd_like
    per = OPERATIONS * (2 if name == "x + x / 1000" else 1)
    compete(name, ours, peers, 1e-9, reach=0.8, table="The engine, time per operation", per=per)
