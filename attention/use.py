"""Published models in use: text in, and text, embeddings or a drawing out.

    write, chat_prompt      continue a text, or a conversation
    embed                   texts as vectors, whose products say how alike they are
    transcribe              speech as text, with the time of each word
    weights_of              where each token of a text looks

Each takes a model that `attention.models.load` made and the `attention.formats.Published` that it was made of. (In the
examples these are tiny, so that nothing has to be there: a tokenizer of three letters, and random parameters.)

Sources: https://huggingface.co/docs/transformers/chat_templating for conversations, and the papers in the files of
`attention.models` and in `attention.audio` for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import device_of, namespace_of

from .audio import FRAMES, HOP, RATE, Word, log_mel, word_alignment
from .formats import Published, WeightsError, exists, read_object, refusing
from .layers import attention_weights
from .models import BERT, Whisper
from .models.published import CausalModel

# ------------------------------------------------------------------------------------------------ text


def chat_prompt(published: Published, messages: Sequence[dict[str, str]]) -> str:
    """The text in which a chat model expects a conversation, with the beginning of its answer.

    ``messages`` have a "role" ("system", "user" or "assistant") and a "content". The text is made by the chat template
    that comes with the model, with what `transformers` offers to it. A template is code from a stranger: it runs in a
    sandbox, where it can reach nothing but what it is given. It can still take its time, and memory. Raises
    WeightsError, one line, where there is none, or it fails.

    >>> from pathlib import Path
    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    >>> published = Published(Path("tiny"), "GGUF", {}, {}, make_tokenizer=lambda: None, chat_template=template)
    >>> chat_prompt(published, [{"role": "user", "content": "Hello!"}])
    '<user>Hello!<assistant>'
    """
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    if published.chat_template is None:
        raise WeightsError(f"{published.path}: no chat template: this model continues a text, it does not converse")

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    class Names(Namespace):
        """What a template may write to, but for the names that mean something to Python."""

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise SecurityError(f"no name for a template: {name!r:.80}")
            super().__setitem__(name, value)

    def namespace(*names: Any, **named: Any) -> Names:
        made = Names()
        for name, value in dict(*names, **named).items():
            made[name] = value
        return made

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    loops = "jinja2.ext.loopcontrols"  # break and continue
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loops])
    environment.globals |= {
        "namespace": namespace,
        "raise_exception": raise_exception,
        "strftime_now": datetime.now().strftime,
    }
    environment.filters["tojson"] = to_json  # Jinja's own is for HTML
    # Where an answer begins and ends says nothing here; a comment takes away the same spaces as the tag.
    template = re.sub(r"{%(-?)\s*(?:end)?generation\s*(-?)%}", r"{#\1 \2#}", published.chat_template)
    given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
    with refusing(published.path, "the chat template fails"):
        return environment.from_string(template).render(published.special_tokens | given)


def write(
    model: CausalModel,
    published: Published,
    prompt: str,
    length: int,
    *,
    stop: Sequence[str] = (),
    seed: int = 0,
    add_special_tokens: bool = True,
    **choice: Any,
) -> Iterator[str]:
    """What the model writes after ``prompt``, as it comes: at most ``length`` tokens.

    It ends before a token that ends texts, or a text in ``stop``. ``choice`` are ``temperature``, ``top_k`` and
    ``top_p`` of `CausalModel.stream`. With ``add_special_tokens`` the tokens that begin a text are put before the
    prompt, as its tokenizer says; a chat template has done that. Raises ValueError for a prompt without a token, a
    negative length, and a ``stop`` that is no list of texts; TypeError for a model that continues no text.

    >>> from pathlib import Path
    >>> from tokenizers import Tokenizer, models
    >>> letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    >>> published = Published(Path("tiny"), "Hugging Face", {}, {}, make_tokenizer=lambda: letters)
    >>> from attention.models import GPT
    >>> pieces = write(GPT(3, d_model=8, num_heads=2, num_layers=1), published, "abba", length=5)
    >>> len(list(pieces))
    5
    """
    _expect_model("write", model, CausalModel)
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"write: expected for stop a list of texts, none of them empty, got {stop!r}")
    if length < 0:
        raise ValueError(f"write: expected a length of at least 0, got {length}")
    ids = _tokens(model, published, prompt, add_special_tokens)
    stream = model.stream(mg.asarray([ids], dtype="int64"), generator=mg.random.Generator(seed), **choice)
    new = (int(token[0, 0]) for token in islice(stream, length))
    return stream_text(published.tokenizer, new, end_tokens(published), stop)


def _tokens(model: Any, published: Published, text: str, add_special_tokens: bool = True) -> list[int]:
    """``text`` as the model reads it: at least one token, and none that it does not know."""
    _expect_text(text)
    with refusing(published.path, "its tokenizer fails"):
        ids: list[int] = published.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    if not ids:
        raise ValueError("expected a text of at least one token")
    _expect_known(model, published, max(ids))
    return ids


def _expect_model(name: str, model: Any, kind: type[Any]) -> None:
    if not isinstance(model, kind):
        raise TypeError(f"{name}: expected a {kind.__name__}, got a {type(model).__name__}")


def _expect_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # from a command line or a pipe
        raise ValueError("expected text in UTF-8") from None


def _expect_known(model: Any, published: Published, largest: int) -> None:
    more = getattr(model, "more_tokens", None)
    count = getattr(model, "text", model).tokens.weight.shape[0] + (0 if more is None else more.weight.shape[0])
    if largest >= count:
        raise WeightsError(f"{published.path}: its tokenizer has the token {largest}, and the model {count} tokens")


INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what tokens that end within a character are decoded to


def end_tokens(published: Published) -> list[int]:
    """The tokens that end a text, by the checkpoint's settings.

    >>> from pathlib import Path
    >>> end_tokens(Published(Path("tiny"), "GGUF", {"eos_token_id": 2}, {}, make_tokenizer=lambda: None))
    [2]
    """
    end = published.generation.get("eos_token_id")
    end = published.config.get("eos_token_id") if end is None else end
    return [] if end is None else list(end) if isinstance(end, list) else [end]


def stream_text(
    tokenizer: Any, tokens: Iterable[int], end: Sequence[int] = (), stop: Sequence[str] = ()
) -> Iterator[str]:
    """The text of ``tokens``, piece by piece, up to a token in ``end`` or, without it, a text in ``stop``.

    A character that is made of several tokens comes when it is complete, and a text that may become one in ``stop``
    when it has not. A character that is not complete in the end never comes.

    >>> from tokenizers import Tokenizer, decoders, models
    >>> letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    >>> letters.decoder = decoders.Fuse()
    >>> list(stream_text(letters, [0, 1, 1, 2, 0], end=[2]))
    ['a', 'b', 'b']
    >>> "".join(stream_text(letters, [0, 1, 1, 2, 0], stop=["bc"]))
    'ab'
    """
    held = ""
    # The text of a token depends on those before it: it is what the text of the last ones becomes longer by.
    last: list[int] = []
    late: list[int] = []  # tokens of which nothing has come yet
    for token in tokens:
        if token in end:
            break
        late.append(token)
        before, after = tokenizer.decode(last), tokenizer.decode(last + late)
        if len(after) > len(before) and not after.endswith(INCOMPLETE):
            held += after[len(before) :]
            last, late = late, []
        found = [at for at in map(held.find, stop) if at >= 0]
        if found:
            if min(found):
                yield held[: min(found)]
            return
        waits = max((n for text in stop for n in range(1, len(text)) if held.endswith(text[:n])), default=0)
        piece, held = held[: len(held) - waits], held[len(held) - waits :]
        if piece:
            yield piece
    held += tokenizer.decode(last + late)[len(tokenizer.decode(last)) :].rstrip(INCOMPLETE)
    if held:
        yield held


# ------------------------------------------------------------------------------------------------ embeddings


def embed(model: BERT, published: Published, texts: Sequence[str]) -> Tensor:
    """The embeddings of ``texts``, (n, d_model), each of length 1; the product of two is the cosine of their angle.

    A text that is longer than the model's context is cut, before the token that ends it. Raises ValueError for no
    text, and for one that is not in a list; TypeError for another model.

    >>> from pathlib import Path
    >>> from tokenizers import Tokenizer, models
    >>> letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    >>> published = Published(Path("tiny"), "Hugging Face", {}, {}, make_tokenizer=lambda: letters)
    >>> x = embed(BERT(3, d_model=8, num_heads=2, num_layers=1, d_ff=16), published, ["abba", "c", "abba"])
    >>> x.shape, round(float(x[0, :] @ x[2, :]), 4)
    ((3, 8), 1.0)
    """
    _expect_model("embed", model, BERT)
    if not texts or isinstance(texts, str):
        raise ValueError(f"embed: expected a list of at least one text, got {texts!r:.80}")
    for text in texts:
        _expect_text(text)
    pooling = published.path / "1_Pooling" / "config.json"  # as Sentence-Transformers saves it
    if exists(pooling) and not read_object(pooling).get("pooling_mode_mean_tokens"):
        raise WeightsError(f"{pooling}: expected pooling_mode_mean_tokens, as we know no other way to pool")
    tokenizer = published.tokenizer
    with refusing(published.path, "its tokenizer fails"):
        tokenizer.enable_truncation(model.context_length)
        try:
            rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        finally:
            tokenizer.no_truncation()
    longest = max(1, *map(len, rows))
    _expect_known(model, published, max(map(max, filter(None, rows)), default=0))
    ids = mg.asarray([row + [0] * (longest - len(row)) for row in rows], dtype="int64")
    mask = mg.asarray([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    with model.evaluating():
        return model.embed(ids, mask)


# ------------------------------------------------------------------------------------------------ speech


class Heard(NamedTuple):
    """What was said in a sound: the text, its words, and the weights that say where each token was heard.

    >>> heard = Heard("My name", [Word("My", 0.0, 0.2), Word("name", 0.2, 0.6)], [" My", " name"], mg.ones((2, 30)))
    >>> [word.text for word in heard.words if word.start >= 0.1]
    ['name']
    """

    text: str
    words: list[Word]
    tokens: list[str]
    weights: Any  # (len(tokens), states): the mean over the heads that follow the sound; 0.02 s for each state


def transcribe(model: Whisper, published: Published, samples: Any) -> Iterator[Heard]:
    """What is said in ``samples``, of shape (n,), 16 000 in a second: for every 30 seconds of it.

    Each stretch is read for itself, the likeliest token each time; a word on the border of two may be lost. English
    for a model that knows other languages too. Raises ValueError for samples of another shape, TypeError for another
    model, and WeightsError, one line, where the checkpoint does not say how its model begins and ends a text.

    >>> from pathlib import Path
    >>> from tokenizers import Tokenizer, models
    >>> letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    >>> settings = {"decoder_start_token_id": 0, "no_timestamps_token_id": 1, "eos_token_id": 2}
    >>> published = Published(Path("tiny"), "Hugging Face", settings, {}, make_tokenizer=lambda: letters)
    >>> model = Whisper(3, d_model=4, num_heads=1, num_layers=1, max_length=4)
    >>> [heard] = transcribe(model, published, mg.zeros(16_000))  # a second of silence
    >>> len(heard.tokens) == heard.weights.shape[0], heard.weights.shape[1]
    (True, 50)
    """
    _expect_model("transcribe", model, Whisper)
    samples = mg.asarray(samples)
    if samples.ndim != 1:
        raise ValueError(f"transcribe: expected samples of shape (n,), one channel, got {samples.shape}")
    window, settings = FRAMES * HOP, _speech_settings(model, published)
    for start in range(0, len(samples), window):
        heard = _transcribe(model, published.tokenizer, samples[start : start + window], settings)
        shift = start / RATE
        yield heard._replace(words=[Word(text, a + shift, b + shift) for text, a, b in heard.words])


class _Speech(NamedTuple):
    """What a checkpoint's settings say about writing down what is said."""

    prompt: list[int]
    end: int
    suppress: list[int]
    begin_suppress: list[int]
    followers: list[tuple[int, int]]  # the layers and heads of the decoder that follow the sound


