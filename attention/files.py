"""What all that writes files and reports errors shares: a file that nobody sees half of, a message of one line.

What POSIX promises of a rename: https://pubs.opengroup.org/onlinepubs/9799919799/functions/rename.html; what file
systems do not promise, hence fsync: T. S. Pillai et al., "All file systems are not created equal: on the complexity of
crafting crash-consistent applications", OSDI (2014).
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``data`` the content of the file at ``path``, or of the file that a link there leads to, in one step.

    Whatever happens on the way (an exception, Ctrl-C, a full disk, a power cut), the file is afterwards either as it
    was or complete. A device or a pipe is written to. Raises OSError, which names ``path``, if it cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/a.txt", b"whole")
    ...     [(path.name, path.read_text()) for path in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")  # next to it: a rename cannot cross file systems
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else the rename may reach the disk before the bytes do
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C included
        with suppress(OSError):
            temporary.unlink()
        raise
    if os.name == "posix":  # make the rename itself last; elsewhere a directory cannot be opened
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A context in which nobody else holds ``folder``; ValueError where another process or context does already.

    The hold is the operating system's lock on the folder itself: it leaves no file behind and ends with the process.
    Where there is no such lock (Windows, some network file systems), there is no check.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, held(Path(folder)), held(Path(folder)):
    ...     pass
    Traceback (most recent call last):
    ValueError: ...: another training is going on there
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another training is going on there") from None
        yield
    finally:
        os.close(descriptor)


def printable(text: str) -> str:
    r"""``text`` as a terminal can be given it: with the code point of each control character, which it would obey.

    >>> printable("\x1b[2J 日本\n")
    'U+001B[2J 日本\n'
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else f"U+{ord(c):04X}" for c in text)


def one_line(error: BaseException, limit: int = 200) -> str:
    """The message of ``error`` as one line of at most ``limit`` characters.

    >>> one_line(ValueError("expected\\n  less"))
    'expected less'
    """
    return " ".join(str(error).split())[:limit]
