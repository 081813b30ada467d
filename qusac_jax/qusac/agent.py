"""QU-SAC as pure functions: one step of Algorithm 2 from the pieces beside this module.

Written for one run; callers `vmap` over seeds. `config` and `task` are static under `jit`, and the
state is meant to be donated: its buffers are large and change in place.

Axes: N members, M critics per member, B batch, O observation size, D action size.
"""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import networks, replay, rollouts
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.replay import Buffer, Transition

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """What the agent must know of its environment; hashable."""

    observation_size: int  # O
    action_size: int  # D, every action in [-1, 1]
    termination: rollouts.Termination  # when an episode ends, for what the model predicts


class TrainState(NamedTuple):
    """Everything that a run needs to continue, but for the environment."""

    learner: learner_lib.Learner
    dynamics: dynamics_lib.Dynamics | None  # None without a model
    replay: Buffer  # D
    model_data: Buffer | None  # D_model
    member_data: Buffer | None  # D_1..D_N, leaves [N, ...]
    key: chex.PRNGKey


def init(key: chex.PRNGKey, *, config: Config, task: Task) -> TrainState:
    """Random networks and empty buffers.

    Args:
        key: consumed; one per run.
        config: hyperparameters.
        task: sizes and termination of the environment.

    Returns:
        The state before the first step.
    """
    key_learner, key_dynamics, key_run = jax.random.split(key, 3)
    sizes = (task.observation_size, task.action_size)
    dynamics = model_data = member_data = None
    if config.uses_model:
        dynamics = dynamics_lib.init(
            _dynamics_model(config, task),
            key_dynamics,
            action_size=task.action_size,
            learning_rate=config.dynamics_learning_rate,
        )
        capacity = model_capacity(config)
        model_data = replay.init(capacity, *sizes)
        if config.critic_data == "member":
            empty = replay.init(capacity, *sizes)
            member_data = jax.tree.map(
                lambda x: jnp.zeros((config.num_members, *x.shape), x.dtype), empty
            )
    return TrainState(
        learner=learner_lib.init(key_learner, config, *sizes),
        dynamics=dynamics,
        replay=replay.init(config.replay_capacity, *sizes),
        model_data=model_data,
        member_data=member_data,
        key=key_run,
    )


def model_capacity(config: Config) -> int:
    """Transitions that D_model and each D_i hold: L F k Δ, with L F rounded up to whole chunks."""
    chunks, size = rollouts.num_chunks(_num_rollouts(config), config.num_members)
    return chunks * size * config.rollout_length * config.retain_refreshes


def collect(
    state: TrainState,
    transition: Transition,
    observation: jax.Array,
    *,
    config: Config,
    task: Task,
) -> tuple[TrainState, jax.Array]:
    """Stores a transition and acts, without learning: a step of the warm-up.

    Args:
        state: donated.
        transition: unbatched, what the last action led to.
        observation: `[O]`, what to act on now.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The state and the next action `[D]`.
    """
    key, key_act = jax.random.split(state.key)
    state = state._replace(replay=_store(state.replay, transition), key=key)
    return state, act(state.learner.actor, observation, key_act, config=config, task=task)


def train_step(
    state: TrainState,
    transition: Transition,
    observation: jax.Array,
    *,
    config: Config,
    task: Task,
) -> tuple[TrainState, jax.Array, Metrics]:
    """Stores a transition, does G gradient updates, acts (Algorithm 2, lines 9-13).

    Args:
        state: donated. `refresh` must have filled the model's buffers.
        transition: unbatched, what the last action led to.
        observation: `[O]`, what to act on now.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The state, the next action `[D]` and the metrics of the last update, `[]` each.
    """
    key, key_update, key_act = jax.random.split(state.key, 3)
    state = state._replace(replay=_store(state.replay, transition), key=key)

    predict = _prediction(state.dynamics, config, task)

    def update(learner: learner_lib.Learner, key: chex.PRNGKey):
        key_batch, key_update = jax.random.split(key)
        batches = _sample_batches(state, key_batch, config)
        return learner_lib.update(learner, *batches, predict, key_update, config=config)

    keys = jax.random.split(key_update, config.updates_per_step)
    learner, metrics = jax.lax.scan(update, state.learner, keys)
    state = state._replace(learner=learner)
    action = act(learner.actor, observation, key_act, config=config, task=task)
    return state, action, jax.tree.map(lambda x: x[-1], metrics)


