"""dropout: which elements go, what becomes of the others, and that the stream is one for all backends."""

import math
from typing import Any

import composed
import numpy
import pytest
from checks import tensor, value
from composed import agree
from numpy.testing import assert_array_equal

import attention.functional as F
import minigrad as mg
from minigrad.random import Generator


def test_twin() -> None:
    x = numpy.random.default_rng(0).normal(size=(4, 5))
    kept = tensor(numpy.random.Generator(numpy.random.Philox(3)).uniform(0, 1, (4, 5)) >= 0.3)
    agree(lambda x: F.dropout(x, 0.3, generator=Generator(3)), lambda x: composed.dropout(x, kept, 0.3), x)


def test_a_share_of_p_is_0_and_the_mean_stays() -> None:
    y = value(F.dropout(tensor(numpy.ones(100_000)), 0.2))
    assert set(numpy.unique(y)) == {0.0, 1.25}
    assert abs(numpy.mean(y == 0) - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 100_000)  # five standard deviations


def test_one_seed_is_one_choice() -> None:
    x = tensor(numpy.ones((8, 8)))
    once, again, other = (value(F.dropout(x, generator=Generator(seed))) for seed in (1, 1, 2))
    assert_array_equal(once, again)
    assert numpy.any(once != other)
    generator = Generator(1)
    assert_array_equal(value(F.dropout(x, generator=generator)), once)
    assert numpy.any(value(F.dropout(x, generator=generator)) != once)


def test_the_default_generator_is_the_seeded_one() -> None:
    x = tensor(numpy.ones(64))
    mg.random.seed(5)
    once = value(F.dropout(x))
    assert_array_equal(value(F.dropout(x, generator=Generator(5))), once)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.7, False), (1.0, False)])
def test_nothing_happens(p: float, training: bool) -> None:
    x = tensor([1.0, math.nan], requires_grad=True)
    state = mg.random.default.state
    assert F.dropout(x, p, training) is x
    assert mg.random.default.state == state


def test_p_1_gives_zeros_whatever_was_there() -> None:
    x = tensor([1.0, math.inf, math.nan], requires_grad=True)
    y = F.dropout(x, 1.0)
    assert_array_equal(value(y), [0, 0, 0])
    y.backward(tensor([1.0, 1.0, 1.0]))
    assert_array_equal(value(x.grad), [0, 0, 0])


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
@pytest.mark.parametrize("training", [True, False])
def test_p_is_a_probability(p: Any, training: bool) -> None:
    with pytest.raises(ValueError, match=r"^dropout: expected p between 0 and 1, got"):
        F.dropout(tensor([1.0]), p, training)
