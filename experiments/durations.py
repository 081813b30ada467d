"""What training takes: seconds, from a few steps and the operations of all."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from experiments import operations
from qusac_jax import qusac

# Learning steps that are timed, after one that compiles.
_TIMED_STEPS = 5


class Duration(NamedTuple):
    """Seconds that a run will take, about."""

    seconds: float  # of the run as it is
    small_seconds: float | None  # at the small sizes; None where these would save nothing
    steps_per_second: float  # learning steps, without fits of the model and rollouts

    def describe(self, num_steps: int) -> str:
        """A line for a person who has just started a run of that many steps."""
        small = ""
        if self.small_seconds is not None:
            small = f"; --size=small would take {in_words(self.small_seconds)}"
        return (
            f"{num_steps} steps will take about {in_words(self.seconds)} "
            f"({self.steps_per_second:.3g} learning steps/s here, compilation apart){small}"
        )


def in_words(seconds: float) -> str:
    """In words, for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.3g} h"


def expected(
    learning_step: Callable[[], None], config: qusac.Config, task: qusac.Task, num_steps: int
) -> Duration:
    """Seconds of `num_steps` learning steps and the refreshes among them.

    Refreshes are not measured: they are taken to do as many operations per second as updates.

    Args:
        learning_step: does one and waits for its result; called a few times.
        config: hyperparameters.
        task: the environment's sizes.
        num_steps: that are left.
    """
    learning_step()
    times = []
    for _ in range(_TIMED_STEPS):
        start = time.perf_counter()
        learning_step()
        times.append(time.perf_counter() - start)
    seconds_per_step = statistics.median(times)
    flops_per_update = operations.update_flops(config, task)
    per_flop = seconds_per_step / (config.updates_per_step * flops_per_update)
    small = _small(config)
    small_seconds = None
    # An accelerator waits for small networks: what they would take cannot be told from operations.
    if (
        small
        and jax.default_backend() == "cpu"
        and operations.update_flops(small, task) < flops_per_update
    ):
        small_seconds = num_steps * per_flop * operations.step_flops(small, task)
    return Duration(
        seconds=num_steps * per_flop * operations.step_flops(config, task),
        small_seconds=small_seconds,
        steps_per_second=1.0 / seconds_per_step,
    )


def _small(config: qusac.Config) -> qusac.Config | None:
    """At the small sizes; None where they do not go with the rest, such as very long rollouts."""
    try:
        return qusac.presets.small(config)
    except ValueError:
        return None
