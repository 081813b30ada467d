"""Evaluation episodes in one compiled call, in environments on the device.

Axes: R seeds, E evaluation episodes.
"""

import functools
from typing import Any

import jax
import numpy as np

from experiments import seeds
from experiments.evaluation import Evaluation
from experiments.training import device_loop
from experiments.training.evaluator import Evaluator
from experiments.training.setup import Setup
from qusac_jax import environments
from qusac_jax.environments.device_vector import DeviceVector, not_finite
from qusac_jax.qusac.networks import Params


class DeviceEvaluator(Evaluator):
    """An `Evaluator` without the host in its loop, with the same results."""

    envs: DeviceVector

    def __init__(self, setup: Setup, placement: seeds.Placement | None):
        """As for `Evaluator`, of an environment that `environments.functional.load` knows."""
        super().__init__(setup, placement)
        self._num_seeds = len(setup.seeds)
        episodes = functools.partial(
            device_loop.run_episodes,
            env=self.envs.environment,
            config=setup.config,
            task=setup.task,
            action_cost=self.envs.spec.action_cost,
        )
        # Always given, or JAX would compile once more for arrays restored from a checkpoint, which
        # are committed to a device.
        sharding: Any = jax.sharding.SingleDeviceSharding(setup.devices[0])
        if placement is not None:
            sharding = placement.sharding
        self._run = jax.jit(
            episodes, donate_argnums=1, in_shardings=sharding, out_shardings=sharding
        )

    def run(self, actor: Params) -> Evaluation:
        """One episode in every environment."""
        per_seed = self._setup.eval_episodes
        streams = seeds.filled(self.envs.streams, self._placement, per_seed)
        ended = self._run(actor, streams)
        self.envs.streams, episodes = seeds.cropped(ended, self._placement, per_seed)
        if not np.isfinite(np.asarray(episodes.episode_return)).all():
            raise environments.FaultyEnvironmentError(not_finite(self._setup.env))
        shaped = lambda x: np.asarray(x, float).reshape(self._num_seeds, -1, *x.shape[1:])
        return Evaluation(
            episode_return=shaped(episodes.episode_return),
            episode_task_return=shaped(episodes.episode_task_return),
            discounted_return=shaped(episodes.discounted_return),
            first_observation=shaped(episodes.first_observation).astype(np.float32),
        )
