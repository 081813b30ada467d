"""Hyperparameters that are gone: files of earlier runs still have them."""

import types
from collections.abc import Mapping
from typing import Any

# By the name that config.json has: the value that runs of today have instead.
RETIRED: Mapping[str, Any] = types.MappingProxyType(
    {"reset_every": 0, "dynamics.learn_variance_bounds": False}
)
