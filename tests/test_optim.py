"""minigrad.optim: the formulas of the papers, exact saving and loading, and that nothing else is disturbed."""

import json
import math
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from minigrad import backend
from minigrad.optim import SGD, Adam, AdamW, Optimizer, clip_grad_norm_, warmup_cosine


def parameters() -> list[mg.Tensor]:
    rng = numpy.random.default_rng(0)
    return [tensor(rng.normal(size=shape), requires_grad=True) for shape in ((3, 2), (2,), ())]


def loss(params: list[mg.Tensor], step: int = 0) -> mg.Tensor:
    w, b, s = params
    x = tensor(numpy.random.default_rng(step).normal(size=(4, 3)))
    return mg.mean((mg.tanh(x @ w + b) * s - 0.3) ** 2)


def train(params: list[mg.Tensor], optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss(params, step).backward()
        clip_grad_norm_(params, 0.5)
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: Adam(p, lr=0.05, weight_decay=0.01),
    "adamw": lambda p: AdamW(p, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
}


# ------------------------------------------------------------------------------------------------ the formulas


def test_sgd_follows_its_formula() -> None:
    p, g1, g2 = 2.0, 3.0, -1.0
    x = tensor(p, requires_grad=True)
    optimizer = SGD([x], lr=0.1, momentum=0.9, weight_decay=0.5)
    b = 0.0
    for g in (g1, g2):
        x.grad = tensor(g)
        optimizer.step()
        b = 0.9 * b + g + 0.5 * p
        p = p - 0.1 * b
        assert_allclose(value(x), p, rtol=1e-15)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(numpy.float64, 1e-14), (numpy.float32, 1e-6)])
