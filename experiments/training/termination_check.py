"""Whether a termination function says what the environment does, on the transitions in D.

Axis: R seeds.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from qusac_jax import qusac
from qusac_jax.environments import TerminationFn
from qusac_jax.qusac import replay

_CHUNK = 4096  # transitions that are looked at in one call


class TerminationCheck:
    """Counts where the two disagree, and says so once."""

    def __init__(
        self,
        config: qusac.Config,
        task: qusac.Task,
        num_seeds: int,
        mapped: Callable[..., Any],
        *,
        is_shared: bool = False,
    ):
        """Nothing has been looked at.

        Args:
            config: hyperparameters; where no rollout asks the function, nothing is counted.
            task: with the function.
            num_seeds: R.
            mapped: `seeds.mapped` with the placement of the run.
            is_shared: whether D is the same for all seeds; it is counted for each, but said once.
        """
        self.is_needed = config.uses_model and not config.dynamics.learn_termination
        self._name = getattr(task.termination, "__name__", repr(task.termination))
        self._num_known = 0  # transitions of each seed when it last looked
        self._num_checked = 0  # those of them that D still held then
        self._missed = np.zeros(num_seeds, np.int64)  # the environment ended, the function not
        self._invented = np.zeros(num_seeds, np.int64)  # the other way round
        self._said = slice(1 if is_shared else None)  # seeds whose counts the message adds up
        self._compare = mapped(disagreements, termination=task.termination)

    def update(self, buffer: replay.Buffer, num_transitions: int, when: str) -> None:
        """Looks at the transitions that came since the last call.

        Args:
            buffer: D of each seed.
            num_transitions: that each seed has had so far; what D has written over is left out.
            when: for the message, such as "step 10".
        """
        count = num_transitions - self._num_known
        if not self.is_needed or count < 1:
            return
        had_none = not self._total()
        self._num_known = num_transitions
        num_held = min(count, buffer.data.reward.shape[1])
        self._num_checked += num_held
        seeds = len(self._missed)
        for start in range(0, num_held, _CHUNK):
            window = np.full(seeds, start, np.int32), np.full(seeds, count, np.int32)
            missed, invented = np.asarray(self._compare(buffer, *window)).T
            self._missed += missed
            self._invented += invented
        if had_none and self._total():
            tqdm.write(self._message(when), file=sys.stderr)

    def state(self) -> dict[str, Any]:
        """The counts, for checkpoints and summary.json."""
        return {
            "transitions": self._num_checked,
            "missed": self._missed.tolist(),
            "invented": self._invented.tolist(),
        }

    def restore(
        self,
        state: dict[str, Any],
        num_transitions: int,
        share: Callable[[list[int]], list[int]] = lambda counts: counts,
    ) -> None:
        """Continues from `state` of the seeds of all processes.

        Args:
            state: of a checkpoint.
            num_transitions: of each seed in it.
            share: the part of this process.
        """
        self._num_known = num_transitions
        self._num_checked = state["transitions"]
        self._missed[:], self._invented[:] = share(state["missed"]), share(state["invented"])

    def _total(self) -> int:
        return int(self._missed.sum() + self._invented.sum())

    def _message(self, when: str) -> str:
        missed, invented = self._missed[self._said], self._invented[self._said]
        return (
            f"warning: {when}: the termination {self._name!r} disagrees with the data: of "
            f"{self._num_checked * len(missed)} transitions, {missed.sum()} ended "
            f"their episode where it does not, and {invented.sum()} did not where it does; "
            "rollouts of the model follow the function. A few may be rounding at a threshold; "
            "otherwise use another --termination, such as learned"
        )


def disagreements(
    buffer: replay.Buffer,
    start: jax.Array,
    count: jax.Array,
    *,
    termination: TerminationFn,
) -> jax.Array:
    """How often a function disagrees with a part of the buffer.

    Args:
        buffer: of transitions.
        start: [] int32, how many of the newest transitions to pass over.
        count: [] int32, how many of the newest transitions count, those passed over among them.
        termination: says when an episode ends.

    Returns:
        `[2]` int32: ends that the function misses, and ends that it invents.
    """
    capacity = buffer.data.reward.shape[0]
    age = start + jnp.arange(min(_CHUNK, capacity))
    slots = (buffer.position - 1 - age) % capacity
    is_asked = age < jnp.minimum(count, buffer.size)
    part = jax.tree.map(lambda x: x[slots], buffer.data)
    said = termination(part.observation, part.action, part.next_observation)
    missed = is_asked & part.terminated & ~said
    invented = is_asked & ~part.terminated & said
    return jnp.stack([missed.sum(), invented.sum()]).astype(jnp.int32)
