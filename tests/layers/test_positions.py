"""Positions: the published waves, learned vectors, and rotations whose products know the distance alone."""

import math
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention.layers import LearnedPositions, MultiHeadAttention, RotaryPositions, SinusoidalPositions


def test_sinusoidal_is_the_published_formula() -> None:
    table = SinusoidalPositions(50, 8, dtype="float64")(mg.zeros((50, 8))).numpy()
    for t in (0, 1, 7, 49):
        for i in range(4):
            angle = t / 10000 ** (2 * i / 8)
            assert table[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_in_halves_has_the_same_waves_sines_first() -> None:
    pairs, halves = (SinusoidalPositions(50, 8, "float64", halves=h)(mg.zeros((50, 8))).numpy() for h in (False, True))
    numpy.testing.assert_array_equal(halves, numpy.concatenate([pairs[:, ::2], pairs[:, 1::2]], axis=1))


def test_sinusoidal_has_nothing_to_learn() -> None:
    assert SinusoidalPositions(5, 4).parameters() == []
    assert RotaryPositions(5, 4).parameters() == []


def test_learned_positions_add_their_row_and_learn_it() -> None:
    positions = LearnedPositions(6, 4, dtype="float64")
    x = mg.random.normal((2, 3, 4))
    y = positions(x, offset=2)
    numpy.testing.assert_allclose((y - x).numpy()[1], positions.weight.numpy()[2:5], atol=1e-12)
    mg.sum(y).backward()
    assert positions.weight.grad is not None
    assert positions.weight.grad.numpy()[:, 0].tolist() == [0, 0, 2, 2, 2, 0]


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, RotaryPositions])
def test_a_sequence_in_two_parts_has_the_positions_of_the_whole(kind: Any) -> None:
    positions = kind(8, 4, dtype="float64")
    x = mg.random.normal((2, 7, 4))
    parts = [positions(x[:, :3, :]), positions(x[:, 3:, :], offset=3)]
    numpy.testing.assert_allclose(mg.concat(parts, axis=1).numpy(), positions(x).numpy(), atol=1e-14)


def rotated(x: mg.Tensor, position: int) -> mg.Tensor:
    turned: mg.Tensor = RotaryPositions(200, 8, dtype="float64")(mg.expand_dims(x, axis=0), offset=position)[0, :]
    return turned


def test_rotary_products_depend_on_the_distance_alone() -> None:
    q, k = mg.random.normal((8,)), mg.random.normal((8,))
    products = [float(mg.sum(rotated(q, m) * rotated(k, n))) for m, n in [(3, 1), (12, 10), (151, 149)]]
    assert products == pytest.approx([products[0]] * 3, rel=1e-10)
    assert float(mg.sum(rotated(q, 1) * rotated(k, 3))) != pytest.approx(products[0])
    assert float(mg.sum(rotated(q, 5) ** 2)) == pytest.approx(float(mg.sum(q**2)))


def test_rotary_turns_pairs_by_the_published_angles() -> None:
    x = mg.random.normal((8,)).numpy()
    turned = rotated(mg.asarray(x.tolist()), 7).numpy()
    for i in range(4):
        turn = complex(math.cos(7 * 10000 ** (-2 * i / 8)), math.sin(7 * 10000 ** (-2 * i / 8)))
        pair = complex(x[2 * i], x[2 * i + 1]) * turn
        assert (turned[2 * i], turned[2 * i + 1]) == pytest.approx((pair.real, pair.imag))


def test_attention_with_rotary_positions_sees_distances_alone() -> None:
    attend = MultiHeadAttention(8, 2, rotary=RotaryPositions(20, 4, dtype="float64"), dtype="float64")
    x = mg.random.normal((1, 5, 8))
    shuffled = x[:, ::-1, :]
    assert not numpy.allclose(attend(shuffled).numpy()[:, ::-1], attend(x).numpy())
    # Five more positions in front, which nobody may attend to, move the sequence and change nothing.
    longer = mg.concat([x, x], axis=1)
    may = mg.asarray([[j >= 5 for j in range(10)]])
    numpy.testing.assert_allclose(attend(longer, attn_mask=may).numpy()[:, 5:], attend(x).numpy(), atol=1e-12)


def test_the_angles_that_were_used_last_are_used_for_no_other_positions() -> None:
    turn, x = RotaryPositions(20, 4), mg.random.normal((5, 4), dtype="float32")
    for length, offset in [(5, 0), (5, 0), (5, 3), (2, 3), (5, 0)]:
        fresh = RotaryPositions(20, 4)
        given = x[:length, :]
        numpy.testing.assert_array_equal(turn(given, offset).numpy(), fresh(given, offset).numpy())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SinusoidalPositions(5, 3), "SinusoidalPositions: expected an even width"),
        (lambda: RotaryPositions(5, 3), "RotaryPositions: expected an even width"),
        (lambda: SinusoidalPositions(5, 4)(mg.ones((6, 4))), "a sequence of 6 positions is longer than max_length=5"),
        (lambda: LearnedPositions(5, 4)(mg.ones((2, 4)), offset=4), "LearnedPositions: a sequence of 6 positions"),
        (lambda: RotaryPositions(5, 4)(mg.ones((6, 4))), "RotaryPositions: a sequence of 6 positions"),
        (
            lambda: LearnedPositions(5, 4)(mg.ones((2, 4)), offset=-2),
            "LearnedPositions: expected an offset of 0 or more",
        ),
        (lambda: RotaryPositions(5, 4)(mg.ones((2, 4)), offset=-1), "RotaryPositions: expected an offset of 0 or more"),
        (
            lambda: SinusoidalPositions(-1, 4),
            "SinusoidalPositions: expected max_length to be a positive integer, got -1",
        ),
        (lambda: LearnedPositions(0, 4), "LearnedPositions: expected max_length to be a positive integer, got 0"),
        (lambda: LearnedPositions(5, 4)(mg.ones((4,))), r"expected x of shape \(\.\.\., T, 4\), got \(4,\)"),
        (lambda: LearnedPositions(5, 4)(mg.ones((2, 3))), r"LearnedPositions: expected x of shape \(\.\.\., T, 4\)"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
