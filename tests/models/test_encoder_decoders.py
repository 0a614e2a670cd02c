"""Models that read one sequence and write another: equal to `transformers`, and to themselves one token at a time.

Marian's translators are `Transformer`, whose training is tested in test_transformer.py.
"""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.layers import Linear
from attention.layers.attention import Cache
from attention.models import BART, T5, Transformer
from attention.models.published import EncoderDecoderModel
from attention.models.t5 import RelativePositions

SIZES: dict[str, Any] = {
    "vocab_size": 19, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 12,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
T5_SIZES: dict[str, Any] = {
    "vocab_size": 19, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_kv": 3, "d_ff": 24,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "layer_norm_epsilon": 1e-5,
    "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
MODELS: dict[str, Any] = {"Marian": Transformer, "Bart": BART, "MBart": BART, "T5": T5, "MT5": T5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Marian": ("Marian", {"scale_embedding": True, "activation_function": "swish"}),
    "Marian relu": ("Marian", {"scale_embedding": True, "activation_function": "relu"}),
    "Marian gelu": ("Marian", {"encoder_layers": 1, "decoder_layers": 3}),
    "BART": ("Bart", {}),
    "BART scaled": ("Bart", {"scale_embedding": True, "encoder_layers": 1, "decoder_layers": 3}),
    "mBART": ("MBart", {"scale_embedding": True}),
    "mBART relu": ("MBart", {"activation_function": "relu"}),
    "T5": ("T5", {}),
    "T5 1.1": ("T5", {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3, "tie_word_embeddings": False}),
    "T5 silu": ("T5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1}),
    "mT5": ("MT5", {}),
}
RNG = numpy.random.default_rng(0)
SOURCE, TARGET = RNG.integers(3, 19, (2, 9)), RNG.integers(3, 19, (2, 7))
SOURCE_MASK = numpy.array([[True] * 5 + [False] * 4, [True] * 9])
TARGET_MASK = numpy.array([[True] * 7, [True] * 4 + [False] * 3])

TINY: dict[str, Callable[[], EncoderDecoderModel]] = {
    "Transformer": lambda: Transformer(19, 19, 16, 4, 2, 24, 0.0, 12, dtype="float64"),
    "Marian": lambda: Transformer(19, 19, 16, 4, 2, 24, 0.0, 12, "post", dtype="float64", shared=True, halves=True),
    "BART": lambda: BART(19, 16, 4, 2, 2, 24, 12, dtype="float64"),
    "mBART": lambda: BART(19, 16, 4, 2, 2, 24, 12, "pre", dtype="float64"),
    "T5": lambda: T5(19, 16, 4, 2, 24, 3, num_buckets=8, max_distance=6, dtype="float64"),
    "T5 1.1": lambda: T5(19, 16, 4, 2, 24, 3, num_buckets=8, max_distance=6, gated=True, tied=False, dtype="float64"),
}
tiny = pytest.mark.parametrize("make", TINY.values(), ids=TINY)


def own(values: Any) -> mg.Tensor:
    """In the library under test, where ``mg.asarray`` of a NumPy array stays in NumPy."""
    return mg.asarray(values.tolist())


def make_reference(case: str, dtype: str) -> Any:
    import torch
    import transformers
    from reference import make_reference, precision

    kind, changes = CASES[case]
    heads = "MTModel" if kind == "Marian" else "ForConditionalGeneration"
    sizes = T5_SIZES if "T5" in kind else SIZES
    config = getattr(transformers, f"{kind}Config")(**sizes | changes)
    model = make_reference(getattr(transformers, kind + heads), config, dtype)
    if case in ("T5 1.1", "mT5"):  # published with two matrices
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias = torch.randn_like(model.final_logits_bias)
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("bias"):
            # Of mean 1, they would make all positions nearly alike, and attention's gradients smaller than rounding.
            parameter.data -= 1
    if kind == "Marian":  # fixed waves, which it rounds to float32 whatever its dtype
        exact = torch.DoubleTensor if dtype == "float64" else torch.FloatTensor
        with precision(dtype), patch.object(torch, "FloatTensor", exact):
            for half in (model.model.encoder, model.model.decoder):
                half.embed_positions.weight.data = half.embed_positions.create_weight()
    return model


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_in_transformers(case: str, padded: bool, dtype: str) -> None:
    import torch
    from reference import agree, close, precision

    theirs = make_reference(case, dtype)
    ours = MODELS[CASES[case][0]].from_config(theirs.config.to_dict(), dtype=dtype).eval()
    source_mask = SOURCE_MASK if padded else numpy.ones_like(SOURCE_MASK)
    target_mask = TARGET_MASK if padded else numpy.ones_like(TARGET_MASK)
    labels = numpy.where(target_mask, numpy.roll(TARGET, -1, axis=1), -100)
    masks = (mg.asarray(source_mask), mg.asarray(target_mask))

    def their_loss() -> Any:
        inputs = {
            "input_ids": SOURCE,
            "attention_mask": source_mask.astype("int64"),
            "decoder_input_ids": TARGET,
            "decoder_attention_mask": target_mask.astype("int64"),
            "labels": labels,
        }
        with precision(dtype):
            out = theirs(**{name: torch.asarray(value) for name, value in inputs.items()}, use_cache=False)
        logits = mg.where(masks[1][..., None], ours(mg.asarray(SOURCE), mg.asarray(TARGET), *masks), 0.0)
        close(logits, out.logits * torch.asarray(target_mask)[..., None], dtype)
        return out.loss

    def loss() -> mg.Tensor:
        logits = ours(mg.asarray(SOURCE), mg.asarray(TARGET), *(masks if padded else ()))
        return F.cross_entropy(logits, mg.asarray(labels))

    agree(ours, theirs, loss, their_loss, dtype)


@pytest.mark.peers
@pytest.mark.parametrize("case", ["mBART", "mBART relu", "T5", "T5 1.1"])
def test_it_writes_what_transformers_writes(case: str) -> None:
    import torch
    from reference import precision

    theirs = make_reference(case, "float64")
    for name, parameter in theirs.named_parameters():
        if parameter.ndim > 1 and (".layers." in name or ".layer." in name):
            parameter.data *= 10  # else one token comes after all others
        elif name.endswith("norm.bias"):
            parameter.data *= 0
    ours = MODELS[CASES[case][0]].from_config(theirs.config.to_dict(), dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    with precision("float64"):
        expected = theirs.generate(
            torch.asarray(SOURCE),
            attention_mask=torch.asarray(SOURCE_MASK.astype("int64")),
            max_new_tokens=10,
            num_beams=1,
            do_sample=False,
            pad_token_id=2,
            use_cache=False,  # its cache fails for a T5 whose decoder has more layers than its encoder
        )
    written = ours.generate(mg.asarray(SOURCE), 10, 1, 2, mg.asarray(SOURCE_MASK))
    assert written.tolist() == expected[:, 1:].tolist()
    assert len({token for row in written.tolist() for token in row}) > 4


@tiny
@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_equals_the_full_forward_pass(make: Callable[[], Any], padded: bool) -> None:
    model = make()
    target, source_mask = own(TARGET), own(SOURCE_MASK)
    mask = own(TARGET_MASK) if padded else None
    memory = model.encode(own(SOURCE), source_mask)
    whole = model.decode(target, memory, source_mask, mask)
    cache: Cache = {}
    for start, end in ((0, 3), (3, 4), (4, 7)):
        so_far = None if mask is None else mask[:, :end]
        part = model.decode(target[:, start:end], memory, source_mask, so_far, cache)
        numpy.testing.assert_allclose(part.numpy(), whole[:, start:end, :].numpy(), rtol=1e-11, atol=1e-11)


@tiny
def test_a_batch_with_padding_is_its_sources_one_by_one(make: Callable[[], Any]) -> None:
    model = make()
    source, target = own(SOURCE), own(TARGET)
    logits = model(source, target, own(SOURCE_MASK)).numpy()
    alone = [model(source[:1, :5], target[:1, :]), model(source[1:, :], target[1:, :])]
    numpy.testing.assert_allclose(logits, mg.concat(alone, axis=0).numpy(), rtol=1e-11, atol=1e-11)
    together = model.generate(source, 5, 1, -1, own(SOURCE_MASK)).tolist()
    assert together == [
        model.generate(source[:1, :5], 5, 1, -1)[0, :].tolist(),
        model.generate(source[1:, :], 5, 1, -1)[0, :].tolist(),
    ]


@tiny
def test_nan_at_padding_reaches_neither_logits_nor_gradients(make: Callable[[], Any]) -> None:
    model = make()
    source = mg.where(own(SOURCE_MASK), own(SOURCE), 0)
    target = mg.where(own(TARGET_MASK), own(TARGET), 0)
    tables = [p for name, p in model.named_parameters() if p.shape == (19, 16) and "output" not in name]
    found = []
    for filler in (0.0, math.nan):
        for table in tables:
            table.data = mg.concat([mg.full_like(table[:1, :], filler), table[1:, :]], axis=0).data
        memory = model.encode(source, source != 0)
        decoded = model.decoder[0](memory, memory, source != 0, source != 0)
        loss = mg.sum(mg.where((source != 0)[..., None], decoded, 0.0))
        if len(tables) > 1:  # else the table also writes, and row 0 is a logit of its own
            logits = model.decode(target, memory, source != 0, target != 0)
            loss = loss + mg.sum(mg.where((target != 0)[..., None], logits, 0.0))
        loss.backward()
        found.append([float(loss), *(p.grad.numpy() for p in model.parameters() if p.grad is not None)])
        for parameter in model.parameters():
            parameter.grad = None
    assert len(found[0]) > 10
    for clean, dirty in zip(*found, strict=True):
        assert numpy.isfinite(clean).all()
        numpy.testing.assert_array_equal(clean, dirty)


@tiny
def test_generate_projects_the_memory_to_keys_and_values_once(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Linear] = []
    project = Linear.__call__

    def counted(layer: Linear, x: mg.Tensor) -> mg.Tensor:
        calls.append(layer)
        return project(layer, x)

    monkeypatch.setattr(Linear, "__call__", counted)
    model = make()
    assert model.generate(own(SOURCE), 4, 1, -1).shape == (2, 4)
    for block in model.decoder:
        cross = block.cross_attention
        assert [calls.count(layer) for layer in (cross.query, cross.key, cross.value)] == [4, 1, 1]


@tiny
def test_a_target_may_begin_with_several_tokens(make: Callable[[], Any]) -> None:
    model = make()
    source = own(SOURCE)
    written = model.generate(source, 4, 1, -1)
    rest = model.generate(source[:1, :], 3, [1, int(written[0, 0])], -1)
    assert rest[0, :].tolist() == written[0, 1:].tolist()


@pytest.mark.peers
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 128), (32, 256), (8, 6), (6, 12)])
def test_the_buckets_of_t5_are_those_of_transformers(num_buckets: int, max_distance: int, both_ways: bool) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = numpy.arange(-600, 601)
    expected = T5Attention._relative_position_bucket(torch.asarray(distances), both_ways, num_buckets, max_distance)
    ours = RelativePositions(2, num_buckets, max_distance, both_ways).buckets(mg.asarray(distances))
    assert ours.tolist() == expected.tolist()


def test_the_positions_of_t5_are_of_the_last_queries() -> None:
    positions = RelativePositions(2, 8, 6, dtype="float64")
    whole = positions(9, 9)
    assert positions(2, 9).tolist() == whole[:, 7:, :].tolist()
    assert len({float(whole[0, 4, j]) for j in range(9)}) == 7  # 0; -1, -2 and -3, -4 together; the same ahead


def test_t5_with_two_matrices_that_were_saved_as_one() -> None:
    make = TINY["T5 1.1"]
    model, other = make(), make()
    published = {other.published_name(name): value.numpy() for name, value in other.state_dict().items()}
    turned = {name: value if "shared" in name or "relative" in name else value.T for name, value in published.items()}
    del turned["lm_head.weight"]
    model.load_state_dict(turned)
    state = model.state_dict()
    numpy.testing.assert_array_equal(state["output.weight"].numpy(), state["tokens.weight"].numpy().T)


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (T5, {"feed_forward_proj": "gelu"}, r"feed_forward_proj in \['relu', 'gated-gelu', 'gated-silu'\]"),
        (T5, {"model_type": "umt5"}, "T5: expected model_type in"),
        (BART, {"normalize_before": True}, r"BART: expected normalize_before in \[False\], the config has True"),
        (BART, {"model_type": "pegasus"}, r"model_type in \['bart', 'mbart'\], the config has 'pegasus'"),
        (BART, {"decoder_attention_heads": 2}, r"decoder_attention_heads in \[4\], the config has 2"),
        (Transformer, {"normalize_before": True}, r"normalize_before in \[False\], the config has True"),
        (Transformer, {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings in"),
        (Transformer, {"activation_function": "tanh"}, "Transformer: expected activation_function in"),
        (Transformer, {"decoder_ffn_dim": 9}, r"decoder_ffn_dim in \[24\], the config has 9"),
    ],
)
def test_settings_that_are_not_supported_are_refused_in_one_line(model: Any, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        model.from_config(SIZES | T5_SIZES | change)
    assert "\n" not in str(raised.value)
