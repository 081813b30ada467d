"""What the studies share that learn anew from a saved run, which stays as it is.

Axes: S states, T steps, N members, O observation size.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from experiments import cli, config_file, files, jax_settings, markdown, run_command
from experiments.calibration import comparison
from experiments.saved_run import SavedRun
from qusac_jax import qusac
from qusac_jax.qusac import agent, fitting_data, model, rollouts
from qusac_jax.qusac import state as state_lib
from qusac_jax.qusac.dynamics import Dynamics
from qusac_jax.task import Transition

_MAX_STEPS = 1_000  # of a rollout, which is too few for a discount above 0.996


class Frozen(NamedTuple):
    """What is learned from, and with which hyperparameters."""

    saved: SavedRun
    step: int  # of the checkpoint
    state: qusac.TrainState  # there, of one seed
    config: qusac.Config  # of the run, with what `--config_file` changes


def define_flags(values: flags.FlagValues, *, seed_of: str) -> None:
    """Adds the flags of all of them, with a seed of what is learned anew."""
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("step", None, "of the checkpoint; default the last", **define)
    flags.DEFINE_integer("seed_index", 0, "which seed of the run", 0, **define)
    config_file.define_flag(values)
    flags.DEFINE_integer("seed", 0, f"of {seed_of}", 0, cli.MAX_SEED, **define)
    jax_settings.define_flags(values)


def load(options: Any, paths: Sequence[str]) -> Frozen:
    """What the command line names.

    Raises:
        ValueError: if it is not there, or is of a run that learned from a dataset, so that D is not
            what it has met.
    """
    saved = run_command.open_run(options, paths)
    if "dataset" in saved.about:
        raise ValueError(
            f"run {str(saved.path)!r} learned from a dataset; pass the workdir of an online run"
        )
    step, index = saved.checkpoint(options.step), saved.index(options.seed_index)
    config = saved.config
    if options.config_file is not None:
        config = config_file.changed(config, config_file.read(options.config_file))
    return Frozen(saved, step, jax.tree.map(lambda x: x[index], saved.state(step)), config)


def learn_on(
    state: qusac.TrainState, config: qusac.Config, task: qusac.Task, *, num_updates: int, line: int
) -> Iterator[tuple[int, qusac.TrainState, agent.Metrics]]:
    """Learns from D and models as they are, refreshing rollouts as often as a run does.

    Args:
        state: of one seed; donated.
        config: hyperparameters.
        task: the environment's sizes and termination.
        num_updates: rounded up to whole refreshes.
        line: updates between two results, likewise.

    Yields:
        The updates done, the state, which is donated when the next result is asked for, and the
        metrics of the last update, `[]` each; also at the end.
    """
    jitted = lambda verb, **more: jax.jit(
        functools.partial(verb, config=config, task=task, **more), donate_argnums=0
    )
    per_refresh = config.rollout_interval * config.updates_per_step
    roll_out = jitted(agent.roll_out)
    learn = jitted(agent.learn, num_updates=per_refresh)
    for done in range(per_refresh, num_updates + per_refresh, per_refresh):
        state, metrics = learn(roll_out(state))
        if done // line != (done - per_refresh) // line or done >= num_updates:
            yield done, state, metrics


def horizon(discount: float) -> int:
    """Steps of a rollout that tells a discounted sum."""
    return comparison.horizon(discount, _MAX_STEPS)


def with_range(state: qusac.TrainState, config: qusac.Config) -> Dynamics:
    """The models of an agent with the range of D, which predictions then stay inside."""
    assert state.dynamics is not None
    inside = dataclasses.replace(config.dynamics, clip_observations=True, clip_rewards=True)
    return fitting_data.with_range(state.dynamics, state.replay, inside)


def roll(
    state: qusac.TrainState,
    observation: jax.Array,
    key: jax.Array,
    *,
    config: qusac.Config,
    task: qusac.Task,
    steps: int,
    num_draws: int,
    randomize_members: bool,
) -> tuple[Transition, jax.Array]:
    """Rollouts of the policy in the models, from each of these states.

    Args:
        state: of an agent with a model.
        observation: `[S, O]`.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes and termination.
        steps: T.
        num_draws: rollouts from each state.
        randomize_members: whether each step draws a member; else a rollout stays with one.

    Returns:
        Transitions `[T, num_draws * S + more, ...]`, and whether they come before a predicted end.
        The draws of all states follow each other; there are more of them to give each member as
        many.
    """
    assert state.dynamics is not None
    members = config.num_members
    padded = -(-len(observation) * num_draws // members) * members
    start = jnp.resize(observation, (padded, observation.shape[-1]))
    policy = lambda o, key: agent.act(state.actor, o, key, config=config, task=task)
    rolled = rollouts.rollout(
        state_lib.dynamics_model(config, task),
        state.dynamics,
        policy,
        model.termination(state.dynamics, config=config, task=task),
        start.reshape(members, -1, start.shape[-1]),
        key,
        length=steps,
        randomize_members=randomize_members,
    )
    return jax.tree.map(lambda x: x.reshape(len(x), padded, *x.shape[3:]), rolled)


def by_state(x: jax.Array, count: int, num_draws: int) -> jax.Array:
    """Means over the draws of `roll`: `[..., num_draws * S + more]` to `[..., S]`."""
    kept = x[..., : count * num_draws]
    return jnp.mean(kept.reshape(*kept.shape[:-1], num_draws, count), axis=-2)


def check_fixed(before: qusac.Config, after: qusac.Config, names: Sequence[str]) -> None:
    """Raises `ValueError` if one of these hyperparameters is not that of the run."""
    for name in names:
        known, given = getattr(before, name), getattr(after, name)
        if given != known:
            raise ValueError(f"{name} must be that of the run, {known}, got {given}")


def print_head(found: Frozen, *columns: str) -> None:
    """Prints what is learned from, what is set otherwise, and the head of a table."""
    changed = changes(found.saved.config, found.config) or "as it was"
    count = int(found.state.replay.size)
    print(f"{found.saved.spec.name}, step {found.step}, {count} transitions; {changed}")
    print(markdown.head(columns))


def print_row(*cells: object) -> None:
    """Prints a line of that table, at once: the next one takes minutes."""
    print(markdown.row(cells), flush=True)


def changes(before: qusac.Config, after: qusac.Config) -> str:
    """What is set otherwise, such as `dynamics.batch_size 64`; empty if nothing is."""
    old, new = (files.flatten(dataclasses.asdict(config)) for config in (before, after))
    return ", ".join(f"{name} {new[name]}" for name in new if new[name] != old[name])
