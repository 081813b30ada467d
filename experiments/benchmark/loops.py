"""Cases of stepping: environments on the host, and whole loops on the device.

Axes: R seeds, T steps of a call.
"""

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import memory, operations, seeds
from experiments.benchmark import measure
from experiments.benchmark.agents import NAMES, config_of, filled_state
from experiments.benchmark.jobs import Baseline, Case, Job, Measurement, Setting
from experiments.benchmark.measure import Work
from experiments.training import device_loop
from qusac_jax import environments, qusac
from qusac_jax.environments.device_vector import DeviceVector

_STEPS = {False: 500, True: 200}  # of a call, by whether the table is quick
_LEARNING_STEPS = {False: 100, True: 20}
# The same task on the device and on the host: the paper's by Playground, where it is installed and
# loads them, else one of Brax.
_PLAYGROUND = tuple((f"playground:{name}", name) for name in environments.PAPER_TASKS)
_BRAX = (("brax:inverted_pendulum:spring", "gym:InvertedPendulum-v5"),)


def act_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """Steps of the warm-up: every environment steps, its transition is stored, the agent acts."""
    spec = environments.spec(setting.env)
    task, steps = spec.task("never"), _STEPS[setting.is_quick]
    for method in methods:
        config = config_of(method, setting.size)
        for num_seeds in setting.num_seeds:
            yield Job(
                case="act_loop",
                method=method,
                num_seeds=num_seeds,
                sizes=f"{setting.env}, {setting.size}: O {task.observation_size}, "
                f"A {task.action_size}",
                unit="environment steps",
                memory=memory.expected(config, task, num_seeds).total,
                calls=f"{1 + setting.repeat} calls of {steps} steps",
                measure=functools.partial(_measure_act, setting, config, task, num_seeds),
            )


def _measure_act(
    setting: Setting, config: qusac.Config, task: qusac.Task, num_seeds: int
) -> Measurement:
    both: dict[str, Any] = {"config": config, "task": task}
    keys = jax.random.split(jax.random.key(0), num_seeds)
    state = seeds.mapped(qusac.init, **both)(keys)
    env = environments.vector(setting.env, range(num_seeds))
    host = _Host(env)
    collect = seeds.mapped(qusac.collect, donate=(0,), **both)
    compiled = measure.compile_for(collect, state, host.step(), host.observation)
    steps = _STEPS[setting.is_quick]

    def call() -> None:
        nonlocal state
        for _ in range(steps):
            transition = host.step()
            state, action = compiled.call(state, transition, host.observation)
            host.action = np.asarray(action)

    def step_alone() -> None:
        for _ in range(steps):
            host.step()

    units = num_seeds * steps
    timing = measure.timed(call, setting.repeat)
    baseline = None
    if setting.has_baselines:
        alone = measure.timed(step_alone, setting.repeat)
        baseline = Baseline("environment alone", units / statistics.median(alone.seconds))
    env.close()
    return Measurement(
        units=units,
        timing=timing,
        compile_seconds=compiled.seconds,
        work=collect_work(config, task),
        baseline=baseline,
    )


def collect_work(config: qusac.Config, task: qusac.Task) -> Work:
    """Of a step without updates, by the program of one seed.

    Where several seeds store a transition at once, XLA counts all of D as read and written, which
    it is not: a call takes as long with fifty times the capacity.
    """
    both: dict[str, Any] = {"config": config, "task": task}
    state = jax.eval_shape(seeds.mapped(qusac.init, **both), jax.random.split(jax.random.key(0), 1))
    stored = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *x.shape[2:]), x.dtype), state.replay.data
    )
    collect = seeds.mapped(qusac.collect, donate=(0,), **both)
    compiled = measure.compile_for(collect, state, stored, stored.observation)
    return compiled.work(per_iteration=1, per_call=1)


class _Host:
    """Environments that are stepped on the host, and where they are."""

    def __init__(self, env: environments.AnyVector):
        self._env = env
        self.observation = env.reset()
        self.action = np.zeros((len(env), env.spec.action_size), np.float32)

    def step(self) -> qusac.Transition:
        """Takes the action; returns what it led to `[R, ...]`."""
        result = self._env.step(self.action)
        transition = qusac.Transition.of_step(self.observation, self.action, result)
        self.observation = result.observation
        return transition


