"""Networks as flax modules, stacked along leading ensemble axes, and the policy distribution.

Axes: N members, M critics per member, B batch, O observation size, A action size. Every module
takes inputs `[..., B, features]`; a module with a `stack` holds one set of weights per element of
it and returns `[*stack, B, features]`. Stacked products are one batched matrix product, which XLA
runs faster on CPU than a mapped module.
"""

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
# Of the weights of random reward functions. The larger, the rougher the functions, and the more of
# them is left where there are data: docs/results/deep_decisions.md compares 2, 3
# and 5.
_PRIOR_GAIN = 2.0
_PRIOR_HIDDEN = (64, 64)
# The part of the dynamics that learns when an episode ends.
_TERMINATION, _TERMINATION_HIDDEN = "termination", (64, 64)
# Newton-Schulz iterations of `orthogonal`: a singular value grows by 3/2 in each until near 1,
# then converges quadratically. 50 do for values down to 1e-7 of the norm.
_ORTHOGONAL_ITERATIONS = 50
# Below this variance a column is constant: it carries no information, and dividing by its
# deviation would carry noise.
_MIN_VARIANCE = 1e-12
# The part of actor, critics and U-net that knows the statistics of observations.
_STATISTICS = "statistics"
# Where the soft bounds of the members' log variances start.
_MIN_LOG_VAR, _MAX_LOG_VAR = -10.0, 0.5


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
        )
        bias = self.param("bias", nn.initializers.zeros, (*self.stack, self.features))
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
        options = (self.stack, self.kernel_init, self.precision)
        for size in self.hidden:
            x = self.activation(Dense(size, *options)(x))
        return Dense(self.features, *options)(x)


def deviation(variance: jax.Array) -> jax.Array:
    """Standard deviation, by which data are divided: 1 for what is constant."""
    return jnp.where(variance > _MIN_VARIANCE, jnp.sqrt(variance), 1.0)


class Normalize(nn.Module):
    """Observations in standard deviations from their mean, `[..., O] -> [..., O]`.

    Mean and variance stand among the parameters, so that they are wherever the weights are. No
    gradient changes them; `qusac_jax.qusac.normalization` sets them.
    """

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Mean 0 and variance 1 until they are set, which leaves observations as they are."""
        shape = observation.shape[-1:]
        mean = self.param("mean", nn.initializers.zeros, shape)
        variance = self.param("variance", nn.initializers.ones, shape)
        mean, variance = jax.lax.stop_gradient((mean, variance))
        return (observation - mean) / deviation(variance)


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


class Dynamics(nn.Module):
    """N Gaussian models of (s' - s, r) given (s, a).

    With `reward_prior_scale` > 0 every member's mean reward has a random function of its own added
    to it, which is never trained (Osband et al., 2018, "Randomized Prior Functions for Deep
    Reinforcement Learning"). What is trained has to take it away again and does so where there are
    data; elsewhere the members disagree, as draws from a posterior over rewards would. The standard
    deviation over members is 0.4 of the scale for inputs of norm 1 and 0.8 for large ones.

    With `learn_termination` there are weights for `termination_logits`, too.
    """

    hidden: tuple[int, ...]
    observation_size: int
    num_members: int
    init_scale: float = 2.0
    reward_prior_scale: float = 0.0
    learn_termination: bool = False
    learn_variance_bounds: bool = True

    @nn.compact
    def __call__(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[B, O + A]` or `[N, B, O + A]` -> mean and log variance, `[N, B, O + 1]` each."""
        size = self.observation_size + 1
        stack = (self.num_members,)
        output = MLP(
            self.hidden,
            2 * size,
            stack,
            activation=nn.silu,
            kernel_init=_truncated_normal(self.init_scale),
            # Its errors are far below the rounding of the reduced precision that accelerators
            # default to. The other networks' are not, and they keep the default.
            precision="highest",
        )(inputs)
        mean, raw = jnp.split(output, 2, axis=-1)
        if self.reward_prior_scale:
            prior = MLP(
                _PRIOR_HIDDEN,
                1,
                stack,
                kernel_init=orthogonal(_PRIOR_GAIN),
                precision="highest",
                name="reward_prior",
            )(inputs)
            prior = jax.lax.stop_gradient(self.reward_prior_scale / _PRIOR_GAIN * prior)
            mean = mean.at[..., -1:].add(prior)
        if self.learn_termination and self.is_initializing():
            next_observation = inputs[..., : self.observation_size]
            _termination_head(self.num_members, _TERMINATION)(
                jnp.concatenate([inputs, next_observation], axis=-1)
            )
        upper = self.param("max_log_var", nn.initializers.constant(_MAX_LOG_VAR), (*stack, size))
        lower = self.param("min_log_var", nn.initializers.constant(_MIN_LOG_VAR), (*stack, size))
        if not self.learn_variance_bounds:
            upper, lower = jax.lax.stop_gradient((upper, lower))
        # Soft bounds (Chua et al., 2018, appendix A): extrapolated variances stay reasonable.
        raw = upper[:, None] - jax.nn.softplus(upper[:, None] - raw)
        return mean, lower[:, None] + jax.nn.softplus(raw - lower[:, None])


def _termination_head(num_members: int, name: str | None = None) -> MLP:
    return MLP(_TERMINATION_HIDDEN, 1, (num_members,), nn.silu, precision="highest", name=name)


def termination_logits(model: Dynamics, params: Params, inputs: jax.Array) -> jax.Array:
    """How sure each member is that an episode ends, as log odds.

    Args:
        model: with `learn_termination`.
        params: its parameters.
        inputs: `[B, O + A + O]` or `[N, B, O + A + O]`: s, a and s', scaled.

    Returns:
        `[N, B]`.
    """
    head = {"params": params["params"][_TERMINATION]}
    return apply(_termination_head(model.num_members), head, inputs)[..., 0]


def _truncated_normal(scale: float) -> nn.initializers.Initializer:
    """Truncated normal with standard deviation scale / (2 sqrt(fan_in))."""

    def init(key: chex.PRNGKey, shape: Sequence[int], dtype=jnp.float32) -> jax.Array:
        std = scale / (2.0 * jnp.sqrt(shape[0]))
        return std * jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape), dtype)

    return init


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
