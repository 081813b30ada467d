"""QU-SAC as pure functions: the verbs that Algorithms 2 and 3 are made of.

`init` makes a state, `observe` stores transitions, `refresh` fits the dynamics and rolls them out,
`learn` does the gradient updates, `act` draws an action. `train_step` is observe, learn and act in
one, `collect` is observe and act: one call to the device for each environment step. `schedule`
says which of them is due.

Written for one run; callers `vmap` over seeds. `config` and `task` are static under `jit`, and the
state is meant to be donated: its buffers are large and change in place.

Axes: N members, M critics per member, B batch, O observation size, A action size.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import is_concrete
from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import fitting, networks, replay, rollouts
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.penalties import PENALTIES, Penalty
from qusac_jax.qusac.replay import Buffer
from qusac_jax.task import Task, TerminationFn, Transition

Metrics = dict[str, jax.Array]

_NO_DYNAMICS = "there are no dynamics: critic_data 'replay' trains without a model"


class TrainState(NamedTuple):
    """Everything that a run needs to continue, but for the environment."""

    learner: learner_lib.Learner
    dynamics: dynamics_lib.Dynamics | None  # None without a model
    replay: Buffer  # D
    model_data: Buffer | None  # D_model
    member_data: Buffer | None  # D_1..D_N, leaves [N, ...]
    key: chex.PRNGKey

    @property
    def actor(self) -> networks.Params:
        """The policy's weights, for `act`."""
        return self.learner.actor


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
            learning_rate=config.dynamics.learning_rate,
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


def observe(state: TrainState, transitions: Transition) -> TrainState:
    """Stores transitions in D (Algorithm 2, line 11).

    Args:
        state: donated.
        transitions: `[B, ...]`, what B actions led to, in order; B at most the capacity of D.

    Returns:
        The state with the transitions in D, over the oldest ones where it is full.

    Raises:
        ValueError: if B exceeds the capacity.
    """
    return state._replace(replay=replay.add(state.replay, transitions))


def learn(
    state: TrainState, *, config: Config, task: Task, num_updates: int | None = None
) -> tuple[TrainState, Metrics]:
    """Gradient updates on the data that are there (Algorithms 2, lines 12-16, and 3, lines 9-11).

    One compiled loop, however many they are.

    Args:
        state: donated. `refresh` must have filled the model's buffers; under `jit` that cannot be
            seen, and `check_ready` outside says it.
        config: hyperparameters.
        task: the environment's sizes.
        num_updates: static; by default G, `config.updates_per_step`.

    Returns:
        The state and the metrics of the last update, `[]` each: losses, `mean_q`, `mean_sqrt_u`
        and `alpha`.

    Raises:
        ValueError: outside `jit`, if there is nothing to learn from yet.
    """
    key, key_update = jax.random.split(state.key)
    count = config.updates_per_step if num_updates is None else num_updates
    return _learn(state._replace(key=key), key_update, count, config=config, task=task)


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
        The state and the next action `[A]`.
    """
    key, key_act = jax.random.split(state.key)
    state = observe(state._replace(key=key), _batch_of_one(transition))
    return state, act(state.actor, observation, key_act, config=config, task=task)


def train_step(
    state: TrainState,
    transition: Transition,
    observation: jax.Array,
    *,
    config: Config,
    task: Task,
) -> tuple[TrainState, jax.Array, Metrics]:
    """Stores a transition, does G gradient updates, acts (Algorithm 2, lines 11-16).

    Args:
        state: donated. `refresh` must have filled the model's buffers, as for `learn`.
        transition: unbatched, what the last action led to.
        observation: `[O]`, what to act on now.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The state, the next action `[A]` and the metrics of the last update, `[]` each.

    Raises:
        ValueError: as `learn`.
    """
    key, key_update, key_act = jax.random.split(state.key, 3)
    state = observe(state._replace(key=key), _batch_of_one(transition))
    count = config.updates_per_step
    state, metrics = _learn(state, key_update, count, config=config, task=task)
    action = act(state.actor, observation, key_act, config=config, task=task)
    return state, action, metrics


def check_ready(state: TrainState) -> None:
    """Raises `ValueError` if `learn` would train on buffers that nothing was written to.

    For use outside `jit`; a state of several seeds is checked as a whole.
    """
    if not np.all(state.replay.size):
        raise ValueError("D is empty: store transitions with `observe` before `learn`")
    if state.model_data is not None and not np.all(state.model_data.size):
        raise ValueError(
            "the model's buffers are empty: call `refresh` before `learn`, which would train on "
            "zeros; `schedule.online` says when a refresh is due"
        )


def refresh(
    state: TrainState, *, config: Config, task: Task
) -> tuple[TrainState, fitting.FitReport]:
    """Fits the dynamics on D and fills the model's buffers (Algorithm 2, lines 6-10).

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
    state, report = _fit(state._replace(key=key), key_fit, config=config, task=task)
    return _roll_out(state, key_roll, config=config, task=task), report


