"""GPT-2 and GPT-1 with published weights: equal to `transformers`, and to themselves one token at a time."""

from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.layers.attention import Cache
from attention.models import GPT, GPT1

SIZES: dict[str, Any] = {"vocab_size": 19, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2", {}),
    "untied": ("GPT2", {"tie_word_embeddings": False}),
    "unscaled": ("GPT2", {"scale_attn_weights": False}),
    "scaled by layer": ("GPT2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "narrow": ("GPT2", {"n_inner": 24, "activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    "exact gelu": ("GPT2", {"activation_function": "gelu"}),
    "GPT-1": ("OpenAIGPT", {}),
    "GPT-1 relu": ("OpenAIGPT", {"afn": "relu", "layer_norm_epsilon": 1e-3}),
    "GPT-1 swish": ("OpenAIGPT", {"afn": "swish"}),
}
OURS: dict[str, type[GPT]] = {"GPT2": GPT, "OpenAIGPT": GPT1}
IDS = numpy.random.default_rng(0).integers(1, 19, (2, 9))
MASK = numpy.array([[False] * 3 + [True] * 6, [True] * 9])


def tensor(values: Any) -> mg.Tensor:
    return mg.asarray(values.tolist())  # on the backend under test


def tiny(kind: type[GPT], **options: Any) -> GPT:
    model = kind(19, d_model=16, num_heads=4, num_layers=2, context_length=12, dropout=0.0, dtype="float64", **options)
    for name, parameter in model.named_parameters():  # far from all equal
        if name.endswith("weight") and parameter.ndim == 2:
            parameter.data = (parameter * 15.0).data
    return model


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, padded: bool, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    kind, changes = CASES[case]
    config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
    theirs = make_reference(getattr(transformers, f"{kind}LMHeadModel"), config, dtype)
    ours = OURS[kind].from_config(config.to_dict(), dtype=dtype).eval()
    mask = MASK if padded else numpy.ones_like(MASK)
    real = tensor(mask)
    labels = numpy.where(mask & numpy.roll(mask, 1, axis=1), IDS, -100)  # padding does not predict
    inputs = {
        "input_ids": IDS,
        "attention_mask": mask.astype("int64"),
        "position_ids": numpy.maximum(mask.cumsum(axis=1) - 1, 0),  # as its generate() counts them
        "labels": labels,
    }

    def their_loss() -> Any:
        with precision(dtype):
            out = theirs(**{name: torch.asarray(value) for name, value in inputs.items()})
        close(
            mg.where(real[..., None], ours(tensor(IDS), real), 0.0),
            out.logits * torch.asarray(mask)[..., None],
            dtype,
        )
        return out.loss

    def loss() -> mg.Tensor:
        logits = ours(tensor(IDS), real if padded else None)
        return F.cross_entropy(logits[:, :-1, :], tensor(labels[:, 1:]))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
@pytest.mark.parametrize("kind", OURS)
def test_prompts_of_several_lengths_are_continued_as_by_transformers(kind: str) -> None:
    import torch
    import transformers
    from reference import make_reference

    config = getattr(transformers, f"{kind}Config")(**SIZES | {"n_positions": 32}, pad_token_id=0, eos_token_id=None)
    theirs = make_reference(getattr(transformers, f"{kind}LMHeadModel"), config, "float32")
    ours = OURS[kind].from_config(config.to_dict()).eval()
    ours.load_state_dict(theirs.state_dict())
    inputs = {"input_ids": torch.asarray(IDS), "attention_mask": torch.asarray(MASK.astype("int64"))}
    expected = theirs.generate(**inputs, do_sample=False, max_new_tokens=8)
    assert ours.generate(tensor(IDS), 8, temperature=0, mask=tensor(MASK)).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [GPT, GPT1])
