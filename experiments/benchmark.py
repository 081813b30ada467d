"""Speed of the deep agent at the paper's online sizes: `python -m experiments.benchmark`.

Prints a table of gradient updates per second for each method beside the share of this device's
float32 matrix-multiplication peak that they reach, the time of a first model fit and of filling the
rollout buffers, environment steps per second, and compilations. Medians of repeated calls.
"""

import dataclasses
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, cost, files, seeds
from qusac_jax import environments
from qusac_jax._messages import did_you_mean
from qusac_jax.qusac import agent, presets, replay
from qusac_jax.qusac.config import METHODS, Config
from qusac_jax.task import Task

DEVICES = ("auto", "cpu", "gpu", "tpu")


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("methods", [*METHODS, "mbpo"], "methods and presets to time", **define)
    flags.DEFINE_string(
        "env", "cartpole_swingup", "environment to step, and for the sizes", **define
    )
    flags.DEFINE_integer("repeats", 15, "calls per median", lower_bound=3, **define)
    flags.DEFINE_integer("model_repeats", 3, "fits per median", lower_bound=1, **define)
    flags.DEFINE_integer("data", 20_000, "transitions in D", lower_bound=100, **define)
    flags.DEFINE_integer("num_seeds", 1, "seeds trained together", lower_bound=1, **define)
    flags.DEFINE_enum("device", "auto", DEVICES, "where to compute", **define)
    flags.DEFINE_string("output", None, "JSON file to write the numbers to", **define)
    return values


def run(options: flags.FlagValues) -> None:
    """Times everything and prints a markdown table."""
    configs = {name: _config(name) for name in options.methods}
    if not configs:
        raise ValueError("methods must name at least one method or preset to time, got none")
    environments.check_name(options.env)
    if options.output:
        files.check_writable(options.output)
    device = cli.select_device(options.device)[0]
    spec = environments.spec(options.env)
    task = spec.task()
    peak = matmul_peak(options.repeats)
    print(f"device {device.device_kind}, float32 matrix products {peak / 1e9:.0f} GFLOP/s")
    print(f"sizes: O {task.observation_size}, A {task.action_size}, R {options.num_seeds}\n")
    print("| method | updates/s | GFLOP/update | share of peak | compilations |")
    print("| --- | ---: | ---: | ---: | ---: |")
    rows = []
    for name, config in configs.items():
        replay_data = _random_data(config, task, options.num_seeds, options.data)
        row = {"method": name, **time_agent(config, task, replay_data, options.repeats)}
        row["share_of_peak"] = row["updates_per_second"] * row["flop_per_update"] / peak
        rows.append(row)
        print(
            f"| {name} | {row['updates_per_second']:.1f} | {row['flop_per_update'] / 1e9:.2f} "
            f"| {row['share_of_peak']:.0%} | {row['compilations']} |",
            flush=True,
        )
    replay_data = _random_data(Config(), task, options.num_seeds, options.data)
    model = time_model(Config(), task, replay_data, options.model_repeats)
    print(
        f"\nmodel: first fit {model['fit_seconds']:.2f} s ({model['fit_epochs']:.0f} epochs on "
        f"{options.data} transitions), filling D_model and D_1..D_N "
        f"{model['rollout_seconds']:.2f} s"
    )
    steps = environment_rate(options.env)
    print(f"{options.env}: {steps:.0f} environment steps/s on the host")
    if options.output:
        content = {
            "device": device.device_kind,
            "peak_flops": peak,
            "environment_steps_per_second": steps,
            "model": model,
            "rows": rows,
        }
        pathlib.Path(options.output).write_text(json.dumps(content, indent=2) + "\n")


def _config(name: str) -> Config:
    """Of a method or preset."""
    if name in METHODS:
        return dataclasses.replace(Config(), method=name)
    if name in presets.PRESETS:
        return presets.get(name)
    known = [*METHODS, *presets.PRESETS]
    raise ValueError(
        f"methods: {name!r} is neither a method nor a preset{did_you_mean(name, known)}; "
        f"choose from {', '.join(known)}"
    )


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


def time_agent(config: Config, task: Task, data: replay.Buffer, repeats: int) -> dict[str, float]:
    """Median speed of the gradient updates of one configuration on the data `[R, ...]`."""
    compilations = cli.CompilationCounter()
    state = _start(config, task, data)
    if config.uses_model:
        state = seeds.mapped(agent.roll_out, donate=(0,), config=config, task=task)(state)
    transition = jax.tree.map(lambda x: jnp.copy(x[:, 0]), state.replay.data)
    train_step = seeds.mapped(agent.train_step, donate=(0,), config=config, task=task)

    def step() -> None:
        nonlocal state
        state, action, _ = train_step(state, transition, transition.observation)
        np.asarray(action)

    seconds = median_seconds(step, repeats)
    return {
        "updates_per_second": len(data.size) * config.updates_per_step / seconds,
        "flop_per_update": cost.update_flops(config, task),
        "compilations": compilations["train_step"],
    }


def time_model(config: Config, task: Task, data: replay.Buffer, repeats: int) -> dict[str, float]:
    """Median seconds of a first model fit to the data and of filling the rollout buffers."""
    fit, roll_out = (
        seeds.mapped(function, donate=(0,), config=config, task=task)
        for function in (agent.fit, agent.roll_out)
    )
    fit_seconds, rollout_seconds, epochs = [], [], 0
    for _ in range(1 + repeats):  # the first compiles
        state = _start(config, task, data)  # a later fit takes fewer epochs than the first
        (state, report), seconds = _timed(fit, state)
        fit_seconds.append(seconds)
        state, seconds = _timed(roll_out, state)
        rollout_seconds.append(seconds)
        epochs = int(report.epochs.max())
    return {
        "fit_seconds": statistics.median(fit_seconds[1:]),
        "fit_epochs": epochs,
        "rollout_seconds": statistics.median(rollout_seconds[1:]),
    }


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - start


def _start(config: Config, task: Task, data: replay.Buffer) -> agent.TrainState:
    """The state of R seeds with a copy of the data as D."""
    keys = jax.random.split(jax.random.key(0), len(data.size))
    state = seeds.mapped(agent.init, config=config, task=task)(keys)
    return state._replace(replay=jax.tree.map(jnp.copy, data))


def _random_data(config: Config, task: Task, num_seeds: int, count: int) -> replay.Buffer:
    """A buffer `[R, ...]` of noisy linear dynamics, so that a fit has something to learn."""
    count = min(count, config.replay_capacity)
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


def environment_rate(name: str) -> float:
    """Steps per second of one environment with random actions, resets included."""
    env = environments.vector(name, [0])
    env.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (1_000, 1, env.spec.action_size))

    def episode() -> None:
        for action in actions:
            env.step(action)

    return 1_000 / median_seconds(episode, 3)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and times; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
