"""CTranslate2's format of Whisper: a folder with model.bin, config.json, a vocabulary and tokenizer.json.

model.bin is a list of variables, all numbers little-endian. A text is its length (two bytes), its bytes and a zero,
which the length counts:

    u32 version of the format (6)     text kind of model     u32 revision of the kind
    u32 how many variables; each:     text name     u8 axes     u32 for each axis     u8 type     u32 bytes     numbers
    u32 how many aliases; each:       text alias    text name of the variable that it stands for

The config.json beside it has little more than lists of tokens, so all sizes are those of the variables. The names are
CTranslate2's own, and the projections of queries, keys and values are one matrix. Whole-number types have a scale for
each row, or one for all, in a variable of its own: what is meant is number / scale.

Source: ``ctranslate2/specs/model_spec.py`` of https://github.com/OpenNMT/CTranslate2, which writes it. Other kinds of
model than Whisper are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy

from . import Published, Tensors, WeightsError, exists, open_regular, read_object, read_text, refusing
from .huggingface import map_file, tokenizer

VERSION, KIND, REVISION = 6, "WhisperSpec", 3
TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}  # 5 is bfloat16: the upper half of a float32
SCALED = (1, 2)  # the types of quantised numbers

# How the layers compute, as single numbers: whatever else is there would be another model. (3 stands for GELU.)
AS_EXPECTED = {
    "decoder/activation": 3,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}


class Variable(NamedTuple):
    """A variable of model.bin: its numbers, of ``shape`` and of one of `TYPES`, are made of bytes when asked for.

    >>> Variable("bias", (2,), type=2, part=numpy.asarray([1, 0, 255, 255], "u1")).numbers()
    array([ 1, -1], dtype=int16)
    """

    name: str
    shape: tuple[int, ...]
    type: int
    part: Any  # its bytes in the file

    def numbers(self) -> Any:
        return self.part.view(TYPES[self.type]).reshape(self.shape)


def read(path: Path) -> Published:
    """The checkpoint in the folder ``path``. WeightsError, one line, for what is missing, damaged or no Whisper.

    ``generation`` names the special tokens, by the vocabulary, and the tokens that are never to be said. There is no
    ``proj_out.weight`` where it is the embedding, as usual.

    >>> read(Path("/no/such/model"))
    Traceback (most recent call last):
    attention.formats.WeightsError: /no/such/model: no model.bin, so no model in CTranslate2's format
    """
    for name in ("model.bin", "config.json"):
        if not exists(path / name):
            raise WeightsError(f"{path}: no {name}, so no model in CTranslate2's format")
    sizes, makers = _whisper(path / "model.bin", _File(path / "model.bin").variables)
    generation = _generation(path, sizes)
    shared = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "suppress_tokens", "begin_suppress_tokens")
    return Published(
        path=path,
        format="CTranslate2",
        config={
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "activation_function": "gelu",
            "scale_embedding": False,
            "tie_word_embeddings": "proj_out.weight" not in makers,
            **sizes,
            **{key: generation[key] for key in (*shared, "alignment_heads")},
        },
        tensors=Tensors(makers),
        make_tokenizer=partial(tokenizer, path),
        generation=generation,
    )


# ------------------------------------------------------------------------------------------------ model.bin


class _File:
    """The ``variables`` of the model.bin at ``path`` by name, an alias being a second name of one."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        with open_regular(path) as file:
            if file.seek(0, 2) == 0:
                self.wrong("empty")
            self.data = map_file(path, file)
        if (version := self.integer(4)) != VERSION:
            raise WeightsError(f"{path}: version {version} of CTranslate2's format, or another; we read {VERSION}")
        kind, revision = self.text(), self.integer(4)
        if (kind, revision) != (KIND, REVISION):
            raise WeightsError(f"{path}: expected revision {REVISION} of {KIND}, found {revision} of {kind!r:.80}")
        self.variables: dict[str, Variable] = {}
        for name in self.names(smallest=9):
            shape = tuple(self.integer(4) for _ in range(self.integer(1)))
            kind_of_number, size = self.integer(1), self.integer(4)
            if kind_of_number not in TYPES:
                self.wrong(f"{name!r:.80} is of type {kind_of_number}; known are 0 to {max(TYPES)}")
            if size == 0 or len(shape) > 3 or size != math.prod(shape) * numpy.dtype(TYPES[kind_of_number]).itemsize:
                self.wrong(f"{name!r:.80} of shape {shape!s:.80} and type {kind_of_number} in {size} bytes")
            self.variables[name] = Variable(name, shape, kind_of_number, self.take(size))
        for alias in self.names(smallest=6):
            target = self.text()
            if target not in self.variables:
                self.wrong(f"{alias!r:.80} stands for {target!r:.80}, which isn't there")
            self.variables[alias] = self.variables[target]
        if self.at != len(self.data):
            self.wrong(f"{len(self.data) - self.at} bytes too many")

    def wrong(self, what: str) -> NoReturn:
        raise WeightsError(f"{self.path}: damaged ({what})")

    def take(self, size: int) -> Any:
        """The next ``size`` bytes."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            self.wrong(f"cut short: {size} bytes wanted at {start} of {len(self.data)}")
        return self.data[start : self.at]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size).tobytes(), "little")

    def text(self) -> str:
        data = self.take(self.integer(2)).tobytes()
        if not data.endswith(b"\0"):
            self.wrong("a text that does not end with a zero")
        with refusing(self.path):
            return str(data[:-1], "utf-8")

    def names(self, smallest: int) -> Iterator[str]:
        """The name that each entry of a list begins with; an entry takes at least ``smallest`` bytes."""
        count = self.integer(4)
        if count * smallest > len(self.data) - self.at:
            self.wrong(f"cut short: {count} entries wanted at {self.at} of {len(self.data)}")
        for _ in range(count):
            name = self.text()
            if name in self.variables:
                self.wrong(f"{name!r:.80} twice")
            yield name


# ------------------------------------------------------------------------------------------------ Whisper


def _whisper(path: Path, variables: dict[str, Variable]) -> tuple[dict[str, int], dict[str, Any]]:
    """(sizes, makers) of the variables in ``path``: the numbers of config.json, and what `Tensors` takes."""
    makers: dict[str, Any] = {}
    used: set[str] = set()

    def find(name: str, axes: int) -> Variable:
        if name not in variables:
            raise WeightsError(f"{path}: no {name}")
        if len(variables[name].shape) != axes:
            raise WeightsError(f"{path}: expected {axes} axes in {name}, found shape {variables[name].shape}")
        return variables[name]

    def add(name: str, variable: str, shape: tuple[int, ...], part: int = 0, parts: int = 1) -> None:
        """The tensor ``name`` of ``shape`` is one of several parts of ``variable``, below each other."""
        found = find(variable, len(shape))
        whole = (parts * shape[0], *shape[1:])
        if found.shape != whole:
            raise WeightsError(f"{path}: expected {variable} to be of shape {whole}, found {found.shape}")
        scale = _scale(path, found, variables) if found.type in SCALED else None
        if found.type == 3 or (found.type in SCALED and scale is None):
            raise WeightsError(f"{path}: {variable} has whole numbers ({TYPES[found.type]}) and no scale")
        rows = slice(part * shape[0], (part + 1) * shape[0])
        makers[name] = shape, partial(_array, found, scale, rows)
        used.update((found.name, found.name + "_scale"))

    def linear(name: str, variable: str, out: int, into: int, part: int = 0, parts: int = 1, bias: bool = True) -> None:
        add(f"{name}.weight", f"{variable}/weight", (out, into), part, parts)
        if bias:
            add(f"{name}.bias", f"{variable}/bias", (out,), part, parts)

    def norm(name: str, variable: str) -> None:
        add(f"{name}.weight", f"{variable}/gamma", (d,))
        add(f"{name}.bias", f"{variable}/beta", (d,))

    def number(name: str) -> int:
        found = find(name, 0)
        if found.type not in (1, 2, 3):
            raise WeightsError(f"{path}: {name} is no whole number")
        return int(found.numbers())

    for name, expected in AS_EXPECTED.items():
        if name in variables and (given := number(name)) != expected:
            raise WeightsError(f"{path}: {name} is {given}, which is {expected} in Whisper")
    vocabulary, d = find("decoder/embeddings/weight", 2).shape
    mels = find("encoder/conv1/weight", 3).shape[1]
    sizes = {"d_model": d, "vocab_size": vocabulary, "num_mel_bins": mels}

    for side, positions in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        table = f"{side}/position_encodings/encodings"
        sizes[positions] = find(table, 2).shape[0]
        add(f"model.{side}.embed_positions.weight", table, (sizes[positions], d))
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        heads = sizes[f"{side}_attention_heads"] = number(f"{side}/num_heads")
        if heads < 1 or d % heads:
            raise WeightsError(f"{path}: {side}/num_heads is {heads}, which does not divide the width {d}")
        hidden = sizes[f"{side}_ffn_dim"] = find(f"{side}/layer_0/ffn/linear_0/weight", 2).shape[0]
        layer = 0
        while f"{side}/layer_{layer}/ffn/linear_0/weight" in variables:
            ours, theirs = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            # A bias of the keys would add q·b to all scores of a query, which softmax takes out again. Whisper has
            # none; CTranslate2 writes zeros.
            for i, p in enumerate("qkv"):
                linear(f"{ours}.self_attn.{p}_proj", f"{theirs}/self_attention/linear_0", d, d, i, 3, bias=p != "k")
            linear(f"{ours}.self_attn.out_proj", f"{theirs}/self_attention/linear_1", d, d)
            norm(f"{ours}.self_attn_layer_norm", f"{theirs}/self_attention/layer_norm")
            if side == "decoder":
                linear(f"{ours}.encoder_attn.q_proj", f"{theirs}/attention/linear_0", d, d)
                linear(f"{ours}.encoder_attn.k_proj", f"{theirs}/attention/linear_1", d, d, 0, 2, bias=False)
                linear(f"{ours}.encoder_attn.v_proj", f"{theirs}/attention/linear_1", d, d, 1, 2)
                linear(f"{ours}.encoder_attn.out_proj", f"{theirs}/attention/linear_2", d, d)
                norm(f"{ours}.encoder_attn_layer_norm", f"{theirs}/attention/layer_norm")
            linear(f"{ours}.fc1", f"{theirs}/ffn/linear_0", hidden, d)
            linear(f"{ours}.fc2", f"{theirs}/ffn/linear_1", d, hidden)
            norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
            layer += 1
        sizes[f"{side}_layers"] = layer

    for i, channels in ((1, mels), (2, d)):
        add(f"model.encoder.conv{i}.weight", f"encoder/conv{i}/weight", (d, channels, 3))
        add(f"model.encoder.conv{i}.bias", f"encoder/conv{i}/bias", (d,))
    add("model.decoder.embed_tokens.weight", "decoder/embeddings/weight", (vocabulary, d))
    if find("decoder/projection/weight", 2) is not find("decoder/embeddings/weight", 2):
        add("proj_out.weight", "decoder/projection/weight", (vocabulary, d))

    for one in variables.values():
        if one.shape and one.name not in used:
            raise WeightsError(f"{path}: {one.name!r:.80} is no variable of Whisper")
    return sizes, makers


def _scale(path: Path, variable: Variable, variables: dict[str, Variable]) -> Any:
    """The scale of each row of a quantised variable, or of all; None where it has none."""
    found = variables.get(variable.name + "_scale")
    if found is None:
        return None
    if found.type != 0 or found.shape not in ((), variable.shape[:1]):
        raise WeightsError(f"{path}: expected {found.name} to be float32, one number for each row, or one for all")
    scale = found.numbers()
    if not ((scale > 1e-30) & (scale < math.inf)).all():  # smaller, and float32 would overflow
        raise WeightsError(f"{path}: damaged ({found.name} has numbers that are no scale)")
    return numpy.broadcast_to(scale, variable.shape[:1])


def _array(variable: Variable, scale: Any, rows: slice) -> Any:
    numbers = variable.numbers()[rows]
    if scale is not None:
        return numbers.astype(numpy.float32) / scale[rows].reshape(-1, *[1] * (numbers.ndim - 1))
    if variable.type == 5:
        return numpy.left_shift(numbers, 16, dtype="<u4").view("<f4")
    if variable.type == 4:
        return numbers.astype(numpy.float32)
    return numbers if numbers.flags.aligned else numbers.copy()  # names of any length lie between the numbers


# ------------------------------------------------------------------------------------------------ tokens


def _generation(path: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """What Hugging Face's generation_config.json has, from config.json and the vocabulary."""
    config, file = read_object(path / "config.json"), path / "config.json"
    vocabulary = _vocabulary(path, sizes["vocab_size"])
    ids = {token: i for i, token in enumerate(vocabulary)}

    def special(token: str) -> int:
        if token not in ids:
            raise WeightsError(f"{path}: no {token} in the vocabulary")
        return ids[token]

    def tokens(key: str) -> list[int]:
        found = config.get(key) or []
        if not isinstance(found, list) or not all(_below(i, len(vocabulary)) for i in found):
            raise WeightsError(f"{file}: expected {key} to be tokens, whole numbers from 0 to {len(vocabulary) - 1}")
        return found

    layers, heads = sizes["decoder_layers"], sizes["decoder_attention_heads"]
    aligned = config.get("alignment_heads") or []
    if not isinstance(aligned, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and _below(pair[0], layers) and _below(pair[1], heads)
        for pair in aligned
    ):
        raise WeightsError(f"{file}: expected alignment_heads to be [layer, head]s of {layers} layers of {heads} heads")
    end = special("<|endoftext|>")
    generation = {
        "decoder_start_token_id": special("<|startoftranscript|>"),
        "eos_token_id": end,
        "pad_token_id": end,
        "no_timestamps_token_id": special("<|notimestamps|>"),
        "suppress_tokens": tokens("suppress_ids"),
        "begin_suppress_tokens": tokens("suppress_ids_begin"),
        "alignment_heads": aligned,
        "max_length": sizes["max_target_positions"],
        "is_multilingual": sizes["vocab_size"] >= 51_865,  # one more than Whisper's English vocabulary
    }
    if generation["is_multilingual"]:
        generation["lang_to_id"] = {vocabulary[i]: i for i in tokens("lang_ids")}
        generation["task_to_id"] = {task: special(f"<|{task}|>") for task in ("transcribe", "translate")}
    return generation


def _below(x: Any, end: int) -> bool:
    return type(x) is int and 0 <= x < end


def _vocabulary(path: Path, size: int) -> list[str]:
    """The ``size`` tokens of the vocabulary: a list in JSON, or as older versions write it, one in a line."""
    if exists(file := path / "vocabulary.json"):
        text = read_text(file)
        with refusing(file, "no JSON"):
            found = json.loads(text)
    elif exists(file := path / "vocabulary.txt"):
        found = read_text(file).removesuffix("\n").split("\n")
    else:
        raise WeightsError(f"{path}: no vocabulary.json or vocabulary.txt")
    if not isinstance(found, list) or len(found) != size or not all(isinstance(token, str) for token in found):
        raise WeightsError(f"{file}: expected the {size} tokens that the model has")
    return found
