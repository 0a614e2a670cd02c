"""GGUF: against the gguf package, which writes these files, and tokenizers, which trains their vocabularies."""

import random
import struct
import tracemalloc
from pathlib import Path

import checkpoints
import gguf
import numpy as np
import pytest
from checkpoints import (
    BLOCKS,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    TEXTS,
    assert_one_line,
    opens_or_refuses,
    write_gguf,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from attention.formats import WeightsError, open_published
from attention.formats.gguf import Header

Kind = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "good.gguf")


def test_tensors_come_back_by_hugging_face_s_names_and_rows(good: Path) -> None:
    expected = checkpoints.llama_tensors()
    tensors = open_published(good).tensors
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)
        assert tensors.shapes[name] == array.shape


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_numbers_are_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    expected = checkpoints.llama_tensors()
    tensors = open_published(write_gguf(tmp_path / "model.gguf", kind=Kind[kind])).tensors
    for name, array in expected.items():
        if array.ndim == 2:  # rows are quantised each for itself: their order doesn't matter
            array = gguf.quants.dequantize(gguf.quants.quantize(array, Kind[kind]), Kind[kind])
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)
        assert tensors[name].dtype == np.float32


def test_more_blocks_than_are_dequantised_at_once(tmp_path: Path) -> None:
    large = np.random.default_rng(1).standard_normal((340, 32 * 30), dtype=np.float32)
    path = write_gguf(
        tmp_path / "model.gguf", checkpoints.llama_tensors() | {"model.embed_tokens.weight": large}, kind=Kind.Q8_0
    )
    expected = gguf.quants.dequantize(gguf.quants.quantize(large, Kind.Q8_0), Kind.Q8_0)
    np.testing.assert_array_equal(open_published(path).tensors["model.embed_tokens.weight"], expected)


def test_the_header_is_what_the_package_s_reader_reads(good: Path) -> None:
    reader = gguf.GGUFReader(good)
    header = Header(good, np.memmap(good, mode="r"))
    assert {f"{key}" for key in header.metadata} == {key for key in reader.fields if not key.startswith("GGUF.")}
    for key, value in header.metadata.items():
        expected = reader.fields[key].contents()
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, key
    assert set(header.tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        shape, kind, data = header.tensors[tensor.name]
        assert (shape, kind) == (tuple(tensor.shape.tolist())[::-1], tensor.tensor_type)
        assert data.tobytes() == tensor.data.tobytes()


def test_the_config_is_in_hugging_face_s_words(good: Path) -> None:
    found = open_published(good)
    assert found.format == "GGUF"
    assert found.config == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 128,
        "vocab_size": 340,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    assert found.generation == {"bos_token_id": 0, "eos_token_id": 1}
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.chat_template == "{{ bos_token }}{{ messages[0].content }}"


def test_an_output_of_its_own_and_biases(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    more = {
        "lm_head.weight": rng.standard_normal((340, HIDDEN), dtype=np.float32),
        **{
            f"model.layers.{i}.self_attn.{name}.bias": rng.standard_normal(size, dtype=np.float32)
            for i in range(BLOCKS)
            for name, size in [("q_proj", HEADS * HEAD), ("k_proj", KV_HEADS * HEAD)]
        },
    }
    found = open_published(write_gguf(tmp_path / "model.gguf", checkpoints.llama_tensors() | more))
    assert (found.config["tie_word_embeddings"], found.config["attention_bias"]) == (False, True)
    for name, array in more.items():
        np.testing.assert_array_equal(found.tensors[name], array)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 8.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_scaled_positions(tmp_path: Path, metadata: dict[str, object], expected: object) -> None:
    assert open_published(write_gguf(tmp_path / "m.gguf", metadata=metadata)).config["rope_scaling"] == expected


@pytest.mark.peers
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_s_scaled_positions_are_found_in_their_divisors(tmp_path: Path, factor: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters={**scaling, "rope_theta": 500000.0}
    )
    slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    divisors = 500000.0 ** (-np.arange(0, 128, 2) / 128) / slowed.numpy()
    tensors = checkpoints.llama_tensors() | {"rope_freqs.weight": divisors.astype(np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tensors, metadata={"llama.rope.freq_base": 500000.0})
    found = open_published(path)
    assert found.config["rope_scaling"] == pytest.approx(scaling)
    assert "rope_freqs.weight" not in found.tensors


# ------------------------------------------------------------------------------------------------ tokenizer

LLAMA3 = (  # as in Llama 3's tokenizer.json
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CUTS = {  # as in the tokenizer.json files of the models that llama.cpp names them after
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTES]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), BYTES]),
}


