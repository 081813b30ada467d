"""One function per equation of QU-SAC's update; losses are means over the batch.

Axes: N members, M critics per member, B batch.
"""

import jax
import jax.numpy as jnp

# Below it the square root is taken as constant: it has no slope at 0.
_FLAT_BELOW = 1e-12


def symlog(x: jax.Array) -> jax.Array:
    """sign(x) log(|x| + 1) (Hafner et al., 2023)."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def safe_sqrt(x: jax.Array) -> jax.Array:
    """Square root with gradient 0 instead of infinity at 0."""
    positive = x > _FLAT_BELOW
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def group_value(q: jax.Array) -> jax.Array:
    """Q_i = min_j Q_ij (section 5.4), `[N, M, B] -> [N, B]`."""
    return jnp.min(q, axis=-2)


def critic_target(
    reward: jax.Array,
    discount: jax.Array,
    next_q: jax.Array,
    next_log_prob: jax.Array,
    temperature: jax.Array | float,
) -> jax.Array:
    """y = r + γ (min_j Q_ij(s', a') - α log π(a' | s')), the target of eq. (10), loss_q.

    Args:
        reward: `[N, B]`.
        discount: `[N, B]` γ, or γ^n after n steps; 0 where the task ended, so that nothing is
            bootstrapped there. A time limit is no end.
        next_q: `[N, M, B]` target critics at a' drawn from the policy at s'.
        next_log_prob: `[N, B]` of those actions.
        temperature: α.

    Returns:
        `[N, B]`, through which no gradient flows.
    """
    soft_value = group_value(next_q) - temperature * next_log_prob
    return jax.lax.stop_gradient(reward + discount * soft_value)


def critic_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """Squared Bellman residual, eq. (10), loss_q: mean over the batch, summed over N x M critics.

    Args:
        q: `[N, M, B]`.
        target: `[N, B]`.

    Returns:
        `[]`.
    """
    return jnp.sum(jnp.mean(jnp.square(q - target[..., None, :]), axis=-1))


def unet_target(local: jax.Array, discount: jax.Array, next_u: jax.Array) -> jax.Array:
    """z = local + γ² U(s', a'), the target of eq. (13), loss_u.

    Args:
        local: `[B]` what is propagated: γ² times the local uncertainty, plus the variance of the
            reward where it is not part of that. Over n steps, the sum of γ^2i of it.
        discount: `[B]` γ², or γ^2n after n steps; 0 where the task ended, so that nothing is
            bootstrapped there.
        next_u: `[B]` U of the target networks at a' drawn at s'.

    Returns:
        `[B]`, through which no gradient flows.
    """
    return jax.lax.stop_gradient(local + discount * next_u)


def unet_loss(log_u: jax.Array, target: jax.Array) -> jax.Array:
    """(symlog(z) - softplus output)², eq. (13), loss_u: mean over the batch.

    Where the targets of a pair differ, it is least at symexp of the mean of symlog(z), which is
    below the mean of z that a UBE has: 13.2 for 1 and 100, whose mean is 50.5.

    Args:
        log_u: `[B]`, the U-net's last linear output; its softplus is symlog(U).
        target: `[B]` z.

    Returns:
        `[]`.
    """
    return jnp.mean(jnp.square(symlog(target) - jax.nn.softplus(log_u)))


def actor_loss(
    q: jax.Array,
    std: jax.Array,
    log_prob: jax.Array,
    temperature: jax.Array | float,
    risk: jax.Array | float,
) -> jax.Array:
    """Minus the objective of eq. (14), actor_loss: mean_i min_j Q_ij + λ sqrt(U) - α log π.

    Args:
        q: `[N, M, B]` at an action reparametrized from the policy.
        std: `[B]` sqrt(U) there.
        log_prob: `[B]`.
        temperature: α.
        risk: λ.

    Returns:
        `[]`.
    """
    mean_q = jnp.mean(group_value(q), axis=0)
    return -jnp.mean(mean_q + risk * std - temperature * log_prob)


def temperature_loss(
    log_temperature: jax.Array, log_prob: jax.Array, target_entropy: float
) -> jax.Array:
    """-log α (log π + target entropy): raises α while the policy's entropy is below target."""
    return -log_temperature * jax.lax.stop_gradient(jnp.mean(log_prob) + target_entropy)
