"""The command line: ``python -m minigrad``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import attention.functional  # noqa: F401  — defines its operations before the fixture looks
import minigrad as mg
from minigrad import backend, primitive
from minigrad.__main__ import main
from minigrad.autodiff import ALL

GRADCHECK = [sys.executable, "-m", "minigrad", "gradcheck"]
ON_NUMPY = [*GRADCHECK, "--backend", "numpy", "--device", "cpu"]  # the quickest to start


@pytest.fixture(autouse=True)
def no_trace():
    """The operations defined here do not stay among those that the command line checks."""
    before = dict(ALL)
    yield
    ALL.clear()
    ALL.update(before)


def run(capsys, *argv):
    status = main(list(argv))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# ------------------------------------------------------------------------------------------------ gradcheck


def test_a_table_that_passes(capsys):
    status, out, err = run(capsys, "gradcheck", "--only", "cumulative_sum")
    assert (status, err) == (0, "")
    assert mg.get_backend() in out.splitlines()[0]
    row = next(line for line in out.splitlines() if "include_initial=True" in line).split()
    assert row[:5] == ["cumulative_sum", "(2,", "3),", "axis=0,", "include_initial=True"]
    assert float(row[5]) < 1e-8
    assert float(row[6]) < 1e-8
    assert row[7] == "pass"
    assert out.splitlines()[-1] == "1 operations, 2 examples: all pass"


def test_the_operations_of_attention_are_in_it(capsys):
    status, out, _ = run(capsys, "gradcheck", "--only", "softmax")
    assert status == 0
    assert "attention.functional" in out
    assert "\n  softmax " in out


def test_the_examples_read_as_they_are_called(capsys):
    assert "\n  getitem            (4, 3), (::2, None, 1)    " in run(capsys, "gradcheck", "--only", "getitem")[1]
    assert "\n  where              array, (2, 3), (3,)    " in run(capsys, "gradcheck", "--only", "where")[1]
    assert "\n  imag               (2, 3), complex    " in run(capsys, "gradcheck", "--only", "imag")[1]
    assert "\n  concat             (2, 3), (2,), axis=None    " in run(capsys, "gradcheck", "--only", "concat")[1]


def test_complex_numbers_that_the_library_refuses_are_no_failure(capsys):
    @primitive
    def zz_refused(xp, x, /):
        if xp.isdtype(x.dtype, "complex floating"):
            raise TypeError("only real numbers")
        return x * x

    zz_refused.vjp(x=lambda g, x: 2 * g * x)
    zz_refused.example((2,))
    zz_refused.example((2,), complex=True)
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_refused")
    assert status == 0
    assert "-       -  skip\n    zz_refused: only real numbers (given x: complex128 (2,)" in out
    assert out.endswith("\n1 operations, 1 examples: all pass, 1 skipped\n")


def test_the_variance_of_complex_numbers_is_checked_where_there_is_one(capsys):
    status, out, _ = run(capsys, "gradcheck", "--only", "var")
    assert status == 0
    assert "correction=1.0, complex" in out


def test_a_wrong_rule_fails_it(capsys):
    @primitive
    def zz_wrong(xp, x, y, /):
        return x * x * y

    zz_wrong.vjp(x=lambda g, x, y: g * x * y, y=lambda g, x: g * x * x)  # lacks a factor of 2 in x
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_wrong")
    assert status == 1
    assert "\n  zz_wrong           (2, 3), (3,)    " in out  # joined the table by being defined
    assert "FAIL\n    gradcheck: the derivative of output[" in out
    assert "the rule gives " in out
    assert out.endswith("\n1 operations, 1 examples: FAIL: zz_wrong\n")


def test_a_rule_that_is_wrong_in_its_second_derivative_fails_it(capsys):
    @primitive
    def zz_second(xp, x, /):
        return x * x * x

    zz_second.vjp(x=lambda g, x: 3 * g * (mg.square(x).detach() if type(x) is mg.Tensor else x * x))
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_second")
    assert status == 1
    assert "gradgradcheck: the derivative of" in out
    assert "    gradcheck: " not in out


def test_an_operation_that_raises_is_a_row_and_not_a_traceback(capsys):
    @primitive
    def zz_broken(xp, x, indices, /):
        return xp.take(x, indices, axis=0)

    zz_broken.vjp(x=lambda g: g)
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_broken")
    assert status == 1
    assert "-       -  FAIL" in out
    assert "Does it need other arguments? Give them as zz_broken.example(…)" in out


def test_a_new_operation_with_every_kind_of_argument(capsys):
    @primitive
    def zz_kinds(xp, x, indices, shape, y, /, *, scale=1.0):
        return xp.sum(xp.take(xp.reshape(x, shape), indices, axis=0), axis=0) * y * scale

    def rule(g, xp, x, indices, shape, y, scale):  # in operations that have rules themselves
        ones = xp.astype(xp.expand_dims(indices, axis=1) == xp.arange(shape[0], device=backend.device_of(x)), x.dtype)
        return xp.reshape(xp.sum(ones, axis=0)[:, None] * (g * y * scale), x.shape)

    zz_kinds.vjp(
        x=rule,
        y=lambda g, xp, x, indices, shape, scale: (
            g * xp.sum(xp.take(xp.reshape(x, shape), indices, axis=0), axis=0) * scale
        ),
    )
    zz_kinds.example((6,), lambda: mg.asarray([1, 0, 1]), (3, 2), (2,), scale=2.0)
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_kinds")
    assert status == 0, out
    assert "(6,), array, (3, 2), (2,), scale=2.0" in out


def test_an_example_with_numbers_of_its_own(capsys):
    @primitive
    def zz_own(xp, x, /):
        return xp.log(x - 5)

    zz_own.vjp(x=lambda g, x: g / (x - 5))
    zz_own.example(lambda: mg.Tensor([6.0, 7.0], requires_grad=True, dtype="float64"))
    assert run(capsys, "gradcheck", "--only", "zz_own")[0] == 0


def test_one_joint_rule_for_many_arrays(capsys):
    @primitive
    def zz_total(xp, *arrays):
        total = arrays[0]
        for x in arrays[1:]:
            total = total + x
        return total

    zz_total.vjp_all(lambda g, arrays_shape: [g for _ in arrays_shape])
    status, out, _ = run(capsys, "gradcheck", "--only", "zz_total")
    assert status == 0, out
    assert "\n  zz_total           (2, 3), (3,)    " in out


def test_an_operation_without_rules_is_not_checked(capsys):
    status, out, err = run(capsys, "gradcheck", "--only", "floor_divide")
    assert (status, out) == (2, "")
    assert err == "error: no operation has 'floor_divide' in its name\n"


def test_the_numbers_are_the_same_in_every_run(capsys):
    assert run(capsys, "gradcheck", "--only", "tanh") == run(capsys, "gradcheck", "--only", "tanh")


# ------------------------------------------------------------------------------------------------ info


def test_info(capsys):
    before = mg.get_backend()
    status, out, err = run(capsys, "info")
    assert (status, err) == (0, "")
    assert out.startswith(f"minigrad {mg.__version__}, Python 3.")
    assert f"new arrays: {before} " in out
    for name in backend.EXTRAS:
        line = next(line for line in out.splitlines() if line.startswith(f"  {name} "))
        assert ("not installed; install it with: pip install -e '.[" in line) == (not backend.is_installed(name))
    loops = "numba " if backend.has_compiler() else "none; install it with: pip install -e '.[fast]'"
    assert out.splitlines()[-1].startswith(f"compiled loops: {loops}")


def test_info_says_why_loops_are_not_compiled(capsys, monkeypatch, tmp_path):
    (tmp_path / "numba.py").write_text("raise AttributeError('no such attribute of NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    _, out, _ = run(capsys, "info")
    assert out.endswith("\ncompiled loops: none; numba cannot be used: no such attribute of NumPy\n")


def test_loops_are_not_run_as_python(capsys, monkeypatch):
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    _, out, _ = run(capsys, "info")
    assert out.endswith("\ncompiled loops: none; NUMBA_DISABLE_JIT is set\n")
    assert backend.has_compiler.__wrapped__() is False


def test_info_imports_no_library_that_is_not_in_use():
    code = (
        "import sys; from minigrad.__main__ import main; main(['info', '--backend', 'numpy']); "
        "assert not {'torch', 'jax', 'cupy', 'array_api_strict'} & set(sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "MINIGRAD_DEVICE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)


# ------------------------------------------------------------------------------------------------ the command line


def test_without_a_command_it_prints_help(capsys):
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert "gradcheck" in err
    assert "info" in err


@pytest.mark.parametrize("command", ["gradcheck", "info"])
def test_an_unknown_backend_is_one_line(capsys, command):
    status, _, err = run(capsys, command, "--backend", "tensorflow")
    assert status == 2
    assert err.startswith("error: unknown backend 'tensorflow'; known: numpy")
    assert err.count("\n") == 1


def test_an_unknown_device_is_one_line(capsys):
    status, out, err = run(capsys, "gradcheck", "--device", "nowhere")
    assert (status, out) == (2, "")
    assert "'nowhere'" in err
    assert err.count("\n") == 1


def test_a_device_without_float64_is_one_line(capsys):
    status, out, err = run(capsys, "gradcheck", "--backend", "array_api_strict", "--device", "no_float64")
    assert (status, out) == (2, "")
    assert err.startswith("error: gradcheck needs float64: zeros: Device")
    assert err.count("\n") == 1


def test_the_environment_chooses_the_backend():
    environment = {**os.environ, "MINIGRAD_BACKEND": "nonsense"}
    done = subprocess.run(GRADCHECK, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown backend 'nonsense'" in done.stderr


def test_a_flag_does_not_outlast_the_command(capsys):
    before = backend.current()
    run(capsys, "gradcheck", "--backend", "numpy", "--device", "cpu", "--only", "tanh")
    assert backend.current() == before


def test_an_unknown_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2
    assert "invalid choice: 'train'" in capsys.readouterr().err


needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")


@needs_signals
def test_a_reader_that_has_seen_enough():
    with subprocess.Popen(ON_NUMPY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@needs_signals
@pytest.mark.parametrize("command", ["info", "gradcheck --only tanh"])
@pytest.mark.parametrize(
    ("place", "status", "error"),
    [(">&-", 0, ""), (">/dev/full", 1, "error: [Errno 28] No space left on device\n"), (">/dev/full 2>&-", 1, "")],
)
def test_standard_output_that_is_closed_or_full(command, place, status, error):
    if "full" in place and not os.path.exists("/dev/full"):
        pytest.skip("a device of Linux")
    line = f"{sys.executable} -m minigrad {command} --backend numpy --device cpu {place}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", error)


@needs_signals
def test_control_c():
    with subprocess.Popen(ON_NUMPY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "pass" not in process.stdout.readline():
            time.sleep(0)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == "interrupted\n"
        assert process.wait(60) == 130


@needs_signals
@pytest.mark.parametrize("package", ["minigrad", "attention"])
def test_control_c_while_it_is_imported(package, tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", package, "info"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "interrupted\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text(f"import {package}")
    for importer in (["-c", f"import {package}"], ["-m", "other", package]):  # another program's errors are its own
        done = subprocess.run([sys.executable, *importer], env=env, capture_output=True, text=True, check=False)
        assert done.stderr.startswith("Traceback")
