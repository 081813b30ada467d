"""Gamma variates that are fast on CPU, for Dirichlet rows of thousands of entries.

Axes: P points of a table of quantiles.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from qusac_jax import _control

_OCTAVES = 31  # a tail probability has 31 random bits
_STEP_BITS = 8  # each octave of it is cut into 2**8 pieces
_FLOAT32_MANTISSA_BITS = 23
_FLOAT32_EXPONENT_BIAS = 127
# Below this log quantile, F(x) = x**a / Gamma(a + 1) up to a relative 2e-9.
_LOG_SMALL_QUANTILE = -20
_GOLDEN_RATIO = 0x9E3779B9  # of 2**32: neighbouring columns start far apart


def gamma(key: chex.PRNGKey, count: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Exact Gamma(count) variates, rejected and drawn again all at once.

    `jax.random.gamma` goes through its entries one by one on CPU, at over 1 us each.

    Source: Marsaglia and Tsang (2000), "A simple method for generating gamma variables".
    """
    key_boost, key = jax.random.split(key)
    count = jnp.broadcast_to(count, shape)
    draw = _gamma_above_one(key, count)

    def boost(draw):
        return jnp.where(count < 1, draw * _uniform(key_boost, count) ** (1 / count), draw)

    return _control.apply_if(jnp.any(count < 1), boost, draw)


def log_gamma(key: chex.PRNGKey, count: jax.Array) -> jax.Array:
    """Logarithms of exact Gamma(count) variates, of which small counts do not underflow."""
    key_boost, key = jax.random.split(key)
    draw = jnp.log(_gamma_above_one(key, count))
    return jnp.where(count < 1, draw + jnp.log(_uniform(key_boost, count)) / count, draw)


def _uniform(key, count):
    """In (0, 1], which is never 0."""
    return 1 - jax.random.uniform(key, count.shape, count.dtype)


def _gamma_above_one(key, count):
    """Gamma(count) variates; of counts below 1, Gamma(count + 1)."""
    shape = count.shape
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
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, carry)[1]


def log_gamma_by_table(
    log_quantile: jax.Array, key: chex.PRNGKey, shape: tuple[int, ...]
) -> jax.Array:
    """Log gamma variates from 32 random bits each: one names the tail, 31 the place in it."""
    bits = bits_of_rows(key, shape)
    # Read as float32, the tail's exponent and upper mantissa bits are an index that is finest where
    # the tail ends; the lower mantissa bits are the place between two entries.
    # (As signed numbers: CPUs convert them at once.)
    tail = ((bits >> 1) | 1).astype(jnp.int32).astype(jnp.float32)
    pattern = jax.lax.bitcast_convert_type(tail, jnp.uint32)
    rest_bits = _FLOAT32_MANTISSA_BITS - _STEP_BITS
    first = _FLOAT32_EXPONENT_BIAS << _STEP_BITS
    index = ((pattern >> rest_bits) - first).astype(jnp.int32)
    fraction = (pattern & ((1 << rest_bits) - 1)).astype(jnp.int32).astype(log_quantile.dtype)
    fraction /= 1 << rest_bits
    size = log_quantile.shape[-1]
    index = index + (bits & 1).astype(jnp.int32) * size
    flat = log_quantile.reshape(-1)

    def look_up(index):  # clipped: the largest word asks for one after the end, with fraction 0
        return flat.at[index].get(mode="clip", wrap_negative_indices=False)

    low, high = look_up(index), look_up(index + 1)
    return low + fraction * (high - low)


def bits_of_rows(key: chex.PRNGKey, shape: tuple[int, ...]) -> jax.Array:
    """Random uint32: each row hashes its columns with two words from `jax.random`.

    Ten times faster on CPU than one `jax.random.bits` word per entry, which takes longer than all
    the rest of a DeepSea episode. The mixer is the 32-bit finaliser of Wellons (hash-prospector).
    """

    def mix(word):
        word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
        word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
        return word ^ (word >> 16)

    start, twist = jax.random.bits(key, (2, *shape[:-1], 1), jnp.uint32)
    column = jnp.arange(shape[-1], dtype=jnp.uint32) * jnp.uint32(_GOLDEN_RATIO)
    return mix(mix(start + jnp.expand_dims(column, range(len(shape) - 1))) ^ twist)


def log_quantile_table(concentration: float) -> np.ndarray:
    """Log quantiles `[2, P]` of Gamma(concentration) at lower and upper tail probabilities.

    Entry k is at the probability (1 + (k mod 2**b) / 2**b) * 2**(k // 2**b) / 2**32, b steps bits.
    """
    steps = 1 << _STEP_BITS
    place = np.arange(_OCTAVES * steps + 1)
    tail = np.ldexp(1 + (place % steps) / steps, place // steps - 32)
    # Small quantiles from F(x) = x**a / Gamma(a + 1), which does not underflow in logs.
    small = (np.log(tail) + scipy.special.gammaln(concentration + 1)) / concentration
    with np.errstate(divide="ignore"):
        lower = np.log(scipy.special.gammaincinv(concentration, tail))
        upper = np.log(scipy.special.gammainccinv(concentration, tail))
    lower = np.where(small < _LOG_SMALL_QUANTILE, small, lower)
    near_one = (np.log1p(-tail) + scipy.special.gammaln(concentration + 1)) / concentration
    upper = np.where(near_one < _LOG_SMALL_QUANTILE, near_one, upper)
    return np.stack([lower, upper])
