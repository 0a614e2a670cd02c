"""RETRO: equal to a composition in PyTorch that goes token by token, causal, and equal to itself with a cache."""

from typing import Any

import numpy
import pytest
from checks import tensor

import minigrad as mg
from attention import functional as F
from attention.layers.attention import Cache
from attention.models import RETRO

SIZES: dict[str, Any] = {
    "vocab_size": 19, "chunk": 3, "d_model": 8, "num_heads": 2, "d_head": 5, "d_ff": 12, "num_layers": 3,
    "context_length": 14, "reading": [1, 2], "d_encoder": 6, "encoder_layers": 2, "neighbour_length": 5,
}  # fmt: skip


def example(length: int) -> tuple[Any, Any, Any]:
    """Ids of two rows, two neighbours of four tokens for each of their chunks, and which of these are real."""
    rng = numpy.random.default_rng(length)
    neighbours = rng.integers(0, 19, (2, length // 3, 2, 4))
    real = rng.integers(0, 2, neighbours.shape).astype(bool)
    real[0, 1] = False  # nothing has been found for a chunk
    return rng.integers(0, 19, (2, length)), neighbours, real


class Composed:
    """The paper's algorithm 1 in PyTorch, for one text, with loops over tokens, chunks and neighbours."""

    def __init__(self, state: dict[str, Any], dtype: str) -> None:
        import torch

        self.p = {
            name: torch.asarray(value).to(getattr(torch, dtype)).requires_grad_() for name, value in state.items()
        }

    def logits(self, ids: Any, neighbours: Any, real: Any) -> Any:
        import torch

        p, m = self.p, SIZES["chunk"]
        h = p["tokens.weight"][ids] + p["positions.weight"][: len(ids)]
        causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        encoded: Any = None
        for i in range(SIZES["num_layers"]):
            name = f"blocks.{i}."
            h = h + self.attention(name + "attention", self.norm(name + "attention_residual", h), None, causal)
            if i in SIZES["reading"]:
                if encoded is None:
                    encoded = [
                        [self.encode(n, r, h[u * m : u * m + m]) for n, r in zip(neighbours[u], real[u], strict=True)]
                        for u in range(len(ids) // m)
                    ]
                rows = []
                for t in range(len(ids)):
                    u = (t + 1) // m - 1  # the last chunk that ends with token t, or before it
                    if u < 0 or not real[u].any():
                        rows.append(h[t])
                        continue
                    source = torch.cat([e[r] for e, r in zip(encoded[u], real[u], strict=True)])
                    query = self.norm(name + "cross_attention_residual", h[t : t + 1])
                    rows.append(h[t] + self.attention(name + "cross_attention", query, source)[0])
                h = torch.stack(rows)
            h = h + self.feed_forward(name, h)
        return self.norm("", h) @ p["tokens.weight"].T

    def encode(self, ids: Any, real: Any, chunk: Any) -> Any:
        x = self.p["encoder_tokens.weight"][ids] + self.p["encoder_positions.weight"][: len(ids)]
        for i in range(SIZES["encoder_layers"]):
            name = f"encoder.{i}."
            y = self.norm(name + "attention_residual", x)
            x = x + self.attention(name + "attention", y, y[real])
            x = x + self.attention(name + "cross_attention", self.norm(name + "cross_attention_residual", x), chunk)
            x = x + self.feed_forward(name, x)
        return self.norm("encoder_", x)

    def norm(self, name: str, x: Any) -> Any:
        import torch

        weight = self.p[f"{name}.norm.weight" if name.endswith("residual") else f"{name}norm.weight"]
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps=1e-6)

    def attention(self, name: str, x: Any, source: Any = None, mask: Any = None) -> Any:
        import torch

        source = x if source is None else source
        query, key, value = (
            (y @ self.p[f"{name}.{part}.weight"]).unflatten(1, (2, -1)).transpose(0, 1)
            for part, y in (("query", x), ("key", source), ("value", source))
        )
        y = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return y.transpose(0, 1).flatten(1) @ self.p[f"{name}.output.weight"]

    def feed_forward(self, name: str, x: Any) -> Any:
        import torch

        up, down = (self.p[f"{name}feed_forward.{part}.weight"] for part in ("up", "down"))
        return torch.nn.functional.gelu(self.norm(name + "feed_forward_residual", x) @ up) @ down


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("length", [9, 10, 11])
@pytest.mark.parametrize("masked", [False, True])
def test_as_composed_in_pytorch(masked: bool, length: int, dtype: str) -> None:
    import torch
    from reference import close

    ids, neighbours, real = example(length)
    real = real if masked else numpy.ones_like(real)
    model = RETRO(**SIZES, dtype="float64")
    rng = numpy.random.default_rng(0)
    state = {name: rng.normal(size=value.shape) * 0.4 for name, value in model.state_dict().items()}
    model = RETRO(**SIZES, dtype=dtype)
    model.load_state_dict(state)
    given = {"neighbours": mg.asarray(neighbours), "neighbours_mask": mg.asarray(real) if masked else None}
    theirs = Composed(state, dtype)
    expected = torch.stack([theirs.logits(*map(torch.asarray, row)) for row in zip(ids, neighbours, real, strict=True)])
    logits = model(mg.asarray(ids), **given)
    close(logits, expected, dtype, "logits")
    loss = F.cross_entropy(logits[:, :-1, :], mg.asarray(ids[:, 1:]))
    their_loss = torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1), torch.asarray(ids[:, 1:]).flatten())
    close(loss, their_loss, dtype, "loss")
    loss.backward()
    their_loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert gradients.keys() == theirs.p.keys()
    for name, gradient in gradients.items():
        assert gradient is not None, name
        close(gradient, theirs.p[name].grad, dtype, name)


