"""Small checkpoints, written by the libraries that the formats come from, and ways to damage them."""

import json
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attention.formats import Published, WeightsError, open_published

HEADS, KV_HEADS, HEAD, HIDDEN, INNER, BLOCKS = 4, 2, 8, 32, 64, 2
TEXTS = [
    "",
    "Hello, world! It's 12:34 on 2024-05-06.",
    "  spaces   before 1, 22 and  333\n\n\tand tabs\t9  ",
    "naïve café — 日本語 русский العربية हिन्दी ½ ² Ⅷ ٣",
    "🙂👩‍👩‍👧 🇫🇷 e\u0301",
    "def f(x):\n    return x ** 2  # 100%\r\n",
]


def bpe(pre: object, special: tuple[str, ...] = ("<s>", "</s>")) -> Tokenizer:
    """Byte-level BPE, trained on the texts by the tokenizers package."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    return made


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """A tiny Llama's tensors by Hugging Face's names."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (340, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(BLOCKS):
        block = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def llama_cpp_name(name: str) -> str:
    """llama.cpp's name for Hugging Face's, as the gguf package, which converters use, has it."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, BLOCKS)
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def llama_cpp_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """The rows as llama.cpp's converter orders those of attn_q and attn_k: a head's halves, one of each in turn."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return np.swapaxes(halves, 1, 2).reshape(weights.shape)


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tokenizer: Tokenizer | None = None,
    metadata: dict[str, object] | None = None,
    pre: str = "gpt-2",
) -> Path:
    """A tiny Llama as a .gguf file, written by the gguf package. Matrices are quantised as ``kind``."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_dimension_count(HEAD)
    tokenizer = tokenizer or bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))
    parts = json.loads(tokenizer.to_str())
    special = {token["content"] for token in parts["added_tokens"] if token["special"]}
    user = {token["content"] for token in parts["added_tokens"]} - special
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 4 if token in user else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in parts["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)  # which the writer would not have said twice
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)
    for name, array in (llama_tensors() if tensors is None else tensors).items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        array = array if heads is None else llama_cpp_rows(array, heads)
        theirs = llama_cpp_name(name) or name
        if array.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(theirs, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A tiny checkpoint in Hugging Face's format."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text('{"model_type": "llama", "hidden_size": 32, "rms_norm_eps": 1e-05}')
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    (path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "chat_template": "{{ bos_token }}"}'
    )
    bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)).save(str(path / "tokenizer.json"))
    safetensors.numpy.save_file(llama_tensors() if tensors is None else tensors, path / "model.safetensors")
    return path


def opens_or_refuses(path: Path) -> Published | None:
    """All that is in the checkpoint at ``path`` is read: it gives numbers and tokens, or a WeightsError of one line."""
    try:
        found = open_published(path)
        for name, array in found.tensors.items():
            assert isinstance(array, np.ndarray)
            assert array.shape == found.tensors.shapes[name]  # type: ignore[attr-defined]
        found.tokenizer.encode("Hello 12")
        return found
    except WeightsError as error:
        message = str(error)
    assert_one_line(message, path)
    return None


def assert_one_line(message: str, path: Path) -> None:
    assert message.startswith(str(path))
    assert message.isprintable(), ascii(message)
    assert len(message) < len(str(path)) + 500
