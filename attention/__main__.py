"""The command line: ``python -m attention train | translate | generate``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minigrad import command_line
from minigrad.backend import blas_threads

from .files import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status, that of `minigrad.command_line.run`."""
    return command_line.run(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> None:
    options = _parser().parse_args(arguments)
    with blas_threads(1):  # the models here are small
        options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attention", description="Train small Transformers, and use them.")
    commands = parser.add_subparsers(required=True, metavar="command")

    train = commands.add_parser("train", help="train a model: on dates in twelve languages, or on your own data")
    what = train.add_mutually_exclusive_group()
    what.add_argument(
        "--pairs", metavar="FILE.tsv", type=_path, help="lines of source<TAB>target to translate, instead of dates"
    )
    what.add_argument(
        "--text",
        metavar="FILE",
        type=_path,
        nargs="?",
        const=True,
        help="a text to continue (without FILE: Python's own manual)",
    )
    train.add_argument(
        "--checkpoint", metavar="DIR", type=_path, help="where to save (runs/dates, runs/pairs or runs/text)"
    )
    there = train.add_mutually_exclusive_group()
    there.add_argument("--resume", action="store_true", help="go on from the checkpoint, with its settings and data")
    there.add_argument("--overwrite", action="store_true", help="replace the checkpoint that is there")
    train.add_argument("--seed", type=int, help="of parameters, batches and the held-out part (0)")
    train.add_argument("--steps", type=int, help="how many batches to train on (1400)")
    train.add_argument("--batch", type=int, help="how many sequences in each (64; text: 16)")
    train.add_argument("--width", type=int, help="of the model, d_model (64; text: 128)")
    train.add_argument("--layers", type=int, help="in encoder and decoder each (1; text: 3)")
    train.set_defaults(run=_train, error=train.error)

    translate = commands.add_parser("translate", help="translate with a trained model")
    translate.add_argument("--checkpoint", metavar="DIR", type=_path, default=Path("runs/dates"), help="(runs/dates)")
    translate.add_argument(
        "--heatmap", metavar="FILE", type=_path, help="draw where it looks in the first source (png, pdf, svg)"
    )
    translate.add_argument("source", nargs="+", help='what to translate, such as "3. Juni 2026"')
    translate.set_defaults(run=_translate)

    generate = commands.add_parser("generate", help="continue a text with a trained model")
    generate.add_argument("--checkpoint", metavar="DIR", type=_path, default=Path("runs/text"), help="(runs/text)")
    generate.add_argument("--prompt", type=_some_text, help="what to continue (the first words of its training text)")
    generate.add_argument(
        "--length", type=_number(int, 0, 10**9), default=300, help="how many characters to write (300)"
    )
    generate.add_argument(
        "--temperature", type=_number(float, 0, 1000), default=0.8, help="0: always the likeliest character (0.8)"
    )
    generate.add_argument("--top-k", type=_number(int, 1, 10**9), help="choose among the k likeliest characters only")
    generate.add_argument("--seed", type=_number(int, 0, 2**64), default=0, help="of the choices (0)")
    generate.set_defaults(run=_generate)
    return parser


def _number(kind: type[int] | type[float], least: int, most: int) -> Callable[[str], float]:
    """The type of an option: a number between the two."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:  # NaN is not
            raise argparse.ArgumentTypeError(f"expected {least} to {most}, got {text:.40}")
        return value

    return number


def _some_text(text: str) -> str:
    """The type of an option: at least one character."""
    if not text:
        raise argparse.ArgumentTypeError("expected at least one character, got none")
    return text


def _path(text: str) -> Path:
    """The type of an option: the name of a file or folder."""
    return Path(_some_text(text))


def _train(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in ("seed", "steps", "batch", "width", "layers")}
    given = {name: value for name, value in given.items() if value is not None}
    kind = "pairs" if options.pairs is not None else "text" if options.text is not None else "dates"
    folder: Path = options.checkpoint or Path("runs", kind)

    from . import train

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder for the checkpoint, there is a file")
    if options.resume:
        if kind != "dates" or given:
            options.error("--resume goes on with the data and settings of the checkpoint; give --checkpoint alone")
        saved = _load(folder)
        settings = saved.settings
    else:
        file = options.pairs if kind == "pairs" else options.text if options.text is not True else None
        file = file and os.path.abspath(file)  # so that the run can be resumed from anywhere
        try:
            settings = train.Settings(kind, file, **train.DEFAULTS[kind] | given)
        except ValueError as error:
            options.error(f"argument --{error}")
        saved = None
        if not options.overwrite and (folder / train.FILE).exists():
            # The same command again: it would take the very steps that were taken, so it goes on from there.
            saved = _load(folder)
            if saved.settings != settings:
                raise ValueError(f"{folder} holds another run: use --resume, --overwrite or another --checkpoint")

    if settings.kind != "text":
        import matplotlib.figure  # noqa: F401  — what the training ends with: now is the time to hear that it is missing

    task = train.make_task(settings)
    print(f"{task.model.parameter_count():,} parameters, checkpoint in {folder}", end="")
    print(f" from step {saved.step} of {settings.steps}" if saved else "", flush=True)
    try:
        train.train(task, folder, saved)
    except train.Stopped as stopped:
        again = _command("train", "--resume", "--checkpoint", str(folder))
        raise KeyboardInterrupt(f"{stopped}; go on with: {again}") from None
    try:
        task.report(folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; the training is complete and saved in {folder}") from None
    if settings.kind == "text":
        use = _command("generate", "--checkpoint", str(folder), f"--prompt={task.example}")
    else:
        use = _command("translate", "--checkpoint", str(folder), *["--"] * task.example.startswith("-"), task.example)
    print(printable(f"\nUse it with: {use}"))


def _load(folder: Path, kind: str = "dates") -> Any:
    """The run in ``folder``."""
    from . import train

    if not (folder / train.FILE).exists():
        first = _command("train", *["--text"] * (kind == "text"))
        raise ValueError(f"no checkpoint in {folder}; train first, as with: {first}")
    return train.load(folder)


def _translate(options: argparse.Namespace) -> None:
    from . import train

    saved = _load(options.checkpoint)
    if saved.settings.kind == "text":
        raise ValueError(f"{options.checkpoint} continues text; use it with: python -m attention generate")
    targets = train.translate(saved.model, saved.vocabularies, options.source)
    for source, target in zip(options.source, targets, strict=True):
        print(printable(target if len(options.source) == 1 else f"{source}\t{target}"))
    if options.heatmap is not None:
        train.draw_attention(saved.model, saved.vocabularies, options.source[0], options.heatmap)


def _generate(options: argparse.Namespace) -> None:
    from . import train

    saved = _load(options.checkpoint, "text")
    if saved.settings.kind != "text":
        raise ValueError(f"{options.checkpoint} translates; use it with: python -m attention translate")
    prompt = saved.example if options.prompt is None else options.prompt
    choice = {"temperature": options.temperature, "top_k": options.top_k, "seed": options.seed}
    try:
        for text in train.continue_text(saved.model, saved.vocabularies, prompt, options.length, **choice):
            print(printable(text), end="", flush=True)
    except KeyboardInterrupt:
        print()
        raise
    print()


def _command(*arguments: str) -> str:
    """What to paste into a shell to run a command with the Python that runs this one."""
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, "-m", "attention", *arguments])


if __name__ == "__main__":
    sys.exit(main())
