"""minigrad.random: one seed, the same numbers on every backend, and a state that can be saved."""

import json
import math
from functools import reduce
from typing import Any

import numpy
import pytest
from checks import value
from numpy.testing import assert_array_equal

import minigrad as mg
from minigrad import backend, random, use_backend

INSTALLED = [name for name in ("numpy", "array_api_strict", "torch", "jax") if backend.is_installed(name)]


def draws() -> list[Any]:
    random.seed(7)
    return [
        value(x)
        for x in (
            random.normal((2, 3), 1.0, 2.0),
            random.uniform(4, -1.0, 1.0),
            random.integers(0, 10, (5,)),
            random.permutation(6),
            random.normal((), dtype="float32"),
        )
    ]


@pytest.mark.parametrize("name", INSTALLED)
def test_the_same_numbers_everywhere(name: str) -> None:
    here = draws()
    with use_backend(name):
        assert random.uniform(2).backend == name
        there = draws()
    for x, y in zip(here, there, strict=True):
        assert x.dtype == y.dtype
        assert_array_equal(x, y)


def test_they_are_numpys_philox() -> None:
    rng = numpy.random.Generator(numpy.random.Philox(3))
    generator = random.Generator(3)
    assert_array_equal(value(generator.normal((4,), 2.0, 0.5)), rng.normal(2.0, 0.5, 4))
    assert_array_equal(value(generator.uniform((4,), -2.0, 0.5)), rng.uniform(-2.0, 0.5, 4))
    assert_array_equal(value(generator.integers(3, 9, (4,))), rng.integers(3, 9, 4))
    assert_array_equal(value(generator.permutation(4)), rng.permutation(4))


def test_shapes_dtypes_and_devices() -> None:
    assert random.normal(3).shape == (3,)
    assert random.normal(()).shape == ()
    assert random.uniform((2, 0)).shape == (2, 0)
    assert backend.dtype_name(random.normal((2,)).dtype) == "float64"
    assert backend.dtype_name(random.uniform((2,), dtype="float32").dtype) == "float32"
    assert backend.dtype_name(random.integers(0, 3, (2,)).dtype) == "int64"
    assert random.integers(0, 3).shape == ()
    assert sorted(random.permutation(20).tolist()) == list(range(20))
    assert random.normal((2,)).device == mg.zeros(2).device
    assert not random.normal((2,)).requires_grad


def test_bounds() -> None:
    x = value(random.uniform((1000,), 2.0, 3.0))
    assert ((x >= 2) & (x < 3)).all()
    i = value(random.integers(-1, 2, (1000,)))
    assert set(i.tolist()) == {-1, 0, 1}


def test_seed_starts_again() -> None:
    random.seed(1)
    one = random.normal((3,)).tolist()
    two = random.normal((3,)).tolist()
    assert one != two
    random.seed(1)
    assert random.normal((3,)).tolist() == one
    random.seed(2)
    assert random.normal((3,)).tolist() != one


def test_generators_are_independent() -> None:
    one, two = random.Generator(5), random.Generator(5)
    one.normal((10,))
    random.normal((10,))
    assert two.normal((3,)).tolist() == random.Generator(5).normal((3,)).tolist()


def test_state_goes_through_json() -> None:
    generator = random.Generator(5)
    generator.normal((7,))
    generator.integers(0, 3, (1,), dtype="int32")  # leaves half of a word in the buffer
    state = json.loads(json.dumps(generator.state))
    expected = [generator.normal((5,)).tolist(), generator.integers(0, 100, (5,)).tolist()]
    for other in (random.Generator(99), generator):
        other.state = state
        assert [other.normal((5,)).tolist(), other.integers(0, 100, (5,)).tolist()] == expected
        assert other.state == generator.state


def test_state_is_a_snapshot() -> None:
    generator = random.Generator(5)
    state = generator.state
    before = json.dumps(state)
    generator.normal((100,))
    assert json.dumps(state) == before


@pytest.mark.parametrize("bad", [-1, 1.5, None, "seed"])
def test_bad_seeds(bad: Any) -> None:
    with pytest.raises(ValueError, match="seed: expected an int that is not negative, got"):
        random.Generator(bad)
    with pytest.raises(ValueError, match="seed: expected an int that is not negative, got"):
        random.seed(bad)


@pytest.mark.parametrize("generator", [random, random.Generator(1)])
@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("normal", ((2,), 0.0, -1.0), "a shape and numbers, std not negative, got mean=0.0, std=-1.0, shape=(2,)"),
        ("normal", ((2,), "a"), "a shape and numbers, std not negative, got mean='a', std=1.0, shape=(2,)"),
        ("normal", (-1,), "a shape and numbers, std not negative, got mean=0.0, std=1.0, shape=-1"),
        ("uniform", (2, 1.0, 0.0), "a shape and finite numbers, low ≤ high, got low=1.0, high=0.0, shape=2"),
        ("uniform", (2, 0.0, math.inf), "a shape and finite numbers, low ≤ high, got low=0.0, high=inf, shape=2"),
        ("uniform", ("a",), "a shape and finite numbers, low ≤ high, got low=0.0, high=1.0, shape='a'"),
        ("integers", (3, 3), "a shape and ints of 64 bits, low < high, got low=3, high=3, shape=()"),
        ("integers", (-(2**64), 0), f"a shape and ints of 64 bits, low < high, got low={-(2**64)}, high=0, shape=()"),
        ("integers", (0.5, 2), "a shape and ints of 64 bits, low < high, got low=0.5, high=2"),
        ("integers", (0, None), "a shape and ints of 64 bits, low < high, got low=0, high=None"),
        ("permutation", (-1,), "an int that is not negative, got -1"),
        ("permutation", (1.5,), "an int that is not negative, got 1.5"),
        ("permutation", ([3, 4],), "an int that is not negative, got [3, 4]"),
    ],
)  # fmt: skip
def test_bad_arguments(generator: Any, name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(generator, name)(*args)
    assert str(caught.value) == f"{name}: expected {message}"


def test_numpys_integers_are_integers() -> None:
    assert random.permutation(numpy.int64(3)).shape == (3,)
    assert random.integers(numpy.int32(4), numpy.int64(5)).item() == 4


STATE = random.Generator(1).state


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"bit_generator": "MT19937"}, None, 3, STATE | {"more": 1}, STATE | {"state": None},
        *(
            STATE | {"state": STATE["state"] | {"counter": counter}}
            for counter in ([-1, 0, 0, 0], [10**30, 0, 0, 0], [0], [0] * 1000, [0.5] * 4, 0, None, [[0] * 4])
        ),
        *(STATE | {"buffer_pos": at} for at in (-5, 5, 10**6, 10**30, 1.5, None)),
        *(STATE | {"uinteger": at} for at in (-1, 10**30, "1")), STATE | {"buffer": []},
        reduce(lambda inside, _: {"state": inside}, range(900), {}),
    ],
)  # fmt: skip
def test_bad_states(bad: Any) -> None:
    generator = random.Generator(1)
    before = generator.state
    with pytest.raises(ValueError, match=r"^state: expected what Generator.state gave, got .{1,300}$"):
        generator.state = bad
    assert generator.state == before
    generator.state = before
