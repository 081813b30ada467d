"""Whole tabular runs: act, update the belief, plan; a scan over episodes, mapped over seeds.

Axes: R seeds, E episodes, S states, A actions, T steps of an episode at most.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _fields, posterior
from qusac_jax._checks import check_count
from qusac_jax._fields import Check, check_choice, checked
from qusac_jax.sparse import Sparse
from qusac_jax.tabular import agent as agents
from qusac_jax.tabular.environment import Environment
from qusac_jax.tabular.simulation import DeviceEnvironment, act, expected_return, to_device

SEED_AXES = ("vmap", "map")

_LEARNED_SHARE = 0.1  # of the episodes that are solved, above which an agent has learned


_positive = _fields.positive._replace(requirement="be positive")
_positive_or_none = Check(lambda value: value is None or _positive.holds(value), "be positive")


@dataclasses.dataclass(frozen=True)
class Config:
    """A run of one agent in one environment."""

    agent: agents.Config = dataclasses.field(default_factory=agents.Config)
    num_episodes: int = checked(1000, _fields.integer(1))  # E
    # How many times each transition is counted; L for DeepSea
    count_weight: float = checked(1.0, _positive)
    # Inverse variance of an observed reward, as agents assume it; None: the environment's.
    noise_precision: float | None = checked(None, _positive_or_none)
    seed_axis: str = "vmap"  # vmap: all seeds at once; map: one after the other, as CPUs like it
    num_chunks: int = checked(50, _fields.integer(1))  # in which a run reports to the host

    def __post_init__(self):
        """Raises `ValueError` naming the field, its value and what is allowed."""
        _fields.check_fields(self)
        if not isinstance(self.agent, agents.Config):
            raise ValueError(f"agent must be a tabular.agent.Config, got {self.agent!r}")
        check_choice("seed_axis", self.seed_axis, SEED_AXES)


class State(NamedTuple):
    """Everything that a run carries from episode to episode."""

    belief: posterior.Posterior
    policy: jax.Array  # [S]
    warm_start: agents.WarmStart
    visits: jax.Array  # [S, A] how often each action was taken
    key: jax.Array


class Episode(NamedTuple):
    """What one episode is measured by."""

    policy: jax.Array  # [S] that it was acted with
    episode_return: jax.Array  # [] undiscounted and noiseless, as it was acted
    steps: jax.Array  # [] of policy iteration after the episode
    unsolved: jax.Array  # [] solves among them that BiCGStab did not finish


class Metrics(NamedTuple):
    """What is kept of episodes; NumPy arrays when they come from the host."""

    episode_return: jax.Array | np.ndarray  # as in `Episode`
    expected_return: jax.Array | np.ndarray  # exact expectation of it under the policy
    steps: jax.Array | np.ndarray  # as in `Episode`
    # As in `Episode`; None of dense problems, where there are none.
    unsolved: jax.Array | np.ndarray | None = None


class Progress(NamedTuple):
    """A run so far: enough to continue it."""

    metrics: Metrics  # [R, E] each, of the E episodes that were done
    state: State  # leading axis R, after them

    @property
    def num_episodes(self) -> int:
        """How many episodes of each seed were done."""
        return self.metrics.steps.shape[1]


class Result(NamedTuple):
    """A run, or what was done of it."""

    metrics: Metrics  # [R, E] each
    state: State  # leading axis R, after the last episode
    regret: np.ndarray  # [R, E] of each episode
    solved: np.ndarray  # [R, E] bool


def init(environment: Environment, key: chex.PRNGKey, *, config: Config) -> State:
    """The state before the first episode: no data and a random deterministic policy."""
    num_states, num_actions = environment.num_states, environment.num_actions
    key_policy, key = jax.random.split(key)
    transition = environment.transition
    support = transition.next_state if isinstance(transition, Sparse) else None
    return State(
        belief=posterior.init(num_states, num_actions, support=support),
        policy=jax.random.randint(key_policy, (num_states,), 0, num_actions, jnp.int32),
        warm_start=agents.init_warm_start(num_states, config.agent),
        visits=jnp.zeros((num_states, num_actions)),
        key=key,
    )


def episode(
    environment: DeviceEnvironment, state: State, *, episode_length: int, config: Config
) -> tuple[State, Episode]:
    """One episode: act with the policy, update the belief, plan the next policy.

    Args:
        environment: on the device.
        state: the run so far.
        episode_length: T.
        config: static.

    Returns:
        The new state and the episode.
    """
    key_act, key_plan, key = jax.random.split(state.key, 3)
    transitions, happened = act(environment, state.policy, key_act, episode_length=episode_length)
    happened = happened.astype(transitions.reward.dtype)
    noiseless = environment.reward[transitions.state, transitions.action]
    precision = config.noise_precision
    belief = posterior.update(
        state.belief,
        transitions,
        weight=config.count_weight * happened,
        noise_precision=environment.noise_precision if precision is None else precision,
    )
    plan = agents.optimize(belief, state.policy, state.warm_start, key_plan, config=config.agent)
    played = Episode(
        policy=state.policy,
        episode_return=jnp.sum(happened * noiseless),
        steps=plan.steps,
        unsolved=plan.unsolved,
    )
    visits = state.visits.at[transitions.state, transitions.action].add(happened)
    return State(belief, plan.policy, plan.warm_start, visits, key), played


@functools.partial(
    jax.jit,
    static_argnames=("num_episodes", "episode_length", "config", "mesh"),
    donate_argnames="state",
)
def run_chunk(
    environment: DeviceEnvironment,
    state: State,
    *,
    num_episodes: int,
    episode_length: int,
    config: Config,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[State, Metrics]:
    """Some episodes of all seeds, as one compiled scan.

    Args:
        environment: on the device.
        state: leading axis R; donated.
        num_episodes: static.
        episode_length: static.
        config: static.
        mesh: static; devices along one axis, each with its share of the seeds; None for one.

    Returns:
        The new state and metrics `[R, num_episodes]`.
    """

    def run_seed(environment, state):
        def body(state, _):
            return episode(environment, state, episode_length=episode_length, config=config)

        state, played = jax.lax.scan(body, state, length=num_episodes)
        expected = expected_return(environment, played.policy, episode_length=episode_length)
        unsolved = None if state.belief.support is None else played.unsolved
        return state, Metrics(played.episode_return, expected, played.steps, unsolved)

    def run_seeds(environment, state):
        one = functools.partial(run_seed, environment)
        return jax.lax.map(one, state) if config.seed_axis == "map" else jax.vmap(one)(state)

    if mesh is None:
        return run_seeds(environment, state)
    # Nothing passes between devices, which the partitioner does not see of linear solvers.
    everywhere, by_seed = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(*mesh.axis_names)
    spread = jax.shard_map(
        run_seeds,
        mesh=mesh,
        in_specs=(everywhere, by_seed),
        out_specs=by_seed,
        check_vma=False,  # loops begin with constants, which are no device's own
    )
    return spread(environment, state)


def begin(environment: Environment, seeds: Sequence[int], *, config: Config) -> Progress:
    """A run of which nothing is done yet.

    Args:
        environment: to act in.
        seeds: R different integers; the result of one does not depend on the others.
        config: of the run.

    Returns:
        A `Progress` of no episodes.

    Raises:
        ValueError: if there is no seed, one that is no integer in [0, 2**31), or one twice.
    """
    if np.ndim(seeds) != 1 or not len(seeds):
        raise ValueError(f"seeds must hold at least one seed, got {seeds!r}; pass e.g. [0]")
    if max(check_count("seed", seed, least=0) for seed in seeds) >= 2**31:
        raise ValueError(f"seeds must be below 2**31, got {seeds!r}; choose smaller numbers")
    if len(set(map(int, seeds))) < len(seeds):
        raise ValueError(f"seeds must differ, got {list(seeds)}; leave out what is there twice")
    states = [init(environment, jax.random.key(seed), config=config) for seed in seeds]
    empty = np.zeros((len(seeds), 0), np.float32)
    none = empty.astype(np.int32)
    unsolved = none if isinstance(environment.transition, Sparse) else None
    return Progress(
        Metrics(empty, empty, none, unsolved),
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
    )


def advance(
    environment: Environment,
    progress: Progress,
    *,
    config: Config,
    mesh: jax.sharding.Mesh | None = None,
) -> Iterator[Progress]:
    """Goes on with a run and yields it about `config.num_chunks` times in a whole run.

    Stop asking and the run stops; hand the last `Progress` in again and it goes on with the same
    results as if it had not stopped.

    Args:
        environment: to act in.
        progress: from `begin` or from here. Its `state` is donated: copy what is to be kept before
            the next one is asked for.
        config: of the run.
        mesh: devices along one axis, whose size divides R, for the seeds to be spread over; None
            for one device.

    Yields:
        The run so far, for the last time when all episodes are done.
    """
    on_device = to_device(environment)
    chunk = _chunk_size(config.num_episodes, config.num_chunks)
    # Runs of different lengths share what is compiled.
    config_of_chunk = dataclasses.replace(config, num_episodes=chunk, num_chunks=1)
    metrics, state = progress
    while (done := metrics.steps.shape[1]) < config.num_episodes:
        state, new = run_chunk(
            on_device,
            state,
            num_episodes=min(chunk, config.num_episodes - done),
            episode_length=environment.episode_length,
            config=config_of_chunk,
            mesh=mesh,
        )
        new = jax.device_get(new)
        metrics = jax.tree.map(lambda old, new: np.concatenate([old, new], 1), metrics, new)
        yield Progress(metrics, state)


def run(environment: Environment, seeds: Sequence[int], *, config: Config) -> Result:
    """A whole run: `begin`, all of `advance`, and `measure_regret`."""
    begun = begin(environment, seeds, config=config)
    last = collections.deque(advance(environment, begun, config=config), maxlen=1)
    return measure_regret(environment, last[0])


def _chunk_size(num_episodes: int, num_chunks: int) -> int:
    """A divisor, so that one compiled function does every chunk, if one is about as large."""
    most = max(1, num_episodes // num_chunks)
    sizes = range(most, most // 2, -1)
    return next((size for size in sizes if num_episodes % size == 0), most)


def measure_regret(environment: Environment, progress: Progress) -> Result:
    """Regret and success of each episode so far."""
    metrics = progress.metrics
    threshold = np.inf if environment.solved_return is None else environment.solved_return
    solved = np.asarray(metrics.episode_return) >= threshold
    if environment.regret == "unsolved":
        regret = 1.0 - solved
    else:
        shortfall = environment.optimal_return - np.asarray(metrics.expected_return)
        regret = np.maximum(shortfall, 0.0)
    return Result(metrics, progress.state, regret, solved)


def learning_time(solved: np.ndarray) -> np.ndarray:
    """First episode (counted from 1) at which over 10 % of the episodes so far were solved.

    "Over" is what the authors' published data follow; the paper's figure says "at least 10 %".

    Args:
        solved: `[R, E]` bool.

    Returns:
        `[R]` floats, NaN where that never happened.
    """
    if not solved.shape[1]:
        return np.full(len(solved), np.nan)
    share = np.cumsum(solved, 1) / np.arange(1, solved.shape[1] + 1)
    learned = share > _LEARNED_SHARE
    first = np.argmax(learned, 1) + 1.0
    return np.where(learned.any(1), first, np.nan)
