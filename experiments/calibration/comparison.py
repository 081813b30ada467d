"""Values and their uncertainty beside the returns that come, in the world and in the models.

All returns are what the critics estimate: discounted, with the entropy bonuses as far as targets
have them, of the policy's own draws and not of its mean action, and cut off after K steps.

Axes: R seeds, N members, E episodes, T steps, P points (states), J draws, K rollout length,
O observation size.
"""

import math
from typing import NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments import seeds
from experiments.saved_run import SavedRun
from qusac_jax import environments, qusac
from qusac_jax.qusac import (
    estimates,
    losses,
    model,
    networks,
    rollouts,
)
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.dynamics import Dynamics
from qusac_jax.qusac.state import dynamics_model

# Share of the discounted sum of constant rewards that comes after its `horizon`.
TAIL = 0.02


class Returns(NamedTuple):
    """What was expected at states of real episodes, and what came of them.

    NaN where a short episode has fewer states than others, or no known return.
    """

    value: np.ndarray  # [R, P] mean over the critic groups
    std: np.ndarray  # [R, P] sqrt(U); NaN for methods without it
    member_value: np.ndarray  # [R, N, P] of each critic group
    real: np.ndarray  # [R, P] return in the environment
    member: np.ndarray  # [R, N, P] mean return in each member's model; NaN without a model
    member_error: np.ndarray  # [R, N, P] standard error of that mean over draws
    length: int  # K


class _Episodes(NamedTuple):
    observation: np.ndarray  # [T, R, E, O]
    reward: np.ndarray  # [T, R, E] of the task; 0 after the end
    bonus: np.ndarray  # [T, R, E] of entropy; 0 after the end
    steps: np.ndarray  # [R, E] until the end
    terminated: np.ndarray  # [R, E] by the task, and not by its time limit


def horizon(discount: float, most: int) -> int:
    """Steps after which 2 % of a discounted sum are left; at most so many."""
    if discount <= 0:
        return 1
    return min(most, math.ceil(math.log(TAIL) / math.log(discount)))


def share_of_bonuses(config: qusac.Config) -> float:
    """The share of a constant stream of entropy bonuses that Q has, in (0, 1].

    A target of n steps holds one bonus, that of its last state, so that Q has every n-th; n is
    smaller where rollouts end, and 1 for real transitions. The factor γ^n before what follows is
    then E[γ^n] in the mean, and Q = E[γ^n] (bonus + Q).
    """
    discount = config.discount
    if config.critic_data != "member" or discount == 0:
        return 1.0
    until_end = np.arange(config.rollout_length, 0, -1)
    steps = np.minimum(config.critic_steps, until_end)
    real = config.num_real / config.batch_size
    factor = real * discount + (1 - real) * np.mean(discount**steps)
    return float(factor / (1 - factor) * (1 - discount) / discount)


def measure(
    saved: SavedRun,
    state: qusac.TrainState,
    *,
    num_episodes: int,
    num_points: int,
    num_draws: int,
    seed: int,
) -> Returns:
    """Compares what a saved agent expects with what comes.

    Args:
        saved: the run.
        state: `[R, ...]` of one of its checkpoints.
        num_episodes: E per seed, in the environment.
        num_points: states of each episode, evenly spaced where K steps or the end follow.
        num_draws: J rollouts of each member's model from each state.
        seed: of environments, actions and rollouts.
    """
    length = horizon(saved.config.discount, saved.spec.max_episode_steps)
    keys = seeds.keys([seed + r for r in range(len(saved.seeds))], 3)
    episodes = _run_episodes(saved, state, num_episodes, seed, keys[:, 0])
    observation, real = _points(
        episodes, num_points, length, saved.config.discount, share_of_bonuses(saved.config)
    )
    both = {"config": saved.config, "task": saved.task, "num_draws": num_draws}
    values = seeds.mapped(_values, **both)
    value, std = jax.tree.map(np.asarray, values(state, observation, keys[:, 1]))
    member = error = np.full((len(saved.seeds), saved.config.num_members, real.shape[1]), np.nan)
    if saved.config.uses_model:
        num_chunks = real.shape[1] // num_episodes
        roll = seeds.mapped(_model_returns, length=length, num_chunks=num_chunks, **both)
        member, error = jax.tree.map(np.asarray, roll(state, observation, keys[:, 2]))
    repeated = np.isnan(real)
    once = lambda x: np.where(repeated if x.ndim == 2 else repeated[:, None], np.nan, x)
    value, std, member = once(value), once(std), once(member)
    return Returns(value.mean(1), std, value, real, member, error, length)


