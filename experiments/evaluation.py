"""Episodes with a policy in separate environments, many at once, and one as a video.

Axes: R seeds, E episodes, O observation size, A action size.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from qusac_jax import environments, qusac
from qusac_jax.environments import AnyVector
from qusac_jax.qusac.networks import Params


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
        # An environment whose episode is over waits: if it were reset once more, its later initial
        # states would depend on how long the other episodes take.
        result = environment.step(actions.reshape(len(environment), -1), running)
        returns[running] = result.episode_return[running]
        task_returns[running] = result.episode_task_return[running]
        discounted += weight * result.reward  # 0 for environments that wait
        weight *= discount
        observation = result.observation
    return Evaluation(
        returns.reshape(shape),
        task_returns.reshape(shape),
        discounted.reshape(shape),
        first.reshape(*shape, -1),
    )


def check_video(env: str) -> None:
    """Raises `ValueError` if the environment cannot be rendered, or a video package is missing."""
    functional = environments.functional
    if functional.is_functional(env) and not functional.is_drawn(functional.load(env)):
        raise ValueError(
            f"video: {env!r} is stepped on the device; leave --video out, or define draw(state) "
            "and frames_per_second"
        )
    try:
        environments.check_video_packages()
    except RuntimeError as error:
        raise ValueError(f"video: {error}") from error


def record(
    env: str,
    actor: Params,
    path: pathlib.Path,
    *,
    config: qusac.Config,
    task: qusac.Task,
    action_cost: float,
    seed: int = 0,
) -> environments.Recording:
    """Writes one episode with the mean action as an mp4, and as a GIF beside it.

    Args:
        env: name of the environment.
        actor: the policy's weights, of one seed.
        path: of the mp4.
        config: hyperparameters.
        task: the environment's sizes.
        action_cost: rho.
        seed: of the environment.

    Raises:
        ValueError: if the video cannot be made here.
    """
    act = jax.jit(functools.partial(qusac.act, config=config, task=task))
    try:
        return environments.record_video(
            env,
            lambda observation: np.asarray(act(actor, observation)),
            path,
            seed=seed,
            action_cost=action_cost,
            gif=True,
        )
    except RuntimeError as error:
        raise ValueError(f"video: {error}") from error
