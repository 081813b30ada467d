"""Tabular environments: an environment is the arrays of its MDP and how episodes run in it.

Axes: S states, A actions, N MDPs. Missing mass of a transition row ends the episode.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from qusac_jax import _checks, sparse
from qusac_jax.sparse import Sparse

# What the regret of an episode is: how much less its policy is expected to return than the best, or
# 1 for each episode that was not solved.
REGRETS = ("shortfall", "unsolved")
UP, DOWN, LEFT, RIGHT = range(4)
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

_MOVE_COST = 0.01  # of going right in each row of DeepSea, over all L rows
_DEEP_SEA_SOLVED = 0.5  # between the return of 0.99 with the goal's reward and at most 0 without
_ROOM_REWARDS = (0.1, 0.01, 1.0)  # at the centres of the first, middle and last room
_SEVEN_ROOM = (7, 5, 5, 40, 0.95)  # the paper's: rooms, cells a side, a row, steps, success
_SEVEN_ROOM_RETURN = 19.0  # that the paper's regret refers to


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


class ToyBelief(NamedTuple):
    """The finite belief of Figure 1: equally likely Markov reward processes."""

    transition: np.ndarray  # [4, 4, 1, 4] the combinations of delta and beta
    reward: np.ndarray  # [4, 4, 1]
    policy: np.ndarray  # [4, 1] the only policy
    discount: float


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
        transition: `[S, A, S]` probabilities of the next state; rows sum to at most 1, the rest
            ends the episode.
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
    transition, reward = np.asarray(transition, float), np.asarray(reward, float)
    if transition.ndim != 3 or transition.shape[0] != transition.shape[2] or not transition.size:
        raise ValueError(f"transition must have shape [S, A, S], got {transition.shape}")
    _check_reward(reward, transition.shape[:2])
    _checks.check_transition(transition)
    return _make(
        transition,
        reward,
        start,
        episode_length=episode_length,
        name=name,
        optimal_return=optimal_return,
        solved_return=solved_return,
        reward_std=reward_std,
        cells=cells,
        regret=regret,
    )


def from_sparse(
    next_state,
    probability,
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
    """An environment of K successors per state and action, for large problems.

    Agents are told which successors are possible. Other arguments are those of `from_arrays`.

    Args:
        next_state: `[S, A, K]` integers in -1 .. S; -1 pads shorter rows, S ends the episode.
        probability: `[S, A, K]`; rows sum to at most 1, the rest ends the episode; those of a
            successor that is listed twice add up.
        reward: `[S, A]` expected rewards; finite.
        start: state index, or `[S]` distribution of the first state.
        episode_length: steps after which an episode is truncated, at least 1.
        name: as for `from_arrays`, like all that follow.
        optimal_return: best expected return per episode.
        solved_return: return from which an episode counts as solved.
        reward_std: `[S, A]` noise.
        cells: `[S, 2]` places on a grid.
        regret: one of `REGRETS`.

    Returns:
        An `Environment`.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    given = Sparse(np.asarray(next_state), np.asarray(probability, float))
    reward = np.asarray(reward, float)
    _checks.check_shapes(given, reward, np.empty(given.probability.shape[:-1]), num_batch_axes=0)
    _checks.check_transition(given)
    _checks.check_finite("reward", reward)
    return _make(
        _with_ends(given),
        reward,
        start,
        episode_length=episode_length,
        name=name,
        optimal_return=optimal_return,
        solved_return=solved_return,
        reward_std=reward_std,
        cells=cells,
        regret=regret,
    )


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


def _check_reward(reward: np.ndarray, shape: tuple[int, ...]) -> None:
    if reward.shape != shape:
        raise ValueError(
            f"reward must have shape [S, A] = {shape} to go with transition, got {reward.shape}"
        )
    _checks.check_finite("reward", reward)