def _run_episodes(
    saved: SavedRun, state: qusac.TrainState, num_episodes: int, seed: int, keys: chex.PRNGKey
) -> _Episodes:
    """Episodes with drawn actions in R x E environments, until all have ended."""
    shape = (len(saved.seeds), num_episodes)
    environment = environments.vector(
        saved.spec.name,
        [seed + e for _ in range(shape[0]) for e in range(num_episodes)],
        action_cost=saved.spec.action_cost,
    )
    draw = seeds.mapped(_draw, config=saved.config, task=saved.task)
    observation = environment.reset()
    running = np.ones(shape, bool)
    steps, terminated = np.zeros(shape, int), np.zeros(shape, bool)
    observations, rewards, bonuses = [], [], []
    while running.any():
        observations.append(observation.reshape(*shape, -1))
        action, bonus = draw(state, observations[-1], keys, np.full(shape[0], len(rewards)))
        result = environment.step(
            np.asarray(action).reshape(len(environment), -1), running.reshape(-1)
        )
        rewards.append(np.where(running, result.reward.reshape(shape), 0.0))
        bonuses.append(np.where(running, np.asarray(bonus), 0.0))
        steps += running
        ended = (result.terminated | result.truncated).reshape(shape)
        terminated |= running & result.terminated.reshape(shape)
        running &= ~ended
        observation = result.observation
    environment.close()
    return _Episodes(
        np.stack(observations), np.stack(rewards), np.stack(bonuses), steps, terminated
    )


