"""Speed of the deep agent at the paper's online sizes: `python -m experiments.benchmark`.

Prints a table of gradient updates per second for each method beside the share of this device's
float32 matrix-multiplication peak that they reach, the time of a model fit and of a rollout
refresh, environment steps per second, and compilations. Medians of repeated calls.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli
from qusac_jax import environments
from qusac_jax.qusac import agent, presets, replay
from qusac_jax.qusac.config import METHODS, Config

_METHODS = flags.DEFINE_list("methods", [*METHODS, "mbpo"], "methods and presets to time")
_ENV = flags.DEFINE_string("env", "cartpole_swingup", "environment to step, and for the sizes")
_REPEATS = flags.DEFINE_integer("repeats", 15, "calls per median", lower_bound=3)
_DATA = flags.DEFINE_integer("data", 20_000, "transitions in D", lower_bound=100)
_NUM_SEEDS = flags.DEFINE_integer("num_seeds", 1, "seeds trained together", lower_bound=1)
_DEVICE = flags.DEFINE_enum("device", "auto", ["auto", "cpu", "gpu", "tpu"], "where to compute")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write the numbers to")


def main() -> None:
    """Times everything and prints a markdown table."""
    device = cli.select_device(_DEVICE.value)[0]
    spec = environments.spec(_ENV.value)
    task = agent.Task(spec.observation_size, spec.action_size)
    peak = matmul_peak(_REPEATS.value)
    print(f"device {device.device_kind}, float32 matrix products {peak / 1e9:.0f} GFLOP/s")
    print(f"sizes: O {task.observation_size}, D {task.action_size}, R {_NUM_SEEDS.value}\n")
    print("| method | updates/s | GFLOP/update | share of peak | fit + refresh s | compilations |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    rows = []
    for name in _METHODS.value:
        config = (
            presets.get(name)
            if name in presets.PRESETS
            else dataclasses.replace(Config(), method=name)
        )
        row = {"method": name, **time_agent(config, task)}
        row["share_of_peak"] = row["updates_per_second"] * row["flop_per_update"] / peak
        rows.append(row)
        print(
            f"| {name} | {row['updates_per_second']:.1f} | {row['flop_per_update'] / 1e9:.2f} "
            f"| {row['share_of_peak']:.0%} | {row['refresh_seconds']:.2f} "
            f"| {row['compilations']} |",
            flush=True,
        )
    steps = environment_rate()
    print(f"\n{_ENV.value}: {steps:.0f} environment steps/s on the host")
    if _OUTPUT.value:
        content = {"device": device.device_kind, "peak_flops": peak, "rows": rows}
        pathlib.Path(_OUTPUT.value).write_text(json.dumps(content, indent=2) + "\n")


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median time of `call`, which must wait for its result; called once before."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul_peak(repeats: int, size: int = 2048) -> float:
    """Floating-point operations per second of a float32 matrix product, at default precision."""
    x = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x)
    return 2 * size**3 / median_seconds(lambda: product(x).block_until_ready(), repeats)


def update_flops(config: Config, task: agent.Task) -> float:
    """Floating-point operations in matrix products of one gradient update.

    Counts 2 per multiplication and addition, a backward pass as two forward ones (one where only
    the gradient of the input is needed). Element-wise work is left out.
    """
    batch, n = config.batch_size, config.num_members
    inputs = task.observation_size + task.action_size
    critic = _mlp_flops(inputs, config.critic_hidden, 1) * batch * config.num_critics
    unet = _mlp_flops(inputs, config.unet_hidden, 1) * batch * config.num_unets
    actor = _mlp_flops(task.observation_size, config.actor_hidden, 2 * task.action_size) * batch
    model = _mlp_flops(inputs, config.dynamics_hidden, 2 * (task.observation_size + 1)) * batch
    groups = config.num_groups
    # Critics: target forward, forward and backward; actor's pass: forward and input gradient.
    total = critic * groups * (1 + 3 + 2) + actor * (groups + 3)
    if config.uses_unet:
        total += unet * (1 + 3 + 2) + actor
        if config.method == "upper_bound":
            total += critic * groups
        else:
            samples = config.gap_samples if config.method == "exact_ube" else 1
            total += model * n + n * samples * (critic * groups + actor)
    return float(total)


def _mlp_flops(inputs: int, hidden: tuple[int, ...], outputs: int) -> int:
    sizes = (inputs, *hidden, outputs)
    return 2 * sum(a * b for a, b in itertools.pairwise(sizes))


def time_agent(config: Config, task: agent.Task) -> dict[str, float]:
    """Medians for one configuration on random data."""
    num_seeds = _NUM_SEEDS.value
    compilations = cli.CompilationCounter()

    def mapped(function: Callable[..., Any], donate: tuple[int, ...] = (0,)) -> Any:
        function = functools.partial(function, config=config, task=task)
        return jax.jit(jax.vmap(function), donate_argnums=donate)

    keys = jax.random.split(jax.random.key(0), num_seeds)
    state = mapped(agent.init, ())(keys)
    state = state._replace(replay=_random_data(config, task, num_seeds))
    refresh, train_step = mapped(agent.refresh), mapped(agent.train_step)
    transition = jax.tree.map(lambda x: x[:, 0], state.replay.data)
    transition = jax.tree.map(jnp.copy, transition)
    refresh_times = []
    for _ in range(3 if config.uses_model else 0):
        start = time.perf_counter()
        state, _ = refresh(state)
        jax.block_until_ready(state)
        refresh_times.append(time.perf_counter() - start)

    def step() -> None:
        nonlocal state
        state, action, _ = train_step(state, transition, transition.observation)
        np.asarray(action)

    seconds = median_seconds(step, _REPEATS.value)
    return {
        "updates_per_second": num_seeds * config.updates_per_step / seconds,
        "flop_per_update": update_flops(config, task),
        "refresh_seconds": refresh_times[-1] if refresh_times else 0.0,
        "compilations": compilations["train_step"] + compilations["refresh"],
    }


def _random_data(config: Config, task: agent.Task, num_seeds: int) -> replay.Buffer:
    """A buffer of noisy linear dynamics, so that a fit has something to learn."""
    count = min(_DATA.value, config.replay_capacity)
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(count, task.observation_size)).astype(np.float32)
    action = rng.uniform(-1, 1, (count, task.action_size)).astype(np.float32)
    noise = 0.05 * rng.normal(size=observation.shape).astype(np.float32)
    data = replay.Transition(
        jnp.asarray(observation),
        jnp.asarray(action),
        jnp.asarray(observation[:, 0] * 0.1),
        jnp.asarray(0.9 * observation + 0.1 * action[:, :1] + noise),
        jnp.zeros(count, bool),
    )
    empty = replay.init(config.replay_capacity, task.observation_size, task.action_size)
    buffer = jax.jit(replay.add)(empty, data)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_seeds, *x.shape)).copy(), buffer)


def environment_rate() -> float:
    """Steps per second of one environment with random actions, resets included."""
    env = environments.VectorEnvironment(_ENV.value, [0])
    env.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (1_000, 1, env.spec.action_size))

    def episode() -> None:
        for action in actions:
            env.step(action)

    return 1_000 / median_seconds(episode, 3)


if __name__ == "__main__":
    sys.exit(cli.run(main))
