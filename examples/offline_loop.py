"""QU-SAC from records of one's own: three seeds side by side, and their policies in a folder."""

import dataclasses
import functools
import pathlib
import sys

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

import qusac_jax
from qusac_jax import qusac

num_updates = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000
folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "runs/offline_loop/policy")
env = gym.make("Pendulum-v1")
rng, rows = np.random.default_rng(0), []
for episode in range(25):  # your own records in place of these, with actions in [-1, 1]
    observation, truncated = env.reset(seed=episode)[0], False
    action = np.zeros(1)
    while not truncated:
        action = np.clip(action + rng.normal(0.0, 0.5, 1), -1.0, 1.0)
        following, reward, terminated, truncated, _ = env.step(np.float32(2.0) * action)
        rows.append((observation, action, reward, following, terminated))
        observation = following
data = qusac.Transition(*map(np.array, zip(*rows, strict=True)))

never = lambda observation, action, next_observation: jnp.zeros(observation.shape[:-1], bool)
task = qusac.Task(observation_size=3, action_size=1, termination=never)
config = qusac.presets.get("qusac", "small", is_offline=True)
# What 200 steps show, a small discount and a fast actor learn soon.
config = dataclasses.replace(
    config, replay_capacity=len(rows), discount=0.95, actor_learning_rate=3e-4
)
both = {"config": config, "task": task}
# What differs from seed to seed has a leading axis of 3.
over_seeds = lambda verb, **more: jax.vmap(functools.partial(verb, **both, **more))
fit = jax.jit(over_seeds(qusac.fit), donate_argnums=0)
roll_out = jax.jit(over_seeds(qusac.roll_out), donate_argnums=0)
learn = jax.jit(over_seeds(qusac.learn, num_updates=config.fit_every), donate_argnums=0)
values_at = jax.jit(over_seeds(qusac.diagnostics.values_at))

state = over_seeds(qusac.init)(jax.random.split(jax.random.key(0), 3))
state = jax.vmap(qusac.observe, in_axes=(0, None))(state, data)
state, report = fit(state)
print("held-out squared error", np.asarray(report.holdout_mse).mean(axis=1))
starts = np.stack([env.reset(seed=seed)[0] for seed in range(100, 120)])
for update in range(0, num_updates, config.fit_every):
    if qusac.schedule.offline(update, config=config).roll_out:  # Algorithm 3
        state = roll_out(state)
    state, metrics = learn(state)
    q, std = values_at(state, np.broadcast_to(starts, (3, *starts.shape)))
    print(f"update {update + config.fit_every}: Q", q.mean(1), "sqrt(U)", std.mean(1), flush=True)

qusac_jax.save_policy(
    folder,
    state.actor,
    hidden=config.actor_hidden,
    action_low=[-2.0],
    action_high=[2.0],
    metadata={"env": "gym:Pendulum-v1"},
)
for seed in range(3):
    policy = qusac_jax.load_policy(folder, seed_index=seed)  # its actions are in [-2, 2]
    (observation, _), truncated, episode_return = env.reset(seed=200), False, 0.0
    while not truncated:
        observation, reward, _, truncated, _ = env.step(np.asarray(policy(observation)))
        episode_return += float(reward)
    print(f"seed {seed}: return {episode_return:.0f}")
