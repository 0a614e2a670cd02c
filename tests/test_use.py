"""Published models in use: text, embeddings, speech and drawings of tiny models."""

import datetime
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import published_folders as folders
import pytest
from checks import not_on_jax
from numpy.testing import assert_allclose, assert_array_equal
from tokenizers import Tokenizer, decoders, models

import minigrad as mg
from attention import use
from attention.audio import log_mel
from attention.formats import Published, WeightsError, open_published
from attention.layers import attention_weights
from attention.models import load

pytestmark = not_on_jax

TOKENIZER = folders.make_tokenizer()
SPLIT = "naïve 日本語 🙂👩‍👧"  # characters of two to four bytes, most of which are tokens of their own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("use")
    for kind in ("llama", "gpt2", "bert", "whisper", "llava"):
        folders.write_whole(path / kind, kind)
    return path


@pytest.fixture(scope="module")
def llama(folder: Path) -> tuple[Any, Published]:
    return opened(folder / "llama")


@pytest.fixture(scope="module")
def bert(folder: Path) -> tuple[Any, Published]:
    return opened(folder / "bert")


@pytest.fixture(scope="module")
def whisper(folder: Path) -> tuple[Any, Published]:
    return opened(folder / "whisper")


def opened(path: Path) -> tuple[Any, Published]:
    published = open_published(path)
    return load(published), published


# ------------------------------------------------------------------------------------------------ pieces of text


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


def test_a_character_of_several_tokens_comes_when_it_is_complete() -> None:
    assert len(ids("🙂")) == 4
    pieces = list(use.stream_text(TOKENIZER, ids(SPLIT)))
    assert "".join(pieces) == SPLIT
    assert "🙂" in pieces
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_text_comes_as_soon_as_it_is_known() -> None:
    taken: list[int] = []

    def tokens() -> Iterator[int]:
        for token in ids("the cat sat"):
            taken.append(token)
            yield token

    for count, _ in enumerate(use.stream_text(TOKENIZER, tokens()), 1):
        assert count == len(taken)


def test_a_character_that_is_never_complete_never_comes() -> None:
    assert "".join(use.stream_text(TOKENIZER, ids("a 🙂")[:-1])) == "a "
    assert "".join(use.stream_text(TOKENIZER, [*ids("🙂")[:-1], *ids(" b 🙂")[:-1]])) == "\ufffd b "


@pytest.mark.parametrize("seed", range(20))
def test_any_tokens_come_as_they_are_decoded_together(seed: int) -> None:
    rng = numpy.random.default_rng(seed)
    tokens = rng.choice([*ids(SPLIT), *range(TOKENIZER.get_vocab_size())], size=40).tolist()
    assert "".join(use.stream_text(TOKENIZER, tokens)) == TOKENIZER.decode(tokens).rstrip("\ufffd")


def test_special_tokens_are_not_text_and_end_tokens_end_it() -> None:
    tokens = [0, *ids("the cat"), 2, *ids(" sat"), 1, *ids(" on")]
    assert "".join(use.stream_text(TOKENIZER, tokens)) == "the cat sat on"
    assert "".join(use.stream_text(TOKENIZER, tokens, end=[1, 999])) == "the cat sat"
    assert list(use.stream_text(TOKENIZER, [1, *tokens], end=[1])) == []
    assert list(use.stream_text(TOKENIZER, [])) == []


def test_tokens_that_the_tokenizer_does_not_know_are_no_text() -> None:
    assert "".join(use.stream_text(TOKENIZER, [*ids("the"), 339, 10**6, *ids(" cat")])) == "the cat"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ((), "the cat sat on the mat and"),
        (("sat",), "the cat "),
        (("t sat on t",), "the ca"),  # over the borders of several tokens
        (("x", "mat", "on"), "the cat sat "),  # the first of those that are there
        (("the cat",), ""),
        (("and ",), "the cat sat on the mat and"),  # it began, and did not come
        (("nd", "and"), "the cat sat on the mat "),  # both come with one token; what is before both is kept
        (("tt", "t s"), "the ca"),
    ],
)
def test_a_text_ends_before_what_stops_it(stop: tuple[str, ...], expected: str) -> None:
    pieces = list(use.stream_text(TOKENIZER, ids("the cat sat on the mat and"), stop=stop))
    assert "".join(pieces) == expected
    letters = (TOKENIZER.token_to_id(c if c != " " else "Ġ") for c in "the cat sat on the mat and")
    assert "".join(use.stream_text(TOKENIZER, letters, stop=stop)) == (
        expected if stop != ("nd", "and") else "the cat sat on the mat "
    )


