"""A run whose environments are on the device: nothing passes through the host between evaluations.

Axes: R seeds, E evaluation episodes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import cost, device_loop
from experiments.evaluation import Evaluation
from experiments.online_run import OnlineRun
from experiments.run_directory import RunDirectory
from qusac_jax import environments, qusac
from qusac_jax.environments.device_vector import DeviceVector, not_finite


class DeviceRun(OnlineRun):
    """An `OnlineRun` in compiled calls of many steps, with the same files and results.

    One call takes all steps up to the next evaluation or checkpoint, a second one evaluates: that
    happens before the first step, too. Signals are answered between calls.
    """

    _env: DeviceVector
    _eval_env: DeviceVector

    def __init__(
        self,
        directory: RunDirectory,
        env: str,
        config: qusac.Config,
        task: qusac.Task,
        *,
        reward_threshold: float,
        **options: Any,
    ):
        """As for `OnlineRun`, of an environment that `environments.functional.load` knows."""
        super().__init__(directory, env, config, task, reward_threshold=reward_threshold, **options)
        both = {
            "env": self._env.environment,
            "config": config,
            "task": task,
            "action_cost": self._env.spec.action_cost,
        }
        steps = functools.partial(device_loop.run_steps, reward_threshold=reward_threshold, **both)
        episodes = functools.partial(device_loop.run_episodes, **both)
        placed = self._placement
        if placed is None:
            self._run_steps = jax.jit(steps, donate_argnums=(0, 1))
            self._run_evaluation = jax.jit(episodes, donate_argnums=1)
        else:
            everywhere = jax.sharding.NamedSharding(placed.mesh, jax.sharding.PartitionSpec())
            # The axis of seeds is the second one of the returns.
            returns = jax.sharding.NamedSharding(
                placed.mesh, jax.sharding.PartitionSpec(None, *placed.spec)
            )
            report = device_loop.Report(returns, placed, placed, placed, placed)  # type: ignore[arg-type]
            self._run_steps = jax.jit(
                steps,
                donate_argnums=(0, 1),
                in_shardings=(placed, placed, placed, everywhere),
                out_shardings=(placed, placed, placed, report),
            )
            self._run_evaluation = jax.jit(
                episodes, donate_argnums=1, in_shardings=placed, out_shardings=placed
            )
        self._most_steps = min(self._eval_every, self._checkpoint_every, self._num_steps)
        self._has_announced = False

    def _advance(self) -> dict[str, jax.Array]:
        """All steps up to the next evaluation or checkpoint."""
        last = min(
            self._num_steps,
            *(
                every * (self.step // every + 1)
                for every in (self._eval_every, self._checkpoint_every)
            ),
        )
        plan = device_loop.plan(self.step, last, self._most_steps, config=self._config)
        with self._speed.learning_step(int(plan.learn.sum())):
            self._state, self._env.streams, action, report = self._run_steps(
                self._state, self._env.streams, jnp.asarray(self._action), plan
            )
            self._action = np.asarray(action)
        self.step = last
        self._observation = np.asarray(self._env.streams.observation)
        self._note_report(plan, report)
        self._announce_rate()
        return report.metrics if plan.learn[plan.num_steps - 1] else {}

    def _note_report(self, plan: device_loop.Plan, report: device_loop.Report) -> None:
        """Takes over what happened, for the log; raises `ValueError` where it is not finite."""
        if np.asarray(report.is_faulty).any():
            raise environments.FaultyEnvironmentError(not_finite(self._env_name))
        if plan.refresh.any():
            self._note_fit(report.fit)
        self._check_update(report.metrics if plan.learn.any() else {}, self._action)
        returns = np.asarray(report.last_return, float)
        self._last_return = np.where(np.isnan(returns), self._last_return, returns)
        self._rewarded_steps = self._rewarded_steps + np.asarray(report.rewarded_steps)

    def _announce_duration(self) -> None:
        """Nothing is compiled to find out: `_announce_rate` says it after two calls."""

    def _announce_rate(self) -> None:
        rate = self._speed.learning_rate()
        if rate is not None and not self._has_announced and self.step < self._num_steps:
            self._has_announced = True
            left = cost.duration((self._num_steps - self.step) / rate)
            print(f"{rate:.3g} learning steps/s here: about {left} are left", flush=True)

    def _run_episodes(self) -> Evaluation:
        self._eval_env.streams, episodes = self._run_evaluation(
            self._state.actor, self._eval_env.streams
        )
        if not np.isfinite(np.asarray(episodes.episode_return)).all():
            raise environments.FaultyEnvironmentError(not_finite(self._env_name))
        shaped = lambda x: np.asarray(x, float).reshape(len(self._seeds), -1, *x.shape[1:])
        return Evaluation(
            episode_return=shaped(episodes.episode_return),
            episode_task_return=shaped(episodes.episode_task_return),
            discounted_return=shaped(episodes.discounted_return),
            first_observation=shaped(episodes.first_observation).astype(np.float32),
        )
