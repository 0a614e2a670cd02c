"""attention.audio: against SciPy, the features and word times of `transformers`, and files made byte by byte."""

import os
import struct
import wave
from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor, value
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from attention import audio
from attention.audio import AudioError, dynamic_time_warping, log_mel, read_wav, resample, token_times, word_alignment
from minigrad import backend

SENTENCE = Path(__file__).parent / "data" / "sentence.wav"

# ------------------------------------------------------------------------------------------------ WAV files


def wav(path: Path, data: bytes, channels: int = 1, width: int = 2, rate: int = 8000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", "not compressed"))
        file.writeframes(data)
    return path


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, bytes([128, 192, 0, 255])),
        (2, struct.pack("<4h", 0, 2**14, -(2**15), 127 * 2**8)),
        (3, b"\0\0\0" + b"\0\0\x40" + b"\0\0\x80" + b"\0\0\x7f"),
        (4, struct.pack("<4i", 0, 2**30, -(2**31), 127 * 2**24)),
    ],
)
def test_every_width_gives_the_same_samples(tmp_path: Path, width: int, data: bytes) -> None:
    samples, rate = read_wav(wav(tmp_path / "a.wav", data, width=width, rate=11_025))
    assert samples.dtype == numpy.float32
    assert samples.tolist() == [0.0, 0.5, -1.0, 127 / 128]
    assert rate == 11_025


def test_the_lowest_bits_count(tmp_path: Path) -> None:
    assert read_wav(wav(tmp_path / "a.wav", b"\1\0\0\xff\xff\xff", width=3))[0].tolist() == [2.0**-23, -(2.0**-23)]


def test_channels_become_their_mean(tmp_path: Path) -> None:
    data = struct.pack("<6h", 100, 200, -300, 300, 32767, 32767)
    samples, _ = read_wav(wav(tmp_path / "a.wav", data, channels=2))
    assert_array_equal(samples * 32768, [150, 0, 32767])


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WAVE" + b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def form(kind: int = 1, channels: int = 1, rate: int = 8000, width: int = 2) -> tuple[bytes, bytes]:
    return b"fmt ", struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, 8 * width)


