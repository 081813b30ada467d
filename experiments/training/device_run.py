"""A run whose environments are on the device: nothing passes through the host between evaluations.

Axes: R seeds, E evaluation episodes.
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import seeds
from experiments.training import device_loop, trace
from experiments.training.device_evaluator import DeviceEvaluator
from experiments.training.online_run import OnlineRun
from experiments.training.setup import Setup
from qusac_jax import environments
from qusac_jax.environments.device_vector import DeviceVector, not_finite


class DeviceRun(OnlineRun):
    """An `OnlineRun` in compiled calls of many steps, with the same files and results.

    One call takes all steps up to the next evaluation or checkpoint, a second one evaluates: that
    happens before the first step, too. Signals are answered between calls.
    """

    _env: DeviceVector
    _Evaluator = DeviceEvaluator

    def __init__(self, setup: Setup, *, init_from: pathlib.Path | None = None):
        """As for `OnlineRun`, of an environment that `environments.functional.load` knows."""
        super().__init__(setup, init_from=init_from)
        steps = functools.partial(
            device_loop.run_steps,
            env=self._env.environment,
            config=setup.config,
            task=setup.task,
            action_cost=self._env.spec.action_cost,
            reward_threshold=setup.reward_threshold,
        )
        shardings: dict[str, Any] = {}
        self._everywhere = None
        if self._placement is not None:
            placed = self._placement.sharding
            everywhere = jax.sharding.NamedSharding(placed.mesh, jax.sharding.PartitionSpec())
            self._everywhere = everywhere
            # The axis of seeds is the second one of the returns.
            returns = jax.sharding.NamedSharding(
                placed.mesh, jax.sharding.PartitionSpec(None, *placed.spec)
            )
            report = device_loop.Report(returns, placed, placed, placed, placed)  # type: ignore[arg-type]
            shardings = {
                "in_shardings": (placed, placed, placed, everywhere),
                "out_shardings": (placed, placed, placed, report),
            }
        else:  # or JAX would compile once more for arrays restored from a checkpoint
            one = jax.sharding.SingleDeviceSharding(setup.devices[0])
            shardings = {"in_shardings": one, "out_shardings": one}
        self._run_steps = jax.jit(steps, donate_argnums=(0, 1), **shardings)
        self._most_steps = min(setup.eval_every, setup.checkpoint_every, setup.num_steps)

    def prepare(self) -> None:
        """As for `OnlineRun`; places the state, or what reads it is compiled twice."""
        super().prepare()
        if self._placement is None:
            self._state = jax.device_put(self._state, self._setup.devices[0])

    def _advance(self) -> dict[str, jax.Array]:
        """All steps up to the next evaluation or checkpoint; fewer while they are recorded."""
        last = min(
            self._num_steps,
            *(
                every * (self.step // every + 1)
                for every in (self._setup.eval_every, self._setup.checkpoint_every)
            ),
        )
        if self._setup.trace.is_wanted and self._processes.count == 1:  # others make whole calls
            last = min(last, max(self.step + trace.STEPS, self._config.warmup_steps))
        plan = device_loop.plan(self.step, last, self._most_steps, config=self._config)
        with self._speed.learning_step(int(plan.learn.sum())):
            host = self._env.streams, jnp.asarray(self._action)
            host = seeds.filled(host, self._placement)
            self._state, streams, action, report = self._run_steps(
                self._state, *host, seeds.sent(plan, self._everywhere)
            )
            self._action = np.asarray(action)[: len(self._seeds)]
        self._env.streams = seeds.cropped(streams, self._placement)
        first, self.step = self.step, last
        self._observation = np.asarray(self._env.streams.observation)
        report = report._replace(last_return=report.last_return.T)
        report = seeds.for_host(report, self._placement)
        self._note_report(first, plan, report)
        if self.step < self._num_steps:
            self._announce_rate("learning steps")
        return report.metrics if plan.learn[plan.num_steps - 1] else {}

    def _note_report(self, first: int, plan: device_loop.Plan, report: device_loop.Report) -> None:
        """Takes over what happened after step `first`, for the log.

        Raises:
            ValueError: where it is not finite.
        """
        faulty = np.asarray(report.faulty_step)
        if faulty.any():
            step = first + int(faulty[faulty > 0].min())
            raise environments.FaultyEnvironmentError(
                not_finite(self._setup.env, f" at step {step}")
            )
        if plan.refresh.any():
            self._note_fit(report.fit)
        metrics = report.metrics if plan.learn.any() else {}
        self._finite.check_action(self.step, self._action, metrics)
        returns = np.asarray(report.last_return, float)
        self._last_return = np.where(np.isnan(returns), self._last_return, returns)
        self._rewarded_steps = self._rewarded_steps + np.asarray(report.rewarded_steps)

    def _announce_duration(self) -> None:
        """Nothing is compiled to find out: `_announce_rate` says it after two calls."""
