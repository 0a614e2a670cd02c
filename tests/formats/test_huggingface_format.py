"""Hugging Face's format: against the safetensors and tokenizers packages, which write it."""

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import TEXTS, assert_one_line, opens_or_refuses, write_folder
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from attention.formats import WeightsError, open_published


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "good")


def test_a_folder_comes_back_as_it_was_written(good: Path) -> None:
    found = open_published(good)
    assert found.format == "Hugging Face"
    assert found.config == {"model_type": "llama", "hidden_size": 32, "rms_norm_eps": 1e-05}
    assert found.generation == {"eos_token_id": [1, 5]}
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.chat_template == "{{ bos_token }}"
    expected = checkpoints.llama_tensors()
    assert set(found.tensors) == set(expected)
    assert len(found.tensors) == len(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found.tensors[name], array)
        assert found.tensors.shapes[name] == array.shape  # type: ignore[attr-defined]


TYPES = ["float64", "float32", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


@pytest.mark.parametrize("dtype", TYPES)
def test_types_that_numpy_has_are_mapped_as_they_are(tmp_path: Path, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    scalar = np.ones((), dtype)
    found = open_published(write_folder(tmp_path / "m", {"array": array, "scalar": scalar})).tensors
    np.testing.assert_array_equal(found["array"], array, strict=True)
    np.testing.assert_array_equal(found["scalar"], scalar, strict=True)


def test_float16_becomes_float32(tmp_path: Path) -> None:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)  # all there are
    found = open_published(write_folder(tmp_path / "m", {"a": half})).tensors["a"]
    np.testing.assert_array_equal(found, half.astype(np.float32), strict=True)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    """Its 16 bits are the upper half of a float32."""
    values = np.array([[1.0, -2.5], [3.0e38, 1e-40], [np.inf, 0.0]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    folder = write_folder(tmp_path / "m")
    write_safetensors(folder, f"{{{one('BF16', '[3, 2]', '[0, 12]')}}}", upper.tobytes())
    found = open_published(folder).tensors["a"]
    np.testing.assert_array_equal(found, (values.view(np.uint32) & 0xFFFF0000).view(np.float32), strict=True)


def test_a_header_of_any_length(tmp_path: Path) -> None:
    """safetensors pads the header to eight bytes; a file whose author did not is valid as well."""
    folder = write_folder(tmp_path / "m")
    for spaces in range(8):
        header = {"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}
        write_safetensors(folder, json.dumps(header) + " " * spaces, np.array([1.5, -2.0]).tobytes())
        found = open_published(folder).tensors["a"]
        np.testing.assert_array_equal(found, [1.5, -2.0])
        assert found.flags.aligned


def test_numbers_are_mapped_and_the_file_stays_as_it_is(good: Path) -> None:
    before = (good / "model.safetensors").read_bytes()
    tensors = open_published(good).tensors
    tensors["model.norm.weight"][:] = 7
    assert (tensors["model.norm.weight"] == 7).all()  # the same memory
    assert (good / "model.safetensors").read_bytes() == before
    assert (open_published(good).tensors["model.norm.weight"] != 7).any()


def test_opening_reads_no_numbers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"a": np.zeros((1 << 23,), np.float32)})
    tracemalloc.start()
    try:
        array = open_published(folder).tensors["a"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert array.shape == (1 << 23,)


def test_shards(good: Path) -> None:
    tensors = checkpoints.llama_tensors()
    into_shards(good, tensors)
    found = open_published(good).tensors
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)


def test_one_file_by_another_name(good: Path) -> None:
    (good / "model.safetensors").rename(good / "weights.safetensors")
    assert "model.norm.weight" in open_published(good).tensors


def test_the_tokenizer_neither_cuts_nor_pads(good: Path) -> None:
    plain = Tokenizer.from_file(str(good / "tokenizer.json"))
    trained = Tokenizer.from_file(str(good / "tokenizer.json"))
    trained.enable_truncation(4)
    trained.enable_padding(length=4)
    trained.save(str(good / "tokenizer.json"))
    found = open_published(good).tokenizer
    for text in TEXTS:
        assert found.encode(text).ids == plain.encode(text).ids


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "from its file"}, "from its file"),
        ({"tokenizer_config.json": "{}"}, None),
        ({"tokenizer_config.json": "{}", "chat_template.json": '{"chat_template": "from JSON"}'}, "from JSON"),
        (
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "1"}, 7,'
                ' {"name": "default", "template": "2"}]}'
            },
            "2",
        ),
        ({"tokenizer_config.json": '{"chat_template": [{"name": ["default"]}]}'}, None),
        ({"tokenizer_config.json": '{"chat_template": 7}'}, None),
    ],
)
def test_where_a_chat_template_may_be(good: Path, files: dict[str, str], expected: str | None) -> None:
    for name, text in files.items():
        (good / name).write_text(text)
    assert open_published(good).chat_template == expected


