"""The agent's state, how it begins, and its policy.

Axes: N members, B batch, O observation size, A action size.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import check_key, check_real
from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import multistep, networks, own_functions, parts, replay, rollouts
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.dynamics_network import DynamicsNetwork
from qusac_jax.qusac.replay import Buffer
from qusac_jax.task import Task, Transition


class TrainState(NamedTuple):
    """Everything that a run needs to continue, but for the environment."""

    learner: parts.Learner
    dynamics: dynamics_lib.Dynamics | None  # None without a model
    replay: Buffer[Transition]  # D
    model_data: Buffer[Transition] | Buffer[multistep.Ahead] | None  # D_model
    member_data: Buffer[multistep.Steps] | None  # D_1..D_N, leaves [N, ...]
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

    Raises:
        ValueError: if the key, the hyperparameters or the task are none, or a function of one's own
            that they name does not return what the agent needs.
    """
    check_key(key)
    for name, given, kind in (("config", config, Config), ("task", task, Task)):
        if not isinstance(given, kind):
            raise ValueError(f"{name} must be a qusac.{kind.__name__}, got {type(given).__name__}")
    own_functions.check(config, task.observation_size)
    key_learner, key_dynamics, key_run = jax.random.split(key, 3)
    sizes = (task.observation_size, task.action_size)
    dynamics = model_data = member_data = None
    if config.uses_model:
        dynamics = dynamics_lib.init(
            dynamics_model(config, task),
            key_dynamics,
            action_size=task.action_size,
            learning_rate=config.dynamics.learning_rate,
        )
        capacity = model_capacity(config)
        model_data = replay.init(capacity, *sizes)
        if config.critic_data == "member":
            steps = replay.Buffer(multistep.single(model_data.data), *model_data[1:])
            member_data = jax.tree.map(
                lambda x: jnp.zeros((config.num_members, *x.shape), x.dtype), steps
            )
        if config.unet_looks_ahead:
            data = multistep.ahead(
                model_data.data, jnp.zeros(capacity, jnp.float32), 1, config.discount
            )
            model_data = replay.Buffer(jax.tree.map(jnp.zeros_like, data), *model_data[1:])
    return TrainState(
        learner=parts.init(key_learner, config, *sizes),
        dynamics=dynamics,
        replay=replay.init(config.replay_capacity, *sizes),
        model_data=model_data,
        member_data=member_data,
        key=key_run,
    )


def act(
    actor: networks.Params,
    observation: jax.Array,
    key: chex.PRNGKey | None = None,
    *,
    config: Config,
    task: Task,
) -> jax.Array:
    """The policy's action: drawn with a key, the mean action without (Algorithm 2, line 9).

    Args:
        actor: the policy's weights, `TrainState.actor`.
        observation: `[..., O]`.
        key: consumed; None for the mean action, with which policies are evaluated.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        `[..., A]` float32 in [-1, 1].

    Raises:
        ValueError: for observations of another size, a key that is none, such as a seed, or the
            whole state in place of the weights.
    """
    if isinstance(actor, TrainState):
        raise ValueError("actor must be the policy's weights, got a TrainState; pass state.actor")
    if key is not None:
        check_key(key)
    check_real(observation=observation)
    shape = np.shape(observation)
    if not shape or shape[-1] != task.observation_size:
        raise ValueError(f"observation must have shape [..., {task.observation_size}], got {shape}")
    observation = jnp.asarray(observation, jnp.float32)
    module = parts.actor(config, task.action_size)
    if key is None:
        return networks.mean_action(module, actor, observation)
    return networks.sample_action(module, actor, observation, key)[0]


def dynamics_model(config: Config, task: Task) -> DynamicsNetwork:
    """The architecture of the dynamics."""
    return dynamics_lib.module(
        config.dynamics,
        observation_size=task.observation_size,
        num_members=config.num_members,
    )


def num_rollouts(config: Config) -> int:
    """Rollouts made at once for each buffer: L F, or fewer where they are more frequent."""
    return config.rollouts_per_step * config.rollout_interval


def rollout_chunks(config: Config) -> tuple[int, int]:
    """In how many chunks they are made, of how many rollouts each; see `rollouts.num_chunks`."""
    return rollouts.num_chunks(num_rollouts(config), config.num_members)


def rollouts_size(config: Config) -> int:
    """Transitions that rolling out once writes into each buffer of the model: k a rollout."""
    chunks, size = rollout_chunks(config)
    return chunks * size * config.rollout_length


def model_capacity(config: Config) -> int:
    """Transitions that D_model and each D_i hold: what Δ times of rolling out make."""
    return rollouts_size(config) * config.retain_refreshes
