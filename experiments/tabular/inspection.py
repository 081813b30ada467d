"""One tabular run of one seed, with heat maps of what the agent believes of its policy.

Axes: S states, A actions.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax

from experiments import interrupts
from experiments.run_directory import RunDirectory
from experiments.tabular import figures, outcome, recorded_run
from experiments.tabular.setup import Setup
from qusac_jax.tabular import agent, experiment


def run(setup: Setup, drawn_at: Sequence[int], workdir: pathlib.Path) -> int | None:
    """Runs an agent and writes metrics.csv, summary.json and inspect.png.

    Args:
        setup: of one seed on a grid; the run reports after each of the episodes that are drawn.
        drawn_at: episodes after which the belief is drawn, ascending; the last ends the run.
        workdir: where the files go.

    Returns:
        The number of the signal that stopped it, or None.
    """
    about = {"config": dataclasses.asdict(setup.config), "inspect_episodes": drawn_at}
    with contextlib.closing(recorded_run.open_directory(setup, workdir, **about)) as directory:
        return _draw(directory, setup, drawn_at)


def _draw(directory: RunDirectory, setup: Setup, drawn_at: Sequence[int]) -> int | None:
    """`run` in a directory that is there."""
    environment, config, (seed,) = setup.environment, setup.config, setup.seeds
    progress = begun = experiment.begin(environment, setup.seeds, config=config)
    directory.accept(0)
    snapshots, stopped_by, timestamps = [], None, []
    bar = recorded_run.progress_bar(total=drawn_at[-1])
    with interrupts.stop_signals() as stopped, bar:
        for progress in experiment.advance(environment, begun, config=config):
            done = progress.num_episodes
            timestamps.append((done, time.perf_counter()))
            bar.update(done - bar.n)
            if done in drawn_at:
                key = jax.random.fold_in(jax.random.key(seed), done)
                snapshots.append(_snapshot(progress, key, config.agent))
            stopped_by = stopped()
            if stopped_by is not None:
                break
    outcome.write(directory, setup, progress, timestamps)
    if stopped_by is not None:
        print(
            f"stopped after {progress.num_episodes} episodes, {len(snapshots)} snapshots are kept"
        )
    if snapshots:
        path = directory.path / "inspect.png"
        figures.draw_snapshots(environment, snapshots, path, config.agent.method)
        print(f"heat maps -> {path}")
    return stopped_by


def _snapshot(
    progress: experiment.Progress, key: jax.Array, config: agent.Config
) -> figures.Snapshot:
    one = jax.tree.map(lambda leaf: leaf[0], progress.state)
    evaluation = agent.evaluate(one.belief, one.policy, key, config=config)
    arrays = jax.device_get((one.policy, one.visits, *evaluation[:3]))
    return figures.Snapshot(progress.num_episodes, *arrays)
