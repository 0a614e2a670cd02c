"""Tensor: one array of any library, and, where a gradient is wanted, the graph node that made it.

A Tensor holds three things: the raw array, the node (None for a constant), and the `Memory` behind the array, which
knows whether a pending backward pass still needs its values. The operators call the namespace; the mathematics is
there, by the standard's chapters.

Sources: https://data-apis.org/array-api/latest/API_specification/array_object.html for the attributes and operators,
https://docs.pytorch.org/docs/stable/tensors.html for what has to do with gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any, NoReturn, cast

import minigrad as mg

from . import backend
from .backend import Array, describe, dtype_name, namespace_of


class Memory(list[Any]):
    """The memory behind one Tensor and the Tensors that are views of it: weak references to the nodes that saved it."""

    __slots__ = ()

    def pin(self, node: Any) -> Memory:
        """Mark this memory as needed for as long as ``node`` keeps what it saved."""
        self.append(weakref.ref(node))
        n = len(self)
        if n >= 64 and n & (n - 1) == 0:  # forget those that are done, at lengths 64, 128 …: little for each one
            for reference in [reference for reference in self if not _is_pending(reference())]:
                with suppress(ValueError):  # another thread was faster
                    self.remove(reference)
        return self

    def needed_by(self) -> str | None:
        """The operation whose backward pass needs these values, None where none does."""
        pending = (node for node in [reference() for reference in self] if _is_pending(node))
        return next((node.op.__name__ for node in pending), None)


def _is_pending(node: Any) -> bool:
    return node is not None and node.saved is not None


def _is_operand(x: Any) -> bool:
    """Whether a Tensor can be combined with ``x``; otherwise Python tries the other operand's method."""
    return type(x) is Tensor or namespace_of(x) is not None or isinstance(x, bool | int | float | complex)


Operator = Callable[["Tensor", Any], "Tensor"]


def _operator(name: str) -> tuple[Operator, Operator, Operator]:
    """The methods ``x + y``, the reflected one and ``x += y`` for the function ``name`` of the namespace."""
    functions = vars(mg)  # looked up at the call: the namespace is built on top of this file

    def method(self: Any, other: Any) -> Any:
        try:
            return functions[name](self, other)
        except TypeError:
            if _is_operand(self) and _is_operand(other):
                raise
            return NotImplemented

    def reflected(self: Tensor, other: Any) -> Any:
        return method(other, self)

    def in_place(self: Tensor, other: Any) -> Any:
        new = method(self, other)
        return new if new is NotImplemented else self._in_place(new, f"`{name}` in place")

    return method, reflected, in_place


