"""Other people's code: SciPy, scikit-learn, einops and array-api-extra, given Tensors, has derivatives.

Each line of a table is a call, in names of those libraries and of the arrays below. Its value is that of the same call
on NumPy arrays, its gradient that of finite differences. docs/ecosystem.md says the same to the reader.
"""

import importlib
import warnings
from contextlib import nullcontext
from typing import Any

import numpy
import pytest
from numpy.testing import assert_allclose

import minigrad as mg

pytestmark = pytest.mark.peers


def uniform(seed: int, *shape: int) -> Any:
    return numpy.random.default_rng(seed).uniform(0.5, 2.0, shape)


ARRAYS = {
    "a": uniform(1, 6, 3),
    "b": uniform(2, 6, 3),
    "u": uniform(3, 6),
    "v": uniform(4, 6),
    "p": uniform(5, 6) / 3,  # probabilities
    "q": uniform(6, 2, 4) - 1,  # quaternions
    "r": uniform(7, 2, 3) - 1,  # rotation vectors
    "s": uniform(8, 1),
}
LABELS = numpy.array([0, 1, 0, 1, 1, 0])

MODULES = {
    **{name: f"scipy.{name}" for name in ("differentiate", "fft", "integrate", "ndimage", "optimize", "signal")},
    **{name: f"scipy.{name}" for name in ("constants", "interpolate", "spatial", "special", "stats")},
    "elementwise": "scipy.optimize.elementwise",
    "scipy_linalg": "scipy.linalg",
    "transform": "scipy.spatial.transform",
    "vq": "scipy.cluster.vq",
    **{name: f"sklearn.{name}" for name in ("decomposition", "kernel_approximation", "linear_model", "metrics")},
    **{name: f"sklearn.{name}" for name in ("discriminant_analysis", "mixture", "naive_bayes", "preprocessing")},
    "pairwise": "sklearn.metrics.pairwise",
    "pipeline": "sklearn.pipeline",
    "einops": "einops",
    "ea": "einops.array_api",
    "xpx": "array_api_extra",
}

SCIPY = """
special.logsumexp(a, axis=1)
special.logsumexp(a, axis=1, b=b)
special.softmax(a, axis=1)
special.log_softmax(a, axis=1)
special.xlogy(a, b)
special.rel_entr(a, b)
stats.tmean(u)
stats.tvar(u)
stats.tstd(u)
stats.tsem(u)
stats.sem(u)
stats.gmean(u)
stats.hmean(u)
stats.pmean(u, 3)
stats.gstd(u)
stats.moment(u, 3)
stats.skew(a, axis=0)
stats.kurtosis(a, axis=0)
stats.variation(a, axis=0)
stats.zscore(a, axis=0)
stats.gzscore(u)
stats.zmap(u, v)
stats.describe(u).variance
stats.kstat(u, 3)
stats.kstatvar(u)
stats.lmoment(u)
stats.iqr(u)
stats.quantile(u, xp.asarray(0.3))
stats.median_abs_deviation(u)
stats.trim_mean(u, 0.2)
stats.circmean(u)
stats.circvar(u)
stats.circstd(u)
stats.directional_stats(r).mean_direction
stats.differential_entropy(u)
stats.boxcox_llf(0.7, u)
stats.yeojohnson_llf(0.7, u)
fft.fft(u)
fft.irfft(u)
fft.hfft(u)
fft.fftn(a)
fft.fht(u, dln=0.1, mu=0.3)
fft.fftshift(u)
signal.fftconvolve(u, v)
signal.oaconvolve(u, v)
signal.convolve(u, v, method="fft")
signal.hilbert(u)
signal.hilbert2(a)
signal.envelope(u)
signal.resample(u, 9)
signal.freqz(u, worN=8)[1]
signal.vectorstrength(u, 3.0)[0]
signal.lp2lp(u[:3], u[3:], 2.0)[0]
signal.bilinear_zpk(u[:3], u[3:], 1.0, 2.0)[0]
integrate.trapezoid(u, x=v)
integrate.cumulative_trapezoid(u, dx=0.1)
integrate.cumulative_simpson(u, dx=0.1)
integrate.tanhsinh(xp.exp, s[0], s[0] + 1).integral
integrate.cubature(lambda x: xp.exp(x[:, 0]), s - 1, s).estimate
optimize.rosen(u)
optimize.rosen_der(u)
optimize.rosen_hess_prod(u, v)
elementwise.find_root(lambda x, y: x**2 - y, (0 * u, u + 1), args=(u,)).x
transform.Rotation.from_quat(q).as_matrix()
transform.Rotation.from_quat(q).apply(r)
transform.Rotation.from_quat(q).as_rotvec()
transform.Rotation.from_quat(q).as_euler("xyz")
transform.Rotation.from_quat(q).as_mrp()
transform.Rotation.from_quat(q).mean().as_matrix()
transform.Rotation.from_quat(q).magnitude()
transform.Rotation.from_rotvec(r).as_matrix()
transform.Rotation.from_euler("xyz", r).as_quat()
transform.Rotation.from_matrix(transform.Rotation.from_rotvec(r).as_matrix()).as_quat()
(transform.Rotation.from_quat(q) * transform.Rotation.from_quat(q[0]).inv()).as_matrix()
transform.Slerp([0.0, 1.0], transform.Rotation.from_quat(q))([0.3]).as_matrix()
transform.RigidTransform.from_components(r, transform.Rotation.from_quat(q)).apply(r)
differentiate.derivative(xp.exp, u).df
vq.whiten(a)
constants.convert_temperature(u, "C", "F")
"""

