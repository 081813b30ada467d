"""What the agent thinks of pairs (s, a): U, what its UBE propagates, and Q + λ sqrt(U).

Axes: N members (critic groups), M critics per member, B batch, O observation size, A action size,
J actions per next state.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import losses, networks, uncertainty
from qusac_jax.qusac import risk as risk_lib
from qusac_jax.qusac.parts import Learner, Parts
from qusac_jax.task import Transition

# Below, everything is known and what is left is rounding.
_LEAST_STD = 1e-4


class Expectation(NamedTuple):
    """What each member of the model expects after B pairs (s, a)."""

    next_observation: jax.Array  # [N, B, O]
    change: jax.Array  # [N, B, O] of the observation, in deviations of D
    noise: jax.Array  # [N, B, O] standard deviation of that
    reward: jax.Array  # [N, B]
    terminated: jax.Array  # [N, B] whether the episode ends there


# Of (observation [B, O], action [B, A]).
Predict = Callable[[jax.Array, jax.Array], Expectation]


def propagated_uncertainty(
    parts: Parts,
    learner: Learner,
    batch: Transition,
    predict: Predict | None,
    key: chex.PRNGKey,
) -> jax.Array:
    """What the method's UBE propagates at (s, a): γ² times its local uncertainty (plus rewards).

    Args:
        parts: of a method that trains a U-net.
        learner: the critics and the policy.
        batch: `[B, ...]`.
        predict: the model, for methods that ask it.
        key: consumed.

    Returns:
        `[B]`, at least 0.

    Raises:
        ValueError: if the method has nothing to propagate, or asks a model that is not given.
    """
    method, discount = parts.method, parts.config.discount
    if method.local is None:
        raise ValueError(f"method {parts.config.method!r} propagates nothing; it needs no U-net")
    if not method.asks_model:
        q = networks.apply(parts.critic, learner.critic, batch.observation, batch.action)
        return method.local(uncertainty.Values(losses.group_value(q)), discount)
    if predict is None:
        raise ValueError(f"method {parts.config.method!r} needs the dynamics, got None")
    values = _expected(parts, learner, batch, predict, key)
    return method.local(values, discount)


def _expected(
    parts: Parts,
    learner: Learner,
    batch: Transition,
    predict: Predict,
    key: chex.PRNGKey,
) -> uncertainty.Values:
    """What each member expects to come next, and the values there if the method reads them.

    Where a member expects the episode to end, its next value is 0, whatever the critics say.
    """
    expected = predict(batch.observation, batch.action)
    without_values = uncertainty.Values(
        reward=expected.reward, change=expected.change, noise=expected.noise
    )
    if not parts.method.reads_next_values:
        return without_values
    next_observation = expected.next_observation
    num_members, *shape = next_observation.shape
    next_observation = jnp.broadcast_to(
        next_observation[:, None], (num_members, parts.config.actions_drawn, *shape)
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
    return without_values._replace(next_q=next_q)


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
        return math.sqrt(parts.method.unit) * networks.to_std(log_u)
    if parts.method.direct is not None:
        values = uncertainty.Values(losses.group_value(q))
        return losses.safe_sqrt(parts.method.direct(values))
    return jnp.zeros(q.shape[-1], q.dtype)


def scheduled_risk(parts: Parts, learner: Learner) -> jax.Array | float:
    """λ at this point of the run, `[]`, eq. (9), policy_opt."""
    config = parts.config
    if config.risk_schedule is None:
        return config.risk
    return jnp.asarray(risk_lib.parse(config.risk_schedule)(learner.num_updates))


def current_risk(parts: Parts, learner: Learner) -> jax.Array | float:
    """What sqrt(U) is multiplied by at this point of the run, `[]`: λ, or in other units.

    With `relative_risk` it is λ divided by the largest sqrt(U) that the local uncertainty of recent
    batches allows. What is known least is then worth λ, in units of value, however little is left
    to know, and can be weighed against rewards and the costs of actions.
    """
    config = parts.config
    risk = scheduled_risk(parts, learner)
    if not config.relative_risk:
        return risk
    largest = jnp.sqrt(config.largest_u(learner.local_max))
    return risk / jnp.maximum(largest, _LEAST_STD)
