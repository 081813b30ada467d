"""What a tabular run leaves in its directory: metrics.csv and summary.json.

Axes: R seeds, E episodes.
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import files
from experiments.run_directory import RunDirectory
from experiments.tabular.setup import Setup
from qusac_jax.tabular import agent, experiment


def write(
    directory: RunDirectory,
    setup: Setup,
    progress: experiment.Progress,
    timestamps: list[tuple[int, float]],
) -> dict[str, Any]:
    """Writes metrics.csv and summary.json, which is returned, and warns of doubtful plans.

    Args:
        directory: of the run.
        setup: of the run.
        progress: the run so far.
        timestamps: pairs of episodes done and the time then, in seconds.
    """
    seeds, config = setup.seeds, setup.config.agent
    result = experiment.measure_regret(setup.environment, progress)
    with files.replacing(directory.path / "metrics.csv") as file:
        file.write(_metrics_csv(seeds, result))
    learning_time = experiment.learning_time(result.solved).tolist()
    summary = {
        "method": config.method,
        "env": setup.environment.name,
        "length": setup.length or None,
        "num_seeds": len(seeds),
        "seeds": list(seeds),
        "num_episodes": progress.num_episodes,
        "total_regret": result.regret.sum(1).tolist(),
        "learning_time": [None if math.isnan(episode) else episode for episode in learning_time],
        "seconds_per_episode": seconds_per_episode(timestamps, len(seeds))
        or directory.read_summary().get("seconds_per_episode"),
        "warnings": _warnings(progress.metrics, config),
    }
    directory.write_summary(summary)
    for warning in summary["warnings"]:
        files.warn(f"{directory.path}: {warning}")
    return summary


def is_written(directory: RunDirectory, setup: Setup, progress: experiment.Progress) -> bool:
    """Whether `write` has been here, and metrics.csv is as it left it."""
    if directory.read_summary().get("num_episodes") != progress.num_episodes:
        return False
    try:
        found = (directory.path / "metrics.csv").read_bytes()
    except OSError:
        return False
    result = experiment.measure_regret(setup.environment, progress)
    return found == _metrics_csv(setup.seeds, result).encode()


def _warnings(metrics: experiment.Metrics, config: agent.Config) -> list[str]:
    """What a reader of the results must know of the plans."""
    num_plans = np.size(metrics.steps)
    warnings = []
    unsolved = np.zeros(1) if metrics.unsolved is None else np.asarray(metrics.unsolved)
    if np.any(unsolved):
        warnings.append(
            f"{unsolved.sum():.0f} solves, in {np.sum(unsolved > 0)} of {num_plans} plans (column "
            "unsolved of metrics.csv), ended before their tolerance, and their policies were "
            "chosen by the best values there were; use a lower --discount"
        )
    error = np.finfo(np.float32).eps / (1 - config.discount)
    if error > 1e-2:
        warnings.append(
            f"the discount {config.discount} is so near 1 that values may be off by up to "
            f"{100 * error:.2g} % in float32, unless episodes end soon; use a lower --discount"
        )
    at_limit = np.sum(np.asarray(metrics.steps) >= config.max_steps)
    # The others' variance depends on the policy, and actions may alternate for ever.
    if at_limit and config.method in ("ensemble_mean", "psrl"):
        warnings.append(
            f"policy iteration took all of its {config.max_steps} steps in {at_limit} of "
            f"{num_plans} plans (column policy_steps of metrics.csv), and its policy may not be "
            "the last; in Python, raise tabular.agent.Config.max_steps"
        )
    return warnings


def _metrics_csv(seeds: Sequence[int], result: experiment.Result) -> str:
    """One row per seed and episode."""
    total = np.cumsum(result.regret, 1)
    fields = {
        "return": result.metrics.episode_return,
        "expected_return": result.metrics.expected_return,
        "regret": result.regret,
        "total_regret": total,
        "solved": result.solved.astype(int),
        "policy_steps": result.metrics.steps,
    }
    if result.metrics.unsolved is not None:
        fields["unsolved"] = result.metrics.unsolved
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["seed", "episode", *fields])
    for row, seed in enumerate(seeds):
        for episode in range(total.shape[1]):
            values = [f"{array[row, episode]:.7g}" for array in fields.values()]
            writer.writerow([seed, episode, *values])
    return text.getvalue()


def seconds_per_episode(timestamps: list[tuple[int, float]], num_seeds: int) -> float | None:
    """Of one seed, without chunks that include compilation; None if there is no other.

    These are the first, and the last where it is shorter.
    """
    counts = np.diff([done for done, _ in timestamps])
    if len(counts) > 1 and counts[-1] < counts[0]:
        timestamps = timestamps[:-1]
    if len(timestamps) < 2:
        return None
    (first, start), (last, end) = timestamps[0], timestamps[-1]
    return (end - start) / (last - first) / num_seeds
