"""What an agent makes of data and models that do not change: `experiments.studies.frozen_data RUN`.

A new agent, with other hyperparameters if `--config_file` names some, learns from D and the models
of a saved run, without a step in the environment and without a fit. Whether a task is explored no
longer matters, only how well what is known is used: that compares targets, starts of rollouts or
networks in minutes. The temperature, and the place in a schedule of λ, are those of the saved
agent, so that the new one does not seek what was known by then.

Prints, each 10,000 updates, what the mean actions return without action cost, and for the states
that episodes begin in the value Q, the discounted return of rollouts in the models, which critics
learn from, and the one that came of them. Where Q is far from the models' return, critics are
wrong; where that is far from what came, models are. Neither return has the entropy bonus.

Axes: S states.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, evaluation
from experiments.saved_run import SavedRun
from experiments.studies import frozen
from qusac_jax import environments, qusac
from qusac_jax.qusac import agent, normalization

_LINE = 10_000  # updates between two lines
_DRAWS = 20  # rollouts from each first state
_FIRST_EPISODE = 500  # seed of its initial state; no run of a few hundred seeds has it
# What the saved models and D decide.
_FIXED = ("dynamics", "num_members", "replay_capacity", "discount", "normalize_observations")


class Row(NamedTuple):
    """One line of the table."""

    updates: int
    task_return: float  # without action cost, mean over episodes
    value: float  # Q at their first states
    model_return: float  # discounted, from there in the models
    discounted: float  # what came of it, with action cost
    model_value: float  # Q over the model's data


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("num_updates", 60_000, "gradient updates", 1, **define)
    flags.DEFINE_integer("episodes", 8, "for each line", 1, **define)
    frozen.define_flags(values, seed_of="the new agent")
    return values


def new_agent(
    saved: SavedRun, old: qusac.TrainState, config: qusac.Config, seed: int
) -> qusac.TrainState:
    """An agent with new weights, and D, models, temperature, scales and update count of another.

    Args:
        saved: the run.
        old: its state, of one seed.
        config: of the new agent.
        seed: of its weights.

    Raises:
        ValueError: if the configuration does not go with the saved models and D.
    """
    if not config.uses_model:
        raise ValueError("critic_data 'replay' uses no model; run experiments.online for it")
    frozen.check_fixed(saved.config, config, _FIXED)
    state = agent.init(jax.random.key(seed), config=config, task=saved.task)
    learner = normalization.taken_over(state.learner, old.learner)._replace(
        log_temperature=old.learner.log_temperature,
        local_max=old.learner.local_max,
        num_updates=old.learner.num_updates,
    )
    return state._replace(learner=learner, dynamics=old.dynamics, replay=old.replay)


def measure(
    saved: SavedRun,
    state: qusac.TrainState,
    config: qusac.Config,
    *,
    num_updates: int,
    episodes: int,
    line: int = _LINE,
) -> Iterator[Row]:
    """Learns on what is there, refreshing rollouts as often as a run does.

    Args:
        saved: the run, for its environment.
        state: from `new_agent`; donated.
        config: of the new agent.
        num_updates: rounded up to whole refreshes.
        episodes: for each row.
        line: updates between two rows, likewise.
    """
    both = {"config": config, "task": saved.task}
    act = jax.jit(functools.partial(qusac.act, **both))
    values_at = jax.jit(functools.partial(qusac.diagnostics.values_at, **both))
    model_return = jax.jit(functools.partial(discounted_in_models, num_draws=_DRAWS, **both))
    environment = environments.vector(
        saved.spec.name,
        [_FIRST_EPISODE + e for e in range(episodes)],
        action_cost=saved.spec.action_cost,
    )
    with contextlib.closing(environment):
        for done, learned, metrics in frozen.learn_on(
            state, config, saved.task, num_updates=num_updates, line=line
        ):
            policy = lambda observation, actor=learned.actor: np.asarray(act(actor, observation))
            result = evaluation.evaluate(environment, policy, 1, config.discount)
            first = jnp.asarray(result.first_observation[0])
            yield Row(
                done,
                float(result.episode_task_return.mean()),
                float(values_at(learned, first)[0].mean()),
                float(model_return(learned, first, jax.random.key(0)).mean()),
                float(result.discounted_return.mean()),
                float(metrics["mean_q"]),
            )


def discounted_in_models(
    state: qusac.TrainState,
    observation: jax.Array,
    key: jax.Array,
    *,
    config: qusac.Config,
    task: qusac.Task,
    num_draws: int,
) -> jax.Array:
    """Mean discounted return of the policy's draws in the members' models, without entropy bonus.

    These rollouts are longer than those that critics learn from, and models may run away. So they
    stay inside the range of D, and rewards, too.

    Args:
        state: of an agent with a model.
        observation: `[S, O]` where to begin.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes and termination.
        num_draws: rollouts from each state.

    Returns:
        `[S]`.
    """
    assert state.dynamics is not None
    known = frozen.with_range(state, config)
    transitions, alive = frozen.roll(
        state._replace(dynamics=known),
        observation,
        key,
        config=config,
        task=task,
        steps=frozen.horizon(config.discount),
        num_draws=num_draws,
        randomize_members=False,
    )
    reward = jnp.where(alive, transitions.reward, 0.0)
    weights = config.discount ** jnp.arange(len(reward))
    return frozen.by_state(jnp.tensordot(weights, reward, 1), len(observation), num_draws)


def run(options: Any, paths: Sequence[str]) -> None:
    """Learns as the flags say and prints the table."""
    found = frozen.load(options, paths)
    state = new_agent(found.saved, found.state, found.config, options.seed)
    frozen.print_head(
        found,
        "updates",
        "return",
        "Q, first states",
        "in the models",
        "came of it",
        "Q, model data",
    )
    counts = {"num_updates": options.num_updates, "episodes": options.episodes}
    for row in measure(found.saved, state, found.config, **counts):
        frozen.print_row(
            row.updates,
            f"{row.task_return:.0f}",
            f"{row.value:.1f}",
            f"{row.model_return:.1f}",
            f"{row.discounted:.1f}",
            f"{row.model_value:.1f}",
        )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")


if __name__ == "__main__":
    sys.exit(main())
