"""Builds one environment out of dm_control or Gymnasium, shimmy and Gymnasium's wrappers."""

import contextlib
import importlib
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from qusac_jax._actions import UNBOUNDED, as_action_cost
from qusac_jax.environments import functional, physics
from qusac_jax.environments.action_cost import ActionCost
from qusac_jax.environments.names import ParsedName, load_suite, parse_name
from qusac_jax.environments.termination import (
    check_fits,
    check_termination,
    termination_fn,
    termination_name,
)
from qusac_jax.task import Task, TerminationFn

DEFAULT_EPISODE_STEPS = 1000  # where neither the task nor Gymnasium's registry has a limit
RENDER_HEIGHT, RENDER_WIDTH = 240, 320


class Spec(NamedTuple):
    """The sizes and constants of an environment that an agent has to know."""

    name: str
    observation_size: int  # O
    action_size: int  # A
    action_cost: float  # rho, >= 0
    max_episode_steps: int
    termination: str  # a key of `termination.TERMINATIONS`, "own", or "unknown"
    # Bounds of the actions in the environment's own units, which [-1, 1] stands for; A each, empty
    # where they are not known.
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()

    def task(self, termination: str | TerminationFn | None = None) -> Task:
        """What an agent must know of the environment.

        Args:
            termination: overrides the environment's own, as for `termination_fn`.

        Raises:
            ValueError: if it is not known when an episode ends and no termination is given, or if
                the given one cannot be traced for these sizes, does not return booleans, or is for
                other tasks.
        """
        ends = termination_fn(self.name, termination)
        sizes = {"observation_size": self.observation_size, "action_size": self.action_size}
        if isinstance(termination, str) or (
            termination is None and functional.is_functional(self.name)
        ):
            check_fits(self.name, termination or self.termination, **sizes)
        if termination is not None or self.termination == "own":
            check_termination(ends, **sizes)
        return Task(self.observation_size, self.action_size, ends)


def make(
    name: str,
    *,
    action_cost: float | None = None,
    seed: int | None = None,
    render: bool = False,
) -> gymnasium.Env:
    """One environment with flat float32 observations and actions in [-1, 1].

    The reward is the task's reward less `action_cost * sum(a_i^2)`, with the action as the agent
    gives it, in [-1, 1]; `info["task_reward"]` is the reward without that cost. Dictionaries of
    observations are flattened in the order that dm_control or Gymnasium's `Dict` space gives them.

    Args:
        name: one of the six tasks of the paper, `dmc:DOMAIN:TASK`, `gym:ID` or `gym:MODULE:ID`,
            which imports, and so executes, the module. `:sincos` may follow the first two, see
            `environments.names`.
        action_cost: rho >= 0; by default that of the paper for its tasks and 0 for all others.
        seed: of the task's random numbers, in [0, 2**32); as good as `reset(seed=seed)` later.
        render: whether `render()` is to return pictures. On a machine without a display the
            environment variable `MUJOCO_GL` has to be `egl` or `osmesa`; see also `record_video`.

    Raises:
        ValueError: for an unknown name or one of a device family, actions that are no bounded flat
            Box, observations that are neither a flat Box nor a Dict of Boxes, a negative action
            cost, a seed that is out of range, or a package that is not installed.
    """
    parsed = parse_name(name)
    if parsed.is_on_device:
        raise ValueError(
            f"env: {name!r} is stepped on the device and is no Gymnasium environment; use "
            "environments.vector, or environments.functional and environments.streams"
        )
    rho = _action_cost(parsed, action_cost)
    check_seed(seed)
    env = _make_suite(parsed, seed, render) if parsed.family == "dmc" else _make_gym(parsed, render)
    _check_observation_space(name, getattr(env, "observation_space", None))  # not all define them
    bounds = _check_action_space(name, getattr(env, "action_space", None))
    env = _flatten(env)
    if parsed.sincos is not None:
        env = _sincos(env, parsed.sincos)
    if np.any(bounds.low != -1) or np.any(bounds.high != 1):
        ones = np.ones_like(bounds.low)
        env = _Rescaled(env, -ones, ones)
    return ActionCost(env, name=name, action_cost=rho, initial_seed=seed, action_bounds=bounds)


