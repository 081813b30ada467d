"""How often XLA compiles."""

import collections
import functools

import jax

_counts: collections.Counter[str] = collections.Counter()  # of this process, by function


class CompilationCounter:
    """How often XLA compiled each jitted function, from when it is made."""

    def __init__(self) -> None:
        """Counts from now on."""
        _listen()
        self._before = _counts.copy()

    def __getitem__(self, name: str) -> int:
        """Of the functions of that name."""
        return _counts[f"jit({name})"] - self._before[f"jit({name})"]

    @property
    def total(self) -> int:
        """Of all functions."""
        return _counts.total() - self._before.total()


@functools.cache
def _listen() -> None:
    """Once: JAX keeps its listeners for good."""
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, duration_secs: float, **kwargs: str | int) -> None:
    del duration_secs
    if event == "/jax/core/compile/backend_compile_duration":
        _counts[str(kwargs.get("fun_name"))] += 1
