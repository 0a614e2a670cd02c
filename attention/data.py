"""What the models read: dates in twelve languages, anyone's pairs, anyone's text.

A model sees integers. `Vocabulary` turns characters into ids and back, `pad` makes a rectangle out of sequences of
different lengths, and the functions in between fetch the text. Everything here is plain Python on the host: ids are
lists of int, and whoever trains turns them into arrays.

Dates are written as the Unicode CLDR has it (https://cldr.unicode.org, through Babel), and in ISO 8601.
"""

from __future__ import annotations

import datetime
import os
import pydoc_data.topics
import unicodedata
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from babel import Locale
from babel.dates import format_date

# Latin, Greek and Cyrillic letters; the year first (hu) and the weekday last (tr); and names that differ
# by one letter (ru "июня" and "июля") or nothing but their place ("mar" is March in three languages).
# No two of them ever write the same string for two different days: the one all-digit format, German
# "03.06.2026", has no rival that puts the month first. Short formats would be "6/3/26" against "3/6/26".
LANGUAGES = ("de", "el", "en", "es", "fr", "hu", "it", "nl", "pl", "pt", "ru", "tr")
STYLES = ("full", "long", "medium")

# Two whole centuries, so that no digit of the year tells another: over 1950-2049, say, "5" in the tens
# would always follow "19", and the model would learn that instead of reading the century.
FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)

LARGEST = 2**28  # bytes in a file: the ids of its characters take ten times as much memory

PAD, BOS, EOS = 0, 1, 2  # a filler, the beginning and the end of a sequence; characters have ids from 3


class Pair(NamedTuple):
    """A source to read and the target to write; ``group`` is what accuracy is broken down by.

    >>> Pair("3 juin 2026", "2026-06-03", group="fr").target
    '2026-06-03'
    """

    source: str
    target: str
    group: str = ""


def normalise(text: str) -> str:
    r"""``text`` the way the models see it: in Unicode NFC, with every no-break space an ordinary one.

    "é" can be one code point or two, and looks the same on any screen; NFC makes it one. Russian dates carry a narrow
    no-break space that nobody has on a keyboard. NFKC would do both, but would also turn "²" into "2" and "ﬁ" into "fi"
    in other people's text.

    >>> normalise("fe\u0301vrier 2026"), normalise("20\u202f000")
    ('février 2026', '20 000')
    """
    return unicodedata.normalize("NFC", text).replace("\u00a0", " ").replace("\u202f", " ")


