"""What passes between an environment, or data from one, and an agent."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from qusac_jax._checks import check_count

# (observation [..., O], action [..., A], next_observation [..., O]) -> whether the episode ends
# there [...] bool. Traceable, over any leading axes. A time limit is no end.
TerminationFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

LARGEST_ACTION = 1.0 + 1e-5  # 1 up to rounding


@dataclasses.dataclass(frozen=True)
class Task:
    """Sizes and termination of an environment; hashable, so static under `jit`.

    `qusac_jax.environments.Spec.task` makes it for an environment that the library built; for one
    of your own, name the sizes yourself.

    Raises:
        ValueError: at construction, for a size below 1 or a termination that is no function.
    """

    observation_size: int  # O
    action_size: int  # A, every action in [-1, 1]
    termination: TerminationFn  # when an episode ends, for what the model predicts

    def __post_init__(self) -> None:
        """Checks every field."""
        check_count("observation_size", self.observation_size)
        check_count("action_size", self.action_size)
        if not callable(self.termination):
            raise ValueError(
                "termination must be a function, such as environments.TERMINATIONS['never'], got "
                f"{self.termination!r}"
            )


class Transition(NamedTuple):
    """One step, or any batch of steps along leading axes."""

    observation: jax.Array  # [..., O]
    action: jax.Array  # [..., A] in [-1, 1]
    reward: jax.Array  # [...]
    next_observation: jax.Array  # [..., O] the successor, never the first of a new episode
    terminated: jax.Array  # [...] bool, true only where the task ended; a time limit is not an end

    @classmethod
    def of_step(cls, observation: Any, action: Any, result: Any) -> "Transition":
        """What an action led to.

        Args:
            observation: `[..., O]` where it was taken.
            action: `[..., A]`.
            result: of the environments, `environments.StepResult`. Arrays of the host may stand for
                those of a device: a compiled function moves them.
        """
        return cls(observation, action, result.reward, result.next_observation, result.terminated)
