"""One tabular run: its directory, checkpoints and progress."""

import contextlib
import dataclasses
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from experiments import durations, interrupts, seeds
from experiments.provenance import describe_program
from experiments.run_directory import RunDirectory
from experiments.tabular import catalogue, outcome
from experiments.tabular.setup import Setup
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.tabular import experiment

_SECONDS_BETWEEN_CHECKPOINTS = 120.0
_TIMED_CHUNKS = 3  # after which a run says how long it takes; the first includes compilation
_SHORT = 10.0  # seconds; what takes less needs no announcement
_MAY_CHANGE = ("num_episodes", "num_chunks", "seed_axis")


def run(setup: Setup, workdir: pathlib.Path, *, resume: str) -> int | None:
    """Runs an agent, or goes on with it, and writes metrics.csv and summary.json.

    Args:
        setup: of the run.
        workdir: where the files go; a run that was stopped there goes on.
        resume: latest, or latest_good to skip damaged checkpoints.

    Returns:
        The number of the signal that stopped it, or None.

    Raises:
        ValueError: if `workdir` belongs to another run, has no checkpoint to continue from, or has
            more episodes than the run is to have.
    """
    # Without what may differ when the run goes on, on another device for example.
    fixed = dataclasses.asdict(setup.config) | dict.fromkeys(_MAY_CHANGE)
    num_episodes = setup.config.num_episodes
    directory = open_directory(setup, workdir, config=fixed, num_episodes=num_episodes)
    checkpointer = Checkpointer(directory.checkpoints)
    with contextlib.closing(directory), contextlib.closing(checkpointer):
        begun = _begin(setup, directory, checkpointer, resume)
        stopped_by, progress, timestamps = _advance(setup, begun, directory, checkpointer)
        if not timestamps and outcome.is_written(directory, setup, progress):
            return None
        summary = outcome.write(directory, setup, progress, timestamps)
    learned = ""
    if setup.environment.solved_return is not None:
        learned = f", learning time {_mean_learning_time(summary['learning_time'])}"
    regret = np.mean(summary["total_regret"])
    print(f"{setup.label}: total regret {regret:.1f}{learned} -> {workdir}")
    if stopped_by is not None:
        print(f"stopped after {progress.num_episodes} episodes; the same command goes on")
    return stopped_by


def open_directory(setup: Setup, workdir: pathlib.Path, **about: Any) -> RunDirectory:
    """The directory of a run, with config.json.

    Args:
        setup: of the run.
        workdir: where it is.
        about: further values that define the run, JSON-compatible.

    Raises:
        ValueError: as `RunDirectory`.
    """
    described = {
        **catalogue.identity(setup.environment),
        "length": setup.length or None,
        "seeds": list(setup.seeds),
        **about,
        **describe_program(),
    }
    return RunDirectory(workdir, described)


def _begin(
    setup: Setup, directory: RunDirectory, checkpointer: Checkpointer, resume: str
) -> experiment.Progress:
    """Where a run begins: at its last checkpoint, if there is one; see `run`."""
    config, path = setup.config, directory.path
    begun = experiment.begin(setup.environment, setup.seeds, config=config)
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
    setup: Setup,
    begun: experiment.Progress,
    directory: RunDirectory,
    checkpointer: Checkpointer,
) -> tuple[int | None, experiment.Progress, list[tuple[int, float]]]:
    """Runs to the end or until a signal comes, and saves.

    Returns:
        The signal's number or None, where the run is now, and the time after each of its chunks, as
        for `outcome.write`.
    """
    config, label = setup.config, setup.label
    placement = seeds.placement(len(begun.metrics.steps), jax.devices())
    mesh, progress, first = None, begun, begun
    if placement is not None:
        metrics = seeds.filled(begun.metrics, placement)
        first = experiment.Progress(metrics, seeds.placed(begun.state, placement))
        mesh = placement.mesh
    stopped_by, timestamps = None, []
    saved_at = time.perf_counter()
    bar = progress_bar(total=config.num_episodes, initial=begun.num_episodes, label=label)
    answer = interrupts.saving(", after a compilation or the episodes that are under way")
    with bar, interrupts.stop_signals(answer) as stopped:
        for progress in experiment.advance(setup.environment, first, config=config, mesh=mesh):
            timestamps.append((progress.num_episodes, time.perf_counter()))
            bar.update(progress.num_episodes - bar.n)
            if len(timestamps) == _TIMED_CHUNKS:
                _announce_duration(bar, label, config, timestamps)
            stopped_by = stopped()
            if stopped_by is not None:
                break
            if timestamps[-1][1] - saved_at > _SECONDS_BETWEEN_CHECKPOINTS:
                _save(checkpointer, directory, seeds.cropped(progress, placement))
                saved_at = time.perf_counter()
        progress = seeds.cropped(progress, placement)
        _save(checkpointer, directory, progress)
    return stopped_by, progress, timestamps


def _announce_duration(
    bar: tqdm, label: str, config: experiment.Config, timestamps: list[tuple[int, float]]
) -> None:
    """Says how long it will take, judged by the episodes after the first chunk."""
    rate = outcome.seconds_per_episode(timestamps, 1) or 0.0
    seconds = rate * (config.num_episodes - timestamps[-1][0])
    if seconds > _SHORT:
        bar.write(f"{label}: about {durations.in_words(seconds)} are left")


def progress_bar(*, total: int, initial: int = 0, label: str | None = None) -> tqdm:
    """A bar over episodes; none where nobody watches, so that logs are not filled."""
    is_watched = sys.stderr.isatty()
    return tqdm(total=total, initial=initial, desc=label, unit="ep", disable=not is_watched)


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
