"""How far critics disagree where nothing is uncertain.

`python -m experiments.studies.critic_noise`.

All critics see transitions of the same deterministic pendulum-like system with reward 0 and follow
the same fixed policy, so every value is 0 and nothing is epistemic. What spread remains after many
updates is noise of the fit, which `ensemble_var` and `upper_bound` take for uncertainty. Prints the
root of the mean variance over critics, and the part of it that is a constant offset of each critic.
"""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, markdown
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import multistep, networks
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Transition


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_float("gain", 10.0, "of the critics' orthogonal weights, in all layers", **define)
    flags.DEFINE_float("discount", 0.99, "in [0, 1)", **define)
    flags.DEFINE_float("learning_rate", 3e-4, "of the critics", **define)
    flags.DEFINE_integer("width", 256, "of the critics' two layers", 1, 10_000, **define)
    flags.DEFINE_integer(
        "batch_size", 256, "transitions per critic and update", 1, 1_000_000, **define
    )
    flags.DEFINE_integer(
        "updates", 5_000, "gradient updates between two lines", 1, 100_000_000, **define
    )
    flags.DEFINE_integer("lines", 4, "lines after the first", lower_bound=1, **define)
    return values


def transitions(key: jax.Array, size: int) -> Transition:
    """Independent transitions `[size, ...]` of a damped rotation that actions push, reward 0."""
    key_angle, key_action, key_speed = jax.random.split(key, 3)
    angle = jax.random.uniform(key_angle, (size,), minval=-np.pi, maxval=np.pi)
    action = jax.random.uniform(key_action, (size, 1), minval=-1.0)
    speed = jax.random.normal(key_speed, (size,))

    def observe(angle: jax.Array, speed: jax.Array) -> jax.Array:
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], -1)

    following = observe(angle + 0.1 * speed, 0.98 * speed + 0.1 * action[:, 0])
    ends = jnp.zeros(size, bool)
    return Transition(observe(angle, speed), action, jnp.zeros(size), following, ends)


def spreads(config: Config, updates: int, lines: int) -> list[tuple[float, float]]:
    """Spread and offset of the critics after 0, `updates`, 2 `updates`, ... gradient updates."""
    size, members = config.batch_size, config.num_members
    learner = parts_lib.init(jax.random.key(0), config, 3, 1)
    probe = transitions(jax.random.key(1), 512)
    critic = networks.Critic(config.critic_hidden, members, 1, config.critic_init_gain)

    @jax.jit
    def train(learner: parts_lib.Learner, keys: jax.Array) -> parts_lib.Learner:
        def step(learner: parts_lib.Learner, key: jax.Array):
            key_batch, key_policy, key_update = jax.random.split(key, 3)
            batch = jax.vmap(lambda k: transitions(k, size))(jax.random.split(key_batch, members))
            own = transitions(key_policy, size)
            steps = multistep.single(batch)
            return learner_lib.update(learner, steps, own, None, key_update, config=config)[0], None

        return jax.lax.scan(step, learner, keys)[0]

    result = []
    for line in range(lines + 1):
        if line:
            learner = train(learner, jax.random.split(jax.random.key(1 + line), updates))
        q = networks.apply(critic, learner.critic, probe.observation, probe.action)[:, 0]
        spread = float(np.sqrt(np.var(q, axis=0, ddof=1).mean()))
        result.append((spread, float(np.std(np.mean(q, axis=1), ddof=1))))
    return result


def run(options: Any) -> None:
    """Measures as the flags say and prints the table."""
    config = Config(
        method="ensemble_mean",
        risk=0.0,
        discount=options.discount,
        batch_size=options.batch_size,
        critic_hidden=(options.width, options.width),
        critic_learning_rate=options.learning_rate,
        critic_init_gain=options.gain,
        # The policy stays as it is, and its entropy is worth nothing.
        actor_learning_rate=1e-12,
        initial_temperature=1e-6,
        temperature_learning_rate=1e-12,
    )
    print(markdown.head(["updates", "spread", "offset"]))
    for line, (spread, offset) in enumerate(spreads(config, options.updates, options.lines)):
        cells = [line * options.updates, f"{spread:.3f}", f"{offset:.3f}"]
        print(markdown.row(cells), flush=True)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