SKLEARN = """\
metrics.mean_squared_error(a, b, multioutput="raw_values")
metrics.mean_absolute_error(a, b, multioutput="raw_values")
metrics.r2_score(a, b, multioutput="raw_values")
metrics.explained_variance_score(a, b, multioutput="raw_values")
pairwise.cosine_similarity(a, b)
pairwise.euclidean_distances(a, b)
pairwise.manhattan_distances(a, b)
pairwise.linear_kernel(a, b)
pairwise.polynomial_kernel(a, b)
pairwise.rbf_kernel(a, b)
pairwise.sigmoid_kernel(a, b)
pairwise.laplacian_kernel(a, b)
pairwise.chi2_kernel(a, b)
pairwise.paired_cosine_distances(a, b)
linear_model.Ridge(alpha=0.5, solver="svd").fit(a, u).coef_
linear_model.Ridge(alpha=0.5, solver="svd").fit(a, u).predict(b)
linear_model.RidgeClassifier(alpha=0.5, solver="svd").fit(a, labels).decision_function(b)
linear_model.RidgeCV().fit(a, u).predict(b)
decomposition.PCA(n_components=2, svd_solver="full").fit(a).explained_variance_
decomposition.PCA(n_components=2, svd_solver="full").fit(a).transform(b)
decomposition.PCA(n_components=2, svd_solver="covariance_eigh").fit(a).components_
discriminant_analysis.LinearDiscriminantAnalysis().fit(a, labels).decision_function(b)
naive_bayes.GaussianNB().fit(a, labels).predict_log_proba(b)
kernel_approximation.Nystroem(n_components=2, random_state=0).fit(a).transform(b)
preprocessing.MinMaxScaler().fit(a).transform(b)
preprocessing.MaxAbsScaler().fit(a).transform(b)
preprocessing.Normalizer().fit_transform(a)
preprocessing.KernelCenterer().fit_transform(a @ a.T)
preprocessing.PolynomialFeatures(2).fit_transform(a)
pipeline.make_pipeline(preprocessing.MinMaxScaler(), linear_model.Ridge(solver="svd")).fit(a, u).predict(b)
"""

