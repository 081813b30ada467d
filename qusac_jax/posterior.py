"""Dirichlet-normal belief over the transitions and rewards of a tabular MDP.

Axes: S states, A actions, T observed transitions, N sampled MDPs, K points of a table. Column S of
the Dirichlet is the terminal state, so that MDPs drawn from the belief are `[S, A, S]` and missing
mass is termination.
"""

import functools
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

_OCTAVES = 31  # a tail probability has 31 random bits
_STEP_BITS = 8  # each octave of it is cut into 2**8 pieces
_LONE_TOTAL = 1e-30  # below this, a row of gamma variates is one variate and rounding


class Posterior(NamedTuple):
    """Belief over MDPs: independent Dirichlet rows and independent normal rewards."""

    concentration: chex.Array  # [S, A, S+1] Dirichlet parameters; last column: terminal state
    reward_mean: chex.Array  # [S, A] mean of the expected reward
    reward_precision: chex.Array  # [S, A] inverse variance of the expected reward, > 0
    prior: chex.Array  # [] or [S, A, S+1] concentration before any observation
    log_quantile: chex.Array | None  # [2, K] log quantiles of Gamma(prior); None for an array prior


class Transitions(NamedTuple):
    """Observed transitions, in any order."""

    state: chex.Array  # [T] integers in 0 .. S-1
    action: chex.Array  # [T] integers in 0 .. A-1
    reward: chex.Array  # [T] observed rewards
    next_state: chex.Array  # [T] integers in 0 .. S; S is the terminal state


class Mdp(NamedTuple):
    """One MDP `[S, A, S]`, `[S, A]`, or N of them with a leading axis."""

    transition: chex.Array  # [(N,) S, A, S] rows sum to at most 1, the rest terminates
    reward: chex.Array  # [(N,) S, A]


