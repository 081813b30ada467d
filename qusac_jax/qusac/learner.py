"""Actor, critics, U-net and temperature, and one gradient update of them all.

Axes: N members (critic groups), M critics per member, B batch, O observation size, A action size,
J actions per next state.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import losses, networks, replay, uncertainty
from qusac_jax.qusac import risk as risk_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.regularizers import REGULARIZERS


class Expectation(NamedTuple):
    """What each member of the model expects after B pairs (s, a)."""

    next_observation: jax.Array  # [N, B, O]
    change: jax.Array  # [N, B, O] of the observation, in deviations of D
    reward: jax.Array  # [N, B]
    terminated: jax.Array  # [N, B] whether the episode ends there


# Of (observation [B, O], action [B, A]).
Predict = Callable[[jax.Array, jax.Array], Expectation]


class Learner(NamedTuple):
    """Parameters, target parameters and optimiser states."""

    actor: networks.Params
    critic: networks.Params  # leaves [N, M, ...]
    target_critic: networks.Params
    unet: networks.Params  # None for methods without a U-net
    target_unet: networks.Params
    log_temperature: jax.Array  # [] log α
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    unet_opt: optax.OptState
    temperature_opt: optax.OptState
    local_max: jax.Array  # [] running maximum of the local uncertainty that is propagated
    num_updates: jax.Array  # [] int32, gradient updates so far


class Parts(NamedTuple):
    """What a configuration makes of networks, optimisers and the method; holds no weights."""

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
        method=uncertainty.METHODS[config.method],
        actor=networks.Actor(config.actor_hidden, action_size),
        critic=networks.Critic(
            config.critic_hidden, config.num_groups, config.num_critics, config.critic_init_gain
        ),
        unet=networks.UNet(config.unet_hidden),
        actor_optimizer=optax.adam(config.actor_learning_rate),
        critic_optimizer=optax.adam(config.critic_learning_rate),
        unet_optimizer=optax.adam(config.unet_learning_rate),
        temperature_optimizer=optax.adam(config.temperature_learning_rate),
    )


def init(key: chex.PRNGKey, config: Config, observation_size: int, action_size: int) -> Learner:
    """Random parameters, targets equal to them."""
    key_actor, key_critic, key_unet = jax.random.split(key, 3)
    parts = build(config, action_size)
    observation, action = jnp.zeros((1, observation_size)), jnp.zeros((1, action_size))
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
        local_max=jnp.zeros(()),
        num_updates=jnp.zeros((), jnp.int32),
    )


def update(
    learner: Learner,
    critic_batch: replay.Transition,
    policy_batch: replay.Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
    *,
    config: Config,
) -> tuple[Learner, dict[str, jax.Array]]:
    """One gradient update: U-net, critics, targets, actor, temperature, in this order.

    Algorithm 2, lines 13-15, and Algorithm 3, lines 9-11.

    Args:
        learner: what to update.
        critic_batch: `[N, B, ...]`, one batch per critic group, `config.num_real` transitions of D
            first.
        policy_batch: `[B, ...]` for the U-net and the actor.
        predict: the model, for methods that look ahead; None without one.
        key: consumed.
        config: hyperparameters.

    Returns:
        The new learner, and losses and means as named scalars.
    """
    key_unet, key_critic, key_actor = jax.random.split(key, 3)
    parts = build(config, policy_batch.action.shape[-1])
    metrics: dict[str, jax.Array] = {}
    if config.uses_unet:
        learner, unet_metrics = _update_unet(parts, learner, policy_batch, predict, key_unet)
        metrics |= unet_metrics
    learner, metrics["critic_loss"] = _update_critic(parts, learner, critic_batch, key_critic)
    learner = _update_targets(parts, learner)
    learner, log_prob, actor_metrics = _update_actor(parts, learner, policy_batch, key_actor)
    learner = _update_temperature(parts, learner, log_prob)
    learner = learner._replace(num_updates=learner.num_updates + 1)
    return learner, metrics | actor_metrics | {"alpha": jnp.exp(learner.log_temperature)}


def _update_critic(
    parts: Parts, learner: Learner, batch: replay.Transition, key: chex.PRNGKey
) -> tuple[Learner, jax.Array]:
    config = parts.config
    next_action, next_log_prob = networks.sample_action(
        parts.actor, learner.actor, batch.next_observation, key
    )
    target = losses.critic_target(
        batch.reward,
        batch.terminated,
        networks.apply(parts.critic, learner.target_critic, batch.next_observation, next_action),
        next_log_prob,
        jnp.exp(learner.log_temperature),
        config.discount,
    )

    def loss(params: networks.Params) -> jax.Array:
        q = networks.apply(parts.critic, params, batch.observation, batch.action)
        value = losses.critic_loss(q, target)
        if config.regularizer is not None:
            value += _regularization(config.regularizer, config, q)
        return value

    value, grads = jax.value_and_grad(loss)(learner.critic)
    updates, opt = parts.critic_optimizer.update(grads, learner.critic_opt)
    critic = optax.apply_updates(learner.critic, updates)
    return learner._replace(critic=critic, critic_opt=opt), value


def _regularization(regularizer: str, config: Config, q: jax.Array) -> jax.Array:
    """What is added to the critics' loss; `q` `[N, M, B]`, the real transitions first."""
    is_real = jnp.arange(q.shape[-1]) < config.num_real
    return config.regularizer_weight * REGULARIZERS[regularizer](q, is_real)


