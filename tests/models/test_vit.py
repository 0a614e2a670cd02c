"""ViT: equal to CLIP's vision encoder in `transformers`; patches, names and errors."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor

import minigrad as mg
from attention.models import ViT, load
from attention.models.vit import patches_of

SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "projection_dim": 6, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 9, "patch_size": 4,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "CLIP": ("CLIPVisionModel", {}),
    "gelu": ("CLIPVisionModel", {"hidden_act": "gelu", "layer_norm_eps": 1e-3, "image_size": 8}),
    "projected": ("CLIPVisionModelWithProjection", {}),
}


def images_of(size: int) -> Any:
    return numpy.random.default_rng(0).normal(size=(3, 3, size, size))


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, dtype: str) -> None:
    import torch
    import transformers
    from reference import agree, close, make_reference, precision

    kind, changes = CASES[case]
    config = transformers.CLIPVisionConfig(**SIZES | changes)
    theirs = make_reference(getattr(transformers, kind), config, dtype)
    ours = ViT.from_config(config.to_dict() | {"architectures": [kind]}, dtype=dtype)
    images = images_of(config.image_size).astype(dtype)
    weights = numpy.random.default_rng(1).normal(size=(3, 6 if case == "projected" else 16)).astype(dtype)

    def their_loss() -> Any:
        with precision(dtype):
            out = theirs(torch.asarray(images), output_hidden_states=True)
        pooled = out.image_embeds if case == "projected" else out.pooler_output
        states = ours.states(mg.asarray(images))
        assert len(states) == len(out.hidden_states) == 3
        for state, expected in zip(states, out.hidden_states, strict=True):
            close(state, expected, dtype, "state")
        close(ours(mg.asarray(images)), pooled, dtype, "pooled")
        return (torch.tanh(pooled) * torch.asarray(weights)).mean()

    def loss() -> mg.Tensor:
        return mg.mean(mg.tanh(ours(mg.asarray(images))) * mg.asarray(weights))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
def test_a_whole_clip_is_loaded_as_it_is_published(tmp_path: Path) -> None:
    import torch
    import transformers
    from reference import close, make_reference, precision

    text = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(vision_config=SIZES, text_config=text, projection_dim=5)
    theirs = make_reference(transformers.CLIPModel, config, "float64")
    ours = ViT.from_config(config.to_dict() | {"architectures": ["CLIPModel"]}, dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    images = images_of(9)
    with precision("float64"):
        expected = theirs.get_image_features(torch.asarray(images)).pooler_output
    close(ours(mg.asarray(images)), expected, "float64")
    theirs.float().save_pretrained(tmp_path)
    close(load(tmp_path)(mg.asarray(images)), expected.float(), "float32")
    alone = ViT.from_config(config.to_dict() | {"architectures": None}, dtype="float64")
    alone.load_state_dict(theirs.state_dict())
    assert alone(mg.asarray(images)).shape == (3, 16)


@pytest.mark.peers
def test_patches_are_those_of_a_convolution() -> None:
    import torch

    images = numpy.random.default_rng(0).normal(size=(2, 3, 9, 14))
    kernel = numpy.random.default_rng(1).normal(size=(5, 3, 4, 4))
    expected = torch.nn.functional.conv2d(torch.asarray(images), torch.asarray(kernel), stride=4).numpy()
    found = mg.matmul(patches_of(mg.asarray(images), 4), mg.asarray(kernel.reshape(5, 48).T))
    numpy.testing.assert_allclose(found.numpy(), expected.reshape(2, 5, 6).swapaxes(1, 2), rtol=1e-12, atol=1e-12)


def small() -> ViT:
    return ViT(8, 4, 8, 2, 2, 12, d_out=5, dtype="float64")


def test_every_gradient_is_that_of_finite_differences(check_gradients: Any) -> None:
    model = small()
    images = tensor(images_of(8))
    check_gradients(model, lambda: mg.sum(mg.tanh(model(images))))


def test_what_was_published_is_loaded_and_another_kernel_refused() -> None:
    model = small()
    state = {model.published_name(name): value.numpy() for name, value in model.state_dict().items()}
    turned = [f"{name}.weight" for name, layer in model.named_modules() if type(layer).__name__ == "Linear"]
    state |= {model.published_name(name): state[model.published_name(name)].T for name in turned}
    kernel = "vision_model.embeddings.patch_embedding.weight"
    state[kernel] = state[kernel].reshape(8, 3, 4, 4)
    other = small()
    other.load_state_dict({name: tensor(value) for name, value in state.items()})
    images = tensor(images_of(8))
    assert other(images).tolist() == model(images).tolist()
    state[kernel] = state[kernel][:, :, :2, :]
    with pytest.raises(ValueError, match=r"^ViT: .* 1 misshapen: .*patch_embedding.weight \(8, 24\) instead"):
        other.load_state_dict(state)


def test_states_can_be_counted() -> None:
    model = small()
    images = tensor(images_of(8))
    assert len(model.states(images)) == 3
    [first, second] = model.states(images, count=2)
    assert second.tolist() == model.states(images)[1].tolist()
    assert first.shape == (3, 5, 8)


def test_errors_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"^ViT: expected images of shape \(B, 3, 8, 8\), got \(1, 3, 8, 9\)$"):
        small()(mg.ones((1, 3, 8, 9)))
    with pytest.raises(ValueError, match=r"^ViT: expected images of shape \(B, 3, 8, 8\), got \(3, 8, 8\)$"):
        small()(mg.ones((3, 8, 8)))
    with pytest.raises(ValueError, match=r"^ViT: expected hidden_act in .*, the config has 'mish'$"):
        ViT.from_config(SIZES | {"hidden_act": "mish"})
    with pytest.raises(ValueError, match=r"^ViT: expected model_type in .*, the config has 'siglip_vision_model'$"):
        ViT.from_config(SIZES | {"model_type": "siglip_vision_model"})
    with pytest.raises(ValueError, match=r"^ViT: expected image_size to be a positive integer, got \[9, 9\]$"):
        ViT.from_config(SIZES | {"image_size": [9, 9]})
    with pytest.raises(ValueError, match=r"^ViT: expected patches to be a positive integer, got 0$"):
        ViT(image_size=3, patch_size=4)
