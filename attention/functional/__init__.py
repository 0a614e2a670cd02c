"""attention.functional: the operations of Transformers, each with a backward pass derived by hand.

Every file holds an operation's forward pass, its backward pass and, in the docstring, how one follows from the other.
The names and arguments are those of ``torch.nn.functional``, but vectors are rows (``linear`` computes x W + b) and
options are in the spelling of the array API standard (``axis``).
"""

from .activation import erf, gelu, relu, sigmoid, silu
from .attention import scaled_dot_product_attention
from .dropout import dropout
from .embedding import embedding
from .linear import linear
from .loss import cross_entropy
from .normalization import layer_norm, rms_norm
from .softmax import log_softmax, softmax

__all__ = [
    "linear", "embedding", "softmax", "log_softmax", "layer_norm", "rms_norm", "relu", "sigmoid", "silu", "gelu", "erf",
    "dropout", "scaled_dot_product_attention", "cross_entropy",
]  # fmt: skip