@pytest.mark.parametrize("shape", [(), (3, 7)])
def test_adam_follows_its_formula(decoupled: bool, dtype: Any, rtol: float, shape: tuple[int, ...]) -> None:
    lr, beta1, beta2, eps, decay = 0.1, 0.8, 0.9, 1e-3, 0.5
    p = numpy.random.default_rng(0).uniform(1, 2, size=shape).astype(dtype).astype(float)
    m = v = numpy.zeros(shape)
    x = tensor(p.astype(dtype), requires_grad=True)
    optimizer = (AdamW if decoupled else Adam)([x], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    for t, given in enumerate((3.0, -1.0, 0.5), start=1):
        x.grad = tensor(numpy.full(shape, given, dtype))
        optimizer.step()
        g = given if decoupled else given + decay * p
        if decoupled:
            p = p - lr * decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        p = p - lr * (m / (1 - beta1**t)) / (numpy.sqrt(v / (1 - beta2**t)) + eps)
        assert_allclose(value(x), p, rtol=rtol)


def test_without_decay_adam_and_adamw_are_the_same() -> None:
    one, two = parameters(), parameters()
    train(one, Adam(one, lr=0.1), range(5))
    train(two, AdamW(two, lr=0.1, weight_decay=0.0), range(5))
    for p, q in zip(one, two, strict=True):
        assert_array_equal(value(p), value(q))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
def test_it_learns_and_keeps_shapes_and_dtypes(make: Any, dtype: Any) -> None:
    target = tensor(numpy.array([1.0, -2.0, 0.5], dtype))
    w = tensor(numpy.zeros(3, dtype), requires_grad=True)
    before = w.dtype
    optimizer = make([w])
    for _ in range(200):
        optimizer.zero_grad()
        mg.sum((w - target) ** 2).backward()
        optimizer.step()
    assert w.dtype == before
    assert w.shape == (3,)
    assert_allclose(value(w), value(target), atol=0.2)


def test_half_precision_is_computed_in_float32() -> None:
    """Adam's epsilon is 0 in float16, where a gradient of 0 would give 0/0 and 1e-4, whose square is 0, infinity."""
    if not hasattr(backend.current().xp, "float16"):
        pytest.skip(f"{mg.get_backend()} has no float16")
    for optimizer, expected in (
        (AdamW, [1 - 1e-5, 2 - 2e-5 - 1e-3]),  # a step of lr, and the decay
        (SGD, [1.0 - 1e-5, 2 - 2e-5 - 1e-7]),
    ):
        w = tensor(numpy.array([1, 2], numpy.float16), requires_grad=True)
        w.grad = tensor(numpy.array([0, 1e-4], numpy.float16))
        optimizer([w], lr=1e-3, weight_decay=1e-2).step()
        assert backend.dtype_name(w.dtype) == "float16"
        assert_array_equal(value(w), numpy.float16(expected))


# ------------------------------------------------------------------------------------------------ groups


def test_groups_have_their_own_options() -> None:
    a, b = (tensor([1.0], requires_grad=True) for _ in range(2))
    optimizer = SGD([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.1)
    for p in (a, b):
        p.grad = tensor([1.0])
    optimizer.step()
    assert_allclose([value(a)[0], value(b)[0]], [0.5, 0.9])
    optimizer.param_groups[1]["lr"] = 1.0
    optimizer.step()
    assert_allclose([value(a)[0], value(b)[0]], [0.0, -0.1], atol=1e-15)


def test_a_parameter_without_a_gradient_stays() -> None:
    used, unused = (tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    optimizer = AdamW([used, unused], lr=0.1, weight_decay=0.5)
    mg.sum(used**2).backward()
    optimizer.step()
    assert_array_equal(value(unused), [1, 2])
    assert unused not in optimizer.state
    assert value(used)[0] < 1


def test_parameters_may_come_from_a_generator() -> None:
    params = parameters()
    assert len(SGD(p for p in params).param_groups[0]["params"]) == 3


@pytest.mark.parametrize("kind", [numpy.float32, numpy.float64])
@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
def test_numpy_scalars_are_hyperparameters_like_any_number(make: Any, kind: Any) -> None:
    """They change no dtype, whether given at first or between steps, and a saved group is plain data."""
    one, two = (tensor(numpy.float32([1, 2]), requires_grad=True) for _ in range(2))
    extra = {"momentum": 0.5} if make is SGD else {"betas": (0.5, 0.75), "eps": 0.125}
    arrays = {name: tuple(map(kind, v)) if name == "betas" else kind(v) for name, v in extra.items()}
    plain, ours = make([one], lr=0.5, **extra), make([two], lr=kind(0.5), **arrays)
    for decay in (0.0, 0.25):
        plain.param_groups[0]["weight_decay"], ours.param_groups[0]["weight_decay"] = decay, kind(decay)
        for p, optimizer, number in ((one, plain, float), (two, ours, kind)):
            p.grad = tensor(numpy.float32([3, 4]))
            clip_grad_norm_([p], number(0.5))
            optimizer.step()
    assert two.dtype == one.dtype
    assert_array_equal(value(two), value(one))
    assert json.dumps(ours.state_dict()["param_groups"]) == json.dumps(plain.state_dict()["param_groups"])


def test_a_step_with_a_wrong_option_changes_nothing() -> None:
    a, b = leaf(), leaf()
    optimizer = SGD([{"params": a}, {"params": b}], momentum=0.9)
    for wrong, error, message in (
        ("a", TypeError, "SGD: expected lr as a number, got str"),
        (tensor(0.1), TypeError, "SGD: expected lr as a number, got Tensor"),
        (math.nan, ValueError, "SGD: expected lr >= 0, got nan"),
    ):
        a.grad, b.grad = tensor([1.0]), tensor([1.0])
        optimizer.param_groups[1]["lr"] = wrong
        with pytest.raises(error, match=f"^{message}$"):
            optimizer.step()
        assert_array_equal(value(a), [1])
        assert not optimizer.state


def test_zero_grad() -> None:
    params = parameters()
    optimizer = SGD(params)
    loss(params).backward()
    assert all(p.grad is not None for p in params)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


# ------------------------------------------------------------------------------------------------ what must not change


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_pending_graph_is_not_disturbed(make: Any) -> None:
    w = tensor([1.0, 2.0], requires_grad=True)
    optimizer = make([w])
    pending = mg.sum(w**3)
    w.grad = tensor([1.0, 1.0])
    optimizer.step()
    assert not numpy.array_equal(value(w), [1, 2])
    w.grad = None
    pending.backward()  # of the values with which it was made
    assert w.grad is not None
    assert_array_equal(value(w.grad), [3, 12])


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_gradients_and_views_are_not_written(make: Any) -> None:
    w = tensor([1.0, 2.0], requires_grad=True)
    view = w.detach()
    g = tensor([1.0, -1.0])
    w.grad = g
    optimizer = make([w])
    for _ in range(2):
        clip_grad_norm_([w], 0.1)
        optimizer.step()
    assert_array_equal(value(g), [1, -1])
    assert_array_equal(value(view), [1, 2])


def test_saved_state_is_a_snapshot() -> None:
    params = parameters()
    optimizer = Adam(params)
    train(params, optimizer, range(1))
    saved = optimizer.state_dict()
    before = value(saved["state"][0]["exp_avg"])
    train(params, optimizer, range(1, 3))
    assert_array_equal(value(saved["state"][0]["exp_avg"]), before)
    assert saved["state"][0]["step"] == 1


# ------------------------------------------------------------------------------------------------ saving and loading


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_bit_for_bit(make: Any) -> None:
    straight = parameters()
    optimizer = make(straight)
    train(straight, optimizer, range(10))

    first = parameters()
    optimizer = make(first)
    train(first, optimizer, range(5))
    saved = optimizer.state_dict()

    second = [tensor(value(p), requires_grad=True) for p in first]
    optimizer = make(second)
    optimizer.load_state_dict(saved)
    train(second, optimizer, range(5, 10))
    for p, q in zip(straight, second, strict=True):
        assert_array_equal(value(p), value(q))


def test_state_goes_through_json_and_numpy() -> None:
    params = parameters()
    optimizer = AdamW([{"params": params[:2], "lr": 0.2}, {"params": params[2:]}])
    train(params, optimizer, range(3))
    saved = optimizer.state_dict()
    arrays = {(i, name): state.pop(name) for i, state in saved["state"].items() for name in ("exp_avg", "exp_avg_sq")}
    again = json.loads(json.dumps(saved))
    for (i, name), array in arrays.items():
        again["state"][str(i)][name] = value(array)  # NumPy's, whatever the backend is

    copies = [tensor(value(p), requires_grad=True) for p in params]
    other = AdamW([{"params": copies[:2]}, {"params": copies[2:]}], lr=1.0)
    other.load_state_dict(again)
    assert [group["lr"] for group in other.param_groups] == [0.2, 1e-3]
    train(params, optimizer, range(3, 6))
    train(copies, other, range(3, 6))
    for p, q in zip(params, copies, strict=True):
        assert_array_equal(value(p), value(q))


def test_state_of_other_parameters_is_refused() -> None:
    params = parameters()
    optimizer = Adam(params)
    train(params, optimizer, range(1))
    saved = optimizer.state_dict()
    before = value(optimizer.state[params[0]]["exp_avg"])

    with pytest.raises(
        ValueError, match=r"Adam: expected the state of groups of \[2\] parameters, got groups of \[3\]"
    ):
        Adam(params[:2]).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"Adam: expected groups with .*betas.*, got .*momentum"):
        optimizer.load_state_dict(SGD(params).state_dict())
    bad = {**saved, "state": {**saved["state"], 0: {**saved["state"][0], "exp_avg": tensor([1.0])}}}
    with pytest.raises(
        ValueError, match=r"Adam: exp_avg of parameter 0: expected float64 \(3, 2\).*, got float64 \(1,\)"
    ):
        optimizer.load_state_dict(bad)
    bad["state"] = {7: saved["state"][0]}
    with pytest.raises(ValueError, match="Adam: got the state of parameter 7, but there are 3"):
        optimizer.load_state_dict(bad)
    assert_array_equal(value(optimizer.state[params[0]]["exp_avg"]), before)  # nothing was changed


def _without(name: str, values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    ("state", "group", "error", "message"),
    [
        (lambda s: _without("exp_avg_sq", s), {}, ValueError,
         "Adam: expected step, exp_avg, exp_avg_sq of parameter 0, got step, exp_avg$"),
        (lambda s: _without("step", s), {}, ValueError, "Adam: expected step, .* of parameter 0, got exp_avg, exp_av"),
        (lambda s: {**s, "more": 1}, {}, ValueError, "Adam: expected step, .* of parameter 0, got .*, more$"),
        (lambda s: {**s, "step": -1}, {}, ValueError, "Adam: step of parameter 0: expected a whole .*, got -1"),
        (lambda s: {**s, "step": 1.5}, {}, ValueError, "Adam: step of parameter 0: expected a whole .*, got 1.5"),
        (lambda s: {**s, "exp_avg": 1}, {}, ValueError, r"Adam: exp_avg of parameter 0: expected float64 .*, got 1"),
        (lambda s: 5, {}, ValueError, "Adam: expected a dict with 'state' and 'param_groups', as state_dict"),
        (lambda s: s, {"lr": -5}, ValueError, "Adam: expected lr >= 0, got -5"),
        (lambda s: s, {"lr": "a"}, TypeError, "Adam: expected lr as a number, got str"),
        (lambda s: s, {"betas": [2, 3]}, ValueError, r"Adam: expected two betas in \[0, 1\), got \[2, 3\]"),
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(state: Any, group: dict[str, Any], error: type[Exception], message: str) -> None:
    params = parameters()
    optimizer = Adam(params)
    train(params, optimizer, range(1))
    before = optimizer.state_dict()
    damaged = {
        "state": before["state"] | {0: state(before["state"][0])},
        "param_groups": [before["param_groups"][0] | group],
    }
    with pytest.raises(error, match=f"^{message}") as caught:
        optimizer.load_state_dict(damaged)
    assert "\n" not in str(caught.value)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for i, values in before["state"].items():
        assert after["state"][i]["step"] == values["step"]
        assert_array_equal(value(after["state"][i]["exp_avg"]), value(values["exp_avg"]))


def test_a_state_without_its_parts_is_refused() -> None:
    for state in ({}, {"state": {}}, {"param_groups": []}, None, {"state": {"a": {}}, "param_groups": []}):
        with pytest.raises(ValueError, match=r"^SGD: expected a dict with 'state' and 'param_groups'"):
            SGD(parameters()).load_state_dict(state)  # type: ignore[arg-type]
    momentum = SGD(parameters(), momentum=0.9)
    with pytest.raises(ValueError, match=r"^SGD: momentum_buffer of parameter 2: expected float64 \(\) .*, got 3$"):
        momentum.load_state_dict(momentum.state_dict() | {"state": {2: {"momentum_buffer": 3}}})


@pytest.mark.parametrize("step", [numpy.int64(7), numpy.array(7), tensor(7), 7])
def test_the_number_of_steps_may_be_any_integer(step: Any) -> None:
    w = leaf()
    optimizer = Adam([w])
    state = {"step": step, "exp_avg": numpy.zeros(1), "exp_avg_sq": numpy.zeros(1)}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: state}})
    assert optimizer.state_dict()["state"][0]["step"] == 7


def test_the_moments_of_half_precision_are_saved_in_float32() -> None:
    if not hasattr(backend.current().xp, "float16"):
        pytest.skip(f"{mg.get_backend()} has no float16")
    one, two = (tensor(numpy.array([1, 2], numpy.float16), requires_grad=True) for _ in range(2))
    first, second = Adam([one]), Adam([two])
    one.grad = tensor(numpy.array([1, 1e-4], numpy.float16))
    first.step()
    saved = first.state_dict()
    assert backend.dtype_name(saved["state"][0]["exp_avg_sq"].dtype) == "float32"
    second.load_state_dict(saved)
    two.data = one.data
    for p, optimizer in ((one, first), (two, second)):
        p.grad = tensor(numpy.array([1, 1e-4], numpy.float16))
        optimizer.step()
    assert_array_equal(value(two), value(one))


# ------------------------------------------------------------------------------------------------ clipping


def test_clipping_is_by_the_common_norm() -> None:
    a, b = tensor([0.0, 0.0], requires_grad=True), tensor(0.0, requires_grad=True)
    a.grad, b.grad = tensor([3.0, 0.0]), tensor(4.0)
    norm = clip_grad_norm_([a, b], 1.0)
    assert type(norm) is mg.Tensor
    assert norm.shape == ()
    assert norm.item() == 5.0
    assert_allclose(value(a.grad), [0.6, 0], rtol=1e-6)
    assert_allclose(value(b.grad), 0.8, rtol=1e-6)


def test_small_gradients_are_left_as_they_are() -> None:
    x = tensor([0.0, 0.0], requires_grad=True)
    for max_norm in (5.1, math.inf):
        x.grad = tensor([3.0, 4.0])
        assert clip_grad_norm_(x, max_norm).item() == 5.0
        assert_array_equal(value(x.grad), [3, 4])


def test_clipping_nothing() -> None:
    x = tensor([1.0], requires_grad=True)
    assert clip_grad_norm_([x], 1.0).item() == 0.0
    assert clip_grad_norm_([], 1.0).item() == 0.0
    x.grad = tensor([0.0])
    assert clip_grad_norm_([x], 1.0).item() == 0.0
    assert_array_equal(value(x.grad), [0])


def test_clipping_complex_and_float32() -> None:
    z = tensor([0j], requires_grad=True)
    z.grad = tensor([3 + 4j])
    assert clip_grad_norm_([z], 1.0).item() == 5.0
    assert_allclose(value(z.grad), [0.6 + 0.8j], rtol=1e-6)
    x = tensor(numpy.float32([0.0]), requires_grad=True)
    x.grad = tensor(numpy.float32([2.0]))
    assert backend.dtype_name(clip_grad_norm_([x], 1.0).dtype) == "float32"
    assert backend.dtype_name(x.grad.dtype) == "float32"


def test_the_norm_of_half_precision_does_not_overflow() -> None:
    if not hasattr(backend.current().xp, "float16"):
        pytest.skip(f"{mg.get_backend()} has no float16")
    x = tensor(numpy.zeros(2, numpy.float16), requires_grad=True)
    x.grad = tensor(numpy.array([3000, 4000], numpy.float16))  # 4000² is beyond float16
    norm = clip_grad_norm_([x], 5.0)
    assert norm.item() == 5000
    assert backend.dtype_name(x.grad.dtype) == "float16"
    assert_allclose(value(x.grad), [3, 4], rtol=1e-3)


def test_clipping_parameters_of_two_libraries() -> None:
    here = leaf()
    with mg.use_backend("numpy" if mg.get_backend() != "numpy" else "array_api_strict"):
        there = mg.Tensor([1.0], requires_grad=True)
    here.grad, there.grad = here.detach(), there.detach()
    with pytest.raises(TypeError, match=r"^clip_grad_norm_: parameters of two libraries have no common norm: .*, .*$"):
        clip_grad_norm_([here, there], 1.0)


# ------------------------------------------------------------------------------------------------ the schedule


def test_warmup_cosine() -> None:
    rates = [warmup_cosine(s, lr=1.0, warmup_steps=4, total_steps=12, min_lr=0.2) for s in range(14)]
    assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-15)
    assert_allclose(rates[8], 0.6, rtol=1e-15)  # half way down the cosine
    assert rates[12] == rates[13] == 0.2
    assert rates[4:13] == sorted(rates[4:13], reverse=True)
    assert warmup_cosine(0, lr=1.0, warmup_steps=0, total_steps=2) == 1.0
    assert warmup_cosine(0, lr=1.0, warmup_steps=0, total_steps=0) == 0.0
    with pytest.raises(ValueError, match="expected 0 <= warmup_steps <= total_steps, got 5 and 3"):
        warmup_cosine(0, lr=1.0, warmup_steps=5, total_steps=3)
    with pytest.raises(ValueError, match=r"^warmup_cosine: expected step >= 0, got -5$"):
        warmup_cosine(-5, lr=1.0, warmup_steps=0, total_steps=3)


