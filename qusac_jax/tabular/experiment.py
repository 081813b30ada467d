"""Whole tabular runs: act, update the belief, plan; a scan over episodes, mapped over seeds.

Axes: R seeds, E episodes, S states, A actions, T steps of an episode.
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

from qusac_jax import posterior
from qusac_jax._checks import check_count
from qusac_jax.tabular import agent as agents
from qusac_jax.tabular.environments import Environment

SEED_AXES = ("vmap", "map")


@dataclasses.dataclass(frozen=True)
class Config:
    """A run of one agent in one environment."""

    agent: agents.Config = dataclasses.field(default_factory=agents.Config)
    num_episodes: int = 1000  # E
    count_weight: float = 1.0  # how many times each transition is counted; L for DeepSea
    noise_precision: float = 1e6  # inverse variance of an observed reward
    seed_axis: str = "vmap"  # vmap: all seeds at once; map: one after the other, as CPUs like it
    num_chunks: int = 50  # how often the host hears of progress

    def __post_init__(self):
        """Raises `ValueError` naming the field, its value and what is allowed."""
        for name in ("num_episodes", "num_chunks"):
            check_count(name, getattr(self, name))
        for name in ("count_weight", "noise_precision"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.seed_axis not in SEED_AXES:
            raise ValueError(f"seed_axis must be vmap or map, got {self.seed_axis!r}")


class World(NamedTuple):
    """An environment on the device."""

    cumulative: jax.Array  # [S, A, S] cumulative transition rows
    transition: jax.Array  # [S, A, S]
    reward: jax.Array  # [S, A]
    reward_std: jax.Array  # [S, A]
    cumulative_start: jax.Array  # [S]
    start: jax.Array  # [S]


class State(NamedTuple):
    """Everything that a run carries from episode to episode."""

    belief: posterior.Posterior
    policy: jax.Array  # [S]
    guess: agents.Guess
    visits: jax.Array  # [S, A] how often each action was taken
    key: jax.Array


class Episode(NamedTuple):
    """What one episode tells by itself."""

    policy: jax.Array  # [S] that it was acted with
    episode_return: jax.Array  # [] undiscounted and noiseless, as it was acted
    steps: jax.Array  # [] of policy iteration after the episode


class Metrics(NamedTuple):
    """What is kept of episodes; NumPy arrays when they come from the host."""

    episode_return: jax.Array | np.ndarray  # as in `Episode`
    expected_return: jax.Array | np.ndarray  # exact expectation of it under the policy
    steps: jax.Array | np.ndarray  # as in `Episode`


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


def make_world(environment: Environment, dtype=jnp.float32) -> World:
    """Puts an environment's arrays on the device."""
    return World(
        cumulative=jnp.asarray(np.cumsum(environment.transition, -1), dtype),
        transition=jnp.asarray(environment.transition, dtype),
        reward=jnp.asarray(environment.reward, dtype),
        reward_std=jnp.asarray(
            0 * environment.reward if environment.reward_std is None else environment.reward_std,
            dtype,
        ),
        cumulative_start=jnp.asarray(np.cumsum(environment.start), dtype),
        start=jnp.asarray(environment.start, dtype),
    )


def init(environment: Environment, key: chex.PRNGKey, *, config: Config) -> State:
    """The state before the first episode: no data and a random deterministic policy."""
    num_states, num_actions = environment.num_states, environment.num_actions
    key_policy, key = jax.random.split(key)
    return State(
        belief=posterior.init(num_states, num_actions),
        policy=jax.random.randint(key_policy, (num_states,), 0, num_actions),
        guess=agents.init_guess(num_states, config.agent),
        visits=jnp.zeros((num_states, num_actions)),
        key=key,
    )


def act(
    world: World, policy: jax.Array, key: chex.PRNGKey, *, horizon: int
) -> tuple[posterior.Transitions, jax.Array]:
    """Plays one episode.

    Args:
        world: the environment.
        policy: `[S]` actions.
        key: consumed.
        horizon: T.

    Returns:
        The transitions `[T]`, whose next state is S where the environment ended the episode (not
        where the horizon did), and `[T]` whether the step took place.
    """
    policy, num_states = jnp.asarray(policy), len(policy)
    key_start, key_steps, key_noise = jax.random.split(key, 3)
    first = _draw(world.cumulative_start, jax.random.uniform(key_start))

    def step(state, uniform):
        is_running = state < num_states
        place = jnp.minimum(state, num_states - 1)
        action = policy[place]
        next_state = _draw(world.cumulative[place, action], uniform)
        observed = (place, action, world.reward[place, action], next_state)
        next_state = jnp.where(is_running, next_state, num_states)
        return next_state, (posterior.Transitions(*observed), is_running)

    uniforms = jax.random.uniform(key_steps, (horizon,))
    transitions, happened = jax.lax.scan(step, first, uniforms)[1]
    noise = jax.random.normal(key_noise, (horizon,))
    noise *= world.reward_std[transitions.state, transitions.action]
    return transitions._replace(reward=transitions.reward + noise), happened


def _draw(cumulative, uniform):
    """Index of the outcome; the number of outcomes where the missing mass was drawn."""
    # Rounding must not make mass go missing where none is.
    is_whole = cumulative[-1] > 1 - 1e-5
    threshold = jnp.where(is_whole, uniform * cumulative[-1], uniform)
    last = jnp.where(is_whole, len(cumulative) - 1, len(cumulative))
    return jnp.minimum(jnp.sum(cumulative <= threshold), last)


