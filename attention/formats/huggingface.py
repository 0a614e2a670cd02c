"""Hugging Face's format: a folder with config.json, and the tensors in safetensors files.

A safetensors file is eight bytes that say how long the header is, a header in JSON (for each tensor its name, type,
shape and place) and the numbers. The `safetensors` package checks the header: that places neither overlap nor leave
gaps, fit the types and shapes, and fill the file. Then the numbers are mapped into memory where they are.

Source: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy
from safetensors import safe_open

from . import (
    Published,
    Tensors,
    WeightsError,
    exists,
    files,
    open_regular,
    parse_object,
    read_object,
    read_text,
    refusing,
)

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"

TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # NumPy has no bfloat16: the upper half of a float32
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}

Makers = dict[str, Any]


def read(path: Path) -> Published:
    """The checkpoint in the folder ``path``. WeightsError, one line, for what is missing or damaged.

    >>> from tempfile import TemporaryDirectory
    >>> import safetensors.numpy
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text('{"model_type": "bert"}')
    ...     safetensors.numpy.save_file({"w": numpy.ones(2)}, f"{folder}/model.safetensors")
    ...     published = read(Path(folder))
    ...     published.config, published.tensors["w"]
    ({'model_type': 'bert'}, array([1., 1.]))
    """
    if not exists(path / "config.json"):
        raise WeightsError(f"{path}: no config.json, so no model in Hugging Face's format")
    config = read_object(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise WeightsError(f'{path / "config.json"}: no "model_type"')
    generation, text, special = [read_object(path / name) if exists(path / name) else {} for name in OPTIONAL]
    return Published(
        path=path,
        format="Hugging Face",
        config=config,
        tensors=Tensors(_tensors(path)),
        make_tokenizer=partial(tokenizer, path),
        generation=generation,
        chat_template=_chat_template(path, text),
        special_tokens=_special_tokens(special) | _special_tokens(text),
    )


OPTIONAL = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")


# ------------------------------------------------------------------------------------------------ tensors


def _tensors(path: Path) -> Makers:
    if exists(path / ONE_FILE):
        return open_safetensors(path / ONE_FILE)
    if exists(path / INDEX):
        return _shards(path)
    others = files(path, "*.safetensors")
    if len(others) == 1:
        return open_safetensors(others[0])
    if others:
        raise WeightsError(f"{path}: {len(others)} safetensors files, and no {INDEX} that says what is in which")
    if pickles := files(path, "*.bin") + files(path, "*.pt") + files(path, "*.pth"):
        name = pickles[0].name
        raise WeightsError(f"{path}: no safetensors file; {name} is a pickle, which can run any code when it is opened")
    raise WeightsError(f"{path}: no safetensors file")


def _shards(path: Path) -> Makers:
    """A large model is in several files; the index says which tensor is in which."""
    index = path / INDEX
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f'{index}: no "weight_map"')
    for name in places.values():
        # A name like ../../x would lead out of the folder.
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index}: expected the name of a safetensors file in this folder, found {name!r:.80}")
    shards = {name: open_safetensors(path / name) for name in sorted(set(places.values()))}
    if lost := [(tensor, name) for tensor, name in places.items() if tensor not in shards[name]]:
        raise WeightsError(f"{index}: {lost[0][0]!r:.80} is said to be in {lost[0][1]}, and isn't")
    return {tensor: shards[name][tensor] for tensor, name in places.items()}


def open_safetensors(path: Path) -> Makers:
    """For each tensor in the file at ``path``, by name: its shape, and a function that gives its array.

    >>> from tempfile import TemporaryDirectory
    >>> import safetensors.numpy
    >>> with TemporaryDirectory() as folder:
    ...     safetensors.numpy.save_file({"w": numpy.ones(2)}, f"{folder}/model.safetensors")
    ...     shape, make = open_safetensors(Path(folder, "model.safetensors"))["w"]
    ...     shape, make()
    ((2,), array([1., 1.]))
    """
    with open_regular(path) as file:
        start = file.read(8)
        with refusing(path):
            safe_open(path, framework="numpy")  # checks that the header is true
        size = int.from_bytes(start, "little")
        with refusing(path):
            text = str(file.read(size), "utf-8")
        data = map_file(path, file)
    header = parse_object(path, text)
    header.pop("__metadata__", None)
    makers: Makers = {}
    for name, facts in header.items():
        kind, shape, (begin, end) = facts["dtype"], tuple(facts["shape"]), facts["data_offsets"]
        if kind not in TYPES:
            raise WeightsError(f"{path}: {name!r:.80} is of type {kind}; we read {', '.join(TYPES)}")
        makers[name] = shape, partial(_array, data[8 + size + begin : 8 + size + end], kind, shape)
    return makers


def map_file(path: Path, file: Any) -> Any:
    """The bytes of an open file, which are read when they are looked at. Changes stay in memory: copy on write.

    >>> with open(__file__, "rb") as file:
    ...     bytes(map_file(Path(__file__), file)[3:15])
    b'Hugging Face'
    """
    with refusing(path):
        return numpy.memmap(file, mode="c").view(numpy.ndarray)


def _array(part: Any, kind: str, shape: tuple[int, ...]) -> Any:
    numbers = part.view(TYPES[kind]).reshape(shape)
    if kind == "BF16":
        return numpy.left_shift(numbers, 16, dtype="<u4").view("<f4")
    if kind == "F16":
        return numbers.astype(numpy.float32)
    # Where the header's length is no multiple of eight, numbers lie across the processor's words.
    return numbers if numbers.flags.aligned else numbers.copy()


# ------------------------------------------------------------------------------------------------ text


def tokenizer(path: Path) -> Any:
    """The `tokenizers.Tokenizer` of tokenizer.json in the folder ``path``.

    >>> from tempfile import TemporaryDirectory
    >>> from tokenizers import Tokenizer, models
    >>> with TemporaryDirectory() as folder:
    ...     Tokenizer(models.BPE({"a": 0, "b": 1}, [])).save(f"{folder}/tokenizer.json")
    ...     tokenizer(Path(folder)).encode("abba").ids
    [0, 1, 1, 0]
    """
    file = path / "tokenizer.json"
    if not exists(file):
        raise WeightsError(f"{path}: no tokenizer.json")
    from tokenizers import Tokenizer

    text = read_text(file)
    with refusing(file):
        made = Tokenizer.from_str(text)
        # A file may ask to cut and pad to the length that its authors trained with. That is for the caller to say.
        made.no_truncation()
        made.no_padding()
    return made


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    if exists(path / "chat_template.jinja"):
        return read_text(path / "chat_template.jinja")
    found = config.get("chat_template")
    if found is None and exists(path / "chat_template.json"):
        found = read_object(path / "chat_template.json").get("chat_template")
    if isinstance(found, list):  # of several templates, each with its name
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """ "bos_token" and so on; a token is a text, or an object that has it as its "content"."""
    found = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in found.items() if key.endswith("_token") and isinstance(value, str)}