def refresh(
    state: TrainState, *, config: Config, task: Task
) -> tuple[TrainState, dynamics_lib.FitReport]:
    """Fits the dynamics on D and fills the model's buffers (Algorithm 2, lines 5-8).

    Called every F environment steps, by the host: under `vmap` a `cond` would run it every step.

    Args:
        state: donated; its replay buffer holds at least two transitions.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes and termination.

    Returns:
        The state and how the fit went.

    Raises:
        ValueError: if the agent has no model.
    """
    key, key_fit, key_roll = jax.random.split(state.key, 3)
    state, report = fit_dynamics(state._replace(key=key), key_fit, config=config, task=task)
    return refill(state, key_roll, config=config, task=task), report


def fit_dynamics(
    state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task
) -> tuple[TrainState, dynamics_lib.FitReport]:
    """The first half of `refresh`: fits the dynamics on D, with `key` consumed."""
    if state.dynamics is None:
        raise ValueError("there are no dynamics: critic_data 'replay' trains without a model")
    dynamics, report = dynamics_lib.fit(
        _dynamics_model(config, task),
        state.dynamics,
        state.replay,
        key,
        batch_size=config.batch_size,
        learning_rate=config.dynamics_learning_rate,
        patience=config.fit_patience,
        improvement=config.fit_improvement,
        max_epochs=config.fit_max_epochs,
        max_steps=config.fit_max_steps,
        holdout_every=config.holdout_every,
        normalize_inputs=config.normalize_inputs,
        nll_beta=config.nll_beta,
        stop_per_target=config.fit_stop_per_target,
        ema_decay=config.fit_ema_decay,
    )
    return state._replace(dynamics=dynamics), report


def refill(state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task) -> TrainState:
    """The second half of `refresh`: rolls the dynamics out into D_model and D_1..D_N."""
    if state.dynamics is None or state.model_data is None:
        raise ValueError("there are no dynamics: critic_data 'replay' trains without a model")

    def policy(observation: jax.Array, key: chex.PRNGKey) -> jax.Array:
        return act(state.learner.actor, observation, key, config=config, task=task)

    model_data, member_data = rollouts.refill(
        _dynamics_model(config, task),
        state.dynamics,
        policy,
        task.termination,
        state.replay,
        state.model_data,
        state.member_data,
        key,
        num_rollouts=_num_rollouts(config),
        length=config.rollout_length,
    )
    return state._replace(model_data=model_data, member_data=member_data)


def act(
    actor: networks.Params,
    observation: jax.Array,
    key: chex.PRNGKey | None = None,
    *,
    config: Config,
    task: Task,
) -> jax.Array:
    """The policy's action, `[..., O] -> [..., D]`: drawn with `key`, the mean action without."""
    module = networks.Actor(config.actor_hidden, task.action_size)
    if key is None:
        return networks.mean_action(module, actor, observation)
    return networks.sample_action(module, actor, observation, key)[0]


def predict(
    dynamics: dynamics_lib.Dynamics,
    observation: jax.Array,
    action: jax.Array,
    *,
    config: Config,
    task: Task,
) -> tuple[jax.Array, jax.Array]:
    """The members' Gaussians over (s', r), as `qusac_jax.qusac.dynamics.predict` gives them.

    Args:
        dynamics: the members' weights.
        observation: `[B, O]` or `[N, B, O]`.
        action: `[B, D]` or `[N, B, D]`.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes.

    Returns:
        Mean and standard deviation, `[N, B, O + 1]` each, the reward last.
    """
    return dynamics_lib.predict(_dynamics_model(config, task), dynamics, observation, action)


def finite_parts(state: TrainState) -> dict[str, jax.Array]:
    """Whether all numbers are finite, `[]` for each part of the learner and for the dynamics."""
    parts = {**state.learner._asdict(), "dynamics": state.dynamics}
    finite = lambda part: [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(part)]
    return {name: jnp.all(jnp.array([True, *finite(part)])) for name, part in parts.items()}