@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_equals_the_full_forward_pass(kind: type[GPT], padded: bool) -> None:
    model = tiny(kind)
    ids = tensor(IDS)
    mask = tensor(MASK) if padded else None
    whole = model(ids, mask)
    cache: Cache = {}
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        part = model(ids[:, start:end], None if mask is None else mask[:, :end], cache)
        numpy.testing.assert_allclose(part.numpy(), whole[:, start:end, :].numpy(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", [GPT, GPT1])
def test_a_batch_with_padding_writes_what_each_row_writes_alone(kind: type[GPT]) -> None:
    model = tiny(kind)
    ids, mask = tensor(IDS), tensor(MASK)
    together = model.generate(ids, 3, temperature=0, mask=mask)
    alone = model.generate(ids[:1, 3:], 3, temperature=0)
    assert together[0, 3:].tolist() == alone[0, :].tolist()
    assert together[1, :].tolist() == model.generate(ids[1:, :], 3, temperature=0)[0, :].tolist()
    numpy.testing.assert_allclose(
        model(ids, mask)[0, 3:, :].numpy(), model(ids[:1, 3:])[0, ...].numpy(), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("kind", [GPT, GPT1])
def test_what_stands_at_padding_reaches_neither_logits_nor_gradients(kind: type[GPT]) -> None:
    model = tiny(kind, tied=False)
    mask = tensor(MASK)
    ids = mg.where(mask, tensor(IDS), 0)
    clean = model(ids, mask)
    table = model.tokens.weight.numpy().copy()
    table[0] = numpy.nan
    model.load_state_dict({"tokens.weight": table}, strict=False)
    logits = mg.where(mask[..., None], model(ids, mask), 0.0)
    numpy.testing.assert_array_equal(logits.numpy(), mg.where(mask[..., None], clean, 0.0).numpy())
    mg.sum(logits**2).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert numpy.isfinite(parameter.grad.numpy()).all(), name


def published(model: GPT) -> dict[str, Any]:
    """The state of a model under its published names."""
    state: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        state[model.published_name(name)] = value.numpy()
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [
                state.pop(f"transformer.h.{layer}.attn.c_attn.{part}.{kind}") for part in ("query", "key", "value")
            ]
            state[f"transformer.h.{layer}.attn.c_attn.{kind}"] = numpy.concatenate(parts, axis=-1)
    return state


@pytest.mark.parametrize("kind", [GPT, GPT1])
@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_files_with_tables_of_causality_and_without_a_prefix(kind: type[GPT], prefix: str) -> None:
    model, other = tiny(kind), tiny(kind)
    state = published(model) | {"transformer.h.0.attn.bias": numpy.ones((1, 1, 12, 12), dtype="float32")}
    other.load_state_dict({name.replace("transformer.", prefix): value for name, value in state.items()})
    for (name, value), (_, expected) in zip(other.named_parameters(), model.named_parameters(), strict=True):
        numpy.testing.assert_array_equal(value.numpy(), expected.numpy(), err_msg=name)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in published(tiny(GPT)).items() if key != name}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: GPT.from_config(SIZES | {"add_cross_attention": True}),
            r"GPT: expected add_cross_attention in \[False\]",
        ),
        (lambda: GPT.from_config(SIZES | {"activation_function": "mish"}), "expected activation_function in .* 'mish'"),
        (lambda: GPT.from_config(SIZES | {"model_type": "llama"}), r"expected model_type in \['gpt2'\], .* 'llama'"),
        (lambda: GPT1.from_config(SIZES | {"afn": "gelu_new"}), "GPT1: expected afn in .* 'gelu_new'"),
        (lambda: GPT1.from_config(SIZES | {"tie_word_embeddings": False}), "expected tie_word_embeddings in "),
        (lambda: GPT1.from_config(SIZES | {"model_type": "gpt2"}), r"expected model_type in \['openai-gpt'\]"),
        (
            lambda: tiny(GPT).load_state_dict(without("transformer.h.1.attn.c_attn.bias")),
            r"3 missing: transformer.h.1.attn.c_attn.query.bias \(16,\)",
        ),
        (
            lambda: tiny(GPT).load_state_dict(without("") | {"transformer.h.1.attn.c_attn.bias": numpy.ones(())}),
            r"3 missing: .* 1 extra: transformer.h.1.attn.c_attn.bias",
        ),
        (
            lambda: tiny(GPT).load_state_dict(without("") | {"transformer.h.1.attn.c_attn.bias": numpy.ones(49)}),
            r"1 misshapen: transformer.h.1.attn.c_attn.value.bias \(17,\) instead of \(16,\)",
        ),
        (
            lambda: tiny(GPT)(tensor(IDS), tensor(MASK[:, 1:])),
            r"GPT: expected a boolean padding mask of shape \(2, 9\)",
        ),
        (lambda: tiny(GPT)(tensor(IDS), tensor(MASK * 1)), "GPT: expected a boolean padding mask"),
        (
            lambda: tiny(GPT)(mg.concat([tensor(IDS)] * 2, axis=1), mg.concat([tensor(MASK)] * 2, axis=1)),
            "a sequence of 18 positions is longer than max_length=12",
        ),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
