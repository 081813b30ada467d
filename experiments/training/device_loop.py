"""Algorithm 2 as one compiled function: environments, agent, fits and rollouts on the device.

The host says what is due at which step (`qusac.schedule`) and does nothing until all steps are
taken. `vmap` over seeds is inside the loop, as what is due is the same for all of them: what is not
due is then skipped; under a `vmap` around the loop, both branches of a `cond` would be computed.

Axes: R seeds, E evaluation episodes, T steps of a call, N members, O observation size, A action
size.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import qusac
from qusac_jax._control import apply_if
from qusac_jax.environments import FunctionalEnvironment, streams
from qusac_jax.environments.streams import Stream
from qusac_jax.qusac.fitting import FitReport


class Plan(NamedTuple):
    """What is due at the steps of a call; a call may have fewer steps than there are slots."""

    num_steps: np.ndarray  # [] int32
    refresh: np.ndarray  # [T] bool
    roll_out: np.ndarray  # [T] bool
    learn: np.ndarray  # [T] bool


class Report(NamedTuple):
    """What a call leaves for the log."""

    last_return: jax.Array  # [2, R] with and without action cost, of the last episode; NaN if none
    rewarded_steps: jax.Array  # [R] int32
    metrics: dict[str, jax.Array]  # [R] each, of the last gradient update; NaN if none
    fit: FitReport  # [R, ...] of the last fit; NaN if none
    # [R] int32: the first step of the call, from 1, in which the environment answered a finite
    # action with NaN or Inf; 0 if none.
    faulty_step: jax.Array


class _Agent(NamedTuple):
    """What follows from a step, beside the environments."""

    state: qusac.TrainState  # [R, ...]
    action: jax.Array  # [R, A]
    metrics: dict[str, jax.Array]
    fit: FitReport


class _Loop(NamedTuple):
    agent: _Agent
    envs: Stream  # [R, ...]
    last_return: jax.Array
    rewarded_steps: jax.Array
    faulty_step: jax.Array


class Episodes(NamedTuple):
    """Returns of evaluation episodes, in the order of the environments."""

    episode_return: jax.Array  # [R * E]
    episode_task_return: jax.Array  # [R * E]
    discounted_return: jax.Array  # [R * E]
    first_observation: jax.Array  # [R * E, O]


def plan(first: int, last: int, length: int, *, config: qusac.Config) -> Plan:
    """What is due at the steps `first` + 1 to `last`.

    Args:
        first: steps that are done.
        last: steps that will be done.
        length: T >= last - first; static, so that calls of all lengths share one program.
        config: hyperparameters.
    """
    due = [qusac.schedule.online(step, config=config) for step in range(first + 1, last + 1)]
    padded = lambda flags: np.resize(np.array([*flags, *[False] * length]), length)
    return Plan(
        num_steps=np.array(len(due), np.int32),
        refresh=padded(step.refresh for step in due),
        roll_out=padded(step.roll_out for step in due),
        learn=padded(step.learn for step in due),
    )


def run_steps(
    state: qusac.TrainState,
    envs: Stream,
    action: jax.Array,
    plan: Plan,
    *,
    env: FunctionalEnvironment,
    config: qusac.Config,
    task: qusac.Task,
    action_cost: float,
    reward_threshold: float,
) -> tuple[qusac.TrainState, Stream, jax.Array, Report]:
    """Steps all environments and does what follows, as often as planned.

    Args:
        state: of the agents, `[R, ...]`; donated.
        envs: where the environments are, `[R, ...]`; donated.
        action: `[R, A]`, the first to take.
        plan: from `plan`.
        env: the environment.
        config: hyperparameters.
        task: of the environment.
        action_cost: rho.
        reward_threshold: a step with a larger reward counts as rewarded.

    Returns:
        The agents, the environments, the next action and what is to be logged.
    """
    over_seeds = lambda verb: jax.vmap(functools.partial(verb, config=config, task=task))
    step_envs = jax.vmap(functools.partial(streams.advance, env, action_cost=action_cost))

    def step(i: jax.Array, loop: _Loop) -> _Loop:
        agent, observation = loop.agent, loop.envs.observation
        envs, result = step_envs(loop.envs, agent.action)
        transition = qusac.Transition.of_step(observation, agent.action, result)

        def refresh(agent: _Agent) -> _Agent:
            state, fit = over_seeds(qusac.refresh)(agent.state)
            return agent._replace(state=state, fit=fit)

        def roll_out(agent: _Agent) -> _Agent:
            return agent._replace(state=over_seeds(qusac.roll_out)(agent.state))

        def learn(agent: _Agent) -> _Agent:
            arguments = agent.state, transition, result.observation
            state, action, metrics = over_seeds(qusac.train_step)(*arguments)
            return agent._replace(state=state, action=action, metrics=metrics)

        def collect(agent: _Agent) -> _Agent:
            arguments = agent.state, transition, result.observation
            state, action = over_seeds(qusac.collect)(*arguments)
            return agent._replace(state=state, action=action)

        if config.uses_model:
            agent = apply_if(plan.refresh[i], refresh, agent)
        if config.uses_model and config.rollout_interval < config.fit_every:
            agent = apply_if(plan.roll_out[i], roll_out, agent)
        agent = apply_if(plan.learn[i], learn, agent)
        agent = apply_if(~plan.learn[i], collect, agent)
        returns = jnp.stack([result.episode_return, result.episode_task_return])
        # Also what the next episode begins with.
        seen = jnp.concatenate([result.next_observation, result.observation], -1)
        is_finite = jnp.isfinite(result.reward) & jnp.isfinite(seen).all(-1)
        is_faulty = jnp.isfinite(loop.agent.action).all(-1) & ~is_finite
        return _Loop(
            agent=agent,
            envs=envs,
            last_return=jnp.where(jnp.isnan(returns), loop.last_return, returns),
            rewarded_steps=loop.rewarded_steps + (result.reward > reward_threshold),
            faulty_step=jnp.where(is_faulty & (loop.faulty_step == 0), i + 1, loop.faulty_step),
        )

    num_seeds = len(action)
    nothing = _empty_logs(state, envs, action, config=config, task=task)
    start = _Loop(
        agent=_Agent(state, action, *nothing),
        envs=envs,
        last_return=jnp.full((2, num_seeds), jnp.nan),
        rewarded_steps=jnp.zeros(num_seeds, jnp.int32),
        faulty_step=jnp.zeros(num_seeds, jnp.int32),
    )
    end = jax.lax.fori_loop(0, plan.num_steps, step, start)
    agent = end.agent
    report = Report(end.last_return, end.rewarded_steps, agent.metrics, agent.fit, end.faulty_step)
    return agent.state, end.envs, agent.action, report


def run_episodes(
    actor: Any,
    envs: Stream,
    *,
    env: FunctionalEnvironment,
    config: qusac.Config,
    task: qusac.Task,
    action_cost: float,
) -> tuple[Stream, Episodes]:
    """One episode in every environment with the mean action, as `evaluation.evaluate` runs them.

    Args:
        actor: of the agents, `[R, ...]`.
        envs: R x E environments, seed by seed, `[R * E, ...]`; continues their random numbers.
        env: the environment.
        config: hyperparameters.
        task: of the environment.
        action_cost: rho.

    Returns:
        The environments, and the returns of their episodes.
    """
    num_seeds = jax.tree.leaves(actor)[0].shape[0]
    act = jax.vmap(functools.partial(qusac.act, config=config, task=task))
    advance = functools.partial(streams.advance, env, action_cost=action_cost)
    step_envs = jax.vmap(lambda stream, action, active: advance(stream, action, active=active))
    envs = jax.vmap(functools.partial(streams.restart, env))(envs)
    num_envs = len(envs.observation)
    unknown = jnp.full(num_envs, jnp.nan)
    start = Episodes(unknown, unknown, jnp.zeros(num_envs), envs.observation)

    def are_running(carry: tuple[Stream, Episodes, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(carry[2])

    def step(carry: tuple[Stream, Episodes, jax.Array, jax.Array]):
        envs, episodes, running, weight = carry
        observation = envs.observation.reshape(num_seeds, -1, task.observation_size)
        action = act(actor, observation).reshape(num_envs, task.action_size)
        envs, result = step_envs(envs, action, running)
        ended = result.terminated | result.truncated
        keep = lambda new, old: jnp.where(ended, new, old)
        episodes = episodes._replace(
            episode_return=keep(result.episode_return, episodes.episode_return),
            episode_task_return=keep(result.episode_task_return, episodes.episode_task_return),
            discounted_return=episodes.discounted_return + weight * result.reward,
        )
        return envs, episodes, running & ~ended, weight * config.discount

    carry = envs, start, jnp.ones(num_envs, bool), jnp.ones(())
    envs, episodes, _, _ = jax.lax.while_loop(are_running, step, carry)
    return envs, episodes


def _empty_logs(
    state: qusac.TrainState,
    envs: Stream,
    action: jax.Array,
    *,
    config: qusac.Config,
    task: qusac.Task,
) -> tuple[dict[str, jax.Array], FitReport]:
    """Metrics and a fit's report in their shapes, before there are any."""
    over_seeds = lambda verb: jax.vmap(functools.partial(verb, config=config, task=task))
    reward = jnp.zeros(len(action))
    transition = qusac.Transition(
        envs.observation, action, reward, envs.observation, jnp.zeros(len(action), bool)
    )
    _, _, metrics = jax.eval_shape(
        over_seeds(qusac.train_step), state, transition, envs.observation
    )
    fit = FitReport(*[jnp.zeros((len(action), 0))] * 3)
    if config.uses_model:
        _, fit = jax.eval_shape(over_seeds(qusac.refresh), state)
    empty = lambda x: jnp.full(x.shape, jnp.nan if x.dtype == jnp.float32 else 0, x.dtype)
    return jax.tree.map(empty, (metrics, fit))
