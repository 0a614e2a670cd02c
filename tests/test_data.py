"""attention.data: the dates against month names written by hand, the readers against hostile files."""

import calendar
import datetime
import json
import random
import re
import unicodedata
from pathlib import Path
from random import Random

import pytest
from babel.dates import format_date
from hypothesis import given
from hypothesis import strategies as st

from attention.data import (
    BOS,
    EOS,
    LANGUAGES,
    PAD,
    STYLES,
    Pair,
    Vocabulary,
    date_pairs,
    normalise,
    pad,
    read_pairs,
    read_text,
    split_pairs,
)

# How the names of the months begin, January first; a bar separates the beginnings of one month.
MONTHS = {
    "de": "jan feb mär apr mai jun jul aug sep okt nov dez",
    "el": "ιαν φεβ μαρ απρ μαΐ ιουν ιουλ αυγ σεπ οκτ νοε δεκ",
    "en": "jan feb mar apr may jun jul aug sep oct nov dec",
    "es": "ene feb mar abr may jun jul ago sep oct nov dic",
    "fr": "janv févr mars avr mai juin juil août sept oct nov déc",
    "hu": "jan feb már ápr máj jún júl aug szept okt nov dec",
    "it": "gen feb mar apr mag giu lug ago set ott nov dic",
    "nl": "jan feb maart|mrt apr mei jun jul aug sep okt nov dec",
    "pl": "sty lut mar kwi maj cze lip sie wrz paź lis gru",
    "pt": "jan fev mar abr mai jun jul ago set out nov dez",
    "ru": "янв фев мар апр мая июн июл авг сен окт ноя дек",
    "tr": "oca şub mar nis may haz tem ağu eyl eki kas ara",
}


def read_by_hand(source: str, language: str) -> str:
    """The ISO date of ``source``, by the table above instead of CLDR's."""
    numbers = re.findall(r"\d+", source)
    (year,) = [number for number in numbers if len(number) == 4]
    rest = [int(number) for number in numbers if len(number) < 4]
    if len(rest) == 2:  # all digits: the German day.month.year
        assert language == "de"
        assert re.fullmatch(r"\d\d\.\d\d\.\d{4}", source)
        day, month = rest
    else:
        (day,) = rest
        months = [
            i
            for word in re.findall(r"[^\W\d]+", source.lower())
            for i, beginnings in enumerate(MONTHS[language].split(), start=1)
            if word.startswith(tuple(beginnings.split("|")))
        ]
        month = months[-1]  # "mardi 3 juin": the weekday comes first where it looks like a month
    return f"{year}-{month:02}-{day:02}"


@pytest.fixture(scope="module")
def dates() -> tuple[list[Pair], list[Pair]]:
    return date_pairs(Random(0), held_out=1000)


def test_dates_mean_what_they_say(dates: tuple[list[Pair], list[Pair]]) -> None:
    assert set(MONTHS) == set(LANGUAGES)
    for pair in dates[0] + dates[1]:
        assert read_by_hand(pair.source, pair.group) == pair.target, pair


