"""attention.train: it learns, it is reproducible, can be stopped anywhere, and refuses what it cannot continue."""

import errno
import functools
import math
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import checkpoint
from attention import train as t
from attention.checkpoint import CheckpointError

TINY: dict[str, Any] = {"steps": 6, "batch": 4, "width": 8, "heads": 2, "layers": 1, "context": 8}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., t.Settings]:
    """Settings of a tiny run on pairs or a text that lie in a file."""
    (tmp_path / "pairs").write_text("".join(f"no {i:02d}\t{i // 10}-{i % 10}\n" for i in range(40)))
    (tmp_path / "text").write_text("the cat sat on the mat. " * 10)
    return lambda kind="pairs", **options: t.Settings(kind, str(tmp_path / kind), **TINY | options)


def saved(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint with every number as bytes, to be compared bit for bit."""
    tensors, meta = checkpoint.load(folder / t.FILE)
    return {name: (tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()}, meta


def interrupt(task: t.Task, step: int, number: int = signal.SIGINT) -> None:
    """Let a signal arrive in the middle of ``step``."""
    loss = task.loss

    def interrupted(at: int) -> Any:
        if at == step:
            signal.raise_signal(number)
        return loss(at)

    task.loss = interrupted  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------ it learns


@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_the_loss_goes_down(settings: Callable[..., t.Settings], tmp_path: Path, kind: str) -> None:
    task = t.make_task(settings(kind, steps=30, learning_rate=0.02))
    before = task.loss(0)[0].item()
    t.train(task, tmp_path / "run")
    assert task.loss(0)[0].item() < 0.8 * before


def test_dates_are_read_in_many_languages_and_the_held_out_days_are_new() -> None:
    task = t.Translation(t.Settings("dates", **TINY))
    days = {pair.target for pair in task.train}
    assert not any(pair.target in days for pair in task.test)
    assert len({pair.group for pair in task.test}) >= 8
    loss, tokens = task.loss(0)
    assert loss.shape == ()
    # A model that knows nothing is about as surprised as by a uniform distribution.
    assert loss.item() == pytest.approx(math.log(len(task.vocabularies["target"])), abs=1)
    assert 4 * 15 < tokens < 4 * 60


def test_a_batch_depends_on_seed_and_step_alone(settings: Callable[..., t.Settings]) -> None:
    for kind in ("pairs", "text"):
        one, two, other = (t.make_task(settings(kind, seed=seed)) for seed in (1, 1, 2))
        one.loss(3)
        assert one.loss(7)[0].item() == two.loss(7)[0].item()
        assert one.loss(7)[0].item() != other.loss(7)[0].item()


# ------------------------------------------------------------------------------------------------ stop and go on


@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_equal_seeds_give_equal_runs(settings: Callable[..., t.Settings], tmp_path: Path, kind: str) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        t.train(t.make_task(settings(kind, seed=seed)), tmp_path / name)
    assert saved(tmp_path / "one") == saved(tmp_path / "two")
    assert saved(tmp_path / "one")[0] != saved(tmp_path / "other")[0]


@pytest.mark.parametrize(("kind", "number"), [("pairs", signal.SIGINT), ("text", signal.SIGTERM)])
def test_a_stopped_run_goes_on_bit_for_bit(
    settings: Callable[..., t.Settings], tmp_path: Path, kind: str, number: int
) -> None:
    t.train(t.make_task(settings(kind)), tmp_path / "whole")

    handler = signal.getsignal(number)
    task = t.make_task(settings(kind))
    interrupt(task, 2, number)
    with pytest.raises(t.Stopped, match=r"stopped after step 3 of 6, saved in .*parts$"):
        t.train(task, tmp_path / "parts")
    assert signal.getsignal(number) == handler

    stopped = t.load(tmp_path / "parts")
    assert stopped.step == 3
    mg.random.seed(99)  # nothing that happens in between matters
    task = t.make_task(stopped.settings)
    t.train(task, tmp_path / "parts", stopped)
    assert saved(tmp_path / "parts") == saved(tmp_path / "whole")


def test_a_signal_between_two_steps_stops_after_the_next_one(
    settings: Callable[..., t.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = iter([signal.SIGINT])
    monkeypatch.setattr(t.tqdm, "update", lambda bar: [signal.raise_signal(number) for number in once])
    with pytest.raises(t.Stopped, match="stopped after step 2 of 6"):
        t.train(t.make_task(settings()), tmp_path / "run")
    assert t.load(tmp_path / "run").step == 2


def test_a_run_cut_short_in_its_first_step_goes_on_too(settings: Callable[..., t.Settings], tmp_path: Path) -> None:
    t.train(t.make_task(settings()), tmp_path / "whole")
    task = t.make_task(settings())
    interrupt(task, 0)
    interrupt(task, 0)  # the second one does not wait for the end of the step
    with pytest.raises(KeyboardInterrupt):
        t.train(task, tmp_path / "parts")
    stopped = t.load(tmp_path / "parts")
    assert stopped.step == 0
    t.train(t.make_task(settings()), tmp_path / "parts", stopped)
    assert saved(tmp_path / "parts") == saved(tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is(settings: Callable[..., t.Settings], tmp_path: Path) -> None:
    t.train(t.make_task(settings()), tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()}
    finished = t.load(tmp_path / "run")
    task = t.make_task(finished.settings)
    t.train(task, tmp_path / "run", finished)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").iterdir()} == before
    for name, parameter in task.model.named_parameters():
        assert saved(tmp_path / "run")[0][f"model.{name}"] == (parameter.shape, parameter.numpy().tobytes())


@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_other_data_is_noticed(settings: Callable[..., t.Settings], tmp_path: Path, kind: str) -> None:
    task = t.make_task(settings(kind, steps=1))
    t.train(task, tmp_path / "run")
    with open(tmp_path / kind, "a") as file:
        file.write("the end\tof it\n")
    stopped = t.load(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"cannot resume: .*{kind} is not what this run began with"):
        t.train(t.make_task(stopped.settings), tmp_path / "run", stopped)


# ------------------------------------------------------------------------------------------------ nothing is lost


def test_a_folder_that_cannot_be_written_is_noticed_before_the_first_step(
    settings: Callable[..., t.Settings], tmp_path: Path
) -> None:
    task = t.make_task(settings())
    task.loss = lambda step: pytest.fail("a step was taken")  # type: ignore[method-assign]
    with pytest.raises(OSError, match="pairs"):
        t.train(task, tmp_path / "pairs" / "run")


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(
    settings: Callable[..., t.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(t, "SAVE_EVERY", 0.0)
    write, writes = checkpoint.write_atomically, []

    def fills_up(path: Path, data: bytes) -> None:
        writes.append(path)
        if len(writes) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_atomically", fills_up)
    with pytest.raises(OSError, match="No space left"):
        t.train(t.make_task(settings()), tmp_path / "run")
    assert t.load(tmp_path / "run").step == 2


def test_a_loss_that_is_not_finite_stops_and_is_not_saved(
    settings: Callable[..., t.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(t, "SAVE_EVERY", 0.0)
    task = t.make_task(settings())
    loss = task.loss
    task.loss = lambda step: (loss(step)[0] * (math.nan if step == 3 else 1.0), 1)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"the loss is not finite after step 4; .*run is as it was last saved"):
        t.train(task, tmp_path / "run")
    assert t.load(tmp_path / "run").step == 3


def test_parameters_that_are_not_finite_are_not_saved(
    settings: Callable[..., t.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the gradient of a step are finite, and what comes of it is not."""
    monkeypatch.setattr(t, "SAVE_EVERY", 0.0)
    take, taken = t.optim.AdamW.step, []

    def overflow(optimizer: Any) -> None:
        take(optimizer)
        taken.append(1)
        if len(taken) == 4:
            with mg.no_grad():
                optimizer.param_groups[0]["params"][0] *= math.inf

    monkeypatch.setattr(t.optim.AdamW, "step", overflow)
    with pytest.raises(ValueError, match=r"the parameters are not finite after step 4; .*run is as it was last saved"):
        t.train(t.make_task(settings()), tmp_path / "run")
    assert t.load(tmp_path / "run").step == 3


# ------------------------------------------------------------------------------------------------ lying checkpoints


LIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "settings: none": lambda meta, tensors: meta.update(settings=None),
    "settings: an unknown kind": lambda meta, tensors: meta["settings"].update(kind="images"),
    "settings: a kind that is a list": lambda meta, tensors: meta["settings"].update(kind=[]),
    "settings: one that is missing": lambda meta, tensors: meta["settings"].pop("seed"),
    "settings: a width that is text": lambda meta, tensors: meta["settings"].update(width="8"),
    "settings: a width that is a truth value": lambda meta, tensors: meta["settings"].update(width=True),
    "settings: a file that is a number": lambda meta, tensors: meta["settings"].update(file=1),
    "settings: no layer": lambda meta, tensors: meta["settings"].update(layers=0),
    "settings: heads that do not divide": lambda meta, tensors: meta["settings"].update(heads=3),
    "settings: terabytes": lambda meta, tensors: meta["settings"].update(width=2**20),
    "settings: endless layers": lambda meta, tensors: meta["settings"].update(layers=2**40),
    "settings: another width": lambda meta, tensors: meta["settings"].update(width=4),
    "max_length: terabytes": lambda meta, tensors: meta.update(max_length=2**40),
    "max_length: nothing": lambda meta, tensors: meta.update(max_length=0),
    "max_length: none": lambda meta, tensors: meta.update(max_length=None),
    "step: beyond the last": lambda meta, tensors: meta.update(step=7),
    "step: a fraction": lambda meta, tensors: meta.update(step=2.0),
    "digest: a list": lambda meta, tensors: meta.update(digest=[]),
    "example: none": lambda meta, tensors: meta.update(example=None),
    "vocabularies: none": lambda meta, tensors: meta.update(vocabularies={}),
    "vocabularies: a list": lambda meta, tensors: meta.update(vocabularies=[]),
    "vocabularies: one letter more": lambda meta, tensors: meta["vocabularies"].update(target="-0123456789z"),
    "vocabularies: not sorted": lambda meta, tensors: meta["vocabularies"].update(target="9876543210-"),
    "meta: an unknown key": lambda meta, tensors: meta.update(more=1),
    "tensors: whole numbers": lambda meta, tensors: tensors.update(
        {"model.output.bias": tensors["model.output.bias"].astype("int64")}
    ),
    "tensors: complex numbers": lambda meta, tensors: tensors.update(
        {"model.output.bias": tensors["model.output.bias"].astype("complex64")}
    ),
    "tensors: NaN": lambda meta, tensors: tensors["model.output.bias"].fill(math.nan),
    "tensors: one more": lambda meta, tensors: tensors.update({"model.more": tensors["model.output.bias"]}),
    "optimizer: infinity": lambda meta, tensors: tensors["optimizer.0.exp_avg"].fill(math.inf),
    "optimizer: a square below zero": lambda meta, tensors: tensors["optimizer.0.exp_avg_sq"].fill(-1.0),
    "tensors: none": lambda meta, tensors: tensors.clear(),
    "tensors: one is missing": lambda meta, tensors: tensors.pop("model.output.bias"),
    "tensors: one of another shape": lambda meta, tensors: tensors.update(
        {"model.output.bias": tensors["model.output.bias"][:1]}
    ),
    "optimizer: one moment is missing": lambda meta, tensors: tensors.pop("optimizer.0.exp_avg"),
    "optimizer: one of another shape": lambda meta, tensors: tensors.update(
        {"optimizer.0.exp_avg": tensors["optimizer.0.exp_avg"][:1]}
    ),
    "random: a counter below zero": lambda meta, tensors: meta["random"]["state"].update(counter=[-1, 0, 0, 0]),
    "random: nested without end": lambda meta, tensors: meta.update(
        random=functools.reduce(lambda x, _: {"": x}, range(900), {})
    ),
    "random: not a state": lambda meta, tensors: meta.update(random={}),
    "random: a number": lambda meta, tensors: meta.update(random=7),
}