def _update_unet(
    parts: Parts,
    learner: Learner,
    batch: replay.Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
) -> tuple[Learner, dict[str, jax.Array]]:
    key_next, key_local = jax.random.split(key)
    config = parts.config
    local = propagated_uncertainty(parts, learner, batch, predict, key_local)
    local_max = jnp.maximum(jnp.max(local), learner.local_max * (1.0 - config.local_max_decay))
    next_action, _ = networks.sample_action(
        parts.actor, learner.actor, batch.next_observation, key_next
    )
    next_log_u = networks.apply(
        parts.unet, learner.target_unet, batch.next_observation, next_action
    )
    next_u = networks.to_variance(next_log_u)
    target = losses.unet_target(local, batch.terminated, next_u, config.discount)
    if config.clip_u:
        # The fixed point U = E[sum of γ^2t local] lies below this cap, so it stays where it is.
        target = jnp.minimum(target, config.u_per_local * local_max)

    def loss(params: networks.Params) -> jax.Array:
        log_u = networks.apply(parts.unet, params, batch.observation, batch.action)
        return losses.unet_loss(log_u, target)

    value, grads = jax.value_and_grad(loss)(learner.unet)
    updates, opt = parts.unet_optimizer.update(grads, learner.unet_opt)
    learner = learner._replace(
        unet=optax.apply_updates(learner.unet, updates), unet_opt=opt, local_max=local_max
    )
    return learner, {"unet_loss": value, "local_uncertainty": jnp.mean(local)}


def _update_targets(parts: Parts, learner: Learner) -> Learner:
    follow = lambda new, old: optax.incremental_update(new, old, parts.config.target_rate)
    return learner._replace(
        target_critic=follow(learner.critic, learner.target_critic),
        target_unet=follow(learner.unet, learner.target_unet),
    )


