"""Ctrl-C while ``python -m minigrad`` or ``python -m attention`` is still being imported: one line, as later on.

A package is imported before its ``__main__``, where `command_line.run` takes over, so this module comes first. Until
then `sys.argv` begins with "-m"; no other program than the two is touched.
"""

import sys
from types import TracebackType


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("minigrad", "attention"):
    sys.excepthook = _tell
