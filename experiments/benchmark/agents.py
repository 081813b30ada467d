"""Cases of the deep agent: updates, a fit of the dynamics, a refresh of the model's buffers.

Axes: R seeds, N members, O observation size, A action size.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import memory, operations, seeds
from experiments.benchmark import measure, torch_baseline
from experiments.benchmark.jobs import Case, Job, Measurement, Setting
from experiments.benchmark.measure import Work
from qusac_jax import environments
from qusac_jax.qusac import agent, presets, replay
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.state import rollouts_size
from qusac_jax.qusac.uncertainty import METHODS
from qusac_jax.task import Task

NAMES = (*METHODS, *presets.PRESETS)
# The preset qusac is the method upper_bound.
_USUAL = tuple(name for name in NAMES if name != "qusac")
_UPDATES = 10  # of a call, as many as the paper's online agent takes after a step
_FIT_EPOCHS = 3
_FIT_DATA = {False: 20_000, True: 2_000}  # transitions in D, by whether the table is quick
_QUICK_ROLLOUTS = 20  # per step, of a refresh in a quick table


def config_of(name: str, size: str, *, is_offline: bool = False) -> Config:
    """Of a method or preset."""
    if name in METHODS:
        config = presets.get("qusac", size, is_offline=is_offline)
        return dataclasses.replace(config, method=name)
    return presets.get(name, size, is_offline=is_offline)


def filled_state(config: Config, task: Task, num_seeds: int, count: int) -> agent.TrainState:
    """The state of R seeds with `count` transitions in D and full buffers of the model.

    The transitions are random and those of a noisy linear system, which a fit can learn.
    """
    keys = jax.random.split(jax.random.key(0), num_seeds)
    state = seeds.mapped(agent.init, config=config, task=task)(keys)
    return state._replace(
        replay=_filled(state.replay, count),
        model_data=_filled(state.model_data),
        member_data=_filled(state.member_data),
    )


def _filled(buffer: replay.Buffer | None, count: int | None = None) -> replay.Buffer | None:
    return None if buffer is None else _fill(buffer, count=count)


@functools.partial(jax.jit, static_argnames="count", donate_argnums=0)
def _fill(buffer: replay.Buffer, *, count: int | None) -> replay.Buffer:
    old = buffer.data  # transitions, or in D_1..D_N steps
    keys = jax.random.split(jax.random.key(0), 3)
    observation, noise = (
        jax.random.uniform(key, old.observation.shape, minval=-1.0) for key in keys[:2]
    )
    action = jax.random.uniform(keys[2], old.action.shape, minval=-1.0)
    data = old._replace(
        observation=observation,
        action=action,
        reward=0.1 * observation[..., 0],
        next_observation=0.9 * observation + 0.1 * action[..., :1] + 0.05 * noise,
    )
    capacity = old.reward.shape[-1]
    size = jnp.full_like(buffer.size, min(count or capacity, capacity))
    return replay.Buffer(data, jnp.zeros_like(buffer.position), size)


def update_jobs(
    setting: Setting, methods: Sequence[str], *, case: str, is_offline: bool
) -> Iterator[Job]:
    """Gradient updates, ten in a call."""
    task = environments.spec(setting.env).task("never")
    for method in methods:
        config = config_of(method, setting.size, is_offline=is_offline)
        config = dataclasses.replace(config, updates_per_step=_UPDATES)
        flops = operations.update_flops(config, task)
        for num_seeds in setting.num_seeds:
            yield Job(
                case=case,
                method=method,
                num_seeds=num_seeds,
                sizes=_sizes(config, task, setting.size),
                unit="updates",
                memory=memory.expected(config, task, num_seeds).total,
                calls=f"up to {1 + setting.repeat} calls of {_UPDATES} updates",
                measure=functools.partial(_measure_updates, setting, config, task, num_seeds),
                flops=2.0 * _UPDATES * num_seeds * flops,
            )


def _measure_updates(setting: Setting, config: Config, task: Task, num_seeds: int) -> Measurement:
    """Of `train_step`: a transition is stored, ten updates, the next action."""
    state = filled_state(config, task, num_seeds, config.replay_capacity)
    transition = jax.tree.map(lambda x: jnp.copy(x[:, 0]), state.replay.data)
    train_step = seeds.mapped(agent.train_step, donate=(0,), config=config, task=task)
    compiled = measure.compile_for(train_step, state, transition, transition.observation)

    def step() -> None:
        nonlocal state
        state, action, _ = compiled.call(state, transition, transition.observation)
        np.asarray(action)

    units = num_seeds * _UPDATES
    timing = measure.timed(step, setting.repeat)
    state = None  # the baseline has buffers of the same size
    has_baseline = setting.has_baselines
    return Measurement(
        units=units,
        timing=timing,
        compile_seconds=compiled.seconds,
        work=compiled.work(per_iteration=num_seeds, per_call=units),
        baseline=torch_baseline.baseline(config, task, setting.repeat) if has_baseline else None,
    )


def fit_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """Fits of the dynamics, of as many epochs each."""
    task = environments.spec(setting.env).task("never")
    count = _FIT_DATA[setting.is_quick]
    for method in methods:
        config = config_of(method, setting.size)
        if not config.uses_model:
            continue
        dynamics = dataclasses.replace(
            config.dynamics, max_epochs=_FIT_EPOCHS, patience=_FIT_EPOCHS, max_steps=10**6
        )
        config = dataclasses.replace(config, dynamics=dynamics)
        for num_seeds in setting.num_seeds:
            yield Job(
                case="dynamics_fit",
                method=method,
                num_seeds=num_seeds,
                sizes=f"{_sizes(config, task, setting.size)}, {count} transitions",
                unit="gradient steps",
                memory=memory.expected(config, task, num_seeds).total,
                calls=f"up to {1 + setting.repeat} fits of {_FIT_EPOCHS} epochs",
                measure=functools.partial(_measure_fit, setting, config, task, num_seeds, count),
                flops=2.0
                * num_seeds
                * _fit_steps(config, count)
                * operations.fit_step_flops(config, task),
            )


def _fit_steps(config: Config, count: int) -> int:
    """Gradient steps of a fit to so many transitions."""
    num_train = count - -(-count // config.dynamics.holdout_every)
    return _FIT_EPOCHS * -(-num_train // config.fit_batch_size)


def _measure_fit(
    setting: Setting, config: Config, task: Task, num_seeds: int, count: int
) -> Measurement:
    state = filled_state(config, task, num_seeds, count)
    fit = seeds.mapped(agent.fit, donate=(0,), config=config, task=task)
    compiled = measure.compile_for(fit, state)

    def call() -> None:
        nonlocal state
        state, report = compiled.call(state)
        jax.block_until_ready(report)

    return Measurement(
        units=num_seeds * _fit_steps(config, count),
        timing=measure.timed(call, setting.repeat),
        compile_seconds=compiled.seconds,
        # By hand: XLA would add a chunk of held-out rows and a shuffle to each step.
        work=Work(operations.fit_step_flops(config, task), operations.fit_step_bytes(config, task)),
    )


def refresh_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """Rollouts that fill D_model and D_1..D_N."""
    task = environments.spec(setting.env).task("never")
    for method in methods:
        config = config_of(method, setting.size)
        if not config.uses_model:
            continue
        # All rollouts of F steps at once, however often a run makes a part of them.
        config = dataclasses.replace(config, roll_out_every=0)
        if setting.is_quick:
            config = dataclasses.replace(config, rollouts_per_step=_QUICK_ROLLOUTS)
        count = _num_transitions(config)
        for num_seeds in setting.num_seeds:
            yield Job(
                case="rollout_refresh",
                method=method,
                num_seeds=num_seeds,
                sizes=f"{_sizes(config, task, setting.size)}, {count:,} transitions a seed",
                unit="model transitions",
                memory=memory.expected(config, task, num_seeds).total,
                calls=f"up to {1 + setting.repeat} refreshes",
                measure=functools.partial(_measure_refresh, setting, config, task, num_seeds),
                flops=2.0 * num_seeds * operations.rollout_flops(config, task),
            )


def _measure_refresh(setting: Setting, config: Config, task: Task, num_seeds: int) -> Measurement:
    state = filled_state(config, task, num_seeds, config.replay_capacity)
    roll_out = seeds.mapped(agent.roll_out, donate=(0,), config=config, task=task)
    compiled = measure.compile_for(roll_out, state)

    def call() -> None:
        nonlocal state
        state = compiled.call(state)
        jax.block_until_ready(state.model_data)

    units = num_seeds * _num_transitions(config)
    return Measurement(
        units=units,
        timing=measure.timed(call, setting.repeat),
        compile_seconds=compiled.seconds,
        # By hand: XLA would count what is drawn and stored once for all steps at each of them.
        work=Work(
            operations.rollout_flops(config, task) / _num_transitions(config),
            operations.rollout_bytes(config, task) / _num_transitions(config),
        ),
    )


def _num_transitions(config: Config) -> int:
    """Of a refresh."""
    return config.num_model_buffers * rollouts_size(config)


def _sizes(config: Config, task: Task, size: str) -> str:
    parts: dict[str, Any] = {
        "O": task.observation_size,
        "A": task.action_size,
        "N": config.num_members,
        "B": config.batch_size,
    }
    return f"{size}: " + ", ".join(f"{name} {value}" for name, value in parts.items())


_ONE = ("upper_bound",)
CASES = {
    "agent_update": Case(
        about="gradient updates at the online sizes",
        methods=NAMES,
        usual=_USUAL,
        quick=_ONE,
        jobs=functools.partial(update_jobs, case="agent_update", is_offline=False),
    ),
    "agent_update_offline": Case(
        about="gradient updates at the offline sizes",
        methods=NAMES,
        usual=_USUAL,
        quick=(),
        jobs=functools.partial(update_jobs, case="agent_update_offline", is_offline=True),
    ),
    "dynamics_fit": Case(
        about="gradient steps of a fit of the dynamics, its shuffles and held-out errors included",
        methods=NAMES,
        usual=_ONE,
        quick=_ONE,
        jobs=fit_jobs,
    ),
    "rollout_refresh": Case(
        about="transitions that rollouts write into the model's buffers",
        methods=NAMES,
        usual=_ONE,
        quick=_ONE,
        jobs=refresh_jobs,
    ),
}