def spec(name: str, action_cost: float | None = None) -> Spec:
    """The `Spec` of an environment; builds it once to look."""
    parsed = parse_name(name)
    if parsed.is_on_device:
        on_device = functional.load(name)
        return Spec(
            name=name,
            observation_size=on_device.observation_size,
            action_size=on_device.action_size,
            action_cost=_action_cost(parsed, action_cost),
            max_episode_steps=on_device.episode_length,
            termination=termination_name(name),
            action_low=_each(on_device.action_low, on_device.action_size),
            action_high=_each(on_device.action_high, on_device.action_size),
        )
    env = make(name, action_cost=action_cost)
    try:
        return spec_of(env)
    finally:
        env.close()


def spec_of(env: gymnasium.Env) -> Spec:
    """The `Spec` of an environment that `make` built."""
    name = env.get_wrapper_attr("name")
    return Spec(
        name=name,
        observation_size=spaces.flatdim(env.observation_space),
        action_size=spaces.flatdim(env.action_space),
        action_cost=env.get_wrapper_attr("action_cost"),
        max_episode_steps=_max_episode_steps(env),
        termination=termination_name(name),
        action_low=env.get_wrapper_attr("action_bounds")[0],
        action_high=env.get_wrapper_attr("action_bounds")[1],
    )


def _action_cost(parsed: ParsedName, given: float | None) -> float:
    return as_action_cost("action_cost", parsed.action_cost if given is None else given)


