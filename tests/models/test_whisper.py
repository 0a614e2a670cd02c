"""Whisper: equal to `transformers`, and to itself one token at a time."""

from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.layers import Linear, attention_weights
from attention.layers.attention import Cache
from attention.models import Whisper

SIZES: dict[str, Any] = {
    "vocab_size": 19, "d_model": 16, "num_mel_bins": 5, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_source_positions": 8, "max_target_positions": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
CASES = {"tiny": {}, "turbo": {"encoder_layers": 3, "decoder_layers": 1, "num_mel_bins": 6}}
IDS = numpy.random.default_rng(0).integers(3, 19, (2, 7))
MASK = numpy.array([[True] * 5 + [False] * 2, [True] * 7])


def sound(bands: int = 5) -> Any:
    return numpy.random.default_rng(1).normal(size=(2, bands, 16))


def own(values: Any) -> mg.Tensor:
    """In the library under test, where ``mg.asarray`` of a NumPy array stays in NumPy."""
    return mg.asarray(values.tolist())


def tiny() -> Whisper:
    return Whisper(19, 16, 4, 2, d_ff=24, num_mels=5, source_length=8, max_length=12, dtype="float64")


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, padded: bool, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    config = transformers.WhisperConfig(**SIZES | CASES[case])
    theirs = make_reference(transformers.WhisperForConditionalGeneration, config, dtype)
    ours = Whisper.from_config(config.to_dict(), dtype=dtype)
    features = sound(config.num_mel_bins).astype(dtype)
    mask = MASK if padded else numpy.ones_like(MASK)
    labels = numpy.where(mask, numpy.roll(IDS, -1, axis=1), -100)

    def their_loss() -> Any:
        with precision(dtype):
            out = theirs(
                input_features=torch.asarray(features),
                decoder_input_ids=torch.asarray(IDS),
                decoder_attention_mask=torch.asarray(mask.astype("int64")),
                labels=torch.asarray(labels),
            )
        logits = ours(mg.asarray(features), mg.asarray(IDS), target_mask=mg.asarray(mask))
        close(mg.where(mg.asarray(mask)[..., None], logits, 0.0), out.logits * torch.asarray(mask)[..., None], dtype)
        return out.loss

    def loss() -> mg.Tensor:
        logits = ours(mg.asarray(features), mg.asarray(IDS), None, mg.asarray(mask) if padded else None)
        return F.cross_entropy(logits, mg.asarray(labels))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
def test_the_weights_of_cross_attention_are_those_of_transformers() -> None:
    import torch
    import transformers
    from reference import close, make_reference, precision

    config = transformers.WhisperConfig(**SIZES, attn_implementation="eager")
    theirs = make_reference(transformers.WhisperForConditionalGeneration, config, "float64")
    ours = Whisper.from_config(config.to_dict(), dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    with precision("float64"), torch.no_grad():
        out = theirs(torch.asarray(sound()), decoder_input_ids=torch.asarray(IDS), output_attentions=True)
    with attention_weights(ours) as weights:
        ours(mg.asarray(sound()), mg.asarray(IDS))
    for i, expected in enumerate(out.cross_attentions):
        (found,) = weights[f"decoder.{i}.cross_attention"]
        close(found, expected, "float64")


@pytest.mark.peers
def test_the_sound_s_positions_start_as_published() -> None:
    import transformers
    from reference import close

    theirs = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES))
    ours = Whisper.from_config(SIZES)
    close(ours.source_positions.weight, theirs.model.encoder.embed_positions.weight, "float32")
    assert "source_positions.weight" in ours.state_dict()
    assert "source_positions.weight" not in dict(ours.named_parameters())


@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_equals_the_full_forward_pass(padded: bool) -> None:
    model = tiny()
    ids, mask = own(IDS), own(MASK) if padded else None
    memory = model.encode(own(sound()))
    whole = model.decode(ids, memory, None, mask)
    cache: Cache = {}
    for start, end in ((0, 3), (3, 4), (4, 7)):
        part = model.decode(ids[:, start:end], memory, None, None if mask is None else mask[:, :end], cache)
        numpy.testing.assert_allclose(part.numpy(), whole[:, start:end, :].numpy(), rtol=1e-11, atol=1e-11)


def test_generate_reads_a_prompt_and_suppresses_tokens() -> None:
    """As the argmax of the full forward pass, again and again, over the tokens that are allowed."""
    model = tiny()
    features = own(sound())
    prompt, eos, never, not_first = [1, 5, 6], 2, [3, 4], [2, 7]
    written = model.generate(features, 5, prompt, eos, suppress=never, begin_suppress=not_first).tolist()
    for i, row in enumerate(written):
        ids = list(prompt)
        for t, token in enumerate(row):
            if t and row[t - 1] == eos:
                assert token == eos
                continue
            logits = model(features[i : i + 1, ...], mg.asarray([ids])).numpy()[0, -1].copy()
            logits[never if t else [*never, *not_first]] = -numpy.inf
            assert token == int(logits.argmax())
            ids.append(token)
    favourite = int(mg.argmax(model(features[:1, ...], mg.asarray([prompt]))[0, -1, :]))
    assert favourite not in model.generate(features, 1, prompt, eos, begin_suppress=[favourite])[0, :].tolist()


def test_generate_projects_the_sound_to_keys_and_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Linear] = []
    project = Linear.__call__

    def counted(layer: Linear, x: mg.Tensor) -> mg.Tensor:
        calls.append(layer)
        return project(layer, x)

    monkeypatch.setattr(Linear, "__call__", counted)
    model = tiny()
    tokens = model.generate(own(sound()), 4, 1, -1)
    assert tokens.shape == (2, 4)
    for block in model.decoder:
        cross = block.cross_attention
        assert [calls.count(layer) for layer in (cross.query, cross.key, cross.value)] == [4, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.encode(mg.ones((5, 16))), r"features of shape \(B, 5, frames\), got \(5, 16\)"),
        (lambda m: m.encode(mg.ones((2, 16, 5))), r"features of shape \(B, 5, frames\), got \(2, 16, 5\)"),
        (lambda m: m.encode(mg.ones((1, 5, 18), dtype="float64")), "9 positions is longer than max_length=8"),
        (lambda m: m.encode(own(sound()), mg.ones((2, 8), dtype="bool")), "Whisper: expected no source_mask"),
        (lambda m: m.generate(own(sound()), 11, [1, 5, 6], 2), "max_length between 1 and 10, got 11"),
        (lambda m: m.generate(own(sound()), 5, [], 2), "expected bos to be a token or several, got none"),
        (lambda m: Whisper(19, 15, 3), "expected an even d_model of 4 or more"),
        (lambda m: Whisper.from_config(SIZES | {"activation_function": "relu"}), "Whisper: expected activation_fun"),
        (lambda m: Whisper.from_config(SIZES | {"decoder_ffn_dim": 9}), r"expected decoder_ffn_dim in \[24\]"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call(tiny())
    assert "\n" not in str(raised.value)
