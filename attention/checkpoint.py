"""What training has reached, in one file: tensors as safetensors, all the rest as JSON in its metadata.

The format holds no code, so that a checkpoint from a stranger can be refused but cannot run anything. What stands in it
is covered by a SHA-256, and it is written in one step: a reader finds the old one or the new one, and knows a damaged
one from a good one. The format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy
from safetensors import safe_open

from .files import one_line, write_atomically

KEY, VERSION = "attention checkpoint", 1


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or not one of ours. The message is one line.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "run.safetensors")
    ...     save(path, tensors={}, meta={"step": 100})
    ...     _ = path.write_bytes(path.read_bytes().replace(b"100", b"900"))
    ...     load(path)
    Traceback (most recent call last):
    attention.checkpoint.CheckpointError: ...run.safetensors: damaged, its SHA-256 is not that of what it holds
    """


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Make the file at ``path`` a checkpoint of ``tensors`` and ``meta``, and its folder where that is missing.

    ``tensors`` holds NumPy arrays of bool, integers, float16, float32, float64 or complex64, and ``meta`` plain JSON
    data (str, int, finite float, bool, None, list, dict with str keys). A checkpoint that is already there is replaced
    in one step, or, if anything is raised, stays as it was. Raises OSError if the file cannot be written, TypeError or
    ValueError for a ``meta`` that is not JSON, and SafetensorError for an array that safetensors has no type for.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.safetensors", tensors={}, meta={"step": 100})
    ...     load(f"{folder}/run.safetensors")
    ({}, {'step': 100})
    """
    # safetensors copies an array's memory without a look at its strides: a transposed view would come back scrambled.
    # Hence the copies in C order. (The dots make a NumPy scalar an array of no axes.)
    arrays = {name: array[...].copy(order="C") for name, array in tensors.items()}
    record = {"version": VERSION, "sha256": _digest(arrays, meta), "meta": dict(meta)}
    data = safetensors.numpy.save(arrays, {KEY: json.dumps(record, allow_nan=False)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, meta) of the checkpoint at ``path``: NumPy arrays, and plain JSON data.

    Raises CheckpointError, in one line that begins with the path, for one that is missing, cut short, damaged in any
    byte, or of another program or version.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.safetensors", {"w": mg.ones(2).numpy()}, meta={})
    ...     load(f"{folder}/run.safetensors")
    ({'w': array([1., 1.])}, {})
    """
    record: Any = {}
    tensors: dict[str, Any] = {}
    try:
        # Opened twice, as the operating system's own errors read better than safetensors'.
        with open(path, "rb"), safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is not None:
                record = json.loads(text)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — it is no dict
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or one_line(error)}") from None
    except Exception as error:  # a file that lies can make anything of safetensors, JSON and NumPy
        raise CheckpointError(f"{path}: damaged, or no checkpoint ({one_line(error)})") from None
    if text is None:
        raise CheckpointError(f"{path}: not an {KEY}")
    version, digest, meta = map(record.get, ("version", "sha256", "meta")) if isinstance(record, dict) else [None] * 3
    if type(version) is not int or version != VERSION:
        raise CheckpointError(f"{path}: version {version!r:.20}, this program reads {VERSION}")
    if not isinstance(meta, dict) or digest != _digest(tensors, meta):
        raise CheckpointError(f"{path}: damaged, its SHA-256 is not that of what it holds")
    return tensors, meta


def _digest(tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """The SHA-256 of names, types, shapes and numbers of the tensors, and of the JSON data."""
    digest = hashlib.sha256(json.dumps(meta).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name!r} {array.dtype.name} {array.shape}".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
