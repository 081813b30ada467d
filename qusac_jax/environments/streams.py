"""Endless streams of episodes from functional environments: steps with automatic reset.

Written for one environment; callers `vmap`. Axes: O observation size, A action size.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax._checks import check_key
from qusac_jax._control import apply_if
from qusac_jax._keys import is_key
from qusac_jax.environments.functional import FunctionalEnvironment, State

# Sets the keys of environments apart from those that an agent draws from the same seed.
_STREAM = 0x656E76


class Stream(NamedTuple):
    """An environment in the middle of an episode, one of an endless sequence."""

    state: State  # the environment's own
    observation: jax.Array  # [O] float32, what to act on next
    episode_return: jax.Array  # [] float32, of the running episode so far, with action cost
    episode_task_return: jax.Array  # [] float32, without
    episode_length: jax.Array  # [] int32
    key: chex.PRNGKey  # of all that follows


class Step(NamedTuple):
    """What one step of an environment gave."""

    reward: jax.Array  # [] float32, with action cost
    task_reward: jax.Array  # [] float32, without
    terminated: jax.Array  # [] bool, the task ended the episode
    truncated: jax.Array  # [] bool, the time limit did


class StepResult(NamedTuple):
    """What one step of all environments gave; `R` leads where there are several."""

    next_observation: Any  # [R, O] float32, the true successor, before any reset
    reward: Any  # [R] float32, with action cost
    task_reward: Any  # [R] float32, without
    terminated: Any  # [R] bool, the task ended the episode
    truncated: Any  # [R] bool, the time limit did
    observation: Any  # [R, O] float32, what to act on next, after automatic resets
    episode_return: Any  # [R] of the episode that ended in this step, else NaN
    episode_task_return: Any  # [R] the same without action cost
    episode_length: Any  # [R] its number of steps, else NaN


def first_key(seed: jax.Array) -> chex.PRNGKey:
    """The key of the stream of a seed `[]`, an integer in [0, 2**32)."""
    return jax.random.fold_in(jax.random.key(seed), _STREAM)


def start(env: FunctionalEnvironment, key: chex.PRNGKey) -> Stream:
    """Begins an episode.

    Args:
        env: any.
        key: consumed; everything that the stream draws comes from it.

    Returns:
        The stream before its first step.

    Raises:
        ValueError: if the key is none.
    """
    check_key(key)
    key, key_reset = jax.random.split(key)
    state = _strongly_typed(env.reset(key_reset))
    return Stream(
        state=state,
        observation=_observe(env, state),
        episode_return=jnp.zeros((), jnp.float32),
        episode_task_return=jnp.zeros((), jnp.float32),
        episode_length=jnp.zeros((), jnp.int32),
        key=key,
    )


def restart(env: FunctionalEnvironment, stream: Stream) -> Stream:
    """Breaks the episode off and begins another one."""
    return start(env, stream.key)


def step(
    env: FunctionalEnvironment, stream: Stream, action: jax.Array, *, action_cost: float = 0.0
) -> tuple[Stream, Step]:
    """One step; an episode that ends stays where it has ended.

    Args:
        env: any.
        stream: where it is.
        action: `[A]` in [-1, 1]; what lies outside is clipped.
        action_cost: rho >= 0; rho * sum(a_i^2) is taken off the reward.

    Returns:
        The stream and what the step gave.

    Raises:
        ValueError: if the action is not of that shape.
    """
    action = jnp.asarray(action)
    if action.shape != (env.action_size,):
        raise ValueError(
            f"action must have shape [A] = ({env.action_size},), got {action.shape}; use "
            "`jax.vmap` for several"
        )
    key, key_step = jax.random.split(stream.key)
    action = jnp.clip(action, -1.0, 1.0)
    own_action = _to_bounds(env, action)
    state = _strongly_typed(env.step(stream.state, own_action, key_step))
    task_reward = jnp.asarray(env.reward(stream.state, own_action, state), jnp.float32)
    reward = task_reward - action_cost * jnp.sum(jnp.square(action))
    length = stream.episode_length + 1
    stepped = Stream(
        state=state,
        observation=_observe(env, state),
        episode_return=stream.episode_return + reward,
        episode_task_return=stream.episode_task_return + task_reward,
        episode_length=length,
        key=key,
    )
    return stepped, Step(
        reward=reward,
        task_reward=task_reward,
        terminated=jnp.asarray(env.terminated(state), bool),
        truncated=jnp.asarray(env.truncated(state), bool) | (length >= env.episode_length),
    )


def advance(
    env: FunctionalEnvironment,
    stream: Stream,
    action: jax.Array,
    *,
    action_cost: float = 0.0,
    active: jax.Array | bool = True,
) -> tuple[Stream, StepResult]:
    """One step, and the first state of the next episode where this one has ended.

    Args:
        env: as for `step`.
        stream: as for `step`.
        action: as for `step`.
        action_cost: as for `step`.
        active: `[]` bool, whether to step at all. If not, the stream stays as it is, with reward 0.

    Returns:
        The stream and what the step gave.

    Raises:
        ValueError: as `step`.
    """
    stepped, (reward, task_reward, terminated, truncated) = step(
        env, stream, action, action_cost=action_cost
    )
    ended = terminated | truncated
    # Resets are rare and as dear as a step: one turn of a loop when somebody needs it.
    after = apply_if(ended & active, functools.partial(restart, env), stepped)
    after = jax.tree.map(lambda new, old: jnp.where(active, new, old), after, stream)
    if_ended = lambda x: jnp.where(ended & active, x, jnp.nan)
    result = StepResult(
        next_observation=jnp.where(active, stepped.observation, stream.observation),
        reward=jnp.where(active, reward, 0.0),
        task_reward=jnp.where(active, task_reward, 0.0),
        terminated=terminated & active,
        truncated=truncated & active,
        observation=after.observation,
        episode_return=if_ended(stepped.episode_return),
        episode_task_return=if_ended(stepped.episode_task_return),
        episode_length=if_ended(stepped.episode_length),
    )
    return after, result


def _strongly_typed(state: State) -> State:
    """Without JAX's weak types, which would have a loop compiled for twice."""
    return jax.tree.map(lambda x: x if is_key(x) else jnp.asarray(x, jnp.result_type(x)), state)


def _observe(env: FunctionalEnvironment, state: State) -> jax.Array:
    return jnp.asarray(env.observation(state), jnp.float32)


def _to_bounds(env: FunctionalEnvironment, action: jax.Array) -> jax.Array:
    """The agent's action `[A]` in [-1, 1] as the environment's own."""
    low, high = (jnp.asarray(x, jnp.float32) for x in (env.action_low, env.action_high))
    # 1 may come to one rounding step beyond the upper one.
    return jnp.clip(low + 0.5 * (action + 1.0) * (high - low), low, high)