@pytest.mark.parametrize("stop", ["bc", "c", "abbca", "b", "a"])
def test_no_piece_is_empty(stop: str) -> None:
    letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    letters.decoder = decoders.Fuse()
    pieces = list(use.stream_text(letters, [0, 1, 1, 2, 0], stop=[stop]))
    assert all(pieces)
    assert "".join(pieces) == "abbca".partition(stop)[0]


# ------------------------------------------------------------------------------------------------ conversations

MESSAGES = [
    {"role": "system", "content": "Be \x1b[1m<brief> & true."},
    {"role": "user", "content": "Ça va ? 🙂\n\n"},
    {"role": "assistant", "content": "Oui."},
    {"role": "user", "content": "{{ bos_token }} {% raw %}"},
]
TEMPLATES = [
    folders.TEMPLATE,
    "{{ bos_token }}{%- for m in messages -%}\n  [{{ m['role'] | upper }}] {{ m['content'] | trim }}\n{%- endfor %}",
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content"
    " %}{% continue %}{% endif %}{{ loop.index0 }}{{ m.content }}{{ eos_token }}{% endfor %}{{ ns.system }}",
    "{% if not tools is defined %}{% set tools = 1 %}{% endif %}{% if tools is none %}none{% endif %}"
    "{{ messages | tojson }}{{ documents }}{{ messages[0] | tojson(indent=2) }}",
    "{% for m in messages[1:] %}\n  {% if m.role == 'assistant' %} \n  {% generation %}\n {{ m.content }}\n"
    "  {%- endgeneration -%} \n {% break %}{% endif %}{% endfor %}",
    "{{ strftime_now('%Y') }}{{ dict(a=1).items() | list }}{{ messages | map(attribute='role') | join(',') }}",
    "{%- if messages[0]['role'] == 'system' %}\n    {%- set rest = messages[1:] %}\n{%- endif %}\n{{ rest|length }}\n",
]


