"""Save and load what training has reached: tensors as safetensors, all the rest as JSON.

A checkpoint is a directory of two files:

    checkpoint.json                      format, version, the tensors' SHA-256, and the caller's `meta`
    tensors-<first digits>.safetensors   the tensors, in a file named after that hash

The JSON *is* the checkpoint. New tensors go into a file of their own while the JSON still names the old
one, and replacing the JSON, a single rename, switches both together. A crash before it leaves the old pair
untouched, a crash after it the new one, and the hash tells any other combination from a good one. The
tensors of the save before are deleted at the start of the next one, rather than at the end of this one, so
that a program that has just read the old JSON still finds them.

Neither format can hold code, so a checkpoint from a stranger can be refused but cannot run anything.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import safetensors.numpy
from safetensors import SafetensorError

from attention.files import write_atomically

FORMAT, VERSION = "attention checkpoint", 1


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or not one of ours. The message is one line."""


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Make the directory `path` a checkpoint of `tensors` and `meta`.

    `tensors` holds NumPy arrays of bool, int, float16, float32, float64 or complex64, and `meta` plain
    JSON data (str, int, finite float, bool, None, list, dict with str keys). A checkpoint that is already
    there is replaced in one step, or, if anything is raised, stays as it was. Raises OSError if the
    directory cannot be written, TypeError or ValueError for a `meta` that is not JSON, and SafetensorError
    for an array that safetensors has no type for.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as run:
    ...     save(run, tensors={}, meta={"step": 100})
    ...     load(run)
    ({}, {'step': 100})
    """
    path = Path(path)
    # safetensors copies an array's memory without a look at its strides: a transposed view would come back
    # scrambled. Hence the copies in C order. (The dots make a NumPy scalar an array of no axes.)
    data = safetensors.numpy.save({name: array[...].copy(order="C") for name, array in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    record = {"format": FORMAT, "version": VERSION, "sha256": digest, "meta": dict(meta)}
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)

    path.mkdir(parents=True, exist_ok=True)
    _delete_stale_tensors(path)
    write_atomically(_tensor_file(path, digest), data)
    # A lone surrogate (from a file name that is not UTF-8) becomes "\udc80", which JSON reads back as one.
    write_atomically(path / "checkpoint.json", text.encode(errors="backslashreplace"))


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (tensors, meta) of the checkpoint in the directory `path`: NumPy arrays, and plain JSON data.

    Raises CheckpointError, in one line that names the file, for one that is missing, cut short, damaged in
    any byte of its tensors, of another program or version, or that contains anything unexpected.
    """
    path = Path(path)
    digest, meta = _read_json(path)
    file = _tensor_file(path, digest)
    data = _read(file)
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{file}: damaged, its SHA-256 is not the one in checkpoint.json")
    try:
        return safetensors.numpy.load(data), meta
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type that NumPy lacks
        raise CheckpointError(f"{file}: not tensors NumPy can hold ({_one_line(error)})") from None


def rng_to_json(rng: Random) -> dict[str, Any]:
    """Return the state of `rng` as JSON data, its 625 words of 32 bits in hexadecimal.

    >>> rng = Random(7)
    >>> state = rng_to_json(rng)
    >>> rng.random() == rng_from_json(state).random()
    True
    """
    version, words, gauss = rng.getstate()
    return {"version": version, "words": struct.pack(f"<{len(words)}I", *words).hex(), "gauss": gauss}


def rng_from_json(data: Any) -> Random:
    """Return a generator in the state that `rng_to_json` stored; CheckpointError if `data` is not one."""
    rng = Random()
    try:
        words, gauss = struct.unpack("<625I", bytes.fromhex(data["words"])), data["gauss"]
        rng.setstate((data["version"], words, None if gauss is None else float(gauss)))
    except (TypeError, KeyError, ValueError, struct.error) as error:
        raise CheckpointError(f"not the state of a random generator ({_one_line(error)})") from None
    return rng


def _tensor_file(path: Path, digest: str) -> Path:
    return path / f"tensors-{digest[:16]}.safetensors"


def _delete_stale_tensors(path: Path) -> None:
    """Delete the tensor files in `path` that its checkpoint does not use; without one, touch nothing."""
    try:
        current = _tensor_file(path, _read_json(path)[0])
    except CheckpointError:
        return
    for file in path.iterdir():
        if re.fullmatch(r"tensors-[0-9a-f]{16}\.safetensors(\.tmp)?", file.name) and file != current:
            file.unlink(missing_ok=True)


def _read_json(path: Path) -> tuple[str, dict[str, Any]]:
    """Return (SHA-256 of the tensors, meta) from the JSON file of a checkpoint."""
    file = path / "checkpoint.json"
    data = _read(file)
    try:
        record = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or brackets nested without end
        raise CheckpointError(f"{file}: damaged, not JSON ({_one_line(error)})") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not an {FORMAT}")
    if record.get("version") != VERSION:
        raise CheckpointError(f"{file}: version {record.get('version')!r:.20}, this program reads {VERSION}")
    digest, meta = record.get("sha256"), record.get("meta")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise CheckpointError(f"{file}: damaged, 'sha256' is not 64 hexadecimal digits")
    if not isinstance(meta, dict):
        raise CheckpointError(f"{file}: damaged, 'meta' is not an object")
    return digest, meta


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
