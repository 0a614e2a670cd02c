"""Train the two demonstrations: a Transformer that translates pairs, and a GPT that continues text.

Both are the same loop: a batch that depends on nothing but (seed, step), forward, loss, backward, clip, AdamW. So a run
can be reproduced, and one that was stopped and resumed takes the very steps that it would have taken.
"""

from __future__ import annotations

import hashlib
import math
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

import minigrad as mg
from minigrad import Tensor, optim

from . import checkpoint
from .checkpoint import CheckpointError
from .data import BOS, EOS, PAD, Pair, Vocabulary, date_pairs, normalise, pad, read_pairs, read_text, split_pairs
from .functional import cross_entropy
from .models import GPT, Transformer
from .plot import heatmap

SAVE_EVERY = 60.0  # seconds
LONGEST = 1024  # characters: attention takes time and memory that grow with the square of the length

DEFAULTS: dict[str, dict[str, Any]] = {
    "dates": {},
    "pairs": {},
    "text": {"batch": 16, "width": 128, "layers": 3, "learning_rate": 3e-3},
}
"""The kinds of run, and where their `Settings` differ from those of the dates."""


@dataclass(frozen=True)
class Settings:
    """What a run depends on; the checkpoint holds it."""

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

    @classmethod
    def from_json(cls, data: Any) -> Settings:
        """The settings that a checkpoint holds; CheckpointError for anything else."""
        usual = asdict(cls("dates"))
        if (
            not isinstance(data, dict)
            or data.keys() != usual.keys()
            or any(type(data[name]) is not type(value) for name, value in usual.items() if name != "file")
            or not isinstance(data["file"], str | None)
            or data["kind"] not in DEFAULTS
            or any(value < (0 if name == "seed" else 1) for name, value in data.items() if isinstance(value, int))
        ):
            raise CheckpointError("checkpoint: its settings are not those of this program")
        return cls(**data)


class Translation:
    """Pairs of a source to read and a target to write, character by character, with a `Transformer`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        rng = Random(settings.seed)
        if settings.file is None:
            self.train, self.test = date_pairs(rng, held_out=2000, forms=1)
        else:
            pairs = read_pairs(settings.file)
            sources = len({pair.source for pair in pairs})
            if sources < 10:
                raise ValueError(f"{settings.file}: expected at least 10 different sources, got {sources}")
            self.train, self.test = split_pairs(pairs, min(1000, sources // 10), rng)
        every = self.train + self.test
        self.digest = _digest("\n".join("\t".join(pair) for pair in every))
        self.vocabularies = {
            "source": Vocabulary(pair.source for pair in every),
            "target": Vocabulary(pair.target for pair in every),
        }
        # By length, so that a batch from one neighbourhood needs little padding.
        self.train.sort(key=lambda pair: (len(pair.source), pair))
        self.max_length = max(max(len(pair.source), len(pair.target) + 1) for pair in every)
        if self.max_length > LONGEST:
            long = max((text for pair in every for text in pair[:2]), key=len)
            raise ValueError(
                f"{settings.file}: expected fewer than {LONGEST} characters on each side of a pair, "
                f"got {len(long)} in {long[:40]!r}…"
            )
        self.example = _most_telling(self.test).source
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
            print(f"  {self.test[i].source:<{width}}  →  {written[i]}{mark}")
        print("\nExactly right, of the held-out sources:")
        width = max(map(len, ["all", *right]))
        for group in sorted(right):
            if group:
                print(f"  {group:<{width}}  {_percent(right[group])}")
        print(f"  {'all':<{width}}  {_percent([answer for answers in right.values() for answer in answers])}")
        picture = folder / "attention.png"
        draw_attention(self.model, self.vocabularies, self.example, picture)
        print(f"\nWhere the model looks as it writes: {picture}")


class Continuation:
    """A text to continue, character by character, with a `GPT`."""

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
        print("".join(continue_text(self.model, self.vocabularies, self.example, 300, seed=self.settings.seed)))


Task = Translation | Continuation
"""What is learnt: ``model``, its ``vocabularies`` and ``max_length``, ``loss(step)`` of a batch, ``report(folder)`` of
what was reached, an ``example`` to try, and the data's ``digest``, to notice that a file has changed meanwhile."""


def make_task(settings: Settings) -> Task:
    """The data and a fresh model for ``settings``."""
    return Continuation(settings) if settings.kind == "text" else Translation(settings)


def make_model(settings: Settings, vocabularies: dict[str, Vocabulary], max_length: int) -> Any:
    """The model with fresh parameters: a `GPT` for text, a `Transformer` for anything else."""
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


# ------------------------------------------------------------------------------------------------ using a model


