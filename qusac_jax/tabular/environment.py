"""A tabular environment: the arrays of its MDP and how episodes run in it.

Axes: S states, A actions, K successors. Missing mass of a transition row ends the episode.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse

from qusac_jax import _checks, _fields, _problem_checks, posterior, sparse
from qusac_jax.sparse import Sparse

# What the regret of an episode is: how much less its policy is expected to return than the best, or
# 1 for each episode that was not solved.
REGRETS = ("shortfall", "unsolved")


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A finite MDP with a start, an episode length and, for drawing, a grid."""

    name: str
    # [S, A, S] rows sum to at most 1, the rest ends the episode. Sparse: each successor once,
    # padding first, and S where the episode may end; agents are told that nothing else is possible.
    transition: Any
    reward: np.ndarray  # [S, A]
    start: np.ndarray  # [S] distribution of the first state; sums to 1
    episode_length: int  # steps after which an episode is truncated
    optimal_return: float  # best expected undiscounted return per episode
    solved_return: float | None = None  # an episode with this noiseless return counts as solved
    reward_std: np.ndarray | None = None  # [S, A] of Gaussian noise on rewards; None: no noise
    cells: np.ndarray | None = None  # [S, 2] row and column of each state on a grid
    regret: str = "shortfall"  # of an episode, one of `REGRETS`

    @property
    def num_states(self) -> int:
        """S."""
        return self.reward.shape[0]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.reward.shape[1]

    @property
    def noise_precision(self) -> float:
        """Inverse variance of the noisiest reward, which agents take for that of all."""
        std = 0.0 if self.reward_std is None else np.max(self.reward_std)
        with np.errstate(divide="ignore", over="ignore"):
            precision = float(np.float64(std) ** -2.0)
        return float(np.clip(precision, np.finfo(np.float32).tiny, posterior.NEARLY_NOISELESS))


def from_arrays(
    transition,
    reward,
    start,
    *,
    episode_length: int,
    name: str = "custom",
    optimal_return: float | None = None,
    solved_return: float | None = None,
    reward_std=None,
    cells=None,
    regret: str = "shortfall",
) -> Environment:
    """An environment from a user's own MDP.

    Args:
        transition: `[S, A, S]` probabilities of the next state; rows sum to at most 1, and missing
            mass ends the episode (up to 1e-5 of it counts as rounding where episodes are
            simulated). Or a `Sparse`, with arrays as for `from_sparse`.
        reward: `[S, A]` expected rewards; finite.
        start: state index, or `[S]` distribution of the first state.
        episode_length: steps after which an episode is truncated, at least 1.
        name: for reports.
        optimal_return: expected return per episode that regret is measured against; by default the
            best over policies that may depend on the step.
        solved_return: an episode with at least this return counts as solved; None counts none.
        reward_std: None or `[S, A]` standard deviations of Gaussian noise on the rewards.
        cells: None or `[S, 2]` row and column of each state, for heat maps.
        regret: shortfall (of the policy's expected return, from `optimal_return`), or unsolved (1
            for each episode below `solved_return`, which must be given).

    Returns:
        An `Environment`.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    transition, reward = _check_mdp(transition, np.asarray(reward, float))
    reward_std = _check_noise(reward_std, reward.shape)
    episode_length = _checks.check_count("episode_length", episode_length)
    returns = {"optimal_return": optimal_return, "solved_return": solved_return}
    for argument, value in returns.items():
        if not _fields.finite_or_none.holds(value):
            raise ValueError(f"{argument} must be finite or None, got {value!r}")
    if regret not in REGRETS or (regret == "unsolved" and solved_return is None):
        raise ValueError(
            f"regret must be shortfall, or unsolved with a solved_return, got {regret!r} with "
            f"{solved_return}"
        )
    num_states = len(reward)
    if cells is not None and np.shape(cells) != (num_states, 2):
        raise ValueError(f"cells must have shape [S, 2] = ({num_states}, 2), got {np.shape(cells)}")
    start = _check_start(start, num_states)
    if optimal_return is None:
        optimal_return = float(start @ best_returns(transition, reward, episode_length))
    return Environment(
        name=name,
        transition=transition,
        reward=reward,
        start=start,
        episode_length=episode_length,
        optimal_return=optimal_return,
        solved_return=solved_return,
        reward_std=reward_std,
        cells=None if cells is None else np.asarray(cells),
        regret=regret,
    )


def from_sparse(next_state, probability, reward, start, **about: Any) -> Environment:
    """An environment of K successors per state and action, for large problems.

    Agents are told which successors are possible.

    Args:
        next_state: `[S, A, K]` integers in -1 .. S; -1 pads shorter rows, S ends the episode.
        probability: `[S, A, K]`; rows sum to at most 1, the rest ends the episode; those of a
            successor that is listed twice add up.
        reward: as for `from_arrays`, like all that follow.
        start: state or distribution.
        about: keyword arguments of `from_arrays`, `episode_length` among them.

    Returns:
        An `Environment`.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    return from_arrays(Sparse(next_state, probability), reward, start, **about)


