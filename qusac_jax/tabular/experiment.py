"""Whole tabular runs: act, update the belief, plan; a scan over episodes, mapped over seeds.

Axes: R seeds, E episodes, S states, A actions, T steps of an episode.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import posterior
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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
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
    cumulative_start: jax.Array  # [S]
    start: jax.Array  # [S]


class State(NamedTuple):
    """Everything that a run carries from episode to episode."""

    belief: posterior.Posterior
    policy: jax.Array  # [S]
    guess: agents.Guess
    visits: jax.Array  # [S, A] how often each action was taken
    key: jax.Array


class Metrics(NamedTuple):
    """What one episode tells."""

    episode_return: jax.Array  # [] undiscounted, of the episode that was acted
    expected_return: jax.Array  # [] exact expectation of it under the episode's policy
    steps: jax.Array  # [] of policy iteration after the episode
    iterations: jax.Array  # [] of the solver in the last of these
    fallbacks: jax.Array  # [] solver calls in it that needed LU


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
    key_start, key_steps = jax.random.split(key)
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
    return jax.lax.scan(step, first, uniforms)[1]


def _draw(cumulative, uniform):
    """Index of the outcome; the number of outcomes where the missing mass was drawn."""
    # Rounding must not make mass go missing where none is.
    is_whole = cumulative[-1] > 1 - 1e-5
    threshold = jnp.where(is_whole, uniform * cumulative[-1], uniform)
    last = jnp.where(is_whole, len(cumulative) - 1, len(cumulative))
    return jnp.minimum(jnp.sum(cumulative <= threshold), last)


def expected_return(world: World, policy: jax.Array, *, horizon: int) -> jax.Array:
    """Exact expected undiscounted return of `horizon` steps of a policy `[S]`."""
    policy, state = jnp.asarray(policy), jnp.arange(len(policy))
    flow, reward = world.transition[state, policy], world.reward[state, policy]

    def back(_, value):
        return reward + jnp.matmul(flow, value, precision="highest")

    return world.start @ jax.lax.fori_loop(0, horizon, back, jnp.zeros_like(reward))


def episode(world: World, state: State, *, horizon: int, config: Config) -> tuple[State, Metrics]:
    """One episode: act with the policy, update the belief, plan the next policy.

    Args:
        world: the environment.
        state: the run so far.
        horizon: T.
        config: static.

    Returns:
        The new state and the episode's metrics.
    """
    key_act, key_plan, key = jax.random.split(state.key, 3)
    transitions, happened = act(world, state.policy, key_act, horizon=horizon)
    happened = happened.astype(transitions.reward.dtype)
    belief = posterior.update(
        state.belief,
        transitions,
        weight=config.count_weight * happened,
        noise_precision=config.noise_precision,
    )
    plan = agents.optimize(belief, state.policy, state.guess, key_plan, config=config.agent)
    metrics = Metrics(
        episode_return=jnp.sum(happened * transitions.reward),
        expected_return=expected_return(world, state.policy, horizon=horizon),
        steps=plan.steps,
        iterations=plan.evaluation.iterations,
        fallbacks=plan.evaluation.fallbacks,
    )
    visits = state.visits.at[transitions.state, transitions.action].add(happened)
    return State(belief, plan.policy, plan.guess, visits, key), metrics


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

        return jax.lax.scan(body, state, length=num_episodes)

    if config.seed_axis == "map":
        return jax.lax.map(run_seed, state)
    return jax.vmap(run_seed)(state)


def run(
    environment: Environment,
    seeds: list[int] | range,
    *,
    config: Config,
    on_progress: Callable[[int, State], None] | None = None,
) -> Result:
    """Runs an agent for all seeds.

    Args:
        environment: to act in.
        seeds: R different integers; the result of one does not depend on the others.
        config: of the run.
        on_progress: called with the number of episodes done and the state (which the next chunk
            takes away: copy what is to be kept) about `config.num_chunks` times.

    Returns:
        A `Result`; of the episodes that were done, if a `KeyboardInterrupt` came.

    Raises:
        ValueError: if there is no seed.
    """
    if not len(seeds):
        raise ValueError("seeds must hold at least one seed, got none")
    world = make_world(environment)
    states = [init(environment, jax.random.key(seed), config=config) for seed in seeds]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    chunk = _chunk_size(config.num_episodes, config.num_chunks)
    chunks: list[Metrics] = []
    try:
        for start in range(0, config.num_episodes, chunk):
            new_state, metrics = run_chunk(
                world, state, num_episodes=chunk, horizon=environment.horizon, config=config
            )
            chunks.append(jax.device_get(metrics))  # waits, so that an interrupt comes here
            state = new_state
            if on_progress is not None:
                on_progress(start + chunk, state)
    except KeyboardInterrupt:
        if not chunks:
            raise
    metrics = jax.tree.map(lambda *parts: np.concatenate(parts, 1), *chunks)
    return Result(metrics, state, *_judge(environment, metrics))


def _chunk_size(num_episodes: int, num_chunks: int) -> int:
    """The largest divisor, so that one compiled function does every chunk."""
    most = max(1, num_episodes // num_chunks)
    return next(size for size in range(most, 0, -1) if num_episodes % size == 0)


def _judge(environment: Environment, metrics: Metrics) -> tuple[np.ndarray, np.ndarray]:
    """Regret and success of each episode."""
    if environment.solved_return is None:
        shortfall = environment.optimal_return - np.asarray(metrics.expected_return)
        return np.maximum(shortfall, 0.0), np.zeros(shortfall.shape, bool)
    solved = np.asarray(metrics.episode_return) >= environment.solved_return
    return 1.0 - solved, solved


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