@pytest.mark.parametrize(
    "pair",
    [
        Pair("Wednesday, June 3, 2026", "2026-06-03", "en"),
        Pair("Jun 3, 2026", "2026-06-03", "en"),
        Pair("03.06.2026", "2026-06-03", "de"),
        Pair("mercredi 3 juin 2026", "2026-06-03", "fr"),
        Pair("3 de junho de 2026", "2026-06-03", "pt"),
        Pair("2026. június 3.", "2026-06-03", "hu"),
        Pair("3 Haziran 2026 Çarşamba", "2026-06-03", "tr"),
        Pair("среда, 3 июня 2026 г.", "2026-06-03", "ru"),
        Pair("Τετάρτη 3 Ιουνίου 2026", "2026-06-03", "el"),
    ],
)
def test_dates_are_written_as_people_do(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    # 200 draws out of 36 ways miss one of them with a probability of 0.4%, and always the same ones.
    monkeypatch.setattr("attention.data.FIRST_DAY", datetime.date(2026, 6, 3))
    monkeypatch.setattr("attention.data.LAST_DAY", datetime.date(2026, 6, 3))
    rng = Random(0)
    train, test = zip(*(date_pairs(rng, held_out=0) for _ in range(200)), strict=True)
    assert [pair] in train
    assert not any(test)


def test_held_out_days_are_never_trained_on(dates: tuple[list[Pair], list[Pair]]) -> None:
    train_days, test_days = ({pair.target for pair in pairs} for pairs in dates)
    assert len(test_days) == 1000
    assert not train_days & test_days
    assert len(train_days | test_days) == sum(366 if calendar.isleap(y) else 365 for y in range(1900, 2100))
    assert not {pair.source for pair in dates[0]} & {pair.source for pair in dates[1]}


def test_every_language_and_day_has_its_share(dates: tuple[list[Pair], list[Pair]]) -> None:
    train, test = dates
    assert (len(train), len(test)) == (72_049, 1000)
    for language in LANGUAGES:
        assert 5600 < sum(pair.group == language for pair in train) < 6400  # 6004 expected
        assert 50 < sum(pair.group == language for pair in test) < 120  # 83 expected


def test_no_string_means_two_days() -> None:
    """No two of all 2.6 million (day, language, format) that mean different days are written alike.

    Month, day and weekday decide a date's string, but for the year, which always stands alone as the one
    number of four digits. So equal strings have equal years, and it is enough to look at one year's worth
    of each combination: 28 years have them all.
    """
    meanings: dict[str, set[tuple[int, int]]] = {}
    combinations = set()
    for ordinal in range(datetime.date(2000, 1, 1).toordinal(), datetime.date(2028, 1, 1).toordinal()):
        day = datetime.date.fromordinal(ordinal)
        combination = (day.month, day.day, day.weekday())
        if combination in combinations:
            continue
        combinations.add(combination)
        for language in LANGUAGES:
            for style in STYLES:
                written = normalise(format_date(day, style, locale=language))
                parts = re.split(r"(?<!\d)\d{4}(?!\d)", written)
                assert len(parts) == 2
                assert f"{parts[0]}{day.year}{parts[1]}" == written
                meanings.setdefault("YEAR".join(parts), set()).add((day.month, day.day))
    assert len(combinations) == 366 * 7
    assert [text for text, days in meanings.items() if len(days) > 1] == []


@given(day=st.dates(datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)), style=st.sampled_from(STYLES))
def test_the_year_is_all_that_differs_between_years(day: datetime.date, style: str) -> None:
    """The premise of the test above: the same month, day and weekday in another year is written the same."""
    start = datetime.date(2000, 1, 1).toordinal()
    other = next(
        d
        for d in map(datetime.date.fromordinal, range(start, start + 28 * 366))
        if (d.month, d.day, d.weekday()) == (day.month, day.day, day.weekday())
    )
    for language in LANGUAGES:
        one, two = (format_date(d, style, locale=language) for d in (day, other))
        assert one.replace(str(day.year), "YEAR") == two.replace(str(other.year), "YEAR")


def test_dates_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention.data.LAST_DAY", datetime.date(1901, 12, 31))
    before = random.getstate()
    one, two, three = (date_pairs(Random(seed), held_out=50) for seed in (1, 1, 2))
    assert one == two
    assert one[1] != three[1]
    assert random.getstate() == before


@pytest.mark.parametrize("held_out", [-1, 73_050])
def test_dates_refuse_to_hold_out_what_is_not_there(held_out: int) -> None:
    with pytest.raises(ValueError, match=rf"^held_out must lie between 0 and 73049 days, got {held_out}$"):
        date_pairs(Random(0), held_out=held_out)


# ----------------------------------------------------------------------------------------------- files


def test_pairs_are_read(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    text = (
        "\ufeff3 juin\t06-03\tfr\r\n"  # a byte-order mark and DOS line ends, as spreadsheets write them
        "\r\n"
        " a \u2028b\t c\n"  # a line separator separates no lines here
        "fe\u0301v\u00a01\tx\t\n"
        "  \t \n"
        "last\tline"  # without a line end
    )
    file.write_bytes(text.encode())
    assert read_pairs(file) == [
        Pair("3 juin", "06-03", "fr"),
        Pair(" a \u2028b", " c"),
        Pair("f\u00e9v 1", "x", ""),
        Pair("last", "line"),
    ]


column = st.text(st.characters(exclude_characters="\t\n\r\ufeff", codec="utf-8"), min_size=1).filter(str.strip)


@given(st.lists(st.builds(Pair, column, column, column), min_size=1))
def test_pairs_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]) -> None:
    file = tmp_path_factory.getbasetemp() / "pairs.tsv"
    file.write_bytes("".join("\t".join(pair) + "\n" for pair in pairs).encode())
    assert read_pairs(file) == [Pair(*map(normalise, pair)) for pair in pairs]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\n" * 6 + b"alone\n", " line 7: expected 'source<TAB>target', got 1 column"),
        (b"\na\tb\tc\td\n", " line 2: expected 'source<TAB>target', got 4 columns"),
        (b"\ta\n", " line 1: the source is empty"),
        (b"a\tb\na\t\n", " line 2: the target is empty"),
        (b"", ": no pairs in it"),
        (b"\n \n\t\n", ": no pairs in it"),
        (b"a\tb\nc\xff\td\n", " line 2: not UTF-8 (byte 0xff at offset 5)"),
        ("a\tb\n".encode("utf-16"), " line 1: not UTF-8 (byte 0xff at offset 0)"),
        (b"a\tb\xe2\x82", " line 1: not UTF-8 (byte 0xe2 at offset 3)"),
    ],
)
def test_bad_pairs_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file) + message)}$"):
        read_pairs(file)


