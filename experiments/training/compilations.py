"""How often XLA compiles."""

import collections

import jax


class CompilationCounter:
    """How often XLA compiled each jitted function, from when it is made."""

    def __init__(self) -> None:
        """Listens to JAX from now on."""
        self._counts: collections.Counter[str] = collections.Counter()
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def __getitem__(self, name: str) -> int:
        """Of the functions of that name."""
        return self._counts[f"jit({name})"]

    @property
    def total(self) -> int:
        """Of all functions."""
        return self._counts.total()

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            self._counts[str(kwargs.get("fun_name"))] += 1
