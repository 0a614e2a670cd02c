"""Train the two demonstrations: a Transformer that translates pairs, and a GPT that continues text.

Both are the same loop: a batch that depends on nothing but (seed, step), forward, loss, backward, clip, AdamW. So a run
can be reproduced, and one that was stopped and resumed takes the very steps that it would have taken.

Sources: `minigrad.optim` names those of AdamW, of clipping and of the learning rate's way down; β₂ = 0.98 is that of
A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762, section 5.3.
"""

from __future__ import annotations

import hashlib
import math
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from reprlib import repr  # of anything, in one short line
from typing import Any

from tqdm import tqdm

import minigrad as mg
from minigrad import Tensor, optim

from . import checkpoint
from .checkpoint import CheckpointError
from .data import BOS, EOS, PAD, Vocabulary, date_pairs, normalise, pad, read_pairs, read_text, split_pairs
from .files import held, one_line, printable
from .functional import cross_entropy
from .models import GPT, Transformer
from .plot import heatmap

FILE = "checkpoint.safetensors"  # in the folder of a run
SAVE_EVERY = 60.0  # seconds
LONGEST = 1024  # characters: attention takes time and memory that grow with the square of the length
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each parameter, besides the number of steps

MOST_PARAMETERS = 2**30  # 16 GiB with their gradients and moments
LIMITS = {
    "seed": (0, 2**64),
    "steps": (1, 10**9),
    "batch": (1, 2**14),
    "width": (1, 2**14),
    "heads": (1, 2**14),
    "layers": (1, 2**10),
    "context": (1, LONGEST),
}
"""From where to where the whole numbers of `Settings` go: what is beyond would fill any memory. The others: 0 to 1."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "dates": {},
    "pairs": {},
    "text": {"batch": 16, "width": 128, "layers": 3, "learning_rate": 3e-3},
}
"""The kinds of run, and where their `Settings` differ from those of the dates."""


@dataclass(frozen=True)
class Settings:
    """What a run depends on; the checkpoint holds it. Raises ValueError for what no run can depend on.

    >>> Settings("dates", heads=5)
    Traceback (most recent call last):
    ValueError: width: expected a multiple of 5, the number of heads, got 64
    """

    kind: str  # "dates", "pairs" or "text"
    file: str | None = None  # of the pairs or the text; None for the built-in ones
    seed: int = 0
    steps: int = 1400
    batch: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 1
    context: int = 64  # how many characters a GPT sees
    learning_rate: float = 4e-3
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in DEFAULTS or not isinstance(self.file, str | None):
            raise ValueError(f"expected {', '.join(DEFAULTS)} and a file, got {repr(self.kind)} and {repr(self.file)}")
        for field in fields(self)[2:]:
            value, kind = getattr(self, field.name), type(field.default).__name__
            least, most = LIMITS.get(field.name, (0, 1))
            if type(value).__name__ != kind or not least <= value <= most:
                raise ValueError(f"{field.name}: expected {kind} from {least} to {most}, got {repr(value)}")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of {self.heads}, the number of heads, got {self.width}")
        if 12 * self.layers * self.width**2 > MOST_PARAMETERS:
            most = math.isqrt(MOST_PARAMETERS // 12 // self.layers)
            raise ValueError(f"width: expected {most} at most for {self.layers} layers, got {self.width}")


class Translation:
    r"""Pairs of a source to read and a target to write, character by character, with a `Transformer`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "numbers.tsv").write_text("".join(f"{n}\t{n + 1}\n" for n in range(30)))
    ...     task = Translation(Settings("pairs", f"{folder}/numbers.tsv", batch=2))
    >>> len(task.train), len(task.test), task.loss(step=0)[0].shape
    (27, 3, ())
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        rng = Random(settings.seed)
        if settings.file is None:
            self.train, self.test = date_pairs(rng, held_out=2000)
        else:
            pairs = read_pairs(settings.file)
            different = len({pair.source for pair in pairs})
            if different < 10:
                raise ValueError(f"{settings.file}: expected at least 10 different sources, got {different}")
            self.train, self.test = split_pairs(pairs, min(1000, different // 10), rng)
        every = self.train + self.test
        self.digest = _digest("\n".join("\t".join(pair) for pair in every))
        self.vocabularies = {
            "source": Vocabulary(pair.source for pair in every),
            "target": Vocabulary(pair.target for pair in every),
        }
        # By length, so that a batch from one neighbourhood needs little padding.
        self.train.sort(key=lambda pair: (len(pair.source), pair))
        self.max_length = max(max(len(pair.source), len(pair.target) + 1) for pair in every)
        long = max((text for pair in every for text in pair[:2]), key=len)
        if len(long) >= LONGEST:
            raise ValueError(
                f"{settings.file}: expected fewer than {LONGEST} characters on each side of a pair, "
                f"got {len(long)} in {long[:40]!r}…"
            )
        # One that is quickly read, and typed.
        sources = [pair.source for pair in self.test if pair.source.isprintable()] or [self.test[0].source]
        self.example = next((source for source in sources if len(source) <= 40), min(sources, key=len))
        mg.random.seed(settings.seed)
        self.model = make_model(settings, self.vocabularies, self.max_length)

    def loss(self, step: int) -> tuple[Tensor, int]:
        """The mean loss per token of the batch of ``step``, of shape (), and the number of tokens in it."""
        rng = Random(f"{self.settings.seed} {step}")
        window = min(len(self.train), 32 * self.settings.batch)
        start = rng.randrange(len(self.train)) - window // 2
        start = min(max(start, 0), len(self.train) - window)
        pairs = [self.train[start + rng.randrange(window)] for _ in range(self.settings.batch)]
        source = [self.vocabularies["source"].encode(pair.source) for pair in pairs]
        target = [self.vocabularies["target"].encode(pair.target) for pair in pairs]
        read, written = mg.asarray(pad(source)), mg.asarray(pad([[BOS, *ids] for ids in target]))
        logits = self.model(read, written, source_mask=read != PAD)
        loss = cross_entropy(logits, mg.asarray(pad([[*ids, EOS] for ids in target])), ignore_index=PAD)
        return loss, sum(map(len, source)) + sum(map(len, target))

    def report(self, folder: Path) -> None:
        """Print how the held-out sources are translated, and draw into ``folder`` where the model looks."""
        written = translate(self.model, self.vocabularies, [pair.source for pair in self.test])
        right: dict[str, list[bool]] = defaultdict(list)
        for pair, text in zip(self.test, written, strict=True):
            right[pair.group].append(text == pair.target)
        sample = Random(self.settings.seed).sample(range(len(self.test)), min(8, len(self.test)))
        width = max(len(self.test[i].source) for i in sample)
        print("\nNever seen in training:")
        for i in sample:
            mark = "" if written[i] == self.test[i].target else f"   wrong: {self.test[i].target}"
            print(printable(f"  {self.test[i].source:<{width}}  →  {written[i]}{mark}"))
        print("\nExactly right, of the held-out sources:")
        width = max(map(len, ["all", *right]))
        for group in sorted(right):
            if group:
                print(printable(f"  {group:<{width}}  {_percent(right[group])}"))
        print(f"  {'all':<{width}}  {_percent([answer for answers in right.values() for answer in answers])}")
        picture = folder / "attention.png"
        try:
            draw_attention(self.model, self.vocabularies, self.example, picture)
        except OSError as error:  # all else is done
            picture_is = f"no picture, {one_line(error)}"
        else:
            picture_is = str(picture)
        print(f"\nWhere the model looks as it writes: {picture_is}")


class Continuation:
    """A text to continue, character by character, with a `GPT`.

    >>> loss, count = Continuation(Settings("text", batch=2, width=8, context=10)).loss(step=0)
    >>> loss.shape, count
    ((), 20)
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        text = read_text(settings.file)
        self.digest = _digest(text)
        self.vocabularies = {"text": Vocabulary([text])}
        self.ids = self.vocabularies["text"].encode(text)
        # The last tenth is never trained on; both parts must have room for one window.
        self.split = len(self.ids) * 9 // 10
        needed = 10 * (settings.context + 2)
        if len(self.ids) < needed:
            raise ValueError(f"{settings.file}: expected at least {needed} characters to train on, got {len(self.ids)}")
        self.max_length = settings.context
        self.example = next(line for line in text.splitlines() if line.strip())[:40]
        mg.random.seed(settings.seed)
        self.model = make_model(settings, self.vocabularies, self.max_length)

    def _windows(self, rng: Random, count: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """``count`` windows of the text between two positions: each character, and the one that follows it."""
        length = self.settings.context
        starts = [rng.randrange(begin, end - length) for _ in range(count)]
        return (
            mg.asarray([self.ids[i : i + length] for i in starts]),
            mg.asarray([self.ids[i + 1 : i + 1 + length] for i in starts]),
        )

    def loss(self, step: int) -> tuple[Tensor, int]:
        """The mean loss per character of the batch of ``step``, of shape (), and the number of characters in it."""
        ids, following = self._windows(Random(f"{self.settings.seed} {step}"), self.settings.batch, 0, self.split)
        return cross_entropy(self.model(ids), following), ids.size

    def report(self, folder: Path) -> None:
        """Print the loss on the held-out tenth of the text, and how the model continues it."""
        ids, following = self._windows(Random(self.settings.seed), 64, self.split, len(self.ids))
        with self.model.evaluating():
            loss = cross_entropy(self.model(ids), following).item()
        print(f"\nLoss on text never seen in training: {loss:.3f} nats per character")
        print("\nThe model continues:\n")
        text = continue_text(self.model, self.vocabularies, self.example, 300, seed=self.settings.seed)
        print(printable("".join(text)))


Task = Translation | Continuation
"""What is learnt: ``model``, its ``vocabularies`` and ``max_length``, ``loss(step)`` of a batch, ``report(folder)`` of
what was reached, an ``example`` to try, and the data's ``digest``, to notice that a file has changed meanwhile."""


def make_task(settings: Settings) -> Task:
    """The data and a fresh model for ``settings``.

    >>> task = make_task(Settings("text", width=8))  # without a file, of Python's manual
    >>> type(task).__name__, type(task.model).__name__
    ('Continuation', 'GPT')
    """
    return Continuation(settings) if settings.kind == "text" else Translation(settings)


def make_model(settings: Settings, vocabularies: dict[str, Vocabulary], max_length: int) -> Any:
    """The model with fresh parameters: a `GPT` for text, a `Transformer` for anything else.

    >>> model = make_model(Settings("text", width=8), {"text": Vocabulary(["abc"])}, max_length=10)
    >>> model(mg.asarray([[3, 4, 5]])).shape  # with PAD, BOS and EOS there are six tokens
    (1, 3, 6)
    """
    size: dict[str, Any] = {
        "d_model": settings.width,
        "num_heads": settings.heads,
        "num_layers": settings.layers,
        "dropout": 0.0,  # in three minutes nothing is seen often enough to be learnt by heart
    }
    if settings.kind == "text":
        return GPT(len(vocabularies["text"]), context_length=max_length, **size)
    source, target = vocabularies["source"], vocabularies["target"]
    return Transformer(len(source), len(target), max_length=max_length, **size)


def make_optimizer(settings: Settings, model: Any) -> optim.AdamW:
    """AdamW for the parameters of ``model``, with weight decay for matrices alone.

    >>> model = GPT(6, d_model=8, num_heads=2, num_layers=1)
    >>> [group["weight_decay"] for group in make_optimizer(Settings("text"), model).param_groups]
    [0.01, 0.0]
    """
    parameters = model.parameters()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay)


# ------------------------------------------------------------------------------------------------ using a model


def translate(model: Transformer, vocabularies: dict[str, Vocabulary], sources: Sequence[str]) -> list[str]:
    """The model's translation of each source, the likeliest character at each place.

    Raises a one-line ValueError for a source that is empty, too long, or has a character never seen in training.

    >>> vocabularies = {"source": Vocabulary(["abc"]), "target": Vocabulary(["xy"])}
    >>> model = Transformer(6, 5, d_model=8, num_heads=2, num_layers=1, max_length=4)
    >>> len(translate(model, vocabularies, ["ab", "c"]))
    2
    >>> translate(model, vocabularies, ["abcabc"])
    Traceback (most recent call last):
    ValueError: expected 1 to 4 characters, got 6 in 'abcabc'
    """
    encoded = [vocabularies["source"].encode(source) for source in sources]
    for source, ids in zip(sources, encoded, strict=True):
        if not 1 <= len(ids) <= model.max_length:
            raise ValueError(f"expected 1 to {model.max_length} characters, got {len(ids)} in {source[:40]!r}")
    written = [""] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(encoded[i]))
    for start in range(0, len(order), 256):
        chosen = order[start : start + 256]
        read = mg.asarray(pad([encoded[i] for i in chosen]))
        rows = model.generate(read, model.max_length, BOS, EOS, source_mask=read != PAD).tolist()
        for i, row in zip(chosen, rows, strict=True):
            written[i] = vocabularies["target"].decode(row)
    return written