# ------------------------------------------------------------------------------------------------ refused


def write_safetensors(folder: Path, header: str | bytes, data: bytes = b"", length: int | None = None) -> None:
    header = header.encode() if isinstance(header, str) else header
    start = struct.pack("<Q", len(header) if length is None else length)
    (folder / "model.safetensors").write_bytes(start + header + data)


def into_shards(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    names = sorted(tensors)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        safetensors.numpy.save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()


def one(dtype: str = "F32", shape: str = "[2]", offsets: str = "[0, 8]", name: str = "a") -> str:
    return f'"{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}'


EIGHT = bytes(8)
DEEP = "[" * 100_000
LONG = "1" * 5000


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ("{}", b"", 2**63),
        ("{}", b"", 3),
        ("", b"", 0),
        ("[]", b"", None),
        ("nonsense", b"", None),
        (b"\xff\xfe{}", b"", None),
        (DEEP, b"", None),
        ('{"a": ' * 50_000, b"", None),
        (f"{{{one()}}}", EIGHT[:7], None),
        (f"{{{one()}}}", EIGHT * 2, None),
        (f"{{{one(dtype='F31')}}}", EIGHT, None),
        (f"{{{one(dtype='F8_E4M3', offsets='[0, 2]')}}}", EIGHT[:2], None),  # valid, but NumPy can do nothing with it
        (f"{{{one(shape='[-2]')}}}", EIGHT, None),
        (f"{{{one(shape='[4611686018427387904, 4611686018427387904, 16]')}}}", EIGHT, None),
        (f"{{{one(shape=f'[{LONG}]')}}}", EIGHT, None),
        (f"{{{one(shape='[2.0]')}}}", EIGHT, None),
        (f"{{{one(shape='7')}}}", EIGHT, None),
        (f"{{{one(offsets='[8, 0]')}}}", EIGHT, None),
        (f"{{{one(offsets='[8, 16]')}}}", EIGHT * 2, None),
        (f"{{{one(offsets='[-8, 0]')}}}", EIGHT, None),
        (f"{{{one(offsets='[18446744073709551608, 18446744073709551616]')}}}", EIGHT, None),
        (f"{{{one()}, {one(name='b')}}}", EIGHT, None),  # overlap
        (f"{{{one()}, {one(name='b', offsets='[4, 12]')}}}", EIGHT * 2, None),
        (f"{{{one()}, {one(name='b', offsets='[12, 20]')}}}", EIGHT * 3, None),  # a gap
        (f"{{{one()}, {one(shape='[1, 2]')}}}", EIGHT, None),  # a name twice
        ('{"a": 7}', b"", None),
        ('{"a": {"dtype": "F32"}}', b"", None),
    ],
)
def test_a_safetensors_file_that_lies_is_refused(
    good: Path, header: str | bytes, data: bytes, length: int | None
) -> None:
    write_safetensors(good, header, data, length)
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError) as caught:
            open_published(good)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert_one_line(str(caught.value), good / "model.safetensors")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9])
