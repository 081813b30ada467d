"""Pictures of what a saved run knows, and of what it does not.

    python -m experiments.inspect RUN [--steps=STEP,STEP] [--seed_index=i]

RUN is the workdir of an online, offline or collect run with checkpoints; --keep_checkpoints of
the first two says how many stay. Writes

  maps.png      for tasks with up to three state variables: Q, sqrt(U) and visits over the states, a
                row per checkpoint and one color scale per column
  rollouts.png  for runs with a model: rollouts of its members beside the true episode, with the
                policy and the model of the last of the checkpoints
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, files, run_command
from experiments.inspect import fans, state_maps
from experiments.saved_run import SavedRun
from qusac_jax import qusac
from qusac_jax.checkpoint import CheckpointError
from qusac_jax.qusac.dynamics import Dynamics


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("steps", None, "of checkpoints; default all that are there", **define)
    flags.DEFINE_integer("seed_index", 0, "which seed of the run", **define)
    flags.DEFINE_integer("cells", 60, "along each axis of the maps", 2, 1000, **define)
    flags.DEFINE_integer("episode_steps", 200, "of the environment in rollouts.png", 1, **define)
    flags.DEFINE_integer("rollout_length", 25, "steps until rollouts begin anew", 1, **define)
    run_command.define_flags(values, seed_of="the episode", folder="inspect")
    return values


def run(options: Any, paths: Sequence[str]) -> None:
    """Draws what the flags ask for."""
    saved = run_command.open_run(options, paths)
    seed_index = saved.index(options.seed_index)
    steps = _steps(saved, options.steps)
    if saved.task.observation_size > state_maps.MOST_VARIABLES and not saved.config.uses_model:
        raise ValueError(
            f"run {str(saved.path)!r} has {saved.task.observation_size} state variables and no "
            f"model, so there is nothing to draw: maps are for {state_maps.MOST_VARIABLES} or "
            "fewer, rollouts for runs with a model"
        )
    output = pathlib.Path(options.output or saved.path / "inspect")
    files.check_writable(output / "maps.png")
    title = f"{saved.spec.name}, {saved.about['method']}, seed {saved.seeds[seed_index]}"
    state, plane, maps = _look(saved, steps, seed_index, options)
    if plane is not None:
        path = output / "maps.png"
        with_u = saved.config.qvariance.estimates_u
        state_maps.draw(maps, plane, path, title, with_u=with_u)
        print(f"maps over the states -> {path}")
    if state.dynamics is not None:
        path = output / "rollouts.png"
        dynamics = state.dynamics
        _draw_rollouts(saved, state, dynamics, path, f"{title}, step {steps[-1]}", options)
        print(f"rollouts of the model -> {path}")
    unread = [] if plane is not None else ["cells", *(["steps"] if len(steps) > 1 else [])]
    if not saved.config.uses_model:
        unread += ["episode_steps", "rollout_length", "seed"]
    for name in unread:
        if options[name].present:
            files.warn(f"{name} has no effect on the pictures of this run")


def _look(
    saved: SavedRun, steps: Sequence[int], seed_index: int, options: Any
) -> tuple[qusac.TrainState, state_maps.Plane | None, dict[int, state_maps.Maps]]:
    """The agent at the last of the steps, the plane of its states, and the maps of all by step.

    Of too many state variables there is no plane, and only the last checkpoint is read.
    """
    at = lambda step: jax.tree.map(lambda x: x[seed_index], saved.agent(step))
    last = at(steps[-1])
    plane = state_maps.plane_of(state_maps.data_of(last))  # it has most data, so it has the range
    if plane is None:
        return last, None, {}
    both = {"config": saved.config, "task": saved.task}
    maps = {}
    for step in steps:
        try:
            state = last if step == steps[-1] else at(step)
        except CheckpointError:
            # A run that goes on keeps its last ones only.
            if options.steps or step in saved.checkpoints():
                raise
            files.warn(f"checkpoint {step} was removed by the run that goes on; left out")
            continue
        maps[step] = state_maps.maps_of(state, plane, **both, num_cells=options.cells)
    return last, plane, maps


def _steps(saved: SavedRun, asked: Sequence[str] | None) -> list[int]:
    saved.checkpoint(None)  # an error if there is none
    there = saved.checkpoints()
    if asked is None:
        return there
    steps = sorted(set(cli.integers("steps", asked)))
    if not steps or not set(steps) <= set(there):
        raise ValueError(f"steps must be some of {there}, the checkpoints there, got {asked}")
    return steps


def _draw_rollouts(
    saved: SavedRun,
    state: qusac.TrainState,
    dynamics: Dynamics,
    path: pathlib.Path,
    title: str,
    options: Any,
) -> None:
    both = {"config": saved.config, "task": saved.task}
    act = jax.jit(lambda actor, observation: qusac.act(actor, observation, **both))
    policy = lambda observation: act(state.actor, observation)
    trajectory = fans.play(saved.spec, policy, options.episode_steps, options.seed)
    fan = fans.roll_out(dynamics, trajectory, options.rollout_length, **both)
    observation = jnp.asarray(trajectory.observation[:-1])
    _, std = qusac.diagnostics.values_at(state, observation, **both)
    std = np.asarray(std) if saved.config.qvariance.estimates_u else None
    fans.draw(trajectory, fan, std, path, title)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and draws; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")
