"""Offline data: Minari and D4RL datasets as checked arrays, and scores against a reference."""

from qusac_jax.datasets.dataset import Dataset, check_matches, describe
from qusac_jax.datasets.loading import exists, load
from qusac_jax.datasets.saving import Episode, save
from qusac_jax.datasets.scores import D4RL_TASKS, ScoreReference, normalized_score

__all__ = [
    "D4RL_TASKS",
    "Dataset",
    "Episode",
    "ScoreReference",
    "check_matches",
    "describe",
    "exists",
    "load",
    "normalized_score",
    "save",
]
