"""The outermost wrapper: action cost, bounds, and a guard against values that are not finite."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class ActionCost(gymnasium.Wrapper):
    """Clips actions to [-1, 1], subtracts rho * sum(a_i^2) and stops at NaN or Inf.

    The cost is that of the paper's appendix D.2. `info["task_reward"]` keeps the
    reward without it.
    """

    # Set by the constructor and never changed: no part of the environment's state.
    constant_attributes = ("name", "action_cost", "_action_shape")

    def __init__(
        self, env: gymnasium.Env, *, name: str, action_cost: float, initial_seed: int | None
    ):
        """Wraps `env`, which must have a Box of actions in [-1, 1]."""
        super().__init__(env)
        self.name = name
        self.action_cost = action_cost
        self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)
        self._action_shape = env.action_space.shape
        self.episode_steps = 0
        self.total_steps = 0
        self._initial_seed = initial_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode; the first one with the seed given to the constructor."""
        seed = self._initial_seed if seed is None else seed
        self._initial_seed = None
        self.episode_steps = 0
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except Exception as error:  # mujoco.FatalError has no narrower base
            if "OpenGL" not in str(error):
                raise
            raise ValueError(
                f"env: {self.name!r} needs OpenGL even where nothing is shown ({error}); set the "
                "environment variable MUJOCO_GL to egl or osmesa"
            ) from error
        if not np.isfinite(observation).all():
            raise ValueError(self._not_finite("observation", observation))
        return observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step; action `[A]` in [-1, 1], what lies outside is clipped."""
        action = np.asarray(action)
        if action.shape != self._action_shape or not np.isfinite(action).all():
            raise ValueError(
                f"action for {self.name!r} must be {self._action_shape} finite numbers, got "
                f"{action.tolist()} at step {self.total_steps}; check the policy"
            )
        action = np.maximum(np.minimum(action, 1.0), -1.0)
        self.episode_steps += 1
        self.total_steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except RuntimeError as error:
            # dm_control's PhysicsError; by name, as users of Gymnasium need not import dm_control.
            if type(error).__name__ != "PhysicsError":
                raise
            raise ValueError(self._not_finite("physics state", str(error))) from error
        task_reward = float(reward)
        if not math.isfinite(task_reward):
            raise ValueError(self._not_finite("reward", task_reward))
        if not np.isfinite(observation).all():
            raise ValueError(self._not_finite("observation", observation))
        info["task_reward"] = task_reward
        reward = task_reward - self.action_cost * float(action @ action)
        return observation, reward, bool(terminated), bool(truncated), info

    def _not_finite(self, quantity: str, value: Any) -> str:
        return (
            f"environment {self.name!r} returned a {quantity} that is not finite at step "
            f"{self.total_steps} (step {self.episode_steps} of its episode): {value}; its "
            "simulation diverged or it has a bug: use a smaller time step, or another environment"
        )