def small(**options: Any) -> RETRO:
    model = RETRO(**SIZES | options, dtype="float64")
    rng = numpy.random.default_rng(0)
    model.load_state_dict({name: rng.normal(size=x.shape) * 0.4 for name, x in model.state_dict().items()})
    return model


def neighbours_of(chunks: mg.Tensor) -> mg.Tensor:
    """Two for each chunk, that depend on all of it."""
    key = mg.sum(chunks, axis=-1, keepdims=True)
    first = (key + mg.arange(4, dtype="int64")) % 19
    return mg.stack([first, (first * 5 + 2) % 19], axis=2)


def test_no_later_token_influences_an_earlier_logit() -> None:
    model = small(retrieve=neighbours_of)
    ids = example(11)[0]
    before = model(tensor(ids)).numpy()
    for t in range(11):
        changed = ids.copy()
        changed[0, t] = (changed[0, t] + 1) % 19
        moved = numpy.abs(model(tensor(changed)).numpy() - before).max(axis=-1)
        assert (moved[0, :t] == 0).all(), t
        assert (moved[0, t:] > 0).all(), t
        assert (moved[1] == 0).all()


def test_neighbours_are_read_from_the_last_token_of_their_chunk_on() -> None:
    model = small(reading=[2])
    ids, neighbours, _ = example(11)
    before = model(tensor(ids), neighbours=tensor(neighbours)).numpy()
    for u in range(3):
        changed = neighbours.copy()
        changed[0, u, 1, 2] = (changed[0, u, 1, 2] + 1) % 19
        moved = numpy.abs(model(tensor(ids), neighbours=tensor(changed)).numpy() - before).max(axis=-1) > 1e-9
        # The last block reads, and none after it carries on what was read.
        assert numpy.nonzero(moved[0])[0].tolist() == [t for t in range(3 * u + 2, 3 * u + 5) if t < 11]
        assert not moved[1].any()


@pytest.mark.parametrize("steps", [[1] * 11, [4, 1, 1, 5], [2, 9], [8, 3]])
def test_the_cache_equals_the_full_forward_pass(steps: list[int]) -> None:
    model = small(retrieve=neighbours_of)
    ids = tensor(example(11)[0])
    cache: Cache = {}
    parts, seen = [], 0
    for step in steps:
        parts.append(model(ids[:, seen : seen + step], None, cache))
        seen += step
    numpy.testing.assert_allclose(mg.concat(parts, axis=1).numpy(), model(ids).numpy(), rtol=1e-10, atol=1e-12)


