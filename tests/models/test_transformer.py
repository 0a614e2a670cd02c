"""The encoder-decoder Transformer: causality, padding, generation, gradients of the whole, and that it learns."""

import math
from typing import Any

import numpy
import pytest
from checks import not_on_jax

import minigrad as mg
from attention.functional import cross_entropy
from attention.models import Transformer
from minigrad.optim import AdamW

PAD, BOS, EOS = 0, 1, 2


def tiny(norm: str = "pre", **options: Any) -> Transformer:
    settings: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 2, "max_length": 9, "dropout": 0.0}
    return Transformer(11, 13, norm=norm, dtype="float64", **(settings | options))


def tokens(*shape: int, vocab: int = 11) -> mg.Tensor:
    return mg.random.integers(3, vocab, shape)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_and_weights(norm: str) -> None:
    model = tiny(norm)
    source, target = tokens(2, 5), tokens(2, 4)
    logits, weights = model(source, target, return_weights=True)
    assert logits.shape == (2, 4, 13)
    assert [w.shape for w in weights] == [(2, 2, 4, 5)] * 2
    for w in weights:
        numpy.testing.assert_allclose(w.numpy().sum(-1), 1, rtol=1e-12)
    numpy.testing.assert_allclose(model(source, target).numpy(), logits.numpy(), rtol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_later_target_token_changes_no_earlier_output(norm: str) -> None:
    model = tiny(norm)
    source, target = tokens(1, 5), tokens(1, 6)
    other = mg.concat([target[:, :3], (target[:, 3:] + 1) % 13], axis=1)
    one, two = model(source, target).numpy(), model(source, other).numpy()
    numpy.testing.assert_array_equal(one[:, :3], two[:, :3])
    assert (one[:, 3:] != two[:, 3:]).all()


def test_every_source_token_matters() -> None:
    model = tiny()
    source, target = tokens(1, 5), tokens(1, 2)
    before = model(source, target).numpy()
    for i in range(5):
        changed = mg.concat([source[:, :i], 3 + (source[:, i : i + 1] - 2) % 8, source[:, i + 1 :]], axis=1)
        assert (model(changed, target).numpy()[0, 0] != before[0, 0]).any()
    swapped = mg.concat([source[:, 1:2], source[:, :1], source[:, 2:]], axis=1)
    assert not numpy.allclose(model(swapped, target).numpy(), before), "positions do not matter"


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_padded_batch_is_its_sequences_one_by_one(norm: str) -> None:
    model = tiny(norm)
    short, long = tokens(1, 3), tokens(1, 5)
    target = tokens(2, 4)
    source = mg.concat([mg.concat([short, mg.full_like(short[:, :2], PAD)], axis=1), long], axis=0)
    logits = model(source, target, source_mask=source != PAD).numpy()
    numpy.testing.assert_allclose(logits[:1], model(short, target[:1, :]).numpy(), atol=1e-12)
    numpy.testing.assert_allclose(logits[1:], model(long, target[1:, :]).numpy(), atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_nan_at_padding_changes_neither_loss_nor_gradients(norm: str) -> None:
    model = tiny(norm)
    source = mg.asarray([[3, 4, 5, PAD, PAD], [6, 7, 8, 9, 3]])
    target = mg.asarray([[BOS, 5, 6, PAD], [BOS, 7, 8, 9]])
    following = mg.asarray([[5, 6, EOS, PAD], [7, 8, 9, EOS]])

    def run(filler: float) -> dict[str, Any]:
        for embedding in (model.source_embedding, model.target_embedding):
            row = mg.expand_dims(mg.arange(embedding.weight.shape[0]) == PAD, axis=-1)
            embedding.weight.data = mg.where(row, filler, embedding.weight).data
        for parameter in model.parameters():
            parameter.grad = None
        logits = model(source, target, source != PAD, target != PAD)
        loss = cross_entropy(logits, following, ignore_index=PAD)
        loss.backward()
        gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
        assert len(gradients) == len(model.parameters())
        real = (target != PAD).numpy()
        return {"loss": loss.numpy(), "logits": logits.numpy()[real], **gradients}

    dirty, clean = run(math.nan), run(0.0)
    for name, values in dirty.items():
        assert numpy.isfinite(values).all(), name
        numpy.testing.assert_array_equal(values, clean[name], err_msg=name)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_generate_is_the_argmax_of_the_whole_again_and_again(norm: str) -> None:
    model = tiny(norm)
    source = tokens(3, 5)
    mask = mg.asarray([[True] * 5, [True] * 3 + [False] * 2, [True] * 5])
    written = model.generate(source, max_length=8, bos=BOS, eos=EOS, source_mask=mask).tolist()
    for i, row in enumerate(written):
        prefix = [BOS]
        for token in row:
            if prefix[-1] == EOS:
                assert token == EOS
                continue
            logits = model(source[i : i + 1, :], mg.asarray([prefix]), mask[i : i + 1, :])
            assert token == int(mg.argmax(logits[0, -1, :]))
            prefix.append(token)


def test_generate_stops_where_all_have_ended() -> None:
    model = tiny()
    model.output.bias.data = mg.where(mg.arange(13) == EOS, 100.0, model.output.bias).data
    assert model.generate(tokens(2, 5), max_length=8, bos=BOS, eos=EOS).tolist() == [[EOS], [EOS]]
    assert model.generate(tokens(2, 5), max_length=8, bos=BOS, eos=12).shape == (2, 8)


def test_target_tokens_that_the_source_s_dtype_cannot_hold() -> None:
    model = Transformer(11, 400, d_model=8, num_heads=2, num_layers=1, max_length=9)
    model.output.bias.data = mg.asarray([float(i == 300) * 99 for i in range(400)], dtype="float32").data
    assert model.generate(mg.asarray([[3, 4]], dtype="uint8"), 2, BOS, EOS).tolist() == [[300, 300]]


def test_generate_turns_dropout_off_and_on_again_and_records_nothing() -> None:
    model = tiny(dropout=0.5)
    source = tokens(2, 5)
    one, two = (model.generate(source, 5, BOS, EOS) for _ in range(2))
    assert one.tolist() == two.tolist()
    assert not one.requires_grad
    assert model.training
    assert model.decoder[0].cross_attention.training
    target = tokens(2, 4)
    assert (model(source, target).numpy() != model(source, target).numpy()).any()
    model.eval()
    assert (model(source, target).numpy() == model(source, target).numpy()).all()
    model.generate(source, 2, BOS, EOS)
    assert not model.training


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradients_of_the_whole_are_the_finite_differences(norm: str, check_gradients: Any) -> None:
    model = tiny(norm, num_layers=1)
    source, target, following = tokens(2, 4), tokens(2, 3), tokens(2, 3)
    mask = mg.asarray([[True] * 4, [True] * 2 + [False] * 2])

    def loss() -> mg.Tensor:
        return cross_entropy(model(source, target, mask), following)

    check_gradients(model, loss)


@not_on_jax
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_it_learns_to_reverse(norm: str) -> None:
    mg.random.seed(4)
    source = mg.random.integers(3, 9, (16, 4))
    reverse = source[:, ::-1]
    bos, eos = mg.full_like(source[:, :1], BOS), mg.full_like(source[:, :1], EOS)
    target, following = mg.concat([bos, reverse], axis=1), mg.concat([reverse, eos], axis=1)
    model = Transformer(9, 9, d_model=32, num_heads=4, num_layers=1, dropout=0.0, max_length=6, norm=norm)
    optimizer = AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(source, target), following)
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.05
    assert model.generate(source, 6, BOS, EOS).tolist() == following.tolist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tiny(num_heads=3), ValueError, "num_heads=3 does not divide d_model=8"),
        (lambda: tiny(num_layers=-1), ValueError, "Transformer: expected num_layers to be a positive integer, got -1"),
        (lambda: tiny("inner"), ValueError, "norm: expected 'pre' or 'post'"),
        (lambda: tiny()(tokens(1, 10), tokens(1, 2)), ValueError, "10 positions is longer than max_length=9"),
        (lambda: tiny()(tokens(1, 3), tokens(1, 12)), ValueError, "12 positions is longer than max_length=9"),
        (lambda: tiny()(mg.ones((1, 3)), tokens(1, 2)), TypeError, "embedding: expected indices of an integer dtype"),
        (
            lambda: tiny()(tokens(2, 3), tokens(2, 2), mg.ones((2, 4), dtype="bool")),
            ValueError,
            r"Transformer: expected a boolean padding mask of shape \(2, 3\)",
        ),
        (lambda: tiny().generate(tokens(1, 3), 10, BOS, EOS), ValueError, "max_length between 1 and 9, got 10"),
        (lambda: tiny().generate(tokens(1, 3), 0, BOS, EOS), ValueError, "max_length between 1 and 9, got 0"),
        (lambda: tiny().generate(tokens(3), 5, BOS, EOS), ValueError, r"source of shape \(B, T_s\), got \(3,\)"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