EINOPS = """\
ea.rearrange(a, "(i j) k -> k j i", i=2)
ea.rearrange([a, b], "n i j -> i (n j)")
ea.reduce(a, "(i j) k -> i k", "mean", i=2)
ea.reduce(a, "(i j) k -> i k", "sum", i=2)
ea.reduce(a, "(i j) k -> i k", "max", i=2)
ea.reduce(a, "(i j) k -> i k", "min", i=2)
ea.reduce(a, "(i j) k -> i k", "prod", i=2)
ea.repeat(a, "i j -> i n (j 2)", n=3)
ea.pack([a, u], "i *")[0]
ea.unpack(a, [(1,), (2,)], "i *")[1]
"""

EXTRA = """\
xpx.cov(a)
xpx.sinc(a)
xpx.kron(q, r)
xpx.atleast_nd(u, ndim=3)
xpx.expand_dims(a, axis=(0, 2))
xpx.one_hot(labels, 2, dtype=u.dtype).T @ u
xpx.pad(a, ((1, 0), (0, 2)), constant_values=2.0)
xpx.create_diagonal(u)
xpx.nan_to_num(u)
xpx.angle(u + 1j * v)
xpx.deg2rad(u)
xpx.partition(u, 3)
xpx.apply_where(u > 1, (u, v), lambda x, y: x * y, lambda x, y: x - y)
xpx.apply_where(u > 1, u, lambda x: x * x, fill_value=0.0)
xpx.at(a)[1:3, :].set(b[1:3, :], copy=True)
xpx.at(a)[1:3, :].add(b[1:3, :], copy=True)
xpx.at(a)[1:3, :].multiply(b[1:3, :], copy=True)
xpx.at(a)[1:3, :].divide(b[1:3, :], copy=True)
xpx.at(a)[1:3, :].power(b[1:3, :], copy=True)
xpx.at(a)[1:3, :].max(b[1:3, :], copy=True)
xpx.at(a * 1)[1:3, :].set(b[1:3, :])
"""

TO_NUMPY = "a Tensor in a graph is no NumPy array"
PENDING = "in place would change values that"

# What cannot be differentiated says so: no gradient is lost in silence.
REFUSED = {
    "special.entr(p)": TO_NUMPY,
    "special.erf(u)": TO_NUMPY,
    "special.gammaln(u)": TO_NUMPY,
    "stats.entropy(p)": TO_NUMPY,
    "stats.pearsonr(u, v).statistic": TO_NUMPY,  # its p-value
    "stats.ttest_ind(u, v).statistic": TO_NUMPY,
    "stats.norm.logpdf(u)": TO_NUMPY,
    "scipy_linalg.inv(a[:3, :])": TO_NUMPY,
    "fft.dct(u)": TO_NUMPY,
    "signal.convolve(u, v)": TO_NUMPY,
    "signal.detrend(u)": TO_NUMPY,
    "signal.lfilter([1.0], [1.0], u)": "Multiple namespaces",
    "ndimage.gaussian_filter(a, 1.0)": TO_NUMPY,
    "ndimage.correlate1d(a, [1.0, 2.0])": "Multiple namespaces",
    "integrate.simpson(u)": TO_NUMPY,
    "integrate.romb(u[:5])": PENDING,
    "interpolate.CubicSpline(xp.asarray([0.0, 1, 2, 3, 4, 5]), u)(1.3)": TO_NUMPY,
    "spatial.distance.cdist(a, b)": TO_NUMPY,
    "vq.kmeans(a, a[:2, :])": TO_NUMPY,
    "linear_model.LinearRegression().fit(a, u).coef_": TO_NUMPY,
    "linear_model.LogisticRegression().fit(a, labels).coef_": "cannot be exported",
    "mixture.GaussianMixture(2, init_params='random_from_data', random_state=0).fit(a)": PENDING,
    "preprocessing.RobustScaler().fit_transform(a)": TO_NUMPY,
    "metrics.median_absolute_error(u, v)": "cannot be exported",
    "einops.rearrange(a, 'i j -> j i')": "Tensor type unknown to einops",
    "xpx.at(a)[0, :].set(1.0)": "on a leaf that requires a gradient",
}


