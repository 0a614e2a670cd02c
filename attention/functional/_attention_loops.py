"""attention.py's forward and backward pass as loops for a compiler, for NumPy's float32.

The formulas are those of `_forward` and `_backward` there, block after block: of some queries and `KEYS` keys, whose
scores stay in a core's own cache, as they do not where every operation is a call of NumPy's. So that the products can
be made there too, they are ours. What a compiler makes of plain loops reaches half of what a processor can do, as it
does not keep sums in registers; `product` does so by hand. A compiler does well with loops over rows in memory of a
known multiple of eight numbers. So queries, keys and values are first copied, for which they may lie in memory as they
like: rows are made a multiple of 6 long or of 16, and what is beyond is 0, or is never looked at.

All that one of these functions calls stands in this file: what a compiler keeps on disk is made anew when it changes.
"""

# ruff: noqa: E741  — O and l are the papers' names

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy

import minigrad as mg
from minigrad._threads import in_parts, state, task
from minigrad.backend import NUMPY, Array, compiled, in_parallel, parts_for

from ._tiles import Part, Tiles, cut
from .attention import seen

ir: Any = importlib.import_module("llvmlite.ir")
types: Any = importlib.import_module("numba.types")
cgutils: Any = importlib.import_module("numba.core.cgutils")
extending: Any = importlib.import_module("numba.extending")
intrinsic: Callable[..., Any] = extending.intrinsic

f = numpy.float32
loop, loop_with_sums = compiled(), compiled(sums_in_any_order=True)
ROWS, CAUSAL_ROWS, KEYS = 120, 60, 64  # measured: of 240 rows or 128 keys, less stays in a cache of 512 KiB
FEW = 6  # queries at a time in `product`; with fewer, each key and value is used too seldom to be copied


# ------------------------------------------------------------------------------------------------ the product


class _Float32x8(types.Type):  # type: ignore[misc]
    """Eight numbers in a register: a value of Numba's, which LLVM splits where registers are shorter."""


_vector = ir.VectorType(ir.FloatType(), 8)
_float32x8 = _Float32x8("float32x8")


@extending.register_model(_Float32x8)
class _Model(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _vector)


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """That of the element that the first three arguments, x, i and j, name."""
    x = context.make_array(signature.args[0])(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, signature.args[0], x, args[1:3])