def expected_return(world: World, policies: jax.Array, *, horizon: int) -> jax.Array:
    """Exact expected undiscounted returns `[E]` of `horizon` steps of policies `[E, S]`.

    One product of matrices per step for all policies; one policy at a time, each needs its own
    copy of the transitions.
    """
    choice = jnp.asarray(policies).T[:, None]

    def back(_, value):
        next_value = jnp.einsum("sat,te->sae", world.transition, value, precision="highest")
        return jnp.take_along_axis(world.reward[..., None] + next_value, choice, 1)[:, 0]

    nothing = jnp.zeros(choice[:, 0].shape, world.reward.dtype)
    return world.start @ jax.lax.fori_loop(0, horizon, back, nothing)


def episode(world: World, state: State, *, horizon: int, config: Config) -> tuple[State, Episode]:
    """One episode: act with the policy, update the belief, plan the next policy.

    Args:
        world: the environment.
        state: the run so far.
        horizon: T.
        config: static.

    Returns:
        The new state and what the episode tells.
    """
    key_act, key_plan, key = jax.random.split(state.key, 3)
    transitions, happened = act(world, state.policy, key_act, horizon=horizon)
    happened = happened.astype(transitions.reward.dtype)
    noiseless = world.reward[transitions.state, transitions.action]
    belief = posterior.update(
        state.belief,
        transitions,
        weight=config.count_weight * happened,
        noise_precision=config.noise_precision,
    )
    plan = agents.optimize(belief, state.policy, state.guess, key_plan, config=config.agent)
    played = Episode(
        policy=state.policy,
        episode_return=jnp.sum(happened * noiseless),
        steps=plan.steps,
    )
    visits = state.visits.at[transitions.state, transitions.action].add(happened)
    return State(belief, plan.policy, plan.guess, visits, key), played


@functools.partial(
    jax.jit, static_argnames=("num_episodes", "horizon", "config"), donate_argnames="state"
)
def run_chunk(
    world: World, state: State, *, num_episodes: int, horizon: int, config: Config
) -> tuple[State, Metrics]:
    """Some episodes of all seeds, as one compiled scan.

    Args:
        world: the environment.
        state: leading axis R; donated.
        num_episodes: static.
        horizon: static.
        config: static.

    Returns:
        The new state and metrics `[R, num_episodes]`.
    """

    def run_seed(state):
        def body(state, _):
            return episode(world, state, horizon=horizon, config=config)

        state, played = jax.lax.scan(body, state, length=num_episodes)
        expected = expected_return(world, played.policy, horizon=horizon)
        return state, Metrics(played.episode_return, expected, played.steps)

    if config.seed_axis == "map":
        return jax.lax.map(run_seed, state)
    return jax.vmap(run_seed)(state)


def begin(environment: Environment, seeds: Sequence[int], *, config: Config) -> Progress:
    """A run of which nothing is done yet.

    Args:
        environment: to act in.
        seeds: R different integers; the result of one does not depend on the others.
        config: of the run.

    Returns:
        A `Progress` of no episodes.

    Raises:
        ValueError: if there is no seed.
    """
    if not len(seeds):
        raise ValueError("seeds must hold at least one seed, got none")
    states = [init(environment, jax.random.key(seed), config=config) for seed in seeds]
    nothing = np.zeros((len(seeds), 0), np.float32)
    return Progress(
        Metrics(nothing, nothing, nothing.astype(np.int32)),
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
    )


def advance(environment: Environment, progress: Progress, *, config: Config) -> Iterator[Progress]:
    """Goes on with a run and yields it about `config.num_chunks` times in a whole run.

    Stop asking and the run stops; hand the last `Progress` in again and it goes on with the same
    results as if it had not stopped.

    Args:
        environment: to act in.
        progress: from `begin` or from here. Its `state` is donated: copy what is to be kept before
            the next one is asked for.
        config: of the run.

    Yields:
        The run so far, for the last time when all episodes are done.
    """
    world = make_world(environment)
    chunk = _chunk_size(config.num_episodes, config.num_chunks)
    metrics, state = progress
    while (done := metrics.steps.shape[1]) < config.num_episodes:
        state, new = run_chunk(
            world,
            state,
            num_episodes=min(chunk, config.num_episodes - done),
            horizon=environment.horizon,
            config=config,
        )
        new = jax.device_get(new)
        metrics = jax.tree.map(lambda old, new: np.concatenate([old, new], 1), metrics, new)
        yield Progress(metrics, state)


def run(environment: Environment, seeds: Sequence[int], *, config: Config) -> Result:
    """A whole run: `begin`, all of `advance`, and `judge`."""
    begun = begin(environment, seeds, config=config)
    last = collections.deque(advance(environment, begun, config=config), maxlen=1)
    return judge(environment, last[0])


def _chunk_size(num_episodes: int, num_chunks: int) -> int:
    """The largest divisor, so that one compiled function does every chunk."""
    most = max(1, num_episodes // num_chunks)
    return next(size for size in range(most, 0, -1) if num_episodes % size == 0)


def judge(environment: Environment, progress: Progress) -> Result:
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

    Args:
        solved: `[R, E]` bool.

    Returns:
        `[R]` floats, NaN where that never happened.
    """
    share = np.cumsum(solved, 1) / np.arange(1, solved.shape[1] + 1)
    learned = share > 0.1
    first = np.argmax(learned, 1) + 1.0
    return np.where(learned.any(1), first, np.nan)