class Tensor:
    """An array that remembers how it was made, so that a derivative can be taken.

    Parameters
    ----------
    data
        Nested lists or scalars (placed on the backend in use, see `set_backend`), an array of any Array API library
        (it stays in that library) or a Tensor. The values are copied; `asarray` shares them.
    requires_grad
        Whether `backward` shall leave the gradient of this Tensor in ``.grad``. Floating-point and complex only.
    dtype
        A dtype of the library, or its name (``"float32"``). None keeps the data's.
    device
        A device of the library. None keeps the data's, or the backend's default.

    Raises
    ------
    TypeError
        ``requires_grad`` with a dtype that has no derivative (integers, booleans).

    Examples
    --------
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([2., 4.], dtype=float64, backend=numpy, device=cpu)
    """

    __slots__ = ("__weakref__", "_data", "_memory", "_node", "_op")
    __array_ufunc__ = None  # NumPy's operators then leave ``array * tensor`` to the Tensor
    __array_priority__ = 1000

    _data: Array
    _node: Any
    _memory: Memory | None
    _op: Any

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None, device: Any = None) -> None:
        raw = data._data if type(data) is Tensor else data
        self._data = backend.asarray(mg.creation.without_tensors(raw), dtype=dtype, device=device, copy=True)
        self._node = self._memory = self._op = None
        if requires_grad:
            self.requires_grad = True

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("Tensor cannot be subclassed: operations on it are defined with minigrad.primitive")

    @staticmethod
    def _make(data: Array, node: Any = None, memory: Memory | None = None, op: Any = None) -> Tensor:
        """A Tensor around a raw array, without a copy or a check."""
        tensor = _new(Tensor)
        tensor._data = data
        tensor._node = node
        tensor._memory = memory
        tensor._op = op
        return tensor

    # -------------------------------------------------------------------------------------------- what it is

    @property
    def data(self) -> Array:
        """The raw array (NumPy: read-only while a pending backward pass needs it).

        Assigning replaces the array: shape and dtype stay (else ValueError), a graph that holds the old one is not
        disturbed.

        >>> w = Tensor([1.0, 2.0], requires_grad=True)
        >>> w.data = w.data - 0.5  # a step of an optimizer
        >>> w
        Tensor([0.5, 1.5], dtype=float64, backend=numpy, device=cpu, requires_grad=True)
        """
        needed = self._memory is not None and self._memory.needed_by()
        return backend.read_only(self._data) if needed else self._data

    @data.setter
    def data(self, value: Any) -> None:
        if value is self._data:  # ``t.data += …`` has written into the memory itself
            self._check_writable("t.data")
            return
        raw = value._data if type(value) is Tensor else backend.asarray(value)
        if raw.shape != self._data.shape or raw.dtype != self._data.dtype:
            raise ValueError(f"data: expected {describe(self._data)}, got {describe(raw)}")
        self._data = raw
        self._memory = value._share_memory() if type(value) is Tensor else None

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` left here: a Tensor of this one's shape and dtype, or None."""
        return cast("Tensor | None", getattr(self._node, "grad", None))

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None and self._node is None:
            return  # as it is already: a frozen parameter
        if not self.is_leaf or self._node is None:
            raise RuntimeError(f"grad: only a leaf that requires a gradient has one; this is {self!r}")
        if value is not None and (
            type(value) is not Tensor
            or (value.shape, value.backend, value.dtype) != (self.shape, self.backend, self.dtype)
        ):
            given = describe(value._data) if type(value) is Tensor else type(value).__name__
            raise ValueError(f"grad: expected a Tensor like {describe(self._data)}, got {given}")
        self._node.grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through this Tensor. Settable on leaves.

        TypeError for a dtype that has no derivative, RuntimeError for the result of an operation.

        >>> x = mg.ones(2)
        >>> x.requires_grad = True
        >>> x.is_leaf, (2 * x).requires_grad, (2 * x).is_leaf
        (True, True, False)
        """
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self._node is None:
            if not mg.isdtype(self.dtype, ("real floating", "complex floating")):
                raise TypeError(f"requires_grad: {describe(self._data)} has no derivative; use a floating-point dtype")
            self._node = mg.autodiff.Leaf(self._data)
        elif not value and self._node is not None:
            if not self.is_leaf:
                raise RuntimeError(f"requires_grad: the result of `{self._op}` depends on a graph; use detach()")
            self._node = None

    @property
    def is_leaf(self) -> bool:
        """Whether this Tensor was made by the user rather than by a recorded operation."""
        return self._node is None or self._node.op is None

    @property
    def dtype(self) -> Any:
        """The library's own dtype object."""
        return self._data.dtype

    @property
    def device(self) -> Any:
        """The library's own device."""
        return backend.device_of(self._data)

    @property
    def backend(self) -> str:
        """The name of the library that holds the values: ``'numpy'``, ``'cupy'``, ``'torch'`` …"""
        return backend.name_of(namespace_of(self._data))

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self._data.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self._data.shape)

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix (two axes exactly; `mT` for stacks)."""
        if self.ndim != 2:
            raise ValueError(f"T: expected 2 axes, got shape {self.shape}; use mT or permute_dims")
        return mg.matrix_transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return mg.matrix_transpose(self)

    def __repr__(self) -> str:
        try:
            values = _array_text(backend.to_numpy(self._data))
        except Exception:  # inside a tracing compiler there are no values
            values = f"<{self.shape}>"
        parts = [values, f"dtype={dtype_name(self.dtype)}", f"backend={self.backend}", f"device={self.device}"]
        if self._op is not None:
            parts.append(f"op={self._op}")
        if self._node is not None and self.is_leaf:
            parts.append("requires_grad=True")
        return f"Tensor({', '.join(parts)})"

    # -------------------------------------------------------------------------------------------- gradients

    def backward(self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Add the derivative of this Tensor to ``.grad`` of every leaf that it depends on. See `autodiff.backward`.

        >>> x = Tensor(3.0, requires_grad=True)
        >>> (x * x).backward()
        >>> (10 * x).backward()
        >>> x.grad.item()
        16.0
        """
        mg.autodiff.backward(self, gradient, retain_graph, create_graph)

    def detach(self) -> Tensor:
        """The same values outside of the graph; the memory is shared.

        >>> x = Tensor(3.0, requires_grad=True)
        >>> (x * x.detach()).backward()  # the second factor is a constant
        >>> x.grad.item()
        3.0
        """
        return Tensor._make(self._data, None, self._share_memory())

    def _share_memory(self) -> Memory:
        memory = self._memory
        if memory is None:
            memory = self._memory = Memory()
        return memory

    # -------------------------------------------------------------------------------------------- out of the Tensor

    def numpy(self) -> Array:
        """The values as a NumPy array, copied to the host where they live on a GPU. The graph is left behind."""
        return backend.to_numpy(self.data)

    def item(self) -> Any:
        """The one value of a Tensor of one element as a Python scalar (this waits for a GPU); ValueError for more."""
        if self.size != 1:
            raise ValueError(f"item: expected one element, got shape {self.shape}")
        return backend.to_numpy(self._data).item()

    def tolist(self) -> Any:
        """The values as nested Python lists (this waits for a GPU)."""
        return backend.to_numpy(self._data).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._node is not None:
            raise RuntimeError(
                "a Tensor in a graph is no NumPy array, as its gradient would be lost: use minigrad's functions, "
                "or detach() first"
            )
        values = self.numpy()
        if dtype is not None and values.dtype != dtype:
            return values.astype(dtype)
        return values.copy() if copy else values

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"minigrad follows the Array API standard up to 2025.12, not {api_version!r}")
        return mg

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        if self._node is not None:
            raise RuntimeError("a Tensor in a graph cannot be exported, as its gradient would be lost: detach() first")
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        try:
            return self.data.__dlpack__(**{name: value for name, value in options.items() if value is not None})
        except BufferError:
            self._check_writable("a write through from_dlpack")  # the receiver knows no read-only memory
            raise

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if not mg.isdtype(self.dtype, "integral"):
            raise TypeError(f"only an integer Tensor can be an index, got {describe(self._data)}")
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.shape else super().__format__(spec)

    # A copy is a leaf or a constant with memory of its own, as is what comes out of a pickle.

    def __copy__(self) -> Tensor:
        self._check_outside_graph("copied")
        grad = None if self.grad is None else self.grad.__copy__()
        return _unpickled(Tensor(self)._data, self.requires_grad, grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_outside_graph("pickled")
        return _unpickled, (self._data, self.requires_grad, self.grad)

    def _check_outside_graph(self, what: str) -> None:
        if not self.is_leaf:
            raise RuntimeError(
                f"a Tensor in a graph cannot be {what} (this one was made by `{self._op}`): detach() first"
            )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-dimensional Tensor")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # -------------------------------------------------------------------------------------------- indexing

    def __getitem__(self, key: Any) -> Tensor:
        return mg.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        tracked = type(value) is Tensor and value._node is not None
        if mg.autodiff.is_recording() and (self._node is not None or tracked):
            self._replace(mg.setitem(self, key, value), "x[…] = …")
        else:
            self._check_writable("x[…] = …")
            raw = value._data if type(value) is Tensor else value
            self._data = backend.set_item(self._data, mg.indexing.raw_key(self._data, key), raw)

    def _replace(self, new: Tensor, what: str) -> Tensor:
        """Become ``new``: what an in-place operation means for a Tensor in a graph. The old values stay untouched."""
        if self._node is not None and self.is_leaf:
            raise RuntimeError(
                f"{what} on a leaf that requires a gradient would lose it: work on a copy (x = +x), or under no_grad()"
            )
        self._data, self._node, self._memory, self._op = new._data, new._node, new._memory, new._op
        return self

    def _check_writable(self, what: str) -> None:
        operation = None if self._memory is None else self._memory.needed_by()
        if operation:
            raise RuntimeError(
                f"{what} would change values that `{operation}` needs for a pending backward pass "
                f"({describe(self._data)}): call backward first, or write to a copy"
            )

    def _in_place(self, new: Tensor, what: str) -> Tensor:
        """The end of ``x += y`` and its like, with ``new = x + y``."""
        if new.shape != self.shape or new.dtype != self.dtype:
            raise ValueError(f"{what}: the result, {describe(new._data)}, does not fit into {describe(self._data)}")
        if new._node is not None:
            return self._replace(new, what)
        self._check_writable(what)
        self._data = backend.set_item(self._data, ..., new._data)
        return self

    # -------------------------------------------------------------------------------------------- its functions

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The Tensor on another device of its library; the gradient comes back on this one's."""
        return mg.to_device(self, device)

    def astype(self, dtype: Any, /, *, copy: bool = True) -> Tensor:
        """See `minigrad.astype`."""
        return mg.astype(self, dtype, copy=copy)

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """See `minigrad.sum`."""
        return mg.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """See `minigrad.mean`."""
        return mg.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """See `minigrad.max`."""
        return mg.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """See `minigrad.min`."""
        return mg.min(self, axis=axis, keepdims=keepdims)

    def exp(self) -> Tensor:
        """See `minigrad.exp`."""
        return mg.exp(self)

    def log(self) -> Tensor:
        """See `minigrad.log`."""
        return mg.log(self)

    def reshape(self, *shape: Any) -> Tensor:
        """See `minigrad.reshape`: the shape as one tuple or as arguments."""
        return mg.reshape(self, tuple(shape[0]) if isinstance(shape[0], tuple | list) else shape)

    # -------------------------------------------------------------------------------------------- operators

    __add__, __radd__, __iadd__ = _operator("add")
    __sub__, __rsub__, __isub__ = _operator("subtract")
    __mul__, __rmul__, __imul__ = _operator("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operator("floor_divide")
    __mod__, __rmod__, __imod__ = _operator("remainder")
    __pow__, __rpow__, __ipow__ = _operator("pow")
    __matmul__, __rmatmul__, __imatmul__ = _operator("matmul")
    __and__, __rand__, __iand__ = _operator("bitwise_and")
    __or__, __ror__, __ior__ = _operator("bitwise_or")
    __xor__, __rxor__, __ixor__ = _operator("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _operator("bitwise_left_shift")
    __rshift__, __rrshift__, __irshift__ = _operator("bitwise_right_shift")
    __eq__, __ne__ = _operator("equal")[0], _operator("not_equal")[0]  # type: ignore[assignment]
    __lt__, __le__ = _operator("less")[0], _operator("less_equal")[0]
    __gt__, __ge__ = _operator("greater")[0], _operator("greater_equal")[0]
    __hash__ = object.__hash__  # by identity: parameters are keys of optimizer state

    def __neg__(self) -> Tensor:
        return mg.negative(self)

    def __pos__(self) -> Tensor:
        return mg.positive(self)

    def __abs__(self) -> Tensor:
        return mg.abs(self)

    def __invert__(self) -> Tensor:
        return mg.bitwise_invert(self)


def _unpickled(data: Array, requires_grad: bool, grad: Tensor | None) -> Tensor:
    tensor = Tensor._make(data)
    tensor.requires_grad, tensor.grad = requires_grad, grad
    return tensor


def _array_text(values: Array) -> str:
    text = repr(values)
    return text[text.index("(") + 1 : text.rindex(")")].split(", dtype=")[0].replace("\n      ", "\n       ")


_new = object.__new__
