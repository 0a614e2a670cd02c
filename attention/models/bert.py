"""BERT: the Transformer encoder, which reads a text from both sides; and embeddings of sentences made of it.

J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: pre-training of deep bidirectional Transformers for language
understanding" (2018), arXiv:1810.04805. N. Reimers and I. Gurevych, "Sentence-BERT: sentence embeddings using Siamese
BERT-networks" (2019), arXiv:1908.10084. MiniLM (W. Wang et al. (2020), arXiv:2002.10957) is a small one.

    wiring    Q, K and V from the text itself; a token sees all tokens
    position  a learned vector for each is added to the tokens, and one for the text, first or second, that it is of
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..functional.dropout import check_probability
from ..layers import Dropout, Embedding, EncoderBlock, LayerNorm, LearnedPositions, Linear
from ..layers.module import expect_positive, parameter, without_padding
from .published import ACTIVATIONS, PublishedModel, expect_setting

HEADS = {"BertModel": ("pooler",), "BertForMaskedLM": ("words",), "BertForPreTraining": ("pooler", "words")}
"""What published architectures have on top of the encoder; that of BertForPreTraining has one more, see `BERT`."""


class BERT(PublishedModel):
    """Gives each token a vector that depends on all the others; what that is good for, the heads say.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers, d_ff, context_length, dropout, eps
        BERT-base unless given.
    activation
        Of the feed-forward networks and of the head of words.
    num_types
        How many texts there can be in one sequence.
    pooler, words
        Which heads there are: `pool` makes one vector of a sequence, `logits` guesses words that are masked. The head
        that tells whether a second text follows the first is in no use any more, and left out.

    Examples
    --------
    >>> model = BERT(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, context_length=9, words=True)
    >>> ids = mg.asarray([[3, 4, 5], [6, 7, 0]])
    >>> mask = ids != 0
    >>> x = model(ids, mask)
    >>> x.shape, model.pool(x).shape, model.logits(x).shape, model.embed(ids, mask).shape
    ((2, 3, 8), (2, 8), (2, 3, 11), (2, 8))
    >>> from attention.layers import ShapesOnly
    >>> BERT(30522, generator=ShapesOnly()).parameter_count()
    109482240
    """

    names: ClassVar = {
        "tokens": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "types": "bert.embeddings.token_type_embeddings",
        "norm": "bert.embeddings.LayerNorm",
        "blocks.*.attention.query": "bert.encoder.layer.*.attention.self.query",
        "blocks.*.attention.key": "bert.encoder.layer.*.attention.self.key",
        "blocks.*.attention.value": "bert.encoder.layer.*.attention.self.value",
        "blocks.*.attention.output": "bert.encoder.layer.*.attention.output.dense",
        "blocks.*.attention_residual.norm": "bert.encoder.layer.*.attention.output.LayerNorm",
        "blocks.*.feed_forward.up": "bert.encoder.layer.*.intermediate.dense",
        "blocks.*.feed_forward.down": "bert.encoder.layer.*.output.dense",
        "blocks.*.feed_forward_residual.norm": "bert.encoder.layer.*.output.LayerNorm",
        "pooler": "bert.pooler.dense",
        "words.dense": "cls.predictions.transform.dense",
        "words.norm": "cls.predictions.transform.LayerNorm",
        "words.bias": "cls.predictions.bias",
    }
    prefix = "bert."

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        d_ff: int = 3072,
        context_length: int = 512,
        num_types: int = 2,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        eps: float = 1e-12,
        pooler: bool = True,
        words: bool = False,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("BERT", num_layers=num_layers)
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        normalization = partial(LayerNorm, eps=eps)
        self.context_length = context_length
        self.activation = activation
        self.tokens = Embedding(vocab_size, d_model, std=0.02, **common)
        self.positions = LearnedPositions(context_length, d_model, std=0.02, **common)
        self.types = Embedding(num_types, d_model, std=0.02, **common)
        self.norm = normalization(d_model, dtype=dtype)
        self.dropout = Dropout(dropout, generator)
        self.blocks = [
            EncoderBlock(
                d_model,
                num_heads,
                d_ff,
                dropout=dropout,
                norm="post",
                activation=activation,
                normalization=normalization,
                **common,
            )
            for _ in range(num_layers)
        ]
        self.pooler = Linear(d_model, d_model, **common) if pooler else None
        self.words: dict[str, Any] = {}
        if words:
            self.words["dense"] = Linear(d_model, d_model, **common)
            self.words["norm"] = normalization(d_model, dtype=dtype)
            self.words["bias"] = parameter(mg.zeros((vocab_size,), dtype=dtype))
        unused = ["cls.predictions.decoder.*"] if words else ["cls.predictions.*"]
        self.unused = ("*.position_ids", "cls.seq_relationship.*", *unused, *["bert.pooler.*"] * (not pooler))

    def __call__(self, ids: Tensor, mask: Any = None, types: Tensor | None = None) -> Tensor:
        """A vector for each of ``ids``: (B, T, d_model) for integers of shape (B, T), with T ≤ ``context_length``.

        ``mask`` of shape (B, T), True = real, says what is padding: it stands behind, as positions count it. ``types``
        of shape (B, T) says which text each token is of, 0 or 1; it is 0 unless given.
        """
        kind = self.types.weight[0, :] if types is None else self.types(types)
        x = self.positions(self.tokens(ids) + kind)
        x = self.dropout(self.norm(without_padding(x, mask, "BERT")))
        for block in self.blocks:
            x = block(x, mask)
        return x

    def pool(self, x: Tensor) -> Tensor:
        """One vector for each sequence, (B, d_model), of the first of its vectors x, (B, T, d_model): tanh(x₀W + b)."""
        if self.pooler is None:
            raise ValueError("BERT: this one has no pooler")
        pooled: Tensor = mg.tanh(self.pooler(x[..., 0, :]))
        return pooled

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the token at each position, (B, T, vocab_size), of its vectors x, (B, T, d_model)."""
        if not self.words:
            raise ValueError("BERT: this one has no head of words")
        x = self.words["norm"](self.activation(self.words["dense"](x)))
        return F.linear(x, self.tokens.weight.T, self.words["bias"])

    def embed(self, ids: Tensor, mask: Any = None, types: Tensor | None = None) -> Tensor:
        """An embedding of each text, (B, d_model): the mean over its real tokens, scaled to length 1.

        The product of two is the cosine of the angle between them. The arguments are those of a call; Sentence-BERT,
        section 3. A text without a real token gives zeros.
        """
        x = without_padding(self(ids, mask, types), mask, "BERT")
        total = mg.sum(x, axis=-2)  # it points in the direction of the mean
        squared = mg.sum(total * total, axis=-1, keepdims=True)
        unit: Tensor = total / mg.sqrt(mg.where(squared == 0, 1.0, squared))
        return unit

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters.

        Its heads are those of the first of the ``architectures`` that are named there: BertModel unless given.
        """
        name = cls.__name__
        expect_setting(name, config, "model_type", "bert")
        expect_setting(name, config, "position_embedding_type", "absolute")
        expect_setting(name, config, "is_decoder", False)
        expect_setting(name, config, "add_cross_attention", False)
        expect_setting(name, config, "tie_word_embeddings", True)
        activation = expect_setting(name, config, "hidden_act", *ACTIVATIONS)
        kind, *_ = config.get("architectures") or ["BertModel"]
        heads = HEADS[expect_setting(name, {"architectures": kind}, "architectures", *HEADS)]
        model = cls(
            config["vocab_size"],
            d_model=config["hidden_size"],
            num_heads=config["num_attention_heads"],
            num_layers=config["num_hidden_layers"],
            d_ff=config["intermediate_size"],
            context_length=config.get("max_position_embeddings", 512),
            num_types=config.get("type_vocab_size", 2),
            dropout=config.get("hidden_dropout_prob", 0.1),
            activation=ACTIVATIONS[activation],
            eps=config.get("layer_norm_eps", 1e-12),
            pooler="pooler" in heads,
            words="words" in heads,
            dtype=dtype,
            generator=generator,
        )
        dropout = config.get("attention_probs_dropout_prob", 0.1)
        check_probability(name, "attention_probs_dropout_prob", dropout)
        for block in model.blocks:
            block.attention.dropout = dropout
        return model

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Files of the first years name the parameters of a normalisation otherwise."""
        for old, new in (("gamma", "weight"), ("beta", "bias")):
            state = {name.replace(f"LayerNorm.{old}", f"LayerNorm.{new}"): value for name, value in state.items()}
        return state
