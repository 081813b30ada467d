"""The probabilistic ensemble of dynamics models: its state and its predictions.

`qusac_jax.qusac.fitting` trains it. Axes: N members, B batch, O observation size, A action size.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import networks
from qusac_jax.qusac.config import DynamicsConfig
from qusac_jax.qusac.dynamics_network import DynamicsNetwork, termination_logits
from qusac_jax.task import TerminationFn


class Dynamics(NamedTuple):
    """Weights of N Gaussian models, their optimizer, and what they take from the data."""

    params: networks.Params  # leaves lead with N
    opt_state: optax.OptState
    input_mean: jax.Array  # [O + A]
    input_std: jax.Array  # [O + A], positive
    change_std: jax.Array  # [O], positive: deviation of s' - s in D
    target_std: jax.Array  # [O + 1], positive: unit of what the network says of (s' - s, r)
    noise_scale: jax.Array  # [N, O + 1] in [0, 1], factor on the predicted standard deviations
    # Range of (s', r) in rollouts: that of D, or infinite without clip_observations, clip_rewards.
    least: jax.Array  # [O + 1]
    most: jax.Array  # [O + 1]


def module(config: DynamicsConfig, *, observation_size: int, num_members: int) -> DynamicsNetwork:
    """The members' architecture."""
    return DynamicsNetwork(
        config.hidden,
        observation_size,
        num_members,
        config.init_scale,
        config.reward_prior_scale,
        config.learn_termination,
    )


def optimizer(learning_rate: float) -> optax.GradientTransformation:
    """Of the members' weights."""
    return optax.adam(learning_rate)


def init(
    model: DynamicsNetwork,
    key: chex.PRNGKey,
    *,
    action_size: int,
    learning_rate: float,
) -> Dynamics:
    """Random weights, no scaling of the inputs, any observation."""
    input_size = model.observation_size + action_size
    params = model.init(key, jnp.zeros((1, input_size), jnp.float32))
    return Dynamics(
        params=params,
        opt_state=optimizer(learning_rate).init(params),
        input_mean=jnp.zeros(input_size, jnp.float32),
        input_std=jnp.ones(input_size, jnp.float32),
        change_std=jnp.ones(model.observation_size, jnp.float32),
        target_std=jnp.ones(model.observation_size + 1, jnp.float32),
        noise_scale=jnp.ones((model.num_members, model.observation_size + 1), jnp.float32),
        # The weak dtype of a Python number would have all compiled again, after a fit.
        least=jnp.full(model.observation_size + 1, -jnp.inf, jnp.float32),
        most=jnp.full(model.observation_size + 1, jnp.inf, jnp.float32),
    )


def predict(
    model: DynamicsNetwork, dynamics: Dynamics, observation: jax.Array, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gaussian over the next observation and the reward, per member.

    Args:
        model: the module.
        dynamics: its weights.
        observation: `[B, O]`, the same for all members, or `[N, B, O]`.
        action: `[B, A]` or `[N, B, A]`.

    Returns:
        Mean `[N, B, O + 1]` of (s', r), the reward last, and the standard deviation likewise.
    """
    inputs = scale_inputs(dynamics, observation, action)
    mean, log_var = networks.apply(model, dynamics.params, inputs)
    mean = (mean * dynamics.target_std).at[..., :-1].add(observation)
    return mean, jnp.exp(0.5 * log_var) * dynamics.noise_scale[:, None] * dynamics.target_std


def termination(model: DynamicsNetwork, dynamics: Dynamics) -> TerminationFn:
    """The learned termination: an episode ends where the members' mean probability exceeds 1/2.

    A member answers for the next observation that it is given, not for the one that it would
    predict itself: rollouts give it the one that was drawn.

    Args:
        model: the module, with `learn_termination`.
        dynamics: its weights.

    Returns:
        A function of observation, action and next observation, over any leading axes.
    """

    def ends(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
        # As it would be stored: beyond the range of D nothing was learned.
        next_observation = clip_observation(dynamics, next_observation)
        inputs = scale_termination_inputs(dynamics, observation, action, next_observation)
        flat = inputs.reshape(-1, inputs.shape[-1])
        logits = termination_logits(model, dynamics.params, flat)
        return (jnp.mean(jax.nn.sigmoid(logits), axis=0) > 0.5).reshape(inputs.shape[:-1])

    return ends


def clip(dynamics: Dynamics, prediction: jax.Array) -> jax.Array:
    """Predicted (s', r) `[..., O + 1]`, kept inside the range that the dynamics allow."""
    return jnp.clip(prediction, dynamics.least, dynamics.most)


def clip_observation(dynamics: Dynamics, observation: jax.Array) -> jax.Array:
    """Predicted s' `[..., O]`, likewise."""
    return jnp.clip(observation, dynamics.least[:-1], dynamics.most[:-1])


def scale_inputs(dynamics: Dynamics, observation: jax.Array, action: jax.Array) -> jax.Array:
    """What the network reads, `[..., O + A]`."""
    inputs = jnp.concatenate([observation, action], axis=-1)
    return (inputs - dynamics.input_mean) / dynamics.input_std


def scale_termination_inputs(
    dynamics: Dynamics, observation: jax.Array, action: jax.Array, next_observation: jax.Array
) -> jax.Array:
    """What the termination's part of the network reads, `[..., O + A + O]`."""
    size = observation.shape[-1]
    next_inputs = (next_observation - dynamics.input_mean[:size]) / dynamics.input_std[:size]
    return jnp.concatenate([scale_inputs(dynamics, observation, action), next_inputs], axis=-1)
