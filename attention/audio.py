"""Sound for a model that reads speech: a WAV file, its log-mel features, and when each word was said.

    read_wav         a file: numbers in [-1, 1], and how many of them a second has
    resample         the same sound at another rate
    log_mel          what Whisper's encoder reads; differentiable, on any backend
    word_alignment   the weights of cross-attention: the seconds at which each word begins and ends

A. Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), arXiv:2212.04356: the features
are those of section 2.2, and all constants here are the ones that its models were trained with.

>>> rate = 16_000
>>> tone = mg.sin(2 * mg.pi * 440 / rate * mg.arange(rate, dtype="float32"))
>>> log_mel(tone).shape
(80, 3000)
"""

from __future__ import annotations

import io
import math
import os
import wave
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import numpy
from numpy.typing import NDArray

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import Array, device_of

from .files import one_line
from .functional._numerics import library, widen

RATE = 16_000  #: samples in a second of what Whisper hears
WINDOW, HOP = 400, 160  #: samples in a frame (25 ms), and from one frame to the next (10 ms)
FRAMES = 3000  #: frames in the 30 seconds that the encoder reads
SECONDS = 0.02  #: from one state of the encoder to the next: two frames, as its second convolution skips every other

Float32 = NDArray[numpy.float32]
Float64 = NDArray[numpy.float64]


class AudioError(ValueError):
    """A sound file that is missing, damaged or of a kind that is not read. The message is one line.

    >>> read_wav("/no/such/sound.wav")
    Traceback (most recent call last):
    attention.audio.AudioError: /no/such/sound.wav: No such file or directory
    """


# ------------------------------------------------------------------------------------------------------- the file