def _points(
    episodes: _Episodes, num_points: int, length: int, discount: float, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """States `[R, P, O]`, and the returns `[R, P]` that follow them.

    NaN for a repeated state, and where an episode was cut off before its return was known. The
    bonus of the first action counts, and `share` of those that follow. P is a multiple of E, at
    most `num_points` times.
    """
    # Episodes that were cut off by the time limit have no known return near their end.
    last = np.where(episodes.terminated, episodes.steps - 1, episodes.steps - length)
    start = np.round(np.linspace(0, np.maximum(last, 0), num_points)).astype(int)  # [points, R, E]
    total = len(episodes.reward)
    rewards = episodes.reward + share * episodes.bonus
    padded = np.concatenate([rewards, np.zeros((length, *rewards.shape[1:]))])
    weights = discount ** np.arange(length)
    returns = np.stack(
        [np.tensordot(weights, padded[t : t + length], axes=1) for t in range(total)]
    )
    returns += (1 - share) * episodes.bonus
    at = lambda values: np.take_along_axis(values, start, axis=0)
    real = at(returns)
    real[1:][np.diff(start, axis=0) == 0] = np.nan  # a short episode has fewer points
    real[:, last < 0] = np.nan  # and one that was cut off before has none
    kept = np.isfinite(real).any(axis=(1, 2))
    if not kept.any():
        raise ValueError(
            f"calibration: all {last.size} episodes are cut off within the {length} steps that "
            "returns are over; use a smaller discount, or longer episodes"
        )
    start, real = start[kept], real[kept]
    rows, columns = np.indices(start.shape[1:])
    observation = episodes.observation[start, rows, columns]
    by_seed = lambda x: np.moveaxis(x, 1, 0).reshape(x.shape[1], -1, *x.shape[3:])  # [R, P, ...]
    return by_seed(observation), by_seed(real)


def _draw(
    state: qusac.TrainState,
    observation: jax.Array,
    key: chex.PRNGKey,
    step: jax.Array,
    *,
    config: qusac.Config,
    task: qusac.Task,
) -> tuple[jax.Array, jax.Array]:
    """An action for each observation `[E, O]`, and its entropy bonus `[E]`."""
    parts = parts_lib.build(config, task.action_size)
    key = jax.random.fold_in(key, step)
    action, log_prob = networks.sample_action(parts.actor, state.actor, observation, key)
    return action, -jnp.exp(state.learner.log_temperature) * log_prob


def _values(
    state: qusac.TrainState,
    observation: jax.Array,
    key: chex.PRNGKey,
    *,
    config: qusac.Config,
    task: qusac.Task,
    num_draws: int,
) -> tuple[jax.Array, jax.Array]:
    """V of each critic group `[N, P]` and sqrt(U) `[P]` at states `[P, O]`, over J actions."""
    parts = parts_lib.build(config, task.action_size)
    size = observation.shape[0]
    repeated = jnp.repeat(observation, num_draws, axis=0)
    action, log_prob = networks.sample_action(parts.actor, state.actor, repeated, key)
    q = networks.apply(parts.critic, state.learner.critic, repeated, action)
    soft = losses.group_value(q) - jnp.exp(state.learner.log_temperature) * log_prob
    value = jnp.mean(soft.reshape(-1, size, num_draws), axis=-1)
    method = config.qvariance
    if not method.estimates_u:
        return value, jnp.full(size, jnp.nan)
    std = estimates.value_std(parts, state.learner, repeated, action, q)
    return value, jnp.sqrt(jnp.mean(jnp.square(std).reshape(size, num_draws), axis=-1))


def _model_returns(
    state: qusac.TrainState,
    observation: jax.Array,
    key: chex.PRNGKey,
    *,
    config: qusac.Config,
    task: qusac.Task,
    length: int,
    num_draws: int,
    num_chunks: int,
) -> tuple[jax.Array, jax.Array]:
    """Mean return `[N, P]` from states `[P, O]` in each member's model, and its standard error.

    P is a multiple of `num_chunks`, the parts that are rolled out after one another.
    """
    dynamics, temperature = cast(Dynamics, state.dynamics), jnp.exp(state.learner.log_temperature)
    parts = parts_lib.build(config, task.action_size)
    weights = config.discount ** jnp.arange(length)
    # V at the start has the bonus of the first action as it is.
    shares = jnp.full(length, share_of_bonuses(config)).at[0].set(1.0)

    def chunk(inputs: tuple[jax.Array, chex.PRNGKey]) -> tuple[jax.Array, jax.Array]:
        start, key = inputs
        key_roll, key_entropy = jax.random.split(key)
        repeated = jnp.repeat(start, num_draws, axis=0)
        transitions, mask = rollouts.rollout(
            dynamics_model(config, task),
            dynamics,
            lambda observation, key: networks.sample_action(
                parts.actor, state.actor, observation, key
            )[0],
            model.termination(dynamics, config=config, task=task),
            jnp.broadcast_to(repeated, (config.num_members, *repeated.shape)),
            key_roll,
            length=length,
            randomize_members=False,
        )
        # The bonus of other draws than the rollout's has the same mean.
        _, log_prob = networks.sample_action(
            parts.actor, state.actor, transitions.observation, key_entropy
        )
        bonus = -temperature * shares[:, None, None] * log_prob
        reward = jnp.where(mask, transitions.reward + bonus, 0.0)
        returns = jnp.einsum("k,knb->nb", weights, reward).reshape(-1, len(start), num_draws)
        error = jnp.std(returns, axis=-1, ddof=1) / math.sqrt(num_draws)
        return jnp.mean(returns, axis=-1), error

    chunks = observation.reshape(num_chunks, -1, observation.shape[-1])
    mean, error = jax.lax.map(chunk, (chunks, jax.random.split(key, num_chunks)))
    together = lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)
    return together(mean), together(error)