def fit(state: TrainState, *, config: Config, task: Task) -> tuple[TrainState, fitting.FitReport]:
    """The first half of `refresh`: fits the dynamics on D (Algorithms 2, line 6, and 3, line 2).

    Args:
        state: donated; its replay buffer holds at least two transitions.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes.

    Returns:
        The state with the fitted dynamics, and how the fit went.

    Raises:
        ValueError: if the agent has no model, and outside `jit` if D holds too little.
    """
    key, key_fit = jax.random.split(state.key)
    return _fit(state._replace(key=key), key_fit, config=config, task=task)


def roll_out(state: TrainState, *, config: Config, task: Task) -> TrainState:
    """The second half of `refresh`: rolls the dynamics out into D_model and D_1..D_N.

    Algorithms 2, lines 7-9, and 3, lines 5-7.

    Args:
        state: donated; rollouts start at states of its replay buffer.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes and termination.

    Returns:
        The state with new rollouts over the oldest ones.

    Raises:
        ValueError: if the agent has no model.
    """
    key, key_roll = jax.random.split(state.key)
    return _roll_out(state._replace(key=key), key_roll, config=config, task=task)


def act(
    actor: networks.Params,
    observation: jax.Array,
    key: chex.PRNGKey | None = None,
    *,
    config: Config,
    task: Task,
) -> jax.Array:
    """The policy's action: drawn with a key, the mean action without (Algorithm 2, line 11).

    Args:
        actor: the policy's weights, `TrainState.actor`.
        observation: `[..., O]`.
        key: consumed; None for the mean action, with which policies are evaluated.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        `[..., A]` in [-1, 1].
    """
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
        action: `[B, A]` or `[N, B, A]`.
        config: hyperparameters; `uses_model` must hold.
        task: the environment's sizes.

    Returns:
        Mean and standard deviation, `[N, B, O + 1]` each, the reward last.
    """
    return dynamics_lib.predict(_dynamics_model(config, task), dynamics, observation, action)


def _fit(
    state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task
) -> tuple[TrainState, fitting.FitReport]:
    if state.dynamics is None:
        raise ValueError(_NO_DYNAMICS)
    if is_concrete(state.replay.size) and np.any(state.replay.size < 2):
        raise ValueError("D holds fewer than two transitions: `observe` more before the first fit")
    dynamics, report = fitting.fit(
        _dynamics_model(config, task),
        state.dynamics,
        state.replay,
        key,
        config=config.dynamics,
        batch_size=config.batch_size,
    )
    return state._replace(dynamics=dynamics), report


def _roll_out(state: TrainState, key: chex.PRNGKey, *, config: Config, task: Task) -> TrainState:
    if state.dynamics is None or state.model_data is None:
        raise ValueError(_NO_DYNAMICS)

    def policy(observation: jax.Array, key: chex.PRNGKey) -> jax.Array:
        return act(state.actor, observation, key, config=config, task=task)

    model_data, member_data = rollouts.refill(
        _dynamics_model(config, task),
        state.dynamics,
        policy,
        _termination(state.dynamics, config, task),
        state.replay,
        state.model_data,
        state.member_data,
        key,
        num_rollouts=_num_rollouts(config),
        length=config.rollout_length,
        penalty=_penalty(config),
    )
    return state._replace(model_data=model_data, member_data=member_data)


def _learn(
    state: TrainState, key: chex.PRNGKey, num_updates: int, *, config: Config, task: Task
) -> tuple[TrainState, Metrics]:
    """`learn` with a key of its own."""
    if is_concrete(*jax.tree.leaves((state.replay.size, state.model_data))):
        check_ready(state)
    predict = _prediction(state.dynamics, config, task)

    def update(learner: learner_lib.Learner, key: chex.PRNGKey):
        key_batch, key_update = jax.random.split(key)
        batches = _sample_batches(state, key_batch, config)
        return learner_lib.update(learner, *batches, predict, key_update, config=config)

    keys = jax.random.split(key, num_updates)
    learner, metrics = jax.lax.scan(update, state.learner, keys)
    return state._replace(learner=learner), jax.tree.map(lambda x: x[-1], metrics)


def _prediction(
    dynamics: dynamics_lib.Dynamics | None, config: Config, task: Task
) -> learner_lib.Predict | None:
    """The members' mean predictions as the learner reads them."""
    if dynamics is None:
        return None

    ends = _termination(dynamics, config, task)

    def predict_ends(observation: jax.Array, action: jax.Array):
        mean, _ = predict(dynamics, observation, action, config=config, task=task)
        # As in rollouts: beyond the range of D, no critic has been trained, and what they say there
        # would count as disagreement of the members.
        next_observation = dynamics_lib.clip_observation(dynamics, mean[..., :-1])
        reward = mean[..., -1]
        per_member = lambda x: jnp.broadcast_to(x, (config.num_members, *x.shape))
        terminated = ends(per_member(observation), per_member(action), next_observation)
        return next_observation, reward, terminated

    return predict_ends


