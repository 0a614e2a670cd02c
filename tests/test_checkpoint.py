"""attention.checkpoint: what is saved comes back, what is broken is refused, what was there survives."""

import json
import os
import re
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

from attention import checkpoint
from attention.checkpoint import CheckpointError, load, save
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


# -------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"],
)
def test_every_type_comes_back(file: Path, dtype: str) -> None:
    array = numpy.array([[0, 1, 2], [3, 4, 5]], dtype)
    save(file, {"a": array, "scalar": array[1, 1], "empty": array[:, :0]}, {})
    loaded, meta = load(file)
    assert same(loaded, {"a": array, "scalar": numpy.array(array[1, 1]), "empty": array[:, :0]})
    assert meta == {}


def test_memory_layout_does_not_matter(file: Path) -> None:
    """Without its copies, `save` would scramble all of these, or fail on them."""
    array = numpy.arange(24.0).reshape(2, 3, 4)
    views = {
        "transposed": array.T,
        "sliced": array[:, ::2, 1:3],
        "reversed": array[::-1],
        "broadcast": numpy.broadcast_to(array[0, 0], (5, 4)),
        "big_endian": array.T.astype(">f8"),
    }
    save(file, views, {})
    loaded, _ = load(file)
    for name, view in views.items():
        assert loaded[name].tolist() == view.tolist(), name


def test_loaded_arrays_can_be_trained_further(file: Path) -> None:
    save(file, tensors(), META)
    loaded, _ = load(file)
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
    path = tmp_path_factory.getbasetemp() / "any_json.safetensors"
    save(path, {}, meta)
    assert load(path) == ({}, meta)


def test_a_file_name_that_is_not_utf8_comes_back(file: Path) -> None:
    name = os.fsdecode(b"pairs-\xff.tsv")
    save(file, {}, {"pairs": name})
    assert load(file)[1] == {"pairs": name}


def test_it_is_one_file_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run" / "file"
    save(file, tensors(1), META)
    assert files(file.parent) == ["file"]
    assert same(safetensors.numpy.load_file(file), tensors(1))
    with safetensors.safe_open(file, framework="numpy") as opened:
        record = json.loads(opened.metadata()["attention checkpoint"])
    assert record.keys() == {"version", "sha256", "meta"}
    assert (record["version"], record["meta"]) == (1, META)


def test_equal_contents_are_equal_bytes(file: Path, tmp_path: Path) -> None:
    save(file, tensors(1), META)
    save(tmp_path / "other", dict(reversed(tensors(1).items())), META)
    assert file.read_bytes() == (tmp_path / "other").read_bytes()


