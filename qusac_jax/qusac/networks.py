"""Networks as flax modules, stacked along leading ensemble axes, and the policy distribution.

Axes: N members, M critics per member, B batch, O observation size, A action size. Every module
takes inputs `[..., B, features]`; a module with a `stack` holds one set of weights per element of
it and returns `[*stack, B, features]`. Stacked products are one batched matrix product, which XLA
runs faster on CPU than a mapped module.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp

Params = Any  # nested dict of arrays

# Range of log standard deviations of the policy, as in common SAC implementations.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
# Cap of the U-net's pre-activation: U below e^40 keeps symexp and its gradient finite in float32.
LOG_U_MAX = 40.0
# Newton-Schulz iterations of `orthogonal`: a singular value grows by 3/2 in each until near 1,
# then converges quadratically. 50 do for values down to 1e-7 of the norm.
_ORTHOGONAL_ITERATIONS = 50
# Below this variance a column is constant: it carries no information, and dividing by its
# deviation would carry noise.
_MIN_VARIANCE = 1e-12
# Relative to its mean, what differs by less differs by rounding: some units in the last place.
_ROUNDING = 1e-6
# The part of actor, critics and U-net that knows the statistics of observations.
_STATISTICS = "statistics"


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


def _normalized(observation: jax.Array, normalize: bool) -> jax.Array:
    """What a network reads of an observation; to be called in the network's `__call__`."""
    return Normalize(name=_STATISTICS)(observation) if normalize else observation


def statistics(params: Params) -> tuple[jax.Array, jax.Array] | None:
    """Mean and variance `[..., O]` that a network normalizes by, None if it does not."""
    found = params["params"].get(_STATISTICS)
    return None if found is None else (found["mean"], found["variance"])


def with_statistics(params: Params, mean: jax.Array, variance: jax.Array) -> Params:
    """The parameters of a network that normalizes, with this mean and variance `[O]`."""
    layers = params["params"] | {_STATISTICS: {"mean": mean, "variance": variance}}
    return params | {"params": layers}


class Actor(nn.Module):
    """Mean and log standard deviation of the Gaussian before the tanh."""

    hidden: tuple[int, ...]
    action_size: int
    normalize: bool = False

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[..., O] -> ([..., A], [..., A])`."""
        output = MLP(self.hidden, 2 * self.action_size)(_normalized(observation, self.normalize))
        mean, log_std = jnp.split(output, 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


def actor(params: Params, hidden: tuple[int, ...], action_size: int) -> Actor:
    """The module that these parameters are of."""
    return Actor(hidden, action_size, statistics(params) is not None)


class Critic(nn.Module):
    """N groups of M action-value functions."""

    hidden: tuple[int, ...]
    num_groups: int
    num_critics: int
    init_gain: float = 1.0
    normalize: bool = False

    @nn.compact
    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """`[B, O], [B, A]` (all see the same) or `[N, B, O], [N, B, A]` -> `[N, M, B]`."""
        x = jnp.concatenate([_normalized(observation, self.normalize), action], axis=-1)
        if x.ndim == 3:
            x = x[:, None]
        mlp = MLP(
            self.hidden,
            1,
            (self.num_groups, self.num_critics),
            kernel_init=orthogonal(self.init_gain),
        )
        return mlp(x)[..., 0]


class UNet(nn.Module):
    """Epistemic variance of the value at (s, a), as log U.

    The paper's network ends in a softplus and predicts symlog(U) (section 4.2). With
    x the last linear output, symexp(softplus(x)) = exp(x): the linear output *is* log U. Returning
    it gives sqrt(U) = exp(x / 2), whose gradient is finite where that of sqrt at U = 0 is not.
    """

    hidden: tuple[int, ...]
    normalize: bool = False

    @nn.compact
    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """`[B, O], [B, A] -> [B]` log U, which `to_std` and `to_variance` read."""
        inputs = jnp.concatenate([_normalized(observation, self.normalize), action], axis=-1)
        return MLP(self.hidden, 1)(inputs)[..., 0]


def to_variance(log_u: jax.Array) -> jax.Array:
    """U `[...]` of the U-net's output `[...]`, finite for any input."""
    return jnp.exp(jnp.minimum(log_u, LOG_U_MAX))


def to_std(log_u: jax.Array) -> jax.Array:
    """sqrt(U) `[...]` of the U-net's output `[...]`."""
    return jnp.exp(0.5 * jnp.minimum(log_u, LOG_U_MAX))


def apply(module: nn.Module, params: Params, *inputs: jax.Array) -> Any:
    """The module's output; one place for flax's loose type."""
    return module.apply(params, *inputs)


def policy_distribution(mean: jax.Array, log_std: jax.Array) -> distrax.Transformed:
    """Tanh-squashed diagonal Gaussian over actions in (-1, 1), `[..., A]`."""
    gaussian = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    return distrax.Transformed(gaussian, distrax.Block(distrax.Tanh(), 1))


def sample_action(
    actor: Actor, params: Params, observation: jax.Array, key: chex.PRNGKey
) -> tuple[jax.Array, jax.Array]:
    """Draws actions and their log-probabilities.

    The log-probability comes from the sample before the tanh, so it and its gradient stay finite
    where the action saturates.

    Args:
        actor: the module.
        params: its parameters.
        observation: `[..., O]`.
        key: consumed.

    Returns:
        `[..., A]` actions in [-1, 1] and `[...]` log-densities.
    """
    distribution = policy_distribution(*apply(actor, params, observation))
    action, log_prob = distribution.sample_and_log_prob(seed=key)
    return action, jnp.asarray(log_prob)


def mean_action(actor: Actor, params: Params, observation: jax.Array) -> jax.Array:
    """The action at the mean of the Gaussian, `[..., O] -> [..., A]`."""
    mean, _ = apply(actor, params, observation)
    return jnp.tanh(mean)
