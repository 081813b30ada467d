"""Actor, critics, U-net and temperature, and one gradient update of them all.

Axes: N members (critic groups), M critics per member, B batch, O observation size, D action size,
K actions per next state.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import losses, networks, replay, uncertainty
from qusac_jax.qusac.config import Config

# What each member of the model expects after (observation [B, O], action [B, D]): the next
# observation [N, B, O], the reward [N, B], and whether the episode ends there [N, B].
Predict = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


class Learner(NamedTuple):
    """Parameters, target parameters and optimiser states."""

    actor: networks.Params
    critic: networks.Params  # leaves [N, M, ...]
    target_critic: networks.Params
    unet: networks.Params  # leaves [num_unets, ...]; None for methods without a U-net
    target_unet: networks.Params
    log_temperature: jax.Array  # [] log α
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    unet_opt: optax.OptState
    temperature_opt: optax.OptState
    local_max: jax.Array  # [] running maximum of the local uncertainty that is propagated


class _Modules(NamedTuple):
    actor: networks.Actor
    critic: networks.Critic
    unet: networks.UNet


class _Optimizers(NamedTuple):
    actor: optax.GradientTransformation
    critic: optax.GradientTransformation
    unet: optax.GradientTransformation
    temperature: optax.GradientTransformation


def _modules(config: Config, action_size: int) -> _Modules:
    return _Modules(
        actor=networks.Actor(config.actor_hidden, action_size),
        critic=networks.Critic(
            config.critic_hidden, config.num_groups, config.num_critics, config.critic_init_gain
        ),
        unet=networks.UNet(config.unet_hidden, config.num_unets, config.unet_init_gain),
    )


def _optimizers(config: Config) -> _Optimizers:
    return _Optimizers(
        actor=optax.adam(config.actor_learning_rate),
        critic=optax.adam(config.critic_learning_rate),
        unet=optax.adam(config.unet_learning_rate),
        temperature=optax.adam(config.temperature_learning_rate),
    )


def init(key: chex.PRNGKey, config: Config, observation_size: int, action_size: int) -> Learner:
    """Random parameters, targets equal to them."""
    key_actor, key_critic, key_unet = jax.random.split(key, 3)
    modules, optimizers = _modules(config, action_size), _optimizers(config)
    observation, action = jnp.zeros((1, observation_size)), jnp.zeros((1, action_size))
    actor = modules.actor.init(key_actor, observation)
    critic = modules.critic.init(key_critic, observation, action)
    unet: networks.Params = None
    if config.uses_unet:
        unet = modules.unet.init(key_unet, observation, action)
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    return Learner(
        actor=actor,
        critic=critic,
        target_critic=jax.tree.map(jnp.copy, critic),
        unet=unet,
        target_unet=jax.tree.map(jnp.copy, unet),
        log_temperature=log_temperature,
        actor_opt=optimizers.actor.init(actor),
        critic_opt=optimizers.critic.init(critic),
        unet_opt=optimizers.unet.init(unet),
        temperature_opt=optimizers.temperature.init(log_temperature),
        local_max=jnp.zeros(()),
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

    Args:
        learner: what to update.
        critic_batch: `[N, B, ...]`, one batch per critic group.
        policy_batch: `[B, ...]` for the U-net and the actor.
        predict: the model, read by `pombu` and `exact_ube` only; None without one.
        key: consumed.
        config: hyperparameters.

    Returns:
        The new learner, and losses and means as named scalars.
    """
    key_unet, key_critic, key_actor = jax.random.split(key, 3)
    optimizers = _optimizers(config)
    metrics: dict[str, jax.Array] = {}

    if config.uses_unet:
        learner, unet_metrics = _update_unet(learner, policy_batch, predict, key_unet, config)
        metrics |= unet_metrics

    learner, metrics["critic_loss"] = _update_critic(learner, critic_batch, key_critic, config)

    learner = learner._replace(
        target_critic=optax.incremental_update(
            learner.critic, learner.target_critic, config.target_rate
        ),
        target_unet=optax.incremental_update(
            learner.unet, learner.target_unet, config.unet_target_rate
        ),
    )

    learner, log_prob, actor_metrics = _update_actor(learner, policy_batch, key_actor, config)
    metrics |= actor_metrics

    action_size = policy_batch.action.shape[-1]
    target = -float(action_size) if config.target_entropy is None else config.target_entropy
    grad = jax.grad(losses.temperature_loss)(learner.log_temperature, log_prob, target)
    step, temperature_opt = optimizers.temperature.update(grad, learner.temperature_opt)
    learner = learner._replace(
        log_temperature=optax.apply_updates(learner.log_temperature, step),
        temperature_opt=temperature_opt,
    )
    return learner, metrics | {"alpha": jnp.exp(learner.log_temperature)}


