"""BERT: equal to `transformers`, with each of its heads, and blind to padding."""

from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.models import BERT

SIZES: dict[str, Any] = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 12, "type_vocab_size": 3, "pad_token_id": 0,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "words": ("BertForMaskedLM", {}),
    "words, others": ("BertForMaskedLM", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "pooler": ("BertModel", {}),
    "pooler, others": ("BertModel", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "both": ("BertForPreTraining", {}),
}
RNG = numpy.random.default_rng(0)
IDS = RNG.integers(1, 19, (2, 9))
TYPES = RNG.integers(0, 3, (2, 9))
MASK = numpy.array([[True] * 6 + [False] * 3, [True] * 9])
LABELS = numpy.where(MASK & (RNG.random((2, 9)) < 0.5), IDS, -100)
WEIGHTS = RNG.normal(size=(2, 9, 16))


def tensor(values: Any) -> mg.Tensor:
    return mg.asarray(values.tolist())  # on the backend under test


def tiny(**options: Any) -> BERT:
    model = BERT(19, 16, 4, 2, 24, 12, dtype="float64", **({"dropout": 0.0, "words": True} | options))
    for name, parameter in model.named_parameters():  # far from all equal
        if name.endswith("weight") and parameter.ndim == 2:
            parameter.data = (parameter + 0.3 * mg.random.normal(parameter.shape)).data
    return model


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, typed: bool, padded: bool, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    kind, changes = CASES[case]
    config = transformers.BertConfig(**SIZES | changes)
    theirs = make_reference(getattr(transformers, kind), config, dtype)
    ours = BERT.from_config(config.to_dict() | {"architectures": [kind]}, dtype=dtype).eval()
    mask = MASK if padded else numpy.ones_like(MASK)
    given = {"input_ids": IDS, "attention_mask": mask.astype("int64")} | ({"token_type_ids": TYPES} if typed else {})
    inputs = {name: torch.asarray(value) for name, value in given.items()}

    def read() -> mg.Tensor:
        return ours(tensor(IDS), tensor(mask) if padded else None, tensor(TYPES) if typed else None)

    def their_loss() -> Any:
        if kind == "BertForPreTraining":
            theirs.cls.seq_relationship.requires_grad_(False)
        base = theirs if kind == "BertModel" else theirs.bert
        with precision(dtype):
            out = base(**inputs)
            loss = torch.mean(out.last_hidden_state * torch.asarray(WEIGHTS * mask[..., None], dtype=base.dtype))
            if kind != "BertForMaskedLM":
                loss = loss + torch.mean(out.pooler_output**3)
            if kind != "BertModel":
                logits = theirs(**inputs)[0]
                loss = loss + torch.nn.functional.cross_entropy(logits.mT, torch.asarray(LABELS))
        real = tensor(mask[..., None])
        close(mg.where(real, read(), 0.0), out.last_hidden_state * torch.asarray(mask[..., None]), dtype)
        if kind != "BertForMaskedLM":
            close(ours.pool(read()), out.pooler_output, dtype)
        if kind != "BertModel":
            close(mg.where(real, ours.logits(read()), 0.0), logits * torch.asarray(mask[..., None]), dtype)
        return loss

    def loss() -> mg.Tensor:
        x = read()
        total = mg.mean(x * mg.astype(tensor(WEIGHTS * mask[..., None]), dtype))
        if kind != "BertForMaskedLM":
            total = total + mg.mean(ours.pool(x) ** 3)
        if kind != "BertModel":
            total = total + F.cross_entropy(ours.logits(x), tensor(LABELS))
        return total

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
def test_embeddings_are_the_mean_of_real_tokens_at_length_1() -> None:
    import torch
    import transformers
    from reference import close, make_reference, precision

    config = transformers.BertConfig(**SIZES)
    theirs = make_reference(transformers.BertModel, config, "float64")
    ours = BERT.from_config(config.to_dict(), dtype="float64").eval()
    ours.load_state_dict(theirs.state_dict())
    mask = torch.asarray(MASK)
    with precision("float64"):
        x = theirs(input_ids=torch.asarray(IDS), attention_mask=mask.long()).last_hidden_state
    mean = torch.stack([x[i, mask[i]].mean(axis=0) for i in range(2)])
    close(ours.embed(tensor(IDS), tensor(MASK)), torch.nn.functional.normalize(mean), "float64")


def test_a_text_beside_longer_ones_is_embedded_as_it_is_alone() -> None:
    model = tiny()
    both = model.embed(tensor(IDS), tensor(MASK)).numpy()
    numpy.testing.assert_allclose(both[:1], model.embed(tensor(IDS[:1, :6])).numpy(), rtol=1e-11, atol=1e-13)
    numpy.testing.assert_allclose(both[1:], model.embed(tensor(IDS[1:])).numpy(), rtol=1e-11, atol=1e-13)
    numpy.testing.assert_allclose((both**2).sum(axis=-1), 1.0, rtol=1e-12)


def test_a_text_without_tokens_is_embedded_as_zeros_with_zero_gradients() -> None:
    model = tiny()
    embedding = model.embed(tensor(IDS), tensor(MASK & (numpy.arange(2) > 0)[:, None]))
    assert (embedding[0, :] == 0).numpy().all()
    mg.sum(embedding[0, :]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or (parameter.grad.numpy() == 0).all(), name


def test_what_stands_at_padding_reaches_neither_embeddings_nor_gradients() -> None:
    model = tiny(words=False)
    ids = mg.where(tensor(MASK), tensor(IDS), 0)
    clean = model.embed(ids, tensor(MASK))
    table = model.tokens.weight.numpy().copy()
    table[0] = numpy.nan
    model.load_state_dict({"tokens.weight": table}, strict=False)
    embedded = model.embed(ids, tensor(MASK))
    numpy.testing.assert_array_equal(embedded.numpy(), clean.numpy())
    (mg.sum(embedded**3) + mg.sum(model.pool(model(ids, tensor(MASK))))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert numpy.isfinite(parameter.grad.numpy()).all(), name


def test_dropout_is_where_the_settings_say() -> None:
    model = BERT.from_config(SIZES | {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5})
    assert model.dropout.p == model.blocks[1].feed_forward_residual.dropout.p == 0.25
    assert model.blocks[1].attention.dropout == 0.5


def published(model: BERT) -> dict[str, Any]:
    """The state of a model under its published names."""
    names = {f"{name}.weight" for name, layer in model.named_modules() if model._is_turned(layer)}
    return {
        model.published_name(name): value.numpy().T if name in names else value.numpy()
        for name, value in model.state_dict().items()
    }


@pytest.mark.parametrize(
    ("options", "rename"),
    [
        ({}, ("bert.", "bert.")),
        ({"words": False}, ("bert.", "")),
        ({"words": False, "pooler": False}, ("bert.", "")),
        ({}, ("LayerNorm.weight", "LayerNorm.gamma")),
        ({}, ("LayerNorm.bias", "LayerNorm.beta")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_files_of_all_kinds_load(options: dict[str, Any], rename: tuple[str, str]) -> None:
    whole, model = tiny(), tiny(**options)
    state = published(whole) | {
        "bert.embeddings.position_ids": numpy.arange(12)[None],
        "cls.seq_relationship.weight": numpy.ones((2, 16)),
        "cls.predictions.decoder.weight": whole.tokens.weight.numpy(),
    }
    if rename[1] == "":
        state = {name: value for name, value in state.items() if name.startswith("bert.")}
    model.load_state_dict({name.replace(*rename): value for name, value in state.items()})
    expected = dict(whole.named_parameters())
    for name, value in model.named_parameters():
        numpy.testing.assert_array_equal(value.numpy(), expected[name].numpy(), err_msg=name)


def config(**changes: Any) -> dict[str, Any]:
    return SIZES | changes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BERT.from_config(config(model_type="roberta")), "BERT: expected model_type in .* 'roberta'"),
        (lambda: BERT.from_config(config(position_embedding_type="relative_key")), "position_embedding_type in"),
        (lambda: BERT.from_config(config(is_decoder=True)), "expected is_decoder in"),
        (lambda: BERT.from_config(config(add_cross_attention=True)), "expected add_cross_attention in"),
        (lambda: BERT.from_config(config(tie_word_embeddings=False)), "expected tie_word_embeddings in"),
        (lambda: BERT.from_config(config(hidden_act="mish")), "expected hidden_act in .* 'mish'"),
        (
            lambda: BERT.from_config(config(architectures=["BertForTokenClassification"])),
            "expected architectures in .* 'BertForTokenClassification'",
        ),
        (lambda: BERT(19, num_layers=0), "BERT: expected num_layers to be a positive integer, got 0"),
        (lambda: tiny(pooler=False).pool(mg.ones((1, 2, 16))), "BERT: this one has no pooler"),
        (lambda: tiny(words=False).logits(mg.ones((1, 2, 16))), "BERT: this one has no head of words"),
        (lambda: tiny()(tensor(IDS), tensor(MASK[:, 1:])), "BERT: expected a boolean padding mask of shape"),
        (lambda: tiny()(tensor(numpy.tile(IDS, 2))), "a sequence of 18 positions is longer than max_length=12"),
        (lambda: tiny().load_state_dict(published(tiny(words=False))), "5 missing: cls.predictions"),
    ],
)  # fmt: skip
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
