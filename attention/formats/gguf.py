"""GGUF, llama.cpp's format: one file with metadata, a tokenizer and tensors, most of them quantised.

The header is read here and not by the `gguf` package's reader: that one believes every length (an array that claims 2⁶⁰
numbers keeps it busy for ever), and makes a NumPy array of each token, which takes it 4.5 s for a file of 98 MB that is
read in 0.2 s below. What is hard, the two dozen ways to quantise, is the package's.

Sources: the format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; names and the order of rows,
https://github.com/ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and the `permute` of its converter.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from . import Published, Tensors, WeightsError, open_regular, refusing
from .huggingface import map_file

# For each type of metadata value that has a fixed size, its number in the file: how `struct` and NumPy call it.
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

# llama.cpp's names in an architecture that Hugging Face calls Llama.
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_A_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

BLOCKS_AT_ONCE = 4096  # of 32 numbers: a part's temporary arrays stay in the cache. Twice as fast as 16 rows at once


def read(path: Path) -> Published:
    """The checkpoint in the .gguf file at ``path``, of an architecture that llama.cpp calls "llama".

    Raises WeightsError, one line, for a file that is damaged, or that holds what we cannot read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    ...     read(Path(folder, "a.gguf"))
    Traceback (most recent call last):
    attention.formats.WeightsError: ...a.gguf: no 'general.architecture'
    """
    with open_regular(path) as file:
        data = map_file(path, file)
    header = Header(path, data)
    config = _config(header)
    return Published(
        path=path,
        format="GGUF",
        config=config,
        tensors=Tensors(_tensors(header, config)),
        make_tokenizer=partial(_tokenizer, header),
        generation={key: config[key] for key in TOKEN_IDS.values() if key in config},
        chat_template=header.get("tokenizer.chat_template", str, None),
        special_tokens=_special_tokens(header),
    )


# ------------------------------------------------------------------------------------------------ header


class Header:
    """What a GGUF file says before its numbers: ``metadata`` by key, and ``tensors``: (shape, type, bytes) by name.

    Every length is held against what is left of the file before anything is made of it. Shapes are in NumPy's order.

    >>> def text(letters):
    ...     return struct.pack("<Q", len(letters)) + letters
    >>> start = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)  # version 3, no tensors, one key
    >>> Header(Path("a.gguf"), start + text(b"llama.block_count") + struct.pack("<II", 4, 30)).metadata
    {'llama.block_count': 30}
    """

    def __init__(self, path: Path, data: Any) -> None:
        self.path, self._data, self._at = path, memoryview(data), 0
        with refusing(path):
            magic, version = self._take("<4sI")
            if magic != b"GGUF" or version not in (2, 3):
                order = ", or of the other byte order" if version & 0xFFFF == 0 else ""
                raise WeightsError(f"{path}: version {version} of GGUF{order}; we read 2 and 3")
            n_tensors, n_keys = self._take("<QQ")
            self.metadata: dict[str, Any] = {}
            for _ in range(n_keys):
                key = self._string()
                if key in self.metadata:
                    raise WeightsError(f"{path}: the key {key!r:.80} twice")
                self.metadata[key] = self._value(*self._take("<I"))
            self.tensors = self._tensors(n_tensors, data)

    def _take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            raise WeightsError(
                f"{self.path}: damaged (of {len(self._data):,} bytes, and says that {size:,} more follow)"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def _string(self) -> str:
        return str(self._bytes(*self._take("<Q")), "utf-8")

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._take(NUMBERS[kind])[0]
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise WeightsError(f"{self.path}: damaged (a metadata value of type {kind})")
        kind, count = self._take("<IQ")
        if kind in NUMBERS:
            return numpy.frombuffer(self._bytes(count * struct.calcsize(NUMBERS[kind])), NUMBERS[kind])
        if kind != STRING:  # the format allows arrays of arrays, but nobody writes them
            raise WeightsError(f"{self.path}: an array of values of type {kind}; we read numbers and strings")
        return [self._string() for _ in range(count)]

    def _tensors(self, count: int, data: Any) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
        facts = []
        for _ in range(count):
            name, (n_axes,) = self._string(), self._take("<I")
            if n_axes > 4:
                raise WeightsError(f"{self.path}: {name!r:.80} has {n_axes} axes; the format has at most 4")
            shape = self._take(f"<{n_axes}Q")[::-1]
            if 0 in shape or not shape:
                raise WeightsError(f"{self.path}: {name!r:.80} has the shape {shape}")
            facts.append((name, shape, *self._take("<IQ")))

        alignment = self.get("general.alignment", int, 32)
        if alignment < 1 or alignment & (alignment - 1):
            raise WeightsError(f"{self.path}: an alignment of {alignment}, which is no power of two")
        start = end = self._at + -self._at % alignment
        found = {}
        for name, shape, number, offset in sorted(facts, key=lambda fact: fact[3]):
            if number not in GGML_QUANT_SIZES:
                raise WeightsError(f"{self.path}: {name!r:.80} is of type {number}, which gguf doesn't know")
            kind = GGMLQuantizationType(number)
            per_block, size = GGML_QUANT_SIZES[kind]
            if shape[-1] % per_block:
                raise WeightsError(f"{self.path}: {name!r:.80} has rows of {shape[-1]}, in blocks of {per_block}")
            n_bytes = math.prod(shape) // per_block * size
            if start + offset < end or start + offset + n_bytes > len(data) or offset % alignment:
                raise WeightsError(f"{self.path}: damaged ({name!r:.80} isn't where it is said to be: byte {offset:,})")
            if name in found:
                raise WeightsError(f"{self.path}: {name!r:.80} twice")
            end = start + offset + n_bytes
            found[name] = shape, kind, data[start + offset : end]
        return found

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The metadata value at ``key``; ``default`` where there is no such key.

        ``kind`` is int, float (a finite number above 0), bool, str or list.
        """
        if key not in self.metadata:
            if default:
                return default[0]
            raise WeightsError(f"{self.path}: no {key!r}")
        value = self.metadata[key]
        if isinstance(value, numpy.ndarray):
            value = value.tolist()
        if type(value) is not kind or (isinstance(value, float) and not 0 < value < math.inf):
            found = type(value).__name__ if isinstance(value, list) else f"{value!r:.80}"
            raise WeightsError(f"{self.path}: {key!r} should be of type {kind.__name__}, and is {found}")
        return value


