"""One tabular run: its checkpoints, progress, metrics.csv and summary.json."""

import contextlib
import csv
import dataclasses
import io
import math
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from experiments import durations, files, interrupts
from experiments import seeds as spread
from experiments.provenance import describe_program
from experiments.run_directory import RunDirectory
from experiments.tabular import catalogue
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.tabular import agent, environments, experiment

_SECONDS_BETWEEN_CHECKPOINTS = 120.0
_TIMED_CHUNKS = 3  # after which a run says how long it takes; the first includes compilation
_SHORT = 10.0  # seconds; what takes less needs no announcement
_MAY_CHANGE = ("num_episodes", "num_chunks", "seed_axis")


def run(
    environment: environments.Environment,
    config: experiment.Config,
    seeds: Sequence[int],
    workdir: pathlib.Path,
    *,
    length: int,
    resume: str,
) -> int | None:
    """Runs an agent, or goes on with it, and writes metrics.csv and summary.json.

    Args:
        environment: to act in.
        config: of the run.
        seeds: independent runs.
        workdir: where the files go; a run that was stopped there goes on.
        length: L of DeepSea, 0 elsewhere.
        resume: latest, or latest_good to skip damaged checkpoints.

    Returns:
        The number of the signal that stopped it, or None.

    Raises:
        ValueError: if `workdir` belongs to another run, has no checkpoint to continue from, or has
            more episodes than the run is to have.
    """
    directory = RunDirectory(
        workdir,
        {
            **catalogue.identity(environment),
            "length": length or None,
            "seeds": list(seeds),
            # Without what may differ when the run goes on, on another device for example.
            "config": dataclasses.asdict(config) | dict.fromkeys(_MAY_CHANGE),
            "num_episodes": config.num_episodes,
            **describe_program(),
        },
    )
    method = config.agent.method
    label = f"{environment.name} {length} {method}" if length else f"{environment.name} {method}"
    checkpointer = Checkpointer(directory.checkpoints)
    with contextlib.closing(directory), contextlib.closing(checkpointer):
        begun = _begin(environment, config, seeds, directory, checkpointer, resume)
        stopped_by, progress, timestamps = _advance(
            environment, config, begun, directory, checkpointer, label
        )
        if not timestamps and _is_written(directory, environment, progress, seeds):
            return None
        summary = write_results(
            directory,
            environment,
            progress,
            config=config.agent,
            length=length,
            seeds=seeds,
            timestamps=timestamps,
        )
    learned = ""
    if environment.solved_return is not None:
        learned = f", learning time {_mean_learning_time(summary['learning_time'])}"
    regret = np.mean(summary["total_regret"])
    print(f"{label}: total regret {regret:.1f}{learned} -> {workdir}")
    if stopped_by is not None:
        print(f"stopped after {progress.num_episodes} episodes; the same command goes on")
    return stopped_by


def _begin(
    environment: environments.Environment,
    config: experiment.Config,
    seeds: Sequence[int],
    directory: RunDirectory,
    checkpointer: Checkpointer,
    resume: str,
) -> experiment.Progress:
    """Where a run begins: at its last checkpoint, if there is one; see `run`."""
    begun = experiment.begin(environment, seeds, config=config)
    path = directory.path
    if checkpointer.steps():
        begun = _restore(checkpointer, directory, begun, resume)
        if begun.num_episodes > config.num_episodes:
            raise ValueError(
                f"num_episodes is {config.num_episodes}, but {begun.num_episodes} are done in "
                f"{path}; use --num_episodes={begun.num_episodes} or more"
            )
        print(f"{path}: {begun.num_episodes} of {config.num_episodes} episodes are done")
    elif directory.read_summary():
        raise ValueError(
            f"{path} has results, but no checkpoint to continue from; put its checkpoints back, "
            "or choose another workdir"
        )
    checkpointer.delete_after(begun.num_episodes)
    directory.accept(begun.num_episodes)
    return begun


def _advance(
    environment: environments.Environment,
    config: experiment.Config,
    begun: experiment.Progress,
    directory: RunDirectory,
    checkpointer: Checkpointer,
    label: str,
) -> tuple[int | None, experiment.Progress, list[tuple[int, float]]]:
    """Runs to the end or until a signal comes, and saves.

    Returns:
        The signal's number or None, where the run is now, and the time after each of its chunks, as
        for `write_results`.
    """
    placement = spread.placement(len(begun.metrics.steps), jax.devices())
    mesh, progress, first = None, begun, begun
    if placement is not None:
        metrics = spread.filled(begun.metrics, placement)
        first = experiment.Progress(metrics, spread.placed(begun.state, placement))
        mesh = placement.mesh
    stopped_by, timestamps = None, []
    saved_at = time.perf_counter()
    bar = progress_bar(total=config.num_episodes, initial=begun.num_episodes, label=label)
    answer = interrupts.saving(", after a compilation or the episodes that are under way")
    with bar, interrupts.stop_signals(answer) as stopped:
        for progress in experiment.advance(environment, first, config=config, mesh=mesh):
            timestamps.append((progress.num_episodes, time.perf_counter()))
            bar.update(progress.num_episodes - bar.n)
            if len(timestamps) == _TIMED_CHUNKS:
                _announce_duration(bar, label, config, timestamps)
            stopped_by = stopped()
            if stopped_by is not None:
                break
            if timestamps[-1][1] - saved_at > _SECONDS_BETWEEN_CHECKPOINTS:
                _save(checkpointer, directory, spread.cropped(progress, placement))
                saved_at = time.perf_counter()
        progress = spread.cropped(progress, placement)
        _save(checkpointer, directory, progress)
    return stopped_by, progress, timestamps