def draw_attention(model: Transformer, vocabularies: dict[str, Vocabulary], source: str, path: Path | str) -> None:
    """Draw where each head of the last layer looks in ``source`` while it writes each character of the target.

    >>> from tempfile import TemporaryDirectory
    >>> vocabularies = {"source": Vocabulary(["abc"]), "target": Vocabulary(["xy"])}
    >>> model = Transformer(6, 5, d_model=8, num_heads=2, num_layers=1, max_length=4)
    >>> with TemporaryDirectory() as folder:
    ...     draw_attention(model, vocabularies, "cab", f"{folder}/heads.svg")
    ...     "</svg>" in Path(folder, "heads.svg").read_text("utf-8")
    True
    """
    [target] = translate(model, vocabularies, [source])
    read = mg.asarray([vocabularies["source"].encode(source)])
    # Cut where the model has not learnt to end: no room is left to read its last character and write the end.
    written = [BOS, *vocabularies["target"].encode(target)][: model.max_length]
    with model.evaluating():
        _, weights = model(read, mg.asarray([written]), return_weights=True)
    rows = [*target, "end"][: len(written)]
    heatmap(weights[-1][0, ...], rows, list(normalise(source)), title=f"{source}  →  {target}", path=path)


def continue_text(
    model: GPT,
    vocabularies: dict[str, Vocabulary],
    prompt: str,
    length: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """``prompt``, and then as they come ``length`` characters that the model writes after it.

    >>> model = GPT(6, d_model=8, num_heads=2, num_layers=1)
    >>> pieces = list(continue_text(model, {"text": Vocabulary(["abc"])}, "cab", length=5))
    >>> pieces[0], len(pieces)
    ('cab', 6)
    """
    ids = mg.asarray([vocabularies["text"].encode(prompt)])
    yield prompt
    for new in islice(model.stream(ids, temperature, top_k, mg.random.Generator(seed)), length):
        yield vocabularies["text"].decode([new[0, 0].item()])


# ------------------------------------------------------------------------------------------------ training


class Stopped(Exception):
    """Training ended before its last step, on Ctrl-C, SIGTERM or SIGHUP. What was reached is saved.

    >>> raise Stopped("stopped after step 20 of 1400, saved in runs/dates")
    Traceback (most recent call last):
    attention.train.Stopped: stopped after step 20 of 1400, saved in runs/dates
    """


def train(task: Task, folder: Path, resume: Saved | None = None) -> None:
    """Train ``task``'s model up to its last step, saving a checkpoint into ``folder`` once a minute and at the end.

    ``resume`` is what `load` gave of a checkpoint to go on from. Raises `Stopped` after the save that Ctrl-C asks for,
    OSError before the first step where ``folder`` cannot be written, and ValueError where the data are not those that
    the run began with and, with the checkpoint as it was last saved, where the training diverges.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     train(make_task(Settings("text", steps=2, batch=2, width=8)), Path(folder))
    ...     load(Path(folder)).step
    2
    """
    settings, first = task.settings, 0
    optimizer: optim.Optimizer = make_optimizer(settings, task.model)
    if resume is not None:
        if _data(resume) != _data(task):
            data = settings.file or "the data"
            raise ValueError(f"cannot resume: {data} is not what this run began with; begin anew with --overwrite")
        task.model, optimizer, first = resume.model, resume.optimizer, resume.step
        mg.random.default.state = resume.random
    parameters = task.model.parameters()
    if first == settings.steps:
        return
    folder.mkdir(parents=True, exist_ok=True)
    often = 0.1 if sys.stderr.isatty() else 30.0  # in a log file, where every state of the bar stays
    show = partial(tqdm, total=settings.steps, initial=first, unit="step", mininterval=often)
    with held(folder), _interruptions() as interrupted, show() as bar:
        began, saved = time.monotonic(), -math.inf
        if resume is not None or not (folder / FILE).exists():
            # Now, not in a minute, is the time to hear of a full disk. But another run's checkpoint is worth more than
            # the beginning of this one: it stays until a step has been taken.
            save(task, optimizer, first, folder)
            saved = began
        tokens = 0
        for step in range(first, settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = optim.warmup_cosine(
                    step, lr=settings.learning_rate, warmup_steps=settings.steps // 10, total_steps=settings.steps
                )
            loss, count = task.loss(step)
            optimizer.zero_grad()
            loss.backward()
            norm = optim.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            tokens += count

            last, stop = step + 1 == settings.steps, bool(interrupted)  # a signal from here on is for the next step
            due = last or stop or time.monotonic() - saved > SAVE_EVERY
            if due or step % 10 == 0:  # not more often, as reading a number waits for a GPU
                if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
                    raise ValueError(f"the loss is not finite after step {step + 1}; {folder} is as it was last saved")
                rate = tokens / (time.monotonic() - began)
                bar.set_postfix_str(f"loss {loss.item():.4f}, {rate / 1000:.1f}k tokens/s", refresh=False)
            bar.update()
            if due:
                save(task, optimizer, step + 1, folder)
                saved = time.monotonic()
            if stop and not last:
                raise Stopped(f"stopped after step {step + 1} of {settings.steps}, saved in {folder}")


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """A list that a first Ctrl-C, SIGTERM or SIGHUP makes non-empty, so that a step is never cut in two; a second ends.

    One that is ignored, as SIGHUP by what `nohup` starts, stays so.
    """
    received: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def note(number: int, frame: Any) -> None:
        received.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        restore()


def save(task: Task, optimizer: optim.Optimizer, step: int, folder: Path) -> None:
    """Save all that is needed to go on from after ``step`` steps as if nothing had happened.

    Raises ValueError, and leaves what was saved before, where a parameter or a moment is not finite.

    >>> from tempfile import TemporaryDirectory
    >>> task = make_task(Settings("text", width=8))
    >>> with TemporaryDirectory() as folder:
    ...     save(task, make_optimizer(task.settings, task.model), 0, Path(folder))
    ...     load(Path(folder)).settings == task.settings
    True
    """
    tensors = {f"model.{name}": value.numpy() for name, value in task.model.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": state[name].numpy() for name in MOMENTS}
    if not all(map(_is_finite, tensors.values())):
        raise ValueError(f"the parameters are not finite after step {step}; {folder} is as it was last saved")
    meta = {
        "settings": asdict(task.settings),
        "vocabularies": {name: vocabulary.to_json() for name, vocabulary in task.vocabularies.items()},
        "max_length": task.max_length,
        "example": task.example,
        "digest": task.digest,
        "step": step,
        "random": mg.random.default.state,
    }
    checkpoint.save(folder / FILE, tensors, meta)


@dataclass
class Saved:
    """What `save` saved, ready to be used or to be gone on from.

    >>> [field.name for field in fields(Saved)]
    ['settings', 'vocabularies', 'max_length', 'example', 'digest', 'step', 'random', 'model', 'optimizer']
    """

    settings: Settings
    vocabularies: dict[str, Vocabulary]
    max_length: int
    example: str
    digest: str
    step: int
    random: dict[str, Any]
    model: Any
    optimizer: optim.Optimizer


KINDS = {
    "settings": dict,
    "vocabularies": dict,
    "max_length": int,
    "example": str,
    "digest": str,
    "step": int,
    "random": dict,
}
"""What `save` saves besides the tensors."""


def load(folder: Path) -> Saved:
    """The checkpoint in ``folder``. Raises CheckpointError, in one line, for anything that `save` cannot have saved.

    >>> load(Path("/no/such/folder"))
    Traceback (most recent call last):
    attention.checkpoint.CheckpointError: /no/such/folder/checkpoint.safetensors: No such file or directory
    """
    path = folder / FILE
    tensors, meta = checkpoint.load(path)
    with _ours(path):
        settings, vocabularies = _check(meta)
        # Before anything as large as the settings say is made: the matrices of a block alone have 12 width² numbers.
        if 12 * settings.layers * settings.width**2 > sum(tensor.size for tensor in tensors.values()):
            raise ValueError("the settings are those of a larger model than the tensors")
    model = make_model(settings, vocabularies, meta["max_length"])  # what it raises, the device cannot do
    optimizer = make_optimizer(settings, model)
    with _ours(path):
        _fill(model, optimizer, tensors, meta["step"])
    return Saved(**meta | {"settings": settings, "vocabularies": vocabularies, "model": model, "optimizer": optimizer})


@contextmanager
def _ours(path: Path) -> Iterator[None]:
    """Inside, a ValueError is one of the checkpoint at ``path``."""
    try:
        yield
    except ValueError as error:
        raise CheckpointError(f"{path}: not of `python -m attention train` ({one_line(error)})") from None


def _check(meta: dict[str, Any]) -> tuple[Settings, dict[str, Vocabulary]]:
    """The settings and vocabularies of what `save` saved besides the tensors; ValueError if it cannot have."""
    _expect(meta, KINDS, "contents")
    for name, kind in KINDS.items():
        if type(meta[name]) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}, got {repr(meta[name])}")
    _expect(meta["settings"], (field.name for field in fields(Settings)), "settings")
    settings = Settings(**meta["settings"])
    for name, (least, most) in {"max_length": (1, LONGEST), "step": (0, settings.steps)}.items():
        if not least <= meta[name] <= most:
            raise ValueError(f"{name}: expected {least} to {most}, got {repr(meta[name])}")
    _expect(meta["vocabularies"], ["text"] if settings.kind == "text" else ["source", "target"], "vocabularies")
    vocabularies = {name: Vocabulary.from_json(data) for name, data in meta["vocabularies"].items()}
    mg.random.Generator(0).state = meta["random"]
    return settings, vocabularies


def _fill(model: Any, optimizer: optim.Optimizer, tensors: dict[str, Any], step: int) -> None:
    """Put the tensors that `save` saved into a model and an optimizer; ValueError if it cannot have saved them."""
    shapes = {f"model.{name}": parameter.shape for name, parameter in model.named_parameters()}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]] if step else []
    shapes |= {f"optimizer.{i}.{name}": parameter.shape for i, parameter in enumerate(trained) for name in MOMENTS}
    _expect(tensors, shapes, "tensors")
    for name, tensor in tensors.items():
        if (tensor.dtype.name, tensor.shape) != ("float32", shapes[name]):
            raise ValueError(f"{name}: expected float32 {shapes[name]}, got {tensor.dtype.name} {tensor.shape}")
        if not _is_finite(tensor) or (name.endswith(MOMENTS[1]) and (tensor < 0).any()):
            raise ValueError(f"{name}: not finite, or negative where no square is")
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    state = {
        i: {"step": step} | {name: tensors[f"optimizer.{i}.{name}"] for name in MOMENTS} for i in range(len(trained))
    }
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _expect(given: Iterable[str], expected: Iterable[str], what: str) -> None:
    """ValueError unless there are the expected names and no others."""
    there, due = set(given), set(expected)
    missing, more = sorted(due - there), sorted(there - due)
    if missing or more:
        raise ValueError(f"{what}: missing {', '.join(missing) or 'nothing'}, unknown {', '.join(more) or 'nothing'}")


def _is_finite(array: Any) -> bool:
    return bool(mg.all(mg.isfinite(array)))


def _data(run: Task | Saved) -> Any:
    """All that a run knows of its data."""
    return run.digest, run.max_length, {name: vocabulary.characters for name, vocabulary in run.vocabularies.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _percent(answers: Sequence[bool]) -> str:
    return f"{100 * sum(answers) / len(answers):6.2f} %  ({sum(answers)} of {len(answers)})"
