"""What a learner is made of: networks, optimizers, weights.

Axes: N members (critic groups), M critics per member, O observation size, A action size.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import networks, uncertainty
from qusac_jax.qusac.config import Config


class Learner(NamedTuple):
    """Parameters, target parameters and optimizer states."""

    actor: networks.Params
    critic: networks.Params  # leaves [N, M, ...], but for the `statistics` of observations, [O]
    target_critic: networks.Params
    unet: networks.Params  # None for methods without a U-net
    target_unet: networks.Params
    log_temperature: jax.Array  # [] log α
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    unet_opt: optax.OptState
    temperature_opt: optax.OptState
    local_max: jax.Array  # [] running maximum of the local uncertainty that is propagated
    num_updates: jax.Array  # [] int32, gradient updates that risk_schedule has counted


class Parts(NamedTuple):
    """What a configuration makes of networks, optimizers and the method; holds no weights."""

    config: Config
    method: uncertainty.Method
    actor: networks.Actor
    critic: networks.Critic
    unet: networks.UNet
    actor_optimizer: optax.GradientTransformation
    critic_optimizer: optax.GradientTransformation
    unet_optimizer: optax.GradientTransformation
    temperature_optimizer: optax.GradientTransformation


def build(config: Config, action_size: int) -> Parts:
    """The parts of a learner."""
    return Parts(
        config=config,
        method=config.qvariance,
        actor=actor(config, action_size),
        critic=networks.Critic(
            config.critic_hidden,
            config.num_groups,
            config.num_critics,
            config.critic_init_gain,
            config.normalize_observations,
        ),
        unet=networks.UNet(config.unet_hidden, config.normalize_observations),
        actor_optimizer=optax.adam(config.actor_learning_rate),
        critic_optimizer=optax.adam(config.critic_learning_rate),
        unet_optimizer=optax.adam(config.unet_learning_rate),
        temperature_optimizer=optax.adam(config.temperature_learning_rate),
    )


def actor(config: Config, action_size: int) -> networks.Actor:
    """The architecture of the policy."""
    return networks.Actor(config.actor_hidden, action_size, config.normalize_observations)


def init(key: chex.PRNGKey, config: Config, observation_size: int, action_size: int) -> Learner:
    """Random parameters, targets equal to them."""
    key_actor, key_critic, key_unet = jax.random.split(key, 3)
    parts = build(config, action_size)
    sizes = (observation_size, action_size)
    observation, action = (jnp.zeros((1, size), jnp.float32) for size in sizes)
    actor = parts.actor.init(key_actor, observation)
    critic = parts.critic.init(key_critic, observation, action)
    unet: networks.Params = None
    if config.uses_unet:
        unet = parts.unet.init(key_unet, observation, action)
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    return Learner(
        actor=actor,
        critic=critic,
        target_critic=jax.tree.map(jnp.copy, critic),
        unet=unet,
        target_unet=jax.tree.map(jnp.copy, unet),
        log_temperature=log_temperature,
        actor_opt=parts.actor_optimizer.init(actor),
        critic_opt=parts.critic_optimizer.init(critic),
        unet_opt=parts.unet_optimizer.init(unet),
        temperature_opt=parts.temperature_optimizer.init(log_temperature),
        local_max=jnp.zeros((), jnp.float32),
        num_updates=jnp.zeros((), jnp.int32),
    )
