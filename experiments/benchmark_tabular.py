"""Seconds per DeepSea episode (acting, belief update, policy iteration) beside plain NumPy.

Both start from the same belief, which the agent reached after some episodes, and the ratio is taken
in one process. Policy iteration takes few steps in most episodes and dozens in some, so beside the
medians there is the ratio of all seconds, which is how much sooner a run ends. Example:
  python -m experiments.benchmark_tabular --lengths=10,20 --methods=exact_ube,psrl
"""

import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import flags

from experiments import cli
from qusac_jax.tabular import agent, environments, experiment
from tests import numpy_reference

METHODS = ("exact_ube", "pombu", "ensemble_var", "psrl")

_BLAS_SPIN = 0.2  # seconds for which NumPy's threads may keep their cores busy after a solve


def seconds_of_jax(on_device, state, environment, config, *, num_episodes: int):
    """Seconds per episode of a compiled scan, and the state after it."""
    start = time.perf_counter()
    state, metrics = experiment.run_chunk(
        on_device,
        state,
        num_episodes=num_episodes,
        episode_length=environment.episode_length,
        config=config,
    )
    jax.block_until_ready(metrics)
    return (time.perf_counter() - start) / num_episodes, state


def seconds_of_numpy(state, environment, config, *, num_episodes: int, redraw_ties: bool) -> float:
    """Seconds per episode of the reference from the belief and policy of the first seed."""
    belief = numpy_reference.Belief(*(np.array(leaf[0], np.float64) for leaf in state.belief[:3]))
    run = numpy_reference.Run(
        method=config.agent.method,
        min_local=config.agent.min_local,
        count_weight=config.count_weight,
        redraw_ties=redraw_ties,
    )
    policy, rng = np.array(state.policy[0]), np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(num_episodes):
        policy, _ = numpy_reference.episode(environment, belief, policy, rng, run)
    return (time.perf_counter() - start) / num_episodes


class Seconds(NamedTuple):
    """Of one episode, at each point of a run where both are timed."""

    jax: Sequence[float]
    numpy: Sequence[float]

    @property
    def median_ratio(self) -> float:
        """NumPy / JAX at the median point."""
        return statistics.median(
            slow / fast for fast, slow in zip(self.jax, self.numpy, strict=True)
        )

    @property
    def total_ratio(self) -> float:
        """NumPy / JAX over all points together."""
        return sum(self.numpy) / sum(self.jax)


def measure(
    length: int, method: str, *, rounds: int, num_episodes: int, gap: int, redraw_ties: bool = False
) -> Seconds:
    """Seconds per episode of both along one run.

    Args:
        length: L.
        method: of the agent.
        rounds: points along a run at which both are timed.
        num_episodes: that the reference plays at each point.
        gap: episodes between the points.
        redraw_ties: whether the reference draws ties anew in each step of policy iteration.
    """
    environment = environments.deep_sea(length)
    config = experiment.Config(
        agent=agent.Config(method=method, min_local=-0.05),
        count_weight=float(length),
        seed_axis="map",
    )
    on_device = experiment.to_device(environment)
    state = experiment.init(environment, jax.random.key(0), config=config)
    state = jax.tree.map(lambda leaf: leaf[None], state)
    _, state = seconds_of_jax(on_device, state, environment, config, num_episodes=gap)  # compiles
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(
            seconds_of_numpy(
                state, environment, config, num_episodes=num_episodes, redraw_ties=redraw_ties
            )
        )
        time.sleep(_BLAS_SPIN)
        seconds, state = seconds_of_jax(on_device, state, environment, config, num_episodes=gap)
        ours.append(seconds)
    return Seconds(ours, theirs)


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    flags.DEFINE_list("lengths", ["10", "20"], "values of L", flag_values=values)
    flags.DEFINE_list("methods", list(METHODS), "methods to time", flag_values=values)
    flags.DEFINE_integer(
        "rounds", 5, "points along a run at which both are timed", 1, flag_values=values
    )
    flags.DEFINE_integer(
        "numpy_episodes", 3, "episodes of NumPy at each point", 1, flag_values=values
    )
    flags.DEFINE_integer("gap", 10, "episodes between points", 1, flag_values=values)
    flags.DEFINE_boolean(
        "redraw_ties",
        False,
        "let NumPy draw ties anew in each step, which costs it many steps",
        flag_values=values,
    )
    return values


def run(options) -> None:
    """Prints a row for each length and method."""
    lengths = cli.integers("lengths", options.lengths)
    for name, values in (("lengths", lengths), ("methods", options.methods)):
        if not values:
            raise ValueError(f"{name} must name at least one to time, got none")
    for method in options.methods:
        agent.Config(method=method)  # raises for an unknown one before the work starts
    print("method          L   jax [s]  numpy [s]  ratio  in all")
    for length in lengths:
        for method in options.methods:
            seconds = measure(
                length,
                method,
                rounds=options.rounds,
                num_episodes=options.numpy_episodes,
                gap=options.gap,
                redraw_ties=options.redraw_ties,
            )
            print(
                f"{method:12s} {length:4d} {statistics.median(seconds.jax):9.4f} "
                f"{statistics.median(seconds.numpy):10.4f} {seconds.median_ratio:6.1f} "
                f"{seconds.total_ratio:7.1f}",
                flush=True,
            )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