def date_pairs(rng: Random, held_out: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on and pairs to test on: dates as people write them, and their ISO form.

    The 73 049 days from 1900 to 2099 are shuffled and ``held_out`` of them set aside *before* any is written out, so a
    day in the second list is in the first in no language and no format. Each day is written in a random one of the 36
    ways (12 languages, CLDR's full, long and medium formats). The group of a pair is its language. Equal states of
    ``rng`` give equal lists.

    >>> train, test = date_pairs(Random(5), held_out=2)
    >>> len(train), len(test)
    (73047, 2)
    >>> test[1]
    Pair(source='mercredi 30 août 2028', target='2028-08-30', group='fr')
    """
    days = range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1)
    if not 0 <= held_out <= len(days):
        raise ValueError(f"held_out must lie between 0 and {len(days)} days, got {held_out}")
    locales = {language: Locale.parse(language) for language in LANGUAGES}

    def written(ordinal: int) -> Pair:
        day = datetime.date.fromordinal(ordinal)
        language, style = rng.choice(LANGUAGES), rng.choice(STYLES)
        return Pair(normalise(format_date(day, style, locale=locales[language])), day.isoformat(), language)

    shuffled = rng.sample(days, len(days))
    return [written(day) for day in shuffled[held_out:]], [written(day) for day in shuffled[:held_out]]


def read_pairs(path: str | os.PathLike[str]) -> list[Pair]:
    r"""The pairs in a UTF-8 file of lines ``source<TAB>target`` or ``source<TAB>target<TAB>group``.

    Blank lines are skipped. Raises a one-line ValueError, with the file and the line, for anything else.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "numbers.tsv").write_text("one\t1\n\ntwo\t2\n")
    ...     read_pairs(f"{folder}/numbers.tsv")
    [Pair(source='one', target='1', group=''), Pair(source='two', target='2', group='')]
    """
    pairs = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) not in (2, 3):
            plural = "" if len(columns) == 1 else "s"
            raise ValueError(f"{path} line {number}: expected 'source<TAB>target', got {len(columns)} column{plural}")
        for name, column in zip(("source", "target"), columns, strict=False):
            if not column:
                raise ValueError(f"{path} line {number}: the {name} is empty")
        pairs.append(Pair(*columns))
    if not pairs:
        raise ValueError(f"{path}: no pairs in it")
    return pairs


def split_pairs(pairs: Sequence[Pair], held_out: int, rng: Random) -> tuple[list[Pair], list[Pair]]:
    """(train, test): the pairs of ``held_out`` randomly chosen sources are the test.

    The split is by source, so that a line that occurs twice in a file is not on both sides. Raises ValueError if either
    side would be empty.

    >>> pairs = [Pair("a", "1"), Pair("b", "2"), Pair("a", "one")]
    >>> train, test = split_pairs(pairs, 1, Random(0))
    >>> [pair.source for pair in train], [pair.source for pair in test]
    (['a', 'a'], ['b'])
    """
    sources = sorted({pair.source for pair in pairs})
    if not 0 < held_out < len(sources):
        raise ValueError(f"cannot hold out {held_out} of {len(sources)} different sources")
    chosen = set(rng.sample(sources, held_out))
    return (
        [pair for pair in pairs if pair.source not in chosen],
        [pair for pair in pairs if pair.source in chosen],
    )


def read_text(path: str | os.PathLike[str] | None = None) -> str:
    r"""The text of a UTF-8 file, or without one Python's own manual, about half a megabyte of English.

    Raises a one-line ValueError, with the file's name, if it is missing, empty or not UTF-8.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "numbers.txt").write_bytes(b"one\r\ntwo")
    ...     read_text(f"{folder}/numbers.txt")
    'one\ntwo'
    """
    if path is None:
        topics = pydoc_data.topics.topics
        return normalise("\n\n".join(topics[name] for name in sorted(topics)))
    text = _read(path)
    if not text.strip():
        raise ValueError(f"{path}: no text in it")
    return text


def _read(path: str | os.PathLike[str]) -> str:
    """The normalised text of a UTF-8 file, with no byte-order mark and no carriage returns."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if len(data) > LARGEST:
        raise ValueError(f"{path}: expected at most {LARGEST:,} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ValueError(f"{path} line {line}: not UTF-8 (byte {byte:#x} at offset {error.start})") from None
    return normalise(text.removeprefix("\ufeff").replace("\r\n", "\n"))


class Vocabulary:
    """The characters of some texts, and an integer for each: their places in code-point order, plus 3.

    >>> vocabulary = Vocabulary(["3 juin", "juni"])
    >>> vocabulary.characters, len(vocabulary)
    (' 3ijnu', 9)
    >>> vocabulary.encode("juni 3")
    [6, 8, 7, 5, 3, 4]
    >>> vocabulary.decode([BOS, 6, 8, 7, 5, 3, 4, EOS, PAD])
    'juni 3'
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.characters = "".join(sorted({character for text in texts for character in normalise(text)}))
        self._ids = {character: i for i, character in enumerate(self.characters, start=EOS + 1)}

    def __len__(self) -> int:
        """The number of ids, PAD, BOS and EOS included."""
        return EOS + 1 + len(self.characters)

    def encode(self, text: str) -> list[int]:
        """The ids of the characters of ``text``, without BOS or EOS.

        Raises ValueError for the first character that has none.

        >>> Vocabulary(["abc"]).encode("abba!")
        Traceback (most recent call last):
        ValueError: character '!' at position 4 of 'abba!' was not seen in training
        """
        text = normalise(text)
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character = error.args[0]
        position = text.index(character)
        window = text[max(position - 20, 0) : position + 20]
        quoted = repr(text) if len(text) <= 60 else f"...{window!r}..."
        raise ValueError(f"character {character!r} at position {position} of {quoted} was not seen in training")

    def decode(self, ids: Iterable[int]) -> str:
        """The characters of ``ids`` up to the first EOS; PAD and BOS stand for none.

        Raises ValueError for an id that is not in the vocabulary.

        >>> Vocabulary(["abc"]).decode([BOS, 5, 3, EOS, 4])
        'ca'
        """
        characters = []
        for i in ids:
            if i == EOS:
                break
            if not 0 <= i < len(self):
                raise ValueError(f"id {i} is not in this vocabulary of {len(self)} ids")
            if i > EOS:
                characters.append(self.characters[i - EOS - 1])
        return "".join(characters)

    def to_json(self) -> str:
        """The characters as one string, which is all that `from_json` needs."""
        return self.characters

    @classmethod
    def from_json(cls, data: object) -> Vocabulary:
        """The vocabulary that `to_json` stored; ValueError if ``data`` cannot have come from there.

        >>> Vocabulary.from_json(Vocabulary(["cab", "b"]).to_json()).characters
        'abc'
        """
        if not isinstance(data, str) or cls(data).characters != data:
            raise ValueError("a vocabulary is one string of different characters in code-point order")
        return cls(data)


def pad(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """``sequences`` filled up with PAD to the length of the longest: a (B, T) rectangle.

    >>> pad([[5, 6, 7], [8]])
    [[5, 6, 7], [8, 0, 0]]
    """
    longest = max(map(len, sequences), default=0)
    return [[*sequence, *[PAD] * (longest - len(sequence))] for sequence in sequences]
