"""Several copies of one environment, stepped one after another on the host.

Axes: R environments (one per seed), O observation size, A action size.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from qusac_jax.environments import state as environment_state
from qusac_jax.environments.make import Spec, make, spec_of
from qusac_jax.environments.streams import StepResult
from qusac_jax.environments.vector_checks import check_actions_shape, check_seeds, which_active

# Entries of `VectorEnvironment.state`.
STATE_FIELDS = (
    "observation",
    "episode_return",
    "episode_task_return",
    "episode_length",
    "physics",
    "model",
    "python",
)


class VectorEnvironment:
    """R environments with automatic reset, each with its own seed.

    Environment i gives the same trajectory as when it is alone. `state` and `set_state` save and
    restore everything that a trajectory depends on, bit by bit.
    """

    spec: Spec

    def __init__(self, name: str, seeds: Sequence[int], *, action_cost: float | None = None):
        """Builds one environment for each seed.

        Args:
            name: as for `make`.
            seeds: R >= 1 different streams of initial states, each in [0, 2**32).
            action_cost: as for `make`.

        Raises:
            ValueError: as `make`, and if there are no seeds.
        """
        check_seeds(seeds)
        self._envs: list[gymnasium.Env] = []
        try:
            for seed in seeds:
                self._envs.append(make(name, action_cost=action_cost, seed=int(seed)))
            self.spec = spec_of(self._envs[0])
        except BaseException:
            self.close()
            raise
        self._observation = np.zeros((len(seeds), self.spec.observation_size), np.float32)
        self._return = np.zeros(len(seeds))
        self._task_return = np.zeros(len(seeds))
        self._length = np.zeros(len(seeds), np.int64)
        self._capacity = 0  # bytes per environment, fixed when it is first needed
        self._has_begun = False

    def __len__(self) -> int:
        """R, the number of environments."""
        return len(self._envs)

    def reset(self) -> np.ndarray:
        """Starts a new episode everywhere.

        Returns:
            Observations `[R, O]`, float32.
        """
        for i, env in enumerate(self._envs):
            self._observation[i] = env.reset()[0]
        self._has_begun = True
        self._return[:] = self._task_return[:] = self._length[:] = 0
        return self._observation.copy()

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        """Steps environments and resets those whose episode ended.

        Args:
            actions: `[R, A]` in [-1, 1]; what lies outside is clipped.
            active: `[R]` bool, which to step; default all. The others stay as they are, with
                reward 0.

        Returns:
            A `StepResult` of NumPy arrays.

        Raises:
            ValueError: if a shape is wrong or an action is not finite.
            FaultyEnvironmentError: if an environment fails, or returns what it may not.
            RuntimeError: before `reset` or `set_state`.
        """
        if not self._has_begun:
            raise RuntimeError("no episode has begun; call reset() before the first step()")
        actions = np.asarray(actions)
        num_envs = len(self._envs)
        check_actions_shape(actions, num_envs, self.spec)
        chosen = which_active(active, num_envs)
        next_observation = self._observation.copy()
        reward, task_reward = np.zeros(num_envs, np.float32), np.zeros(num_envs, np.float32)
        terminated, truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        ended = np.full((3, num_envs), np.nan)
        for i, env in enumerate(self._envs):
            if not chosen[i]:
                continue
            observation, with_cost, terminated[i], truncated[i], info = env.step(actions[i])
            next_observation[i] = self._observation[i] = observation
            reward[i], task_reward[i] = with_cost, info["task_reward"]
            self._return[i] += with_cost
            self._task_return[i] += info["task_reward"]
            self._length[i] += 1
            if terminated[i] or truncated[i]:
                ended[:, i] = self._return[i], self._task_return[i], self._length[i]
                self._return[i] = self._task_return[i] = self._length[i] = 0
                self._observation[i] = env.reset()[0]
        return StepResult(
            next_observation,
            reward,
            task_reward,
            terminated,
            truncated,
            self._observation.copy(),
            *ended,
        )

    def close(self) -> None:
        """Frees the simulators."""
        for env in self._envs:
            env.close()

    def state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, as NumPy arrays of fixed shapes and dtypes.

        Shapes and dtypes depend on the environment's name and R alone, so that a fresh
        `VectorEnvironment` gives the target for restoring.

        Raises:
            ValueError: if this environment's state cannot be captured exactly.
        """
        # First, as the environment that it makes draws from generators that classes have.
        self._capacity = self._capacity or environment_state.capacity(self.spec.name)
        captured = [environment_state.capture(env) for env in self._envs]
        return {
            "observation": self._observation.copy(),
            "episode_return": self._return.copy(),
            "episode_task_return": self._task_return.copy(),
            "episode_length": self._length.copy(),
            "physics": np.stack([part.physics for part in captured]),
            "model": np.stack([part.model for part in captured]),
            "python": np.stack(
                [
                    environment_state.pad(part.python, self._capacity, self.spec.name)
                    for part in captured
                ]
            ),
        }

    def set_state(self, tree: dict[str, np.ndarray]) -> np.ndarray:
        """Continues where `state` was called, exactly; `reset` need not come first.

        Args:
            tree: what `state` returned, for the same environment and R.

        Returns:
            Observations `[R, O]` to act on next.

        Raises:
            ValueError: if the tree belongs to another environment, or lost precision on its way.
        """
        num_envs = len(self._envs)
        environment_state.check_tree(tree, self.state_shapes())
        for i, env in enumerate(self._envs):
            part = environment_state.Captured(
                physics=np.asarray(tree["physics"])[i],
                model=np.asarray(tree["model"])[i],
                python=environment_state.unpad(np.asarray(tree["python"])[i]),
            )
            environment_state.restore(env, part)
        self._capacity = np.asarray(tree["python"]).shape[1]
        self._has_begun = True
        self._observation = np.array(tree["observation"]).reshape(num_envs, -1)
        self._return = np.array(tree["episode_return"])
        self._task_return = np.array(tree["episode_task_return"])
        self._length = np.array(tree["episode_length"])
        return self._observation.copy()

    def state_shapes(self) -> dict[str, tuple[tuple[int | None, ...], type]]:
        """Shapes and dtypes of `state`; None where the environment's name decides."""
        num_envs = len(self._envs)
        physics, model = environment_state.sizes(self._envs[0])
        return {
            "observation": ((num_envs, self.spec.observation_size), np.float32),
            "episode_return": ((num_envs,), np.float64),
            "episode_task_return": ((num_envs,), np.float64),
            "episode_length": ((num_envs,), np.int64),
            "physics": ((num_envs, physics), np.float64),
            "model": ((num_envs, model), np.float64),
            "python": ((num_envs, None), np.uint8),
        }