# ------------------------------------------------------------------------------------------------ mistakes


def leaf() -> mg.Tensor:
    return tensor([1.0], requires_grad=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SGD([]), ValueError, "SGD: expected at least one parameter, got none"),
        (
            lambda: SGD(leaf()),
            TypeError,
            r"SGD: expected an iterable of parameters, got one Tensor; write \[parameter\]",
        ),
        (lambda: SGD([1.0]), TypeError, "SGD: expected a parameter to be a Tensor, got float"),
        (lambda: SGD([leaf()], lr=-1), ValueError, "SGD: expected lr >= 0, got -1"),
        (lambda: SGD([leaf()], lr=math.nan), ValueError, "SGD: expected lr >= 0, got nan"),
        (lambda: SGD([leaf()], momentum=-0.1), ValueError, "SGD: expected momentum >= 0, got -0.1"),
        (lambda: AdamW([leaf()], weight_decay=-1.0), ValueError, "AdamW: expected weight_decay >= 0, got -1.0"),
        (lambda: Adam([leaf()], eps=-1.0), ValueError, "Adam: expected eps >= 0, got -1.0"),
        (
            lambda: Adam([leaf()], betas=(0.9, 1.0)),
            ValueError,
            r"Adam: expected two betas in \[0, 1\), got \(0.9, 1.0\)",
        ),
        (lambda: Adam([{"params": [leaf()], "lr": -2}]), ValueError, "Adam: expected lr >= 0, got -2"),
        (
            lambda: SGD([tensor([1.0])]),
            ValueError,
            r"SGD: a parameter \(float64 \(1,\) .*\) does not require a gradient",
        ),
        (lambda: SGD([leaf() * 2]), ValueError, "SGD: a parameter .* is the result of `multiply`, not a leaf"),
        (lambda: SGD([leaf()] * 2), ValueError, "SGD: a parameter .* was given twice"),
        (lambda: SGD([{"params": [p]} for p in [leaf()] * 2]), ValueError, "SGD: a parameter .* was given twice"),
        (lambda: SGD([{"lr": 1.0}]), TypeError, "SGD: expected a group as a dict with 'params', got {'lr': 1.0}"),
        (
            lambda: SGD([{"params": [leaf()], "weigth_decay": 1.0}]),
            TypeError,
            "SGD: unknown option 'weigth_decay' in a group; known: lr, momentum, weight_decay",
        ),
        (lambda: Adam([tensor([1j], True)]), TypeError, "Adam: expected real parameters, got complex128"),
        (lambda: SGD([leaf()], lr=math.inf), ValueError, "SGD: expected a finite lr, got inf"),
        (lambda: SGD([leaf()], lr="a"), TypeError, "SGD: expected lr as a number, got str"),
        (
            lambda: AdamW([leaf()], weight_decay=None),
            TypeError,
            "AdamW: expected weight_decay as a number, got NoneType",
        ),
        (lambda: Adam([leaf()], lr=tensor(0.1)), TypeError, "Adam: expected lr as a number, got Tensor"),
        (lambda: Adam([leaf()], betas=0.9), ValueError, r"Adam: expected two betas in \[0, 1\), got 0.9"),
        (lambda: Adam([leaf()], betas=("a", "b")), ValueError, r"Adam: expected two betas .*, got \('a', 'b'\)"),
        (lambda: clip_grad_norm_([leaf()], "a"), TypeError, "clip_grad_norm_: expected max_norm as a number, got str"),
        (lambda: clip_grad_norm_([leaf()], math.nan), ValueError, "clip_grad_norm_: expected max_norm >= 0, got nan"),
        (lambda: clip_grad_norm_([leaf()], -1.0), ValueError, "clip_grad_norm_: expected max_norm >= 0, got -1.0"),
    ],
)
def test_mistakes(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as caught:
        call()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ PyTorch


@pytest.mark.peers
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_as_pytorch(name: str) -> None:
    """60 steps with two groups, warm-up and cosine, and clipping."""
    import torch

    options: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.02}
    options |= {"momentum": 0.9} if name == "SGD" else {"betas": (0.85, 0.97), "eps": 1e-7}
    ours = parameters()
    theirs = [torch.tensor(value(p), requires_grad=True) for p in ours]
    optimizer = getattr(mg.optim, name)(
        [{"params": ours[:1], "weight_decay": 0.3}, {"params": ours[1:], "lr": 0.02}], **options
    )
    peer = getattr(torch.optim, name)(
        [{"params": theirs[:1], "weight_decay": 0.3}, {"params": theirs[1:], "lr": 0.02}], **options
    )
    schedule = torch.optim.lr_scheduler.SequentialLR(
        peer,
        [
            torch.optim.lr_scheduler.LinearLR(peer, start_factor=1 / 11, end_factor=1.0, total_iters=10),
            torch.optim.lr_scheduler.CosineAnnealingLR(peer, T_max=50, eta_min=1e-3),
        ],
        milestones=[10],
    )
    for step in range(60):
        for group, lr in zip(optimizer.param_groups, (0.05, 0.02), strict=True):
            group["lr"] = warmup_cosine(step, lr=lr, warmup_steps=10, total_steps=60, min_lr=1e-3)
        assert_allclose([g["lr"] for g in optimizer.param_groups], [g["lr"] for g in peer.param_groups], rtol=1e-12)

        optimizer.zero_grad()
        loss(ours, step).backward()
        norm = clip_grad_norm_(ours, 0.1)
        optimizer.step()

        peer.zero_grad()
        w, b, s = theirs
        x = torch.tensor(numpy.random.default_rng(step).normal(size=(4, 3)))
        ((torch.tanh(x @ w + b) * s - 0.3) ** 2).mean().backward()
        peer_norm = torch.nn.utils.clip_grad_norm_(theirs, 0.1)
        peer.step()
        schedule.step()

        assert_allclose(norm.item(), peer_norm.item(), rtol=1e-12)
        for p, q in zip(ours, theirs, strict=True):
            assert_allclose(value(p), q.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_as_pytorch_in_float32(name: str, half: str) -> None:
    """Each step is PyTorch's of a float32 parameter, rounded."""
    import torch

    if not hasattr(backend.current().xp, half):
        pytest.skip(f"{mg.get_backend()} has no {half}")
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.02} | ({"momentum": 0.9} if name == "SGD" else {})
    start = numpy.random.default_rng(0).normal(size=20)
    ours = mg.astype(tensor(numpy.float32(start)), half)
    ours.requires_grad = True
    theirs = torch.tensor(start).to(getattr(torch, half)).float().requires_grad_()
    optimizer: Optimizer = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW}[name]([ours], **options)
    peer = getattr(torch.optim, name)([theirs], **options)
    for step in range(20):
        g = torch.tensor(numpy.random.default_rng(step).normal(size=20) * 1e-4).to(getattr(torch, half)).float()
        ours.grad = mg.astype(tensor(g.numpy()), half)
        optimizer.step()
        theirs.grad = g
        peer.step()
        with torch.no_grad():
            theirs.copy_(theirs.to(getattr(torch, half)))
        ulp = 2.0**-10 if half == "float16" else 2.0**-7
        assert_allclose(value(mg.astype(ours, "float32")), theirs.detach().numpy(), rtol=ulp, atol=1e-6)


@pytest.mark.skipif(backend.current().name != "numpy", reason="threads are NumPy's")
def test_threads_share_large_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(backend, "threads", lambda xp, n=threads: n)
        params = [tensor(numpy.linspace(-1, 1, n), requires_grad=True) for n in (1 << 17, 3, 1 << 16, 5)]
        optimizer = AdamW(params)
        for _ in range(2):
            for p in params:
                p.grad = mg.sin(7 * p.detach())
            optimizer.step()
        found.append([value(p) for p in params])
    for alone, shared in zip(*found, strict=True):
        assert_array_equal(shared, alone)