def test_neighbours_of_a_prompt_are_read_while_its_last_chunk_is() -> None:
    model = small()
    ids, neighbours, real = (tensor(x) for x in example(9))
    longer = tensor(example(11)[0])
    ids = mg.concat([ids, longer[:, 9:]], axis=1)
    whole = model(ids, neighbours=neighbours, neighbours_mask=real)
    cache: Cache = {}
    model(ids[:, :9], None, cache, neighbours=neighbours, neighbours_mask=real)
    parts = [model(ids[:, t : t + 1], None, cache) for t in (9, 10)]
    numpy.testing.assert_allclose(mg.concat(parts, axis=1).numpy(), whole[:, 9:, :].numpy(), rtol=1e-10, atol=1e-12)
    # The next chunk has none, so the one before it is read no longer.
    rest = [model(ids[:, t : t + 1], None, cache) for t in (0, 1)]
    shown = mg.concat([ids, ids[:, :2]], axis=1)
    empty = mg.zeros_like(neighbours[:, :1, ...])
    whole = model(
        shown,
        neighbours=mg.concat([neighbours, empty], axis=1),
        neighbours_mask=mg.concat([real, mg.astype(empty, "bool")], axis=1),
    )
    numpy.testing.assert_allclose(mg.concat(rest, axis=1).numpy(), whole[:, 11:, :].numpy(), rtol=1e-10, atol=1e-12)


def test_writes_the_likeliest_and_goes_on_beyond_its_context() -> None:
    model = small(retrieve=neighbours_of)
    ids = tensor(example(13)[0])
    written = model.generate(ids, 4, temperature=0)
    for t in (14, 15, 16):
        logits = model(written[:, max(t - 14, 0) : t])
        assert mg.argmax(logits[:, -1, :], axis=-1).tolist() == written[:, t].tolist()


def test_what_stands_at_padding_does_not_matter() -> None:
    model = small()
    ids, neighbours, real = example(11)
    mask = tensor(numpy.arange(11) >= numpy.array([[4], [0]]))
    outputs = []
    for other in (1, 7):
        ids[0, :4] = neighbours[~real] = other
        outputs.append(model(tensor(ids), mask, neighbours=tensor(neighbours), neighbours_mask=tensor(real)).numpy())
    assert outputs[0].tolist() == outputs[1].tolist()
    unmasked = model(tensor(ids), mask, neighbours=tensor(neighbours)).numpy()
    assert numpy.abs(unmasked - outputs[1]).max() > 1e-3


def test_every_gradient_is_that_of_finite_differences(check_gradients: Any) -> None:
    model = small(num_layers=2, reading=[1], encoder_layers=1)
    ids, neighbours, real = (tensor(x) for x in example(7))
    given = {"neighbours": neighbours, "neighbours_mask": real}
    check_gradients(model, lambda: F.cross_entropy(model(ids[:, :-1], **given), ids[:, 1:]))


def test_errors_are_one_line() -> None:
    model = small()
    ids, neighbours, real = (tensor(x) for x in example(10))
    with pytest.raises(ValueError, match=r"^RETRO: expected neighbours of shape \(2, 3, k, r\), got \(2, 2, 2, 4\)$"):
        model(ids, neighbours=neighbours[:, 1:, ...])
    with pytest.raises(ValueError, match=r"^RETRO: expected a boolean padding mask of shape \(2, 3, 2, 4\) "):
        model(ids, neighbours=neighbours, neighbours_mask=real[:, 1:, ...])
    with pytest.raises(ValueError, match=r"^RETRO: expected reading between 0 and 2, got \[3\]$"):
        small(reading=[3])
    with pytest.raises(ValueError, match=r"^RETRO: expected chunk to be a positive integer, got 0$"):
        small(chunk=0)
    assert model(ids).shape == (2, 10, 19)  # without neighbours it is a model of text alone