def _update_actor(
    parts: Parts, learner: Learner, batch: replay.Transition, key: chex.PRNGKey
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    risk = current_risk(parts, learner)

    def loss(params: networks.Params):
        action, log_prob = networks.sample_action(parts.actor, params, batch.observation, key)
        q = networks.apply(parts.critic, learner.critic, batch.observation, action)
        std = value_std(parts, learner, batch.observation, action, q)
        temperature = jnp.exp(learner.log_temperature)
        value = losses.actor_loss(q, std, log_prob, temperature, risk)
        metrics = {
            "actor_loss": value,
            "mean_q": jnp.mean(losses.group_value(q)),
            "mean_sqrt_u": jnp.mean(std),
        }
        return value, (log_prob, metrics)

    grads, (log_prob, metrics) = jax.grad(loss, has_aux=True)(learner.actor)
    updates, opt = parts.actor_optimizer.update(grads, learner.actor_opt)
    actor = optax.apply_updates(learner.actor, updates)
    return learner._replace(actor=actor, actor_opt=opt), log_prob, metrics


def current_risk(parts: Parts, learner: Learner) -> jax.Array | float:
    """λ `[]` at this point of the run."""
    config = parts.config
    if config.risk_schedule is None:
        return config.risk
    return jnp.asarray(risk_lib.parse(config.risk_schedule)(learner.num_updates))


def _update_temperature(parts: Parts, learner: Learner, log_prob: jax.Array) -> Learner:
    target = parts.config.target_entropy
    target = -float(parts.actor.action_size) if target is None else target
    grad = jax.grad(losses.temperature_loss)(learner.log_temperature, log_prob, target)
    step, opt = parts.temperature_optimizer.update(grad, learner.temperature_opt)
    return learner._replace(
        log_temperature=optax.apply_updates(learner.log_temperature, step), temperature_opt=opt
    )


def propagated_uncertainty(
    parts: Parts,
    learner: Learner,
    batch: replay.Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
) -> jax.Array:
    """What the method's UBE propagates at (s, a): γ² times its local uncertainty (plus rewards).

    Args:
        parts: of a method that trains a U-net.
        learner: the critics and the policy.
        batch: `[B, ...]`.
        predict: the model, for methods that look ahead.
        key: consumed.

    Returns:
        `[B]`, at least 0.

    Raises:
        ValueError: if the method has nothing to propagate, or looks ahead without a model.
    """
    method, discount = parts.method, parts.config.discount
    if method.local is None:
        raise ValueError(f"method {parts.config.method!r} propagates nothing; it needs no U-net")
    if not method.min_models:
        q = networks.apply(parts.critic, learner.critic, batch.observation, batch.action)
        return method.local(uncertainty.Values(losses.group_value(q)), discount)
    if predict is None:
        raise ValueError(f"method {parts.config.method!r} needs the dynamics, got None")
    values = _look_ahead(parts, learner, batch, predict, key)
    return method.local(values, discount)


def _look_ahead(
    parts: Parts,
    learner: Learner,
    batch: replay.Transition,
    predict: Predict,
    key: chex.PRNGKey,
) -> uncertainty.Values:
    """Values at what each member expects to come next.

    Where a member expects the episode to end, its next value is 0, whatever the critics say.
    """
    expected = predict(batch.observation, batch.action)
    next_observation = expected.next_observation
    num_actions = parts.config.gap_samples if parts.method.compares_actions else 1
    num_members, *shape = next_observation.shape
    next_observation = jnp.broadcast_to(
        next_observation[:, None], (num_members, num_actions, *shape)
    )  # [N, J, B, O]
    # The same noise for every member: what members differ in is then due to their next states and
    # not to the policy's randomness, which is no epistemic uncertainty.
    action = jax.vmap(lambda o: networks.sample_action(parts.actor, learner.actor, o, key)[0])(
        next_observation
    )
    flat = lambda x: x.reshape(-1, x.shape[-1])
    next_q = networks.apply(parts.critic, learner.critic, flat(next_observation), flat(action))
    next_q = losses.group_value(next_q)
    next_q = next_q.reshape(-1, *next_observation.shape[:-1])  # [groups, N, J, B]
    next_q = jnp.where(expected.terminated[:, None], 0.0, next_q)
    return uncertainty.Values(None, next_q, expected.reward, expected.change)


def attraction(
    parts: Parts, learner: Learner, observation: jax.Array, key: chex.PRNGKey
) -> jax.Array:
    """Q + λ sqrt(U) of an action that the policy draws, eq. (9), policy_opt.

    Args:
        parts: of the configuration.
        learner: the critics, the U-net and the policy.
        observation: `[B, O]`.
        key: consumed.

    Returns:
        `[B]`.
    """
    action, _ = networks.sample_action(parts.actor, learner.actor, observation, key)
    q = networks.apply(parts.critic, learner.critic, observation, action)
    std = value_std(parts, learner, observation, action, q)
    return jnp.mean(losses.group_value(q), axis=0) + current_risk(parts, learner) * std


def value_std(
    parts: Parts,
    learner: Learner,
    observation: jax.Array,
    action: jax.Array,
    q: jax.Array,
) -> jax.Array:
    """sqrt(U(s, a)) `[B]` by the method; `q` `[N, M, B]` are the critics there."""
    if parts.method.local is not None:
        log_u = networks.apply(parts.unet, learner.unet, observation, action)
        return networks.to_std(log_u)
    if parts.method.direct is not None:
        values = uncertainty.Values(losses.group_value(q))
        return losses.safe_sqrt(parts.method.direct(values, parts.config.discount))
    return jnp.zeros(q.shape[-1])