def test_a_safetensors_file_that_is_hardly_there_is_refused(good: Path, size: int) -> None:
    file = good / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(WeightsError) as caught:
        open_published(good)
    assert_one_line(str(caught.value), file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "7",
        "[]",
        "null",
        '"bert"',
        "{",
        "{}",
        '{"model_type": 7}',
        '{"model_type": "bert", "model_type": "llama"}',
        '{"model_type": "bert", "hidden_size": ' + LONG + "}",
        '{"model_type": "bert", "hidden_size": 123456789012345678901}',
        '{"model_type": "bert", "eps": 1e999}',
        '{"model_type": "bert", "eps": NaN}',
        '{"model_type": "bert", "eps": -Infinity}',
        '{"model_type": "bert", "a": ' + DEEP,
        '{"model_type": "bert", "a": ' + DEEP + "]" * len(DEEP) + "}",
        '{"a":' * 100_000,
        '{"model_type": "\xff"}',
    ],
)
def test_a_config_that_is_none_is_refused(good: Path, text: str) -> None:
    (good / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(WeightsError) as caught:
        open_published(good)
    assert_one_line(str(caught.value), good / "config.json")


def test_a_file_larger_than_any_json_is_refused(good: Path) -> None:
    with open(good / "tokenizer_config.json", "r+b") as file:
        file.truncate(1 << 40)  # a sparse file: there is nothing on the disk
    with pytest.raises(WeightsError, match=r"1,099,511,627,776 bytes; at most 268,435,456 were expected"):
        open_published(good)


OUTSIDE = [
    "../good/x.safetensors",
    "/etc/passwd",
    "x/../../y.safetensors",
    "..\\x.safetensors",
    "",
    ".",
    "..",
    "x.bin",
    7,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_shard_outside_of_the_folder_is_refused(good: Path, name: object) -> None:
    into_shards(good, checkpoints.llama_tensors())
    index = good / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="expected the name of a safetensors file in this folder") as caught:
        open_published(good)
    assert_one_line(str(caught.value), index)


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": [1]}', '{"weight_map": 7}'])
def test_an_index_of_nothing_is_refused(good: Path, text: str) -> None:
    into_shards(good, checkpoints.llama_tensors())
    index = good / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(WeightsError) as caught:
        open_published(good)
    assert_one_line(str(caught.value), index)


def test_a_shard_that_is_missing_or_misses_a_tensor_is_named(good: Path) -> None:
    into_shards(good, checkpoints.llama_tensors())
    shard = good / "model-00002-of-00002.safetensors"
    safetensors.numpy.save_file({"b": np.zeros(2)}, shard)
    with pytest.raises(WeightsError, match=r"is said to be in model-00002-of-00002.safetensors, and isn't"):
        open_published(good)
    shard.unlink()
    with pytest.raises(WeightsError, match="No such file or directory") as caught:
        open_published(good)
    assert_one_line(str(caught.value), shard)


def change(file: str, how: Callable[[Path], object]) -> Callable[[Path], Path]:
    def do(folder: Path) -> Path:
        (folder / file).unlink()
        how(folder / file)
        return folder

    return do


def no_file(path: Path) -> None:
    pass


def itself(path: Path) -> None:
    path.symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pickles(path: Path) -> None:
    path.with_name("pytorch_model.bin").write_bytes(b"\x80\x02.")


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes and devices")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("config.json", no_file), "no config.json"),
        (change("config.json", os.mkfifo), "not a regular file"),
        (change("config.json", zeros), "not a regular file"),
        (change("config.json", Path.mkdir), "Is a directory"),
        (change("config.json", itself), "Too many levels of symbolic links"),
        (change("config.json", nowhere), "No such file or directory"),
        (change("model.safetensors", no_file), "no safetensors file"),
        (change("model.safetensors", os.mkfifo), "not a regular file"),
        (change("model.safetensors", zeros), "not a regular file"),
        (change("model.safetensors", Path.mkdir), "Is a directory"),
        (change("model.safetensors", pickles), "pytorch_model.bin is a pickle, which can run any code"),
        (lambda folder: folder / "config.json", "not a GGUF file; expected a folder or a .gguf file"),
        (lambda folder: folder / "model.safetensors", "not a GGUF file; name the folder that it is in"),
        (lambda folder: folder / "nothing", "No such file or directory"),
        (lambda folder: folder / "config.json" / "x", "Not a directory"),
        (lambda folder: folder / ("x" * 5000), "File name too long"),
        (lambda folder: Path("/dev/zero"), "not a regular file"),
    ],
)
def test_what_is_no_file_is_refused(good: Path, damage: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(WeightsError) as caught:
        open_published(damage(good))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(WeightsError, match="not a regular file"):
        open_published(tmp_path / "model.gguf")


def test_several_files_and_no_index_are_refused(good: Path) -> None:
    (good / "model.safetensors").rename(good / "a.safetensors")
    (good / "b.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"2 safetensors files, and no model.safetensors.index.json"):
        open_published(good)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", DEEP, '{"model": {"type": "BPE", "vocab": {}, "merges": ["a"]}}', "\0"]
)
def test_a_tokenizer_that_is_none_is_refused_when_it_is_asked_for(good: Path, text: str) -> None:
    (good / "tokenizer.json").write_text(text)
    found = open_published(good)
    with pytest.raises(WeightsError) as caught:
        _ = found.tokenizer
    assert_one_line(str(caught.value), good / "tokenizer.json")
    (good / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match=r"no tokenizer.json$"):
        _ = open_published(good).tokenizer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("fuzz"))
    return folder


FILES = ["config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]


@given(st.data(), st.sampled_from(FILES))
def test_a_damaged_file_opens_or_is_refused_in_one_line(shared: Path, data: st.DataObject, name: str) -> None:
    file = shared / name
    whole = file.read_bytes()
    try:
        for _ in range(20):
            damaged = bytearray(whole)
            places = st.integers(0, min(len(whole), 3000) - 1)
            for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
                damaged[place] = byte
            file.write_bytes(damaged[: data.draw(st.just(len(whole)) | st.integers(0, len(whole)))])
            opens_or_refuses(shared)
    finally:
        file.write_bytes(whole)