def _update_critic(
    learner: Learner, batch: replay.Transition, key: chex.PRNGKey, config: Config
) -> tuple[Learner, jax.Array]:
    modules = _modules(config, batch.action.shape[-1])
    next_action, next_log_prob = networks.sample_action(
        modules.actor, learner.actor, batch.next_observation, key
    )
    target = losses.critic_target(
        batch.reward,
        batch.terminated,
        networks.apply(modules.critic, learner.target_critic, batch.next_observation, next_action),
        next_log_prob,
        jnp.exp(learner.log_temperature),
        config.discount,
    )

    def loss(params: networks.Params) -> jax.Array:
        q = networks.apply(modules.critic, params, batch.observation, batch.action)
        return losses.critic_loss(q, target)

    value, grads = jax.value_and_grad(loss)(learner.critic)
    updates, opt = _optimizers(config).critic.update(grads, learner.critic_opt)
    critic = optax.apply_updates(learner.critic, updates)
    return learner._replace(critic=critic, critic_opt=opt), value


def _update_unet(
    learner: Learner,
    batch: replay.Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
    config: Config,
) -> tuple[Learner, dict[str, jax.Array]]:
    key_next, key_local = jax.random.split(key)
    modules = _modules(config, batch.action.shape[-1])
    local = propagated_uncertainty(learner, batch, predict, key_local, config)
    local_max = jnp.maximum(jnp.max(local), learner.local_max * (1.0 - config.local_max_decay))
    next_action, _ = networks.sample_action(
        modules.actor, learner.actor, batch.next_observation, key_next
    )
    next_log_u = networks.apply(
        modules.unet, learner.target_unet, batch.next_observation, next_action
    )
    next_u = networks.to_variance(next_log_u)
    target = losses.unet_target(local, batch.terminated, next_u, config.discount)
    if config.clip_u:
        # The fixed point U = E[sum of γ^2t local] lies below this cap, so it stays where it is.
        target = jnp.minimum(target, config.u_per_local * local_max)

    def loss(params: networks.Params) -> jax.Array:
        log_u = networks.apply(modules.unet, params, batch.observation, batch.action)
        return losses.unet_loss(log_u, target)

    value, grads = jax.value_and_grad(loss)(learner.unet)
    updates, opt = _optimizers(config).unet.update(grads, learner.unet_opt)
    learner = learner._replace(
        unet=optax.apply_updates(learner.unet, updates), unet_opt=opt, local_max=local_max
    )
    return learner, {"unet_loss": value, "local_uncertainty": jnp.mean(local)}


