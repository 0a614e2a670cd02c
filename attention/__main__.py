"""The command line: ``python -m attention train | translate | generate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minigrad.backend import BackendError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for an error in one line, or 130 where Ctrl-C stopped it."""
    parser = argparse.ArgumentParser(prog="python -m attention", description="Train small Transformers, and use them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    train = commands.add_parser("train", help="train a model: on dates in twelve languages, or on your own data")
    what = train.add_mutually_exclusive_group()
    what.add_argument("--pairs", metavar="FILE.tsv", help="lines of source<TAB>target to translate, instead of dates")
    what.add_argument(
        "--text", metavar="FILE", nargs="?", const="", help="a text to continue (without FILE: Python's own manual)"
    )
    train.add_argument(
        "--checkpoint", metavar="DIR", type=Path, help="where to save (runs/dates, runs/pairs, runs/text)"
    )
    train.add_argument("--resume", action="store_true", help="go on from the checkpoint, with its settings and data")
    train.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is there")
    train.add_argument("--seed", type=int, help="of parameters, batches and the held-out part (0)")
    train.add_argument("--steps", type=int, help="how many batches to train on (1400)")
    train.add_argument("--batch", type=int, help="how many sequences in each (64)")
    train.add_argument("--width", type=int, help="of the model, d (64; text: 128)")
    train.add_argument("--layers", type=int, help="in encoder and decoder each (1; text: 4)")
    train.set_defaults(run=_train)

    translate = commands.add_parser("translate", help="translate with a trained model")
    translate.add_argument("--checkpoint", metavar="DIR", type=Path, default=Path("runs/dates"))
    translate.add_argument("--heatmap", metavar="FILE.png", type=Path, help="draw where the model looks")
    translate.add_argument("source", nargs="+", help='what to translate, such as "3. Juni 2026"')
    translate.set_defaults(run=_translate)

    generate = commands.add_parser("generate", help="continue a text with a trained model")
    generate.add_argument("--checkpoint", metavar="DIR", type=Path, default=Path("runs/text"))
    generate.add_argument("--prompt", default="The ", help='what to continue ("The ")')
    generate.add_argument("--length", type=int, default=300, help="how many characters to write (300)")
    generate.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest character (0.8)")
    generate.add_argument("--top-k", type=int, help="choose among the k likeliest characters only")
    generate.add_argument("--seed", type=int, default=0, help="of the choices (0)")
    generate.set_defaults(run=_generate)

    options = parser.parse_args(arguments)
    try:
        try:
            options.run(options)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("babel", "matplotlib", "safetensors", "tqdm"):
                raise
            raise ValueError(
                f"{error.name} is missing; install it with: pip install 'minigrad-attention[train]'"
            ) from None
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # `… | head` has seen enough
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, BackendError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _train(options: argparse.Namespace) -> None:
    from . import train

    kind = "pairs" if options.pairs is not None else "text" if options.text is not None else "dates"
    folder = options.checkpoint or Path("runs") / kind
    chosen = {
        name: getattr(options, name)
        for name in ("seed", "steps", "batch", "width", "layers")
        if getattr(options, name) is not None
    }
    for name, value in chosen.items():
        if value < (0 if name == "seed" else 1):
            raise ValueError(f"--{name}: expected a positive number, got {value}")
    if options.resume:
        if options.pairs is not None or options.text is not None or chosen:
            raise ValueError("--resume goes on with the data and settings of the checkpoint; give --checkpoint alone")
        saved = train.load(folder)
        settings = saved["settings"]
    else:
        if not options.overwrite and (folder / "checkpoint.json").exists():
            raise ValueError(f"{folder} holds a checkpoint: use --resume, --overwrite or another --checkpoint")
        saved = None
        if kind == "text":
            chosen = {"width": 128, "layers": 4, "batch": 16, "learning_rate": 2e-3} | chosen
        settings = train.Settings(kind, options.pairs or options.text or None, **chosen)
    if settings.width % settings.heads:
        raise ValueError(f"--width: expected a multiple of {settings.heads}, the number of heads, got {settings.width}")
    task = train.make_task(settings)
    print(f"{task.model.parameter_count():,} parameters; checkpoint in {folder}")
    try:
        train.train(task, folder, saved)
    except train.Stopped as stopped:
        print(f"{stopped}; go on with: python -m attention train --resume --checkpoint {folder}", file=sys.stderr)
        raise KeyboardInterrupt from None
    task.report(folder)
    command = "generate" if settings.kind == "text" else "translate"
    print(f"\nUse it with: python -m attention {command} --checkpoint {folder} …")


def _translate(options: argparse.Namespace) -> None:
    from . import train

    model, vocabularies, saved = train.load_model(options.checkpoint)
    if saved["settings"].kind == "text":
        raise ValueError(f"{options.checkpoint} continues text; use it with: python -m attention generate")
    for source in options.source:
        _expect_length(source, saved["max_length"])
    for source, written in zip(
        options.source, train.translate(model, vocabularies, options.source, saved["longest"]), strict=True
    ):
        print(written if len(options.source) == 1 else f"{source}\t{written}")
    if options.heatmap is not None:
        train.draw_attention(model, vocabularies, options.source[0], saved["longest"], options.heatmap)


def _expect_length(source: str, longest: int) -> None:
    if not 1 <= len(source) <= longest:
        raise ValueError(f"expected 1 to {longest} characters, got {len(source)} in {source[:40]!r}")


def _generate(options: argparse.Namespace) -> None:
    from . import train

    model, vocabularies, saved = train.load_model(options.checkpoint)
    if saved["settings"].kind != "text":
        raise ValueError(f"{options.checkpoint} translates; use it with: python -m attention translate")
    if not options.prompt:
        raise ValueError("--prompt: expected at least one character, got none")
    print(options.prompt, end="", flush=True)
    for character in train.continue_text(
        model, vocabularies, options.prompt, options.length, options.temperature, options.top_k, options.seed
    ):
        print(character, end="", flush=True)
    print()


if __name__ == "__main__":
    sys.exit(main())