@pytest.mark.peers
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("first", [0, 1])
def test_a_conversation_is_what_transformers_makes_of_it(llama: Any, template: str, first: int) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, bos_token="<s>", eos_token="</s>")
    published = replace(llama[1], chat_template=template)
    expected = theirs.apply_chat_template(
        MESSAGES[first:], chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert use.chat_prompt(published, MESSAGES[first:]) == expected


def test_a_conversation(llama: Any) -> None:
    assert use.chat_prompt(llama[1], [{"role": "user", "content": "Hi"}]) == "<|user|>Hi</s><|assistant|>"


def refusal(published: Published, template: str) -> str:
    with pytest.raises(WeightsError) as error:
        use.chat_prompt(replace(published, chat_template=template), MESSAGES)
    message = str(error.value)
    assert message.isprintable()
    start = f"{published.path}: the chat template fails ("
    assert message.startswith(start)
    return message.removeprefix(start)[:-1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only\n users \x1b[2J' ~ messages | length) }}", "only users U+001B[2J4"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ messages[0].content.nothing.more }}", "has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for i in range(10 ** 12) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(messages) }}", "unsafe"),
        ("{{ namespace(__class__=1) }}", "no name for a template: '__class__'"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "no name for a template: '_x'"),
        ("{{ messages | tojson(cls=dict) }}", "cls"),
    ],
)
def test_a_template_that_fails_or_reaches_out(llama: Any, template: str, message: str) -> None:
    found = refusal(llama[1], template)
    assert message in found


@pytest.mark.parametrize("what", ["raise_exception.__globals__", "strftime_now.__self__", "namespace.__closure__"])
def test_what_a_template_must_not_see_is_not_there(llama: Any, what: str) -> None:
    object_, name = what.split(".")
    template = f"a{{{{ {what} }}}}b{{{{ {object_} | attr('{name}') }}}}c"
    assert use.chat_prompt(replace(llama[1], chat_template=template), MESSAGES) == "abc"


def test_the_year_in_a_template_is_this_one(llama: Any) -> None:
    published = replace(llama[1], chat_template="{{ strftime_now('%Y') }}")
    before = datetime.datetime.now().year
    assert before <= int(use.chat_prompt(published, [])) <= datetime.datetime.now().year


def test_a_model_that_does_not_converse(llama: Any) -> None:
    with pytest.raises(WeightsError, match="no chat template: this model continues a text"):
        use.chat_prompt(replace(llama[1], chat_template=None), MESSAGES)


# ------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize("kind", ["llama", "gpt2", "llava"])
def test_what_is_written_is_what_the_model_generates(folder: Path, kind: str) -> None:
    model, published = opened(folder / kind)
    prompt = "the cat"
    tokens = [0, *ids(prompt)]
    expected = model.generate(mg.asarray([tokens]), 12, temperature=0, stop=[1])[0, len(tokens) :].tolist()
    text = TOKENIZER.decode(expected).rstrip("\ufffd")
    assert "".join(use.write(model, published, prompt, 12, temperature=0)) == text
    assert "".join(use.write(model, published, prompt, 0, temperature=0)) == ""


def test_the_seed_and_the_options_are_those_of_generate(llama: Any) -> None:
    model, published = llama

    def written(**options: Any) -> str:
        return "".join(use.write(model, published, "the cat", 20, **options))

    assert written(seed=1) == written(seed=1) != written(seed=2)
    assert written(temperature=0) == written(top_k=1, seed=5) == written(top_p=1e-9, seed=5)
    with pytest.raises(ValueError, match="expected 0 < top_p ≤ 1"):
        written(top_p=2.0)
    tokens = mg.asarray([ids("the cat")])
    own = model.generate(tokens, 20, temperature=0.0, stop=[1])[0, tokens.shape[1] :].tolist()
    assert written(add_special_tokens=False, temperature=0.0) == TOKENIZER.decode(own).rstrip("\ufffd")


def test_a_text_goes_on_beyond_the_context(llama: Any) -> None:
    model, published = llama
    assert model.context_length == 64
    text = "".join(use.write(model, published, "the cat sat " * 40, 30, seed=3))
    assert text


def test_end_tokens(llama: Any) -> None:
    published = llama[1]
    assert use.end_tokens(published) == [1]
    assert use.end_tokens(replace(published, generation={"eos_token_id": [1, 5]})) == [1, 5]
    assert use.end_tokens(replace(published, generation={}, config={"eos_token_id": 7})) == [7]
    assert use.end_tokens(replace(published, generation={}, config={})) == []


def test_texts_that_cannot_be_read(llama: Any) -> None:
    model, published = llama
    with pytest.raises(ValueError, match="expected a text of at least one token"):
        use.write(model, published, "", 5, add_special_tokens=False)
    with pytest.raises(ValueError, match="expected text in UTF-8"):
        use.write(model, published, "\udcff", 5)
    larger = folders.make_tokenizer()
    larger.add_tokens([f"<{i}>" for i in range(100)])
    with pytest.raises(WeightsError, match=r": its tokenizer has the token \d+, and the model 340 tokens"):
        use.write(model, replace(published, make_tokenizer=lambda: larger), "the <99>", 5)


# ------------------------------------------------------------------------------------------------ embeddings

TEXTS = ["the cat", "", "日本語 🙂", "the cat sat on the mat and " * 3, "x " * 200]


def test_one_text_where_a_list_is_expected_is_not_taken_for_its_characters(llama: Any, bert: Any) -> None:
    with pytest.raises(ValueError, match=r"^embed: expected a list of at least one text, got 'the cat'$"):
        use.embed(*bert, "the cat")
    for stop in ("the cat", ["cat", ""]):
        with pytest.raises(
            ValueError, match=r"^write: expected for stop a list of texts, none of them empty, got .*cat"
        ):
            use.write(*llama, "the", 3, stop=stop)


def test_a_length_below_zero(llama: Any) -> None:
    assert list(use.write(*llama, "the", 0)) == []
    with pytest.raises(ValueError, match=r"^write: expected a length of at least 0, got -1$"):
        use.write(*llama, "the", -1)


def test_a_batch_is_embedded_as_each_text_alone(bert: Any) -> None:
    model, published = bert
    together = use.embed(model, published, TEXTS).numpy()
    assert together.shape == (len(TEXTS), 16)
    assert_allclose(numpy.linalg.norm(together, axis=-1), 1, rtol=1e-6)
    for row, text in zip(together, TEXTS, strict=True):
        assert_allclose(use.embed(model, published, [text]).numpy()[0], row, rtol=0, atol=1e-5)


def test_a_text_that_is_too_long_keeps_the_token_that_ends_it(bert: Any) -> None:
    from tokenizers import processors

    model, published = bert
    tokenizer = folders.make_tokenizer()
    special = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    ended = replace(published, make_tokenizer=lambda: tokenizer)
    expected = [0, *ids("x " * 200)[:62], 1]
    assert_allclose(
        use.embed(model, ended, ["x " * 200]).numpy(), model.embed(mg.asarray([expected])).numpy(), rtol=1e-5, atol=1e-6
    )
    assert len(ended.tokenizer.encode("x " * 200).ids) == 402, "the tokenizer is as it was"


def test_a_model_of_another_kind_is_told_so(llama: Any, bert: Any) -> None:
    with pytest.raises(TypeError, match=r"^embed: expected a BERT, got a LLaMA$"):
        use.embed(*llama, ["the cat"])
    with pytest.raises(TypeError, match=r"^write: expected a CausalModel, got a BERT$"):
        use.write(*bert, "the", 3)
    with pytest.raises(TypeError, match=r"^transcribe: expected a Whisper, got a BERT$"):
        next(use.transcribe(*bert, mg.zeros(100)))


def test_texts_without_a_token_are_zeros(bert: Any) -> None:
    model, published = bert
    tokenizer = folders.make_tokenizer()
    tokenizer.post_processor = None
    bare = replace(published, make_tokenizer=lambda: tokenizer)
    assert_array_equal(use.embed(model, bare, ["", ""]).numpy(), numpy.zeros((2, 16), "float32"))
    with pytest.raises(ValueError, match="embed: expected a list of at least one text"):
        use.embed(model, published, [])


@pytest.mark.parametrize("mode", ["pooling_mode_cls_token", "pooling_mode_mean_tokens"])
def test_another_way_of_pooling_is_refused(bert: Any, tmp_path: Path, mode: str) -> None:
    """Sentence-Transformers says in a file of its own which vector stands for a text."""
    model, published = bert
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(f'{{"{mode}": true}}')
    moved = replace(published, path=tmp_path)
    if mode == "pooling_mode_mean_tokens":
        assert use.embed(model, moved, ["a"]).shape == (1, 16)
    else:
        with pytest.raises(WeightsError, match=r"1_Pooling.config.json: expected pooling_mode_mean_tokens"):
            use.embed(model, moved, ["a"])


# ------------------------------------------------------------------------------------------------ speech


def sound(n: int) -> numpy.ndarray:
    return numpy.random.default_rng(0).normal(size=n, scale=0.1).astype("float32")


@pytest.mark.parametrize("n", [1, 16_000])
def test_a_sound_is_heard_as_the_model_generates(whisper: Any, n: int) -> None:
    model, published = whisper
    (heard,) = use.transcribe(model, published, sound(n))
    features = mg.asarray(log_mel(sound(n)).numpy().tolist(), dtype="float32")[None, ...]
    written = model.generate(features, model.max_length - 1, [0, 4], 1, suppress=[7, 8], begin_suppress=[1])[
        0, :
    ].tolist()
    assert heard.text == TOKENIZER.decode(written).strip()
    tokens = written[:-1] if written[-1] == 1 else written
    assert heard.tokens == [TOKENIZER.decode([token]) for token in tokens]
    states = math.ceil(n / 320)
    with model.evaluating(), attention_weights(model) as weights:
        model(features, mg.asarray([[0, 4, *written[:-1]]]))
    one, other = (weights[f"decoder.{i}.cross_attention"][0].numpy()[0, h, 1:, :states] for i, h in ((0, 1), (1, 3)))
    assert_allclose(heard.weights, ((one + other) / 2)[: len(tokens)], rtol=0, atol=1e-5)
    assert all(0 <= word.start <= word.end <= 0.02 * states + 1e-9 for word in heard.words)
    assert all(word.text == word.text.strip() for word in heard.words)


def test_no_sound_is_nothing_heard(whisper: Any) -> None:
    assert list(use.transcribe(*whisper, sound(0))) == []


def test_a_sound_of_two_channels(whisper: Any) -> None:
    with pytest.raises(ValueError, match=r"^transcribe: expected samples of shape \(n,\), one channel, got \(9, 2\)$"):
        next(use.transcribe(*whisper, numpy.zeros((9, 2))))


def test_longer_sounds_are_heard_half_a_minute_at_a_time(whisper: Any) -> None:
    samples = sound(480_000 + 800)
    first, last = use.transcribe(*whisper, samples)
    (alone,) = use.transcribe(*whisper, samples[:480_000])
    (rest,) = use.transcribe(*whisper, samples[480_000:])
    assert (first.text, first.words, first.tokens) == (alone.text, alone.words, alone.tokens)
    assert (last.text, last.tokens) == (rest.text, rest.tokens)
    assert_allclose([word[1:] for word in last.words], numpy.add([word[1:] for word in rest.words], 30), rtol=1e-12)


def test_languages_and_heads_that_are_not_named(whisper: Any) -> None:
    model, published = whisper
    generation = {key: value for key, value in published.generation.items() if key != "alignment_heads"}
    generation |= {"is_multilingual": True, "lang_to_id": {"<|en|>": 2}, "task_to_id": {"transcribe": 3}}
    generation |= {"suppress_tokens": None, "begin_suppress_tokens": []}
    (heard,) = use.transcribe(model, replace(published, generation=generation), sound(3200))
    features = mg.asarray(log_mel(sound(3200)).numpy().tolist(), dtype="float32")[None, ...]
    written = model.generate(features, model.max_length - 3, [0, 2, 3, 4], 1)[0, :].tolist()
    assert heard.text == TOKENIZER.decode(written).strip()
    assert heard.weights.shape == (len(heard.tokens), 10)


@pytest.mark.parametrize(
    "change",
    [
        {"decoder_start_token_id": None},
        {"decoder_start_token_id": 340},
        {"no_timestamps_token_id": "4"},
        {"eos_token_id": None},
        {"eos_token_id": []},
        {"eos_token_id": ["</s>"]},
        {"suppress_tokens": [10**9]},
        {"suppress_tokens": 3},
        {"alignment_heads": [[2, 0]]},
        {"alignment_heads": [[0, 4]]},
        {"alignment_heads": [[-1, 0]]},
        {"alignment_heads": [[0]]},
        {"alignment_heads": "all"},
        {"is_multilingual": True},
    ],
)
def test_settings_with_which_nothing_can_be_heard(whisper: Any, change: dict[str, Any]) -> None:
    model, published = whisper
    broken = replace(published, generation=published.generation | change)
    with pytest.raises(WeightsError) as error:
        list(use.transcribe(model, broken, sound(10)))
    assert str(error.value).startswith(f"{published.path}: its settings are not those of a model that hears (")


# ------------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "llava"])
def test_weights_of_a_text(folder: Path, kind: str) -> None:
    model, published = opened(folder / kind)
    tokens, layers = use.weights_of(model, published, "the cat 日")
    assert "".join(tokens[: len(ids("the cat")) + 1]) == "<s>the cat"
    assert len(layers) == 2
    for weights in layers:
        assert weights.shape == (4, len(tokens), len(tokens))
        assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        above = numpy.triu(weights, 1)
        assert (above == 0).all() == (kind != "bert")


def test_weights_of_a_text_that_is_too_long_or_none(llama: Any) -> None:
    model, published = llama
    with pytest.raises(ValueError, match="longer than max_length=64"):
        use.weights_of(model, published, "x" * 100)
    bare = folders.make_tokenizer()
    bare.post_processor = None
    with pytest.raises(ValueError, match="expected a text of at least one token"):
        use.weights_of(model, replace(published, make_tokenizer=lambda: bare), "")


def test_byte_tokens_that_make_no_character_do_not_end_the_text() -> None:
    """As LLaMA 2's tokenizer has them: a line feed, half a character, and a word."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {"<0x0A>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581the": 3, "\u2581cat": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    replaced = decoders.Replace("\u2581", " ")
    tokenizer.decoder = decoders.Sequence([replaced, decoders.ByteFallback(), decoders.Fuse()])
    assert "".join(use.stream_text(tokenizer, [3, 1, 2, 4])) == " the\u00e9 cat"
    text = "".join(use.stream_text(tokenizer, [0, 1, 3, 4]))
    assert text.startswith("\n")
    assert text.endswith(" the cat")
