"""NumPy on as many threads as XLA, for baselines."""

import contextlib
import importlib
import time
from collections.abc import Iterator

import numpy as np

from experiments import own_cores
from experiments.benchmark import measure

# Seconds for which NumPy's threads may keep their cores busy after a solve.
_BLAS_SPIN = 0.2


@contextlib.contextmanager
def numpy_threads() -> Iterator[str]:
    """Within it, NumPy has as many threads as XLA has on a CPU.

    Without threadpoolctl, which the extra `bench` installs, NumPy keeps its own number of threads:
    one for each core that the process may use, if the environment does not say otherwise.

    Yields:
        What the baseline is called.
    """
    name, count = f"NumPy {np.__version__}", own_cores.count()
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:
        yield f"{name}, its own threads"
    else:
        with threadpoolctl.threadpool_limits(count, user_api="blas"):
            yield f"{name}, {measure.threads_in_words(count)}"
    time.sleep(_BLAS_SPIN)
