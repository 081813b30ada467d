"""Environments that have to do with the world outside, for tests of processes with environments."""

import os
import pathlib
import subprocess
import time

import gymnasium

from tests.short_env import ShortEnv

# Where they write: tests set it before the processes start, which inherit it.
PLACE = "QUSAC_JAX_TEST_PLACE"


def place() -> pathlib.Path:
    return pathlib.Path(os.environ[PLACE])


class Closing(ShortEnv):
    """Leaves a file when it is closed."""

    def close(self):
        (place() / f"closed_{id(self)}_{os.getpid()}").touch()


class Simulator(ShortEnv):
    """Starts a program at each step and asks it to end; the reward is its exit status."""

    def step(self, action):
        process = subprocess.Popen(["sleep", "60"])
        time.sleep(0.1)
        process.terminate()
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(status), terminated, truncated, info


class Hanging(ShortEnv):
    """Leaves a file and never returns from a step."""

    def step(self, action):
        (place() / f"hangs_{os.getpid()}").touch()
        while True:
            time.sleep(0.1)


for kind in (Closing, Simulator, Hanging):
    if f"{kind.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=13)
