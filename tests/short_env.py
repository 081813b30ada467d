"""Episodes of at most 13 steps that terminate or are cut off, `gym:tests.short_env:Short-v0`."""

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 2.0  # of the position
MAX_STEPS = 13


class ShortEnv(gymnasium.Env):
    """A random walk that the action pushes; the observation holds position and time."""

    action_space = spaces.Box(-1.0, 1.0, (1,))
    observation_space = spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, render_mode=None):
        self.position, self.time = 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = float(self.np_random.uniform(-1.0, 1.0)), 0
        return self._observation(), {}

    def step(self, action):
        self.position += 0.5 * float(action[0]) + 0.3 * float(self.np_random.normal())
        self.time += 1
        ended = abs(self.position) > LIMIT
        return self._observation(), 1.0 - self.position**2, ended, False, {}

    def _observation(self):
        return np.array([self.position, self.position**2, self.time / 10], np.float32)


if "Short-v0" not in gymnasium.registry:
    gymnasium.register("Short-v0", entry_point=ShortEnv, max_episode_steps=MAX_STEPS)