def _announce_duration(
    bar: tqdm, label: str, config: experiment.Config, timestamps: list[tuple[int, float]]
) -> None:
    """Says how long it will take, judged by the episodes after the first chunk."""
    rate = _seconds_per_episode(timestamps, 1) or 0.0
    seconds = rate * (config.num_episodes - timestamps[-1][0])
    if seconds > _SHORT:
        bar.write(f"{label}: about {durations.in_words(seconds)} are left")


def progress_bar(*, total: int, initial: int = 0, label: str | None = None) -> tqdm:
    """A bar over episodes; none where nobody watches, so that logs are not filled."""
    is_watched = sys.stderr.isatty()
    return tqdm(total=total, initial=initial, desc=label, unit="ep", disable=not is_watched)


def write_results(
    directory: RunDirectory,
    environment: environments.Environment,
    progress: experiment.Progress,
    *,
    config: agent.Config,
    length: int,
    seeds: Sequence[int],
    timestamps: list[tuple[int, float]],
) -> dict[str, Any]:
    """Writes metrics.csv and summary.json, which is returned, and warns of doubtful plans.

    `timestamps` are pairs of episodes done and the time then, in seconds.
    """
    result = experiment.measure_regret(environment, progress)
    with files.replacing(directory.path / "metrics.csv") as file:
        file.write(_metrics_csv(seeds, result))
    learning_time = experiment.learning_time(result.solved).tolist()
    summary = {
        "method": config.method,
        "env": environment.name,
        "length": length or None,
        "num_seeds": len(seeds),
        "seeds": list(seeds),
        "num_episodes": progress.num_episodes,
        "total_regret": result.regret.sum(1).tolist(),
        "learning_time": [None if math.isnan(episode) else episode for episode in learning_time],
        "seconds_per_episode": _seconds_per_episode(timestamps, len(seeds))
        or directory.read_summary().get("seconds_per_episode"),
        "warnings": _warnings(progress.metrics, config),
    }
    directory.write_summary(summary)
    for warning in summary["warnings"]:
        files.warn(f"{directory.path}: {warning}")
    return summary


def _is_written(
    directory: RunDirectory,
    environment: environments.Environment,
    progress: experiment.Progress,
    seeds: Sequence[int],
) -> bool:
    """Whether `write_results` has been here, and metrics.csv is as it left it."""
    if directory.read_summary().get("num_episodes") != progress.num_episodes:
        return False
    try:
        found = (directory.path / "metrics.csv").read_bytes()
    except OSError:
        return False
    return found == _metrics_csv(seeds, experiment.measure_regret(environment, progress)).encode()


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


def _seconds_per_episode(timestamps: list[tuple[int, float]], num_seeds: int) -> float | None:
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


def _mean_learning_time(times: list) -> str:
    learned = [time for time in times if time is not None]
    mean = f"{np.mean(learned):.1f}" if learned else "-"
    return mean if len(learned) == len(times) else f"{mean} ({len(learned)} of {len(times)} seeds)"


def _save(
    checkpointer: Checkpointer, directory: RunDirectory, progress: experiment.Progress
) -> None:
    metadata = {"identity": directory.identity()}
    checkpointer.save(
        progress.num_episodes, progress.state, _arrays_by_name(progress.metrics), metadata
    )


def _arrays_by_name(metrics: experiment.Metrics) -> dict[str, np.ndarray]:
    return {name: array for name, array in metrics._asdict().items() if array is not None}


def _restore(
    checkpointer: Checkpointer, directory: RunDirectory, begun: experiment.Progress, mode: str
) -> experiment.Progress:
    restore = checkpointer.restore_latest_good if mode == "latest_good" else checkpointer.restore
    like = {
        name: np.zeros((len(array), 1), array.dtype)
        for name, array in _arrays_by_name(begun.metrics).items()
    }
    restored = restore(begun.state, like)
    directory.check_checkpoint(restored.step, restored.metadata)
    return experiment.Progress(experiment.Metrics(**restored.host), restored.device)