def diagnose(state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task) -> Metrics:
    """What tells a person why a run explores or not, on a large batch of model states.

    States of D take their place as long as D_model is empty. Before the first step there are none,
    and the values are those of the observation 0.

    Args:
        state: not donated.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        Named scalars: `mean_q`, `mean_sqrt_u`, `max_sqrt_u`, `sqrt_u_bound` (the largest sqrt(U)
        that the local uncertainty of recent batches allows; NaN without a U-net), `critic_spread`
        (root of the mean variance over members), `alpha`, `entropy`, `rewarded_share_replay`,
        `replay_size`, and with a model `rewarded_share_model`, `rewarded_predicted` (the part of
        the reward of rewarded transitions in D, of at most B of them, that the model predicts in
        the mean; 0 where there are none) and `noise_variance` (of the members' Gaussians, mean over
        members, targets and D: with a good model about its held-out squared error).
    """
    source = state.replay if state.model_data is None else state.model_data
    key_batch, key_values = jax.random.split(key)
    count = 8 * config.batch_size
    real = replay.sample(state.replay, key_batch, count)
    batch = jax.tree.map(
        lambda model, real: jnp.where(source.size > 0, model, real),
        replay.sample(source, key_batch, count),
        real,
    )
    metrics = learner_lib.describe_values(
        state.learner,
        batch.observation,
        key_values,
        action_size=batch.action.shape[-1],
        config=config,
    )
    share = lambda buffer: replay.rewarded_share(buffer, config.reward_threshold)
    metrics["rewarded_share_replay"] = share(state.replay)
    metrics["replay_size"] = state.replay.size
    if state.model_data is not None and state.dynamics is not None:
        metrics["rewarded_share_model"] = share(state.model_data)
        metrics["rewarded_predicted"] = _rewarded_predicted(
            state.dynamics, state.replay, config, task
        )
        _, std = predict(state.dynamics, real.observation, real.action, config=config, task=task)
        metrics["noise_variance"] = jnp.mean(jnp.square(std))
    return metrics


def _rewarded_predicted(
    dynamics: dynamics_lib.Dynamics, buffer: Buffer, config: Config, task: Task
) -> jax.Array:
    # Sampled rewards cannot tell: where the model expects 0 with a large variance, some exceed any
    # threshold.
    slots, is_rewarded = replay.rewarded_slots(buffer, config.reward_threshold, config.batch_size)
    batch = jax.tree.map(lambda x: x[slots], buffer.data)
    mean, _ = predict(dynamics, batch.observation, batch.action, config=config, task=task)
    predicted = jnp.sum(jnp.where(is_rewarded, jnp.mean(mean[..., -1], axis=0), 0.0))
    actual = jnp.sum(jnp.where(is_rewarded, batch.reward, 0.0))
    return predicted / jnp.where(jnp.any(is_rewarded), actual, 1.0)


def _prediction(
    dynamics: dynamics_lib.Dynamics | None, config: Config, task: Task
) -> learner_lib.Predict | None:
    """The members' mean predictions as the learner reads them."""
    if dynamics is None:
        return None

    def predict_ends(observation: jax.Array, action: jax.Array):
        mean, _ = predict(dynamics, observation, action, config=config, task=task)
        next_observation, reward = mean[..., :-1], mean[..., -1]
        per_member = lambda x: jnp.broadcast_to(x, (config.num_members, *x.shape))
        terminated = task.termination(per_member(observation), per_member(action), next_observation)
        return next_observation, reward, terminated

    return predict_ends


def _sample_batches(
    state: TrainState, key: chex.PRNGKey, config: Config
) -> tuple[Transition, Transition]:
    """One batch per critic group `[N, B, ...]`, and one for U-net and actor `[B, ...]`."""
    key_critic, key_policy = jax.random.split(key)
    size = config.batch_size
    shared = state.replay if state.model_data is None else state.model_data
    if state.member_data is not None:
        keys = jax.random.split(key_critic, config.num_members)
        critic = jax.vmap(lambda b, k: replay.sample(b, k, size))(state.member_data, keys)
    else:
        critic = jax.tree.map(lambda x: x[None], replay.sample(shared, key_critic, size))
    return critic, replay.sample(shared, key_policy, size)


def _store(buffer: Buffer, transition: Transition) -> Buffer:
    return replay.add(buffer, jax.tree.map(lambda x: jnp.asarray(x)[None], transition))


def _dynamics_model(config: Config, task: Task) -> networks.Dynamics:
    return networks.Dynamics(
        config.dynamics_hidden,
        task.observation_size,
        config.num_members,
        config.dynamics_init_scale,
        config.reward_prior_scale,
    )


def _num_rollouts(config: Config) -> int:
    return config.rollouts_per_step * config.fit_every