# ------------------------------------------------------------------------------------------------ config

TOKEN_IDS = {  # in the metadata, and in config.json
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.unknown_token_id": "unk_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}


def _config(header: Header) -> dict[str, Any]:
    """The metadata as Hugging Face's config.json has it."""
    path = header.path
    architecture = header.get("general.architecture", str)
    if architecture != "llama":
        raise WeightsError(f"{path}: the architecture {architecture!r:.40}; in GGUF we read 'llama'")

    def size(key: str, *default: int) -> int:
        value: int = header.get(f"llama.{key}", int, *default)
        if value < 1:
            raise WeightsError(f"{path}: 'llama.{key}' is {value}")
        return value

    if header.get("llama.expert_count", int, 0):
        raise WeightsError(f"{path}: a mixture of experts, which we don't read")
    hidden, heads, layers = size("embedding_length"), size("attention.head_count"), size("block_count")
    blocks = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    if len(blocks) != layers:
        raise WeightsError(f"{path}: 'llama.block_count' is {layers}, and there are tensors of {len(blocks)} blocks")
    head = size("attention.key_length", hidden // heads)
    if size("rope.dimension_count", head) != head or size("attention.value_length", head) != head:
        raise WeightsError(f"{path}: heads whose keys, values and rotated part differ in size, which we don't read")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    embedding = header.tensors.get("token_embd.weight", ((0,),))[0]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": size("context_length"),
        "vocab_size": size("vocab_size", len(tokens) if isinstance(tokens, list) else embedding[0]),
        "rms_norm_eps": header.get("llama.attention.layer_norm_rms_epsilon", float),
        "rope_theta": header.get("llama.rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(header),
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{name: header.get(key, int) for key, name in TOKEN_IDS.items() if key in header.metadata},
    }


def _rope_scaling(header: Header) -> dict[str, Any] | None:
    kind = header.get("llama.rope.scaling.type", str, "none")
    if "rope_freqs.weight" in header.tensors:
        with refusing(header.path, "rope_freqs.weight"):
            return _llama3_scaling(header)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise WeightsError(f"{header.path}: the scaling of rotary positions {kind!r:.40}, which we don't read")
    found = {"rope_type": kind, "factor": header.get("llama.rope.scaling.factor", float)}
    if kind == "yarn":
        found["original_max_position_embeddings"] = header.get("llama.rope.scaling.original_context_length", int)
    return found


def _llama3_scaling(header: Header) -> dict[str, Any]:
    """Llama 3.1's slower rotations for far positions, of which the file keeps only the divisor of each frequency.

    The published models differ in the largest divisor alone; so take that, and see that the others follow from it.
    """
    config: dict[str, Any] = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config["original_max_position_embeddings"] = old = 8192
    divisors = dequantise(*header.tensors["rope_freqs.weight"])
    base = header.get("llama.rope.freq_base", float, 10000.0)
    n = divisors.size
    turns = old / (2 * math.pi) * base ** (-numpy.arange(n) / n)  # that each pair makes in the original context
    smooth = numpy.clip((turns - 1) / (4 - 1), 0, 1)
    factor = float(divisors.max(initial=1))
    if divisors.ndim != 1 or not numpy.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise WeightsError(f"{header.path}: 'rope_freqs.weight' scales rotary positions otherwise than Llama 3.1")
    return config | {"factor": factor}


# ------------------------------------------------------------------------------------------------ tensors


def _tensors(header: Header, config: dict[str, Any]) -> dict[str, Any]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for kind in {kind for _, kind, _ in header.tensors.values()}:
        with refusing(header.path, f"tensors of type {kind.name}, from which the gguf package makes no numbers"):
            per_block, size = GGML_QUANT_SIZES[kind]
            dequantise((per_block,), kind, numpy.zeros(size, numpy.uint8))
    makers: dict[str, Any] = {}
    for name, (shape, kind, data) in header.tensors.items():
        part = name.split(".")[-2] if "." in name else name
        if name == "rope_freqs.weight":  # says what the config says
            continue
        if part in heads:
            make: Callable[[], Any] = partial(_rotary_rows, shape, kind, data, heads[part])
            if shape[0] % (2 * heads[part]) or data.size % shape[0]:
                raise WeightsError(f"{header.path}: {name!r:.80} has {shape[0]} rows for {heads[part]} heads")
        else:
            make = partial(dequantise, shape, kind, data)
        makers[_name(name)] = shape, make
    return makers


def _name(name: str) -> str:
    """Hugging Face's name for llama.cpp's; one that neither table has stays as it is, for the model to refuse.

    >>> _name("blk.7.attn_q.weight")
    'model.layers.7.self_attn.q_proj.weight'
    """
    match name.split("."):
        case ["blk", layer, part, kind] if part in IN_A_BLOCK:
            return f"model.layers.{layer}.{IN_A_BLOCK[part]}.{kind}"
        case [part, kind] if part in OUTSIDE:
            return f"{OUTSIDE[part]}.{kind}"
    return name


def _rotary_rows(shape: tuple[int, ...], kind: Any, data: Any, heads: int) -> Any:
    """The rows of a projection to queries or keys, in Hugging Face's order.

    Rotary positions turn the numbers of a head in pairs. In llama.cpp a pair's rows follow each other; Hugging Face has
    all first rows of a head, then all second ones. Quantised rows are shorter, so they are moved before.
    """
    rows = data.reshape(heads, shape[0] // heads // 2, 2, -1)
    return dequantise(shape, kind, rows.swapaxes(1, 2).reshape(-1))


def dequantise(shape: tuple[int, ...], kind: Any, data: Any) -> Any:
    """The float32 numbers, (*shape), of the bytes ``data``, quantised as ``kind`` says.

    >>> scale, numbers = numpy.asarray([0.5], "<f2"), numpy.arange(32, dtype="i1")
    >>> block = numpy.concatenate([scale.view("u1"), numbers.view("u1")])  # of the type Q8_0: 34 bytes
    >>> dequantise((32,), GGMLQuantizationType.Q8_0, block)[:4].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    per_block, size = GGML_QUANT_SIZES[kind]
    if kind.name == "F32":
        return data.view("<f4").reshape(shape)
    blocks = data.reshape(-1, size)
    found = numpy.empty((len(blocks), per_block), numpy.float32)
    for i in range(0, len(blocks), BLOCKS_AT_ONCE):
        some = blocks[i : i + BLOCKS_AT_ONCE]
        with numpy.errstate(over="ignore", invalid="ignore"):  # a scale of infinity is the file's
            found[i : i + BLOCKS_AT_ONCE] = dequantize(some.reshape(1, -1), kind).reshape(some.shape[0], per_block)
    return found.reshape(shape)


# ------------------------------------------------------------------------------------------------ text

# How text is cut before byte pairs are merged, by the name that llama.cpp's converter gave it; as in llama.cpp's
# llama-vocab.cpp. GPT-2's cut is ByteLevel's own.
GPT2 = ("gpt-2", "mpt", "olmo", "jais", "trillion")
DIGITS_THEN_GPT2 = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")  # these take a piece that is a token as it is
QWEN2 = ("qwen2", "deepseek-r1-qwen")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED = 3, 4  # types of token


def _special_tokens(header: Header) -> dict[str, str]:
    """ "bos_token" and so on, by the ids in the metadata."""
    tokens = header.get("tokenizer.ggml.tokens", list, [])
    found = {}
    for key, name in TOKEN_IDS.items():
        if key in header.metadata:
            number = header.get(key, int)
            if not 0 <= number < len(tokens) or not isinstance(tokens[number], str):
                raise WeightsError(f"{header.path}: {key!r} is {number}, of {len(tokens)} tokens")
            found[name.removesuffix("_id")] = tokens[number]
    return found


def _tokenizer(header: Header) -> Any:
    """A `tokenizers.Tokenizer` for byte-level BPE, of the metadata."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    path = header.path
    model = header.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise WeightsError(f"{path}: a tokenizer of the kind {model!r:.40}; in GGUF we read 'gpt2', byte-level BPE")
    tokens, merges = (header.get(f"tokenizer.ggml.{key}", list) for key in ("tokens", "merges"))
    kinds = header.get("tokenizer.ggml.token_type", list, [1] * len(tokens))
    numbers = {token: i for i, token in enumerate(tokens)}
    if len(numbers) != len(tokens) or len(kinds) != len(tokens):
        raise WeightsError(f"{path}: {len(tokens)} tokens, {len(numbers)} of them different, and {len(kinds)} types")
    with refusing(path, "no tokenizer"):
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        made = Tokenizer(models.BPE(numbers, pairs, ignore_merges=header.metadata.get("tokenizer.ggml.pre") in LLAMA3))
        made.pre_tokenizer = _cut(header)
        made.decoder = decoders.ByteLevel()
        for number, special in ((CONTROL, True), (USER_DEFINED, False)):
            whole = [token for token, kind in zip(tokens, kinds, strict=True) if kind == number]
            made.add_tokens([AddedToken(token, special=special, normalized=False) for token in whole])
        _frame(made, header, _special_tokens(header))
    return made


def _cut(header: Header) -> Any:
    """The pre-tokenizer, by its name."""
    from tokenizers import Regex, pre_tokenizers

    name = header.get("tokenizer.ggml.pre", str)
    if name in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in DIGITS_THEN_GPT2:
        first: Any = pre_tokenizers.Digits(individual_digits=True)
    elif name in (*LLAMA3, *QWEN2):
        split = SPLIT.replace("DIGITS", "{1,3}" if name in LLAMA3 else "")
        first = pre_tokenizers.Split(Regex(split), behavior="isolated")
    else:
        raise WeightsError(f"{header.path}: the pre-tokenizer {name!r:.40}, which we don't know")
    regex = name in DIGITS_THEN_GPT2
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])


def _frame(made: Any, header: Header, special: dict[str, str]) -> None:
    """Have the tokens that begin and end a text added, where the metadata asks for it."""
    from tokenizers import processors

    begins = header.get("tokenizer.ggml.add_bos_token", bool, header.metadata.get("tokenizer.ggml.pre") in LLAMA3)
    ends = header.get("tokenizer.ggml.add_eos_token", bool, False)
    frame = [special["bos_token"]] * begins + ["$A"] + [special["eos_token"]] * ends
    if len(frame) > 1:
        made.post_processor = processors.TemplateProcessing(
            single=frame,
            pair=frame + [f"{part.replace('$A', '$B')}:1" for part in frame],
            special_tokens=[(token, made.token_to_id(token)) for token in {*frame} - {"$A"}],
        )
