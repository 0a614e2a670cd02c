"""attention.functional: the operations of Transformers, each with a backward pass derived by hand.

Every file holds an operation's forward pass, its backward pass and, in the docstring, how one follows from the other.
There δx is a small change of x, its differential, while dx is the gradient with respect to x, as in the code, and g the
gradient of the output y. So a change δx changes the loss by Σ g ∘ δy, and who writes that as Σ dx ∘ δx has found dx.

Arrays are Tensors or arrays of any library, of a real floating-point dtype; indices and classes are integers. x may be
of any shape, unless said otherwise, and the result has its shape and dtype; float16 and bfloat16 are computed in
float32. Another dtype is a TypeError (but for relu, dropout, embedding and rotary), a shape that does not fit a
ValueError, an axis that is not there an IndexError: one line, with the name of the operation and what it was given.

The names are those of ``torch.nn.functional`` (https://docs.pytorch.org/docs/stable/nn.functional.html; erf: of
``torch``), and so is the order of the arguments that both have. Where no paper is named, the definition is PyTorch's.
What PyTorch calls ``input`` is ``x`` here, or ``logits`` or ``indices``. And

    linear                          vectors are rows: x W + b, with ``weight`` of shape (in, out)
    embedding                       has neither ``padding_idx`` nor ``max_norm``
    softmax, log_softmax            have ``axis``, as the array API standard, -1 by default, for ``dim``
    layer_norm, rms_norm            act on the last axis, without ``normalized_shape``; ``eps`` of rms_norm is 1e-6
    relu, silu, dropout             do nothing in place
    dropout                         takes a ``generator``
    rotary                          is not in PyTorch
    scaled_dot_product_attention    takes a ``generator``, and gives the weights, too, with ``return_weights``
    cross_entropy                   has the classes on the last axis, integers as targets, and no weights of classes
"""

from .activation import erf, gelu, relu, sigmoid, silu
from .attention import scaled_dot_product_attention
from .dropout import dropout
from .embedding import embedding
from .linear import linear
from .loss import cross_entropy
from .normalization import layer_norm, rms_norm
from .rotary import rotary
from .softmax import log_softmax, softmax

__all__ = [
    "linear", "embedding", "softmax", "log_softmax", "layer_norm", "rms_norm", "relu", "sigmoid", "silu", "gelu", "erf",
    "dropout", "rotary", "scaled_dot_product_attention", "cross_entropy",
]  # fmt: skip
