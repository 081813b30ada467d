"""What a dataset is, once it has been read and checked."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from qusac_jax.datasets.scores import ScoreReference, normalized_score

if TYPE_CHECKING:
    from qusac_jax.environments import Spec
    from qusac_jax.task import Transition


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Flat transitions of many episodes, in the order of the file, and where they come from.

    An action a of the data's own space is stored as 2 (a - action_low) / (action_high -
    action_low) - 1, which is the map that `environments.make` inverts.
    """

    name: str  # as the user gave it
    source: str  # "minari" | "d4rl"
    path: str  # of the file that was read
    sha256: str  # of that file
    observation: np.ndarray  # [T, O] float32
    action: np.ndarray  # [T, A] float32 in [-1, 1]
    reward: np.ndarray  # [T] float32
    next_observation: np.ndarray  # [T, O] float32, never the first of another episode
    terminated: np.ndarray  # [T] bool, the task ended: no value comes after
    truncated: np.ndarray  # [T] bool, the recording was cut; can be true beside `terminated`
    # [T] bool; false only where an episode terminated and the file does not say in what. There
    # next_observation repeats observation: of no weight to a value, wrong for a dynamics model.
    next_observation_known: np.ndarray
    num_dropped: int  # rows of the file left out because their next observation is not known
    num_episodes: int  # with an unfinished one at the end
    episode_returns: np.ndarray  # [E] float64, undiscounted, of the finished episodes
    action_low: np.ndarray  # [A] float32, bounds of the data's own action space
    action_high: np.ndarray  # [A] float32
    action_bounds_assumed: bool  # neither the file nor the caller said them
    reference: ScoreReference | None  # None: no normalized score
    # rho of reward - rho sum(a_i^2), in the rewards and the reference returns; None: not recorded
    action_cost: float | None
    env: str | None  # an environment to evaluate in, for `environments.make`; None: not known
    env_note: str  # how that environment relates to the data

    @property
    def num_transitions(self) -> int:
        """T."""
        return len(self.reward)

    def transitions(self, *, known_next_observations: bool = False) -> "Transition":
        """The data as the agent takes them, NumPy arrays without a copy.

        Args:
            known_next_observations: leave out the transitions whose next observation the file
                does not hold (see `next_observation_known`), as for fitting a dynamics model.

        Returns:
            Transitions `[T, ...]`.
        """
        from qusac_jax.task import Transition  # brings jax

        fields: tuple[Any, ...] = (
            self.observation,
            self.action,
            self.reward,
            self.next_observation,
            self.terminated,
        )
        if known_next_observations and not self.next_observation_known.all():
            fields = tuple(field[self.next_observation_known] for field in fields)
        return Transition(*fields)


def describe(dataset: Dataset) -> dict[str, Any]:
    """The facts that a report needs to say which data and which reference, JSON-compatible."""
    returns, reference = dataset.episode_returns, dataset.reference
    behavior = None
    if returns.size:
        behavior = {
            "episodes": int(returns.size),
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "normalized_score": (
                None if reference is None else float(normalized_score(returns.mean(), reference))
            ),
        }
    return {
        "dataset": dataset.name,
        "source": dataset.source,
        "path": dataset.path,
        "sha256": dataset.sha256,
        "num_transitions": dataset.num_transitions,
        "num_dropped": dataset.num_dropped,
        "num_unknown_next_observations": int((~dataset.next_observation_known).sum()),
        "num_episodes": dataset.num_episodes,
        "num_terminated": int(dataset.terminated.sum()),
        "num_truncated": int(dataset.truncated.sum()),  # of what is kept: see `num_dropped`
        "observation_size": int(dataset.observation.shape[1]),
        "action_size": int(dataset.action.shape[1]),
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "behavior": behavior,
        "reference": None if reference is None else reference._asdict(),
        "action_cost": dataset.action_cost,
        "env": dataset.env,
        "env_note": dataset.env_note,
    }


def check_matches(dataset: Dataset, spec: "Spec") -> None:
    """Raises `ValueError` unless sizes and actions are those of the environment to evaluate in.

    HDF5 files in D4RL's format do not hold the bounds of their actions. If a file was read with
    bounds that are not the environment's, the same numbers would mean other actions there; that is
    accepted only where the caller gave -1 and 1 as bounds, for actions that were scaled to them.

    Args:
        dataset: any.
        spec: of the environment, `environments.spec(name)`.
    """
    for key, axis, data, env in (
        ("observations", "numbers", dataset.observation.shape[1], spec.observation_size),
        ("actions", "components", dataset.action.shape[1], spec.action_size),
    ):
        if data != env:
            is_other = dataset.env and dataset.env != spec.name
            suggestion = f"--env={dataset.env}" if is_other else "the one the data come from"
            raise ValueError(
                f"dataset: {dataset.path}, key {key!r} has {data} {axis} per row, but the "
                f"environment {spec.name!r} has {env}; evaluate in another environment "
                f"({suggestion}) or pass another dataset"
            )
    if dataset.source == "d4rl" and spec.action_low:
        low, high = dataset.action_low, dataset.action_high
        is_scaled = not dataset.action_bounds_assumed and np.all(low == -1) and np.all(high == 1)
        if not is_scaled and not np.allclose((low, high), (spec.action_low, spec.action_high)):
            raise ValueError(
                f"dataset: {dataset.path}, key 'actions' was read with the bounds {low.tolist()} "
                f"to {high.tolist()}, but the environment {spec.name!r} has "
                f"{list(spec.action_low)} to {list(spec.action_high)}; pass "
                "--action_bounds=environment (in Python, these numbers) if the actions are in its "
                "units, --action_bounds=unit (-1, 1) if they were scaled to [-1, 1]"
            )