def _each(bound: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    return tuple(np.broadcast_to(np.asarray(bound, float), (count,)).tolist())


def check_seed(seed: int | None) -> None:
    """Raises `ValueError` unless `seed` is None or fits NumPy's `RandomState`."""
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is not None and not (is_integer and 0 <= seed < 2**32):
        raise ValueError(f"seed must be an integer in [0, 2**32), got {seed!r}; choose another")


def _make_suite(parsed: ParsedName, seed: int | None, render: bool) -> gymnasium.Env:
    task = load_suite().load(
        parsed.domain,
        parsed.task,
        # The seed goes to the constructor too: some tasks (lqr) draw their model there.
        task_kwargs={"random": seed},
        # One array per step instead of a dictionary, in the order of the task's observations.
        environment_kwargs={"flat_observation": True},
    )
    # Imported here: it loads all of dm_control, which users of Gymnasium alone need not wait for.
    shimmy = importlib.import_module("shimmy.dm_control_compatibility")
    env: gymnasium.Env = shimmy.DmControlCompatibilityV0(
        task,
        render_mode="rgb_array" if render else None,
        render_kwargs={"height": RENDER_HEIGHT, "width": RENDER_WIDTH, "camera_id": 0},
    )
    if math.isinf(task._step_limit):
        env = wrappers.TimeLimit(env, DEFAULT_EPISODE_STEPS)
    return env


def _make_gym(parsed: ParsedName, render: bool) -> gymnasium.Env:
    # parse_name has imported the module of MODULE:ID, if there is one.
    registered = gymnasium.spec(parsed.task.rpartition(":")[2])
    arguments: dict[str, Any] = {"disable_env_checker": True}
    if render:
        arguments["render_mode"] = "rgb_array"
    if registered.max_episode_steps is None:
        arguments["max_episode_steps"] = DEFAULT_EPISODE_STEPS
    try:
        with _without_deprecations():
            return gymnasium.make(registered, **arguments)
    except (Exception, SystemExit) as error:  # other people's constructors raise anything
        raise ValueError(
            f"env: 'gym:{parsed.task}' cannot be built here: {error}; install what it needs or "
            "choose another environment"
        ) from error


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Keeps to itself what MuJoCo says of a model's file, for each copy and in MUJOCO_LOG.TXT."""
    previous = physics.mujoco.get_mju_user_warning()
    say = previous or (lambda message: warnings.warn(f"MuJoCo: {message}", stacklevel=2))

    def pass_on(message: str) -> None:
        if "is deprecated" not in message:
            say(message)

    physics.mujoco.set_mju_user_warning(pass_on)
    try:
        yield
    finally:
        physics.mujoco.set_mju_user_warning(previous)


def _flatten(env: gymnasium.Env) -> gymnasium.Env:
    space = env.observation_space
    if isinstance(space, spaces.Dict) and len(space) == 1:
        # Picks the only entry: a tenth of what FlattenObservation costs at every step.
        ((key, entry),) = space.items()
        env = wrappers.TransformObservation(
            env, lambda o: np.asarray(o[key]).ravel(), spaces.flatten_space(entry)
        )
    elif isinstance(space, spaces.Dict) or space.shape == ():
        env = wrappers.FlattenObservation(env)
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.dtype != np.float32:
        # Not DtypeObservation: it warns about the narrowing that is wanted here.
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        narrow = spaces.Box(low, high, dtype=np.float32)
        env = wrappers.TransformObservation(env, lambda o: np.asarray(o, np.float32), narrow)
    return env


class _Rescaled(wrappers.RescaleAction):
    """Gymnasium's, within the bounds: 1 may come to one rounding step beyond the upper one."""

    def action(self, action: np.ndarray) -> np.ndarray:
        """In units of the environment."""
        bounds = cast(spaces.Box, self.env.action_space)
        return np.clip(super().action(action), bounds.low, bounds.high)


def _sincos(env: gymnasium.Env, index: int) -> gymnasium.Env:
    """Sine and cosine in place of an angle.

    A network cannot know that an angle and the same after a turn are one, and to an agent that
    seeks what its model does not know, every further turn is new.
    """
    space = env.observation_space
    assert isinstance(space, spaces.Box)  # as `_flatten` leaves it
    ones = np.ones(2, space.dtype)
    replaced = lambda bound, pair: np.concatenate([bound[:index], pair, bound[index + 1 :]])
    wound = spaces.Box(replaced(space.low, -ones), replaced(space.high, ones), dtype=np.float32)
    return wrappers.TransformObservation(
        env, lambda o: replaced(o, np.array([np.sin(o[index]), np.cos(o[index])], o.dtype)), wound
    )


def _check_action_space(name: str, action: spaces.Space | None) -> spaces.Box:
    if not isinstance(action, spaces.Box) or len(action.shape) != 1 or action.shape[0] == 0:
        raise ValueError(
            f"env: {name!r} has the action space {action}, but actions must be a flat Box; choose "
            "an environment with continuous actions"
        )
    bounded = np.all(np.maximum(np.abs(action.low), np.abs(action.high)) < UNBOUNDED)
    if not bounded or not np.issubdtype(action.dtype, np.floating):
        raise ValueError(
            f"env: {name!r} has the unbounded or integer action space {action}, but actions are "
            "rescaled from [-1, 1]; wrap it with a bounded float Box"
        )
    if np.any(action.low >= action.high):
        raise ValueError(
            f"env: {name!r} has an action with no range, {action}; remove that component"
        )
    return action


def _check_observation_space(name: str, observation: spaces.Space | None) -> None:
    leaves = observation.values() if isinstance(observation, spaces.Dict) else [observation]
    most = 2 if isinstance(observation, spaces.Dict) else 1
    fits = [isinstance(leaf, spaces.Box) and len(leaf.shape) <= most for leaf in leaves]
    if not all(fits) or spaces.flatdim(observation) == 0:
        raise ValueError(
            f"env: {name!r} has the observation space {observation}, but observations must be a "
            "flat Box or a Dict of Boxes; choose an environment with vector observations"
        )


def _max_episode_steps(env: gymnasium.Env) -> int:
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, wrappers.TimeLimit):
            return layer._max_episode_steps
        layer = layer.env
    # dm_control ends an episode at the first count of steps that is not below its limit.
    return math.ceil(vars(layer)["_env"]._step_limit)
