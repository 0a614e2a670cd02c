"""LLaMA and Mistral: equal to `transformers`, and to themselves one token at a time."""

from typing import Any

import numpy
import pytest
from checks import tensor

import minigrad as mg
from attention import functional as F
from attention.layers.attention import Cache
from attention.models import LLaMA, Mistral

SIZES: dict[str, Any] = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CASES = {
    "LLaMA": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "wide heads": ("Llama", {"head_dim": 6}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "Mistral": ("Mistral", {"sliding_window": 3}),
}
IDS = numpy.random.default_rng(0).integers(1, 19, (2, 9))
MASK = numpy.array([[False] * 3 + [True] * 6, [True] * 9])


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
    theirs = make_reference(getattr(transformers, f"{kind}ForCausalLM"), config, dtype)
    ours = {"Llama": LLaMA, "Mistral": Mistral}[kind].from_config(config.to_dict(), dtype=dtype)
    mask = MASK if padded else numpy.ones_like(MASK)
    labels = numpy.where(mask & numpy.roll(mask, 1, axis=1), IDS, -100)  # padding does not predict

    def their_loss() -> Any:
        with precision(dtype):
            inputs = {"input_ids": IDS, "attention_mask": mask.astype("int64"), "labels": labels}
            out = theirs(**{name: torch.asarray(value) for name, value in inputs.items()}, use_cache=False)
        close(
            mg.where(real[..., None], ours(tensor(IDS), real), 0.0),
            out.logits * torch.asarray(mask)[..., None],
            dtype,
        )
        return out.loss

    real = tensor(mask)

    def loss() -> mg.Tensor:
        logits = ours(tensor(IDS), real if padded else None)
        return F.cross_entropy(logits[:, :-1, :], tensor(labels[:, 1:]))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_equals_the_full_forward_pass(padded: bool, window: int | None) -> None:
    model = LLaMA(19, 16, 4, 2, 24, 2, 64, window=window, dtype="float64")
    ids = tensor(IDS)
    mask = tensor(MASK) if padded else None
    whole = model(ids, mask)
    cache: Cache = {}
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        part = model(ids[:, start:end], None if mask is None else mask[:, :end], cache)
        numpy.testing.assert_allclose(part.numpy(), whole[:, start:end, :].numpy(), rtol=1e-11, atol=1e-11)


def test_a_batch_with_padding_writes_what_each_row_writes_alone() -> None:
    model = LLaMA(19, 16, 4, 2, 24, 2, 64, dtype="float64")
    ids, mask = tensor(IDS), tensor(MASK)
    together = model.generate(ids, 8, temperature=0, mask=mask)
    alone = model.generate(ids[:1, 3:], 8, temperature=0)
    assert together[0, 3:].tolist() == alone[0, :].tolist()
    assert together[1, :].tolist() == model.generate(ids[1:, :], 8, temperature=0)[0, :].tolist()


def test_a_checkpoint_without_a_head_has_shorter_names() -> None:
    model = LLaMA(19, 16, 4, 2, 24, 2, 64, dtype="float64")
    state = {model.published_name(name): value for name, value in model.state_dict().items()}
    turned = {name: value.T if "proj" in name else value for name, value in state.items()}
    other = LLaMA(19, 16, 4, 2, 24, 2, 64, dtype="float64")
    other.load_state_dict({name.removeprefix("model."): value for name, value in turned.items()})
    numpy.testing.assert_array_equal(other(tensor(IDS)).numpy(), model(tensor(IDS)).numpy())


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="LLaMA: num_heads=3 does not divide d_model=14"):
        LLaMA(11, d_model=14, num_heads=3, num_layers=1)


@pytest.mark.parametrize("temperature", [1e-300, 1e-50, 1e-3])
def test_a_tiny_temperature_chooses_the_likeliest(temperature: float) -> None:
    from attention.models.published import choose

    logits = mg.asarray([[1.0, 2.0, 5.0, 0.0]], dtype="float32")
    assert choose(logits, temperature, None, 0.9, mg.random.default).tolist() == [2]


def test_logits_are_kept_for_the_last_positions() -> None:
    model = LLaMA(19, 16, 4, 2, 24, 2, 64, dtype="float64")
    numpy.testing.assert_allclose(
        model(tensor(IDS), logits_to_keep=2).numpy(), model(tensor(IDS)).numpy()[:, -2:], rtol=1e-12, atol=1e-12
    )
    with pytest.raises(ValueError, match="logits_to_keep: expected count to be a positive integer, got 0"):
        model(tensor(IDS), logits_to_keep=0)
