"""Published checkpoints, each described in Hugging Face's terms: a model file has one set of names to know.

    attention.formats.huggingface   a folder with config.json and *.safetensors
    attention.formats.gguf          a .gguf file, as llama.cpp reads it
    attention.formats.ctranslate2   a folder with config.json and model.bin, as CTranslate2 and faster-whisper read it

A published file comes from a stranger. What these modules read holds no code, and nothing is unpickled. A file that is
damaged, or lies about its sizes, is refused with a `WeightsError` before memory is asked for on its word.

The packages of the ``models`` extra are imported when a format or a tokenizer needs them. Each module names what
describes its format; what JSON leaves open, and is refused here, is in sections 4 and 6 of
https://www.rfc-editor.org/rfc/rfc8259
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..files import one_line

__all__ = ["Published", "Tensors", "WeightsError", "open_published"]

LARGEST_JSON = 1 << 28  # bytes; the largest tokenizer.json of a known model has 2²⁵


class WeightsError(ValueError):
    """A published file that is missing, damaged or of no kind that we read. One line that begins with its path.

    >>> open_published(__file__)
    Traceback (most recent call last):
    attention.formats.WeightsError: ...: not a GGUF file; expected a folder or a .gguf file
    """


@dataclass(frozen=True)
class Published:
    """A checkpoint as `open_published` finds it: what the model is, its numbers, and how its text is written.

    >>> published = Published(Path("tiny"), "GGUF", {"model_type": "llama"}, {}, make_tokenizer=lambda: "abc")
    >>> published.config["model_type"], published.tokenizer  # which is made when it is first asked for
    ('llama', 'abc')
    """

    path: Path
    format: str  # "Hugging Face", "GGUF" or "CTranslate2"
    config: dict[str, Any]  # as in config.json, with "model_type": "bert", "llama", "whisper" …
    tensors: Mapping[str, Any]  # NumPy arrays in the shapes and by the names that Hugging Face publishes
    make_tokenizer: Callable[[], Any] = field(repr=False)
    generation: dict[str, Any] = field(default_factory=dict)  # as in generation_config.json: "eos_token_id" …
    chat_template: str | None = field(default=None, repr=False)  # in Jinja's language
    special_tokens: dict[str, str] = field(default_factory=dict)  # "bos_token": "<s>" …, for the chat template

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer`, which neither cuts nor pads. WeightsError where none can be made."""
        return self.make_tokenizer()


class Tensors(Mapping[str, Any]):
    """NumPy arrays by name, each made when it is asked for, and made anew each time: hold on to what you need.

    ``shapes`` knows all shapes without reading any numbers.

    >>> import numpy
    >>> tensors = Tensors({"bias": ((2,), lambda: numpy.zeros(2))})
    >>> tensors.shapes, tensors["bias"]
    ({'bias': (2,)}, array([0., 0.]))
    """

    def __init__(self, makers: Mapping[str, tuple[tuple[int, ...], Callable[[], Any]]]) -> None:
        self.shapes = {name: shape for name, (shape, _) in makers.items()}
        self._makers = {name: make for name, (_, make) in makers.items()}

    def __getitem__(self, name: str) -> Any:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:  # Mapping's own would make the array to find out
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def open_published(path: str | os.PathLike[str]) -> Published:
    """The checkpoint at ``path``: a folder in Hugging Face's or CTranslate2's format, or a .gguf file.

    Tensors are NumPy arrays on top of the file, mapped into memory: opening takes no time, and what is never asked for
    is never read. They can be changed in place, which doesn't change the file. float16, bfloat16 and quantised numbers
    become float32, when they are asked for. Whether the tensors are those that the model needs is for the model to say
    (`load_state_dict`).

    The file must stay as it is for as long as its tensors are used, as with any file that is mapped into memory.

    Raises WeightsError, one line, for what is missing, damaged, not of these formats, or kept as a pickle.

    >>> open_published("/no/such/model")
    Traceback (most recent call last):
    attention.formats.WeightsError: /no/such/model: No such file or directory
    """
    path = Path(path)
    if not is_folder(path):
        with open_regular(path) as file:
            magic = file.read(4)
        if magic != b"GGUF":
            is_safetensors = path.suffix == ".safetensors"
            hint = "name the folder that it is in" if is_safetensors else "expected a folder or a .gguf file"
            raise WeightsError(f"{path}: not a GGUF file; {hint}")
        from . import gguf

        return gguf.read(path)
    if exists(path / "model.bin") and not files(path, "*.safetensors"):
        from . import ctranslate2

        return ctranslate2.read(path)
    from . import huggingface

    return huggingface.read(path)


# ------------------------------------------------------------------------------------------------ files


@contextmanager
def refusing(path: Path, what: str = "damaged") -> Iterator[None]:
    """A context in which whatever a library raises about the content of ``path`` becomes a WeightsError of one line."""
    try:
        yield
    except (WeightsError, ModuleNotFoundError):  # a package that is missing is not the file's fault
        raise
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror or one_line(error)}") from None
    except Exception as error:  # a file that lies can make anything of a library: recursion and memory errors, too
        raise WeightsError(f"{path}: {what} ({reason(error)})") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what a bug in Rust code becomes in Python
            raise
        raise WeightsError(f"{path}: {what} ({reason(error)})") from None


def reason(error: BaseException) -> str:
    """What ``error`` says, which may be text from a file: with nothing in it that a terminal would obey."""
    text = "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in one_line(error, 500))
    return text or type(error).__name__


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder; WeightsError where there is nothing."""
    with refusing(path):
        return stat.S_ISDIR(os.stat(path).st_mode)


def exists(path: Path) -> bool:
    """Whether there is anything at ``path``; a link that leads nowhere counts, so that opening it says so."""
    return os.path.lexists(path)


def files(path: Path, pattern: str) -> list[Path]:
    """What in the folder ``path`` has a name like ``pattern``, in order."""
    with refusing(path):
        return sorted(path.glob(pattern))


@contextmanager
def open_regular(path: Path) -> Iterator[Any]:
    """The regular file at ``path``, open for reading bytes. A pipe or a device is refused: it may never end."""
    with refusing(path):
        # Not blocking: opening a pipe would wait for somebody who writes to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WeightsError(f"{path}: not a regular file")
            yield file


def read_text(path: Path) -> str:
    """The UTF-8 text of a small file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_JSON:
            raise WeightsError(f"{path}: {size:,} bytes; at most {LARGEST_JSON:,} were expected")
        return str(file.read(size), "utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file at ``path``."""
    text = read_text(path)
    return parse_object(path, text)


def parse_object(path: Path, text: str) -> dict[str, Any]:
    """The JSON object that is ``text``. What JSON leaves open is refused: a key twice, numbers without end."""
    with refusing(path, "no JSON"):
        hooks: dict[str, Any] = {"parse_int": _int, "parse_float": _float, "parse_constant": _float}
        found = json.loads(text, object_pairs_hook=_no_key_twice, **hooks)
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: expected a JSON object, found {type(found).__name__}")
    return found


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r:.80} twice in an object")
    return found


def _int(digits: str) -> int:
    if len(digits) > 20:  # 2⁶⁴ has 20
        raise ValueError(f"the number {digits:.20}… of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits:.20}")
    return number