def _sample_batches(
    state: TrainState, key: chex.PRNGKey, config: Config
) -> tuple[Transition, Transition]:
    """One batch per critic group `[N, B, ...]`, and one for U-net and actor `[B, ...]`.

    The first `num_real` transitions of each are from D, the others by the model.
    """
    key_critic, key_policy = jax.random.split(key)

    def sample(model_data: Buffer | None, key: chex.PRNGKey) -> Transition:
        if model_data is None:
            return replay.sample(state.replay, key, config.batch_size)
        if not config.num_real:
            return replay.sample(model_data, key, config.batch_size)
        key_real, key_model = jax.random.split(key)
        real = replay.sample(state.replay, key_real, config.num_real)
        model = replay.sample(model_data, key_model, config.batch_size - config.num_real)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), real, model)

    if state.member_data is not None:
        keys = jax.random.split(key_critic, config.num_members)
        critic = jax.vmap(sample)(state.member_data, keys)
    else:
        critic = jax.tree.map(lambda x: x[None], sample(state.model_data, key_critic))
    return critic, sample(state.model_data, key_policy)


def _batch_of_one(transition: Transition) -> Transition:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], transition)


def _dynamics_model(config: Config, task: Task) -> networks.Dynamics:
    return dynamics_lib.module(
        config.dynamics,
        observation_size=task.observation_size,
        num_members=config.num_members,
    )


def _termination(dynamics: dynamics_lib.Dynamics, config: Config, task: Task) -> TerminationFn:
    """When an episode ends, for what the model predicts: as given, or as learned."""
    if config.dynamics.learn_termination:
        return dynamics_lib.termination(_dynamics_model(config, task), dynamics)
    return task.termination


def _penalty(config: Config) -> Penalty | None:
    """What rollouts take off the reward: λ times the penalty of the configuration."""
    if config.penalty is None:
        return None
    penalty = PENALTIES[config.penalty]
    return lambda mean, std: config.penalty_scale * penalty(mean, std)


def _num_rollouts(config: Config) -> int:
    return config.rollouts_per_step * config.fit_every


def model_capacity(config: Config) -> int:
    """Transitions that D_model and each D_i hold: L F k Δ, with L F rounded up to whole chunks."""
    chunks, size = rollouts.num_chunks(_num_rollouts(config), config.num_members)
    return chunks * size * config.rollout_length * config.retain_refreshes
