"""Flamingo: equal to IDEFICS in `transformers`, and to itself one token at a time."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor

import minigrad as mg
from attention import functional as F
from attention.layers import LayerNorm, MultiHeadAttention, RMSNorm, RotaryPositions, ShapesOnly
from attention.layers.attention import Cache
from attention.models import Flamingo, LLaMA, ViT, load
from attention.models.flamingo import PerceiverResampler, last_image

SIZES: dict[str, Any] = {
    "vocab_size": 17, "additional_vocab_size": 2, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "cross_layer_interval": 2,
    "freeze_text_layers": False, "freeze_vision_layers": False,
    "vision_config": {
        "embed_dim": 12, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 9,
        "patch_size": 4,
    },
    "perceiver_config": {
        "resampler_n_latents": 3, "resampler_depth": 2, "resampler_n_heads": 2, "resampler_head_dim": 5,
        "qk_layer_norms_perceiver": True,
    },
}  # fmt: skip
NORMS = {"use_resampler": True, "qk_layer_norms": True}
CASES: dict[str, dict[str, Any]] = {
    "patches": {},
    "resampler": NORMS,
    "vectors": NORMS | {"alpha_type": "vector", "alpha_initializer": "ones", "additional_vocab_size": 0},
    "tied": NORMS | {"tie_word_embeddings": True, "cross_layer_interval": 1, "num_hidden_layers": 2},
    "frozen": NORMS | {"freeze_text_layers": True, "freeze_vision_layers": True, "freeze_lm_head": True},
    "plain resampler": {"use_resampler": True, "perceiver_config": SIZES["perceiver_config"] | {
        "qk_layer_norms_perceiver": False}},
}  # fmt: skip
IMAGE = 16


def example() -> tuple[Any, Any, Any, Any]:
    """Ids of two rows, the first padded in front; the mask; two images for each row; which of them a token sees."""
    rng = numpy.random.default_rng(0)
    ids = rng.integers(1, IMAGE, (2, 9))
    ids[0, [4, 6]] = ids[1, [0, 3]] = IMAGE
    mask = numpy.ones((2, 9), dtype=bool)
    mask[0, :3] = False
    come = numpy.cumsum(ids == IMAGE, axis=1)
    looks = come[..., None] == numpy.arange(1, 3)
    looks[1, 5:] = True  # both
    return ids, mask, rng.normal(size=(2, 2, 3, 9, 9)), looks


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, padded: bool, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    config = transformers.IdeficsConfig(**SIZES | CASES[case])
    theirs = make_reference(transformers.IdeficsForVisionText2Text, config, dtype)
    ours = Flamingo.from_config(config.to_dict(), dtype=dtype)
    ids, mask, images, looks = example()
    if config.additional_vocab_size:
        ids[1, 4] = 18  # one of the additional tokens, in front of a token that is predicted
    images = images.astype(dtype)
    mask = mask if padded else numpy.ones_like(mask)
    labels = numpy.where(mask & numpy.roll(mask, 1, axis=1), ids, -100)
    real, given = mg.asarray(mask), {"images": mg.asarray(images), "image_mask": mg.asarray(looks)}

    def their_loss() -> Any:
        with precision(dtype):
            inputs = {"input_ids": ids, "attention_mask": mask.astype("int64"), "pixel_values": images}
            inputs["image_attention_mask"] = looks.astype("int64")
            logits = theirs(**{name: torch.asarray(value) for name, value in inputs.items()}, use_cache=False).logits
        found = ours(mg.asarray(ids), real, **given)
        close(mg.where(real[..., None], found, 0.0), logits * torch.asarray(mask)[..., None], dtype, "logits")
        # Theirs counts the classes without the additional tokens.
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), torch.asarray(labels[:, 1:]).flatten())

    def loss() -> mg.Tensor:
        logits = ours(mg.asarray(ids), real if padded else None, **given)
        return F.cross_entropy(logits[:, :-1, :], mg.asarray(labels[:, 1:]))

    agree(ours, theirs, loss, their_loss, dtype)
    trained = {name for name, _ in ours.named_parameters()}
    assert trained == set(ours.from_published(
        {name: p.detach() for name, p in theirs.named_parameters() if p.requires_grad}, strict=False))  # fmt: skip


@pytest.mark.peers
def test_writes_what_transformers_writes(tmp_path: Path) -> None:
    import torch
    import transformers
    from reference import make_reference, precision

    config = transformers.IdeficsConfig(**SIZES | NORMS)
    theirs = make_reference(transformers.IdeficsForVisionText2Text, config, "float64")
    ours = Flamingo.from_config(config.to_dict(), dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    ids, mask, images, looks = example()
    expected = torch.asarray(ids)
    with precision("float64"), torch.no_grad():
        for step in range(6):  # the same without a cache
            more = numpy.pad(mask, ((0, 0), (0, step)), constant_values=True).astype("int64")
            all_looks = numpy.concatenate([looks, numpy.repeat(looks[:, -1:], step, axis=1)], axis=1).astype("int64")
            logits = theirs(
                expected, torch.asarray(more), pixel_values=torch.asarray(images), use_cache=False,
                image_attention_mask=torch.asarray(all_looks),
            ).logits  # fmt: skip
            expected = torch.cat([expected, logits[:, -1:].argmax(dim=-1)], dim=1)
    given = {"images": mg.asarray(images), "image_mask": mg.asarray(looks)}
    found = ours.generate(mg.asarray(ids), 6, temperature=0, mask=mg.asarray(mask), **given)
    assert found.tolist() == expected.tolist()
    assert len(set(found[:, 9:].tolist()[0])) > 1
    theirs.float().save_pretrained(tmp_path)
    saved = load(tmp_path).state_dict()
    for name, value in ours.state_dict().items():
        numpy.testing.assert_array_equal(saved[name].numpy(), value.numpy().astype("float32"), name)


@pytest.mark.peers
def test_a_text_without_images_is_one_that_may_look_at_none() -> None:
    import torch
    import transformers
    from reference import close, make_reference, precision

    config = transformers.IdeficsConfig(**SIZES)
    theirs = make_reference(transformers.IdeficsForVisionText2Text, config, "float64")
    ours = Flamingo.from_config(config.to_dict(), dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    ids, _, images, looks = example()
    with precision("float64"):
        nothing = torch.zeros(looks.shape, dtype=torch.int64)
        expected = theirs(torch.asarray(ids), pixel_values=torch.asarray(images), image_attention_mask=nothing).logits
    close(ours(mg.asarray(ids)), expected, "float64")
    nowhere = {"images": mg.asarray(images), "image_mask": mg.asarray(numpy.zeros_like(looks))}
    close(ours(mg.asarray(ids), **nowhere), expected, "float64")


@pytest.mark.peers
def test_the_last_image_is_that_of_the_published_processor() -> None:
    import torch
    from transformers.models.idefics import processing_idefics as theirs

    class Tokenizer:
        eos_token_id = 99

        def convert_tokens_to_ids(self, token: str) -> int:
            return IMAGE

    ids = example()[0]
    last, _ = theirs.image_attention_mask_for_packed_input_ids(torch.asarray(ids), Tokenizer(), "pt")
    expected = theirs.incremental_to_binary_attention_mask(last, "pt", num_classes=2)
    assert last_image(mg.asarray(ids), IMAGE, 2).tolist() == expected.tolist()


@pytest.mark.peers
def test_has_as_many_parameters_as_idefics_9b() -> None:
    import torch
    import transformers

    vision = {"embed_dim": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
    config = transformers.IdeficsConfig(
        additional_vocab_size=2, cross_layer_interval=4, qk_layer_norms=True, use_resampler=True, vision_config=vision,
        freeze_text_layers=False, freeze_vision_layers=False, perceiver_config={"qk_layer_norms_perceiver": True},
    )  # fmt: skip
    with torch.device("meta"):
        theirs = transformers.IdeficsForVisionText2Text(config)
    ours = Flamingo.from_config(config.to_dict(), generator=ShapesOnly())
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters())


def small(resampled: bool = True, **options: Any) -> Flamingo:
    vision = ViT(9, 4, 8, 2, 1, 12, dtype="float64")
    text = LLaMA(16, 12, 2, 2, 16, 2, 14, dtype="float64", tied=False)
    resampler = PerceiverResampler(8, 3, 1, 2, 4, qk_norm=True, dtype="float64") if resampled else None
    options = {"alpha": mg.ones, "qk_norm": True, "every": 1, "more_tokens": 2} | options
    return Flamingo(vision, text, num_heads=2, d_ff=16, resampler=resampler, dtype="float64", **options)


@pytest.mark.parametrize("resampled", [False, True])
def test_the_cache_equals_the_full_forward_pass(resampled: bool) -> None:
    model = small(resampled)
    ids, mask, images, looks = (tensor(x) for x in example())
    whole = model(ids, mask, images=images, image_mask=looks)
    cache: Cache = {}
    parts = [model(ids[:, :7], mask[:, :7], cache, images=images, image_mask=looks[:, :7, :])]
    parts += [model(ids[:, t : t + 1], mask[:, : t + 1], cache) for t in (7, 8)]
    numpy.testing.assert_allclose(mg.concat(parts, axis=1)[0, ...].numpy(), whole[0, ...].numpy(), rtol=1e-11)
    assert model(ids, mask, images=images, image_mask=looks, logits_to_keep=1).shape == (2, 1, 18)


def test_every_gradient_is_that_of_finite_differences(check_gradients: Any) -> None:
    model = small(every=2)
    for parameter in model.vision.norm.parameters():  # what is made of the class token is not looked at
        parameter.requires_grad = False
    ids, mask, images, looks = (tensor(x) for x in example())
    check_gradients(model, lambda: F.cross_entropy(model(ids, mask, images=images, image_mask=looks), ids))


def test_begins_as_the_model_of_text_alone() -> None:
    model = small(more_tokens=0, alpha=mg.zeros)
    ids = example()[0] % 16
    images = tensor(example()[2])
    assert model(tensor(ids), images=images).tolist() == model.text(tensor(ids)).tolist()


def test_an_image_reaches_only_those_who_may_look_at_it() -> None:
    model = small()
    ids, _, images, looks = example()
    before = model(tensor(ids), images=tensor(images), image_mask=tensor(looks)).numpy()
    images[0, 1] *= 7
    after = model(tensor(ids), images=tensor(images), image_mask=tensor(looks)).numpy()
    changed = numpy.abs(after - before).max(axis=-1) > 1e-9
    assert changed.tolist() == [[False] * 6 + [True] * 3, [False] * 9]
    images[0, 1] = numpy.nan  # an image that nobody may look at may be anything
    looks[0] = False
    assert numpy.isfinite(model(tensor(ids), images=tensor(images), image_mask=tensor(looks)).numpy()).all()


def test_queries_and_keys_are_normalised_before_they_are_turned() -> None:
    rotary = RotaryPositions(5, 4, "float64")
    attend = MultiHeadAttention(8, 2, rotary=rotary, qk_norm=RMSNorm, dtype="float64", bias=False, num_kv_heads=1)
    assert attend.parameter_count() == 8 * 8 * 2 + 2 * 8 * 4 + 4 + 4
    x = tensor(numpy.random.default_rng(0).normal(size=(1, 5, 8)))
    attend.query_norm.weight.data = attend.query_norm.weight.data * 3
    query = mg.permute_dims(mg.reshape(attend.query(x), (1, 5, 2, 4)), (0, 2, 1, 3))
    key = mg.reshape(attend.key(x), (1, 1, 5, 4))
    query, key = (z / mg.sqrt(mg.mean(z * z, axis=-1, keepdims=True) + 1e-6) for z in (query, key))
    scores = mg.matmul(rotary(3 * query), mg.matrix_transpose(rotary(key))) / 2
    _, weights = attend(x, return_weights=True)
    numpy.testing.assert_allclose(weights.numpy(), F.softmax(scores).numpy(), rtol=1e-12)
    assert type(MultiHeadAttention(8, 2, qk_norm=LayerNorm).key_norm) is LayerNorm


def test_errors_are_one_line() -> None:
    model = small()
    ids, _, images, looks = (tensor(x) for x in example())
    with pytest.raises(ValueError, match=r"^Flamingo: every=3 does not divide the 2 blocks of the text$"):
        small(every=3)
    with pytest.raises(ValueError, match=r"^Flamingo: expected images of shape \(B, N, channels, size, size\), got "):
        model(ids, images=images[0, ...])
    with pytest.raises(ValueError, match=r"image_mask of shape \(2, 9, 2\), got images for 2 and bool \(2, 8, 2\)$"):
        model(ids, images=images, image_mask=looks[:, 1:, :])
    with pytest.raises(ValueError, match=r"^Flamingo: expected images for 2 rows .*, got images for 1 and bool"):
        model(ids, images=images[:1, ...])
    cache: Cache = {}
    model(ids, None, cache, images=images)
    with pytest.raises(ValueError, match=r"^Flamingo: expected images with the first call alone"):
        model(ids[:, :1], None, cache, images=images)
    with pytest.raises(ValueError, match=r"^Flamingo: expected at most context_length=14, got images and 15 tokens$"):
        model.generate(ids, 8, images=images)
    for name, value in {"alpha_type": "matrix", "dropout": 0.5, "freeze_text_module_exceptions": ["Linear"]}.items():
        with pytest.raises(ValueError, match=rf"^Flamingo: expected {name} in .*, the config has "):
            Flamingo.from_config(SIZES | {name: value})