@intrinsic
def _load(typing: Any, x: Any, i: Any, j: Any) -> Any:
    """x[i, j : j + 8]"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature, args)
        return builder.load(builder.bitcast(address, _vector.as_pointer()), align=4)

    return _float32x8(x, types.intp, types.intp), generate


@intrinsic
def _store(typing: Any, x: Any, i: Any, j: Any, v: Any) -> Any:
    """x[i, j : j + 8] = v"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature, args)
        builder.store(args[3], builder.bitcast(address, _vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(x, types.intp, types.intp, _float32x8), generate


@intrinsic
def _spread(typing: Any, x: Any, i: Any, j: Any) -> Any:
    """x[i, j], eight times"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = builder.load(_address(context, builder, signature, args))
        first = builder.insert_element(ir.Constant(_vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))

    return _float32x8(x, types.intp, types.intp), generate


@intrinsic
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once where the processor can"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(builder.fmul(args[0], args[1], flags=("contract",)), args[2], flags=("contract",))

    return _float32x8(_float32x8, _float32x8, _float32x8), generate


@intrinsic
def _plus(typing: Any, a: Any, b: Any) -> Any:
    return _float32x8(a, b), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def _zeros(typing: Any) -> Any:
    return _float32x8(), lambda context, builder, signature, args: ir.Constant(_vector, None)


@loop
def product(A: Array, B: Array, C: Array, rows: int, columns: int, n: int, add: bool) -> None:
    """C = A B, or C += A B, of so many rows and columns, each a sum over n; A may be a transposed view.

    6 × 16 sums at a time stay in twelve registers, as many as sixteen allow beside what is loaded (K. Goto and R. van
    de Geijn, "Anatomy of high-performance matrix multiplication", 2008). So A, B and C have to have rows and columns up
    to a multiple of 6 and 16, whatever stands in those beyond.
    """
    for j in range(0, columns, 16):
        for i in range(0, rows, 6):
            c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = c40 = c41 = c50 = c51 = _zeros()
            if add:
                c00, c01 = _load(C, i, j), _load(C, i, j + 8)
                c10, c11 = _load(C, i + 1, j), _load(C, i + 1, j + 8)
                c20, c21 = _load(C, i + 2, j), _load(C, i + 2, j + 8)
                c30, c31 = _load(C, i + 3, j), _load(C, i + 3, j + 8)
                c40, c41 = _load(C, i + 4, j), _load(C, i + 4, j + 8)
                c50, c51 = _load(C, i + 5, j), _load(C, i + 5, j + 8)
            for k in range(n):
                b0, b1 = _load(B, k, j), _load(B, k, j + 8)
                a = _spread(A, i, k)
                c00, c01 = _fma(a, b0, c00), _fma(a, b1, c01)
                a = _spread(A, i + 1, k)
                c10, c11 = _fma(a, b0, c10), _fma(a, b1, c11)
                a = _spread(A, i + 2, k)
                c20, c21 = _fma(a, b0, c20), _fma(a, b1, c21)
                a = _spread(A, i + 3, k)
                c30, c31 = _fma(a, b0, c30), _fma(a, b1, c31)
                a = _spread(A, i + 4, k)
                c40, c41 = _fma(a, b0, c40), _fma(a, b1, c41)
                a = _spread(A, i + 5, k)
                c50, c51 = _fma(a, b0, c50), _fma(a, b1, c51)
            _store(C, i, j, c00), _store(C, i, j + 8, c01)
            _store(C, i + 1, j, c10), _store(C, i + 1, j + 8, c11)
            _store(C, i + 2, j, c20), _store(C, i + 2, j + 8, c21)
            _store(C, i + 3, j, c30), _store(C, i + 3, j + 8, c31)
            _store(C, i + 4, j, c40), _store(C, i + 4, j + 8, c41)
            _store(C, i + 5, j, c50), _store(C, i + 5, j + 8, c51)


# ------------------------------------------------------------------------------------------------ copies


@loop
def up(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return (n + multiple - 1) // multiple * multiple


@loop
def _fill(x: Array, number: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = number


@loop
def _rows(L: int, causal: bool) -> Any:
    """How many of L queries are a block's: blocks of one length, or short ones, of which more are left out."""
    return min(up(L, 6), CAUSAL_ROWS) if causal else up(-(-L // -(-L // ROWS)), 6)


@loop
def _copy(x: Array, scale: Any, y: Array) -> None:
    """y = scale · x, and 0 beyond."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * scale
        for j in range(x.shape[1], y.shape[1]):
            y[i, j] = f(0)
    for i in range(x.shape[0], y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = f(0)


@loop
def _transpose(x: Array, y: Array) -> None:
    """y = xᵀ, and 0 in the columns beyond."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[j, i] = x[i, j]
    for j in range(x.shape[1]):
        for i in range(x.shape[0], y.shape[1]):
            y[j, i] = f(0)


@loop
def _add(x: Array, scale: Any, y: Array) -> None:
    """y += scale · x, as much of it as y has."""
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] += x[i, j] * scale


@loop
def _head(x: Array, a: int, b: int, c: int) -> Array:
    """The matrix of a head; axes of length 1 broadcast."""
    return x[a % x.shape[0], b % x.shape[1], c % x.shape[2]]


# ------------------------------------------------------------------------------------------------ a row of scores


@loop
def _exp(x: Any) -> Any:
    """eˣ for x ≤ 0, as in `_loops.exp`."""
    x = f(-88) if x < f(-88) else x  # written so that NaN stays
    shifted = x * f(1.44269504088896341) + f(12582912)
    n = shifted - f(12582912)
    r = x - n * f(0.693359375) + n * f(2.12194440e-4)
    y = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    y = y * r + f(8.3334519073e-3)
    y = y * r + f(4.1665795894e-2)
    y = y * r + f(1.6666665459e-1)
    y = y * r + f(5.0000001201e-1)
    y = y * r * r + r + f(1)
    return y * numpy.int32((f(shifted).view(numpy.int32) + 127) << 23).view(numpy.float32)


@loop
def _exp_minus(x: Array, sixteens: int, m: Any) -> None:
    """x becomes exp(x − m)."""
    for j in range(16 * sixteens):
        x[j] = _exp(x[j] - m)


@loop_with_sums
def _maximum(x: Array, sixteens: int, m: Any) -> Any:
    for j in range(16 * sixteens):
        m = max(x[j], m)
    return m


@loop_with_sums
def _sum(x: Array, sixteens: int) -> Any:
    total = f(0)
    for j in range(16 * sixteens):
        total += x[j]
    return total


@loop
def _finite(m: Any) -> Any:
    """See `_numerics.finite`."""
    return f(0) if m == f(-math.inf) else f(math.nan) if m == f(math.inf) else m


@loop
def _softmax(S: Array, n: int, sixteens: int, m: Array, l: Array, O: Array) -> None:
    """S becomes exp(S − m) in n rows; m, l and O, of the keys before, what they are with these."""
    for i in range(n):
        highest = _maximum(S[i], sixteens, m[i])
        shift = _finite(highest)
        _exp_minus(S[i], sixteens, shift)
        if highest > m[i]:
            factor = _exp(m[i] - shift)
            for j in range(O.shape[1]):
                O[i, j] *= factor
            l[i] *= factor
            m[i] = highest
        l[i] += _sum(S[i], sixteens)


@loop
def _times_difference(P: Array, dP: Array, D: Array, n: int, sixteens: int) -> None:
    """dP becomes P ∘ (dP − D) in n rows."""
    for i in range(n):
        Di = D[i]
        for j in range(16 * sixteens):
            dP[i, j] = P[i, j] * (dP[i, j] - Di)


# ------------------------------------------------------------------------------------------------ a block of scores


@loop
def _key_range(first: int, L: int, S: int, causal: bool, window: int) -> tuple[int, int]:
    """The keys that the queries first … first + L − 1 may attend to; one at least."""
    stop = min(S, first + L) if causal else S
    return max(0, min(first - window + 1, stop - 1)) if window else 0, stop


@loop
def _scores(
    Q: Array, KT: Array, mask: Array, at: int, i: int, n: int, s: int, keys: int, causal: bool, window: int, S: Array
) -> None:
    """S = Q Kᵀ + mask of the queries i … i + n − 1 and so many keys from s on; −∞ where one must not attend."""
    sixteens = KT.shape[1] // 16
    product(Q, KT, S, n, KT.shape[1], KT.shape[0], False)
    for r in range(n):
        if mask.size:
            row = (at + r) % mask.shape[0]
            for j in range(0, keys - 7, 8):
                _store(S, r, j, _plus(_load(S, r, j), _load(mask, row, s + j)))
            for j in range(keys // 8 * 8, keys):
                S[r, j] += mask[row, s + j]
        start = i + r - window + 1 - s if window else 0
        stop = min(keys, i + r + 1 - s) if causal else keys
        for j in range(min(start, 16 * sixteens)):
            S[r, j] = f(-math.inf)
        for j in range(max(stop, 0), 16 * sixteens):
            S[r, j] = f(-math.inf)


# ------------------------------------------------------------------------------------------------ forward, backward


_given = types.Array(types.float32, 5, "A", readonly=True)  # (…, rows, columns) with three leading axes
_made = types.Array(types.float32, 5, "A")
_rest = (types.intp, types.boolean, types.intp, types.float64)


@compiled(signature=types.void(*[_given] * 4, *_rest, *[_made] * 3))
def _forward(
    query: Array, key: Array, value: Array, mask: Array, first: int, causal: bool, window: int, scale: float,
    out: Array, m_out: Array, l_out: Array,
) -> None:  # fmt: skip
    """O, m and l of the queries from the ``first`` on; ``mask`` is added to the scores, where it is not empty."""
    A, B, C, L, Ev = out.shape
    S, E = key.shape[-2:]
    rows, keys = _rows(L, causal), min(up(S, 16), KEYS)
    Q, O = numpy.empty((L + 5, E), f), numpy.empty((L + 5, up(Ev, 16)), f)
    KT, V, P = numpy.empty((E, keys), f), numpy.empty((keys, up(Ev, 16)), f), numpy.zeros((rows, keys + 16), f)
    m, l = numpy.empty(L, f), numpy.empty(L, f)
    start, stop = _key_range(first, L, S, causal, window)
    for a in range(A):
        for b in range(B):
            for c in range(C):
                k, v, bias = _head(key, a, b, c), _head(value, a, b, c), _head(mask, a, b, c)
                _copy(_head(query, a, b, c), f(scale), Q)
                _fill(O, f(0))
                for i in range(L):
                    m[i], l[i] = f(-math.inf), f(0)
                for s in range(start, stop, keys):
                    n_keys = min(keys, stop - s)
                    _transpose(k[s : s + n_keys], KT)
                    _copy(v[s : s + n_keys], f(1), V)
                    for r in range(0, L, rows):
                        i, n = first + r, min(rows, L - r)
                        from_here, to_here = _key_range(i, n, S, causal, window)
                        if s < to_here and from_here < s + n_keys:
                            _scores(Q[r:], KT, bias, r, i, n, s, n_keys, causal, window, P)
                            _softmax(P, n, keys // 16, m[r:], l[r:], O[r:])
                            product(P, V, O[r:], n, Ev, keys, True)
                for i in range(L):
                    total = f(1) if l[i] == f(0) else l[i]
                    l_out[a, b, c, i, 0], m_out[a, b, c, i, 0] = total, _finite(m[i])
                    for j in range(Ev):
                        out[a, b, c, i, j] = O[i, j] / total


@loop_with_sums
def _few_queries(
    part: int, parts: int, query: Array, key: Array, value: Array, mask: Array, causal: bool, window: int, scale: float,
    out: Array, m_out: Array, l_out: Array,
) -> None:  # fmt: skip
    """Every ``parts``-th head, from ``part`` on: a query's whole row of scores, its softmax, and the sum of values."""
    A, B, C, L, Ev = out.shape
    S, E = key.shape[-2:]
    P = numpy.empty(up(S, 16), f)
    for head in range(part, A * B * C, parts):
        a, b, c = head // (B * C), head // C % B, head % C
        q, k, v, bias = (_head(query, a, b, c), _head(key, a, b, c), _head(value, a, b, c), _head(mask, a, b, c))
        for i in range(L):
            start, stop = _key_range(i, 1, S, causal, window)
            n, sixteens, row = stop - start, up(stop - start, 16) // 16, q[i]
            for j in range(n):
                kj, total = k[start + j], f(0)
                for e in range(E):
                    total += row[e] * kj[e]
                P[j] = total * f(scale)
            if mask.size:
                for j in range(n):
                    P[j] += bias[i % bias.shape[0], start + j]
            for j in range(n, 16 * sixteens):
                P[j] = f(-math.inf)
            m = _finite(_maximum(P, sixteens, f(-math.inf)))
            _exp_minus(P, sixteens, m)
            l = _sum(P, sixteens)
            l = f(1) if l == f(0) else l
            O = out[a, b, c, i]
            for e in range(Ev):
                O[e] = f(0)
            for j in range(n):
                vj, p = v[start + j], P[j] / l
                for e in range(Ev):
                    O[e] += p * vj[e]
            m_out[a, b, c, i, 0], l_out[a, b, c, i, 0] = m, l


_few_queries_task = task(_few_queries)
_given_rows, _made_rows = types.Array(types.float32, 5, "C", readonly=True), types.Array(types.float32, 5, "C")
_options = (types.boolean, types.intp, types.float64)


@compiled(signature=types.void(types.int64[::1], types.intp, *[_given_rows] * 4, *_options, *[_made_rows] * 3))
def _forward_of_few(
    state: Array, parts: int, query: Array, key: Array, value: Array, mask: Array,
    causal: bool, window: int, scale: float, out: Array, m_out: Array, l_out: Array,
) -> None:  # fmt: skip
    """`_forward` for few queries, with each key and value read where it is."""
    code, data = _few_queries_task((parts, query, key, value, mask, causal, window, scale, out, m_out, l_out))
    in_parts(state, parts, code, data)


@loop_with_sums
def _divided(g: Array, out: Array, l: Array, dO_l: Array, D_l: Array) -> None:
    """dO / l and D / l, and 0 beyond."""
    for i in range(g.shape[0]):
        D, li = f(0), l[i, 0]
        for j in range(g.shape[1]):
            dO_l[i, j] = g[i, j] / li
            D += dO_l[i, j] * out[i, j]
        D_l[i] = D
        for j in range(g.shape[1], dO_l.shape[1]):
            dO_l[i, j] = f(0)
    for i in range(g.shape[0], dO_l.shape[0]):
        for j in range(dO_l.shape[1]):
            dO_l[i, j] = f(0)


@compiled(signature=types.void(*[_given] * 8, *_rest, *[_made] * 3))
def _backward(
    g: Array, query: Array, key: Array, value: Array, mask: Array, out: Array, m_in: Array, l_in: Array,
    first: int, causal: bool, window: int, scale: float,
    dquery: Array, dkey: Array, dvalue: Array,
) -> None:  # fmt: skip
    """Add what these queries give to dQ, dK and dV, to each that is not empty."""
    A, B, C, L, Ev = out.shape
    S, E = key.shape[-2:]
    rows, keys = _rows(L, causal), min(up(S, 16), KEYS)
    Q, dO_l, dQ = (numpy.empty((L + 5, up(E, 16)), f), numpy.empty((L + 5, up(Ev, 16)), f),
                   numpy.empty((L + 5, up(E, 16)), f))  # fmt: skip
    K, KT, VT = numpy.empty((keys, up(E, 16)), f), numpy.empty((E, keys), f), numpy.empty((Ev, keys), f)
    dK, dV = numpy.empty((up(keys, 6), up(E, 16)), f), numpy.empty((up(keys, 6), up(Ev, 16)), f)
    P, dP = numpy.zeros((rows, keys + 16), f), numpy.zeros((rows, keys + 16), f)
    m, D_l = numpy.empty(L, f), numpy.empty(L, f)
    start, stop = _key_range(first, L, S, causal, window)
    for a in range(A):
        for b in range(B):
            for c in range(C):
                k, v, bias = _head(key, a, b, c), _head(value, a, b, c), _head(mask, a, b, c)
                dk, dv = _head(dkey, a, b, c), _head(dvalue, a, b, c)
                _copy(_head(query, a, b, c), f(scale), Q)
                _divided(g[a, b, c], out[a, b, c], l_in[a, b, c], dO_l, D_l)
                _fill(dQ, f(0))
                for i in range(L):
                    m[i] = m_in[a, b, c, i, 0]
                for s in range(start, stop, keys):
                    n_keys = min(keys, stop - s)
                    _copy(k[s : s + n_keys], f(1), K)
                    _transpose(k[s : s + n_keys], KT)
                    _transpose(v[s : s + n_keys], VT)
                    _fill(dK, f(0))
                    _fill(dV, f(0))
                    for r in range(0, L, rows):
                        i, n = first + r, min(rows, L - r)
                        from_here, to_here = _key_range(i, n, S, causal, window)
                        if s < to_here and from_here < s + n_keys:
                            _scores(Q[r:], KT, bias, r, i, n, s, n_keys, causal, window, P)
                            for j in range(n):
                                _exp_minus(P[j], keys // 16, m[r + j])
                            if dvalue.size:
                                product(P.T, dO_l[r:], dV, keys, Ev, n, True)
                            if dquery.size or dkey.size:
                                product(dO_l[r:], VT, dP, n, keys, Ev, False)
                                _times_difference(P, dP, D_l[r:], n, keys // 16)
                            if dquery.size:
                                product(dP, K, dQ[r:], n, E, keys, True)
                            if dkey.size:
                                product(dP.T, Q[r:], dK, keys, E, n, True)  # this Q has the scale in it
                    _add(dV, f(1), dv[s : s + n_keys])
                    _add(dK, f(1), dk[s : s + n_keys])
                _add(dQ, f(scale), _head(dquery, a, b, c))


# ------------------------------------------------------------------------------------------------ called from Python


def forward_of_few(
    query: Array, key: Array, value: Array, mask: Array | None, causal: bool, window: int | None, scale: float
) -> tuple[Array, Array, Array]:
    """O, m and l of fewer than ``FEW`` queries, which is what a model has that writes one token after the other."""
    query, key, value, bias = _with_bias(query, key, value, mask, causal, window)
    heads, L = mg.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]), query.shape[-2]
    out = numpy.empty((*heads, L, value.shape[-1]), f)
    m, l = numpy.empty((*heads, L, 1), f), numpy.empty((*heads, L, 1), f)
    count = math.prod(heads)
    parts = min(parts_for(count * L * key.shape[-2] * query.shape[-1]), count)
    given = [_five(None if x is None else numpy.ascontiguousarray(x)) for x in (query, key, value, bias)]
    _forward_of_few(
        state, parts, *given, bool(causal), min(window or 0, L), float(scale), _five(out), _five(m), _five(l)
    )
    return out, m, l


def forward(
    tiling: Tiles, query: Array, key: Array, value: Array, mask: Array | None, causal: bool, window: int | None,
    scale: float, out: Array, m: Array, l: Array,
) -> None:  # fmt: skip
    """Write O, m and l of a whole problem."""
    query, key, value, bias = _with_bias(query, key, value, mask, causal, window)
    options = bool(causal), min(window or 0, tiling.L), float(scale)

    def arguments(lane: int, heads: Part, rows: slice) -> list[Any]:
        at = (*heads, rows)
        given = cut(query, at), cut(key, heads), cut(value, heads), cut(bias, at)
        made = [x[(*at, ...)] for x in (out, m, l)]
        return [*map(_five, given), rows.start, *options, *map(_five, made)]

    _on_all_lanes(_forward, tiling, arguments)


def backward(
    tiling: Tiles, g: Array, query: Array, key: Array, value: Array, mask: Array | None, out: Array, m: Array, l: Array,
    causal: bool, window: int | None, scale: float, sums: dict[str, list[Array]],
) -> None:  # fmt: skip
    """Add the gradients that are wanted to each lane's ``sums``."""
    query, key, value, bias = _with_bias(query, key, value, mask, causal, window)
    options = bool(causal), min(window or 0, tiling.L), float(scale)

    def arguments(lane: int, heads: Part, rows: slice) -> list[Any]:
        at = (*heads, rows)
        given = cut(g, at), cut(query, at), cut(key, heads), cut(value, heads), cut(bias, at)
        computed = [cut(x, at) for x in (out, m, l)]
        places = {"query": at, "key": heads, "value": heads}
        made = [cut(sums[name][lane], to) if name in sums else None for name, to in places.items()]
        return [*map(_five, (*given, *computed)), rows.start, *options, *map(_five, made)]

    _on_all_lanes(_backward, tiling, arguments)


def _on_all_lanes(loops: Any, tiling: Tiles, arguments: Callable[..., list[Any]]) -> None:
    # All of Python's part beforehand: threads that wait for its lock fall asleep.
    calls = [[arguments(i, *block) for block in lane] for i, lane in enumerate(tiling.lanes)]

    def work(lane: int) -> None:
        for given in calls[lane]:
            loops(*given)

    in_parallel(work, len(calls))


@loop
def _hide(mask: Array, bias: Array) -> None:
    """−∞ where a mask says no, a tenth of the time of `numpy.where`."""
    for i in range(mask.size):
        bias[i] = f(0) if mask[i] else f(-math.inf)


def _with_bias(
    query: Array, key: Array, value: Array, mask: Array | None, causal: bool, window: int | None
) -> tuple[Array, Array, Array, Array | None]:
    """The mask as what is added to the scores: float32, −∞ for False, with a number for each key."""
    if mask is None:
        return query, key, value, None
    L, S = query.shape[-2], key.shape[-2]
    with numpy.errstate(all="ignore"):
        finite = all(math.isfinite(numpy.sum(x)) for x in (query, key, value))
    if not finite:  # or so large that the sum is not
        query, key, value, _ = seen(NUMPY, query, key, value, mask, slice(0, L), slice(0, S), causal, window)
    if mask.dtype == numpy.bool:
        bias = numpy.empty(mask.shape, f)
        _hide(numpy.ravel(mask), bias.ravel())  # a view
    else:
        bias = mask.astype(f, copy=False)
    return query, key, value, numpy.ascontiguousarray(numpy.broadcast_to(bias, (*bias.shape[:-1], S)))


_nothing = numpy.empty((1, 1, 1, 0, 0), f)


def _five(x: Array | None) -> Array:
    """x with three leading axes; None as an empty array."""
    return _nothing if x is None else x[(None,) * (5 - x.ndim)]
