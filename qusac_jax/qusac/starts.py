"""Where rollouts of the model start: anywhere in D, or at all values alike.

Axes: B rollouts, O observation size.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import replay

# `(key, B) -> observations [B, O]`.
Starts = Callable[[chex.PRNGKey, int], jax.Array]
Score = Callable[[jax.Array], jax.Array]  # observations [B, O] -> [B]


def uniform(real: replay.Buffer) -> Starts:
    """States of D, all equally likely (Algorithm 2, line 8)."""
    return lambda key, count: replay.sample(real, key, count).observation


def by_value(
    real: replay.Buffer, score: Score, key: chex.PRNGKey, *, chunks: int, size: int
) -> Starts:
    """States of D, every second one drawn so that all values between the extremes are as frequent.

    Under a sparse reward good states are rare in D: uniform starts leave them at once and hardly
    ever come back, so that what is known is not practised. Here a level is drawn uniformly between
    the least and the largest score of a pool of states, and the rollout starts at the state whose
    score is next above it. However rare the best states are, the upper half of the range has half
    of these starts, and the states in between, from where the best ones must be reached, their
    share, too. Equal scores are equally likely; unit and offset of the scores do not matter. Every
    state of D stays a start. Targets of critics and U-net are as before: only how often a state is
    trained on changes.

    Args:
        real: D.
        score: what is expected of a state, finite.
        key: consumed.
        chunks: of states that are drawn and scored once, before the rollouts.
        size: states of a chunk, which are scored together.

    Returns:
        `Starts`, uniform ones and ones by value in turn.
    """
    pool = replay.sample(real, key, chunks * size).observation
    scores = jax.lax.map(score, pool.reshape(chunks, size, -1)).reshape(-1)
    order = jnp.argsort(scores)
    pool, scores = pool[order], scores[order]

    def starts(key: chex.PRNGKey, count: int) -> jax.Array:
        key_uniform, key_level, key_tie = jax.random.split(key, 3)
        anywhere = replay.sample(real, key_uniform, count).observation
        levels = jax.random.uniform(key_level, (count // 2,), minval=scores[0], maxval=scores[-1])
        first = jnp.minimum(jnp.searchsorted(scores, levels), len(pool) - 1)
        equal = jnp.searchsorted(scores, scores[first], side="right") - first
        tie = jax.random.randint(key_tie, first.shape, 0, equal)
        return anywhere.at[1::2].set(pool[first + tie])

    return starts
