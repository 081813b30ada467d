"""One gradient update of actor, critics, U-net and temperature.

Axes: N members (critic groups), M critics per member, B batch, O observation size, A action size.
"""

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import losses, multistep, networks, regularizers
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.estimates import Predict, current_risk, propagated_uncertainty, value_std
from qusac_jax.qusac.parts import Learner, Parts, build
from qusac_jax.task import Transition


def update(
    learner: Learner,
    critic_batch: multistep.Steps,
    policy_batch: Transition | multistep.Ahead,
    predict: Predict | None,
    key: chex.PRNGKey,
    *,
    config: Config,
    counts: jax.Array | bool = True,
) -> tuple[Learner, dict[str, jax.Array]]:
    """One gradient update: U-net, critics, targets, actor, temperature, in this order.

    Algorithm 2, lines 11-13, and Algorithm 3, lines 7-9.

    Args:
        learner: what to update.
        critic_batch: `[N, B, ...]`, one batch per critic group, `config.num_real` steps of D
            first.
        policy_batch: `[B, ...]` for the U-net and the actor, `config.num_real` transitions of D
            first; `Ahead` for a U-net that looks several steps ahead.
        predict: the model, for methods that ask it; None without one.
        key: consumed.
        config: hyperparameters.
        counts: `[]` bool, whether `risk_schedule` counts it.

    Returns:
        The new learner, and losses and means as named scalars.
    """
    key_unet, key_critic, key_actor = jax.random.split(key, 3)
    parts = build(config, policy_batch.action.shape[-1])
    metrics: dict[str, jax.Array] = {}
    if config.uses_unet:
        key_unet, key_local = jax.random.split(key_unet)
        unet_batch = _ahead(parts, learner, policy_batch, predict, key_local)
        learner, unet_metrics = _update_unet(parts, learner, unet_batch, key_unet)
        metrics |= unet_metrics
    learner, metrics["critic_loss"] = _update_critic(parts, learner, critic_batch, key_critic)
    learner = _update_targets(parts, learner)
    learner, log_prob, actor_metrics = _update_actor(
        parts, learner, policy_batch.observation, key_actor
    )
    learner = _update_temperature(parts, learner, log_prob)
    learner = learner._replace(num_updates=learner.num_updates + jnp.asarray(counts, jnp.int32))
    return learner, metrics | actor_metrics | {"alpha": jnp.exp(learner.log_temperature)}


def _update_critic(
    parts: Parts, learner: Learner, batch: multistep.Steps, key: chex.PRNGKey
) -> tuple[Learner, jax.Array]:
    config = parts.config
    next_action, next_log_prob = networks.sample_action(
        parts.actor, learner.actor, batch.next_observation, key
    )
    target = losses.critic_target(
        batch.reward,
        multistep.discounts(batch, config.discount),
        networks.apply(parts.critic, learner.target_critic, batch.next_observation, next_action),
        next_log_prob,
        jnp.exp(learner.log_temperature),
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
    return config.regularizer_weight * regularizers.find(regularizer)(q, is_real)


def _ahead(
    parts: Parts,
    learner: Learner,
    batch: Transition | multistep.Ahead,
    predict: Predict | None,
    key: chex.PRNGKey,
) -> multistep.Ahead:
    """What the U-net learns from: steps of rollouts, and single ones where none follows."""

    def single(batch: Transition) -> multistep.Ahead:
        local = propagated_uncertainty(parts, learner, batch, predict, key)
        return multistep.ahead(batch, local, 1, parts.config.discount)

    if isinstance(batch, Transition):
        return single(batch)
    num_real = parts.config.num_real
    if not num_real:
        return batch
    real = jax.tree.map(lambda x: x[:num_real], multistep.plain(batch))
    return jax.tree.map(
        lambda known, x: jnp.concatenate([known, x[num_real:]]), single(real), batch
    )


def _update_unet(
    parts: Parts,
    learner: Learner,
    batch: multistep.Ahead,
    key: chex.PRNGKey,
) -> tuple[Learner, dict[str, jax.Array]]:
    config = parts.config
    # No U exceeds what the largest mean over several steps would come to in the long run.
    local_max = jnp.maximum(
        jnp.max(batch.per_step), learner.local_max * (1.0 - config.local_max_decay)
    )
    next_action, _ = networks.sample_action(parts.actor, learner.actor, batch.led_to, key)
    next_log_u = networks.apply(parts.unet, learner.target_unet, batch.led_to, next_action)
    unit = parts.method.unit
    next_u = unit * networks.to_variance(next_log_u)
    discounts = multistep.discounts(batch, config.discount**2)
    target = losses.unet_target(batch.propagated, discounts, next_u)
    if config.clip_u:
        # The solution of the UBE, E[sum of γ^2t local], lies below this cap.
        target = jnp.minimum(target, config.largest_u(local_max))

    def loss(params: networks.Params) -> jax.Array:
        log_u = networks.apply(parts.unet, params, batch.observation, batch.action)
        return losses.unet_loss(log_u, target / unit)

    value, grads = jax.value_and_grad(loss)(learner.unet)
    updates, opt = parts.unet_optimizer.update(grads, learner.unet_opt)
    learner = learner._replace(
        unet=optax.apply_updates(learner.unet, updates), unet_opt=opt, local_max=local_max
    )
    return learner, {"unet_loss": value, "local_uncertainty": jnp.mean(batch.per_step)}


def _update_targets(parts: Parts, learner: Learner) -> Learner:
    follow = lambda new, old: optax.incremental_update(new, old, parts.config.target_rate)
    return learner._replace(
        target_critic=follow(learner.critic, learner.target_critic),
        target_unet=follow(learner.unet, learner.target_unet),
    )


def _update_actor(
    parts: Parts, learner: Learner, observation: jax.Array, key: chex.PRNGKey
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    risk = current_risk(parts, learner)

    def loss(params: networks.Params):
        action, log_prob = networks.sample_action(parts.actor, params, observation, key)
        q = networks.apply(parts.critic, learner.critic, observation, action)
        std = value_std(parts, learner, observation, action, q)
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


def _update_temperature(parts: Parts, learner: Learner, log_prob: jax.Array) -> Learner:
    target = parts.config.target_entropy
    target = -float(parts.actor.action_size) if target is None else target
    grad = jax.grad(losses.temperature_loss)(learner.log_temperature, log_prob, target)
    step, opt = parts.temperature_optimizer.update(grad, learner.temperature_opt)
    return learner._replace(
        log_temperature=optax.apply_updates(learner.log_temperature, step), temperature_opt=opt
    )
