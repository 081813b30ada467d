"""The belief of `qusac_jax.posterior` and what is done with it, compiled and without its checks.

Axes: S states, A actions, T observed transitions, N sampled MDPs, P points of a table of
quantiles, K possible successors of a pair.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax import _dirichlet, sparse
from qusac_jax.sparse import Sparse

_BLOCK = 128  # values that are summed before a total grows by them, or as many as it has entries


class Posterior(NamedTuple):
    """Belief over MDPs: independent Dirichlet rows and independent normal rewards."""

    concentration: jax.Array  # [S, A, S+1] Dirichlet parameters >= prior; last: terminal state
    reward_mean: jax.Array  # [S, A] mean of the expected reward
    reward_precision: jax.Array  # [S, A] inverse variance of the expected reward, > 0
    prior: jax.Array  # [] or [S, A, S+1] concentration before any observation
    log_quantile: jax.Array | None  # [2, P] log quantiles of Gamma(prior); None for an array prior
    # [S, A, K] possible successors in 0 .. S, -1 for none, as `concentration` and `prior` then are;
    # None where all states are.
    support: jax.Array | None = None


class Transitions(NamedTuple):
    """Observed transitions, in any order."""

    state: jax.Array  # [T] integers in 0 .. S-1
    action: jax.Array  # [T] integers in 0 .. A-1
    reward: jax.Array  # [T] observed rewards
    next_state: jax.Array  # [T] integers in 0 .. S; S is the terminal state


class Mdp(NamedTuple):
    """One MDP `[S, A, S]`, `[S, A]`, or N of them with a leading axis."""

    # [(N,) S, A, S] rows sum to at most 1, the rest terminates; of a belief with a `support`, a
    # `Sparse` whose `next_state` is the support.
    transition: Any
    reward: jax.Array  # [(N,) S, A]


@jax.jit
def update(posterior, transitions, weight, noise_precision) -> Posterior:
    state, action, reward, next_state = transitions
    state, action, next_state = map(sparse.at_least_int32, (state, action, next_state))
    num_states, num_actions = posterior.reward_mean.shape
    # Indices count from the end where they are negative, and are clipped where they are read.
    valid = (state >= 0) & (state < num_states) & (action >= 0) & (action < num_actions)
    valid &= (next_state >= 0) & (next_state <= num_states)
    column = next_state
    if posterior.support is not None:
        support = posterior.support[state, action].astype(next_state.dtype)
        is_same = support == next_state[:, None]
        column = jnp.argmax(is_same, -1)
        valid &= jnp.any(is_same, -1)
    valid &= posterior.concentration[state, action, column] > 0
    weight = jnp.broadcast_to(jnp.asarray(weight, posterior.reward_mean.dtype), state.shape)
    weight = jnp.where(valid, weight, 0.0)
    noise_precision = jnp.asarray(noise_precision, weight.dtype)
    reward = jnp.where(weight > 0, jnp.asarray(reward, weight.dtype), 0.0)
    pair = (state, action)
    zeros = jnp.zeros_like(posterior.reward_mean)
    gained = noise_precision * _add(zeros, pair, weight)
    surprise = noise_precision * _add(zeros, pair, weight * (reward - posterior.reward_mean[pair]))
    precision = posterior.reward_precision + gained
    return posterior._replace(
        concentration=_add(posterior.concentration, (*pair, column), weight),
        reward_mean=posterior.reward_mean + surprise / precision,
        reward_precision=precision,
    )


def _add(total: jax.Array, index: tuple[jax.Array, ...], values: jax.Array) -> jax.Array:
    """`total.at[index].add(values)`, with many values summed in blocks.

    One by one, each would be rounded to what the total resolves: in float32, a count stops at 2^24.
    """
    block = max(_BLOCK, total.size)
    if len(values) <= block:
        return total.at[index].add(values)
    num_blocks = -(-len(values) // block)
    missing = num_blocks * block - len(values)  # which add 0
    parts = [jnp.pad(x, (0, missing)).reshape(num_blocks, block) for x in (values, *index)]

    def add_block(carry, parts):
        total, excess = carry  # what rounding has added to the total (Kahan's summation)
        own, *index = parts
        summed = jnp.zeros_like(total).at[tuple(index)].add(own)
        # Without the barriers, XLA would add each value to the total, and find no excess.
        summed = jax.lax.optimization_barrier(summed) - excess
        larger = jax.lax.optimization_barrier(total + summed)
        return (larger, (larger - total) - summed), None

    return jax.lax.scan(add_block, (total, jnp.zeros_like(total)), tuple(parts))[0][0]


@jax.jit
def is_finite(posterior: Posterior) -> jax.Array:
    parts = (posterior.concentration.sum(-1), posterior.reward_mean, posterior.reward_precision)
    return jnp.all(jnp.isfinite(jnp.stack(parts)))


@jax.jit
def mean(posterior: Posterior) -> Mdp:
    total = posterior.concentration.sum(-1, keepdims=True)
    if posterior.support is not None:
        transition = Sparse(posterior.support, posterior.concentration / total)
        return Mdp(transition, posterior.reward_mean)
    return Mdp(posterior.concentration[..., :-1] / total, posterior.reward_mean)


@functools.partial(jax.jit, static_argnames="n")
def sample(posterior: Posterior, key: chex.PRNGKey, n: int) -> Mdp:
    key_transition, key_reward = jax.random.split(key)
    noise = jax.random.normal(
        key_reward, (n, *posterior.reward_mean.shape), posterior.reward_mean.dtype
    )
    deviation = jnp.sqrt(posterior.reward_precision)
    reward = posterior.reward_mean[None] + noise / deviation[None]
    concentration = posterior.concentration
    if posterior.support is not None:
        rows = _dirichlet.draw(concentration, key_transition, n)
        return Mdp(Sparse(posterior.support, rows), reward)
    if posterior.log_quantile is None:
        return Mdp(_dirichlet.draw(concentration, key_transition, n)[..., :-1], reward)
    table = (posterior.prior, posterior.log_quantile)
    return Mdp(_dirichlet.draw_by_table(concentration, *table, key_transition, n), reward)