def init(
    num_states: int,
    num_actions: int,
    *,
    concentration: float | np.ndarray | None = None,
    reward_mean: float = 0.0,
    reward_precision: float = 1.0,
    dtype: chex.ArrayDType = jnp.float32,
) -> Posterior:
    """The belief before any observation (appendix C, "Model learning").

    Args:
        num_states: S, at least 1.
        num_actions: A, at least 1.
        concentration: Dirichlet parameter of every entry, > 0; 1 / sqrt(S) by default. An array
            `[S, A, S+1]` (>= 0, a positive entry in each row) gives every entry its own: zeros
            exclude next states, for example those of other layers. Sampling is then slower.
        reward_mean: prior mean of every reward.
        reward_precision: prior inverse variance of every reward, > 0.
        dtype: float32 or float64 (with x64 enabled).

    Returns:
        A `Posterior` without data.

    Raises:
        ValueError: if a size, concentration or precision is out of its range.
    """
    for name, size in (("num_states", num_states), ("num_actions", num_actions)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not reward_precision > 0:
        raise ValueError(f"reward_precision must be positive, got {reward_precision}")
    shape = (num_states, num_actions, num_states + 1)
    prior = np.asarray(1 / math.sqrt(num_states) if concentration is None else concentration)
    _check_prior(prior, shape)
    return Posterior(
        concentration=jnp.broadcast_to(jnp.asarray(prior, dtype), shape),
        reward_mean=jnp.full(shape[:2], reward_mean, dtype),
        reward_precision=jnp.full(shape[:2], reward_precision, dtype),
        prior=jnp.asarray(prior, dtype),
        log_quantile=None if prior.ndim else jnp.asarray(_log_quantile(float(prior)), dtype),
    )


def _check_prior(prior: np.ndarray, shape: tuple[int, int, int]) -> None:
    if prior.ndim == 0:
        if not 0 < prior < np.inf:
            raise ValueError(f"concentration must be positive and finite, got {prior}")
    elif prior.shape != shape:
        raise ValueError(
            f"concentration must be a scalar or have shape {shape} (the last column is the "
            f"terminal state), got {prior.shape}"
        )
    elif not (np.all(np.isfinite(prior)) and np.all(prior >= 0) and np.all(prior.sum(-1) > 0)):
        raise ValueError(
            "concentration must be finite and non-negative with a positive entry in each row, "
            f"got a minimum of {prior.min()} and a smallest row sum of {prior.sum(-1).min()}"
        )


@jax.jit
def update(
    posterior: Posterior,
    transitions: Transitions,
    *,
    weight: chex.Numeric = 1.0,
    noise_precision: chex.Numeric = 1e6,
) -> Posterior:
    """The belief after some transitions (conjugate updates of both parts).

    Args:
        posterior: the belief so far.
        transitions: `[T]` each. Entries with an index outside its range are not counted;
            `check_transitions` finds them outside `jit`.
        weight: scalar or `[T]`, >= 0: how many times each transition is counted. 0 ignores it.
        noise_precision: inverse variance of an observed reward around the expected one, >= 0.

    Returns:
        The new `Posterior`.
    """
    state, action, reward, next_state = transitions
    weight = jnp.broadcast_to(jnp.asarray(weight, posterior.reward_mean.dtype), state.shape)
    pair = (state, action)
    gained = noise_precision * jnp.zeros_like(posterior.reward_mean).at[pair].add(weight)
    surprise = weight * (reward - posterior.reward_mean[pair])
    surprise = noise_precision * jnp.zeros_like(posterior.reward_mean).at[pair].add(surprise)
    precision = posterior.reward_precision + gained
    return posterior._replace(
        concentration=posterior.concentration.at[state, action, next_state].add(weight),
        reward_mean=posterior.reward_mean + surprise / precision,
        reward_precision=precision,
    )


def check_transitions(posterior: Posterior, transitions: Transitions) -> None:
    """Raises `ValueError` unless every index of `transitions` is in its range."""
    num_states, num_actions = posterior.reward_mean.shape
    bounds = {"state": num_states, "action": num_actions, "next_state": num_states + 1}
    for name, bound in bounds.items():
        values = np.asarray(getattr(transitions, name))
        if values.size and (values.min() < 0 or values.max() >= bound):
            raise ValueError(
                f"transitions.{name} must be in 0 .. {bound - 1}, got values from {values.min()} "
                f"to {values.max()}"
            )
    if not np.all(np.isfinite(np.asarray(transitions.reward))):
        raise ValueError("transitions.reward must be finite, got NaN or infinity; drop those rows")


@jax.jit
def mean(posterior: Posterior) -> Mdp:
    """The posterior mean MDP (eq. 1); its rows miss the mass of the terminal state."""
    total = posterior.concentration.sum(-1, keepdims=True)
    return Mdp(posterior.concentration[..., :-1] / total, posterior.reward_mean)


@functools.partial(jax.jit, static_argnames="n")
def sample(posterior: Posterior, key: chex.PRNGKey, n: int) -> Mdp:
    """Draws n MDPs from the belief (line 1 of Algorithm 1).

    With a scalar prior, a Dirichlet row is a normalised sum of Gamma(prior) variates, which every
    entry has and which come from a table of quantiles (interpolated to a relative 1e-3), and of
    exact Gamma(count) variates for the visited entries. With an array prior, all are exact.

    Args:
        posterior: the belief.
        key: consumed.
        n: number of MDPs, N.

    Returns:
        An `Mdp` with transitions `[N, S, A, S]` and rewards `[N, S, A]`.
    """
    key_transition, key_reward = jax.random.split(key)
    noise = jax.random.normal(
        key_reward, (n, *posterior.reward_mean.shape), posterior.reward_mean.dtype
    )
    reward = posterior.reward_mean + noise / jnp.sqrt(posterior.reward_precision)
    draw = _sample_exact if posterior.log_quantile is None else _sample_by_table
    return Mdp(draw(posterior, key_transition, n), reward)


def _sample_exact(posterior: Posterior, key: chex.PRNGKey, n: int) -> chex.Array:
    """Transitions `[N, S, A, S]` from one gamma variate per entry, in log space."""
    concentration = posterior.concentration
    possible = concentration > 0
    shape = (n, *concentration.shape)
    draws = jax.random.loggamma(key, jnp.where(possible, concentration, 1.0), shape)
    return jax.nn.softmax(jnp.where(possible, draws, -jnp.inf))[..., :-1]


def _sample_by_table(posterior: Posterior, key: chex.PRNGKey, n: int) -> chex.Array:
    """Transitions `[N, S, A, S]`: gamma variates of the prior by table, of the counts exactly."""
    assert posterior.log_quantile is not None  # chosen by the caller
    num_states, num_actions = posterior.reward_mean.shape
    key_prior, key_terminal, key_lone, key_counts = jax.random.split(key, 4)
    rows = (n, num_states, num_actions)
    inner = jnp.exp(_log_gamma_by_table(posterior.log_quantile, key_prior, (*rows, num_states)))
    terminal = jnp.exp(_log_gamma_by_table(posterior.log_quantile, key_terminal, rows))
    inner, terminal = _add_counts(posterior, key_counts, inner, terminal)
    total = inner.sum(-1) + terminal
    # A row that underflows as a whole has no visits; normalised, it is one-hot up to rounding, and
    # by symmetry each entry (the terminal state too) is equally likely to be the one.
    is_lone = total < _LONE_TOTAL
    lone = jax.random.randint(key_lone, rows, 0, num_states + 1)
    scale = jnp.where(is_lone, 0.0, 1.0 / jnp.where(is_lone, 1.0, total))
    lone = jnp.where(is_lone, lone, num_states)[..., None] == jnp.arange(num_states)
    return inner * scale[..., None] + lone


def _add_counts(posterior, key, inner, terminal):
    """Adds Gamma(count) variates, one visited entry of each row per pass, until none is left."""
    num_states, num_actions = posterior.reward_mean.shape
    column = jnp.arange(num_states + 1)
    state, action = jnp.meshgrid(jnp.arange(num_states), jnp.arange(num_actions), indexing="ij")
    counts = posterior.concentration - posterior.prior

    def next_visited(last):
        candidates = jnp.where((counts > 0) & (column > last[..., None]), column, num_states + 1)
        return candidates.min(-1)

    def is_left(carry):
        return jnp.any(carry[0] <= num_states)

    def add(carry):
        entry, key, inner, terminal = carry
        key, key_draw = jax.random.split(key)
        is_visited = entry <= num_states
        count = jnp.where(is_visited, counts[state, action, entry], 1.0)
        draw = jnp.where(is_visited, _gamma(key_draw, count, terminal.shape), 0.0)
        inner = inner.at[:, state, action, entry].add(draw, mode="drop")
        terminal = terminal + jnp.where(entry == num_states, draw, 0.0)
        return next_visited(entry), key, inner, terminal

    first = next_visited(jnp.full((num_states, num_actions), -1))
    return jax.lax.while_loop(is_left, add, (first, key, inner, terminal))[2:]


def _gamma(key: chex.PRNGKey, count: chex.Array, shape: tuple[int, ...]) -> chex.Array:
    """Exact Gamma(count) variates, rejected and drawn again all at once.

    `jax.random.gamma` goes through its entries one by one on CPU, at over 1 us each.

    Source: Marsaglia and Tsang (2000), "A simple method for generating gamma variables".
    """
    key_boost, key = jax.random.split(key)
    count = jnp.broadcast_to(count, shape)
    centre = jnp.where(count < 1, count + 1, count) - 1 / 3
    scale = 1 / jnp.sqrt(9 * centre)

    def propose(carry):
        key, draw, is_done = carry
        key, key_normal, key_uniform = jax.random.split(key, 3)
        normal = jax.random.normal(key_normal, shape, count.dtype)
        cube = (1 + scale * normal) ** 3
        log_cube = jnp.log(jnp.where(cube > 0, cube, 1.0))
        log_uniform = jnp.log1p(-jax.random.uniform(key_uniform, shape, count.dtype))
        bound = 0.5 * normal**2 + centre * (1 - cube + log_cube)
        accept = (cube > 0) & (log_uniform < bound) & ~is_done
        return key, jnp.where(accept, centre * cube, draw), is_done | accept

    is_hopeless = ~((count > 0) & jnp.isfinite(count))  # would be drawn for ever
    carry = (key, jnp.where(is_hopeless, jnp.nan, 0.0).astype(count.dtype), is_hopeless)
    draw = jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, carry)[1]
    uniform = 1 - jax.random.uniform(key_boost, shape, count.dtype)  # never 0
    return jnp.where(count < 1, draw * uniform ** (1 / count), draw)


