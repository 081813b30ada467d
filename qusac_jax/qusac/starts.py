"""Where rollouts of the model start: anywhere in D, or rather where much is expected.

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


def promising(
    real: replay.Buffer,
    score: Score,
    key: chex.PRNGKey,
    *,
    num_candidates: int,
    chunks: int,
    size: int,
) -> Starts:
    """States of D, every second one the best of several that are drawn uniformly.

    Under a sparse reward, uniform starts leave the few good states at once and hardly ever come
    back to them, so that what is known is not practised. What counts is the order of the scores:
    their scale does not matter, and the best of T states is in the upper 1 / T of D with
    probability 1 - (1 - 1 / T)^T, about 0.63. Every state of D stays a start. Targets of critics
    and U-net are as before; only how often a state is trained on changes.

    Args:
        real: D.
        score: what is expected of a state.
        key: consumed.
        num_candidates: T, of which the best is taken.
        chunks: of states that are drawn and scored once, before the rollouts.
        size: states of a chunk, which are scored together.

    Returns:
        `Starts`, the uniform ones and the best ones in turn.
    """
    pool = replay.sample(real, key, chunks * size).observation
    scores = jax.lax.map(score, pool.reshape(chunks, size, -1)).reshape(-1)

    def starts(key: chex.PRNGKey, count: int) -> jax.Array:
        key_uniform, key_best = jax.random.split(key)
        anywhere = replay.sample(real, key_uniform, count).observation
        candidates = jax.random.randint(key_best, (count // 2, num_candidates), 0, len(pool))
        winners = jnp.argmax(scores[candidates], axis=1)
        best = jnp.take_along_axis(candidates, winners[:, None], axis=1)[:, 0]
        return anywhere.at[1::2].set(pool[best])

    return starts
