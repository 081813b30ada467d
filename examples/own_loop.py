"""QU-SAC in a loop of one's own: from `gym.make` to a trained policy, on public names only."""

import dataclasses
import functools
import sys

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import qusac

num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
env = gym.make("Pendulum-v1")  # your own environment here
env = gym.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
never = lambda observation, action, next_observation: jnp.zeros(observation.shape[:-1], bool)
task = qusac.Task(observation_size=3, action_size=1, termination=never)
config = dataclasses.replace(qusac.presets.get("qusac", "small"), warmup_steps=1_000)
train_step, collect, refresh, roll_out = (
    jax.jit(functools.partial(verb, config=config, task=task), donate_argnums=0)
    for verb in (qusac.train_step, qusac.collect, qusac.refresh, qusac.roll_out)
)
state = qusac.init(jax.random.key(0), config=config, task=task)
observation, _ = env.reset(seed=0)
action, episode_return = np.zeros(1, np.float32), 0.0
for step in range(1, num_steps + 1):
    following, reward, terminated, truncated, _ = env.step(action)
    transition = qusac.Transition(observation, action, np.float32(reward), following, terminated)
    observation, episode_return = following, episode_return + float(reward)
    if terminated or truncated:
        print(f"step {step}: return {episode_return:.0f}", flush=True)
        observation, episode_return = env.reset()[0], 0.0
    due = qusac.schedule.online(step, config=config)  # Algorithm 2
    if due.refresh:
        state, _ = refresh(state)
    if due.roll_out:
        state = roll_out(state)
    state, action, *_ = (train_step if due.learn else collect)(state, transition, observation)
    action = np.asarray(action)
best_action = qusac.act(state.actor, observation, config=config, task=task)  # the mean action
