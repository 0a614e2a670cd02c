"""attention.checkpoint: what is saved comes back, what is broken is refused, what was there survives."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.checkpoint import CheckpointError, load, rng_from_json, rng_to_json, save
from attention.files import write_atomically

META = {"config": {"width": 64, "rate": 1e-3}, "vocabulary": ' "abcé\u2028июня', "step": 7, "best": None}


def tensors(value: float = 0.0) -> dict[str, Any]:
    return {"weight": numpy.full((3, 4), value, numpy.float32), "bias": numpy.arange(3) + value}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        one[k].dtype == two[k].dtype and one[k].shape == two[k].shape and bool((one[k] == two[k]).all()) for k in one
    )


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def tensor_file(path: Path) -> Path:
    """Return the tensor file that the JSON's hash names, by the rule of the documentation."""
    digest = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))["sha256"]
    return path / f"tensors-{digest[:16]}.safetensors"


# -------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"],
)
def test_every_type_comes_back(tmp_path: Path, dtype: str) -> None:
    array = numpy.array([[0, 1, 2], [3, 4, 5]], dtype)
    save(tmp_path, {"a": array, "scalar": array[1, 1], "empty": array[:, :0]}, {})
    loaded, meta = load(tmp_path)
    assert same(loaded, {"a": array, "scalar": numpy.array(array[1, 1]), "empty": array[:, :0]})
    assert meta == {}


def test_memory_layout_does_not_matter(tmp_path: Path) -> None:
    """Without its copies, `save` would scramble all of these, or fail on them."""
    array = numpy.arange(24.0).reshape(2, 3, 4)
    views = {
        "transposed": array.T,
        "sliced": array[:, ::2, 1:3],
        "reversed": array[::-1],
        "broadcast": numpy.broadcast_to(array[0, 0], (5, 4)),
        "big_endian": array.T.astype(">f8"),
    }
    save(tmp_path, views, {})
    loaded, _ = load(tmp_path)
    for name, view in views.items():
        assert loaded[name].tolist() == view.tolist(), name


def test_loaded_arrays_can_be_trained_further(tmp_path: Path) -> None:
    save(tmp_path, tensors(), META)
    loaded, _ = load(tmp_path)
    loaded["weight"] += 1
    assert loaded["weight"].sum() == 12


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None)
@given(meta=st.dictionaries(st.text(), json_data))
def test_any_json_comes_back(tmp_path_factory: pytest.TempPathFactory, meta: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "any_json"
    save(path, {}, meta)
    assert load(path) == ({}, meta)


def test_a_file_name_that_is_not_utf8_comes_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"pairs-\xff.tsv")
    save(tmp_path, {}, {"pairs": name})
    assert load(tmp_path)[1] == {"pairs": name}


def test_the_files_are_what_the_documentation_says(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    save(path, tensors(1), META)
    record = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
    data = tensor_file(path).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert record == {"format": "attention checkpoint", "version": 1, "sha256": digest, "meta": META}
    assert same(safetensors.numpy.load(data), tensors(1))
    assert files(path) == ["checkpoint.json", f"tensors-{digest[:16]}.safetensors"]


def test_old_tensors_stay_for_one_save_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "tensors-of-mine.safetensors").write_bytes(b"not to be deleted")
    names = []
    for value in range(4):
        save(tmp_path, tensors(value), {})
        names.append(tensor_file(tmp_path).name)
    assert files(tmp_path) == sorted(["checkpoint.json", "tensors-of-mine.safetensors", *names[2:]])
    save(tmp_path, tensors(3), {"step": 2})  # the same tensors: the same file
    assert same(load(tmp_path)[0], tensors(3))


def test_rng_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = Random(3)
    rng.gauss(0, 1)  # leaves a second normal number for the next call, a part of the state too
    save(tmp_path, {}, {"rng": rng_to_json(rng)})
    again = rng_from_json(load(tmp_path)[1]["rng"])
    assert again.getstate() == rng.getstate()
    assert [again.gauss(0, 1) for _ in range(5)] == [rng.gauss(0, 1) for _ in range(5)]


@pytest.mark.parametrize(
    "change",
    [
        {"words": "00"},
        {"words": "x" * 5000},
        {"words": 3},
        {"words": "f" * 5000},  # the last word, a position, is out of range
        {"version": 9},
        {"version": [3]},
        {"gauss": "much"},
        {"gauss": {}},
    ],
)
def test_a_bad_rng_is_refused(change: dict[str, Any]) -> None:
    state = rng_to_json(Random(0))
    damaged: list[Any] = [state | change, [], None, "rng", {}]
    for data in damaged:
        with pytest.raises(CheckpointError, match=r"^not the state of a random generator \(.*\)$"):
            rng_from_json(data)


