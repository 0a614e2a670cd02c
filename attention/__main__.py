"""The command line: ``python -m attention train | translate | generate``."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from minigrad.backend import BackendError, blas_threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for an error in one line, or 130 where Ctrl-C or SIGTERM stopped it."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without an arrow shows its code point
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with blas_threads(1):  # the models here are small
            options.run(options)
        print(end="", flush=True)
        return 0
    except BrokenPipeError:  # `… | head` has seen enough, and nothing more is to be written when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        print(error if error.args else "interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, MemoryError, BackendError) as error:
        print(f"error: {' '.join(str(error).split()) or 'out of memory'}", file=sys.stderr)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("babel", "matplotlib", "safetensors", "tqdm"):
            raise
        print(f"error: {package} is missing: pip install 'minigrad-attention[train]'", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attention", description="Train small Transformers, and use them.")
    commands = parser.add_subparsers(required=True, metavar="command")

    train = commands.add_parser("train", help="train a model: on dates in twelve languages, or on your own data")
    what = train.add_mutually_exclusive_group()
    what.add_argument("--pairs", metavar="FILE.tsv", help="lines of source<TAB>target to translate, instead of dates")
    what.add_argument(
        "--text", metavar="FILE", nargs="?", const=True, help="a text to continue (without FILE: Python's own manual)"
    )
    train.add_argument(
        "--checkpoint", metavar="DIR", type=Path, help="where to save (runs/dates, runs/pairs or runs/text)"
    )
    there = train.add_mutually_exclusive_group()
    there.add_argument("--resume", action="store_true", help="go on from the checkpoint, with its settings and data")
    there.add_argument("--overwrite", action="store_true", help="replace the checkpoint that is there")
    train.add_argument("--seed", type=int, help="of parameters, batches and the held-out part (0)")
    train.add_argument("--steps", type=int, help="how many batches to train on (1400)")
    train.add_argument("--batch", type=int, help="how many sequences in each (64; text: 16)")
    train.add_argument("--width", type=int, help="of the model, d (64; text: 128)")
    train.add_argument("--layers", type=int, help="in encoder and decoder each (1; text: 3)")
    train.set_defaults(run=_train)

    translate = commands.add_parser("translate", help="translate with a trained model")
    translate.add_argument("--checkpoint", metavar="DIR", type=Path, default=Path("runs/dates"), help="(runs/dates)")
    translate.add_argument("--heatmap", metavar="FILE.png", type=Path, help="draw where it looks in the first source")
    translate.add_argument("source", nargs="+", help='what to translate, such as "3. Juni 2026"')
    translate.set_defaults(run=_translate)

    generate = commands.add_parser("generate", help="continue a text with a trained model")
    generate.add_argument("--checkpoint", metavar="DIR", type=Path, default=Path("runs/text"), help="(runs/text)")
    generate.add_argument("--prompt", help="what to continue (the first words of the text it was trained on)")
    generate.add_argument("--length", type=int, default=300, help="how many characters to write (300)")
    generate.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest character (0.8)")
    generate.add_argument("--top-k", type=int, help="choose among the k likeliest characters only")
    generate.add_argument("--seed", type=int, default=0, help="of the choices (0)")
    generate.set_defaults(run=_generate)
    return parser


def _train(options: argparse.Namespace) -> None:
    for name in ("steps", "batch", "width", "layers"):
        _expect_at_least(1, options, name)
    _expect_at_least(0, options, "seed")
    given = {name: getattr(options, name) for name in ("seed", "steps", "batch", "width", "layers")}
    given = {name: value for name, value in given.items() if value is not None}
    kind = "pairs" if options.pairs is not None else "text" if options.text is not None else "dates"
    folder: Path = options.checkpoint or Path("runs", kind)

    from . import train

    if options.resume:
        if kind != "dates" or given:
            raise ValueError("--resume goes on with the data and settings of the checkpoint; give --checkpoint alone")
        saved = train.load(folder)
        settings = saved["settings"]
    else:
        file = options.pairs if kind == "pairs" else options.text if options.text is not True else None
        settings = train.Settings(kind, file, **train.DEFAULTS[kind] | given)
        saved = None
        if not options.overwrite and (folder / "checkpoint.json").exists():
            # The same command again: it would take the very steps that were taken, so it goes on from there.
            saved = train.load(folder)
            if saved["settings"] != settings:
                raise ValueError(f"{folder} holds another run: use --resume, --overwrite or another --checkpoint")
    if settings.width % settings.heads:
        raise ValueError(f"--width: expected a multiple of {settings.heads}, the number of heads, got {settings.width}")

    task = train.make_task(settings)
    print(f"{task.model.parameter_count():,} parameters, checkpoint in {folder}", end="")
    print(f" from step {saved['step']} of {settings.steps}" if saved else "", flush=True)
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
    print(f"\nUse it with: {use}")


def _translate(options: argparse.Namespace) -> None:
    from . import train

    model, vocabularies, saved = train.load_model(options.checkpoint)
    if saved["settings"].kind == "text":
        raise ValueError(f"{options.checkpoint} continues text; use it with: python -m attention generate")
    for source, target in zip(options.source, train.translate(model, vocabularies, options.source), strict=True):
        print(target if len(options.source) == 1 else f"{source}\t{target}")
    if options.heatmap is not None:
        train.draw_attention(model, vocabularies, options.source[0], options.heatmap)


def _generate(options: argparse.Namespace) -> None:
    for name, least in {"length": 0, "temperature": 0, "top_k": 1, "seed": 0}.items():
        _expect_at_least(least, options, name)

    from . import train

    model, vocabularies, saved = train.load_model(options.checkpoint)
    if saved["settings"].kind != "text":
        raise ValueError(f"{options.checkpoint} translates; use it with: python -m attention translate")
    prompt = saved["example"] if options.prompt is None else options.prompt
    if not prompt:
        raise ValueError("--prompt: expected at least one character, got none")
    try:
        for text in train.continue_text(
            model, vocabularies, prompt, options.length, options.temperature, options.top_k, options.seed
        ):
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        print()
        raise
    print()


def _expect_at_least(least: int, options: argparse.Namespace, name: str) -> None:
    value = getattr(options, name)
    if value is not None and not value >= least:  # NaN is not
        raise ValueError(f"--{name.replace('_', '-')}: expected {least} or more, got {value}")


def _command(*arguments: str) -> str:
    """What to paste into a shell to run a command with the Python that runs this one."""
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, "-m", "attention", *arguments])


if __name__ == "__main__":
    sys.exit(main())
