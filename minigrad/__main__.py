"""``python -m minigrad gradcheck`` checks the derivatives of every operation; ``… info`` tells what is installed.

The operations are those in `autodiff.ALL`, so a new one joins the table by being defined. Each of its examples
(`Primitive.example`) is a row.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import warnings
from importlib import import_module, metadata
from typing import Any

import minigrad as mg

from . import backend, command_line
from .autodiff import ALL, Example, Primitive
from .gradcheck import GradcheckError, gradcheck, gradgradcheck, prepared

# ------------------------------------------------------------------------------------------------ gradcheck


def check_operations(only: str) -> int:
    """Print the table of the operations that have ``only`` in their name. Returns the exit status, 1 if any fails."""
    if importlib.util.find_spec("attention"):
        import_module("attention.functional")  # defines its operations
    chosen = [op for op in ALL.values() if (op.rules or op.joint) and only in op.__name__]
    if not chosen:
        print(f"error: no operation has {only!r} in its name", file=sys.stderr)
        return 2
    print(f"By rule and by central differences on {_where()}: largest relative error of first and second derivatives")
    module, examples, skipped = "", 0, 0
    failed: dict[str, None] = {}
    for op in chosen:
        if op.__module__ != module:
            module = op.__module__
            print(f"\n{module}")
        for example in op.examples or [_default_example(op)]:
            name = op.__name__.removeprefix("_")
            row = f"  {name:<18} {_call(example):<48}"
            if refusal := _refusal(example, op):
                print(f"{row} {'-':>7} {'-':>7}  skip\n    {refusal}", flush=True)
                skipped += 1
                continue
            first, second, wrong = _check(op, example)
            print(f"{row} {first:>7} {second:>7}  {'FAIL' if wrong else 'pass'}", flush=True)
            for message in wrong:
                print(f"    {message}", flush=True)
                failed[name] = None
            examples += 1
    but = f", {skipped} skipped" if skipped else ""
    verdict = f"FAIL: {', '.join(failed)}" if failed else "all pass"
    print(f"\n{len(chosen)} operations, {examples} examples: {verdict}{but}")
    return 1 if failed else 0


def _refusal(example: Example, op: Primitive[Any]) -> str:
    """Why the library in use cannot do the example, where that is complex and beyond the standard; else nothing."""
    if example.complex:
        call, args = prepared(op, example)
        try:
            with mg.no_grad():
                call(*args)
        except TypeError as error:
            return str(error)
    return ""


def _check(op: Primitive[Any], example: Example) -> tuple[str, str, list[str]]:
    """The largest relative errors of the first and the second derivatives, as text, and what is wrong."""
    errors, wrong = ["-", "-"], []
    for order, check in enumerate((gradcheck, gradgradcheck)):
        try:
            report = check(*prepared(op, example))
            errors[order] = f"{report.error:.0e}"
        except GradcheckError as error:
            errors[order] = f"{error.error:.0e}"
            wrong.append(str(error))
        except Exception as error:  # a rule can do anything; the other operations shall be checked all the same
            hint = "" if op.examples else f". Does it need other arguments? Give them as {op}.example(…)"
            wrong.append(f"{check.__name__}: {type(error).__name__}: {error}{hint}")
            break
    return errors[0], errors[1], wrong


def _default_example(op: Primitive[Any]) -> Example:
    count = len([name for name in op.names if name not in op.defaults]) + (2 if op.variadic else 0)
    return Example(((2, 3), *[(3,)] * (count - 1)), {}, -2.0, 2.0, False, None)


def _call(example: Example) -> str:
    """The example as the table shows it: ``(2, 3), axis=1``."""
    parts = [_text(arg) for arg in example.args]
    parts += [f"{name}={_text(value)}" for name, value in example.options.items()]
    return ", ".join(parts) + (", complex" if example.complex else "")


def _text(value: Any) -> str:
    if isinstance(value, slice):
        ends = [value.start, value.stop] + [value.step] * (value.step is not None)
        return ":".join("" if end is None else str(end) for end in ends)
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    if value is ...:
        return "..."
    return "array" if callable(value) else repr(value)


# ------------------------------------------------------------------------------------------------ info


def info(name: str, device: str | None) -> int:
    """Print versions, backends and devices. No library is imported for it but NumPy and the backend in use."""
    print(f"minigrad {mg.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print("\nbackends")
    packages = metadata.packages_distributions()  # CuPy's package is cupy-cuda12x or another
    for known, extra in backend.EXTRAS.items():
        if backend.is_installed(known):
            found = dict.fromkeys(packages.get(known, []))
            status = ", ".join(f"{package} {metadata.version(package)}" for package in found) or "installed"
        else:
            status = f"not installed; {backend.how_to_install(extra)}"
        print(f"  {known:<18} {status}")
    with backend.use_backend(name, device):  # or the error says why it cannot be used
        print(f"\nnew arrays: {_where()} (MINIGRAD_BACKEND, MINIGRAD_DEVICE)")
        with warnings.catch_warnings(action="ignore"):  # PyTorch deprecates devices while it lists them
            devices = backend.current().xp.__array_namespace_info__().devices()
        print(f"devices: {', '.join(str(device) for device in devices if device is not None)}")
    blas = backend.NUMPY.show_config(mode="dicts")["Build Dependencies"]["blas"]
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"numpy's BLAS: {blas.get('name')} {blas.get('version')}; {os.cpu_count()} CPUs, OMP_NUM_THREADS {threads}")
    why_not = backend.why_no_compiler()
    print(f"compiled loops: {f'none; {why_not}' if why_not else 'numba ' + metadata.version('numba')}")
    return 0


def _where() -> str:
    """The backend in use and its device."""
    return f"{mg.get_backend()} {mg.zeros(1).device}"


# ------------------------------------------------------------------------------------------------ the command line


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns the exit status: that of `command_line.run`, and 1 also if a derivative is wrong."""
    return command_line.run(lambda: _main(argv))


def _main(argv: list[str] | None) -> int:
    options = argparse.ArgumentParser(add_help=False)
    default = os.environ.get("MINIGRAD_BACKEND") or "numpy"
    options.add_argument(
        "--backend", metavar="NAME", default=default, help=f"{', '.join(backend.EXTRAS)} (default: %(default)s)"
    )
    options.add_argument(
        "--device", metavar="D", default=os.environ.get("MINIGRAD_DEVICE") or None, help="one of the library, as cuda:1"
    )
    parser = argparse.ArgumentParser(
        prog="python -m minigrad", description="A tiny autograd engine: see what it can do."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    about = "check every operation's derivatives, first and second, by finite differences"
    table = commands.add_parser("gradcheck", parents=[options], help=about, description=about.capitalize() + ".")
    table.add_argument("--only", metavar="TEXT", default="", help="only operations with this in their name")
    about = "show versions, backends and devices"
    commands.add_parser("info", parents=[options], help=about, description=about.capitalize() + ".")
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if args.command == "info":
        return info(args.backend, args.device)
    with backend.use_backend(args.backend, args.device):
        try:
            mg.zeros(1, dtype="float64")
        except Exception as error:
            raise backend.BackendError(f"gradcheck needs float64: {error}") from None
        return check_operations(args.only)


if __name__ == "__main__":
    sys.exit(main())
