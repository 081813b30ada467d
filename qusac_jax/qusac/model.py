"""What the agent does with its model: fits it, rolls it out, reads its predictions.

Axes: N members, B batch, O observation size, A action size.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import is_concrete
from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import estimates, fitting, fitting_data, multistep, penalties, rollouts
from qusac_jax.qusac import starts as starts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.parts import build
from qusac_jax.qusac.state import TrainState, act, dynamics_model, num_rollouts, rollout_chunks
from qusac_jax.task import Task, TerminationFn, Transition

_NO_DYNAMICS = "there are no dynamics: critic_data 'replay' trains without a model"


def refresh(
    state: TrainState, *, config: Config, task: Task
) -> tuple[TrainState, fitting.FitReport]:
    """Fits the dynamics on D and fills the model's buffers (Algorithm 2, lines 6-8).

    Called every F environment steps, by the host: under `vmap` a `cond` would run it every step.

    Args:
        state: donated; its replay buffer holds at least two transitions.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes and termination.

    Returns:
        The state and how the fit went.

    Raises:
        ValueError: if the agent has no model, and outside `jit` if D holds too little.
    """
    key, key_fit, key_roll = jax.random.split(state.key, 3)
    state, report = _fit(state._replace(key=key), key_fit, config=config, task=task)
    return _roll_out(state, key_roll, config=config, task=task), report


def fit(state: TrainState, *, config: Config, task: Task) -> tuple[TrainState, fitting.FitReport]:
    """The first half of `refresh`: fits the dynamics on D (Algorithms 2, line 6, and 3, line 2).

    Args:
        state: donated; its replay buffer holds at least two transitions.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes.

    Returns:
        The state with the fitted dynamics, and how the fit went.

    Raises:
        ValueError: if the agent has no model, and outside `jit` if D holds too little.
    """
    key, key_fit = jax.random.split(state.key)
    return _fit(state._replace(key=key), key_fit, config=config, task=task)


def roll_out(state: TrainState, *, config: Config, task: Task) -> TrainState:
    """The second half of `refresh`: rolls the dynamics out into D_model and D_1..D_N.

    Algorithms 2, lines 7-8, and 3, lines 5-6.

    Args:
        state: donated; rollouts start at states of its replay buffer.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes and termination.

    Returns:
        The state with new rollouts over the oldest ones.

    Raises:
        ValueError: if the agent has no model, and outside `jit` if D is empty.
    """
    key, key_roll = jax.random.split(state.key)
    return _roll_out(state._replace(key=key), key_roll, config=config, task=task)


def predict(
    dynamics: dynamics_lib.Dynamics,
    observation: jax.Array,
    action: jax.Array,
    *,
    config: Config,
    task: Task,
) -> tuple[jax.Array, jax.Array]:
    """The members' Gaussians over (s', r), as `qusac_jax.qusac.dynamics.predict` gives them.

    Args:
        dynamics: the members' weights.
        observation: `[B, O]` or `[N, B, O]`.
        action: `[B, A]` or `[N, B, A]`.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes.

    Returns:
        Mean and standard deviation, `[N, B, O + 1]` each, the reward last.
    """
    return dynamics_lib.predict(dynamics_model(config, task), dynamics, observation, action)


def termination(dynamics: dynamics_lib.Dynamics, *, config: Config, task: Task) -> TerminationFn:
    """When an episode ends, for what the model predicts: as given, or as learned.

    Args:
        dynamics: the members' weights.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes and termination.

    Returns:
        A function of observation, action and next observation, over any leading axes.
    """
    if config.dynamics.learn_termination:
        return dynamics_lib.termination(dynamics_model(config, task), dynamics)
    return task.termination


def predictor(
    dynamics: dynamics_lib.Dynamics | None, config: Config, task: Task
) -> estimates.Predict | None:
    """The members' mean predictions as the learner reads them."""
    if dynamics is None:
        return None

    ends = termination(dynamics, config=config, task=task)

    def expect(observation: jax.Array, action: jax.Array) -> estimates.Expectation:
        mean, std = predict(dynamics, observation, action, config=config, task=task)
        # What leads out of D is least known: clipped, members would agree about it.
        change = (mean[..., :-1] - observation) / dynamics.change_std
        noise = std[..., :-1] / dynamics.change_std
        per_member = lambda x: jnp.broadcast_to(x, (config.num_members, *x.shape))
        terminated = ends(per_member(observation), per_member(action), mean[..., :-1])
        # As in rollouts: beyond the range of D, no critic has been trained, and what they say there
        # would count as disagreement of the members.
        kept = dynamics_lib.clip(dynamics, mean)
        return estimates.Expectation(kept[..., :-1], change, noise, kept[..., -1], terminated)

    return expect