def test_missing_files_are_refused_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for read in (read_pairs, read_text):
        with pytest.raises(ValueError, match=f"^{re.escape(str(missing))}: No such file or directory$"):
            read(missing)
        with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}: Is a directory$"):
            read(tmp_path)


def test_text_is_read(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"one\r\ntwo\n\n e\xcc\x81\n")
    assert read_text(file) == "one\ntwo\n\n \u00e9\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": no text in it"),
        (b" \n\n", ": no text in it"),
        (b"1\n2\n3 \x80", " line 3: not UTF-8 (byte 0x80 at offset 6)"),
    ],
)
def test_bad_text_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file) + message)}$"):
        read_text(file)


def test_text_by_default_is_the_manual_of_python() -> None:
    text = read_text()
    assert len(text) > 300_000
    assert 'The "assert" statement' in text
    assert text.count(" the ") > 2000


# ----------------------------------------------------------------------------------- split, characters


def test_split_is_by_source() -> None:
    pairs = [Pair(str(i % 10), str(i)) for i in range(30)]
    train, test = split_pairs(pairs, 3, Random(0))
    assert (len(train), len(test)) == (21, 9)
    assert sorted(train + test) == sorted(pairs)
    assert not {pair.source for pair in train} & {pair.source for pair in test}
    assert (train, test) == split_pairs(pairs, 3, Random(0))
    assert test != split_pairs(pairs, 3, Random(1))[1]


@pytest.mark.parametrize("held_out", [0, 2, 3, -1])
def test_split_refuses_an_empty_side(held_out: int) -> None:
    with pytest.raises(ValueError, match=f"^cannot hold out {held_out} of 2 different sources$"):
        split_pairs([Pair("a", "x"), Pair("b", "y"), Pair("a", "z")], held_out, Random(0))


def test_vocabulary_ids() -> None:
    assert (PAD, BOS, EOS) == (0, 1, 2)
    vocabulary = Vocabulary(["ba", "c", "ab"])
    assert len(vocabulary) == 6
    assert vocabulary.encode("cab") == [5, 3, 4]
    assert vocabulary.encode("") == []
    assert vocabulary.decode([BOS, 5, PAD, 4, EOS, 3, 99]) == "cb"


@given(st.text())
def test_vocabulary_loses_nothing(text: str) -> None:
    vocabulary = Vocabulary([text])
    ids = vocabulary.encode(text)
    assert all(EOS < i < len(vocabulary) for i in ids)
    expected = unicodedata.normalize("NFC", text).replace("\u00a0", " ").replace("\u202f", " ")
    assert vocabulary.decode(ids) == expected
    stored = json.loads(json.dumps(vocabulary.to_json()))
    assert Vocabulary.from_json(stored).encode(text) == ids


def test_two_spellings_of_one_letter_are_one_character() -> None:
    assert Vocabulary(["\u00e9"]).encode("e\u0301") == [3]
    assert Vocabulary(["e\u0301"]).characters == "\u00e9"
    stored = Vocabulary(["x\u0301e"]).to_json()  # no letter for these two; side by side they would be one
    assert stored == "ex\u0301"
    assert Vocabulary.from_json(stored).encode("x\u0301") == [4, 5]
    assert Vocabulary(["²"]).encode("²") == [3]  # and not "2", as NFKC would have it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abxay", "character 'x' at position 2 of 'abxay'"),
        ("e\u0301b", "character 'é' at position 0 of 'éb'"),
        ("a\nb", r"character '\n' at position 1 of 'a\nb'"),
        ("a\udcff", r"character '\udcff' at position 1 of 'a\udcff'"),
        ("ab" * 50 + "!" + "ba" * 50, f"character '!' at position 100 of ...'{'ab' * 10}!{'ba' * 9}b'..."),
    ],
)
def test_an_unseen_character_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)} was not seen in training$"):
        Vocabulary(["ab"]).encode(text)


@pytest.mark.parametrize("i", [-1, 5])
def test_an_unknown_id_is_refused(i: int) -> None:
    with pytest.raises(ValueError, match=rf"^id {i} is not in this vocabulary of 5 ids$"):
        Vocabulary(["ab"]).decode([3, i])


@pytest.mark.parametrize("data", [None, 5, ["a", "b"], {"a": 3}, "ba", "aa", "\u212b"])
def test_a_foreign_vocabulary_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"^a vocabulary is one string of different characters"):
        Vocabulary.from_json(data)


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=5))
def test_pad_makes_a_rectangle(sequences: list[list[int]]) -> None:
    longest = max([0, *map(len, sequences)])
    before = [list(sequence) for sequence in sequences]
    padded = pad(sequences)
    assert len(padded) == len(sequences)
    for row, sequence in zip(padded, sequences, strict=True):
        assert len(row) == longest
        assert row[: len(sequence)] == sequence
        assert set(row[len(sequence) :]) <= {0}
    assert sequences == before
