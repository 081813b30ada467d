"""The networks of an agent as flax modules, and the policy's distribution.

Axes: N members, M critics per member, B batch, O observation size, A action size.
"""

from typing import Any

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp

from qusac_jax.qusac import layers

Params = Any  # nested dict of arrays

# Range of log standard deviations of the policy, as in common SAC implementations.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
# Cap of the U-net's pre-activation: U below e^40 keeps symexp and its gradient finite in float32.
LOG_U_MAX = 40.0
# The part of actor, critics and U-net that knows the statistics of observations.
_STATISTICS = "statistics"


def _normalized(observation: jax.Array, normalize: bool) -> jax.Array:
    """What a network reads of an observation; to be called in the network's `__call__`."""
    return layers.Normalize(name=_STATISTICS)(observation) if normalize else observation


def statistics(params: Params) -> tuple[jax.Array, jax.Array] | None:
    """Mean and variance `[..., O]` that a network normalizes by, None if it does not."""
    found = params["params"].get(_STATISTICS)
    return None if found is None else (found["mean"], found["variance"])


def with_statistics(params: Params, mean: jax.Array, variance: jax.Array) -> Params:
    """The parameters of a network that normalizes, with this mean and variance `[O]`."""
    parts = params["params"] | {_STATISTICS: {"mean": mean, "variance": variance}}
    return params | {"params": parts}


class Actor(nn.Module):
    """Mean and log standard deviation of the Gaussian before the tanh."""

    hidden: tuple[int, ...]
    action_size: int
    normalize: bool = False

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[..., O] -> ([..., A], [..., A])`."""
        inputs = _normalized(observation, self.normalize)
        output = layers.MLP(self.hidden, 2 * self.action_size)(inputs)
        mean, log_std = jnp.split(output, 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


def actor_of(params: Params, hidden: tuple[int, ...], action_size: int) -> Actor:
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
        mlp = layers.MLP(
            self.hidden,
            1,
            (self.num_groups, self.num_critics),
            kernel_init=layers.orthogonal(self.init_gain),
        )
        return mlp(x)[..., 0]


class UNet(nn.Module):
    """Epistemic variance of the value at (s, a), as log U.

    The paper's network ends in a softplus and predicts symlog(U) (section 4.2). With x the last
    linear output, symexp(softplus(x)) = exp(x): the linear output *is* log U. Returning it gives
    sqrt(U) = exp(x / 2), whose gradient is finite where that of sqrt at U = 0 is not.
    """

    hidden: tuple[int, ...]
    normalize: bool = False

    @nn.compact
    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """`[B, O], [B, A] -> [B]` log U, which `to_std` and `to_variance` read."""
        inputs = jnp.concatenate([_normalized(observation, self.normalize), action], axis=-1)
        return layers.MLP(self.hidden, 1)(inputs)[..., 0]


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