@pytest.fixture
def stopped(settings: Callable[..., t.Settings], tmp_path: Path) -> Path:
    """The checkpoint of a run that was stopped half way."""
    task = t.make_task(settings())
    interrupt(task, 1)
    with pytest.raises(t.Stopped):
        t.train(task, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_lies_is_refused(stopped: Path, lie: str) -> None:
    tensors, meta = checkpoint.load(stopped / t.FILE)
    LIES[lie](meta, tensors)
    checkpoint.save(stopped / t.FILE, tensors, meta)
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors: not of `python -m attention train` \("
    ) as caught:
        t.load(stopped)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < len(str(stopped)) + 300
    assert not re.search("NoneType|attribute|unexpected|argument", message), "in terms of the checkpoint, not of Python"


@pytest.mark.parametrize("name", ["max_length", "vocabularies"])
def test_a_checkpoint_that_does_not_fit_its_data_is_not_resumed(
    settings: Callable[..., t.Settings], stopped: Path, name: str
) -> None:
    tensors, meta = checkpoint.load(stopped / t.FILE)
    meta["vocabularies"]["source"] = meta["vocabularies"]["source"].replace("n", "m")
    if name == "max_length":
        meta["max_length"] += 1
    checkpoint.save(stopped / t.FILE, tensors, meta)
    with pytest.raises(ValueError, match=r"cannot resume: .*pairs is not what this run began with"):
        t.train(t.make_task(settings()), stopped, t.load(stopped))


def test_a_device_that_cannot_hold_a_model_is_no_damage(stopped: Path) -> None:
    with (
        mg.use_backend("array_api_strict", "no_float64"),
        pytest.raises(Exception, match="float64") as caught,
    ):
        t.load(stopped)
    assert not isinstance(caught.value, CheckpointError)


# ------------------------------------------------------------------------------------------------ using a model


def test_translations_come_in_the_order_of_their_sources(settings: Callable[..., t.Settings]) -> None:
    task = t.Translation(settings())
    sources = ["no 3", "no 12", "n", "no 21"]
    together = t.translate(task.model, task.vocabularies, sources)
    assert together == [t.translate(task.model, task.vocabularies, [source])[0] for source in sources]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "expected 1 to 5 characters, got 0 in ''"),
        ("no 123", "expected 1 to 5 characters, got 6 in 'no 123'"),
        ("no x", "character 'x' at position 3 of 'no x' was not seen in training"),
    ],
)
def test_a_source_that_does_not_fit(settings: Callable[..., t.Settings], source: str, message: str) -> None:
    task = t.Translation(settings())
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        t.translate(task.model, task.vocabularies, ["no 1", source])
    assert str(caught.value) == message


def test_attention_is_drawn_even_of_a_model_that_cannot_end(
    settings: Callable[..., t.Settings], tmp_path: Path
) -> None:
    task = t.Translation(settings())
    bias = numpy.where(numpy.arange(14) == 4, 100, 0)  # one character, for ever
    task.model.load_state_dict({"output.bias": bias}, strict=False)
    assert len(t.translate(task.model, task.vocabularies, ["no 1"])[0]) == task.max_length
    t.draw_attention(task.model, task.vocabularies, "no 1", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_text_goes_on_from_what_fits_into_the_context(settings: Callable[..., t.Settings]) -> None:
    task = t.Continuation(settings("text"))
    long, short = "on the mat. the cat", "the cat"
    assert len(short) < task.max_length < len(long)

    def written(prompt: str, **options: Any) -> str:
        first, *rest = t.continue_text(task.model, task.vocabularies, prompt, 12, **options)
        assert first == prompt
        assert len(rest) == 12
        return "".join(rest)

    assert written(long, seed=1) == written(long, seed=1) == written("sat " + long, seed=1) != written(long, seed=2)
    assert written(short, temperature=0) == written(short, top_k=1)
