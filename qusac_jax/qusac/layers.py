"""Layers that networks are made of, stacked along leading ensemble axes.

Axes: B batch, I inputs, O observation size. Every module takes inputs `[..., B, features]`; one
with a `stack` holds one set of weights per element of it and returns `[*stack, B, features]`.
Stacked products are one batched matrix product, which XLA runs faster on CPU than a mapped module.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

# Newton-Schulz iterations of `orthogonal`: a singular value grows by 3/2 in each until near 1,
# then converges quadratically. 50 do for values down to 1e-7 of the norm.
_ORTHOGONAL_ITERATIONS = 50
# Below this variance a column is constant: it carries no information, and dividing by its
# deviation would carry noise.
_MIN_VARIANCE = 1e-12
# Relative to its mean, what differs by less differs by rounding: some units in the last place.
_ROUNDING = 1e-6


def stacked(init: nn.initializers.Initializer, stack: Sequence[int]) -> Callable[..., jax.Array]:
    """An initializer that draws independently for every element of the leading axes `stack`."""

    def stacked_init(key: chex.PRNGKey, shape: Sequence[int], dtype=jnp.float32) -> jax.Array:
        inner = tuple(shape[len(stack) :])
        draw: Any = lambda key: init(key, inner, dtype)
        for _ in stack:
            draw = jax.vmap(draw)
        return draw(jax.random.split(key, tuple(stack)) if stack else key)

    return stacked_init


def orthogonal(gain: float) -> nn.initializers.Initializer:
    """Uniformly distributed (semi-)orthogonal matrices times `gain`, by matrix products only.

    The orthogonal polar factor of a Gaussian matrix is uniformly distributed, and Newton-Schulz
    iterations converge to it. flax's own initializer calls LAPACK's QR, several of which in one
    mapped program wait for each other for ever in XLA's thread pool on machines of few cores.
    """

    def init(key: chex.PRNGKey, shape: Sequence[int], dtype=jnp.float32) -> jax.Array:
        x = jax.random.normal(key, tuple(shape), dtype)
        wide = shape[0] < shape[1]
        x = x if wide else x.T

        def improve(_: int, x: jax.Array) -> jax.Array:
            gram = jnp.matmul(x, x.T, precision="highest")
            return 1.5 * x - 0.5 * jnp.matmul(gram, x, precision="highest")

        x = jax.lax.fori_loop(0, _ORTHOGONAL_ITERATIONS, improve, x / jnp.linalg.norm(x))
        return gain * (x if wide else x.T)

    return init


class Dense(nn.Module):
    """An affine layer per element of `stack`: `[*stack | ..., B, I] -> [*stack, B, features]`."""

    features: int
    stack: tuple[int, ...] = ()
    kernel_init: nn.initializers.Initializer = orthogonal(1.0)
    precision: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer; leading axes of `x` broadcast against `stack`."""
        kernel = self.param(
            "kernel",
            stacked(self.kernel_init, self.stack),
            (*self.stack, x.shape[-1], self.features),
            jnp.float32,
        )
        bias = self.param("bias", nn.initializers.zeros, (*self.stack, self.features), jnp.float32)
        product = jnp.matmul(x, kernel, precision=self.precision)
        return product + (bias[..., None, :] if self.stack else bias)


class MLP(nn.Module):
    """A multi-layer perceptron per element of `stack`, linear at the end."""

    hidden: tuple[int, ...]
    features: int
    stack: tuple[int, ...] = ()
    activation: Callable[[jax.Array], jax.Array] = nn.tanh
    kernel_init: nn.initializers.Initializer = orthogonal(1.0)
    precision: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[*stack | ..., B, I] -> [*stack, B, features]`."""
        dense = functools.partial(
            Dense, stack=self.stack, kernel_init=self.kernel_init, precision=self.precision
        )
        for size in self.hidden:
            x = self.activation(dense(size)(x))
        return dense(self.features)(x)


def deviation(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Standard deviation, by which data are divided: 1 for what is constant but for rounding.

    In units of a rounding error, noise would be read as data, and the smallest error of a model
    would be far outside of D.
    """
    least = jnp.maximum(_MIN_VARIANCE, jnp.square(_ROUNDING * mean))
    return jnp.where(variance > least, jnp.sqrt(variance), 1.0)


class Normalize(nn.Module):
    """Observations in standard deviations from their mean, `[..., O] -> [..., O]`.

    Mean and variance stand among the parameters, so that they are wherever the weights are. No
    gradient changes them; `qusac_jax.qusac.normalization` sets them.
    """

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Mean 0 and variance 1 until they are set, which leaves observations as they are."""
        shape = observation.shape[-1:]
        mean = self.param("mean", nn.initializers.zeros, shape, jnp.float32)
        variance = self.param("variance", nn.initializers.ones, shape, jnp.float32)
        mean, variance = jax.lax.stop_gradient((mean, variance))
        return (observation - mean) / deviation(mean, variance)
