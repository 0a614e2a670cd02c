"""LLaVA: equal to `transformers`, and to itself one token at a time."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor

import minigrad as mg
from attention import functional as F
from attention.layers import ShapesOnly
from attention.layers.attention import Cache
from attention.models import LLaMA, LLaVA, ViT, load

VISION: dict[str, Any] = {
    "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 9,
    "patch_size": 4, "model_type": "clip_vision_model",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "model_type": "llama",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "LLaVA": {},
    "full": {"vision_feature_select_strategy": "full"},
    "layers": {"vision_feature_layer": [-3, -1], "multimodal_projector_bias": False},
    "tied": {"tie_word_embeddings": True, "vision_feature_layer": 1},
}
IMAGE = 18


def example(vectors: int = 4) -> tuple[Any, Any, Any]:
    """Ids with three images of so many vectors, the first row padded in front; the mask; the images."""
    rng = numpy.random.default_rng(0)
    ids = rng.integers(1, IMAGE, (2, 14))
    ids[0, 5 : 5 + vectors] = IMAGE
    ids[1, : 2 * vectors] = IMAGE  # two images side by side
    mask = numpy.ones((2, 14), dtype=bool)
    mask[0, :3] = False
    return ids, mask, rng.normal(size=(3, 3, 9, 9))


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, padded: bool, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    config = transformers.LlavaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE, **CASES[case])
    theirs = make_reference(transformers.LlavaForConditionalGeneration, config, dtype)
    ours = LLaVA.from_config(config.to_dict(), dtype=dtype)
    ids, mask, images = example(5 if case == "full" else 4)
    images = images.astype(dtype)
    mask = mask if padded else numpy.ones_like(mask)
    labels = numpy.where(mask & numpy.roll(mask, 1, axis=1), ids, -100)
    real = mg.asarray(mask)

    def their_loss() -> Any:
        with precision(dtype):
            inputs = {"input_ids": ids, "attention_mask": mask.astype("int64"), "labels": labels}
            inputs["pixel_values"] = images
            out = theirs(**{name: torch.asarray(value) for name, value in inputs.items()}, use_cache=False)
        logits = ours(mg.asarray(ids), real, images=mg.asarray(images))
        close(mg.where(real[..., None], logits, 0.0), out.logits * torch.asarray(mask)[..., None], dtype, "logits")
        return out.loss

    def loss() -> mg.Tensor:
        logits = ours(mg.asarray(ids), real if padded else None, images=mg.asarray(images))
        return F.cross_entropy(logits[:, :-1, :], mg.asarray(labels[:, 1:]))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
def test_writes_what_transformers_writes(tmp_path: Path) -> None:
    import torch
    import transformers
    from reference import make_reference, precision

    config = transformers.LlavaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE)
    theirs = make_reference(transformers.LlavaForConditionalGeneration, config, "float64")
    ours = LLaVA.from_config(config.to_dict(), dtype="float64")
    state = theirs.state_dict()
    old = {  # the names of llava-1.5-7b-hf
        name.replace("model.vision_tower.", "vision_tower.vision_model.")
        .replace("model.language_model.", "language_model.model.")
        .replace("lm_head.", "language_model.lm_head.")
        .replace("model.multi_modal_projector.", "multi_modal_projector."): value
        for name, value in state.items()
    }
    assert not old.keys() & state.keys()
    ours.load_state_dict(old)
    ids, mask, images = example()
    with precision("float64"):
        inputs = {"input_ids": ids, "attention_mask": mask.astype("int64"), "pixel_values": images}
        inputs = {name: torch.asarray(value) for name, value in inputs.items()}
        expected = theirs.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)
    found = ours.generate(mg.asarray(ids), 8, temperature=0, mask=mg.asarray(mask), images=mg.asarray(images))
    assert found.tolist() == expected.tolist()
    assert len(set(expected[0, 14:].tolist())) > 1
    theirs.float().save_pretrained(tmp_path)
    saved = load(tmp_path)
    assert saved.text.context_length == 64
    for name, value in ours.state_dict().items():
        numpy.testing.assert_array_equal(saved.state_dict()[name].numpy(), value.numpy().astype("float32"), name)


@pytest.mark.peers
def test_has_as_many_parameters_as_llava_7b() -> None:
    import torch
    import transformers

    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
    }  # fmt: skip
    config = transformers.LlavaConfig(vision_config=vision, text_config=text)
    with torch.device("meta"):
        theirs = transformers.LlavaForConditionalGeneration(config)
    ours = LLaVA.from_config({"text_config": text, "vision_config": vision}, generator=ShapesOnly())
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters()) == 7063427072


def small(**options: Any) -> LLaVA:
    vision = ViT(9, 4, 8, 2, 2, 12, dtype="float64")
    text = LLaMA(19, 12, 2, 1, 16, 1, 22, dtype="float64")
    return LLaVA(vision, text, IMAGE, dtype="float64", **options)


@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_equals_the_full_forward_pass(padded: bool) -> None:
    model = small()
    ids, mask, images = (tensor(x) for x in example())
    mask = mask if padded else None
    whole = model(ids, mask, images=images)
    cache: Cache = {}
    parts = [model(ids[:, :12], None if mask is None else mask[:, :12], cache, images=images)]
    parts += [model(ids[:, t : t + 1], None if mask is None else mask[:, : t + 1], cache) for t in (12, 13)]
    numpy.testing.assert_allclose(mg.concat(parts, axis=1).numpy(), whole.numpy(), rtol=1e-11, atol=1e-11)


def test_each_row_writes_what_it_writes_alone() -> None:
    model = small()
    ids, mask, images = (tensor(x) for x in example())
    together = model.generate(ids, 3, temperature=0, mask=mask, images=images)
    first = model.generate(ids[:1, 3:], 3, temperature=0, images=images[:1, ...])
    second = model.generate(ids[1:, :], 3, temperature=0, images=images[1:, ...])
    assert together.tolist() == [ids[0, :3].tolist() + first[0, :].tolist(), second[0, :].tolist()]


def test_every_gradient_is_that_of_finite_differences(check_gradients: Any) -> None:
    model = small(layers=[0, -1], class_token=False)
    model.vision.norm.weight.requires_grad = model.vision.norm.bias.requires_grad = False  # not in the way of a state
    ids, mask, images = (tensor(x) for x in example())
    check_gradients(model, lambda: F.cross_entropy(model(ids, mask, images=images)[:, 9:, :], ids[:, 9:]))


def test_what_is_later_or_in_another_row_does_not_matter() -> None:
    model = small()
    ids, _, images = example()
    before = model(tensor(ids), images=tensor(images)).numpy()
    images[0] *= 7  # of the first row, from position 5 on
    after = model(tensor(ids), images=tensor(images)).numpy()
    assert after[1].tolist() == before[1].tolist()
    assert after[0, :5].tolist() == before[0, :5].tolist()
    assert (numpy.abs(after[0, 5:] - before[0, 5:]).max(axis=-1) > 1e-6).all()


def test_errors_are_one_line() -> None:
    model = small()
    ids, _, images = (tensor(x) for x in example())
    with pytest.raises(ValueError, match=r"^LLaVA: expected 8 tokens 18, 4 for each of 2 images, got 12$"):
        model(ids, images=images[:2, ...])
    with pytest.raises(ValueError, match=r"^LLaVA: expected layers between -3 and 2, got \[3\]$"):
        small(layers=[3])
    with pytest.raises(ValueError, match=r"^LLaVA: expected at most context_length=22, got images and 23 tokens$"):
        model.generate(ids, 10, images=images)
    assert model.generate(ids, 10).shape == (2, 24)  # without images they are words as others
    config = {"vision_config": VISION, "text_config": TEXT}
    for where, name, value in (
        ("text_config", "model_type", "qwen2"),
        ("vision_config", "model_type", "siglip_vision_model"),
        (None, "projector_hidden_act", "relu"),
        (None, "vision_feature_select_strategy", "cls"),
    ):
        changed = config | ({where: config[where] | {name: value}} if where else {name: value})
        with pytest.raises(ValueError, match=rf"^LLaVA: expected {name} in .*, the config has '{value}'$"):
            LLaVA.from_config(changed)
