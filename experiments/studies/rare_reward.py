"""What models make of a reward seen a few times: `python -m experiments.studies.rare_reward`.

The dynamics are fitted, several times in a row, on transitions of a random policy among which a few
are rewarded: those of a pole set upright by hand. Prints for each `nll_beta` and `ema_decay`
the part of the reward that the members' means predict at upright transitions that none has seen,
root-mean-square errors of the next observation there and where the data are, and the standard
deviation that rollouts would draw where the data are: near the error there it does no harm, far
above it nothing can be balanced in the model.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, markdown
from qusac_jax import environments
from qusac_jax.qusac import agent, diagnostics, model, presets, replay
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task, Transition

# Positions (angle; cart and angle) and velocities around upright: centre 0, half the width.
_UPRIGHT = {
    "pendulum": (np.array([0.1]), np.array([1.0])),
    "cartpole_swingup": (np.array([0.2, 0.08]), np.array([1.0, 1.0])),
}


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_enum("env", "cartpole_swingup", list(_UPRIGHT), "task", **define)
    flags.DEFINE_multi_float("nll_beta", [0.0, 0.5, 0.75, 1.0], "weight of rare targets", **define)
    flags.DEFINE_multi_float("ema_decay", [0.0, 0.99], "decay of the averaged weights", **define)
    flags.DEFINE_integer("rewarded", 10, "rewarded transitions", lower_bound=1, **define)
    flags.DEFINE_integer("data", 10_000, "other transitions", lower_bound=100, **define)
    flags.DEFINE_integer("fits", 8, "fits in a row", lower_bound=1, **define)
    flags.DEFINE_integer("width", 128, "of the models' three layers", lower_bound=1, **define)
    return values


def collect(
    env: gymnasium.Env,
    count: int,
    rng: np.random.Generator,
    *,
    length: int = 1_000,
    reset: Callable[[], None] = lambda: None,
    threshold: float = -np.inf,
) -> Transition:
    """`[count, ...]` transitions of a random policy whose rewards exceed `threshold`.

    Args:
        env: the task.
        count: how many.
        rng: draws the actions, which follow each other with a correlation of 1/2.
        length: steps between resets, one of which is left out.
        reset: called after each reset; it may set the physics.
        threshold: smaller rewards are left out.
    """
    rows = []
    while len(rows) < count:
        env.reset()
        reset()
        action = np.zeros(env.action_space.shape or (), np.float32)
        observation = env.step(action)[0]  # of the physics as they were set
        for _ in range(length - 1):
            drawn = 0.5 * action + rng.uniform(-1, 1, action.shape)
            action = np.clip(drawn, -1, 1).astype(np.float32)
            following, reward, *_ = env.step(action)
            if float(reward) > threshold:
                rows.append((observation, action, reward, following))  # as in Transition
            observation = following
    columns: list[Any] = [np.asarray(x, np.float32) for x in zip(*rows[:count], strict=True)]
    ends: Any = np.zeros(count, bool)
    return Transition(*columns, terminated=ends)


def upright(env: gymnasium.Env, name: str, count: int, rng: np.random.Generator) -> Transition:
    """`[count, ...]` rewarded transitions, up to two from each start near upright."""
    position, velocity = _UPRIGHT[name]

    def reset() -> None:
        physics = env.unwrapped._env.physics  # pyright: ignore[reportAttributeAccessIssue]
        with physics.reset_context():
            physics.data.qpos[:] = rng.uniform(-position, position)
            physics.data.qvel[:] = rng.uniform(-velocity, velocity)

    threshold = diagnostics.REWARD_THRESHOLD
    return collect(env, count, rng, length=3, reset=reset, threshold=threshold)


def measure(
    config: Config,
    task: Task,
    train: Transition,
    near: Transition,
    data: Transition,
    fits: int,
) -> Iterator[dict[str, float]]:
    """One row per fit; `near` and `data` are new transitions, upright ones and all others."""
    state = agent.init(jax.random.key(0), config=config, task=task)
    state = state._replace(replay=replay.add(state.replay, train))
    fit = jax.jit(functools.partial(agent.fit, config=config, task=task))
    predict = jax.jit(functools.partial(model.predict, config=config, task=task))
    rms = lambda x: float(jnp.sqrt(jnp.mean(jnp.square(x))))
    for _ in range(fits):
        state, report = fit(state)
        mean, _ = predict(state.dynamics, near.observation, near.action)
        mean_data, std_data = predict(state.dynamics, data.observation, data.action)
        yield {
            "epochs": int(report.epochs),
            "reward": float(jnp.mean(mean[..., -1]) / jnp.mean(near.reward)),
            "upright error": rms(mean[..., :-1] - near.next_observation),
            "data error": rms(mean_data[..., :-1] - data.next_observation),
            "deviation": rms(std_data[..., :-1]),
        }


def run(options: Any) -> None:
    """Measures as the flags say and prints the table."""
    name, rng = options.env, np.random.default_rng(0)
    preset = presets.get("qusac")
    configs = [
        dataclasses.replace(
            preset,
            dynamics=dataclasses.replace(
                preset.dynamics,
                hidden=(options.width,) * 3,
                nll_beta=beta,
                ema_decay=decay,
            ),
            batch_size=128,
            replay_capacity=options.data + options.rewarded,
            warmup_steps=options.data,
        )
        for beta, decay in itertools.product(options.nll_beta, options.ema_decay)
    ]
    env = environments.make(name, seed=1)
    common = collect(env, options.data, rng)
    rare = upright(env, name, options.rewarded, rng)
    near, data = upright(env, name, 500, rng), collect(env, 3_000, rng)
    # Mixed, or the held-out slots would hold none or all of the rewarded ones.
    order = rng.permutation(options.data + options.rewarded)
    train = jax.tree.map(lambda a, b: np.concatenate([a, b])[order], common, rare)
    rewarded = int(np.sum(common.reward > diagnostics.REWARD_THRESHOLD))
    print(f"{name}: {options.rewarded} transitions set upright, {rewarded} found by chance\n")
    measured = ["reward", "upright error", "data error", "deviation"]
    print(markdown.head(["nll_beta", "ema", "fit", "epochs", *measured]))
    task = environments.spec(name).task()
    for config in configs:
        for i, row in enumerate(measure(config, task, train, near, data, options.fits), 1):
            fit = config.dynamics
            cells = (f"{row[name]:.{2 if name == 'reward' else 4}f}" for name in measured)
            settings = (fit.nll_beta, fit.ema_decay, i, row["epochs"])
            print(markdown.row((*settings, *cells)), flush=True)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
