"""Episodes with a policy in separate environments, many at once.

Axes: R seeds, E episodes, O observation size, A action size.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qusac_jax.environments import AnyVector


class Evaluation(NamedTuple):
    """Returns of one evaluation."""

    episode_return: np.ndarray  # [R, E] undiscounted, with action cost
    episode_task_return: np.ndarray  # [R, E] the task's own
    discounted_return: np.ndarray  # [R, E] with action cost
    first_observation: np.ndarray  # [R, E, O]


def evaluate(
    environment: AnyVector,
    policy: Callable[[np.ndarray], np.ndarray],
    num_seeds: int,
    discount: float = 1.0,
) -> Evaluation:
    """Runs one episode in every environment.

    Args:
        environment: R x E copies, seed by seed; continues its streams of initial states.
        policy: observations `[R, E, O]` -> actions `[R, E, A]`, one call for all of them.
        num_seeds: R.
        discount: of `discounted_return`, in [0, 1].

    Returns:
        The returns of the R x E episodes.
    """
    first = observation = environment.reset()
    shape = (num_seeds, len(environment) // num_seeds)
    returns = np.full(len(environment), np.nan)
    task_returns = np.full(len(environment), np.nan)
    discounted, weight = np.zeros(len(environment)), 1.0
    while (running := np.isnan(returns)).any():
        actions = np.asarray(policy(observation.reshape(*shape, -1)))
        # Who has finished waits: one more reset for it would change its later initial states, by
        # how long the others take.
        result = environment.step(actions.reshape(len(environment), -1), running)
        returns[running] = result.episode_return[running]
        task_returns[running] = result.episode_task_return[running]
        discounted += weight * result.reward  # 0 for who waits
        weight *= discount
        observation = result.observation
    return Evaluation(
        returns.reshape(shape),
        task_returns.reshape(shape),
        discounted.reshape(shape),
        first.reshape(*shape, -1),
    )
