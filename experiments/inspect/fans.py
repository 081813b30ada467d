"""What the members of the model predict, beside what happens: a fan that widens along rollouts.

Axes: T steps of an episode, K steps of a rollout, B rollouts, N members, O observation size,
A action size.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import style
from qusac_jax import environments, qusac
from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import model

_MOST_COMPONENTS = 4
_REAL, _MODEL, _STD = "black", style.COLORS["upper_bound"], style.COLORS["mbpo"]


class Trajectory(NamedTuple):
    """The beginning of an episode."""

    observation: np.ndarray  # [T + 1, O]
    action: np.ndarray  # [T, A]
    reward: np.ndarray  # [T] with action cost


class Fan(NamedTuple):
    """Rollouts that begin at true states every K steps and take the true actions."""

    observation: np.ndarray  # [B, K + 1, N, O], the first the true one
    reward: np.ndarray  # [B, K, N]


def play(
    spec: environments.Spec, policy: Callable[[np.ndarray], Any], num_steps: int, seed: int
) -> Trajectory:
    """Acts in an environment until the episode ends, or for T steps.

    Args:
        spec: of the environment.
        policy: from an observation `[O]` to an action `[A]` in [-1, 1].
        num_steps: the most.
        seed: of the environment.
    """
    env = environments.vector(spec.name, [seed], action_cost=spec.action_cost)
    observations, actions, rewards, is_over = [env.reset()[0]], [], [], False
    while not is_over and len(actions) < num_steps:
        actions.append(np.array(policy(observations[-1]), np.float32))
        result = env.step(actions[-1][None])
        observations.append(result.next_observation[0])
        rewards.append(float(result.reward[0]))
        is_over = bool(result.terminated[0] or result.truncated[0])
    env.close()
    return Trajectory(np.stack(observations), np.stack(actions), np.array(rewards))


def roll_out(
    dynamics: dynamics_lib.Dynamics,
    trajectory: Trajectory,
    length: int,
    *,
    config: qusac.Config,
    task: qusac.Task,
) -> Fan:
    """Every member's mean prediction, fed back to it.

    Without the noise of the members' Gaussians and with the true actions, what differs between
    members is their knowledge alone.

    Args:
        dynamics: the members' weights.
        trajectory: of the environment.
        length: K.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The rollouts; the last has NaN where the trajectory has ended.
    """
    num_steps = len(trajectory.action)
    num_rollouts = -(-num_steps // length)
    padded = np.zeros((num_rollouts * length, task.action_size), np.float32)
    padded[:num_steps] = trajectory.action
    actions = padded.reshape(num_rollouts, length, -1).swapaxes(0, 1)
    first = jnp.asarray(trajectory.observation[:-1:length])
    start = jnp.broadcast_to(first, (config.num_members, *first.shape))

    @jax.jit
    def predict(start: jax.Array, actions: jax.Array):
        def step(observation: jax.Array, action: jax.Array):
            action = jnp.broadcast_to(action, (config.num_members, *action.shape))
            mean, _ = model.predict(dynamics, observation, action, config=config, task=task)
            mean = dynamics_lib.clip(dynamics, mean)
            return mean[..., :-1], (mean[..., :-1], mean[..., -1])

        return jax.lax.scan(step, start, actions)[1]

    observation, reward = (np.array(x) for x in predict(start, jnp.asarray(actions)))
    observation = np.concatenate([np.asarray(start)[None], observation])  # [K + 1, N, B, O]
    left = num_steps - (num_rollouts - 1) * length
    observation[left + 1 :, :, -1] = np.nan
    reward[left:, :, -1] = np.nan
    return Fan(observation.transpose(2, 0, 1, 3), reward.transpose(2, 0, 1))


@matplotlib.rc_context(style.RC)
def draw(
    trajectory: Trajectory, fan: Fan, std: np.ndarray | None, path: pathlib.Path, title: str
) -> pathlib.Path:
    """Reward, the components of the observation that vary most, and sqrt(U) along the episode.

    Args:
        trajectory: of the environment.
        fan: of the model.
        std: sqrt(U) `[T]` at the states and actions; None if the method does not estimate U.
        path: of the PNG.
        title: of the figure.
    """
    steps, length = len(trajectory.reward), fan.reward.shape[1]
    varying = np.argsort(-trajectory.observation.std(0), kind="stable")[:_MOST_COMPONENTS]
    components = sorted(varying.tolist())
    names = ["reward", *(f"observation {i}" for i in components)]
    names += [] if std is None else ["sqrt(U)"]
    figure = Figure((8.5, 1.45 * len(names) + 0.9), layout="constrained")
    axes = list(figure.subplots(len(names), 1, sharex=True, squeeze=False).flat)
    begins = np.arange(len(fan.reward)) * length
    for begin, rewards, observations in zip(begins, fan.reward, fan.observation, strict=True):
        _draw_fan(axes[0], begin + np.arange(length), rewards)
        for axis, i in zip(axes[1:], components, strict=False):
            _draw_fan(axis, begin + np.arange(length + 1), observations[..., i])
    _draw_real(axes[0], trajectory.reward)
    for axis, i in zip(axes[1:], components, strict=False):
        _draw_real(axis, trajectory.observation[:, i])
    if std is not None:
        axes[-1].plot(np.arange(steps), std, color=_STD, lw=1.3)
        axes[-1].set_ylim(bottom=0)
    for axis, name in zip(axes, names, strict=True):
        axis.set_ylabel(name.replace("observation", "obs."))
        for begin in begins:
            axis.axvline(begin, color="0.8", lw=0.7, zorder=0)
    axes[-1].set_xlabel("environment step")
    handles = [
        style.line_sample("environment", color=_REAL),
        style.line_sample(f"members, begun anew every {length} steps", color=_MODEL, width=1.0),
    ]
    style.legend(figure, handles, where="upper", title=title)
    return style.save(figure, path)


def _draw_fan(axis: Axes, steps: np.ndarray, members: np.ndarray) -> None:
    """Lines of members `[K, N]` and the range between them."""
    axis.plot(steps, members, color=_MODEL, lw=0.7, alpha=0.7)
    axis.fill_between(steps, members.min(1), members.max(1), color=_MODEL, alpha=0.25, lw=0)


def _draw_real(axis: Axes, values: np.ndarray) -> None:
    axis.plot(np.arange(len(values)), values, color=_REAL, lw=1.1)
    low, high = values.min(), values.max()
    margin = 0.5 * (high - low) or 1.0  # how far a rollout goes beyond that tells nothing more
    axis.set_ylim(low - margin, high + margin)
