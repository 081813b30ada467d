"""How fast a run is, over all the processes that begin and continue it one after another."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from experiments.training.compilations import CompilationCounter
from experiments.training.trace import Trace

# Of the agent, online and offline, whose compilations are counted.
_FUNCTIONS = (
    "collect",
    "train_step",
    "run_steps",
    "run_episodes",
    "refresh",
    "fit_dynamics",
    "roll_out",
    "learn",
    "diagnose",
    "values_at",
    "act",
)


class Speed:
    """Learning steps per second and compilations of a run, and the pace since the last restart."""

    def __init__(self, trace: Trace) -> None:
        """Counts compilations from now on.

        Args:
            trace: that learning steps go into.
        """
        self._trace = trace
        self._compilations = CompilationCounter()
        self._compiled_before: dict[str, int] = {}
        # Of learning steps, each process's first, which compiles, left out.
        self._seconds, self._steps = 0.0, 0
        self._has_learned = False
        self.restart(0)

    @contextlib.contextmanager
    def learning_step(self, count: int = 1) -> Iterator[None]:
        """Around learning steps, which must have ended on the device too.

        Args:
            count: how many; with 0 nothing is measured.
        """
        start = time.perf_counter()
        with self._trace.learning_step(count) if count else contextlib.nullcontext():
            yield
        if self._has_learned and count:
            self._seconds += time.perf_counter() - start
            self._steps += count
        self._has_learned |= count > 0

    def learning_rate(self) -> float | None:
        """Learning steps per second over all of the run, None before there are any."""
        return self._steps / self._seconds if self._steps else None

    def compilations(self) -> dict[str, int]:
        """How often each jitted function was compiled, in the process of the run with the most.

        `act` counts two: drawing the first action, and the mean action.
        """
        before = self._compiled_before
        counts = {name: max(self._compilations[name], before.get(name, 0)) for name in _FUNCTIONS}
        return {name: count for name, count in counts.items() if count}

    def restart(self, step: int) -> None:
        """Begins to measure `pace` anew."""
        self._since = (time.perf_counter(), step)
        self._has_learned_before = self._has_learned

    def pace(self, step: int) -> float:
        """Steps of the run per second and seed since the last restart."""
        since, first = self._since
        return (step - first) / (time.perf_counter() - since)

    def seconds_left(self, step: int, last: int) -> float | None:
        """At the pace since the last restart; None unless all of these steps were learning ones."""
        pace = self.pace(step)
        return (last - step) / pace if self._has_learned_before and pace > 0 else None

    def state(self) -> dict[str, Any]:
        """JSON-compatible, for a checkpoint."""
        return {
            "learning_seconds": self._seconds,
            "learning_steps": self._steps,
            "compilations": self.compilations(),
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Goes on from what `state` returned, at a step."""
        self._seconds, self._steps = state["learning_seconds"], state["learning_steps"]
        self._compiled_before = state["compilations"]
        self.restart(step)