def translate(model: Transformer, vocabularies: dict[str, Vocabulary], sources: Sequence[str]) -> list[str]:
    """The model's translation of each source, the likeliest character at each place.

    Raises a one-line ValueError for a source that is empty, too long, or has a character never seen in training.
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
    """Draw where each head of the last layer looks in ``source`` while it writes each character of the target."""
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
    """``prompt``, and then as they come ``length`` characters that the model writes after it."""
    generator = mg.random.Generator(seed)
    ids = vocabularies["text"].encode(prompt)
    yield prompt
    for _ in range(length):
        seen = mg.asarray([ids[-model.context_length :]])
        ids.append(model.generate(seen, 1, temperature, top_k, generator)[0, -1].item())
        yield vocabularies["text"].decode(ids[-1:])


# ------------------------------------------------------------------------------------------------ training


class Stopped(Exception):
    """Training ended before its last step, on Ctrl-C or SIGTERM. What was reached is saved."""


def train(task: Task, folder: Path, resume: dict[str, Any] | None = None) -> None:
    """Train ``task``'s model up to its last step, saving a checkpoint into ``folder`` once a minute and at the end.

    ``resume`` is what `load` gave of a checkpoint to go on from. Raises `Stopped` after the save that Ctrl-C asks for,
    OSError before the first step where ``folder`` cannot be written, and ValueError, with the checkpoint as it was
    last saved, where the training diverges.
    """
    settings, model = task.settings, task.model
    parameters = model.parameters()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay)
    first = 0 if resume is None else _restore(task, optimizer, resume)
    if first == settings.steps:
        return
    # In a log file, where every state of the bar stays, two a minute are enough.
    bar = tqdm(total=settings.steps, initial=first, unit="step", mininterval=0.1 if sys.stderr.isatty() else 30.0)
    with _interruptions() as interrupted, bar:
        save(task, optimizer, first, folder)  # now, not in a minute, is the time to hear of a full disk
        saved = began = time.monotonic()
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
    """A list that a first Ctrl-C or SIGTERM makes non-empty, so that a step is never cut in two; a second one ends."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each parameter, besides the number of steps
DAMAGE = (KeyError, TypeError, AttributeError, ValueError)  # what comes of a checkpoint with anything wrong inside


def save(task: Task, optimizer: optim.Optimizer, step: int, folder: Path) -> None:
    """Save all that is needed to go on from after ``step`` steps as if nothing had happened."""
    tensors = {f"model.{name}": value.numpy() for name, value in task.model.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": state[name].numpy() for name in MOMENTS}
    meta = {
        "settings": asdict(task.settings),
        "vocabularies": {name: vocabulary.to_json() for name, vocabulary in task.vocabularies.items()},
        "max_length": task.max_length,
        "example": task.example,
        "data": task.digest,
        "step": step,
        "random": mg.random.default.state,
    }
    checkpoint.save(folder, tensors, meta)


def load(folder: Path) -> dict[str, Any]:
    """A checkpoint of `save`: its meta data, with ``settings`` and ``tensors``. One-line errors for anything else."""
    tensors, meta = checkpoint.load(folder)
    if meta.keys() != {"settings", "vocabularies", "max_length", "example", "data", "step", "random"}:
        raise CheckpointError(f"{folder}: expected a checkpoint of `python -m attention train`, got {sorted(meta)}")
    settings = Settings.from_json(meta["settings"])
    for name, highest in {"max_length": LONGEST, "step": settings.steps}.items():
        if type(meta[name]) is not int or not 0 <= meta[name] <= highest:
            raise CheckpointError(f"{folder}: damaged: {name} is {meta[name]!r:.40}")
    if not isinstance(meta["example"], str):
        raise CheckpointError(f"{folder}: damaged: its example is not text")
    # Before anything as large as the settings say is made: the matrices of a block alone have 12 width² numbers.
    if 12 * settings.layers * settings.width**2 > sum(tensor.size for tensor in tensors.values()):
        raise CheckpointError(f"{folder}: damaged: its settings are those of a larger model than its tensors")
    return {**meta, "settings": settings, "tensors": tensors}


def load_model(folder: Path) -> tuple[Any, dict[str, Vocabulary], dict[str, Any]]:
    """The trained model of a checkpoint, its vocabularies, and the rest of what `load` gives."""
    saved = load(folder)
    try:
        vocabularies = {name: Vocabulary.from_json(data) for name, data in saved["vocabularies"].items()}
        model = make_model(saved["settings"], vocabularies, saved["max_length"])
        _load_parameters(model, saved["tensors"])
    except DAMAGE as error:
        raise CheckpointError(f"{folder}: damaged: {_one_line(error)}") from None
    return model.eval(), vocabularies, saved


def _load_parameters(model: Any, tensors: dict[str, Any]) -> None:
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})


def _restore(task: Task, optimizer: optim.Optimizer, saved: dict[str, Any]) -> int:
    """Bring model, optimizer and random numbers to where a checkpoint was made; the number of steps taken so far."""
    if saved["data"] != task.digest:
        raise ValueError(f"cannot resume: {task.settings.file or 'the data'} is not what this run began with")
    step: int = saved["step"]
    try:
        _load_parameters(task.model, saved["tensors"])
        if step > 0:
            state = {
                i: {"step": step} | {name: saved["tensors"][f"optimizer.{i}.{name}"] for name in MOMENTS}
                for i in range(len(task.model.parameters()))
            }
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
        mg.random.default.state = saved["random"]
    except DAMAGE as error:
        raise CheckpointError(f"cannot resume: damaged: {_one_line(error)}") from None
    return step


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _percent(answers: Sequence[bool]) -> str:
    return f"{100 * sum(answers) / len(answers):6.2f} %  ({sum(answers)} of {len(answers)})"


def _most_telling(pairs: Sequence[Pair]) -> Pair:
    """The pair for the picture: one long word, which in a date is the month's name, and not too much besides."""

    def wordiness(pair: Pair) -> tuple[bool, int, Pair]:
        words = [len(word) for word in re.findall(r"[^\W\d_]+", pair.source)]
        long = [n for n in words if n > 2]
        return len(long) != 1, abs(max(words, default=0) - 9), pair

    return min(pairs, key=wordiness)


__all__ = [
    "Settings",
    "Stopped",
    "Task",
    "continue_text",
    "draw_attention",
    "load",
    "load_model",
    "make_task",
    "save",
    "train",
    "translate",
]
