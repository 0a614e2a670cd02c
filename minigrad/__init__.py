"""minigrad: reverse-mode automatic differentiation over any Python Array API namespace.

This package is itself such a namespace: ``minigrad.exp``, ``minigrad.sum`` … with the standard's names and
signatures, on Tensors that can be differentiated. A function is found in the file of its chapter of the standard.

A call that does not fit is an error that names the function and what it was given. Where a docstring tells the class,
it is what NumPy gives; another library can have its own for it.

>>> import minigrad as mg
>>> x = mg.Tensor([1.0, 2.0], requires_grad=True)
>>> mg.sum(mg.exp(x)).backward()
>>> x.grad
Tensor([2.71828183, 7.3890561 ], dtype=float64, backend=numpy, device=cpu)
"""

from __future__ import annotations

import math as _math
from typing import Any as _Any

from . import (
    _interrupt,  # first: from here on Ctrl-C is told in one line
    autodiff,
    backend,
    creation,
    data_types,
    elementwise,
    fft,
    indexing,
    inspection,
    linalg,
    linear_algebra,
    manipulation,
    optim,
    random,
    searching,
    sets,
    sorting,
    statistical,
    transforms,
    utility,
)
from .autodiff import Primitive, keep, no_grad, primitive
from .backend import BackendError, get_backend, set_backend, use_backend
from .checkpointing import checkpoint
from .creation import *
from .data_types import *
from .elementwise import *
from .gradcheck import gradcheck, gradgradcheck  # the functions take the place of their module's name
from .indexing import *
from .inspection import *
from .linear_algebra import *
from .manipulation import *
from .searching import *
from .sets import *
from .sorting import *
from .statistical import *
from .tensor import Tensor
from .transforms import *
from .utility import *

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

e = _math.e
inf = _math.inf
nan = _math.nan
newaxis = None
pi = _math.pi

__all__ = [
    "BackendError",
    "Primitive",
    "Tensor",
    "checkpoint",
    "e",
    "fft",
    "get_backend",
    "gradcheck",
    "gradgradcheck",
    "inf",
    "keep",
]
__all__ += ["linalg", "nan", "newaxis", "no_grad", "optim", "pi", "primitive", "random", "set_backend", "use_backend"]
__all__ += creation.__all__ + data_types.__all__ + elementwise.__all__ + indexing.__all__ + inspection.__all__
__all__ += linear_algebra.__all__ + manipulation.__all__ + searching.__all__ + sets.__all__ + sorting.__all__
__all__ += statistical.__all__ + transforms.__all__ + utility.__all__


def __getattr__(name: str) -> _Any:
    """The standard's dtypes, as the objects of the backend in use."""
    if name in data_types.DTYPES:
        xp = backend.current().xp
        if hasattr(xp, name):
            return getattr(xp, name)
        raise AttributeError(f"backend {get_backend()!r} has no dtype {name!r}")
    raise AttributeError(f"module 'minigrad' has no attribute {name!r}")