def _speech_settings(model: Whisper, published: Published) -> _Speech:
    settings = published.config | published.generation
    with refusing(published.path, "its settings are not those of a model that hears"):
        prompt = [settings["decoder_start_token_id"]]
        if settings.get("is_multilingual"):
            prompt += [settings["lang_to_id"]["<|en|>"], settings["task_to_id"]["transcribe"]]
        prompt.append(settings["no_timestamps_token_id"])
        ends = end_tokens(published)
        suppress, begin_suppress = (settings.get(name) or [] for name in ("suppress_tokens", "begin_suppress_tokens"))
        for token in (*prompt, ends[0], *suppress, *begin_suppress):
            if not isinstance(token, int) or token >= model.tokens.weight.shape[0]:
                raise ValueError(f"no token {token!r}")
        followers = settings.get("alignment_heads") or _upper_half(model)
        for layer, head in followers:
            if not (0 <= layer < len(model.decoder) and 0 <= head < model.decoder[layer].attention.num_heads):
                raise ValueError(f"no head {head} in layer {layer}")
        return _Speech(prompt, ends[0], suppress, begin_suppress, followers)


def _transcribe(model: Whisper, tokenizer: Any, samples: Any, settings: _Speech) -> Heard:
    prompt, end, suppress, begin_suppress, followers = settings
    weight = model.convolution_1.weight
    heard = log_mel(mg.asarray(samples).numpy(), n_mels=weight.shape[1]).numpy()[None, ...]
    features = mg.asarray(namespace_of(weight.data).asarray(heard, dtype=weight.dtype, device=device_of(weight.data)))
    longest = model.max_length - len(prompt) + 1
    written = model.generate(features, longest, prompt, end, suppress=suppress, begin_suppress=begin_suppress)
    tokens = written[0, :].tolist()
    states = -(-len(samples) // (2 * HOP))
    with model.evaluating():
        memory = model.encode(features)
        with attention_weights(model) as weights:  # of the decoder alone: the encoder's are 1500 × 1500
            model.decode(mg.asarray([[*prompt, *tokens[:-1]]]), memory)
    heads = [weights[f"decoder.{layer}.cross_attention"][0][0, head, len(prompt) - 1 :, :] for layer, head in followers]
    aligned = mg.stack(heads)[..., :states].numpy()
    words = word_alignment(aligned, tokens, tokenizer.decode) if tokens != [end] else []
    pieces = [tokenizer.decode([token]) for token in tokens[: -1 if tokens[-1] == end else None]]
    return Heard(tokenizer.decode(tokens).strip(), words, pieces, aligned.mean(axis=0)[: len(pieces)])


def _upper_half(model: Whisper) -> list[tuple[int, int]]:
    """The heads to follow where the checkpoint names none: all of the upper half of the layers."""
    layers, heads = len(model.decoder), model.decoder[0].attention.num_heads
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


# ------------------------------------------------------------------------------------------------ attention


def weights_of(model: Any, published: Published, text: str) -> tuple[list[str], list[Any]]:
    """(tokens, weights): the pieces of ``text``, and for each layer where each looks, as (heads, T, T) arrays.

    For models that read one text, such as LLaMA, GPT and BERT.

    >>> from pathlib import Path
    >>> from tokenizers import Tokenizer, models
    >>> letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    >>> published = Published(Path("tiny"), "Hugging Face", {}, {}, make_tokenizer=lambda: letters)
    >>> tokens, weights = weights_of(BERT(3, d_model=8, num_heads=2, num_layers=1, d_ff=16), published, "abba")
    >>> tokens, [w.shape for w in weights]
    (['a', 'b', 'b', 'a'], [(2, 4, 4)])
    """
    ids = _tokens(model, published, text)
    with model.evaluating(), attention_weights(model) as weights:
        model(mg.asarray([ids], dtype="int64"))
    pieces = [published.tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    return pieces, [calls[0][0, ...].numpy() for calls in weights.values() if calls]
