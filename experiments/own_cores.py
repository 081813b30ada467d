"""The cores that this process may use."""

import os


def usable() -> list[int]:
    """Their numbers; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def count() -> int:
    """How many they are: as many threads has XLA on a CPU."""
    return len(usable()) or os.cpu_count() or 1
