"""CTranslate2's format: what its own converter writes comes back, and what lies is refused in one line."""

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from attention.formats import WeightsError, ctranslate2, open_published

TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "bfloat16": 5}
WIDTH, HIDDEN, MELS, VOCABULARY = 4, 6, 3, 9
TOKENS = ["a", "b", "c", "\x85", "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "d", "e"]
CONFIG = {"suppress_ids": [1, 2], "suppress_ids_begin": [0], "alignment_heads": [[0, 1], [1, 0]], "lang_ids": [7]}

Variables = dict[str, Any]


def published(layers: int = 2) -> Variables:
    """A tiny Whisper by Hugging Face's names, of numbers that float16 knows."""
    rng = numpy.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    for i, channels in ((1, MELS), (2, WIDTH)):
        shapes[f"model.encoder.conv{i}.weight"] = (WIDTH, channels, 3)
        shapes[f"model.encoder.conv{i}.bias"] = (WIDTH,)
    shapes["model.decoder.embed_tokens.weight"] = (VOCABULARY, WIDTH)
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        shapes[f"model.{side}.embed_positions.weight"] = (8 if side == "encoder" else 5, WIDTH)
        norms = [f"model.{side}.layer_norm"]
        for layer in (f"model.{side}.layers.{i}" for i in range(layers)):
            for attention in attentions:
                for p in "qkv":
                    linear(f"{layer}.{attention}.{p}_proj", WIDTH, WIDTH, bias=p != "k")
                linear(f"{layer}.{attention}.out_proj", WIDTH, WIDTH)
                norms.append(f"{layer}.{attention}_layer_norm")
            linear(f"{layer}.fc1", HIDDEN, WIDTH)
            linear(f"{layer}.fc2", WIDTH, HIDDEN)
            norms.append(f"{layer}.final_layer_norm")
        shapes |= {f"{norm}.{p}": (WIDTH,) for norm in norms for p in ("weight", "bias")}
    return {name: rng.normal(size=shape).astype(numpy.float16).astype(numpy.float32) for name, shape in shapes.items()}


def converted(tensors: Variables, layers: int = 2) -> tuple[Variables, dict[str, str]]:
    """(variables, aliases) with which CTranslate2 stores ``tensors``."""
    found: Variables = {}

    def linear(name: str, *parts: str) -> None:
        found[f"{name}/weight"] = numpy.concatenate([tensors[f"{p}.weight"] for p in parts])
        zeros = numpy.zeros(WIDTH, numpy.float32)
        found[f"{name}/bias"] = numpy.concatenate([tensors.get(f"{p}.bias", zeros) for p in parts])

    def norm(name: str, source: str) -> None:
        found[f"{name}/gamma"], found[f"{name}/beta"] = tensors[f"{source}.weight"], tensors[f"{source}.bias"]

    for i in (1, 2):
        for p in ("weight", "bias"):
            found[f"encoder/conv{i}/{p}"] = tensors[f"model.encoder.conv{i}.{p}"]
    for side in ("encoder", "decoder"):
        found[f"{side}/num_heads"] = numpy.int16(2)
        found[f"{side}/position_encodings/encodings"] = tensors[f"model.{side}.embed_positions.weight"]
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(layers):
            ours, theirs = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            linear(f"{ours}/self_attention/linear_0", *(f"{theirs}.self_attn.{p}_proj" for p in "qkv"))
            linear(f"{ours}/self_attention/linear_1", f"{theirs}.self_attn.out_proj")
            norm(f"{ours}/self_attention/layer_norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                linear(f"{ours}/attention/linear_0", f"{theirs}.encoder_attn.q_proj")
                linear(f"{ours}/attention/linear_1", *(f"{theirs}.encoder_attn.{p}_proj" for p in "kv"))
                linear(f"{ours}/attention/linear_2", f"{theirs}.encoder_attn.out_proj")
                norm(f"{ours}/attention/layer_norm", f"{theirs}.encoder_attn_layer_norm")
            linear(f"{ours}/ffn/linear_0", f"{theirs}.fc1")
            linear(f"{ours}/ffn/linear_1", f"{theirs}.fc2")
            norm(f"{ours}/ffn/layer_norm", f"{theirs}.final_layer_norm")
    found["decoder/embeddings/weight"] = tensors["model.decoder.embed_tokens.weight"]
    found |= {"decoder/activation": numpy.int8(3), "decoder/pre_norm": numpy.int8(1)}
    return found, {"decoder/projection/weight": "decoder/embeddings/weight"}


def text(words: str) -> bytes:
    return struct.pack("<H", len(words.encode()) + 1) + words.encode() + b"\0"


def variable(
    name: str, values: Any, kind: int | None = None, shape: tuple[int, ...] | None = None, size: int | None = None
) -> bytes:
    data = values.tobytes()
    shape = values.shape if shape is None else shape
    head = text(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return (
        head
        + struct.pack("<BI", TYPES[values.dtype.name] if kind is None else kind, len(data) if size is None else size)
        + data
    )


def container(
    variables: list[bytes],
    aliases: dict[str, str],
    version: int = 6,
    kind: str = "WhisperSpec",
    revision: int = 3,
    count: int | None = None,
    alias_count: int | None = None,
) -> bytes:
    head = struct.pack("<I", version) + text(kind) + struct.pack("<I", revision)
    middle = struct.pack("<I", len(variables) if count is None else count) + b"".join(variables)
    end = b"".join(text(alias) + text(target) for alias, target in aliases.items())
    return head + middle + struct.pack("<I", len(aliases) if alias_count is None else alias_count) + end


def model(dtype: str = "float32", **changes: Any) -> bytes:
    """A model.bin of the tiny Whisper; ``changes`` replace variables, by name, or leave them out (None)."""
    variables, aliases = converted(published())
    variables |= changes
    entries = [
        variable(name, array.astype(dtype) if array.ndim and name not in changes else array)
        for name, array in sorted(variables.items())
        if array is not None
    ]
    return container(entries, {} if "decoder/projection/weight" in changes else aliases)


def folder(path: Path, data: bytes, config: Any = CONFIG, tokens: Any = TOKENS) -> Path:
    path.mkdir(exist_ok=True)
    (path / "model.bin").write_bytes(data)
    (path / "config.json").write_text(json.dumps(config))
    (path / "vocabulary.json").write_text(json.dumps(tokens))
    return path


# ------------------------------------------------------------------------------------- what is there


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensors_come_back(tmp_path: Path, dtype: str) -> None:
    found, expected = ctranslate2.read(folder(tmp_path, model(dtype))), published()
    assert found.format == "CTranslate2"
    assert set(found.tensors) == set(expected)
    for name, array in expected.items():
        assert found.tensors[name].dtype == numpy.float32
        assert_array_equal(found.tensors[name], array, err_msg=name)


def test_the_configuration_is_that_of_the_tensors(tmp_path: Path) -> None:
    found = ctranslate2.read(folder(tmp_path, model()))
    assert found.config == {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "d_model": WIDTH,
        "vocab_size": VOCABULARY,
        "num_mel_bins": MELS,
        "max_source_positions": 8,
        "max_target_positions": 5,
        **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), HIDDEN),
        "decoder_start_token_id": 5,
        "eos_token_id": 4,
        "pad_token_id": 4,
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [0],
        "alignment_heads": [[0, 1], [1, 0]],
    }
    assert found.generation["no_timestamps_token_id"] == 6
    assert found.generation["max_length"] == 5
    assert not found.generation["is_multilingual"]
    assert found.chat_template is None


def test_the_folder_is_known_for_what_it_is(tmp_path: Path) -> None:
    assert open_published(folder(tmp_path, model())).format == "CTranslate2"


def test_an_older_vocabulary_is_read(tmp_path: Path) -> None:
    """One token a line, and only U+000A ends a line: U+0085, which `splitlines` splits at, is a token here."""
    folder(tmp_path, model())
    (tmp_path / "vocabulary.json").unlink()
    (tmp_path / "vocabulary.txt").write_bytes("\n".join(TOKENS).encode() + b"\n")
    assert ctranslate2.read(tmp_path).config["eos_token_id"] == 4


def test_the_tokenizer_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    found = ctranslate2.read(folder(tmp_path, model()))
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        _ = found.tokenizer
    Tokenizer(WordLevel({"hello": 0}, unk_token="hello")).save(str(tmp_path / "tokenizer.json"))
    assert ctranslate2.read(tmp_path).tokenizer.decode([0]) == "hello"


def test_a_projection_of_its_own(tmp_path: Path) -> None:
    own = numpy.ones((VOCABULARY, WIDTH), numpy.float32)
    found = ctranslate2.read(folder(tmp_path, model(**{"decoder/projection/weight": own})))
    assert_array_equal(found.tensors["proj_out.weight"], own)
    assert found.config["tie_word_embeddings"] is False


def test_quantised_numbers_are_divided_by_their_scale(tmp_path: Path) -> None:
    name = "decoder/layer_0/attention/linear_1/weight"  # keys and values
    rows = {
        name: numpy.arange(8 * WIDTH, dtype=numpy.int8).reshape(8, WIDTH),
        name + "_scale": numpy.asarray([1, 2, 4, 8, 16, 32, 64, 128], numpy.float32),
        "encoder/conv1/weight": numpy.full((WIDTH, MELS, 3), -300, numpy.int16),
        "encoder/conv1/weight_scale": numpy.float32(100),
    }
    tensors = ctranslate2.read(folder(tmp_path, model(**rows))).tensors
    values = tensors["model.decoder.layers.0.encoder_attn.v_proj.weight"]
    assert values.dtype == numpy.float32
    assert values[0].tolist() == [1.0, 17 / 16, 18 / 16, 19 / 16]
    assert values[3].tolist() == [28 / 128, 29 / 128, 30 / 128, 31 / 128]
    assert_array_equal(tensors["model.encoder.conv1.weight"], numpy.full((WIDTH, MELS, 3), -3.0))


def test_bfloat16(tmp_path: Path) -> None:
    """A variable of each type: 1.5, −2 and 2⁻¹³³ are 3FC0, C000 and 0001 in bfloat16's hexadecimal."""
    bits = numpy.resize(numpy.asarray([0x3FC0, 0xC000, 0x0001], "<u2"), WIDTH)
    variables, aliases = converted(published())
    entries = [variable(name, array) for name, array in variables.items() if name != "encoder/layer_norm/beta"]
    entries.append(variable("encoder/layer_norm/beta", bits, kind=TYPES["bfloat16"]))
    found = ctranslate2.read(folder(tmp_path, container(entries, aliases)))
    assert found.tensors["model.encoder.layer_norm.bias"].tolist() == [1.5, -2.0, 2.0**-133, 1.5]


def test_changes_do_not_reach_the_file(tmp_path: Path) -> None:
    data = model()
    array = ctranslate2.read(folder(tmp_path, data)).tensors["model.encoder.layer_norm.bias"]
    array += 1
    assert (tmp_path / "model.bin").read_bytes() == data


# ------------------------------------------------------------------------------------- hostile files


def refusal(path: Path) -> str:
    """The message with which ``path`` is refused, after checking that it is one short line."""
    with pytest.raises(WeightsError) as caught:
        ctranslate2.read(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 350
    return message.removeprefix(str(path))


def read_or_refuse(path: Path) -> None:
    """Whatever is in the file: it is read, all tensors too, or it is refused."""
    try:
        found = ctranslate2.read(path)
    except WeightsError:
        refusal(path)
    else:
        for name in found.tensors:
            assert found.tensors[name].shape == found.tensors.shapes[name]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """Between the first header and the last number, where all is alike, every 37th byte will do."""
    data = model("float16")
    folder(tmp_path, data)
    for i in [*range(300), *range(300, len(data) - 200, 37), *range(len(data) - 200, len(data))]:
        (tmp_path / "model.bin").write_bytes(data[:i])
        assert refusal(tmp_path).startswith("/model.bin: damaged (")
    (tmp_path / "model.bin").write_bytes(data + b"\0")
    assert refusal(tmp_path) == "/model.bin: damaged (1 bytes too many)"


SOUND = model("float16")


@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(SOUND)
    for place, byte in changes:
        data[place] = byte
    read_or_refuse(folder(tmp_path_factory.getbasetemp() / "changed", bytes(data)))


HEADS = [i for i in range(len(SOUND)) if i < 120 or i > len(SOUND) - 120]


@settings(max_examples=300)
@given(place=st.sampled_from(HEADS), bit=st.integers(0, 7))
def test_flipped_bits_of_the_headers_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    data = bytearray(SOUND)
    data[place] ^= 1 << bit
    read_or_refuse(folder(tmp_path_factory.getbasetemp() / "flipped", bytes(data)))


@settings(max_examples=100)
@given(data=st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: SOUND[:25] + data))
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    refusal(folder(tmp_path_factory.getbasetemp() / "random", data))


ONE = numpy.ones(1, numpy.float32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged (empty)"),
        (b"\x80\x04\x95" * 9, "version 2157249664 of CTranslate2's format, or another; we read 6"),
        (container([], {}, version=5), "version 5 of CTranslate2's format, or another; we read 6"),
        (container([], {}, kind="Transf\nSpec"), "expected revision 3 of WhisperSpec, found 3 of 'Transf\\nSpec'"),
        (container([], {}, revision=4), "expected revision 3 of WhisperSpec, found 4 of 'WhisperSpec'"),
        (container([], {}), "no decoder/embeddings/weight"),
        (container([], {}, count=2**32 - 1), "damaged (cut short: 4294967295 entries wanted at 26 of 30)"),
        (container([], {}, alias_count=2**32 - 1), "damaged (cut short: 4294967295 entries wanted at 30 of 30)"),
        (SOUND[:4] + b"\xff\xff" + SOUND[6:400], "damaged (cut short: 65535 bytes wanted at 6 of 400)"),
        (SOUND[:4] + b"\0\0" + SOUND[6:], "damaged (a text that does not end with a zero)"),
        (SOUND[:4] + b"\3\0\xff\xff\0" + SOUND[6:], "damaged ('utf-8' codec can't decode byte 0xff"),
        (container([variable("a", ONE)] * 2, {}), "damaged ('a' twice)"),
        (container([variable("a", ONE)], {"a": "a"}), "damaged ('a' twice)"),
        (container([variable("a", ONE)], {"b": "c"}), "damaged ('b' stands for 'c', which isn't there)"),
        (container([variable("a", ONE)], {"b": "b"}), "damaged ('b' stands for 'b', which isn't there)"),
        (container([variable("a", ONE, kind=6)], {}), "damaged ('a' is of type 6; known are 0 to 5)"),
        (container([variable("a", ONE, size=2**32 - 1)], {}), "damaged ('a' of shape (1,) and type 0 in"),
        (
            container([variable("a", ONE, shape=(2**30, 4), size=0)], {}),
            "damaged ('a' of shape (1073741824",
        ),
        (container([variable("a", ONE, shape=(2**31, 2**31))], {}), "damaged ('a' of shape (2147483648"),
        (container([variable("a", ONE, shape=(2**30,), size=2**32 - 4)], {}), "damaged ('a' of shape"),
        (container([variable("a", ONE, shape=(2**30 - 1,), size=2**32 - 4)], {}), "damaged (cut short: 4294967292 "),
        (container([variable("a", ONE[:0], shape=(0, 2**32 - 1))], {}), "damaged ('a' of shape (0, 429"),
        (container([variable("a", ONE, shape=(1,) * 255)], {}), "damaged ('a' of shape (1, 1, 1, 1,"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_hostile_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    assert refusal(folder(tmp_path, data)).removeprefix("/model.bin: ").startswith(message)


def ones(*shape: int, dtype: str = "float32") -> Any:
    return numpy.ones(shape, dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder/layer_norm/beta": None}, "no decoder/layer_norm/beta"),
        ({"encoder/layer_0/ffn/linear_0/weight": None}, "no encoder/layer_0/ffn/linear_0/weight"),
        (
            {"encoder/layer_1/ffn/linear_0/weight": None},
            "'encoder/layer_1/ffn/layer_norm/beta' is no variable of Whisper",
        ),
        ({"decoder/layer_9/x": ones(2)}, "'decoder/layer_9/x' is no variable of Whisper"),
        ({"decoder/embeddings/weight": ones(9)}, "expected 2 axes in decoder/embeddings/weight, found shape (9,)"),
        (
            {"encoder/conv2/weight": ones(4, 4, 5)},
            "expected encoder/conv2/weight to be of shape (4, 4, 3), found (4, 4, 5)",
        ),
        ({"encoder/num_heads": numpy.int16(3)}, "encoder/num_heads is 3, which does not divide the width 4"),
        ({"encoder/num_heads": numpy.int16(0)}, "encoder/num_heads is 0, which does not divide the width 4"),
        ({"encoder/num_heads": numpy.int16(-2)}, "encoder/num_heads is -2, which does not divide the width 4"),
        ({"encoder/num_heads": numpy.float32(2)}, "encoder/num_heads is no whole number"),
        ({"encoder/num_heads": ones(1, dtype="int16")}, "expected 0 axes in encoder/num_heads, found shape (1,)"),
        ({"decoder/activation": numpy.int8(0)}, "decoder/activation is 0, which is 3 in Whisper"),
        ({"decoder/pre_norm": numpy.int8(0)}, "decoder/pre_norm is 0, which is 1 in Whisper"),
        (
            {"decoder/layer_norm/beta": ones(4, dtype="int8")},
            "decoder/layer_norm/beta has whole numbers (i1) and no scale",
        ),
        ({"decoder/layer_norm/beta": ones(4, dtype="int32")}, "decoder/layer_norm/beta has whole numbers (<i4) and no"),
        (
            {"decoder/layer_norm/beta": ones(4, dtype="int8"), "decoder/layer_norm/beta_scale": ones(3)},
            "expected decoder/layer_norm/beta_scale to be float32, one number for each row, or one for all",
        ),
        *(
            (
                {
                    "decoder/layer_norm/beta": ones(4, dtype="int8"),
                    "decoder/layer_norm/beta_scale": numpy.float32(scale),
                },
                "damaged (decoder/layer_norm/beta_scale has numbers that are no scale)",
            )
            for scale in (0, -1, 1e-38, numpy.inf, numpy.nan)
        ),
    ],
)
def test_what_is_no_whisper_is_refused(tmp_path: Path, changes: Variables, message: str) -> None:
    assert refusal(folder(tmp_path, model(**changes))).startswith("/model.bin: " + message)


@pytest.mark.parametrize(
    ("config", "tokens", "message"),
    [
        ([], TOKENS, "/config.json: expected a JSON object"),
        (
            CONFIG | {"suppress_ids": 5},
            TOKENS,
            "/config.json: expected suppress_ids to be tokens, whole numbers from 0",
        ),
        (
            CONFIG | {"suppress_ids": [9]},
            TOKENS,
            "/config.json: expected suppress_ids to be tokens, whole numbers from",
        ),
        (CONFIG | {"suppress_ids_begin": [True]}, TOKENS, "/config.json: expected suppress_ids_begin to be tokens"),
        (CONFIG | {"alignment_heads": [[0, 2]]}, TOKENS, "/config.json: expected alignment_heads to be [layer, head]s"),
        (CONFIG | {"alignment_heads": [1]}, TOKENS, "/config.json: expected alignment_heads to be [layer, head]s"),
        (CONFIG, TOKENS[1:], "/vocabulary.json: expected the 9 tokens that the model has"),
        (CONFIG, [*TOKENS[1:], 1], "/vocabulary.json: expected the 9 tokens that the model has"),
        (CONFIG, ["a"] * 9, ": no <|endoftext|> in the vocabulary"),
    ],
)
def test_bad_lists_of_tokens_are_refused(tmp_path: Path, config: Any, tokens: Any, message: str) -> None:
    assert refusal(folder(tmp_path, SOUND, config, tokens)).startswith(message)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == ": no model.bin, so no model in CTranslate2's format"
    folder(tmp_path, SOUND)
    (tmp_path / "vocabulary.json").write_text("[" * 100_000)
    assert "no JSON" in refusal(tmp_path)
    (tmp_path / "vocabulary.json").unlink()
    assert refusal(tmp_path) == ": no vocabulary.json or vocabulary.txt"
    (tmp_path / "config.json").unlink()
    assert refusal(tmp_path) == ": no config.json, so no model in CTranslate2's format"


@pytest.mark.skipif(os.name != "posix", reason="there are pipes with names on POSIX")
@pytest.mark.parametrize("name", ["model.bin", "config.json", "vocabulary.json"])
def test_pipes_and_folders_are_refused(tmp_path: Path, name: str) -> None:
    (folder(tmp_path, SOUND) / name).unlink()
    os.mkfifo(tmp_path / name)
    assert refusal(tmp_path) == f"/{name}: not a regular file"
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert refusal(tmp_path).startswith(f"/{name}: ")


# ------------------------------------------------------------------------------------- CTranslate2 itself


def fused(name: str) -> str:
    """The same for the projections that CTranslate2 makes one matrix of."""
    return re.sub("[qkv]_proj", "proj", name)


@pytest.mark.peers
@pytest.mark.parametrize("multilingual", [False, True])
@pytest.mark.parametrize("quantization", [None, "float16", "bfloat16", "int8", "int8_float16", "int16"])
def test_what_its_converter_writes_comes_back(tmp_path: Path, quantization: str | None, multilingual: bool) -> None:
    """The tensors of a PyTorch model, through CTranslate2's own converter, are those that the model publishes."""
    import torch
    from ctranslate2.converters.transformers import WhisperLoader
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    size = 51_865 if multilingual else 20
    config = WhisperConfig(
        vocab_size=size, d_model=8, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=12, decoder_ffn_dim=16, num_mel_bins=5, max_source_positions=7,
        max_target_positions=6, pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    torch_model = WhisperForConditionalGeneration(config)
    for p in torch_model.parameters():  # no two equal, and no zeros, which would become aliases
        torch.nn.init.normal_(p)
    # Copies, as the converter quantises in place.
    expected = {k: v.numpy().copy() for k, v in torch_model.state_dict().items() if k != "proj_out.weight"}
    spec = WhisperLoader().get_model_spec(torch_model)
    special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|notimestamps|>",
        "<|transcribe|>",
        "<|translate|>",
        "<|en|>",
    ]
    spec.register_vocabulary(["a", *special, *map(str, range(size - 7))])
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [3], [4]
    spec.config.alignment_heads, spec.config.lang_ids = [[2, 3]], [6]
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(tmp_path))

    found = ctranslate2.read(tmp_path)
    for key in ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "num_mel_bins",
                "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "max_source_positions",
                "max_target_positions", "eos_token_id", "decoder_start_token_id", "scale_embedding",
                "activation_function"):  # fmt: skip
        assert found.config[key] == getattr(config, key), key
    assert found.config["alignment_heads"] == [[2, 3]]
    assert found.generation.get("lang_to_id") == ({"<|en|>": 6} if multilingual else None)
    assert found.generation.get("task_to_id") == ({"transcribe": 4, "translate": 5} if multilingual else None)
    assert set(found.tensors) == set(expected)
    # Rounding to a type loses half a unit in the last place: of 11 bits, 8 bits, and 127 or 1024 steps to the largest.
    of_itself = {None: 0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 0, "int8_float16": 2.0**-11, "int16": 0}
    steps = {"int8": 127, "int8_float16": 127, "int16": 1024}.get(quantization or "")
    for name, array in expected.items():
        largest = max(abs(other).max() for n, other in expected.items() if fused(n) == fused(name))
        of_largest = 0.51 / steps * largest if steps and array.ndim > 1 else 1e-7
        assert_allclose(found.tensors[name], array, rtol=of_itself[quantization], atol=of_largest, err_msg=name)
