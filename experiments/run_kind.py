"""Which half of the library a run is of, by its config.json."""

from collections.abc import Mapping
from typing import Any


def is_tabular(config: Mapping[str, Any]) -> bool:
    """Whether it is a run of `experiments.tabular`: it has no preset, and counts episodes."""
    return "preset" not in config and not {"num_episodes", "inspect_episodes"}.isdisjoint(config)
