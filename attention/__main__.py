"""The command line: ``python -m attention train | translate | generate | embed | transcribe | heatmap``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    if getattr(options, "model", None) is not None:
        options.run(options)
    else:
        with blas_threads(1):  # the models that are trained here are small
            options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention", description="Transformers: train small ones, use published ones."
    )
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

    generate = commands.add_parser("generate", help="continue a text or a conversation")
    which = generate.add_mutually_exclusive_group()
    which.add_argument("--checkpoint", metavar="DIR", type=_path, help="a model that was trained here (runs/text)")
    _add_model(which, required=False)
    generate.add_argument(
        "--prompt", type=_some_text, help="what to continue or to answer (with --model: what is typed, line by line)"
    )
    generate.add_argument(
        "--length", type=_number(int, 0, 10**9), default=300, help="how many characters or tokens at most (300)"
    )
    generate.add_argument(
        "--temperature", type=_number(float, 0, 1000), default=0.8, help="0: always the likeliest token (0.8)"
    )
    generate.add_argument("--top-k", type=_number(int, 1, 10**9), help="choose among the k likeliest tokens only")
    generate.add_argument("--top-p", type=_number(float, 1e-9, 1), help="and among the likeliest with this probability")
    generate.add_argument("--seed", type=_number(int, 0, 2**64), default=0, help="of the choices (0)")
    generate.add_argument("--stop", metavar="TEXT", type=_some_text, action="append", help="end before this text")
    generate.add_argument("--system", metavar="TEXT", type=_some_text, help="what a conversation begins with")
    generate.add_argument("--raw", action="store_true", help="continue the prompt, do not answer it")
    generate.set_defaults(run=_generate, error=generate.error)

    embed = commands.add_parser("embed", help="how alike texts are")
    _add_model(embed)
    embed.add_argument("--vectors", action="store_true", help="print embeddings instead, each a line of JSON")
    embed.add_argument("text", nargs="+", help="the texts")
    embed.set_defaults(run=_embed)

    transcribe = commands.add_parser("transcribe", help="write down what is said")
    _add_model(transcribe)
    transcribe.add_argument("--words", action="store_true", help="print each word, and from when to when it was said")
    transcribe.add_argument("--heatmap", metavar="FILE", type=_path, help="draw where each token was heard")
    transcribe.add_argument("sound", metavar="FILE.wav", type=_path, help="the sound")
    transcribe.set_defaults(run=_transcribe)

    heatmap = commands.add_parser("heatmap", help="draw where each token of a text looks")
    _add_model(heatmap)
    heatmap.add_argument("--layer", type=_number(int, 0, 10**6), default=0, help="which one, from 0 on (0)")
    heatmap.add_argument("--head", type=_number(int, 0, 10**6), help="which one (all)")
    heatmap.add_argument(
        "--output",
        metavar="FILE",
        type=_path,
        required=True,
        help="where to draw (png, pdf, svg; html for a page of all layers and heads, which begins with those named)",
    )
    heatmap.add_argument("text", type=_some_text, help="the text")
    heatmap.set_defaults(run=_heatmap)
    return parser


def _add_model(parser: Any, required: bool = True) -> None:
    """The option that names a published model."""
    parser.add_argument(
        "--model",
        metavar="PATH",
        type=_some_text,
        required=required,
        help="a folder of Hugging Face's or CTranslate2's, a .gguf file, or minilm, smollm2, whisper-tiny.en",
    )


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
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
    from .data import read_text

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
                if file is not None:
                    read_text(file)  # that there is none of that name, say, is the first thing to tell
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
    choice = {"temperature": options.temperature, "top_k": options.top_k}
    if options.model is not None:
        return _converse(options, choice | {"top_p": options.top_p, "seed": options.seed})
    for name in ("top_p", "stop", "system", "raw"):
        if getattr(options, name):
            options.error(f"--{name.replace('_', '-')} goes with --model")

    from . import train

    saved = _load(options.checkpoint or Path("runs/text"), "text")
    if saved.settings.kind != "text":
        raise ValueError(f"{options.checkpoint} translates; use it with: python -m attention translate")
    prompt = saved.example if options.prompt is None else options.prompt
    text = train.continue_text(saved.model, saved.vocabularies, prompt, options.length, seed=options.seed, **choice)
    _print_pieces(text)
    return None


def _converse(options: argparse.Namespace, choice: dict[str, Any]) -> None:
    """Answer, or continue, the prompt; without one whatever is typed, each time with all that was said before."""
    from . import use
    from .models.published import CausalModel

    model, published = _published(options, CausalModel)
    chat = published.chat_template is not None and not options.raw
    said = [{"role": "system", "content": options.system}] if options.system else []
    if said and not chat:
        raise ValueError("--system: this is not a conversation")
    for line in [options.prompt] if options.prompt is not None else _lines():
        said.append({"role": "user", "content": line})
        prompt = use.chat_prompt(published, said) if chat else line
        pieces = use.write(
            model, published, prompt, options.length, stop=options.stop or (), add_special_tokens=not chat, **choice
        )
        said.append({"role": "assistant", "content": _print_pieces(pieces)})


def _lines() -> Iterator[str]:
    """What is typed, or comes through a pipe, line by line."""
    while sys.stdin is not None:  # it is None where it is closed
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _print_pieces(pieces: Iterable[str]) -> str:
    """Print a text as it comes; returns all of it."""
    printed = ""
    try:
        for piece in pieces:
            print(printable(piece), end="", flush=True)
            printed += piece
    except KeyboardInterrupt:
        print()
        raise
    print()
    return printed


def _published(options: argparse.Namespace, *kinds: type) -> tuple[Any, Any]:
    """The model that ``--model`` names, and what it was made of; ValueError for one of another kind."""
    from .formats import open_published
    from .models.load import PACKAGES, find, load

    path = find(options.model)
    if not path.exists():
        raise ValueError(f"{options.model}: no such file or folder, and none of {', '.join(PACKAGES)}")
    published = open_published(path)
    model = load(published)
    if not isinstance(model, kinds):
        raise ValueError(
            f"{options.model} is a {published.config['model_type']} model, which this command has no use for"
        )
    return model, published


def _embed(options: argparse.Namespace) -> None:
    from . import use
    from .models import BERT

    model, published = _published(options, BERT)
    vectors = use.embed(model, published, options.text)
    if options.vectors:
        for vector in vectors.tolist():
            print(json.dumps(vector))
        return
    for row, text in zip((vectors @ vectors.T).tolist(), options.text, strict=True):
        print(*[f"{cosine:6.3f}" for cosine in row], printable(text), sep="  ")


def _transcribe(options: argparse.Namespace) -> None:
    from . import use
    from .audio import SECONDS as STATE
    from .audio import read_wav, resample
    from .models import Whisper

    samples = resample(*read_wav(options.sound))
    if options.heatmap is not None:
        from .plot import expect_picture, sound_heatmap

        expect_picture(options.heatmap)
    model, published = _published(options, Whisper)
    drawn = None
    for heard in use.transcribe(model, published, samples):
        drawn = heard if drawn is None and heard.tokens else drawn
        if options.words:
            for text, start, end in heard.words:
                print(f"{start:7.2f} {end:7.2f}  {printable(text)}", flush=True)
        else:
            print(printable(heard.text), flush=True)
    if options.heatmap is not None:
        if drawn is None:
            raise ValueError("--heatmap: nothing was heard that could be drawn")
        seconds = STATE * drawn.weights.shape[1]
        sound_heatmap(drawn.weights, drawn.tokens, seconds, options.sound.name, options.heatmap)


def _heatmap(options: argparse.Namespace) -> None:
    from . import use
    from .models import BERT
    from .models.published import CausalModel
    from .plot import heatmap

    model, published = _published(options, CausalModel, BERT)
    tokens, layers = use.weights_of(model, published, options.text)
    if options.layer >= len(layers):
        raise ValueError(f"--layer: expected 0 to {len(layers) - 1}, got {options.layer}")
    weights = layers[options.layer]
    if options.head is not None and options.head >= len(weights):
        raise ValueError(f"--head: expected 0 to {len(weights) - 1}, got {options.head}")
    if options.output.suffix.lower() == ".html":
        from .heatmap_page import heatmap_page

        named = {f"layer {number}": each for number, each in enumerate(layers)}
        title = f"{options.model}: {options.text}"
        heatmap_page(named, tokens, tokens, title, options.output, layer=options.layer, head=options.head or 0)
        return
    chosen = weights if options.head is None else weights[options.head]
    heatmap(chosen, tokens, tokens, f"layer {options.layer}", options.output)


def _command(*arguments: str) -> str:
    """What to paste into a shell to run a command with the Python that runs this one."""
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, "-m", "attention", *arguments])


if __name__ == "__main__":
    sys.exit(main())