def _make(
    transition, reward, start, *, episode_length, optimal_return, reward_std, cells, regret, **rest
) -> Environment:
    """An environment of checked transitions and rewards, with the other checks."""
    num_states, solved_return = len(reward), rest["solved_return"]
    if reward_std is not None:
        reward_std = np.asarray(reward_std, float)
        if reward_std.shape != reward.shape:
            raise ValueError(
                f"reward_std must have shape [S, A] = {reward.shape}, got {reward_std.shape}"
            )
        if not np.all((reward_std >= 0) & np.isfinite(reward_std)):
            raise ValueError(
                "reward_std must be finite and not negative, got values from "
                f"{reward_std.min():.6g} to {reward_std.max():.6g}"
            )
    episode_length = _checks.check_count("episode_length", episode_length)
    returns = {"optimal_return": optimal_return, "solved_return": solved_return}
    for argument, value in returns.items():
        if value is not None and not np.isfinite(value):
            raise ValueError(f"{argument} must be finite or None, got {value}")
    if regret not in REGRETS or (regret == "unsolved" and solved_return is None):
        raise ValueError(
            f"regret must be shortfall, or unsolved with a solved_return, got {regret!r} with "
            f"{solved_return}"
        )
    if cells is not None and np.shape(cells) != (num_states, 2):
        raise ValueError(f"cells must have shape [S, 2] = ({num_states}, 2), got {np.shape(cells)}")
    if optimal_return is None:
        optimal_return = float(
            _check_start(start, num_states) @ best_returns(transition, reward, episode_length)
        )
    return Environment(
        transition=transition,
        reward=reward,
        start=_check_start(start, num_states),
        episode_length=episode_length,
        optimal_return=optimal_return,
        reward_std=reward_std,
        cells=None if cells is None else np.asarray(cells),
        regret=regret,
        **rest,
    )


def _check_start(start, num_states: int) -> np.ndarray:
    start = np.asarray(start)
    if start.ndim == 0:
        if not 0 <= start < num_states or start != int(start):
            raise ValueError(f"start must be a state in 0 .. {num_states - 1}, got {start}")
        return np.eye(num_states)[int(start)]
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


def toy() -> ToyBelief:
    """The Markov reward process of Figure 1, with the probabilities of its caption.

    State 0 leads to state 1 with probability 1 - delta and to 2 with delta; 2 leads to 3 with beta
    and else ends; 1 and 3 end. Only 3 has a reward, of 100.
    """
    members = []
    for delta, beta in itertools.product((0.7, 0.6), (0.5, 0.4)):
        transition = np.zeros((4, 1, 4))
        transition[0, 0, 1:3] = 1 - delta, delta
        transition[2, 0, 3] = beta
        members.append(transition)
    reward = np.zeros((4, 4, 1))
    reward[:, 3] = 100.0
    return ToyBelief(np.stack(members), reward, np.ones((4, 1)), 1.0)


def deep_sea(length: int, *, stochastic: bool = False) -> Environment:
    """DeepSea (section 5.2, appendix C.2): go right in each of L rows to find the only reward.

    State row * L + column; action 1 goes right and costs 0.01 / L, action 0 goes left. The last
    row ends the episode, with reward 1 for going right in the last column.

    Args:
        length: L, at least 2; S = L^2.
        stochastic: the stochastic variant of bsuite: going right fails with probability 1 / L (it
            then stays in its column, at the same cost), and rewards in the first and last state of
            the last row have standard normal noise.

    Returns:
        An `Environment`. Its regret counts the episodes that were not solved, as the paper's does;
        of the stochastic variant, which the best policy does not always solve, it is the shortfall.

    Raises:
        ValueError: if `length` is less than 2.

    Source: Osband et al. (2019), "Deep exploration via randomized value functions".
    """
    length = _checks.check_count("length", length, 2)
    row, column = np.divmod(np.arange(length**2), length)
    inner = np.flatnonzero(row < length - 1)
    below = (row + 1) * length
    left = below + np.maximum(column - 1, 0)
    right = below + np.minimum(column + 1, length - 1)
    failure = 1 / length if stochastic else 0.0
    transition = np.zeros((length**2, 2, length**2))
    transition[inner, 0, left[inner]] = 1.0
    transition[inner, 1, right[inner]] = 1 - failure
    transition[inner, 1, (below + column)[inner]] += failure
    reward = np.zeros((length**2, 2))
    reward[:, 1] = -_MOVE_COST / length
    reward[column == length - 1, 1] += 1.0  # only its last row can be reached in the last column
    reward_std = None
    if stochastic:
        reward_std = np.zeros((length**2, 2))
        reward_std[[-length, -1]] = 1.0
    return from_arrays(
        transition,
        reward,
        0,
        episode_length=length,
        name="deep_sea_stochastic" if stochastic else "deep_sea",
        solved_return=_DEEP_SEA_SOLVED,
        reward_std=reward_std,
        cells=np.stack([row, column], -1),
        regret="shortfall" if stochastic else "unsolved",
    )


