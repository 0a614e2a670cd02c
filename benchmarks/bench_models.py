"""Published models beside the `transformers` library on PyTorch eager, with the same weights in float32."""

import importlib.util
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import minigrad as mg
from attention.audio import log_mel, read_wav
from attention.formats import Published, open_published
from attention.models.load import PACKAGES, find, load
from minigrad import backend

TABLE = "Published models"
TOKENS = 16  # that are written for a measurement

pytest.importorskip("transformers")
INSTALLED = {name: find(name) for name, (package, _) in PACKAGES.items() if importlib.util.find_spec(package)}
pytestmark = pytest.mark.skipif(len(INSTALLED) < len(PACKAGES), reason="needs the weights of the extra `models`")


def smollm2(published: Published) -> Any:
    """The model of `transformers` with our dequantised weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**published.config)).eval()
    state = {name: torch.from_numpy(numpy.ascontiguousarray(x)) for name, x in published.tensors.items()}
    missing, extra = model.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"])
    assert not extra
    return model


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    published = open_published(INSTALLED["smollm2"])
    return load(published), smollm2(published)


def prompt(length: int) -> Any:
    return numpy.random.default_rng(0).integers(0, 49152, (1, length))


def test_decode(compete: Any, both: tuple[Any, Any]) -> None:
    """A token at a time after 64 of them; what was written is compared."""
    model, peer = both
    ids = prompt(64)

    def start_ours() -> tuple[Any, Any]:
        cache: Any = {}
        with mg.no_grad():
            token = mg.argmax(model(mg.asarray(ids), None, cache, 1), axis=-1)
        return token, cache

    first, known = start_ours()

    def ours() -> Any:
        token, cache, written = first, dict(known), []
        with mg.no_grad():
            for _ in range(TOKENS):
                token = mg.argmax(model(token, None, cache, 1), axis=-1)
                written.append(int(token))
        return numpy.asarray(written)

    def pytorch() -> Any:
        from transformers import DynamicCache

        cache, written = DynamicCache(), []
        with torch.no_grad():
            for layer, (key, value) in enumerate(theirs):
                cache.update(key, value, layer)
            token = torch.tensor(first.numpy())
            for _ in range(TOKENS):
                token = peer(token, cache=cache, use_cache=True).logits.argmax(-1)
                written.append(int(token))
        return numpy.asarray(written)

    theirs = [
        (torch.tensor(key.numpy()), torch.tensor(value.numpy())) for key, value in known.values()
    ]  # in the order of the layers
    compete(
        "SmolLM2-135M writes a token", ours, {"PyTorch": pytorch}, tolerance=0.0, reach=0.5, table=TABLE, per=TOKENS
    )


def test_bare_products_of_a_token(compete: Any, both: tuple[Any, Any]) -> None:
    """Every weight read once: what no way to write a token can be faster than."""
    model, _ = both
    weights = [p.data for p in model.parameters() if p.ndim == 2]
    weights[0] = weights[0].T  # the embedding, which makes the logits
    xs = [numpy.ones((1, w.shape[0]), numpy.float32) for w in weights]
    pairs = [(torch.from_numpy(x), torch.from_numpy(w).T) for x, w in zip(xs, weights, strict=True)]

    def ours() -> Any:
        return [backend.matrix_product(backend.NUMPY, x, w).sum() for x, w in zip(xs, weights, strict=True)]

    def pytorch() -> Any:
        with torch.no_grad():
            return [torch.nn.functional.linear(x, w).sum() for x, w in pairs]

    size = sum(w.nbytes for w in weights)
    compete(
        f"of that, the bare products ({size / 1e6:.0f} MB of weights)",
        ours,
        {"PyTorch": pytorch},
        tolerance=None,
        table=TABLE,
    )


@pytest.mark.long
def test_prefill(compete: Any, both: tuple[Any, Any]) -> None:
    model, peer = both
    ids = prompt(512)

    def ours() -> Any:
        with mg.no_grad():
            return model(mg.asarray(ids), None, {}, 1)

    def pytorch() -> Any:
        with torch.no_grad():
            return peer(torch.from_numpy(ids), use_cache=True, logits_to_keep=1).logits

    compete(
        "SmolLM2-135M reads 512 tokens",
        ours,
        {"PyTorch": pytorch},
        tolerance=1e-4,
        reach=round(1 / 1.3, 2),
        table=TABLE,
    )


@pytest.mark.long
def test_load(benchmark: Any) -> None:
    """Each once and in turn, as theirs takes half a minute."""
    from transformers import AutoModelForCausalLM

    path = INSTALLED["smollm2"]
    times: dict[str, list[float]] = {"minigrad": [], "PyTorch": []}
    logging.disable(logging.WARNING)
    for _ in range(2):
        start = time.perf_counter()
        load(path)
        middle = time.perf_counter()
        AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
        times["minigrad"].append(middle - start)
        times["PyTorch"].append(time.perf_counter() - middle)
    logging.disable(logging.NOTSET)
    ratios = [a / b for a, b in zip(*times.values(), strict=True)]
    benchmark.pedantic(lambda: None, rounds=1)
    benchmark.extra_info.update(
        work="SmolLM2-135M is loaded from GGUF",
        table=TABLE,
        reach=0.33,
        per=1,
        medians={name: min(values) for name, values in times.items()},
        ratio=min(times["minigrad"]) / min(times["PyTorch"]),
        spread=[min(ratios), max(ratios)],
    )


def test_whisper(compete: Any) -> None:
    """30 seconds are encoded, and the sentence in them is written, each token the likeliest."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    published = open_published(INSTALLED["whisper-tiny.en"])
    model, config = load(published), published.config
    peer = WhisperForConditionalGeneration(
        WhisperConfig(**{k: v for k, v in config.items() if k not in ("model_type", "alignment_heads")})
    ).eval()
    state = {name: torch.from_numpy(numpy.ascontiguousarray(x)) for name, x in published.tensors.items()}
    missing, extra = peer.load_state_dict(state, strict=False)
    assert missing in ([], ["proj_out.weight"])
    assert not extra
    samples, _ = read_wav(Path(__file__).parent.parent / "tests" / "data" / "sentence.wav")
    features = log_mel(mg.asarray(samples))[None, ...]
    begin = [config["decoder_start_token_id"], published.generation["no_timestamps_token_id"]]

    def ours() -> Any:
        return model.generate(features, 14, begin, eos=-1)

    def pytorch() -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        cache, written = EncoderDecoderCache(DynamicCache(), DynamicCache()), []
        token = torch.tensor([begin])
        with torch.no_grad():
            memory = peer.model.encoder(their_features)
            for _ in range(14):
                found = peer(encoder_outputs=memory, decoder_input_ids=token, cache=cache, use_cache=True).logits[
                    :, -1:
                ]
                token = found.argmax(-1)
                written.append(int(token))
        return numpy.asarray([written])

    their_features = torch.tensor(features.numpy())
    compete(
        "Whisper tiny.en reads 30 s and writes 14 tokens",
        ours,
        {"PyTorch": pytorch},
        tolerance=0.0,
        reach=1.0,
        table=TABLE,
    )


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
def test_memory(benchmark: Any) -> None:
    def measure(which: str) -> float:
        command = [sys.executable, __file__, which]
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    benchmark.pedantic(lambda: None, rounds=1)
    benchmark.extra_info.update(
        work="SmolLM2-135M, 64 tokens read and 16 written (the weights are 513 MiB)",
        table="Memory of a published model, above that of the imported libraries, at its peak",
        reach=None,
        mebibytes={"minigrad": measure("ours"), "PyTorch": measure("pytorch")},
    )


def peak_of(which: str) -> float:
    """MiB at the peak, in a process of its own."""
    import transformers  # noqa: F401  — its classes are imported when they are asked for

    before = _status("VmRSS")
    ids = prompt(64)
    if which == "ours":
        model = load(INSTALLED["smollm2"])
        model.generate(mg.asarray(ids), TOKENS, temperature=0)
    else:
        published = open_published(INSTALLED["smollm2"])
        peer = smollm2(published)
        Path("/proc/self/clear_refs").write_text("5")  # its weights came through our hands
        peer.generate(torch.from_numpy(ids), max_new_tokens=TOKENS, do_sample=False)
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


if __name__ == "__main__":
    print(json.dumps(peak_of(sys.argv[1])))
