"""The loop of an online run: environments step on the host, the agent learns (Algorithm 2).

Axes: R seeds, O observation size, A action size.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments import durations, seeds
from experiments.training import handover
from experiments.training.run import Run
from experiments.training.setup import Setup
from experiments.training.termination_check import TerminationCheck
from qusac_jax import environments, qusac

# Bytes; a larger state is not made twice.
_LARGE_STATE = 2**30


class OnlineRun(Run):
    """R seeds trained side by side; `step` counts environment steps per seed."""

    _learns_meanwhile = True

    def __init__(self, setup: Setup, *, init_from: pathlib.Path | None = None):
        """Builds environments and the state of a run that has not begun.

        Args:
            setup: of the run.
            init_from: workdir of an offline run that is continued; None for a new agent.
        """
        super().__init__(setup)
        self._init_from = init_from
        self._env = self._environments(self._seeds)
        both = {"config": self._config, "task": self._task}
        self._act = self._mapped(qusac.act, **both)
        self._refresh = self._mapped(qusac.refresh, donate=(0,), **both)
        self._roll_out = self._mapped(qusac.roll_out, donate=(0,), **both)
        self._collect = self._mapped(qusac.collect, donate=(0,), **both)
        self._train_step = self._mapped(qusac.train_step, donate=(0,), **both)
        self._ends = TerminationCheck(self._config, self._task, len(self._seeds), self._mapped)
        self._observation = self._env.reset()
        self._action = self._next_action(self._program_keys)
        self._last_return = np.full((len(self._seeds), 2), np.nan)
        self._rewarded_steps = np.zeros(len(self._seeds), np.int64)

    def prepare(self) -> None:
        """Takes over what an offline run has learned, and says how long the run will take."""
        if self._init_from is not None and not self.step:
            self._state = handover.take_over(
                self._init_from,
                self._state,
                self._task,
                self._seeds,
                self._placement,
                self._processes,
            )
            self._action = self._next_action(self._program_keys)
        self._announce_duration()

    def close(self) -> None:
        """Frees the environments; what was learned stays."""
        super().close()
        self._env.close()

    def _announce_duration(self) -> None:
        """Says how long a run that begins will take, from a few learning steps on no data.

        What is compiled for them is what the run uses. Says nothing where nothing is to be learned,
        or where there may be no memory for a second state.
        """
        config, task = self._config, self._task
        num_learning = self._num_steps - config.warmup_steps + 1
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self._state._replace(key=None)))
        if self.step or num_learning < 1 or size > _LARGE_STATE:
            return
        state = self._init(self._program_keys)
        transition = jax.tree.map(lambda x: np.zeros_like(x[:, 0]), state.replay.data)
        observation = np.zeros_like(self._observation)

        def learning_step() -> None:
            nonlocal state
            state, action, _ = self._train_step(state, transition, observation)
            np.asarray(action)

        duration = durations.expected(learning_step, config, task, num_learning)
        print(duration.describe(self._num_steps), flush=True)

    def _advance(self) -> dict[str, jax.Array]:
        """One step of every environment and what follows from it."""
        result = self._env.step(self._action)
        transition = qusac.Transition.of_step(self._observation, self._action, result)
        self._note_rewards(result)
        self.step += 1
        metrics: dict[str, jax.Array] = {}
        due = qusac.schedule.online(self.step, config=self._config)
        if due.refresh:
            with self._progress.busy("fitting the model"):
                self._state, fit = self._refresh(self._state)
                self._note_fit(fit)
        if due.roll_out:
            self._state = self._roll_out(self._state)
        if due.learn:
            with self._speed.learning_step():
                self._state, action, metrics = self._train_step(
                    self._state, transition, result.observation
                )
                action = np.asarray(action)
        else:
            self._state, action = self._collect(self._state, transition, result.observation)
        self._observation, self._action = result.observation, np.asarray(action)
        self._finite.check_action(self.step, self._action, metrics)
        return metrics

    def _note_rewards(self, result: environments.StepResult) -> None:
        self._rewarded_steps += result.reward > self._setup.reward_threshold
        ended = ~np.isnan(result.episode_return)
        self._last_return[ended, 0] = result.episode_return[ended]
        self._last_return[ended, 1] = result.episode_task_return[ended]

    def _training_columns(self) -> dict[str, np.ndarray]:
        return {
            "train_return": self._last_return[:, 0],
            "train_task_return": self._last_return[:, 1],
            "rewarded_steps": self._rewarded_steps,
        }

    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"rewarded_steps": self._rewarded_steps.tolist()}
        if self._ends.is_needed:
            counts["termination_disagreements"] = self._ends.state()
        return counts

    def _look_at_data(self) -> None:
        self._ends.update(self._state.replay, self.step, f"step {self.step}")

    def _metadata(self) -> dict[str, Any]:
        return {"terminations": self._ends.state()}

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        self._ends.restore(metadata["terminations"], self.step, self._processes.share)

    def _host_state(self) -> dict[str, Any]:
        return {
            "env": self._checkpoints.env_state(self._env),
            "action": self._action,
            "last_return": self._last_return,
            "rewarded_steps": self._rewarded_steps,
        }

    def _set_host_state(self, host: dict[str, Any]) -> None:
        if not self._checkpoints.restarts_env:
            self._observation = self._env.set_state(host["env"])
        self._action = host["action"]
        self._last_return, self._rewarded_steps = host["last_return"], host["rewarded_steps"]

    def _restart_environments(self) -> None:
        super()._restart_environments()
        self._env.close()
        self._env = self._environments([seeds.later(seed, self.step) for seed in self._seeds])
        self._observation = self._env.reset()
        keys = jax.vmap(lambda key: jax.random.fold_in(key, self.step))(self._program_keys)
        self._action = self._next_action(keys)

    def _next_action(self, keys: Any) -> np.ndarray:
        """Drawn at the present observations with these keys, one for each seed."""
        return np.asarray(self._act(self._state.actor, self._observation, keys))

    def _environments(self, env_seeds: Sequence[int]) -> environments.AnyVector:
        return environments.vector(
            self._setup.env,
            env_seeds,
            action_cost=self._setup.action_cost,
            num_processes=self._setup.env_processes,
        )
