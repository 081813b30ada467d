"""The outermost wrapper: action cost, bounds, and a guard against environments with bugs."""

import traceback
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from qusac_jax._messages import on_one_line

_PLAIN_REWARDS = (float, int, np.float64, np.float32)
_PLAIN_FLAGS = (bool, np.bool_)
_LARGEST = float(np.finfo(np.float32).max)  # as everything becomes float32
_UNPACKING = "values to unpack"  # what Python says of tuples of another length


class FaultyEnvironmentError(ValueError):
    """An environment failed, returned what it may not return, or has state that is not saved."""


class ActionCost(gymnasium.Wrapper):
    """Clips actions to [-1, 1], subtracts rho * sum(a_i^2) and stops at NaN, Inf and other bugs.

    The cost is that of the paper's appendix D.2. `info["task_reward"]` keeps the reward without it.
    """

    # Set by the constructor and never changed: no part of the environment's state.
    constant_attributes = (
        "name",
        "action_cost",
        "action_bounds",
        "_action_shape",
        "_observation_shape",
    )

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        name: str,
        action_cost: float,
        initial_seed: int | None,
        action_bounds: spaces.Box,
    ):
        """Wraps `env`, which must have a Box of actions in [-1, 1].

        Args:
            env: to wrap.
            name: for error messages.
            action_cost: rho.
            initial_seed: of the first reset.
            action_bounds: of the actions before they were rescaled.
        """
        super().__init__(env)
        self.name = name
        self.action_cost = action_cost
        self.action_bounds = (
            tuple(map(float, action_bounds.low)),
            tuple(map(float, action_bounds.high)),
        )
        self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)
        self._action_shape = env.action_space.shape
        self._observation_shape = env.observation_space.shape
        self.episode_steps = 0
        self.total_steps = 0
        self._initial_seed = initial_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode; the first one with the seed given to the constructor.

        Raises:
            FaultyEnvironmentError: if that fails, or what comes back is no observation.
        """
        seed = self._initial_seed if seed is None else seed
        self._initial_seed = None
        self.episode_steps = 0
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:  # mujoco.FatalError has no narrower base
            if "OpenGL" not in str(error):
                raise self._raised("reset", error) from error
            raise ValueError(
                f"env: {self.name!r} needs OpenGL even where nothing is shown ({error}); set the "
                "environment variable MUJOCO_GL to egl or osmesa"
            ) from error
        self._check_observation("reset", observation)
        return observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step; action `[A]` in [-1, 1], what lies outside is clipped.

        Raises:
            ValueError: if the action is not of that shape or not finite.
            FaultyEnvironmentError: if the environment fails, or returns something else than an
                observation, a number, two booleans and a dictionary.
        """
        action = np.asarray(action)
        is_real = action.dtype.kind in "biuf"
        if action.shape != self._action_shape or not (is_real and np.isfinite(action).all()):
            raise ValueError(
                f"action for {self.name!r} must be {self._action_shape} finite numbers, got "
                f"{action.tolist()} at step {self.total_steps}; check the policy"
            )
        action = np.maximum(np.minimum(action, 1.0), -1.0)
        cost = self.action_cost * float(action @ action)  # now: an environment may change it
        self.episode_steps += 1
        self.total_steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except (Exception, SystemExit) as error:
            # dm_control's PhysicsError; by name, as users of Gymnasium need not import dm_control.
            if type(error).__name__ != "PhysicsError":
                raise self._raised("step", error) from error
            raise self._not_finite("a physics state", str(error)) from error
        if type(reward) not in _PLAIN_REWARDS:
            self._check_scalar("reward", reward, "biuf", "one real number")
        task_reward = float(reward)
        if not abs(task_reward) <= _LARGEST:  # false for NaN, too
            raise self._not_finite("a reward", task_reward)
        self._check_observation("step", observation)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if type(flag) not in _PLAIN_FLAGS:
                self._check_scalar(name, flag, "biu", "True or False")
        if not isinstance(info, dict):
            raise self._fault("step returned", "info", "a dictionary", info)
        info["task_reward"] = task_reward
        return observation, task_reward - cost, bool(terminated), bool(truncated), info

    def _check_observation(self, verb: str, observation: Any) -> None:
        if _shape(observation) != self._observation_shape:
            wanted = f"an array of shape {self._observation_shape}, as its space says"
            raise self._fault(f"{verb} returned", "observation", wanted, observation)
        try:
            is_finite = (np.abs(observation) <= _LARGEST).all()
        except TypeError:
            wanted = "an array of numbers"
            raise self._fault(f"{verb} returned", "observation", wanted, observation) from None
        if not is_finite:
            raise self._not_finite("an observation", observation)

    def _check_scalar(self, quantity: str, value: Any, kinds: str, wanted: str) -> None:
        if _shape(value) != () or np.asarray(value).dtype.kind not in kinds:
            raise self._fault("step returned", quantity, wanted, value)

    def _where(self) -> str:
        return f"at step {self.total_steps} (step {self.episode_steps} of its episode)"

    def _fault(self, verb: str, quantity: str, wanted: str, value: Any) -> FaultyEnvironmentError:
        found = f"{type(value).__name__} {on_one_line(value)}"
        if shape := _shape(value):
            found = f"{type(value).__name__} of shape {shape}"
        return FaultyEnvironmentError(
            f"environment {self.name!r}: {verb} as {quantity} {found} {self._where()}, but it must "
            f"be {wanted}; correct the environment"
        )

    def _raised(self, verb: str, error: BaseException) -> FaultyEnvironmentError:
        text = on_one_line(error)
        cause = type(error).__name__ + (f": {text}" if text else "")
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
        frame = (own or frames)[-1]
        remedy = "correct the environment"
        if isinstance(error, gymnasium.error.ResetNeeded):
            remedy = "call reset() first"
        if isinstance(error, ValueError) and _UNPACKING in text:
            remedy = (
                "reset must return (observation, info), and step (observation, reward, terminated, "
                "truncated, info), as since Gym 0.26"
            )
        return FaultyEnvironmentError(
            f"environment {self.name!r}: {verb} failed {self._where()} with {cause} "
            f"({frame.filename}, line {frame.lineno}); {remedy}"
        )

    def _not_finite(self, quantity: str, value: Any) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(
            f"environment {self.name!r} returned {quantity} that is not finite {self._where()}: "
            f"{on_one_line(value)}; its simulation diverged or it has a bug: use a smaller time "
            "step, or another environment"
        )


def _shape(value: Any) -> tuple[int, ...] | None:
    """As NumPy sees it; None for nested lists without one."""
    try:
        return np.shape(value)
    except ValueError:
        return None
