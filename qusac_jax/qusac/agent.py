"""QU-SAC as pure functions: the verbs that Algorithms 2 and 3 are made of.

`init` makes a state, `observe` stores transitions, `refresh` fits the dynamics and rolls them out,
`learn` does the gradient updates, `act` draws an action. `train_step` is observe, learn and act in
one, `collect` is observe and act: one call to the device for each environment step. `schedule`
says which of them is due.

Written for one run; callers `vmap` over seeds. `config` and `task` are static under `jit`, and the
state is meant to be donated: its buffers are large and change in place.

Axes: N members, M critics per member, B batch, O observation size, A action size.
"""

import functools
import reprlib
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import check_count, check_real, is_concrete
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import multistep, normalization, replay
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.diagnostics import Metrics
from qusac_jax.qusac.model import fit, predictor, refresh, roll_out
from qusac_jax.qusac.state import TrainState, act, init
from qusac_jax.task import LARGEST_ACTION, Task, Transition

__all__ = [
    "Metrics",
    "TrainState",
    "act",
    "check_ready",
    "collect",
    "fit",
    "init",
    "learn",
    "observe",
    "refresh",
    "roll_out",
    "train_step",
]


def observe(state: TrainState, transitions: Transition) -> TrainState:
    """Stores transitions in D (Algorithm 2, line 9).

    Args:
        state: donated.
        transitions: `[B, ...]`, what B actions led to, in order; B at most the capacity of D.

    Returns:
        The state with the transitions in D, over the oldest ones where it is full.

    Raises:
        ValueError: if B exceeds the capacity, or a shape is not that of D. Of what is not traced,
            also if a number is not finite, an action not in [-1, 1] or `terminated` neither 0 nor
            1; under `jit` nothing can be said, and `diagnostics.finite_parts` tells of numbers and
            actions afterwards.
    """
    transitions = _arrays(transitions)
    lead = np.shape(transitions.reward)
    if len(lead) != 1:
        raise ValueError(f"transition.reward must have shape [B], got {lead}")
    _check_transitions(transitions, state.replay.data, lead)
    learner = normalization.follow(state.learner, transitions.observation, state.replay.size)
    return state._replace(learner=learner, replay=replay.add(state.replay, transitions))


def learn(
    state: TrainState, *, config: Config, task: Task, num_updates: int | None = None
) -> tuple[TrainState, Metrics]:
    """Gradient updates on the stored data (Algorithms 2, lines 10-13, and 3, lines 7-9).

    All updates run in one compiled loop.

    Args:
        state: donated. `refresh` must have filled the model's buffers; that cannot be checked under
            `jit`, so call `check_ready` outside it.
        config: hyperparameters.
        task: the environment's sizes.
        num_updates: static; by default G, `config.updates_per_step`.

    Returns:
        The state and the metrics of the last update, `[]` each: losses, `mean_q`, `mean_sqrt_u`,
        `alpha` and, with a U-net, `local_uncertainty`.

    Raises:
        ValueError: if `num_updates` is below 1, and outside `jit` if there is nothing to learn from
            yet.
    """
    key, key_update = jax.random.split(state.key)
    count = config.updates_per_step
    if num_updates is not None:
        count = check_count("num_updates", num_updates)
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

    Raises:
        ValueError: if a shape is not that of the task, and as `observe`.
    """
    key, key_act = jax.random.split(state.key)
    state = observe(state._replace(key=key), _batch_of_one(transition, state.replay.data))
    return state, act(state.actor, observation, key_act, config=config, task=task)


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
        state: donated. `refresh` must have filled the model's buffers, as for `learn`.
        transition: unbatched, what the last action led to.
        observation: `[O]`, what to act on now.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The state, the next action `[A]` and the metrics of the last update, `[]` each.

    Raises:
        ValueError: as `learn` and `collect`.
    """
    key, key_update, key_act = jax.random.split(state.key, 3)
    state = observe(state._replace(key=key), _batch_of_one(transition, state.replay.data))
    count = config.updates_per_step
    state, metrics = _learn(state, key_update, count, config=config, task=task)
    action = act(state.actor, observation, key_act, config=config, task=task)
    return state, action, metrics


def check_ready(state: TrainState) -> None:
    """Raises `ValueError` if `learn` would train on buffers that nothing was written to.

    For use outside `jit`; a state of several seeds is checked as a whole.
    """
    # In NumPy, as a jitted function that closes over the state would trace it in JAX.
    if not np.all(np.asarray(state.replay.size)):
        raise ValueError("D is empty: store transitions with `observe` before `learn`")
    if state.model_data is not None and not np.all(np.asarray(state.model_data.size)):
        raise ValueError(
            "the model's buffers are empty: call `refresh`, or offline `fit` once and `roll_out`, "
            "before `learn`, which would train on zeros; `schedule` says what is due"
        )


