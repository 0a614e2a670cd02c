"""Tiny models of every kind that we load, as Hugging Face's folders, and a tokenizer for them."""

import json
from pathlib import Path
from typing import Any

import numpy
import safetensors.numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import minigrad as mg
from attention.models.load import MODELS
from attention.models.published import PublishedModel

TEXT: dict[str, Any] = {
    "vocab_size": 340, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
HALVES: dict[str, Any] = {
    "vocab_size": 340, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "num_channels": 3,
}  # fmt: skip
T5: dict[str, Any] = {"vocab_size": 340, "d_model": 16, "num_heads": 4, "num_layers": 2, "d_ff": 24, "d_kv": 4}
GPT: dict[str, Any] = {"vocab_size": 340, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "bart": {**HALVES, "max_position_embeddings": 32},
    "bert": {**TEXT, "type_vocab_size": 2},
    "clip": {"vision_config": VISION, "projection_dim": 8, "architectures": ["CLIPModel"]},
    "clip_vision_model": VISION,
    "gpt2": GPT,
    "idefics": {
        **TEXT, "additional_vocab_size": 2, "cross_layer_interval": 2, "use_resampler": True,
        "vision_config": {"embed_dim": 12, **{k: v for k, v in VISION.items() if k != "hidden_size"}},
        "perceiver_config": {
            "resampler_n_latents": 3, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 4,
        },
    },
    "llama": {**TEXT, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0},
    "llava": {
        "text_config": {**TEXT, "model_type": "llama", "num_key_value_heads": 2},
        "vision_config": {**VISION, "model_type": "clip_vision_model"},
        "image_token_index": 339,
    },
    "marian": {**HALVES, "max_position_embeddings": 32, "activation_function": "swish", "scale_embedding": True},
    "mbart": {**HALVES, "max_position_embeddings": 32, "normalize_before": True, "add_final_layer_norm": True},
    "mistral": {**TEXT, "num_key_value_heads": 2, "sliding_window": 5},
    "mt5": {**T5, "feed_forward_proj": "gated-gelu"},
    "openai-gpt": GPT,
    "t5": T5,
    "whisper": {**HALVES, "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 12},
}  # fmt: skip


def make(kind: str) -> PublishedModel:
    """A tiny model with random parameters, also those that begin as zeros or ones."""
    model = MODELS[kind].from_config({"model_type": kind, **CONFIGS[kind]}).eval()
    rng = numpy.random.default_rng(0)
    model.load_state_dict(
        {name: rng.normal(size=p.shape, scale=0.3) + (p.ndim == 1) for name, p in model.state_dict().items()}
    )
    return model


def published(model: PublishedModel) -> dict[str, numpy.ndarray]:
    """Its parameters as they are published: by the names, and in the shapes, of Hugging Face."""
    found: dict[str, numpy.ndarray] = {}
    turned = {f"{name}.weight" for name, layer in model.named_modules() if model._is_turned(layer)}
    for name, parameter in model.state_dict().items():
        value = parameter.numpy()
        found[model.published_name(name)] = value.T if name in turned else value
    joined: dict[str, numpy.ndarray] = {}
    for name, value in found.items():
        if ".c_attn." in name:  # GPT's queries, keys and values, side by side
            layer, _, rest = name.partition(".c_attn.")
            kind = rest.partition(".")[2]
            if rest.startswith("query"):
                parts = [found[f"{layer}.c_attn.{one}.{kind}"] for one in ("query", "key", "value")]
                joined[f"{layer}.c_attn.{kind}"] = numpy.concatenate(parts, axis=-1)
            continue
        if name.endswith("patch_embedding.weight"):  # a convolution
            value = value.reshape(value.shape[0], VISION["num_channels"], *[VISION["patch_size"]] * 2)
        if type(model).__name__ == "BART" and name.endswith("embed_positions.weight"):  # two rows that mean nothing
            value = numpy.concatenate([numpy.full_like(value[:2, :], numpy.nan), value])
        joined[name] = value
    return {name: numpy.ascontiguousarray(value) for name, value in joined.items()}


def write(path: Path, kind: str, config: dict[str, Any] | None = None, tensors: Any = None, **more: Any) -> Path:
    """A folder with a model of ``kind``; ``more`` are further files by name, without their ending ``.json``."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"model_type": kind, **CONFIGS[kind]} if config is None else config
    for name, content in {"config": config, **more}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    safetensors.numpy.save_file(published(make(kind)) if tensors is None else tensors, path / "model.safetensors")
    return path


def run(model: Any, kind: str) -> numpy.ndarray:
    """What the model makes of an input."""
    rng = numpy.random.default_rng(1)
    ids = mg.asarray(rng.integers(0, 339, (2, 6)).tolist())
    if kind in ("clip", "clip_vision_model"):
        out = model(mg.asarray(rng.normal(size=(2, 3, 8, 8)).tolist(), dtype="float32"))
    elif kind == "whisper":
        out = model(mg.asarray(rng.normal(size=(2, 80, 20)).tolist(), dtype="float32"), ids)
    elif kind in ("bart", "marian", "mbart", "mt5", "t5"):
        out = model(ids, ids)
    else:
        out = model(ids)
    found: numpy.ndarray = out.numpy()
    return found


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE of at most 340 tokens, which begins a text with <s>."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat and the rat sat on the cat. 日本語"] * 3, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def write_whole(path: Path, kind: str, template: str | None = TEMPLATE, **more: Any) -> Path:
    """A folder that has all that a text goes through: a model, a tokenizer, settings and a chat template."""
    write(path, kind, **more)
    make_tokenizer().save(str(path / "tokenizer.json"))
    generation: dict[str, Any] = {"eos_token_id": 1}
    if kind == "whisper":
        generation |= {"decoder_start_token_id": 0, "no_timestamps_token_id": 4, "suppress_tokens": [7, 8]}
        generation |= {"begin_suppress_tokens": [1], "alignment_heads": [[0, 1], [1, 3]]}
    text = {"bos_token": "<s>", "eos_token": "</s>"} | ({} if template is None else {"chat_template": template})
    for name, content in {"generation_config": generation, "tokenizer_config": text, **more}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path
