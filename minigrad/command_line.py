"""command_line: how both command lines end, ``python -m minigrad`` and ``python -m attention``."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from .backend import BackendError, how_to_install

# The packages that are imported when they are needed, and the extra that installs each.
PACKAGES = (
    {"array_api_compat": "", "threadpoolctl": ""}
    | dict.fromkeys(("babel", "matplotlib", "safetensors", "tqdm"), "train")
    | dict.fromkeys(("gguf", "jinja2", "tokenizers"), "models")
)


def run(command: Callable[[], int | None]) -> int:
    """Run a command and return the exit status; what goes wrong is told in one line on standard error.

    The status is 0, or what the command returns; 1 for an error, 2 for a backend that cannot be used, 130 where Ctrl-C
    or SIGTERM stopped it, 141 where the reader of its output did. Standard output and standard error may be closed. One
    that is broken, as that of a full disk, is an error for standard output and nothing for standard error: what a
    progress bar cannot say is not worth a training.
    """
    nowhere: Any
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(sys.stdout or nowhere),
        redirect_stderr(_Unfailing(sys.stderr or nowhere)),
    ):
        if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without an arrow shows its code point
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                status = command() or 0
                sys.stdout.flush()
                return status
            finally:  # what is left would be written at exit, where Python complains in its own way
                _flush(sys.stdout)
        except KeyboardInterrupt as error:
            return _end(130, str(error) or "interrupted")
        except BrokenPipeError:  # the reader, as `| head`, has seen enough
            return 141
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in PACKAGES:
                raise
            return _end(1, f"error: {package} is missing; {how_to_install(PACKAGES[package])}")
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            ours = not isinstance(error, RuntimeError) or isinstance(error, BackendError)
            # PyTorch and JAX say that there is no memory by a RuntimeError. Any other is a bug.
            if not ours and not re.search("out of memory|allocate memory", str(error), re.IGNORECASE):
                raise
            message = " ".join(str(error).split())[:1000] or "out of memory"
            return _end(2 if isinstance(error, BackendError) else 1, f"error: {message}")


def _end(status: int, message: str) -> int:
    print(message, file=sys.stderr)
    return status


def _flush(stream: Any) -> None:
    """Write out what waits to be written or, where that is impossible, send it nowhere, now and from here on."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Unfailing:
    """A text stream that can be written to even where it is broken."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self.flush()
        return len(text)

    def flush(self) -> None:
        _flush(self._stream)
