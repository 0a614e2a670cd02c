"""Published models in use: text in, and text, embeddings or a drawing out.

    write, chat_prompt      continue a text, or a conversation
    embed                   texts as vectors, whose products say how alike they are
    transcribe              speech as text, with the time of each word
    weights_of              where each token of a text looks

Each takes a model that `attention.models.load` made and the `attention.formats.Published` that it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy

import minigrad as mg
from minigrad import Tensor

from .audio import FRAMES, HOP, RATE, Word, log_mel, word_alignment
from .files import one_line
from .formats import Published, WeightsError
from .layers import attention_weights
from .models import BERT, Whisper
from .models.published import CausalModel

# ------------------------------------------------------------------------------------------------ text


def chat_prompt(published: Published, messages: Sequence[dict[str, str]]) -> str:
    """The text in which a chat model expects a conversation, with the beginning of its answer.

    ``messages`` have a "role" ("system", "user" or "assistant") and a "content". The text is made by the chat template
    that comes with the model, in a sandbox, as the template is code from a stranger. Raises WeightsError, one line,
    where there is none, or it fails.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if published.chat_template is None:
        raise WeightsError(f"{published.path}: no chat template: this model continues a text, it does not converse")

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    try:
        template = environment.from_string(published.chat_template)
        return template.render(messages=messages, add_generation_prompt=True, **published.special_tokens)
    except Exception as error:  # whatever the template does
        raise WeightsError(f"{published.path}: the chat template fails ({one_line(error)})") from None


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
    prompt, as its tokenizer says; a chat template has done that. Raises ValueError for a prompt without a token.
    """
    ids = published.tokenizer.encode(prompt, add_special_tokens=add_special_tokens).ids
    if not ids:
        raise ValueError("expected a prompt of at least one token")
    stream = model.stream(mg.asarray([ids], dtype="int64"), generator=mg.random.Generator(seed), **choice)
    new = (int(token[0, 0]) for token in islice(stream, length))
    return stream_text(published.tokenizer, new, end_tokens(published), stop)


def end_tokens(published: Published) -> list[int]:
    """The tokens that end a text, by the checkpoint's settings."""
    end = published.generation.get("eos_token_id", published.config.get("eos_token_id"))
    return [] if end is None else list(end) if isinstance(end, list) else [end]


def stream_text(
    tokenizer: Any, tokens: Iterable[int], end: Sequence[int] = (), stop: Sequence[str] = ()
) -> Iterator[str]:
    """The text of ``tokens``, piece by piece, up to a token in ``end`` or, without it, a text in ``stop``.

    A character that is made of several tokens comes when it is complete, and a text that may become one in ``stop``
    when it has not.
    """
    from tokenizers.decoders import DecodeStream

    decoder = DecodeStream(skip_special_tokens=True)
    held = ""
    for token in tokens:
        if token in end:
            break
        held += decoder.step(tokenizer, token) or ""
        found = [at for at in map(held.find, stop) if at >= 0]
        if found:
            yield held[: min(found)]
            return
        waits = max((n for text in stop for n in range(1, len(text)) if held.endswith(text[:n])), default=0)
        piece, held = held[: len(held) - waits], held[len(held) - waits :]
        if piece:
            yield piece
    if held:
        yield held


# ------------------------------------------------------------------------------------------------ embeddings


def embed(model: BERT, published: Published, texts: Sequence[str]) -> Tensor:
    """The embeddings of ``texts``, (n, d_model), each of length 1; the product of two is the cosine of their angle.

    A text that is longer than the model's context is cut. Raises ValueError for no text.
    """
    if not texts:
        raise ValueError("embed: expected at least one text")
    rows = [encoding.ids[: model.context_length] for encoding in published.tokenizer.encode_batch(list(texts))]
    longest = max(map(len, rows))
    ids = mg.asarray([row + [0] * (longest - len(row)) for row in rows], dtype="int64")
    mask = mg.asarray([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    with model.evaluating():
        return model.embed(ids, mask)


# ------------------------------------------------------------------------------------------------ speech


class Heard(NamedTuple):
    """What was said in a sound: the text, its words, and the weights that say where each token was heard."""

    text: str
    words: list[Word]
    tokens: list[str]
    weights: Any  # (len(tokens), states): the mean over the heads that follow the sound; 0.02 s for each state


def transcribe(model: Whisper, published: Published, samples: Any) -> Iterator[Heard]:
    """What is said in ``samples``, of shape (n,), 16 000 in a second: for every 30 seconds of it.

    Each stretch is read for itself, the likeliest token each time; a word on the border of two may be lost. English
    for a model that knows other languages too.
    """
    window = FRAMES * HOP
    for start in range(0, max(len(samples), 1), window):
        heard = _transcribe(model, published, samples[start : start + window])
        shift = start / RATE
        yield heard._replace(words=[Word(text, a + shift, b + shift) for text, a, b in heard.words])


def _transcribe(model: Whisper, published: Published, samples: Any) -> Heard:
    generation, tokenizer = published.generation, published.tokenizer
    prompt = [generation["decoder_start_token_id"]]
    if generation.get("is_multilingual"):
        prompt += [generation["lang_to_id"]["<|en|>"], generation["task_to_id"]["transcribe"]]
    prompt.append(generation["no_timestamps_token_id"])
    end = end_tokens(published)[0]
    features = log_mel(mg.asarray(samples), n_mels=model.convolution_1.weight.shape[1])[None, ...]
    written = model.generate(
        features,
        model.max_length - len(prompt) + 1,
        prompt,
        end,
        suppress=generation.get("suppress_tokens", ()),
        begin_suppress=generation.get("begin_suppress_tokens", ()),
    )
    tokens = written[0, :].tolist()
    states = -(-len(samples) // (2 * HOP))
    followers = generation.get("alignment_heads") or _upper_half(model)
    with model.evaluating(), attention_weights(model) as weights:
        model(features, mg.asarray([[*prompt, *tokens[:-1]]]))
    heads = [weights[f"decoder.{layer}.cross_attention"][0][0, head, len(prompt) - 1 :, :] for layer, head in followers]
    aligned = mg.stack(heads)[..., :states].numpy()
    ends = tokens[-1] == end
    words = word_alignment(aligned, tokens, tokenizer.decode) if states and tokens != [end] else []
    pieces = [tokenizer.decode([token]) for token in tokens[: -1 if ends else None]]
    return Heard(tokenizer.decode(tokens).strip(), words, pieces, numpy.mean(aligned, axis=0)[: len(pieces)])


def _upper_half(model: Whisper) -> list[tuple[int, int]]:
    """The heads to follow where the checkpoint names none: all of the upper half of the layers."""
    layers, heads = len(model.decoder), model.decoder[0].attention.num_heads
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


# ------------------------------------------------------------------------------------------------ attention


def weights_of(model: Any, published: Published, text: str) -> tuple[list[str], list[Any]]:
    """(tokens, weights): the pieces of ``text``, and for each layer where each looks, as (heads, T, T) arrays.

    For models that read one text, such as LLaMA, GPT and BERT.
    """
    encoding = published.tokenizer.encode(text)
    if not encoding.ids:
        raise ValueError("expected a text of at least one token")
    with model.evaluating(), attention_weights(model) as weights:
        model(mg.asarray([encoding.ids], dtype="int64"))
    pieces = [published.tokenizer.decode([i], skip_special_tokens=False) for i in encoding.ids]
    return pieces, [calls[0][0, ...].numpy() for calls in weights.values()]