@pytest.mark.parametrize("pre", CUTS)
def test_the_tokenizer_is_the_one_that_was_written(tmp_path: Path, pre: str) -> None:
    trained = checkpoints.bpe(CUTS[pre])
    trained.add_tokens([AddedToken("<think>", normalized=False)])
    path = write_gguf(tmp_path / "m.gguf", tokenizer=trained, pre=pre, metadata={"tokenizer.ggml.add_bos_token": False})
    found = open_published(path).tokenizer
    for text in [*TEXTS, "<s>Hello</s> <s> <think>1</think>", random.Random(0).randbytes(2000).decode("latin-1")]:
        ours, expected = found.encode(text), trained.encode(text)
        assert ours.ids == expected.ids, text
        for skip in (True, False):
            assert found.decode(ours.ids, skip_special_tokens=skip) == trained.decode(expected.ids, skip)


@pytest.mark.parametrize(
    ("metadata", "pre", "expected"),
    [
        ({}, "gpt-2", [[], ["A"], []]),
        ({"tokenizer.ggml.add_bos_token": True}, "gpt-2", [["<s>"], ["<s>", "A"], ["<s>", "<s>"]]),
        ({}, "llama-bpe", [["<s>"], ["<s>", "A"], ["<s>", "<s>"]]),  # as llama.cpp has it, unless the file says no
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True},
            "smollm",
            [["<s>", "</s>"], ["<s>", "A", "</s>"], ["<s>", "</s>", "<s>", "</s>"]],
        ),
    ],
)
def test_tokens_that_begin_and_end_a_text(
    tmp_path: Path, metadata: dict[str, object], pre: str, expected: object
) -> None:
    found = open_published(write_gguf(tmp_path / "m.gguf", metadata=metadata, pre=pre)).tokenizer
    assert [found.encode("").tokens, found.encode("A").tokens, found.encode("", "").tokens] == expected
    assert found.encode("A", add_special_tokens=False).tokens == ["A"]


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "a mixture of experts"),
        ({"llama.rope.scaling.type": "longrope"}, "the scaling of rotary positions 'longrope'"),
        ({"llama.rope.scaling.type": "yarn"}, "no 'llama.rope.scaling.factor'"),
        ({"llama.rope.dimension_count": 4}, "differ in size"),
        ({"llama.attention.key_length": 16}, "differ in size"),
        ({"llama.embedding_length": "32"}, "'llama.embedding_length' should be of type int, and is '32'"),
        ({"llama.attention.head_count": 0}, "'llama.attention.head_count' is 0"),
        ({"llama.attention.head_count_kv": 3}, "has 16 rows for 3 heads"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "should be of type float, and is nan"),
        ({"llama.rope.freq_base": -1.0}, "should be of type float, and is -1.0"),
        ({"llama.block_count": 2**32 - 1}, "'llama.block_count' is 4294967295, and there are tensors of 2 blocks"),
        ({"general.alignment": 24}, "an alignment of 24"),
        ({"tokenizer.ggml.eos_token_id": 340}, "'tokenizer.ggml.eos_token_id' is 340, of 340 tokens"),
        ({"general.architecture": "mamba"}, "the architecture 'mamba'; in GGUF we read 'llama'"),
    ],
)
def test_a_model_that_we_cannot_read_is_refused(tmp_path: Path, metadata: dict[str, object], message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(WeightsError) as caught:
        open_published(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "default"}, "the pre-tokenizer 'default', which we don't know"),
        ({"tokenizer.ggml.model": "llama"}, "a tokenizer of the kind 'llama'"),
        ({"tokenizer.ggml.add_eos_token": 1}, "should be of type bool"),
        ({"tokenizer.ggml.merges": "a b"}, "should be of type list"),
    ],
)
def test_a_tokenizer_that_we_cannot_make_is_refused_when_it_is_asked_for(
    tmp_path: Path, metadata: dict[str, object], message: str
) -> None:
    found = open_published(write_gguf(tmp_path / "m.gguf", metadata=metadata))
    with pytest.raises(WeightsError, match="^" + str(tmp_path)) as caught:
        _ = found.tokenizer
    assert message in str(caught.value)


MANY = 2**60


def text(s: str) -> bytes:
    return struct.pack("<Q", len(s)) + s.encode()


def start(tensors: int, keys: int, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, keys)


