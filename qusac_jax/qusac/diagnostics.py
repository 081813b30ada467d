"""What tells a person how a run is doing; nothing here has an influence on training.

Axes: B batch, O observation size, A action size.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import (
    estimates,
    fitting_data,
    losses,
    model,
    multistep,
    networks,
    replay,
    uncertainty,
)
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.dynamics import Dynamics
from qusac_jax.qusac.state import TrainState
from qusac_jax.task import LARGEST_ACTION, Task

Metrics = dict[str, jax.Array]

# A transition with a larger reward counts as rewarded, unless the caller says otherwise.
REWARD_THRESHOLD = 0.5
# Batches of states that the statistics are taken over.
_NUM_BATCHES = 8


def diagnose(
    state: TrainState,
    key: chex.PRNGKey,
    *,
    config: Config,
    task: Task,
    reward_threshold: float = REWARD_THRESHOLD,
) -> Metrics:
    """What tells a person why a run explores or not, on a large batch of model states.

    States of D take their place as long as D_model is empty. Before the first step there are none,
    and the values are those of the observation 0.

    The scalars, by name:

    - `mean_q`, `mean_sqrt_u`, `max_sqrt_u`, `alpha`, `entropy`, `replay_size`, and `risk` (λ,
      before `relative_risk` divides it).
    - `sqrt_u_bound`: the largest sqrt(U) that the local uncertainty of recent batches allows;
      NaN without a U-net.
    - `critic_spread`: root of the mean variance over members; `critic_spread_centered`: the
      same without constant offsets between members.
    - `rewarded_share_replay` and, with a model, `rewarded_share_model`: in D and D_model.
    - With a model, `rewarded_predicted`: over at most B rewarded transitions of D, the sum of
      the predicted mean rewards divided by that of the true ones; 0 if there are none.
    - With a model, `noise_variance`: of the members' Gaussians, mean over members, targets and
      D; with a good model, about its held-out squared error.
    - With learned terminations, of the held-out part of D: `missed_ends`, the share of the ends
      that the model does not predict, and `false_ends`, the share of the other transitions for
      which it predicts one; 0 if there are none.

    Args:
        state: not donated.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes.
        reward_threshold: a transition with a larger reward counts as rewarded.

    Returns:
        The named scalars.
    """
    source: Any = state.replay if state.model_data is None else state.model_data
    key_real, key_model, key_values = jax.random.split(key, 3)
    count = _NUM_BATCHES * config.batch_size
    real = replay.sample(state.replay, key_real, count)
    batch = jax.tree.map(
        lambda of_model, of_d: jnp.where(source.size > 0, of_model, of_d),
        multistep.plain(replay.sample(source, key_model, count)),
        real,
    )
    parts = parts_lib.build(config, task.action_size)
    metrics = describe_values(parts, state.learner, batch.observation, key_values)
    metrics["rewarded_share_replay"] = rewarded_share(state.replay, reward_threshold)
    metrics["replay_size"] = state.replay.size
    if state.model_data is not None and state.dynamics is not None:
        metrics["rewarded_share_model"] = rewarded_share(state.model_data, reward_threshold)
        metrics["rewarded_predicted"] = _rewarded_predicted(
            state.dynamics, state.replay, config, task, reward_threshold
        )
        _, std = model.predict(
            state.dynamics, real.observation, real.action, config=config, task=task
        )
        metrics["noise_variance"] = jnp.mean(jnp.square(std))
        if config.dynamics.learn_termination:
            metrics |= _termination_errors(state.dynamics, state.replay, config, task)
    return metrics


def describe_values(
    parts: parts_lib.Parts,
    weights: parts_lib.Learner,
    observation: jax.Array,
    key: chex.PRNGKey,
) -> Metrics:
    """Statistics of Q and sqrt(U) at actions of the policy, see `diagnose`.

    Args:
        parts: of the configuration.
        weights: the critics, the U-net and the policy.
        observation: `[B, O]`.
        key: consumed.
    """
    action, log_prob = networks.sample_action(parts.actor, weights.actor, observation, key)
    q = networks.apply(parts.critic, weights.critic, observation, action)
    std = estimates.value_std(parts, weights, observation, action, q)
    value = losses.group_value(q)
    spread = uncertainty.ensemble_var(value)
    centered = uncertainty.ensemble_var(value - jnp.mean(value, axis=-1, keepdims=True))
    bound = jnp.sqrt(parts.config.largest_u(weights.local_max))
    return {
        "mean_q": jnp.mean(value),
        "mean_sqrt_u": jnp.mean(std),
        "max_sqrt_u": jnp.max(std),
        "sqrt_u_bound": bound if parts.config.uses_unet else jnp.float32(jnp.nan),
        "critic_spread": jnp.sqrt(jnp.mean(spread)),
        "critic_spread_centered": jnp.sqrt(jnp.mean(centered)),
        "alpha": jnp.exp(weights.log_temperature),
        "entropy": -jnp.mean(log_prob),
        "risk": jnp.asarray(estimates.scheduled_risk(parts, weights), jnp.float32),
    }


def values_at(
    state: TrainState,
    observation: jax.Array,
    action: jax.Array | None = None,
    *,
    config: Config,
    task: Task,
) -> tuple[jax.Array, jax.Array]:
    """What the agent expects of actions, and how uncertain it is about that.

    Args:
        state: not donated.
        observation: `[B, O]`.
        action: `[B, A]` in [-1, 1]; None for the policy's mean actions.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        Q `[B]`, the mean over critic groups of their least critic, and sqrt(U) `[B]`. Q holds the
        entropy bonus of later actions, of the size alpha times entropy per step.

    Raises:
        ValueError: if a shape is another.
    """
    count = np.shape(observation)[:1]
    for name, given, size in (
        ("observation", observation, task.observation_size),
        ("action", action, task.action_size),
    ):
        if given is not None and np.shape(given) != (*count, size):
            raise ValueError(f"{name} must have shape [B, {size}], got {np.shape(given)}")
    observation = jnp.asarray(observation, jnp.float32)
    parts = parts_lib.build(config, task.action_size)
    if action is None:
        action = networks.mean_action(parts.actor, state.actor, observation)
    action = jnp.asarray(action, jnp.float32)
    q = networks.apply(parts.critic, state.learner.critic, observation, action)
    std = estimates.value_std(parts, state.learner, observation, action, q)
    return jnp.mean(losses.group_value(q), axis=0), std


def finite_parts(state: TrainState) -> dict[str, jax.Array]:
    """Whether all numbers are finite, `[]` for each part of the learner, the dynamics and D.

    Of D, named "replay", also whether its actions are in [-1, 1].
    """
    dynamics = state.dynamics
    if dynamics is not None:  # bounds that are infinite do not bind, which is no divergence
        dynamics = dynamics._replace(least=None, most=None)
    data = state.replay.data
    parts = {**state.learner._asdict(), "dynamics": dynamics, "replay": data}
    finite = lambda part: [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(part)]
    found = {name: jnp.all(jnp.array([True, *finite(part)])) for name, part in parts.items()}
    found["replay"] &= jnp.all(jnp.abs(data.action) <= LARGEST_ACTION)
    return found


def rewarded_share(buffer: replay.Buffer, threshold: float) -> jax.Array:
    """Share of the valid transitions whose reward exceeds `threshold`, `[]` in [0, 1]."""
    return _share(_is_rewarded(buffer, threshold), buffer.size)


def rewarded_slots(
    buffer: replay.Buffer, threshold: float, count: int
) -> tuple[jax.Array, jax.Array]:
    """The first `count` slots whose reward exceeds `threshold`, and which of them there are.

    Args:
        buffer: any.
        threshold: reward units.
        count: static, length of the result.

    Returns:
        `[count]` slots, filled up with 0, and `[count]` bool, false where filled up.
    """
    rewarded = _is_rewarded(buffer, threshold)
    (slots,) = jnp.nonzero(rewarded, size=count, fill_value=0)
    return slots, jnp.arange(count) < jnp.sum(rewarded)


def _share(which: jax.Array, count: jax.Array) -> jax.Array:
    """How many there are, divided by `count`; 0 of none."""
    total = jnp.sum(which, dtype=jnp.float32)
    return total / jnp.maximum(count, 1).astype(jnp.float32)


def _is_rewarded(buffer: replay.Buffer, threshold: float) -> jax.Array:
    valid = jnp.arange(buffer.data.reward.shape[0]) < buffer.size
    return valid & (buffer.data.reward > threshold)


def _rewarded_predicted(
    dynamics: Dynamics, buffer: replay.Buffer, config: Config, task: Task, threshold: float
) -> jax.Array:
    # Sampled rewards cannot tell: where the model expects 0 with a large variance, some exceed any
    # threshold.
    slots, is_rewarded = rewarded_slots(buffer, threshold, config.batch_size)
    batch = jax.tree.map(lambda x: x[slots], buffer.data)
    mean, _ = model.predict(dynamics, batch.observation, batch.action, config=config, task=task)
    predicted = jnp.sum(jnp.where(is_rewarded, jnp.mean(mean[..., -1], axis=0), 0.0))
    actual = jnp.sum(jnp.where(is_rewarded, batch.reward, 0.0))
    return predicted / jnp.where(actual == 0.0, 1.0, actual)


def _termination_errors(
    dynamics: Dynamics, buffer: replay.Buffer, config: Config, task: Task
) -> Metrics:
    slots = fitting_data.holdout_slots(buffer, config.dynamics)
    is_there = slots < buffer.size
    batch = jax.tree.map(lambda x: x[slots], buffer.data)
    ends = model.termination(dynamics, config=config, task=task)
    predicted = ends(batch.observation, batch.action, batch.next_observation)

    def share_wrong(which: jax.Array) -> jax.Array:
        wrong = which & (predicted != batch.terminated)
        return _share(wrong, jnp.sum(which))

    return {
        "missed_ends": share_wrong(is_there & batch.terminated),
        "false_ends": share_wrong(is_there & ~batch.terminated),
    }