# ----------------------------------------------------------------------------------- interrupted saves


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_an_interrupted_save_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], call: str, at: int
) -> None:
    save(tmp_path, tensors(1), {"step": 1})
    original, calls = getattr(os, call), 0

    def fail(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise error("stop")
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        if call == "replace" and at > 1:  # there are two renames, and four flushes to disk
            save(tmp_path, tensors(2), {"step": 2})
        else:
            with pytest.raises(error, match="stop"):
                save(tmp_path, tensors(2), {"step": 2})
    switched = at > 1 if call == "replace" else at == 3
    step = 2 if switched else 1
    loaded, meta = load(tmp_path)
    assert meta == {"step": step}
    assert same(loaded, tensors(step))
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]

    save(tmp_path, tensors(3), {"step": 3})
    assert same(load(tmp_path)[0], tensors(3))
    assert len(files(tmp_path)) <= 3  # nothing piles up


def test_a_refused_save_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path, tensors(1), {"step": 1})
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for meta in ({"loss": float("nan")}, {"loss": float("inf")}, {"set": {1}}, {"array": numpy.ones(2)}):
        with pytest.raises((TypeError, ValueError)):
            save(tmp_path, tensors(2), meta)
    with pytest.raises(safetensors.SafetensorError):
        save(tmp_path, {"words": numpy.array(["a"])}, {})
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


LOOP = """
import sys, numpy
from attention.checkpoint import save
step = 0
while True:
    save(sys.argv[1], {"a": numpy.full(300_000, step, numpy.float32)}, {"step": step})
    print(step, flush=True)
    step += 1
"""


@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
def test_a_killed_save_leaves_old_or_new(tmp_path: Path) -> None:
    rng = Random(0)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        done = [process.stdout.readline() for _ in range(rng.randint(2, 5))]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        loaded, meta = load(tmp_path)
        assert meta["step"] >= int(done[-1])
        assert loaded["a"].tolist() == [meta["step"]] * 300_000


def test_a_reader_is_not_disturbed_by_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole save between the reading of the JSON and that of the tensors: the old pair is still there."""
    save(tmp_path, tensors(1), {"step": 1})
    original, interrupted = Path.read_bytes, False

    def read_bytes(file: Path) -> bytes:
        nonlocal interrupted
        data = original(file)
        if not interrupted:
            interrupted = True
            save(tmp_path, tensors(2), {"step": 2})
        return data

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    loaded, meta = load(tmp_path)
    assert interrupted
    assert meta == {"step": 1}
    assert same(loaded, tensors(1))


def test_write_atomically_follows_the_umask_and_replaces(tmp_path: Path) -> None:
    file, plain = tmp_path / "file", tmp_path / "plain"
    for data in (b"one", b"two"):
        write_atomically(file, data)
        assert file.read_bytes() == data
    plain.write_bytes(b"")
    assert file.stat().st_mode == plain.stat().st_mode
    with pytest.raises(OSError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", b"")
    assert files(tmp_path) == ["file", "plain"]


# --------------------------------------------------------------------------------------- hostile files


def refusal(path: Path) -> str:
    """Return the message with which `path` is refused, after checking that it is one short line."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < len(str(path)) + 300
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == "/checkpoint.json: No such file or directory"
    assert refusal(tmp_path) == "/checkpoint.json: No such file or directory"
    (tmp_path / "file").write_bytes(b"")
    assert refusal(tmp_path / "file") == "/checkpoint.json: Not a directory"
    (tmp_path / "checkpoint.json").mkdir()
    assert refusal(tmp_path) == "/checkpoint.json: Is a directory"


def test_missing_or_foreign_tensors_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "one", tensors(1), META)
    save(tmp_path / "two", tensors(2), META)
    file = tensor_file(tmp_path / "one")
    file.write_bytes(tensor_file(tmp_path / "two").read_bytes())
    assert "damaged, its SHA-256" in refusal(tmp_path / "one")
    file.unlink()
    assert refusal(tmp_path / "one") == f"/{file.name}: No such file or directory"
    file.mkdir()
    assert refusal(tmp_path / "one") == f"/{file.name}: Is a directory"


def test_every_truncation_and_every_flipped_byte_is_refused(tmp_path: Path) -> None:
    save(tmp_path, tensors(1), META)
    file = tensor_file(tmp_path)
    data = file.read_bytes()
    for i in range(len(data)):
        file.write_bytes(data[:i])
        assert "damaged" in refusal(tmp_path)
        file.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        assert "damaged" in refusal(tmp_path)
    file.write_bytes(data + b"\0")
    assert "damaged" in refusal(tmp_path)