def rooms(
    num_rooms: int = 7,
    *,
    room_size: int = 5,
    rooms_per_row: int = 5,
    episode_length: int = 40,
    success: float = 0.95,
) -> Environment:
    """N-room grid (section 5.2, appendix C.2): rooms in snake order.

    Doors are in the middle of shared walls. Rewards belong to the state that the agent acts from:
    0.1 at the centre of the first room, 0.01 at the centre of the middle room, where episodes
    start, and 1 at the centre of the last, which is absorbing. Actions are up, down, left, right;
    one that is free is carried out with probability `success` and else leads to one of the other
    free neighbours, uniformly; one into a wall stays put.

    Args:
        num_rooms: at least 3; the default is the paper's 7-room, S = 181.
        room_size: cells along a side, odd.
        rooms_per_row: rooms in one row of the snake.
        episode_length: steps after which an episode is truncated.
        success: probability in (0, 1].

    Returns:
        An `Environment`. Its `optimal_return` is 19, to which the paper's regret refers, for the
        default rooms, and the best expected return otherwise.

    Raises:
        ValueError: naming the argument, its value and the remedy.

    Source: Domingues et al. (2021), rlberry.
    """
    num_rooms = _checks.check_count("num_rooms", num_rooms, 3)
    rooms_per_row = _checks.check_count("rooms_per_row", rooms_per_row)
    room_size = _checks.check_count("room_size", room_size)
    if room_size % 2 == 0:
        raise ValueError(f"room_size must be odd, so that rooms have a centre, got {room_size}")
    if not 0 < success <= 1:
        raise ValueError(f"success must be in (0, 1], got {success}")
    index, centres = _room_cells(num_rooms, room_size, rooms_per_row)
    goal, start = index[centres[-1]], index[centres[(num_rooms - 1) // 2]]
    transition = np.zeros((len(index), 4, len(index)))
    for (row, column), state in index.items():
        neighbours = [index.get((row + down, column + right)) for down, right in _MOVES]
        for action, target in enumerate(neighbours):
            if state == goal or target is None:
                transition[state, action, state] = 1.0
                continue
            others = [s for s in neighbours if s is not None and s != target]
            transition[state, action, target] = success if others else 1.0
            for other in others:
                transition[state, action, other] = (1 - success) / len(others)
    reward = np.zeros((len(index), 4))
    reward[index[centres[0]]], reward[start], reward[goal] = _ROOM_REWARDS
    is_paper = (num_rooms, room_size, rooms_per_row, episode_length, success) == _SEVEN_ROOM
    return from_arrays(
        transition,
        reward,
        start,
        episode_length=episode_length,
        name="seven_room" if is_paper else f"{num_rooms}_room",
        optimal_return=_SEVEN_ROOM_RETURN if is_paper else None,
        cells=np.array(list(index)),
    )


def _room_cells(num_rooms: int, size: int, per_row: int):
    """State index of each free cell, and the centre of each room in snake order."""
    pitch, middle = size + 1, size // 2
    free, centres, doors = set(), [], []
    for room in range(num_rooms):
        room_row, place = divmod(room, per_row)
        room_column = place if room_row % 2 == 0 else per_row - 1 - place
        top, left = room_row * pitch, room_column * pitch
        free.update(itertools.product(range(top, top + size), range(left, left + size)))
        centres.append((top + middle, left + middle))
    for (row, column), (next_row, next_column) in itertools.pairwise(centres):
        doors.append(((row + next_row) // 2, (column + next_column) // 2))
    cells = sorted(free.union(doors))
    return {cell: state for state, cell in enumerate(cells)}, centres
