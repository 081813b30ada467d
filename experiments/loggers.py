"""Where a run's metrics go beside metrics.csv: the protocol, and names in sections."""

import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from experiments.files import flatten

_SECTIONS: Mapping[str, Sequence[str]] = {
    "value": ("mean_q", "expected_return"),
    "uncertainty": (
        "mean_sqrt_u",
        "max_sqrt_u",
        "sqrt_u_bound",
        "critic_spread",
        "critic_spread_centered",
        "expected_std",
        "local_uncertainty",
    ),
    "policy": ("alpha", "entropy", "risk"),
    "model": (
        "fit_epochs",
        "noise_variance",
        "rewarded_predicted",
        "missed_ends",
        "false_ends",
    ),
    "data": ("replay_size", "rewarded_share_replay", "rewarded_share_model"),
    "train": ("rewarded_steps",),
}
_TAGS = {name: f"{section}/{name}" for section, names in _SECTIONS.items() for name in names}
# From the beginning or the end of a column's name to its section.
_PATTERNS = (
    (r"eval_(.*)", r"eval/\1"),
    (r"train_(.*)", r"train/\1"),
    (r"(.*)_loss", r"loss/\1"),
    (r"(holdout_mse_.*)", r"model/\1"),
)
_KEYS = ("step", "seed")


class Logger(Protocol):
    """What a run tells of itself, besides its own files."""

    def rewind(self, step: int) -> None:
        """What was logged after that step will be logged again."""

    def log(self, rows: Sequence[Mapping[str, float]], timing: Mapping[str, float]) -> None:
        """Takes the rows of an evaluation, one per seed, and wall-clock figures."""

    def video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """Takes an episode: an mp4, with a GIF beside it."""

    def close(self) -> None:
        """Writes what is left."""


def tag(column: str) -> str:
    """The name in sections of a column of metrics.csv, such as `loss/critic` for `critic_loss`."""
    if column in _TAGS:
        return _TAGS[column]
    for pattern, replacement in _PATTERNS:
        if re.fullmatch(pattern, column):
            return re.sub(pattern, replacement, column)
    return f"other/{column}"


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """The finite values of a row of metrics.csv by tag."""
    return {
        tag(name): value
        for name, value in row.items()
        if name not in _KEYS and math.isfinite(value)
    }


def hyperparameters(description: Mapping[str, Any]) -> dict[str, Any]:
    """The values of config.json that say what is run, flat: numbers, booleans and strings.

    What is none of these, such as the sizes of layers, becomes a string.
    """
    named = {name: description.get(name) for name in ("env", "method", "preset", "action_cost")}
    flat = named | flatten({"config": description.get("config", {})})
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat.items()
    }