def tensor(shape: tuple[int, ...], kind: int, offset: int, name: str = "output_norm.weight") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ARCHITECTURE = text("general.architecture") + struct.pack("<I", 8) + text("llama")
ROOM = bytes(4096)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"GGU", "not a GGUF file"),
        (b"GGML" + ROOM, "not a GGUF file"),
        (b"GGUF", "damaged (of 4 bytes"),
        (start(0, 0, version=1), "version 1 of GGUF; we read 2 and 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "or of the other byte order"),
        (start(0, 0), "no 'general.architecture'"),
        (start(MANY, 0) + ROOM, "has the shape ()"),
        (start(0, MANY) + ROOM, "twice"),
        (start(0, 1) + struct.pack("<Q", MANY) + ROOM, f"says that {MANY:,} more follow"),
        (start(0, 1) + text("a") + struct.pack("<IQ", 8, MANY) + ROOM, f"says that {MANY:,} more follow"),
        (start(0, 1) + text("a") + struct.pack("<IIQ", 9, 0, MANY) + ROOM, f"says that {MANY:,} more follow"),
        (start(0, 1) + text("a") + struct.pack("<IIQ", 9, 12, MANY) + ROOM, f"says that {8 * MANY:,} more follow"),
        (start(0, 1) + text("a") + struct.pack("<IIQ", 9, 8, MANY) + ROOM, "says that 8 more follow"),
        (start(0, 1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000, "an array of values"),
        (start(0, 1) + text("a") + struct.pack("<I", 13) + ROOM, "a metadata value of type 13"),
        (start(0, 2) + ARCHITECTURE * 2, "the key 'general.architecture' twice"),
        (start(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + ROOM, "damaged ('utf-8' codec"),
        (start(1, 0) + tensor((MANY, MANY, MANY, MANY), 0, 0) + ROOM, "isn't where it is said to be"),
        (start(1, 0) + tensor((8,) * 5, 0, 0) + ROOM, "has 5 axes"),
        (start(1, 0) + tensor((0, 8), 0, 0) + ROOM, "has the shape (8, 0)"),
        (start(1, 0) + tensor((32,), 4711, 0) + ROOM, "is of type 4711"),
        (start(1, 0) + tensor((33, 32), 2, 0) + ROOM, "has rows of 33, in blocks of 32"),
        (start(1, 0) + tensor((32,), 0, 2**64 - 32) + ROOM, "isn't where it is said to be"),
        (start(1, 0) + tensor((32,), 0, 1) + ROOM, "isn't where it is said to be"),
        (start(2, 0) + tensor((32,), 0, 0) + tensor((32,), 0, 64, "a") + ROOM, "isn't where it is said to be"),
        (start(2, 0) + tensor((32,), 0, 0) + tensor((32,), 0, 128) + ROOM, "'output_norm.weight' twice"),
    ],
)  # fmt: skip
def test_a_file_that_lies_is_refused_without_memory_for_its_lie(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "liar.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError) as caught:
            open_published(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert_one_line(str(caught.value), path)
    assert message in str(caught.value)


@given(st.data())
def test_a_damaged_file_opens_or_is_refused_in_one_line(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    whole = bytearray(good.read_bytes())
    header = whole.index(b"blk.1.attn_v.weight")  # most of the lies are told before here
    for _ in range(20):
        damaged = bytearray(whole)
        for place, byte in data.draw(st.lists(st.tuples(st.integers(0, header + 64), st.integers(0, 255)), max_size=4)):
            damaged[place] = byte
        end = data.draw(st.just(len(whole)) | st.integers(0, len(whole)))
        path.write_bytes(damaged[:end])
        opens_or_refuses(path)


def test_each_byte_of_the_header_matters_little(good: Path, tmp_path: Path) -> None:
    """Each byte of the header in turn, but those of the tokens, is made its opposite."""
    whole = good.read_bytes()
    tokens = whole.index(b"tokenizer.ggml.tokens"), whole.index(b"tokenizer.ggml.bos_token_id")
    end = whole.index(b"blk.0.attn_q.weight") + 64
    path = tmp_path / "damaged.gguf"
    opened, refusals = 0, set()
    for place in [*range(tokens[0] + 80), *range(tokens[1], end)]:
        path.write_bytes(whole[:place] + bytes([255 - whole[place]]) + whole[place + 1 :])
        try:
            open_published(path)
            opened += 1
        except WeightsError as error:
            refusals.add(str(error))
    for refusal in refusals:
        assert_one_line(refusal, path)
    assert opened > 10  # ids of tokens, sizes that nothing else tells


def test_numbers_can_be_changed_and_the_file_stays_as_it_is(good: Path) -> None:
    before = good.read_bytes()
    array = open_published(good).tensors["model.norm.weight"]
    array[:] = 7
    assert (array == 7).all()
    assert good.read_bytes() == before


def test_a_tokenizer_is_a_tokenizer(good: Path) -> None:
    found = open_published(good)
    assert isinstance(found.tokenizer, Tokenizer)
    assert found.tokenizer is found.tokenizer