def _log_gamma_by_table(
    log_quantile: chex.Array, key: chex.PRNGKey, shape: tuple[int, ...]
) -> chex.Array:
    """Log gamma variates from 32 random bits each: one names the tail, 31 the place in it."""
    bits = _bits(key, shape)
    # Read as float32, the tail's exponent and upper mantissa bits are an index that is finest where
    # the tail ends; the lower mantissa bits are the place between two entries.
    tail = ((bits >> 1) | 1).astype(jnp.float32)
    pattern = jax.lax.bitcast_convert_type(tail, jnp.uint32)
    rest_bits = 23 - _STEP_BITS
    index = ((pattern >> rest_bits) - (127 << _STEP_BITS)).astype(jnp.int32)
    fraction = (pattern & ((1 << rest_bits) - 1)).astype(log_quantile.dtype) / (1 << rest_bits)
    size = log_quantile.shape[-1]
    index = index + (bits & 1).astype(jnp.int32) * size
    flat = log_quantile.reshape(-1)
    low, high = flat[index], flat[index + 1]
    return low + fraction * (high - low)


def _bits(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
    """Random uint32: each row hashes its columns with two words from `jax.random`.

    Ten times faster on CPU than one `jax.random.bits` word per entry, which took most of the time
    of a whole DeepSea episode. The mixer is the 32-bit finaliser of Wellons (hash-prospector).
    """

    def mix(word):
        word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
        word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
        return word ^ (word >> 16)

    start, twist = jax.random.bits(key, (2, *shape[:-1], 1), jnp.uint32)
    column = jnp.arange(shape[-1], dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    return mix(mix(start + column) ^ twist)


def _log_quantile(concentration: float) -> np.ndarray:
    """Log quantiles `[2, K]` of Gamma(concentration) at lower and upper tail probabilities.

    Entry k is at the probability (1 + (k mod 2**b) / 2**b) * 2**(k // 2**b) / 2**32, b steps bits.
    """
    steps = 1 << _STEP_BITS
    place = np.arange(_OCTAVES * steps + 1)
    tail = np.ldexp(1 + (place % steps) / steps, place // steps - 32)
    # Where the quantile is small, F(x) = x**a / Gamma(a + 1), which does not underflow in logs.
    small = (np.log(tail) + scipy.special.gammaln(concentration + 1)) / concentration
    with np.errstate(divide="ignore"):
        lower = np.log(scipy.special.gammaincinv(concentration, tail))
        upper = np.log(scipy.special.gammainccinv(concentration, tail))
    lower = np.where(small < -20, small, lower)
    near_one = (np.log1p(-tail) + scipy.special.gammaln(concentration + 1)) / concentration
    upper = np.where(near_one < -20, near_one, upper)
    return np.stack([lower, upper])