def propagated_uncertainty(
    learner: Learner,
    batch: replay.Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
    config: Config,
) -> jax.Array:
    """What the method's UBE propagates at (s, a): γ² times its local uncertainty (plus rewards).

    The variance of the members' mean rewards is added for `pombu` and `exact_ube` (appendix B.1);
    the critics' variance that `upper_bound` uses contains it already. Where a member expects the
    episode to end, its next value is 0, whatever the critics say.

    Args:
        learner: the critics and the policy.
        batch: `[B, ...]`.
        predict: the model, for `pombu` and `exact_ube`.
        key: consumed.
        config: hyperparameters with a method that trains a U-net.

    Returns:
        `[B]`, at least 0.
    """
    modules = _modules(config, batch.action.shape[-1])
    gamma2 = config.discount**2
    if config.method == "upper_bound":
        q = networks.apply(modules.critic, learner.critic, batch.observation, batch.action)
        return gamma2 * uncertainty.ensemble_var(losses.group_value(q))
    if predict is None:
        raise ValueError(f"method {config.method!r} needs the dynamics, got None")
    next_observation, reward, terminated = predict(batch.observation, batch.action)
    samples = config.gap_samples if config.method == "exact_ube" else 1
    next_observation = jnp.broadcast_to(
        next_observation[:, None],
        (config.num_members, samples, *next_observation.shape[1:]),
    )  # [N, K, B, O]
    # The same noise for every member: what members differ in is then due to their next states and
    # not to the policy's randomness, which is no epistemic uncertainty.
    action = jax.vmap(lambda o: networks.sample_action(modules.actor, learner.actor, o, key)[0])(
        next_observation
    )
    flat = lambda x: x.reshape(-1, x.shape[-1])
    next_q = networks.apply(modules.critic, learner.critic, flat(next_observation), flat(action))
    next_q = losses.group_value(next_q)
    next_q = next_q.reshape(-1, *next_observation.shape[:-1])  # [groups, N, K, B]
    next_q = jnp.where(terminated[:, None], 0.0, next_q)
    if config.method == "pombu":
        local = uncertainty.pombu(jnp.mean(next_q, axis=0)[:, 0])
    else:
        local = uncertainty.exact_ube(next_q)
    return uncertainty.member_variance(reward) + gamma2 * local


def _value_std(
    learner: Learner,
    modules: _Modules,
    observation: jax.Array,
    action: jax.Array,
    q: jax.Array,
    config: Config,
) -> jax.Array:
    """sqrt(U(s, a)) `[B]` by the method; `q` `[N, M, B]` are the critics there."""
    if config.uses_unet:
        log_u = networks.apply(modules.unet, learner.unet, observation, action)
        return networks.to_std(log_u)
    if config.method == "ensemble_var":
        return losses.safe_sqrt(uncertainty.ensemble_var(losses.group_value(q)))
    return jnp.zeros(q.shape[-1])


def _update_actor(
    learner: Learner, batch: replay.Transition, key: chex.PRNGKey, config: Config
) -> tuple[Learner, jax.Array, dict[str, jax.Array]]:
    modules = _modules(config, batch.action.shape[-1])

    def loss(params: networks.Params):
        action, log_prob = networks.sample_action(modules.actor, params, batch.observation, key)
        q = networks.apply(modules.critic, learner.critic, batch.observation, action)
        std = _value_std(learner, modules, batch.observation, action, q, config)
        temperature = jnp.exp(learner.log_temperature)
        value = losses.actor_loss(q, std, log_prob, temperature, config.risk)
        metrics = {
            "actor_loss": value,
            "mean_q": jnp.mean(losses.group_value(q)),
            "mean_sqrt_u": jnp.mean(std),
        }
        return value, (log_prob, metrics)

    grads, (log_prob, metrics) = jax.grad(loss, has_aux=True)(learner.actor)
    updates, opt = _optimizers(config).actor.update(grads, learner.actor_opt)
    actor = optax.apply_updates(learner.actor, updates)
    return learner._replace(actor=actor, actor_opt=opt), log_prob, metrics


def describe_values(
    learner: Learner,
    observation: jax.Array,
    key: chex.PRNGKey,
    *,
    action_size: int,
    config: Config,
) -> dict[str, jax.Array]:
    """Statistics of Q and sqrt(U) at actions of the policy, see `agent.diagnose`."""
    modules = _modules(config, action_size)
    action, log_prob = networks.sample_action(modules.actor, learner.actor, observation, key)
    q = networks.apply(modules.critic, learner.critic, observation, action)
    std = _value_std(learner, modules, observation, action, q, config)
    spread = uncertainty.ensemble_var(losses.group_value(q))
    bound = jnp.sqrt(config.u_per_local * learner.local_max)
    return {
        "mean_q": jnp.mean(losses.group_value(q)),
        "mean_sqrt_u": jnp.mean(std),
        "max_sqrt_u": jnp.max(std),
        "sqrt_u_bound": bound if config.uses_unet else jnp.full((), jnp.nan),
        "critic_spread": jnp.sqrt(jnp.mean(spread)),
        "alpha": jnp.exp(learner.log_temperature),
        "entropy": -jnp.mean(log_prob),
    }
