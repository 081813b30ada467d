"""The paper's tasks of the real MuJoCo Playground, an extra, beside those of the control suite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.environments import functional

pytest.importorskip("mujoco_playground")

# By task: its name in the control suite, and a position from which random actions meet the reward.
TASKS = {
    "acrobot": ("acrobot", "swingup_sparse", [0.02, 0.0]),
    "ball_in_cup": ("ball_in_cup", "catch", None),  # random actions do not catch the ball
    "cartpole_swingup": ("cartpole", "swingup_sparse", [0.0, 0.03]),
    "pendulum": ("pendulum", "swingup", [0.05]),
    "point_mass": ("point_mass", "easy", [0.005, 0.0]),
}


def pair(name, position=None):
    """The environment on the device with a state, and the host's in the same state."""
    from dm_control import suite

    domain, task, _ = TASKS[name]
    env, host = functional.load(f"playground:{name}"), suite.load(domain, task)
    state = env.reset(jax.random.key(0))
    if position is not None:
        data = state.data.replace(
            qpos=jnp.asarray(position, jnp.float32), qvel=jnp.zeros_like(state.data.qvel)
        )
        state = state.replace(data=data)
    host.reset()
    with host.physics.reset_context():
        host.physics.data.qpos[:] = np.asarray(state.data.qpos)
        host.physics.data.qvel[:] = np.asarray(state.data.qvel)
    return env, state, host


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "position"),
    [
        *((name, None) for name in TASKS),
        *((name, near) for name, (*_, near) in TASKS.items() if near),
    ],
)
def test_the_device_moves_and_pays_as_the_host_does(name, position):
    env, state, host = pair(name, position)
    first, rng = np.array(host.physics.data.qpos), np.random.default_rng(0)
    limits, step = host.action_spec(), jax.jit(env.step)
    rewards = []
    for _ in range(50):
        action = rng.uniform(-1.0, 1.0, env.action_size).astype(np.float32)
        scaled = limits.minimum + (action + 1) / 2 * (limits.maximum - limits.minimum)
        before, state = state, step(state, jnp.asarray(action), jax.random.key(0))
        reward = float(env.reward(before, jnp.asarray(action), state))
        rewards.append((host.step(scaled).reward, reward))
    here, there = np.array(host.physics.data.qpos), np.asarray(state.data.qpos)
    # Playground's physics have steps of their own.
    np.testing.assert_allclose(there, here, atol=0.04)
    moved = np.abs(here - first).max()
    assert np.abs(there - here).max() < 0.2 * moved
    on_host, on_device = np.array(rewards).T
    assert np.mean(np.abs(on_host - on_device) > 0.02) <= 0.02
    if position is not None:
        assert on_host.sum() > 5


@pytest.mark.slow
def test_the_pendulum_observes_its_sine_first():
    env, state, host = pair("pendulum", [1.0])
    seen = env.observation(env.step(state, jnp.zeros(1), jax.random.key(0)))
    orientation = host.step(np.zeros(1)).observation["orientation"]
    np.testing.assert_allclose(seen[:2], orientation[::-1], atol=0.01)


def test_the_reacher_does_not_load():
    with pytest.raises(ValueError, match=r"'playground:reacher_hard' cannot be loaded .*find_body"):
        functional.load("playground:reacher_hard")