def _fit(
    state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task
) -> tuple[TrainState, fitting.FitReport]:
    if state.dynamics is None:
        raise ValueError(_NO_DYNAMICS)
    if is_concrete(state.replay.size) and np.any(np.asarray(state.replay.size) < 2):
        raise ValueError("D holds fewer than two transitions: `observe` more before the first fit")
    dynamics, report = fitting.fit(
        dynamics_model(config, task),
        state.dynamics,
        state.replay,
        key,
        config=config.dynamics,
        batch_size=config.fit_batch_size,
    )
    return state._replace(dynamics=dynamics), report


def _roll_out(state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task) -> TrainState:
    if state.dynamics is None or state.model_data is None:
        raise ValueError(_NO_DYNAMICS)
    if is_concrete(state.replay.size) and not np.all(np.asarray(state.replay.size)):
        raise ValueError("D is empty, and rollouts start there: `observe` before the first")

    def policy(observation: jax.Array, key: chex.PRNGKey) -> jax.Array:
        return act(state.actor, observation, key, config=config, task=task)

    # Fits are rarer, and rollouts may start where D was not yet at the last one.
    dynamics = fitting_data.with_range(state.dynamics, state.replay, config.dynamics)
    starts, key = _starts(state, key, config, task)
    roll_out = functools.partial(
        rollouts.rollout,
        dynamics_model(config, task),
        dynamics,
        policy,
        termination(dynamics, config=config, task=task),
        length=config.rollout_length,
        random_first_actions=config.random_first_actions,
        penalty=_penalty(config),
    )
    model_data, member_data = rollouts.refill(
        roll_out,
        starts,
        state.model_data,
        state.member_data,
        key,
        num_members=config.num_members,
        num_rollouts=num_rollouts(config),
        critic_steps=config.critic_steps,
        discount=config.discount,
        look_ahead=_look_ahead(state, dynamics, config, task),
    )
    return state._replace(dynamics=dynamics, model_data=model_data, member_data=member_data)


def _look_ahead(
    state: TrainState, dynamics: dynamics_lib.Dynamics, config: Config, task: Task
) -> rollouts.LookAhead | None:
    """What the U-net learns from rollouts, by critics, policy and members as they are now."""
    if not config.unet_looks_ahead:
        return None
    parts = build(config, task.action_size)
    predict = predictor(dynamics, config, task)

    def look_ahead(rollout: Transition, key: chex.PRNGKey) -> multistep.Ahead:
        def local(step: tuple[Transition, chex.PRNGKey]) -> jax.Array:
            transition, key = step
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transition)
            values = estimates.propagated_uncertainty(parts, state.learner, flat, predict, key)
            return values.reshape(transition.reward.shape)

        # One step of all rollouts at a time: what asks the model holds N times as much and more.
        keys = jax.random.split(key, config.rollout_length)
        values = jax.lax.map(local, (rollout, keys))
        return multistep.ahead(rollout, values, config.unet_steps, config.discount)

    return look_ahead


def _starts(
    state: TrainState, key: chex.PRNGKey, config: Config, task: Task
) -> tuple[starts_lib.Starts, chex.PRNGKey]:
    """Where rollouts start, and the key that is left for them."""
    if config.rollout_starts == "uniform":
        return starts_lib.uniform(state.replay), key
    key, key_pool, key_score = jax.random.split(key, 3)
    parts = build(config, task.action_size)
    chunks, size = rollout_chunks(config)
    starts = starts_lib.by_value(
        state.replay,
        functools.partial(estimates.attraction, parts, state.learner),
        key_pool,
        key_score,
        chunks=chunks,
        size=size,
    )
    return starts, key


def _penalty(config: Config) -> penalties.Penalty | None:
    """What rollouts take off the reward: λ times the penalty of the configuration."""
    if config.penalty is None:
        return None
    penalty = penalties.find(config.penalty)
    return lambda mean, std: config.penalty_scale * penalty(mean, std)
