"""Where rollouts of the model start: anywhere in D, or at the best states and on the way to them.

Axes: B rollouts, O observation size.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import replay
from qusac_jax.task import Transition

# `(key, B) -> observations [B, O]`.
Starts = Callable[[chex.PRNGKey, int], jax.Array]
Score = Callable[[jax.Array, chex.PRNGKey], jax.Array]  # (observations [B, O], key) -> [B]

# From this mean reward of D on, in units of its largest, no rollout starts by value.
FREQUENT = 0.1


def uniform(real: replay.Buffer) -> Starts:
    """States of D, all equally likely (Algorithm 2, line 8)."""
    return lambda key, count: replay.sample(real, key, count).observation


def by_value(
    real: replay.Buffer,
    score: Score,
    key_pool: chex.PRNGKey,
    key_score: chex.PRNGKey,
    *,
    chunks: int,
    size: int,
) -> Starts:
    """States of D, up to half drawn by rank: the best ten about as often as the next ninety.

    Under a sparse reward, good states are rare in D: rollouts from uniform starts soon leave them
    and hardly ever return, so that what is known is not practised. Here the states of a pool are
    ranked by their score, and the logarithm of the rank is drawn uniformly. However rare the best
    states are, they get their share of these starts, and so do the ten or a hundred times as many
    states from which they must be reached. Equal scores are equally likely; only the order of the
    scores matters. Every state of D remains a possible start. The targets of critics and U-net do
    not change, only how often a state is trained on.

    Where rewards are frequent, uniform starts practise them, and the states of highest value are
    those that the critics overestimate most. So the more of D is rewarded, the fewer starts are by
    value: every second one is, with probability 1 - f / `FREQUENT`, where f is the mean over D of
    max(reward, 0) divided by the largest reward (for rewards 0 and 1, the share of ones); none is
    where f is at least `FREQUENT`.

    Args:
        real: D.
        score: what is expected of a state, finite.
        key_pool: draws the states that are scored; consumed.
        key_score: of the scores; consumed.
        chunks: of states that are drawn and scored once, before the rollouts.
        size: states of a chunk, which are scored together.

    Returns:
        `Starts`, uniform ones and, as far as rewards are rare, ones by value in turn.
    """
    rare = 1.0 - _mean_reward(real) / FREQUENT
    pool = replay.sample(real, key_pool, chunks * size).observation
    scores = jax.lax.map(
        lambda chunk: score(*chunk),
        (pool.reshape(chunks, size, -1), jax.random.split(key_score, chunks)),
    ).reshape(-1)
    num_states = len(pool)
    order = jnp.argsort(scores)
    pool, scores = pool[order], scores[order]

    def starts(key: chex.PRNGKey, count: int) -> jax.Array:
        key_uniform, key_rank, key_tie, key_rare = jax.random.split(key, 4)
        anywhere = replay.sample(real, key_uniform, count).observation
        log_rank = jax.random.uniform(key_rank, (count // 2,), maxval=jnp.log(num_states))
        rank = jnp.clip(jnp.exp(log_rank).astype(jnp.int32), 1, num_states)
        first = jnp.searchsorted(scores, scores[num_states - rank])
        equal = jnp.searchsorted(scores, scores[first], side="right") - first
        tie = jax.random.randint(key_tie, first.shape, 0, equal)
        is_by_value = jax.random.uniform(key_rare, first.shape) < rare
        chosen = jnp.where(is_by_value[:, None], pool[first + tie], anywhere[1::2])
        return anywhere.at[1::2].set(chosen)

    return starts


def _mean_reward(real: replay.Buffer[Transition]) -> jax.Array:
    """Mean over D of max(reward, 0), divided by the largest; `[]` in [0, 1], 0 if none is > 0."""
    positive = jnp.maximum(real.data.reward, 0.0)  # slots never written have 0
    most = jnp.max(positive)
    count = jnp.maximum(real.size, 1).astype(jnp.float32)
    return jnp.sum(positive) / (count * jnp.where(most > 0.0, most, 1.0))