def refusal(path: Path) -> str:
    """The message with which ``path`` is refused, after checking that it is one short line."""
    with pytest.raises(AudioError) as caught:
        read_wav(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 250
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", ": no WAV file of integer samples (cut short)"),
        (b"RIFF\4\0\0\0", ": no WAV file of integer samples"),
        (b"ID3\3" * 30, ": no WAV file of integer samples (file does not start with RIFF id)"),
        (riff(form()), ": no WAV file of integer samples (fmt chunk and/or data chunk missing)"),
        (riff(form(kind=3, width=4), (b"data", b"1234")), ": no WAV file of integer samples (unknown format: 3)"),
        (riff(form(channels=0), (b"data", b"1234")), ": no WAV file of integer samples (bad # of channels)"),
        (riff(form(width=5), (b"data", b"12345")), ": samples of 40 bits, expected 8, 16, 24 or 32"),
        (riff(form(), (b"data", b"")), ": empty (0 samples, 8000 in a second)"),
        (riff(form(rate=0), (b"data", b"1234")), ": empty (2 samples, 0 in a second)"),
        (riff(form(), (b"data", b"1234"))[:-1], ": cut short, 2 samples are announced"),
        (
            riff(form(), (b"data", b"1234")).replace(b"data\4\0\0\0", b"data\xf0\xff\xff\xff"),
            ": cut short, 2147483640 samples are announced",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_broken_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    assert refusal(tmp_path / "a.wav").startswith(message)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == ": No such file or directory"
    assert refusal(tmp_path) == ": not a file"
    if os.name == "posix":
        os.mkfifo(tmp_path / "pipe")
        assert refusal(tmp_path / "pipe") == ": not a file"


SOUND = riff(form(), (b"LIST", b"abcd"), (b"data", bytes(range(40))))


@settings(max_examples=300)
@given(
    cut=st.integers(0, len(SOUND)),
    changes=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4),
)
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.wav"
    data = bytearray(SOUND)
    for place, byte in changes:
        data[place] = byte
    path.write_bytes(data[: cut or len(SOUND)])
    try:
        samples, rate = read_wav(path)
    except AudioError:
        refusal(path)
    else:
        assert rate > 0
        assert 1 <= len(samples) <= 40
        assert (abs(samples) <= 1).all()


def test_the_sentence_is_what_its_description_says() -> None:
    samples, rate = read_wav(SENTENCE)
    assert rate == 16_000
    assert round(len(samples) / rate, 2) == 4.06
    assert 0.1 < abs(samples).max() < 1


# ------------------------------------------------------------------------------------------------ another rate


@pytest.mark.peers
@pytest.mark.parametrize(("rate", "to"), [(44_100, 16_000), (48_000, 16_000), (8_000, 16_000), (22_050, 16_000),
                                          (11_025, 16_000), (16_001, 16_000), (16_000, 44_100)])  # fmt: skip
@pytest.mark.parametrize("n", [1, 2, 3, 5000])
def test_resample_is_that_of_scipy(rate: int, to: int, n: int) -> None:
    from scipy.signal import resample_poly

    samples = numpy.random.default_rng(n).normal(size=n)
    divisor = numpy.gcd(rate, to)
    expected = resample_poly(samples, to // divisor, rate // divisor)
    found = resample(samples, rate, to)
    assert found.dtype == numpy.float32
    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rate", "tone"), [(44_100, 440.0), (22_050, 3000.0), (8_000, 1000.0), (48_000, 6000.0)])
def test_a_tone_stays_that_tone(rate: int, tone: float) -> None:
    """Within 0.1 %, away from the ends, beyond which there is silence."""
    found = resample(numpy.sin(2 * numpy.pi * tone / rate * numpy.arange(rate)), rate)
    expected = numpy.sin(2 * numpy.pi * tone / 16_000 * numpy.arange(16_000))
    assert_allclose(found[500:-500], expected[500:-500], atol=1e-3)


def test_what_the_new_rate_cannot_hold_vanishes() -> None:
    """10 kHz at 16 000 samples a second would be heard as 6 kHz."""
    found = resample(numpy.sin(2 * numpy.pi * 10_000 / 48_000 * numpy.arange(48_000)), 48_000)
    assert abs(found[500:-500]).max() < 1e-2


def test_the_same_rate_changes_nothing() -> None:
    samples = numpy.random.default_rng(0).normal(size=9).astype(numpy.float32)
    assert_array_equal(resample(samples, 16_000), samples)


@pytest.mark.parametrize(
    ("shape", "rate", "message"),
    [
        ((4,), 0, r"a rate must lie between 1000 and 384000 samples a second, got 0"),
        ((4,), 2**31, r"a rate must lie between 1000 and 384000 samples a second, got 2147483648"),
        ((0,), 8000, r"expected samples of shape \(n,\), n > 0, got \(0,\)"),
        ((2, 4), 8000, r"expected samples of shape \(n,\), n > 0, got \(2, 4\)"),
    ],
)
def test_resample_refuses(shape: tuple[int, ...], rate: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resample(numpy.zeros(shape), rate)


# ------------------------------------------------------------------------------------------------ features


def reference(samples: Any, n_mels: int = 80) -> Any:
    """`WhisperFeatureExtractor`'s features of one sound, computed by NumPy in float64."""
    from transformers import WhisperFeatureExtractor

    padded = numpy.zeros(480_000)
    padded[: len(samples)] = samples[:480_000]
    return WhisperFeatureExtractor(feature_size=n_mels)._np_extract_fbank_features(padded[None], "cpu")[0]


@pytest.mark.peers
@pytest.mark.parametrize("n_mels", [80, 128])
def test_log_mel_is_that_of_transformers(n_mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    samples, rate = read_wav(SENTENCE)
    expected = WhisperFeatureExtractor(feature_size=n_mels)(samples, sampling_rate=rate, return_tensors="np")
    found = log_mel(samples, n_mels)
    assert found.shape == (n_mels, 3000)
    assert found.dtype == numpy.float32
    exact = reference(samples, n_mels)
    assert_allclose(log_mel(samples.astype(numpy.float64), n_mels).numpy(), exact, rtol=0, atol=1e-6)
    # In float32 PyTorch's transform, which it prefers, is off by 4e-5; ours by 1e-5.
    assert_allclose(found.numpy(), exact, rtol=0, atol=1.5e-5)
    assert_allclose(found.numpy(), expected.input_features[0], rtol=0, atol=5e-5)


@pytest.mark.peers
def test_a_long_sound_is_cut_and_several_are_apart() -> None:
    rng = numpy.random.default_rng(0)
    sounds = numpy.stack([rng.normal(size=500_000), 1e-3 * rng.normal(size=500_000)])
    found = log_mel(sounds).numpy()
    for i in range(2):
        assert_allclose(found[i], reference(sounds[i]), atol=1e-6)


@pytest.mark.peers
@pytest.mark.parametrize("n_mels", [1, 80, 128])
def test_mel_filters_are_those_of_transformers(n_mels: int) -> None:
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(201, n_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    assert_allclose(audio.mel_filters(n_mels), expected.T, rtol=1e-10, atol=1e-12)


def direct(samples: Any, n_mels: int, frames: int) -> Any:
    """The docstring of `log_mel`, frame by frame, with sums for the transforms."""
    x = numpy.concatenate([samples, numpy.zeros(frames * 160)])[: frames * 160]
    x = numpy.concatenate([x[200:0:-1], x, x[-2:-202:-1]])
    w = (1 - numpy.cos(2 * numpy.pi * numpy.arange(400) / 400)) / 2
    F = numpy.exp(-2j * numpy.pi * numpy.outer(numpy.arange(201), numpy.arange(400)) / 400)
    S = numpy.stack([abs(F @ (w * x[160 * t : 160 * t + 400])) ** 2 for t in range(frames)], axis=1)
    L = numpy.log10(numpy.maximum(audio.mel_filters(n_mels) @ S, 1e-10))
    return (numpy.maximum(L, L.max() - 8) + 4) / 4


@pytest.mark.parametrize("n", [1, 700, 960, 5000])
def test_log_mel_is_its_definition(n: int) -> None:
    samples = numpy.random.default_rng(n).normal(size=n)
    found = log_mel(tensor(samples), n_mels=5, frames=6)
    assert found.dtype == tensor(samples).dtype
    assert_allclose(value(found), direct(samples, 5, 6), rtol=1e-9, atol=1e-9)


HAVE = [name for name in ("float16", "float32") if hasattr(backend.current().xp, name)]


@pytest.mark.parametrize("dtype", HAVE)
def test_log_mel_of_fewer_digits(dtype: str) -> None:
    samples = numpy.random.default_rng(0).normal(size=1000).astype(dtype)
    found = log_mel(tensor(samples), n_mels=5, frames=6)
    assert value(found).dtype == numpy.float32
    assert_allclose(value(found), direct(samples.astype(numpy.float64), 5, 6), rtol=1e-5, atol=1e-5)


def test_log_mel_of_the_sentence() -> None:
    """A second of it, in float64 and float32, on the backend under test."""
    samples, _ = read_wav(SENTENCE)
    samples = samples[8_000:24_000]
    expected = direct(samples.astype(numpy.float64), 80, 100)
    assert_allclose(value(log_mel(tensor(samples.astype(numpy.float64)), frames=100)), expected, rtol=0, atol=1e-9)
    assert_allclose(value(log_mel(tensor(samples), frames=100)), expected, rtol=0, atol=5e-5)


def test_log_mel_of_silence() -> None:
    assert_allclose(value(log_mel(tensor(numpy.zeros(10)), frames=2)), numpy.full((80, 2), -1.5), rtol=1e-12)


def test_the_gradient_of_log_mel() -> None:
    samples = tensor(numpy.random.default_rng(0).normal(size=(2, 350)))
    mg.gradcheck(lambda x: log_mel(x, n_mels=4, frames=2), [samples], method="projection")
    mg.gradgradcheck(lambda x: log_mel(x, n_mels=2, frames=2), [samples[0, ...]], method="projection")


def test_log_mel_refuses() -> None:
    with pytest.raises(ValueError, match=r"expected samples of shape \(\.\.\., n\), n > 0, got \(\)"):
        log_mel(tensor(1.0))
    with pytest.raises(ValueError, match=r"expected samples of shape \(\.\.\., n\), n > 0, got \(2, 0\)"):
        log_mel(tensor(numpy.zeros((2, 0))))
    with pytest.raises(ValueError, match="expected at least 2 frames, got 1"):
        log_mel(tensor(numpy.zeros(9)), frames=1)
    with pytest.raises(TypeError, match="expected a real floating-point array, got int64"):
        log_mel(tensor(numpy.zeros(9, numpy.int64)))


# ------------------------------------------------------------------------------------------------ word times


def cheapest(cost: Any) -> float:
    """The cost of the cheapest way, by trying all."""
    rows, columns = cost.shape
    if rows == 1 or columns == 1:
        return float(cost.sum())
    before = (cost[:-1, :-1], cost[:-1], cost[:, :-1])
    return float(cost[-1, -1]) + min(map(cheapest, before))


@given(rows=st.integers(1, 4), columns=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_way_is_the_cheapest(rows: int, columns: int, seed: int) -> None:
    cost = numpy.random.default_rng(seed).normal(size=(rows, columns))
    i, j = dynamic_time_warping(cost)
    assert (i[0], j[0], i[-1], j[-1]) == (0, 0, rows - 1, columns - 1)
    steps = set(zip(numpy.diff(i).tolist(), numpy.diff(j).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert cost[i, j].sum() == pytest.approx(cheapest(cost))


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (5, 40), (40, 5), (30, 300)])
@pytest.mark.parametrize("seed", range(5))
def test_the_way_is_that_of_transformers(shape: tuple[int, int], seed: int) -> None:
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    cost = numpy.random.default_rng(seed).normal(size=shape)
    assert_array_equal(dynamic_time_warping(cost), _dynamic_time_warping(cost))


def test_a_tie_goes_on_in_its_row() -> None:
    assert_array_equal(dynamic_time_warping(numpy.zeros((2, 3))), [[0, 1, 1, 1], [0, 0, 1, 2]])


@pytest.mark.peers
@pytest.mark.parametrize(("heads", "tokens", "states"), [(8, 15, 200), (1, 2, 50), (3, 4, 3), (2, 40, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_token_times_are_those_of_transformers(heads: int, tokens: int, states: int, seed: int) -> None:
    from types import SimpleNamespace

    import torch
    from transformers import WhisperForConditionalGeneration
    from transformers.generation import GenerateEncoderDecoderOutput

    rng = numpy.random.default_rng(seed)
    weights = rng.dirichlet(numpy.full(states, 0.3), size=(heads, tokens)).astype(numpy.float32)
    prompt = rng.dirichlet(numpy.ones(states), size=(heads, 2)).astype(numpy.float32)
    rows = torch.tensor(numpy.concatenate([prompt, weights], axis=1))[None]
    outputs = GenerateEncoderDecoderOutput(cross_attentions=[(rows,)], sequences=torch.zeros((1, tokens + 3)))
    model = SimpleNamespace(config=SimpleNamespace(decoder_layers=1, median_filter_width=7))
    expected = WhisperForConditionalGeneration._extract_token_timestamps(
        model, outputs, [[0, i] for i in range(heads)], num_frames=2 * states, num_input_ids=2
    )
    found = token_times(weights)
    assert_allclose(found[:, 0], expected[0, 2:-1].numpy(), atol=1e-6)  # the last one stands for the end of text
    assert_array_equal(found[1:, 0], found[:-1, 1])
    assert found[-1, 1] == pytest.approx(0.02 * states)


def blocks(*lengths: int) -> Any:
    """Weights of one head: each token looks at so many states of its own."""
    return numpy.repeat(numpy.eye(len(lengths)), lengths, axis=1)[None]


def test_tokens_that_look_at_states_of_their_own_are_said_there() -> None:
    found = token_times(tensor(blocks(10, 25, 15)))
    assert_allclose(found, [[0, 0.2], [0.2, 0.7], [0.7, 1.0]], atol=1e-12)


def test_what_all_tokens_look_at_says_nothing() -> None:
    weights = blocks(10, 25, 15)
    weights[:, :, 22] = 5.0
    assert_allclose(token_times(tensor(weights)), [[0, 0.2], [0.2, 0.7], [0.7, 1.0]], atol=1e-12)


def test_one_token_takes_it_all() -> None:
    assert_allclose(token_times(tensor(blocks(30))), [[0, 0.6]])


SPOKEN = {0: " Tom", 1: "my", 2: " is", 3: " ni", 4: "ce", 5: ".", 6: "", 7: "Oh"}


def decode(ids: list[int]) -> str:
    return "".join(SPOKEN[i] for i in ids)


def test_words_begin_with_a_space() -> None:
    found = word_alignment(tensor(blocks(10, 10, 20, 10, 10, 5, 15)), [0, 1, 2, 3, 4, 5, 6], decode)
    assert found == [("Tommy", 0.0, 0.4), ("is", 0.4, 0.8), ("nice.", 0.8, 1.3)]


def test_a_token_without_text_ends_a_word() -> None:
    found = word_alignment(tensor(blocks(10, 10, 20, 10)), [7, 6, 7, 5], decode)
    assert found == [("Oh", 0.0, 0.2), ("Oh.", 0.4, 1.0)]


def test_a_letter_of_several_tokens_is_one() -> None:
    def of_bytes(ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    assert [word.text for word in word_alignment(tensor(blocks(10, 10, 10)), list(" é".encode()), of_bytes)] == ["é"]


def test_weights_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows of weights for 2 tokens"):
        word_alignment(tensor(blocks(9, 9, 9)), [0, 1], decode)
    with pytest.raises(ValueError, match=r"expected weights of shape \(heads, T, n\), got \(2, 3\)"):
        token_times(tensor(numpy.ones((2, 3))))
    with pytest.raises(ValueError, match=r"expected weights of shape \(heads, T, n\), got \(1, 0, 3\)"):
        token_times(tensor(numpy.ones((1, 0, 3))))
    with pytest.raises(ValueError, match="expected an odd width of the median, got 4"):
        token_times(tensor(blocks(9, 9)), width=4)
    with pytest.raises(ValueError, match="some weights are not finite"):
        token_times(tensor(numpy.full((1, 2, 3), numpy.nan)))


def test_a_wav_of_the_extensible_format_is_read(tmp_path: Path) -> None:
    """Its format tag is 0xFFFE, and the real one stands in a GUID."""

    pcm = numpy.asarray([0, 16384, -32768], "<i2").tobytes()
    guid = b"\x01\x00\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
    form = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 16000, 2, 16, 22, 16, 4) + guid
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(pcm)) + pcm
    (tmp_path / "a.wav").write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)
    samples, rate = read_wav(tmp_path / "a.wav")
    assert (samples.tolist(), rate) == ([0.0, 0.5, -1.0], 8000)
