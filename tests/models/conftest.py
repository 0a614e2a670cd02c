"""What the tests of whole models share."""

from collections.abc import Callable

import numpy
import pytest

import minigrad as mg
from attention.layers import Module
from minigrad import backend

if backend.get_backend() == "jax":
    # JAX compiles each operation anew for each shape: a quarter of an hour for all of these. That each model gives the
    # same there is in test_every_backend.py, and the two first ones are tested whole.
    collect_ignore_glob = ["test_[!egt]*.py", "test_encoder_decoders.py", "test_gpt_published.py"]

Check = Callable[[Module, Callable[[], mg.Tensor]], None]


@pytest.fixture
def check_gradients() -> Check:
    """Hold the gradient of each parameter, along a random direction, against the finite difference."""

    def check(model: Module, loss: Callable[[], mg.Tensor], step: float = 1e-6) -> None:
        loss().backward()
        rng = numpy.random.default_rng(2)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            values = parameter.numpy().copy()
            direction = rng.normal(size=values.shape)
            ends = []
            for sign in (1, -1):
                model.load_state_dict({name: values + sign * step * direction}, strict=False)
                with mg.no_grad():
                    ends.append(float(loss()))
            model.load_state_dict({name: values}, strict=False)
            exact = float((parameter.grad.numpy() * direction).sum())
            assert exact == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8), name

    return check
