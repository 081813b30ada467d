"""Draws of rows from Dirichlet distributions, N at a time.

Axes: S states, A actions, N draws, P points of a table of quantiles, K possible successors of a
pair. Where the last axis is S + 1, its last entry is the terminal state.
"""

import chex
import jax
import jax.numpy as jnp

from qusac_jax import _control, _variates

PRIOR_ROUNDING = 1e-6  # relative; a concentration may be this much below its prior
_LONE_TOTAL = 1e-30  # below this, a row of gamma variates is one variate and rounding
_WORK_ARRAYS = 12  # of the size of what is drawn at once, which XLA takes on CPU: 8 to 15
_ENTRIES_AT_ONCE = 2**18  # more are slower on CPU; fewer make small problems a long loop
_EASY_COUNT = 1e3  # a count of which next to no gamma proposal is rejected


def draw(concentration: jax.Array, key: chex.PRNGKey, n: int) -> jax.Array:
    """Exact rows `[N, S, A, K]` of concentrations `[S, A, K]`, normalized in log space.

    Draws are made a few at a time, so that memory is little more than that of the result.
    """
    possible = concentration > 0

    def one(key):
        draws = _variates.log_gamma(key, jnp.where(possible, concentration, 1.0))
        return jax.nn.softmax(jnp.where(possible, draws, -jnp.inf))

    keys = jax.random.split(key, n)
    return jax.lax.map(one, keys, batch_size=_draws_at_once(concentration.size, n))


def work_entries(size: int, n: int) -> int:
    """Numbers that `draw` takes beside its result, about; on CPU.

    Args:
        size: of a draw, S A K.
        n: N.
    """
    return _WORK_ARRAYS * size * _draws_at_once(size, n)


def _draws_at_once(size, n):
    return min(n, max(1, _ENTRIES_AT_ONCE // max(size, 1)))


def draw_by_table(
    concentration: jax.Array,
    prior: jax.Array,
    log_quantile: jax.Array,
    key: chex.PRNGKey,
    n: int,
) -> jax.Array:
    """Rows from gamma variates of the prior by table, and of the counts exactly.

    Args:
        concentration: `[S, A, S+1]`, the prior and counts.
        prior: [] what each entry has without counts.
        log_quantile: `[2, P]` log quantiles of Gamma(prior).
        key: consumed.
        n: N.

    Returns:
        `[N, S, A, S]`, no terminal state; rows with a concentration below the prior are NaN.
    """
    num_states, num_actions = concentration.shape[:2]
    key_prior, key_terminal, key_lone, key_counts = jax.random.split(key, 4)
    rows = (n, num_states, num_actions)
    inner = jnp.exp(_variates.log_gamma_by_table(log_quantile, key_prior, (*rows, num_states)))
    terminal = jnp.exp(_variates.log_gamma_by_table(log_quantile, key_terminal, rows))
    counts = concentration - prior
    inner, terminal = _add_counts(counts, key_counts, inner, terminal)
    total = inner.sum(-1) + terminal
    # A row that underflows as a whole has no visits of weight 1; normalized, it is one-hot up to
    # rounding, and by symmetry each entry (the terminal state too) is equally likely to be the one.
    is_lone = total < _LONE_TOTAL
    scale = jnp.where(is_lone, 0.0, 1.0 / jnp.where(is_lone, 1.0, total))
    is_possible = jnp.all(counts >= -PRIOR_ROUNDING * prior, -1)
    scale = jnp.where(is_possible[None], scale, jnp.nan)

    def draw_lone(no_entry):
        lone = jax.random.randint(key_lone, rows, 0, num_states + 1)
        return jnp.where(is_lone, lone, no_entry)

    lone = _control.apply_if(jnp.any(is_lone), draw_lone, jnp.full(rows, num_states))
    return inner * scale[..., None] + jax.nn.one_hot(lone, num_states, dtype=inner.dtype)


def _add_counts(counts, key, inner, terminal):
    """Adds Gamma(count) variates, one visited entry of each row per pass, until none is left."""
    num_states, num_actions = counts.shape[:2]
    column = jnp.arange(num_states + 1)[None, None, :]
    state, action = jnp.meshgrid(jnp.arange(num_states), jnp.arange(num_actions), indexing="ij")

    def next_visited(last):
        candidates = jnp.where((counts > 0) & (column > last[..., None]), column, num_states + 1)
        return candidates.min(-1)

    def is_left(carry):
        return jnp.any(carry[0] <= num_states)

    def add(carry):
        entry, key, inner, terminal = carry
        key, key_draw = jax.random.split(key)
        is_visited = entry <= num_states
        # The other rows must not prolong the rejection sampling.
        count = jnp.where(is_visited, counts[state, action, entry], _EASY_COUNT)
        draw = jnp.where(is_visited, _variates.gamma(key_draw, count, terminal.shape), 0.0)
        inner = inner.at[:, state, action, entry].add(draw, mode="drop")
        terminal = terminal + jnp.where(entry == num_states, draw, 0.0)
        return next_visited(entry), key, inner, terminal

    first = next_visited(jnp.full((num_states, num_actions), -1))
    return jax.lax.while_loop(is_left, add, (first, key, inner, terminal))[2:]
