"""Normalized scores in percent, and whose reference returns they are measured with.

Source of the built-in returns: D4RL (Fu et al., 2020, arXiv:2004.07219), `d4rl/infos.py`.
"""

import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from qusac_jax._fields import is_finite


class ScoreReference(NamedTuple):
    """The undiscounted returns that count as 0 and as 100 percent."""

    min_return: float  # of a random policy
    max_return: float  # of an expert
    origin: str  # where the two come from, in words for a report


class D4RLTask(NamedTuple):
    """What D4RL's name for a MuJoCo task stands for."""

    min_return: float
    max_return: float
    observation_size: int  # O
    action_size: int  # A
    recorded_in: str  # Gymnasium's id of the environment, which needs mujoco-py
    env: str  # its nearest successor that runs today


D4RL_TASKS: Mapping[str, D4RLTask] = types.MappingProxyType(
    {
        "hopper": D4RLTask(-20.272305, 3234.3, 11, 3, "Hopper-v2", "gym:Hopper-v4"),
        "halfcheetah": D4RLTask(
            -280.178953, 12135.0, 17, 6, "HalfCheetah-v2", "gym:HalfCheetah-v4"
        ),
        "walker2d": D4RLTask(1.629008, 4592.3, 17, 6, "Walker2d-v2", "gym:Walker2d-v4"),
    }
)
_D4RL_NAME = re.compile(
    rf"({'|'.join(D4RL_TASKS)})[-_]"
    r"(random|medium|expert|medium[-_]replay|medium[-_]expert|full[-_]replay)-v2(\.hdf5)?"
)


def d4rl_task(name: str) -> str | None:
    """The key in `D4RL_TASKS` of a D4RL v2 name such as `hopper_medium-v2.hdf5`, or None."""
    match = _D4RL_NAME.fullmatch(name)
    return match.group(1) if match else None


def d4rl_reference(task: str) -> ScoreReference:
    """D4RL's reference returns of one of `D4RL_TASKS`."""
    known = D4RL_TASKS[task]
    return ScoreReference(known.min_return, known.max_return, f"built-in D4RL returns of {task}")


def metadata_reference(metadata: Mapping[str, Any], where: str) -> ScoreReference | None:
    """The reference returns in a Minari dataset's metadata, or None where it has none.

    Args:
        metadata: of the dataset.
        where: the dataset's id, for the message and the origin.

    Raises:
        ValueError: unless both are finite numbers, the minimum below the maximum.
    """
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if low is None or high is None:
        return None
    origin = f"ref_min_score and ref_max_score of {where}"
    if metadata.get("reference_origin"):  # written by `save`
        origin += f" ({metadata['reference_origin']})"
    return check_reference(ScoreReference(low, high, origin))


def check_reference(reference: ScoreReference) -> ScoreReference:
    """The reference with plain floats; raises `ValueError` unless min_return < max_return."""
    if len(reference) != len(ScoreReference._fields):
        raise ValueError(f"reference must be a ScoreReference, got {reference!r}")
    low, high, origin = reference
    if not (is_finite(low) and is_finite(high) and low < high):
        raise ValueError(
            f"reference: min_return and max_return must be finite with min_return < max_return, "
            f"got {low!r} and {high!r} ({origin}); correct or remove them"
        )
    return ScoreReference(float(low), float(high), origin)


def normalized_score(returns: Any, reference: ScoreReference | None) -> np.ndarray:
    """100 (return - min_return) / (max_return - min_return): 0 is random, 100 the expert.

    Args:
        returns: undiscounted returns of whole episodes, any shape.
        reference: `Dataset.reference`.

    Returns:
        Percent in float64, of the shape of `returns`; not clipped.

    Raises:
        ValueError: if the dataset has no reference, or one of equal returns, or if `returns` are no
            numbers.
    """
    if reference is None:
        raise ValueError(
            "reference: this dataset has no reference returns, so there is no normalized score; "
            "report raw returns, or write ref_min_score and ref_max_score into its metadata"
        )
    low, high, _ = check_reference(reference)
    try:
        values = np.asarray(returns, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"returns must be numbers in rows of one length, got {returns!r}"
        ) from error
    return 100.0 * (values - low) / (high - low)