def device_jobs(
    setting: Setting, methods: Sequence[str], *, case: str, learns: bool
) -> Iterator[Job]:
    """Steps in one call to the device; nothing where no package for it is installed.

    Args:
        setting: of the command line.
        methods: of the agents.
        case: the rows' name.
        learns: whether each step has its gradient updates, or is one of the warm-up.
    """
    count = (_LEARNING_STEPS if learns else _STEPS)[setting.is_quick]
    for names in tasks_on_device_and_host():
        task = environments.spec(names[0]).task("never")
        for method in methods:
            config = config_of(method, setting.size)
            updates = f", {config.updates_per_step} updates a step" if learns else ""
            flops = config.updates_per_step * operations.update_flops(config, task)
            for num_seeds in setting.num_seeds:
                yield Job(
                    case=case,
                    method=method,
                    num_seeds=num_seeds,
                    sizes=f"{names[0]}, {setting.size}{updates}",
                    unit="environment steps",
                    memory=memory.expected(config, task, num_seeds).total,
                    calls=f"up to {1 + setting.repeat} calls of {count} steps, on the host as well",
                    measure=functools.partial(
                        _measure_device, setting, config, num_seeds, names, count, learns
                    ),
                    flops=2.0 * num_seeds * count * flops if learns else None,
                )


def tasks_on_device_and_host() -> list[tuple[str, str]]:
    """Names of tasks on the device and of the same on the host, as far as they load."""
    found = [names for names in _PLAYGROUND if _loads(names[0])]
    return found or [names for names in _BRAX if _loads(names[0])]


def _loads(name: str) -> bool:
    try:
        environments.spec(name)
    except ValueError:
        return False
    return True


def _measure_device(
    setting: Setting,
    config: qusac.Config,
    num_seeds: int,
    names: tuple[str, str],
    steps: int,
    learns: bool,
) -> Measurement:
    on_device, on_host = names
    vector = DeviceVector(on_device, range(num_seeds))
    task = vector.spec.task("never")
    state = filled_state(config, task, num_seeds, config.replay_capacity)
    never = np.zeros(steps, bool)
    plan = device_loop.Plan(np.array(steps, np.int32), never, never, np.full(steps, learns))
    run_steps = functools.partial(
        device_loop.run_steps,
        env=vector.environment,
        config=config,
        task=task,
        action_cost=vector.spec.action_cost,
        reward_threshold=0.0,
    )
    action = jnp.zeros((num_seeds, task.action_size))
    envs = vector.streams
    compiled = measure.compile_for(
        jax.jit(run_steps, donate_argnums=(0, 1)), state, envs, action, plan
    )

    def call() -> None:
        nonlocal state, envs, action
        state, envs, action, _ = compiled.call(state, envs, action, plan)
        jax.block_until_ready(action)

    units = num_seeds * steps
    timing = measure.timed(call, setting.repeat)
    state = envs = None
    # Not of what was compiled: XLA would count what a step may do and does not, too.
    work = baseline = None
    if setting.has_baselines:
        baseline, work = _host_loop(setting, config, num_seeds, on_host, steps, learns)
    if learns:
        flops = config.updates_per_step * operations.update_flops(config, task)
        work = Work(flops, None if work is None else work.bytes)
    return Measurement(
        units=units,
        timing=timing,
        compile_seconds=compiled.seconds,
        work=work,
        baseline=baseline,
    )


def _host_loop(
    setting: Setting, config: qusac.Config, num_seeds: int, name: str, steps: int, learns: bool
) -> tuple[Baseline, Work]:
    """The same steps with environments on the host, and what the agent's part of one takes."""
    env = environments.vector(name, range(num_seeds))
    task = env.spec.task("never")
    state = filled_state(config, task, num_seeds, config.replay_capacity)
    verb = qusac.train_step if learns else qusac.collect
    step = seeds.mapped(verb, donate=(0,), config=config, task=task)
    host = _Host(env)
    compiled = measure.compile_for(step, state, host.step(), host.observation)

    def call() -> None:
        nonlocal state
        for _ in range(steps):
            transition = host.step()
            state, action, *_ = compiled.call(state, transition, host.observation)
            host.action = np.asarray(action)

    timing = measure.timed(call, setting.repeat)
    env.close()
    per_second = num_seeds * steps / statistics.median(timing.seconds)
    work = (
        compiled.work(per_iteration=num_seeds / config.updates_per_step, per_call=num_seeds)
        if learns
        else collect_work(config, task)
    )
    return Baseline(f"host loop of {name}", per_second), work


CASES = {
    "act_loop": Case(
        about="environment steps on the host that are stored and acted on, without updates",
        methods=NAMES,
        usual=("upper_bound",),
        quick=("upper_bound",),
        jobs=act_jobs,
    ),
    "device_loop": Case(
        about="learning steps of environments on the device, beside the host's loop",
        methods=NAMES,
        usual=("sac",),
        quick=(),
        jobs=functools.partial(device_jobs, case="device_loop", learns=True),
    ),
    "device_act_loop": Case(
        about="environment steps on the device, stored and acted on there, beside the host's loop",
        methods=NAMES,
        usual=("sac",),
        quick=(),
        jobs=functools.partial(device_jobs, case="device_act_loop", learns=False),
    ),
}
