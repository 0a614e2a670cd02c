"""What every test begins with. ``MINIGRAD_BACKEND`` (and ``MINIGRAD_DEVICE``) name the backend under test."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

import minigrad as mg
from minigrad import backend

# SciPy reads this once, when it is imported, and Numba imports it.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# A shell that starts a job in the background makes it ignore Ctrl-C, and all its children with it; the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Random examples that are the same in every run: a failure is a fact about the change, not about the day.
# JAX compiles every operation anew for each shape, which takes longer than all else.
examples = 4 if backend.current().name == "jax" else 20
settings.register_profile("minigrad", derandomize=True, deadline=None, max_examples=examples, print_blob=False)
settings.load_profile("minigrad")


@pytest.fixture(scope="module", autouse=True)
def compiled_by_jax_is_forgotten() -> Iterator[None]:
    """JAX keeps all that it has compiled: 10 GB by the end."""
    yield
    if backend.current().name == "jax":
        import jax

        jax.clear_caches()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Every test starts from the same random numbers and leaves the backend in use as it was."""
    before = backend.current()
    mg.random.seed(0)
    yield
    assert backend.current() == before, "the test changed the backend in use"