# ----------------------------------------------------------------------------------- interrupted saves


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize(("call", "at"), [("fsync", 0), ("replace", 0), ("fsync", 1)])
def test_an_interrupted_save_leaves_old_or_new(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], call: str, at: int
) -> None:
    save(file, tensors(1), {"step": 1})
    original, calls = getattr(os, call), 0

    def fail(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise error("stop")
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(error, match="stop"):
            save(file, tensors(2), {"step": 2})
    step = 2 if at == 1 else 1  # the second flush is that of the folder, after the rename
    loaded, meta = load(file)
    assert meta == {"step": step}
    assert same(loaded, tensors(step))
    assert files(file.parent) == [file.name]
    save(file, tensors(3), {"step": 3})
    assert same(load(file)[0], tensors(3))


def test_a_refused_save_changes_nothing(file: Path) -> None:
    save(file, tensors(1), {"step": 1})
    before = file.read_bytes()
    for meta in ({"loss": float("nan")}, {"loss": float("inf")}, {"set": {1}}, {"array": numpy.ones(2)}):
        with pytest.raises((TypeError, ValueError)):
            save(file, tensors(2), meta)
    with pytest.raises(safetensors.SafetensorError):
        save(file, {"words": numpy.array(["a"])}, {})
    assert file.read_bytes() == before
    assert files(file.parent) == [file.name]


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
def test_a_killed_save_leaves_old_or_new(file: Path) -> None:
    rng = Random(0)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", LOOP, file], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        done = [process.stdout.readline() for _ in range(rng.randint(2, 5))]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        loaded, meta = load(file)
        assert meta["step"] >= int(done[-1])
        assert loaded["a"].tolist() == [meta["step"]] * 300_000


def test_a_reader_is_not_disturbed_by_a_save(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole save between the opening of the file and the reading of its tensors: what was opened is read."""
    save(file, tensors(1), {"step": 1})
    original, interrupted = json.loads, False

    def loads(text: str) -> Any:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            save(file, tensors(2), {"step": 2})
        return original(text)

    monkeypatch.setattr(checkpoint.json, "loads", loads)
    loaded, meta = load(file)
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


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for data in (b"one", b"two"):
        write_atomically(tmp_path / "link", data)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_bytes() == data
    assert files(tmp_path / "there") == ["file"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"data")
    assert os.read(reader, 10) == b"data"
    os.close(reader)
    assert pipe.is_fifo()
    assert files(tmp_path) == ["pipe"]


@pytest.mark.parametrize("place", ["folder", "missing/file", "file/below"])
def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=re.escape(f"'{tmp_path / place}'") + "$"):
        write_atomically(tmp_path / place, b"data")
    assert files(tmp_path) == ["file", "folder"]


# --------------------------------------------------------------------------------------- hostile files


def refusal(path: Path) -> str:
    """The message with which ``path`` is refused, after checking that it is one short line."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < len(str(path)) + 300
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == ": No such file or directory"
    assert refusal(tmp_path) == ": Is a directory"
    (tmp_path / "file").write_bytes(b"")
    assert refusal(tmp_path / "file" / "below") == ": Not a directory"


@pytest.mark.skipif(os.name != "posix", reason="devices are files on POSIX")
def test_a_device_is_refused() -> None:
    assert "damaged" in refusal(Path(os.devnull)) or "No such device" in refusal(Path(os.devnull))


def test_foreign_tensors_are_refused(file: Path) -> None:
    for metadata in (None, {}, {"format": "pt"}):
        safetensors.numpy.save_file(tensors(), file, metadata)
        assert refusal(file) == ": not an attention checkpoint"


def test_every_truncation_and_every_flipped_bit_is_refused(file: Path) -> None:
    save(file, tensors(1), META)
    data = file.read_bytes()
    for i in range(len(data)):
        file.write_bytes(data[:i])
        assert "damaged" in refusal(file)
        file.write_bytes(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :])
        refusal(file)
    file.write_bytes(data + b"\0")
    assert "damaged" in refusal(file)


def container(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: Any, start: int, end: int) -> dict[str, Any]:
    """A header with a tensor, and with all that makes a file a checkpoint but for the right hash."""
    record = json.dumps({"version": 1, "sha256": "", "meta": {}})
    return {
        "__metadata__": {"attention checkpoint": record},
        "a": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]},
    }


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
        container(entry("F32", [2**38], 0, 2**40), b"1234"),  # a terabyte less
        container(entry("F32", [1], 0, 4), b"12345678"),  # more
        container(entry("F32", [1], 4, 8), b"12345678"),  # a gap
        container(entry("F32", [1], 4, 0), b"1234"),
        container(entry("F32", [-1], 0, 4), b"1234"),
        container(entry("F32", [2**40, 2**40], 0, 4), b"1234"),
        container(entry("F32", [2**62, 0, 2**62], 0, 0)),  # nothing, in a shape beyond all bounds
        container(entry("F32", [1] * 100, 0, 4), b"1234"),  # more axes than NumPy has
        container(entry("F8_E4M3", [4], 0, 4), b"1234"),  # a type NumPy has not
        container(entry("F128", [1], 0, 16), b"1234" * 4),
        container(entry("F32", [1], 0, 4), b"1234"),  # all is well but for the hash
    ],
)
def test_hostile_files_are_refused(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert ": damaged" in refusal(file)


@settings(max_examples=200, deadline=None)
@given(data=st.binary() | st.binary().map(container))
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "random_bytes"
    file.write_bytes(data)
    refusal(file)


GOOD = {"version": 1, "sha256": checkpoint._digest({}, {}), "meta": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged, or no checkpoint ("),
        (json.dumps(GOOD)[:-1], "damaged, or no checkpoint ("),
        ("[" * 1_000_000, "damaged, or no checkpoint ("),
        ('{"version": ' + "9" * 10_000 + "}", "damaged, or no checkpoint ("),
        ("[]", "version None, this program reads 1"),
        ("null", "version None, this program reads 1"),
        (GOOD | {"version": 2}, "version 2, this program reads 1"),
        (GOOD | {"version": True}, "version True, this program reads 1"),
        (GOOD | {"version": "1"}, "version '1', this program reads 1"),
        (GOOD | {"version": "\n" * 999}, r"version '\n\n\n\n\n\n\n\n\n\, this program reads 1"),
        (GOOD | {"sha256": 5}, "damaged, its SHA-256 is not that of what it holds"),
        (GOOD | {"meta": {"step": 1}}, "damaged, its SHA-256 is not that of what it holds"),
        (GOOD | {"meta": []}, "damaged, its SHA-256 is not that of what it holds"),
        (GOOD | {"meta": None}, "damaged, its SHA-256 is not that of what it holds"),
    ],
)
def test_bad_json_is_refused(file: Path, text: Any, message: str) -> None:
    text = text if isinstance(text, str) else json.dumps(text)
    safetensors.numpy.save_file({}, file, {"attention checkpoint": text})
    said = refusal(file).removeprefix(": ")
    assert said.startswith(message) if message.endswith("(") else said == message


def test_the_forgery_itself_is_sound(file: Path) -> None:
    """Else the test above would pass for the wrong reason."""
    safetensors.numpy.save_file({}, file, {"attention checkpoint": json.dumps(GOOD)})
    assert load(file) == ({}, {})


def test_a_pickle_is_not_opened(file: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "exploded"
    file.write_bytes(b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(bomb).encode() + b"\ntRtR.")
    refusal(file)
    assert not bomb.exists()