def with_support(environment: Environment) -> Environment:
    """The environment in sparse form, so that agents are told which successors are possible."""
    if isinstance(environment.transition, Sparse):
        return environment
    transition = _with_ends(sparse.from_dense(environment.transition))
    name = f"{environment.name}_support"
    return dataclasses.replace(environment, name=name, transition=transition)


def _with_ends(transition: Sparse) -> Sparse:
    """Each successor once, the terminal state where mass is missing, what is impossible first."""
    next_state, probability = transition
    missing = 1 - probability.sum(-1, keepdims=True)
    ends = missing > _checks.ROW_TOLERANCE
    if ends.any():
        terminal = np.where(ends, len(next_state), -1)
        next_state = np.concatenate([next_state, terminal], -1)
        probability = np.concatenate([probability, np.where(ends, missing, 0.0)], -1)
    next_state, probability = sparse.distinct(next_state, probability)
    order = np.argsort(probability, axis=-1, kind="stable")
    # Columns that are padding in all rows would cost memory and time.
    order = order[..., np.take_along_axis(next_state, order, -1).max((0, 1)) >= 0]
    return Sparse(
        np.take_along_axis(next_state, order, -1).astype(np.int32),
        np.take_along_axis(probability, order, -1),
    )


def _check_mdp(transition, reward: np.ndarray) -> tuple[Any, np.ndarray]:
    """Transitions, as an `Environment` has them, and rewards, checked."""
    if isinstance(transition, Sparse):
        next_state, probability = transition
        transition = Sparse(np.asarray(next_state), np.asarray(probability, float))
    else:
        transition = np.asarray(transition, float)
    _problem_checks.check_shapes(transition, reward, num_batch_axes=0)
    _problem_checks.check_transition(transition)
    _checks.check_finite("reward", reward)
    return _with_ends(transition) if isinstance(transition, Sparse) else transition, reward


def _check_noise(reward_std, shape: tuple[int, ...]) -> np.ndarray | None:
    if reward_std is None:
        return None
    reward_std = np.asarray(reward_std, float)
    if reward_std.shape != shape:
        raise ValueError(f"reward_std must have shape [S, A] = {shape}, got {reward_std.shape}")
    if not np.all((reward_std >= 0) & np.isfinite(reward_std)):
        raise ValueError(
            "reward_std must be finite and not negative, got values from "
            f"{reward_std.min():.6g} to {reward_std.max():.6g}"
        )
    return reward_std


def _check_start(start, num_states: int) -> np.ndarray:
    start = np.asarray(start)
    if start.dtype.kind not in "iuf":
        raise ValueError(f"start must be a state or a distribution, got {start!r}")
    if start.ndim == 0:
        if not 0 <= start < num_states or start != int(start):
            raise ValueError(f"start must be a state in 0 .. {num_states - 1}, got {start}")
        distribution = np.zeros(num_states)
        distribution[int(start)] = 1.0
        return distribution
    if start.shape != (num_states,) or not (
        np.all(start >= 0) and np.abs(start.sum() - 1) <= _checks.ROW_TOLERANCE
    ):
        raise ValueError(
            f"start must be a state or a distribution of shape [S] = ({num_states},), got shape "
            f"{start.shape} and a sum of {start.sum():.6g}"
        )
    return start.astype(float)


def best_returns(transition, reward, episode_length: int) -> np.ndarray:
    """Best expected return `[S]` of so many steps, by backward induction.

    Args:
        transition: `[S, A, S]`, or a `Sparse`.
        reward: `[S, A]`.
        episode_length: steps.
    """
    value = np.zeros(len(reward))
    if not isinstance(transition, Sparse):
        for _ in range(episode_length):
            value = (reward + transition @ value).max(-1)
        return value
    # Rows are pairs; a last column of value 0 is the terminal state, and padding.
    num_states, width = len(reward), transition.next_state.shape[-1]
    columns = np.where(transition.next_state < 0, num_states, transition.next_state).ravel()
    starts = np.arange(reward.size + 1) * width
    matrix = scipy.sparse.csr_matrix(
        (transition.probability.ravel(), columns, starts), shape=(reward.size, num_states + 1)
    )
    for _ in range(episode_length):
        next_value = (matrix @ np.append(value, 0.0)).reshape(reward.shape)
        value = (reward + next_value).max(-1)
    return value
