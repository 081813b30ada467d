"""Whole episodes for datasets: with a policy, or out of a replay buffer.

Axes: R environments, T steps, O observation size, A action size.
"""

from collections.abc import Callable, Sequence

import numpy as np

from qusac_jax.datasets import Episode
from qusac_jax.environments import VectorEnvironment
from qusac_jax.qusac import Transition


class _Recording:
    """An episode while it goes on."""

    def __init__(self, observation: np.ndarray):
        self._observation = [observation]
        self._steps: list[tuple[np.ndarray, float]] = []
        self.episode: Episode | None = None  # once it has ended

    def add(
        self,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
    ) -> None:
        self._observation.append(next_observation)
        self._steps.append((action, reward))
        if not (terminated or truncated):
            return
        actions, rewards = zip(*self._steps, strict=True)
        last = np.arange(len(rewards)) == len(rewards) - 1
        self.episode = Episode(
            np.stack(self._observation),
            np.stack(actions),
            np.array(rewards, np.float32),
            last & terminated,
            last & truncated,
        )


def collect(
    environment: VectorEnvironment,
    policy: Callable[[np.ndarray], np.ndarray],
    num_transitions: int,
) -> list[Episode]:
    """Runs a policy in all environments at once until there is enough.

    Episodes count in the order in which they began, as if one had run them one after another:
    to take whichever ends first would prefer short ones.

    Args:
        environment: R of them.
        policy: observations `[R, O]` -> actions `[R, A]` in [-1, 1].
        num_transitions: at least so many; the last episode is whole.

    Returns:
        The fewest first episodes that have so many transitions.
    """
    observation = environment.reset()
    current = [_Recording(each.copy()) for each in observation]
    begun = list(current)
    finished: list[Episode] = []
    missing = num_transitions
    while missing > 0:
        action = np.array(policy(observation), np.float32)
        result = environment.step(action)
        for i, recording in enumerate(current):
            recording.add(
                action[i],
                result.reward[i],
                result.next_observation[i].copy(),
                bool(result.terminated[i]),
                bool(result.truncated[i]),
            )
            if recording.episode is not None:
                current[i] = _Recording(result.observation[i].copy())
                begun.append(current[i])
        observation = result.observation
        while missing > 0 and (episode := begun[len(finished)].episode) is not None:
            finished.append(episode)
            missing -= len(episode.reward)
    return finished


def first_transitions(episodes: Sequence[Episode], num_transitions: int) -> list[Episode]:
    """The fewest first episodes with at least so many transitions; all if there are fewer."""
    before = np.cumsum([0, *(len(episode.reward) for episode in episodes)])[:-1]
    return [e for e, start in zip(episodes, before, strict=True) if start < num_transitions]


def from_buffer(transitions: Transition, max_episode_steps: int) -> list[Episode]:
    """The episodes that a replay buffer holds.

    A buffer does not say where a time limit cut an episode. It shows in the observations: the next
    transition does not begin where this one ends. Should a reset lead to that very state, the
    number of steps still tells.

    Args:
        transitions: `[T, ...]` of one environment in their order, from the start of an episode on.
        max_episode_steps: the environment's time limit.

    Returns:
        Episodes; the last one may be unfinished, neither terminated nor truncated.

    Raises:
        ValueError: if there are no transitions.
    """
    observation, action, reward, following, ended = (np.asarray(x) for x in transitions)
    total = len(reward)
    if total == 0:
        raise ValueError("transitions: there are none; collect at least one step")
    terminated = ended.astype(bool)
    cut = np.zeros(total, bool)
    cut[:-1] = (following[:-1] != observation[1:]).any(axis=1)
    episodes, start = [], 0
    for i in range(total):
        is_last = terminated[i] or cut[i] or i - start + 1 == max_episode_steps
        if not is_last and i < total - 1:
            continue
        steps = slice(start, i + 1)
        last = np.arange(start, i + 1) == i
        episodes.append(
            Episode(
                np.concatenate([observation[steps], following[i : i + 1]]),
                action[steps],
                reward[steps],
                last & terminated[i],
                last & bool(is_last and not terminated[i]),
            )
        )
        start = i + 1
    return episodes


def returns(episodes: Sequence[Episode]) -> np.ndarray:
    """Undiscounted returns of the finished episodes, float64."""
    finished = [e for e in episodes if e.terminated[-1] or e.truncated[-1]]
    return np.array([np.sum(e.reward, dtype=np.float64) for e in finished])


def first_to_pass(
    steps: np.ndarray, eval_returns: np.ndarray, threshold: float, *, after: int
) -> int | None:
    """The first evaluation, of those from step `after` on, whose return reaches the threshold.

    Args:
        steps: of the evaluations, ascending.
        eval_returns: their mean returns.
        threshold: undiscounted return.
        after: no evaluation before this step counts.

    Returns:
        Its step, or None if there is none.
    """
    passing = steps[(steps >= after) & (eval_returns >= threshold)]
    return int(passing[0]) if passing.size else None
