"""Episodes of DeepSea (acting, belief update, policy iteration) beside plain NumPy.

Both start from the same beliefs, which the agent reached after some episodes. Policy iteration
takes few steps in most episodes and dozens in some, so that medians of few calls jump.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from experiments.benchmark import baselines, measure, numpy_reference
from experiments.benchmark.jobs import Baseline, Case, Job, Measurement, Setting
from experiments.benchmark.measure import Timing, Work
from experiments.tabular import memory
from qusac_jax.tabular import agent, environments, experiment

_METHODS = ("exact_ube", "pombu", "ensemble_var", "psrl")
_LENGTHS = {False: (10, 20), True: (10,)}  # L of DeepSea, by whether the table is quick
_EPISODES = 10  # of a call
_NUMPY_EPISODES = 3


def jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each length, method and number of seeds."""
    for length in _LENGTHS[setting.is_quick]:
        environment = environments.deep_sea(length)
        for method in methods:
            config = experiment.Config(
                agent=agent.Config(method=method, min_local=-0.05), count_weight=float(length)
            )
            for num_seeds in setting.num_seeds:
                yield Job(
                    case="tabular_episode",
                    method=method,
                    num_seeds=num_seeds,
                    sizes=f"DeepSea L {length}: S {length**2}, N {config.agent.num_members}",
                    unit="episodes",
                    memory=memory.expected(environment, config, num_seeds).total,
                    calls=f"{1 + setting.repeat} calls of {_EPISODES} episodes"
                    + (f", {_NUMPY_EPISODES} by NumPy after each" * setting.has_baselines),
                    measure=functools.partial(_measure, setting, environment, config, num_seeds),
                )


def _measure(
    setting: Setting,
    environment: environments.Environment,
    config: experiment.Config,
    num_seeds: int,
) -> Measurement:
    """At several points along one run; NumPy at the first seed's."""
    on_cpu = jax.default_backend() == "cpu"
    config = dataclasses.replace(config, seed_axis="map" if on_cpu else "vmap")
    keys = jax.random.split(jax.random.key(0), num_seeds)
    state = jax.vmap(functools.partial(experiment.init, environment, config=config))(keys)
    on_device = experiment.to_device(environment)
    compiled = measure.compile_for(
        experiment.run_chunk,
        on_device,
        state,
        num_episodes=_EPISODES,
        episode_length=environment.episode_length,
        config=config,
    )

    plans: list[float] = []  # steps of policy iteration per episode, of each call

    def seconds_of_jax() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = compiled.call(on_device, state)
        jax.block_until_ready(metrics)
        seconds = time.perf_counter() - start
        plans.append(float(np.mean(metrics.steps)))
        return seconds

    warmup, ours, theirs, name = seconds_of_jax(), [], [], ""
    for _ in range(setting.repeat):
        if setting.has_baselines:
            with baselines.numpy_threads() as name:
                theirs.append(_seconds_of_numpy(state, environment, config))
        ours.append(seconds_of_jax())
    baseline = None
    if theirs:
        baseline = Baseline(name, _NUMPY_EPISODES / statistics.median(theirs))
    return Measurement(
        units=num_seeds * _EPISODES,
        timing=Timing(warmup, tuple(ours)),
        compile_seconds=compiled.seconds,
        work=least_work(config.agent, environment.num_states, environment.num_actions, plans[1:]),
        baseline=baseline,
    )


def least_work(
    config: agent.Config, num_states: int, num_actions: int, plans: Sequence[float]
) -> Work:
    """Of an episode's plan, counted by hand; draws and how long solvers iterate are left out.

    Sampled transitions are written once. A step of policy iteration reads all of them once, those
    of the mean MDP for each Q, and for each solve those of the policy, which one product checks.

    Args:
        config: of the agent, of a method of this case.
        num_states: S.
        num_actions: A.
        plans: steps of policy iteration per episode of each call.
    """
    pairs = num_states**2 * num_actions  # transition probabilities of an MDP
    if config.method == "psrl":
        num_sampled, vectors, means, solves = 1, 0, 1, 1
    else:
        num_sampled = config.num_members
        vectors = 3 if config.method == "exact_ube" else 1  # that members' probabilities weigh
        means = 1 if config.method == "ensemble_var" else 2
        solves = means + (0 if config.method == "pombu" else num_sampled)
    read = (means + (num_sampled if vectors else 0)) * pairs + solves * num_states**2
    products = (means + num_sampled * vectors) * pairs + solves * num_states**2
    steps = statistics.median(plans)
    return Work(2.0 * steps * products, 4.0 * (num_sampled * pairs + steps * read))


def _seconds_of_numpy(
    state: experiment.State, environment: environments.Environment, config: experiment.Config
) -> float:
    """Of episodes of the reference from the belief and policy of the first seed."""
    belief = numpy_reference.Belief(*(np.array(leaf[0], np.float64) for leaf in state.belief[:3]))
    run = numpy_reference.Run(
        method=config.agent.method,
        min_local=config.agent.min_local,
        count_weight=config.count_weight,
    )
    policy, rng = np.array(state.policy[0]), np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(_NUMPY_EPISODES):
        policy, _ = numpy_reference.episode(environment, belief, policy, rng, run)
    return time.perf_counter() - start


CASES = {
    "tabular_episode": Case(
        about="episodes of a tabular agent in DeepSea, planning included",
        methods=_METHODS,
        usual=_METHODS,
        quick=("exact_ube",),
        jobs=jobs,
    )
}