def run(call: str, arrays: dict[str, Any]) -> Any:
    """The result of ``call``, with the ``arrays`` under their names."""
    code = compile(call, call, "eval")
    first = next(iter(arrays.values()))
    xp = mg if type(first) is mg.Tensor else numpy
    names = {
        name: importlib.import_module(MODULES[name]) for name in MODULES if f"{name}." in call or f"{name}(" in call
    }
    sklearn = any(module.__name__.startswith("sklearn") for module in names.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries warn of is theirs
        if sklearn:
            from sklearn import config_context

        with config_context(array_api_dispatch=True) if sklearn else nullcontext():
            return eval(code, {**names, "xp": xp, "labels": xp.asarray(LABELS), **arrays})


def used(call: str) -> dict[str, Any]:
    names = compile(call, call, "eval").co_names
    return {name: array for name, array in ARRAYS.items() if name in names}


@pytest.mark.parametrize("call", (SCIPY + SKLEARN + EINOPS + EXTRA).split("\n")[1:-1])
def test_has_the_value_of_numpy_and_the_gradient_of_finite_differences(call: str) -> None:
    arrays = used(call)
    expected = run(call, arrays)
    out = run(call, {name: mg.Tensor(array, requires_grad=True) for name, array in arrays.items()})
    assert type(out) is mg.Tensor
    assert out.requires_grad
    assert_allclose(out.detach().numpy(), expected, rtol=1e-10, atol=1e-12)
    mg.gradcheck(
        lambda *tensors: run(call, dict(zip(arrays, tensors, strict=True))), list(map(mg.Tensor, arrays.values()))
    )


@pytest.mark.parametrize(("call", "reason"), REFUSED.items(), ids=REFUSED)
def test_says_that_it_has_no_gradient(call: str, reason: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=reason):
        run(call, {name: mg.Tensor(array, requires_grad=True) for name, array in used(call).items()})


def test_scipy_dispatches() -> None:
    from scipy._lib._array_api import SCIPY_ARRAY_API

    assert SCIPY_ARRAY_API, "SciPy was imported before SCIPY_ARRAY_API was set"


def test_metrics_that_return_a_float() -> None:
    """scikit-learn turns a single number into a Python float, which has no gradient: ask for an array."""
    tensors = {"u": mg.Tensor(ARRAYS["u"], requires_grad=True), "v": mg.Tensor(ARRAYS["v"])}
    assert type(run("metrics.mean_squared_error(u, v)", tensors)) is float
    errors = run("metrics.mean_squared_error(u, v, multioutput='raw_values')", tensors)
    assert errors.shape == (1,)
    assert errors.requires_grad


def test_a_computed_zero_by_zero_that_is_overwritten_has_no_gradient() -> None:
    """StandardScaler divides 0 by 0 and puts another number there: the derivative of that is 0 · ∞ = NaN."""
    x = mg.Tensor(ARRAYS["a"], requires_grad=True)
    out = run("preprocessing.StandardScaler().fit_transform(a)", {"a": x})
    with numpy.errstate(all="ignore"):
        mg.sum(out**3).backward()
    assert x.grad is not None
    assert numpy.isnan(x.grad.numpy()).all()


def test_a_model_is_trained_through_other_peoples_code() -> None:
    """How strongly ridge regression holds back each feature, chosen by the error on other rows."""
    x, y = ARRAYS["a"], ARRAYS["u"]

    def loss(log_scale: mg.Tensor) -> mg.Tensor:
        scaled = mg.asarray(x) * mg.exp(log_scale)
        arrays = {"a": scaled[:4, :], "u": mg.asarray(y[:4]), "b": scaled[4:, :]}
        predicted = run("linear_model.Ridge(solver='svd').fit(a, u).predict(b)", arrays)
        return mg.mean((predicted - mg.asarray(y[4:])) ** 2)

    log_scale = mg.Tensor(ARRAYS["r"][0], requires_grad=True)
    optimizer = mg.optim.SGD([log_scale], lr=1.0)
    before = loss(log_scale).item()
    for _ in range(20):
        log_scale.grad = None
        loss(log_scale).backward()
        optimizer.step()
    assert loss(log_scale).item() < 0.6 * before