def forge(path: Path, data: bytes) -> None:
    """Write a checkpoint whose hash is right and whose tensor file is `data`."""
    digest = hashlib.sha256(data).hexdigest()
    record = {"format": "attention checkpoint", "version": 1, "sha256": digest, "meta": {}}
    (path / "checkpoint.json").write_text(json.dumps(record))
    (path / f"tensors-{digest[:16]}.safetensors").write_bytes(data)


def container(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: Any, start: int, end: int) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        b"\0" * 8,
        Random(0).randbytes(1000),
        container({}, length=2**63),  # headers that lie about their length
        container({}, length=99_999_999),
        container({}, length=1),
        container(b"[]"),
        container(b"[" * 100_000),
        container(b"\xff\xff"),
        container({"a": 1}),
        container({"a\n\nb": {"dtype": "F\n32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        container(entry("F32", [2], 0, 8), b"1234"),  # less data than promised
        container(entry("F32", [1], 0, 4), b"12345678"),  # more
        container(entry("F32", [1], 4, 8), b"12345678"),  # a gap
        container(entry("F32", [1], 4, 0), b"1234"),
        container(entry("F32", [-1], 0, 4), b"1234"),
        container(entry("F32", [2**40, 2**40], 0, 4), b"1234"),
        container(entry("F32", [2**62, 0, 2**62], 0, 0)),  # nothing, in a shape beyond all bounds
        container(entry("F32", [1] * 100, 0, 4), b"1234"),  # more axes than NumPy has
        container(entry("BF16", [2], 0, 4), b"1234"),  # a type NumPy has not
        container(entry("F128", [1], 0, 16), b"1234" * 4),
    ],
)
def test_hostile_tensors_with_the_right_hash_are_refused(tmp_path: Path, data: bytes) -> None:
    forge(tmp_path, data)
    assert ": not tensors NumPy can hold (" in refusal(tmp_path)


def test_the_forgery_itself_is_sound(tmp_path: Path) -> None:
    """Else the test above would pass for the wrong reason."""
    forge(tmp_path, container(entry("F32", [1], 0, 4), struct.pack("<f", 1.5)))
    assert load(tmp_path)[0]["a"].tolist() == [1.5]


@settings(max_examples=200, deadline=None)
@given(data=st.binary() | st.binary().map(container))
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random_bytes"
    path.mkdir(exist_ok=True)
    forge(path, data)
    refusal(path)
    (path / "checkpoint.json").write_bytes(data)
    refusal(path)


GOOD = {"format": "attention checkpoint", "version": 1, "sha256": "0" * 64, "meta": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged, not JSON ("),
        (b"\xff\xfe", "damaged, not JSON ("),
        (json.dumps(GOOD).encode()[:-1], "damaged, not JSON ("),
        (b"[" * 1_000_000, "damaged, not JSON ("),
        (b'{"version": ' + b"9" * 10_000 + b"}", "damaged, not JSON ("),
        (b"[]", "not an attention checkpoint"),
        (b"null", "not an attention checkpoint"),
        (b'"attention checkpoint"', "not an attention checkpoint"),
        ({"model_type": "gpt2"}, "not an attention checkpoint"),
        (GOOD | {"format": ["attention checkpoint"]}, "not an attention checkpoint"),
        (GOOD | {"version": 2}, "version 2, this program reads 1"),
        (GOOD | {"version": "1"}, "version '1', this program reads 1"),
        (GOOD | {"version": "\n" * 999}, r"version '\n\n\n\n\n\n\n\n\n\, this program reads 1"),
        ({"format": "attention checkpoint"}, "version None, this program reads 1"),
        (GOOD | {"sha256": 5}, "damaged, 'sha256' is not 64 hexadecimal digits"),
        (GOOD | {"sha256": "../" * 30}, "damaged, 'sha256' is not 64 hexadecimal digits"),
        (GOOD | {"sha256": "0" * 64 + "\n"}, "damaged, 'sha256' is not 64 hexadecimal digits"),
        (GOOD | {"meta": []}, "damaged, 'meta' is not an object"),
        (GOOD | {"meta": None}, "damaged, 'meta' is not an object"),
    ],
)
def test_bad_json_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    save(tmp_path, tensors(), {})
    file = tmp_path / "checkpoint.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    said = refusal(tmp_path).removeprefix("/checkpoint.json: ")
    assert said.startswith(message) if message.endswith("(") else said == message


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    bomb = tmp_path / "exploded"
    pickle = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(bomb).encode() + b"\ntRtR."
    forge(tmp_path, pickle)
    refusal(tmp_path)
    (tmp_path / "checkpoint.json").write_bytes(pickle)
    refusal(tmp_path)
    assert not bomb.exists()
