"""Mean and variance over the members of an ensemble, the leading axis."""

import functools

import jax
import jax.numpy as jnp

_UNROLLED = 16  # members up to which a sum is one pass over memory


def mean(x: jax.Array) -> jax.Array:
    """`[...]` mean of `[N, ...]`."""
    # XLA's sum over a leading axis takes 20 times as long on CPU: it leaves the order of memory.
    total = jax.lax.platform_dependent(x, cpu=_sum_in_turn, default=lambda x: x.sum(0))
    return total / len(x)


def variance(x: jax.Array) -> jax.Array:
    """`[...]` variance of `[N, ...]`, dividing by N."""
    return mean(jnp.square(x - mean(x)[None]))


def _sum_in_turn(x: jax.Array) -> jax.Array:
    if len(x) <= _UNROLLED:
        return functools.reduce(jnp.add, (x[i] for i in range(len(x))))
    return jax.lax.scan(lambda total, part: (total + part, None), x[0], x[1:])[0]
