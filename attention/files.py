"""What all that writes files and reports errors shares: a file that nobody sees half of, a message of one line."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``data`` the content of the file at ``path``, in one step.

    Whatever happens on the way (an exception, Ctrl-C, a full disk, a power cut), the file is afterwards either as it
    was or complete. Raises OSError if it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")  # next to it: a rename cannot cross file systems
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else the rename may reach the disk before the bytes do
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C included
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # make the rename itself last; elsewhere a directory cannot be opened
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def one_line(error: BaseException, limit: int = 200) -> str:
    """The message of ``error`` as one line of at most ``limit`` characters.

    >>> one_line(ValueError("expected\\n  less"))
    'expected less'
    """
    return " ".join(str(error).split())[:limit]