def _learn(
    state: TrainState, key: chex.PRNGKey, num_updates: int, *, config: Config, task: Task
) -> tuple[TrainState, Metrics]:
    """`learn` with a key of its own."""
    if is_concrete(*jax.tree.leaves((state.replay.size, state.model_data))):
        check_ready(state)
    predict = predictor(state.dynamics, config, task)
    counts = _schedule_has_begun(state, config)

    def update(learner: parts_lib.Learner, key: chex.PRNGKey):
        key_batch, key_update = jax.random.split(key)
        batches = _sample_batches(state, key_batch, config)
        return learner_lib.update(
            learner, *batches, predict, key_update, config=config, counts=counts
        )

    keys = jax.random.split(key, num_updates)
    learner, metrics = jax.lax.scan(update, state.learner, keys)
    return state._replace(learner=learner), jax.tree.map(lambda x: x[-1], metrics)


def _schedule_has_begun(state: TrainState, config: Config) -> jax.Array | bool:
    """Whether updates count for `risk_schedule`: once begun, it ends, whatever leaves D."""
    if not config.risk_awaits_reward:
        return True
    # One look at D's rewards a call is nothing beside the updates; a flag would be more state.
    return (state.learner.num_updates > 0) | jnp.any(state.replay.data.reward > 0.0)


def _sample_batches(
    state: TrainState, key: chex.PRNGKey, config: Config
) -> tuple[multistep.Steps, Transition | multistep.Ahead]:
    """One batch per critic group `[N, B, ...]`, and one for U-net and actor `[B, ...]`.

    The first `num_real` transitions of each are from D, the others by the model.
    """
    key_critic, key_policy = jax.random.split(key)

    def sample(data: Any, key: chex.PRNGKey, convert: Callable[[Transition], Any]) -> Any:
        """A batch of D, of what the model did, or of both; `convert` makes D's of one kind."""
        if data is None:
            return replay.sample(state.replay, key, config.batch_size)
        if not config.num_real:
            return replay.sample(data, key, config.batch_size)
        key_real, key_model = jax.random.split(key)
        real = convert(replay.sample(state.replay, key_real, config.num_real))
        model = replay.sample(data, key_model, config.batch_size - config.num_real)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), real, model)

    shared = functools.partial(
        sample,
        state.model_data,
        convert=_with_nothing_ahead if config.unet_looks_ahead else lambda real: real,
    )
    if state.member_data is not None:
        keys = jax.random.split(key_critic, config.num_members)
        of_member = functools.partial(sample, convert=multistep.single)
        critic = jax.vmap(of_member)(state.member_data, keys)
    else:
        critic = jax.tree.map(lambda x: x[None], multistep.single(shared(key_critic)))
    return critic, shared(key_policy)


def _with_nothing_ahead(real: Transition) -> multistep.Ahead:
    """What is propagated there is up to the learner, which knows the critics."""
    return multistep.ahead(real, jnp.zeros_like(real.reward), 1, 0.0)


def _check_transitions(given: Transition, there: Transition, lead: tuple[int, ...]) -> None:
    """Raises `ValueError` for what would be spread over D's shapes, or spoil it, without a word."""
    for name, value, data in zip(Transition._fields, given, there, strict=True):
        wanted = (*lead, *data.shape[1:])
        if np.shape(value) != wanted:
            raise ValueError(
                f"transition.{name} must have shape {wanted}, got {np.shape(value)}; the task of "
                f"this state has observations of {there.observation.shape[-1]} numbers and actions "
                f"of {there.action.shape[-1]}"
            )
        if is_concrete(value):
            with np.errstate(over="ignore"):  # what is infinite in D's float32 counts as such
                _check_values(name, np.asarray(value).astype(np.float32))


def _check_values(name: str, value: np.ndarray) -> None:
    if not np.isfinite(value).all():
        raise ValueError(f"transition.{name} must be finite, got NaN or infinity in it")
    if name == "action" and (np.abs(value) > LARGEST_ACTION).any():
        raise ValueError(
            f"transition.action must lie in [-1, 1], got {value.min():.6g} to {value.max():.6g}; "
            "rescale the environment's"
        )
    if name == "terminated" and not np.isin(value, (0, 1)).all():
        raise ValueError("transition.terminated must be bool, or 0 and 1, got other numbers in it")


def _arrays(given: Transition) -> Transition:
    """Lists as arrays; what is one stays where it is."""
    if not isinstance(given, tuple | list) or len(given) != len(Transition._fields):
        raise ValueError(f"transition must be a qusac.Transition, got {reprlib.repr(given)}")
    for name, value in zip(Transition._fields, given, strict=True):
        check_real(**{f"transition.{name}": value})
    return Transition(*(x if hasattr(x, "dtype") else jnp.asarray(x) for x in given))


def _batch_of_one(transition: Transition, there: Transition) -> Transition:
    transition = _arrays(transition)
    _check_transitions(transition, there, ())
    return jax.tree.map(lambda x: jnp.asarray(x)[None], transition)