def read_wav(path: str | os.PathLike[str]) -> tuple[Float32, int]:
    """(samples, rate) of the WAV file at ``path``: float32 (n,) in [-1, 1], and the number of samples in a second.

    Integers of 8, 16, 24 and 32 bits are read; several channels become their mean. Raises AudioError, in one line that
    begins with the path, for what is missing, empty, cut short, compressed, floating-point or no WAV at all.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with wave.open(f"{folder}/a.wav", "wb") as file:
    ...         file.setparams((1, 2, 8000, 0, "NONE", None))  # one channel, two bytes, 8000 samples a second
    ...         file.writeframes(numpy.asarray([0, 16384, -32768], "<i2").tobytes())
    ...     read_wav(f"{folder}/a.wav")
    (array([ 0. ,  0.5, -1. ], dtype=float32), 8000)
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would keep us waiting
            raise AudioError(f"{path}: not a file")
        with open(path, "rb") as file, wave.open(_plain(file)) as wav:
            channels, width, rate, count = wav.getparams()[:4]
            if width > 4:
                raise AudioError(f"{path}: samples of {8 * width} bits, expected 8, 16, 24 or 32")
            if rate == 0 or count == 0:
                raise AudioError(f"{path}: empty ({count} samples, {rate} in a second)")
            if count * channels * width > os.fstat(file.fileno()).st_size:  # so nothing larger is asked for
                raise AudioError(f"{path}: cut short, {count} samples are announced")
            data = wav.readframes(count)
    except OSError as error:
        raise AudioError(f"{path}: {error.strerror or one_line(error)}") from None
    except (wave.Error, EOFError, RuntimeError) as error:  # the latter two say nothing
        raise AudioError(f"{path}: no WAV file of integer samples ({one_line(error) or 'cut short'})") from None
    if len(data) != count * channels * width:
        raise AudioError(f"{path}: cut short, {count} samples are announced")
    samples = _integers(data, width).reshape(count, channels).mean(axis=1) / 2.0 ** (8 * width - 1)
    return samples.astype(numpy.float32), rate


def _plain(file: BinaryIO) -> BinaryIO:
    """An open WAV file with its format in short, as integers' can be: Python 3.11's `wave` reads no extensible ones."""
    head = bytearray(file.read(4096))
    at = head.find(b"fmt ", 12)
    if at < 0 or head[at + 8 : at + 10] != b"\xfe\xff" or head[at + 32 : at + 34] != b"\x01\x00":
        file.seek(0)
        return file
    head[at + 8 : at + 10] = b"\x01\x00"
    return io.BytesIO(bytes(head) + file.read())


def _integers(data: bytes, width: int) -> Float64:
    """The samples in ``data``, ``width`` bytes each: signed, but for those of one byte, which count from 128."""
    if width == 1:
        return numpy.frombuffer(data, "u1") - 128.0
    if width == 3:  # as the upper three bytes of four
        four = numpy.zeros((len(data) // 3, 4), "u1")
        four[:, 1:] = numpy.frombuffer(data, "u1").reshape(-1, 3)
        return four.view("<i4")[:, 0] / 256.0
    return numpy.frombuffer(data, f"<i{width}").astype(numpy.float64)


def resample(samples: NDArray[Any], rate: int, to: int = RATE) -> Float32:
    """``samples`` (n,), ``rate`` of them in a second, as float32 (m,) with ``to`` in a second: m = ⌈n · to / rate⌉.

    With up / down = to / rate in lowest terms, the sound is thought of as having up − 1 zeros behind each sample. A
    low-pass filter h fills them in, and every down-th is kept:

        y[m] = Σ_j h[m · down − j · up + c] x[j]            c: the middle of h

    Most products are with zeros and are left out: the taps of h that meet a sample are the same for each m with the
    same remainder of m · down by up, its phase. h is a sinc that cuts at half the lower of the two rates, under a
    Kaiser window (β = 5) of ten zero crossings on each side. (A. Oppenheim and R. Schafer, "Discrete-Time Signal
    Processing", 3rd ed., sections 4.6 and 7.5.3.) Outside of the sound there is silence.

    Raises ValueError for rates outside 1 000 to 384 000, and for samples that are not one row.

    >>> resample(numpy.ones(22_050), 22_050).shape
    (16000,)
    """
    if samples.ndim != 1 or samples.size == 0:
        raise ValueError(f"resample: expected samples of shape (n,), n > 0, got {samples.shape}")
    for given in (rate, to):
        if not 1_000 <= given <= 384_000:
            raise ValueError(f"resample: a rate must lie between 1000 and 384000 samples a second, got {given}")
    if rate == to:
        return samples.astype(numpy.float32)
    divisor = math.gcd(rate, to)
    up, down = to // divisor, rate // divisor
    middle = 10 * max(up, down)
    steps = numpy.arange(-middle, middle + 1)
    h = numpy.sinc(steps / max(up, down)) * numpy.kaiser(len(steps), 5.0)
    h *= up / h.sum()  # a constant stays what it is

    reach = middle // up + 1  # samples on either side that a filter can meet
    padded = numpy.pad(samples.astype(numpy.float64), reach)
    around = numpy.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)  # row j: samples j − reach … j + reach
    out = numpy.empty(-(-len(samples) * up // down))
    for first in range(min(up, len(out))):
        j, phase = divmod(first * down, up)
        taps = phase + middle + up * numpy.arange(reach, -reach - 1, -1)
        known = numpy.where((taps >= 0) & (taps < len(h)), h[numpy.clip(taps, 0, len(h) - 1)], 0.0)
        there = out[first::up]  # the next one of this phase lies ``down`` samples further
        there[:] = around[j::down][: len(there)] @ known
    return out.astype(numpy.float32)


# --------------------------------------------------------------------------------------------------- the features


@cache
def mel_filters(n_mels: int) -> Float64:
    """The triangles (n_mels, 201) that gather the 201 frequencies of a frame into ``n_mels`` bands.

    The mel scale is Slaney's: linear below 1000 Hz and logarithmic above it, with the same slope where they meet,

        mel(f) = 3 f / 200                             f < 1000 Hz
                 15 + 27 ln(f / 1000) / ln 6.4         f ≥ 1000 Hz

    The corners p_0 … p_{n_mels + 1} are equally far apart on it, from 0 to 8000 Hz. Band m rises from p_m to p_{m+1}
    and falls to p_{m+2}; its height 2 / (p_{m+2} − p_m) makes its area 1, so that white noise gives equal bands.
    (M. Slaney, "Auditory Toolbox", Interval Research Corporation, Technical Report 1998-010.)

    >>> mel_filters(80).shape
    (80, 201)
    """
    mels = numpy.linspace(0, 15 + 27 * math.log(RATE / 2 / 1000) / math.log(6.4), n_mels + 2)
    corners = numpy.where(mels < 15, mels * 200 / 3, 1000 * numpy.exp((mels - 15) * math.log(6.4) / 27))
    frequencies = numpy.arange(WINDOW // 2 + 1) * (RATE / WINDOW)
    low, peak, high = (corners[i : i + n_mels, None] for i in range(3))
    triangles = numpy.minimum((frequencies - low) / (peak - low), (high - frequencies) / (high - peak))
    filters: Float64 = numpy.maximum(triangles, 0) * 2 / (high - low)
    filters.flags.writeable = False  # the cache hands the same one to everybody
    return filters


def log_mel(samples: Array, n_mels: int = 80, frames: int = FRAMES) -> Tensor:
    """What Whisper's encoder reads of a sound: a Tensor (..., n_mels, frames) of ``samples`` (..., n) at 16 kHz.

    The sound is cut, or filled up with silence, to 160 samples for each of ``frames``. Frame t is the 400 samples
    around sample 160 t, under a Hann window w; before the beginning and after the end the sound is mirrored:

        S[k, t] = |Σ_i w[i] x[160 t + i − 200] exp(−2πi k i / 400)|²        w[i] = (1 − cos(2π i / 400)) / 2
        L = log₁₀ max(M S, 10⁻¹⁰)                                           M: `mel_filters`
        out = (max(L, max L − 8) + 4) / 4                                   max L: of the whole sound

    The result has the dtype of ``samples`` (float32 for float16 and bfloat16), stays in their array library, and can be
    differentiated; where a maximum takes the constant, the gradient is 0. float32 loses digits in a band that is much
    weaker than its frame's strongest, as the transform's rounding errors are those of the strongest: of a sentence,
    4e-5. (`WhisperFeatureExtractor` of ``transformers`` is as far from float64 where it uses PyTorch.)

    Raises TypeError for samples that are not real floating-point numbers, ValueError if there are none or fewer than
    two frames are asked for (a mirrored edge needs 200 samples beyond it).

    >>> float(log_mel(mg.zeros(16_000))[0, 0])  # log₁₀ 10⁻¹⁰ = −10, and (−10 + 4) / 4
    -1.5
    """
    x = widen(mg, mg.asarray(samples))
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"log_mel: expected samples of shape (..., n), n > 0, got {tuple(x.shape)}")
    if frames < 2:
        raise ValueError(f"log_mel: expected at least 2 frames, got {frames}")
    n = frames * HOP
    if x.shape[-1] > n:
        x = x[..., :n]
    elif x.shape[-1] < n:
        silence = _constant(numpy.zeros((*x.shape[:-1], n - x.shape[-1])), x)
        x = mg.concat([x, silence], axis=-1)

    steps = numpy.arange(WINDOW)
    places = abs(HOP * numpy.arange(frames)[:, None] + steps - WINDOW // 2)  # mirrored at the first sample,
    places = n - 1 - abs(n - 1 - places)  # and at the last one
    indices = library(mg, x).asarray(places.reshape(-1), device=device_of(x))
    framed = mg.reshape(mg.take(x, indices, axis=-1), (*x.shape[:-1], frames, WINDOW))
    spectrum = mg.fft.rfft(framed * _constant(0.5 - 0.5 * numpy.cos(2 * math.pi / WINDOW * steps), x))
    power = mg.real(spectrum) ** 2 + mg.imag(spectrum) ** 2  # (..., frames, 201)
    bands = mg.matrix_transpose(power @ _constant(mel_filters(n_mels).T.copy(), x))
    logarithm = mg.log10(mg.maximum(bands, 1e-10))
    loudest = mg.max(logarithm, axis=(-2, -1), keepdims=True)
    return (mg.maximum(logarithm, loudest - 8) + 4) / 4


def _constant(values: Float64, like: Tensor) -> Tensor:
    """A Tensor of ``values`` in the library, dtype and device of ``like``."""
    return mg.asarray(library(mg, like).asarray(values, dtype=like.dtype, device=device_of(like)))


# --------------------------------------------------------------------------------------------- when a word was said


class Word(NamedTuple):
    """A word of what was said, and the seconds at which it begins and ends.

    >>> word = Word("name", start=0.2, end=0.6)
    >>> round(word.end - word.start, 2)
    0.4
    """

    text: str
    start: float
    end: float


def word_alignment(weights: Array, tokens: Sequence[int], decode: Callable[[list[int]], str]) -> list[Word]:
    """The words of ``tokens`` with the seconds at which each was said, by `token_times`.

    ``weights`` (heads, len(tokens), n) are as `token_times` takes them, and ``decode`` makes text of a list of tokens.
    A token whose text begins with a space begins a word; what follows, a full stop too, belongs to it. A token of no
    text, such as the one that ends it all, is no word: give it along, as it takes the silence after the last one. A
    language that is written without spaces comes out as one word.

    Raises ValueError if there is not one row of weights for each token.

    >>> spoken = {0: " My", 1: " na", 2: "me", 3: ""}
    >>> weights = mg.repeat(mg.eye(4), 10, axis=-1)[None, ...]  # each token looks at ten states of its own
    >>> word_alignment(weights, [0, 1, 2, 3], lambda ids: "".join(spoken[i] for i in ids))
    [Word(text='My', start=0.0, end=0.2), Word(text='name', start=0.2, end=0.6)]
    """
    times = token_times(weights)
    if len(times) != len(tokens):
        raise ValueError(f"word_alignment: {len(times)} rows of weights for {len(tokens)} tokens")
    words: list[tuple[list[int], float, float]] = []
    joined = False
    for token, (start, end) in zip(tokens, times.tolist(), strict=True):
        text = decode([token])
        if text == "":
            joined = False
        elif joined and not text.startswith(" "):
            ids, begin, _ = words[-1]
            words[-1] = ([*ids, token], begin, end)
        else:
            words.append(([token], start, end))
            joined = True
    # Decoded as a whole: a letter outside of ASCII can be spread over two tokens.
    return [Word(decode(ids).strip(), round(start, 2), round(end, 2)) for ids, start, end in words]


def token_times(weights: Array, width: int = 7) -> Float64:
    """Where in the sound each token was heard: (T, 2), the seconds at which it begins and ends.

    ``weights`` (heads, T, n) are weights of cross-attention from the heads of the decoder that follow the sound
    (``alignment_heads`` of a published model). Row t is of the position that predicted token t, which is the one that
    read the token before it. Column j is a state of the encoder, 0.02 s long; leave out those beyond the end of the
    sound, and the rows of the prompt.

    1. Each row is divided by its sum: what a token looked at beyond the end of the sound does not count.
    2. Each column is brought to mean 0 and variance 1 over the tokens: what all of them look at, such as the first
       states, says nothing about any. (A column of equal numbers becomes 0.)
    3. A median over ``width`` neighbouring columns takes out lonely peaks; at the ends the row is mirrored.
    4. The mean over the heads, with its sign changed, is the cost of hearing token t at state j.
    5. `dynamic_time_warping` finds the cheapest way through. A token begins where the way enters its row and ends
       where the next one begins.

    This is how OpenAI's ``whisper`` finds its word times (``find_alignment`` in ``timing.py``), and CTranslate2 after
    it. ``return_token_timestamps`` of ``transformers`` leaves out the first step. Raises ValueError for weights that
    are not (heads, T, n) or not finite, and for an even ``width``.

    >>> weights = mg.repeat(mg.asarray([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]]), 10, axis=-1)  # one head, 30 states
    >>> token_times(weights).tolist()
    [[0.0, 0.2], [0.2, 0.6]]
    """
    x = numpy.asarray(mg.asarray(weights).numpy(), dtype=numpy.float64)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"token_times: expected weights of shape (heads, T, n), got {x.shape}")
    if width < 1 or width % 2 == 0:
        raise ValueError(f"token_times: expected an odd width of the median, got {width}")
    if not numpy.isfinite(x).all():
        raise ValueError("token_times: some weights are not finite")
    total = x.sum(axis=2, keepdims=True)
    x = x / numpy.where(total == 0, 1, total)
    deviation = x.std(axis=1, keepdims=True)
    x = (x - x.mean(axis=1, keepdims=True)) / numpy.where(deviation == 0, 1, deviation)
    x = _median(x, width).mean(axis=0)
    rows, columns = dynamic_time_warping(-x)
    begin = columns[numpy.searchsorted(rows, numpy.arange(len(x)))]
    return SECONDS * numpy.stack([begin, numpy.append(begin[1:], x.shape[1])], axis=1)


def _median(x: Float64, width: int) -> Float64:
    """The median of each number and its neighbours along the last axis; a row too short to be mirrored stays."""
    if x.shape[-1] <= width // 2:
        return x
    edge = [(0, 0)] * (x.ndim - 1) + [(width // 2, width // 2)]
    windows = numpy.lib.stride_tricks.sliding_window_view(numpy.pad(x, edge, mode="reflect"), width, axis=-1)
    median: Float64 = numpy.median(windows, axis=-1)
    return median


def dynamic_time_warping(cost: Float64) -> tuple[NDArray[numpy.intp], NDArray[numpy.intp]]:
    """The cheapest way through ``cost`` (T, n) from its first entry to its last: the (rows, columns) that it visits.

    Each step goes one row down, one column on, or both, so that the order of both sequences is kept. With D[t, j] the
    cost of the cheapest way to (t, j),

        D[t, j] = cost[t, j] + min(D[t−1, j−1], D[t−1, j], D[t, j−1]),

    and the way is read off backwards. At a tie the step along the row is taken, as Whisper does. (H. Sakoe and
    S. Chiba, "Dynamic programming algorithm optimization for spoken word recognition", 1978; without their weights
    for each kind of step, and with no limit to how far the way may stray.)

    It is a plain loop over T · n numbers on the host: every entry needs the one before it. Half a minute of speech,
    100 tokens by 1500 states, takes 0.1 s.

    >>> dynamic_time_warping(numpy.asarray([[1.0, 5, 5], [5, 1, 1]]))
    (array([0, 1, 1]), array([0, 1, 2]))
    """
    n = cost.shape[1]
    step: list[list[int]] = []  # 0: both, 1: a row down, 2: a column on
    above = [0.0] + [math.inf] * n  # D[t−1, j−1] stands at j
    for row in cost.tolist():
        here, moves = [math.inf] * (n + 1), [0] * n
        for j, price in enumerate(row):
            both, down, on = above[j], above[j + 1], here[j]
            if both < down and both < on:
                best, moves[j] = both, 0
            elif down < both and down < on:
                best, moves[j] = down, 1
            else:
                best, moves[j] = on, 2
            here[j + 1] = price + best
        step.append(moves)
        above = here
    t, j = len(step) - 1, n - 1
    way = [(t, j)]
    while t > 0 or j > 0:
        move = 2 if t == 0 else 1 if j == 0 else step[t][j]
        t, j = t - (move != 2), j - (move != 1)
        way.append((t, j))
    rows, columns = numpy.asarray(way[::-1], dtype=numpy.intp).T
    return rows, columns
