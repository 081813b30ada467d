"""Environments that keep their state where it can be saved, and where it cannot."""

import collections
import itertools
import random

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

total = 0


class OwnState(gymnasium.Env):
    """A random walk, all of whose state is in attributes; the others change one thing of it."""

    action_space = spaces.Box(-1.0, 1.0, (1,))
    observation_space = spaces.Box(-np.inf, np.inf, (2,))

    def __init__(self, render_mode=None):
        self.position = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin()
        self.position[:] = self.noise()
        return self.seen(), {}

    def step(self, action):
        self.move(action)
        self.position += self.noise() + action
        return self.seen(), float(self.position[0]), False, False, {}

    def begin(self):
        pass

    def move(self, action):
        pass

    def noise(self):
        return self.np_random.normal(size=2)

    def seen(self):
        return self.position.astype(np.float32)


class View(OwnState):
    def begin(self):
        self.position = np.zeros(2)
        self.first = self.position[:1]

    def move(self, action):
        self.first += 1


class TwoViews(OwnState):
    """Of memory that is no attribute."""

    def begin(self):
        memory = np.zeros((2, 3))
        self.position, self.middle = memory[1, :2], memory[:, 1]

    def move(self, action):
        self.middle *= 2


class SharedList(OwnState):
    def begin(self):
        self.counts = [0]
        self.parts = {"counts": self.counts}

    def move(self, action):
        self.parts["counts"][0] += 1
        self.position += self.counts[0]


class SharedGenerator(OwnState):
    def begin(self):
        self.sources = [self.np_random]

    def noise(self):
        return self.sources[0].normal(size=2) + self.np_random.normal(size=2)


class Sampling(OwnState):
    def __init__(self, render_mode=None):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), seed=4)

    def noise(self):
        return self.action_space.sample()


class SamplingFromTheClass(OwnState):
    action_space = spaces.Box(-1.0, 1.0, (1,), seed=4)

    def noise(self):
        return self.action_space.sample()


class SamplingInSteps(OwnState):
    action_space = spaces.Box(-1.0, 1.0, (1,), seed=4)

    def move(self, action):
        self.position += self.action_space.sample()


class LastObservations(OwnState):
    """Grows until there are twenty."""

    def begin(self):
        self.last = [0.0] * 5

    def move(self, action):
        self.last = [*self.last, float(self.position[0])][-20:]
        self.position += np.sin(self.last[0])


class Transposed(OwnState):
    """Sums over rows and over columns are rounded in another order."""

    def begin(self):
        self.dynamics = self.np_random.normal(size=(8, 8)).T

    def move(self, action):
        self.position += 0.1 * (self.dynamics @ np.linspace(0.1, 0.7, 8) + action)[:2]


class Column(OwnState):
    """Of a table that is no attribute, from its end on."""

    def begin(self):
        self.weights = self.np_random.normal(size=(64, 3))[::-1, 1]

    def move(self, action):
        self.position += 0.1 * (self.weights @ np.linspace(0.1, 0.7, 64))


class Sign(OwnState):
    """Of a zero."""

    def begin(self):
        self.zeros = [0.0]

    def move(self, action):
        self.zeros = [-self.zeros[0]]
        self.position += np.copysign(0.1, self.zeros[0])


class Masked(OwnState):
    """A sum over what has been seen."""

    def begin(self):
        self.seen_so_far = np.ma.masked_all(40)
        self.seen_so_far.data[:] = 1.0

    def move(self, action):
        self.seen_so_far[np.argmax(self.seen_so_far.mask)] = 1.0
        self.position += 0.01 * self.seen_so_far.sum()


class Passing(OwnState):
    """Has an attribute from the first step of an episode to its end."""

    def begin(self):
        if hasattr(self, "goal"):
            del self.goal

    def move(self, action):
        if not hasattr(self, "goal"):
            self.goal = float(self.position[0])
        self.position += self.goal


class History(OwnState):
    """Of a short episode."""

    def begin(self):
        self.history = [0.0] * 100

    def step(self, action):
        self.history.append(1.0)
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, len(self.history) == 140, info


class GlobalNumpy(OwnState):
    def noise(self):
        return np.random.normal(size=2)  # noqa: NPY002


class GlobalPython(OwnState):
    def noise(self):
        return random.random()


class ClassCounter(OwnState):
    count = 0

    def move(self, action):
        type(self).count += 1
        self.position += self.count


class ModuleCounter(OwnState):
    def move(self, action):
        global total
        total += 1
        self.position += total


class Closure(OwnState):
    def __init__(self, render_mode=None):
        super().__init__()
        count = 0

        def following():
            nonlocal count
            count += 1
            return count

        self.following = following

    def move(self, action):
        self.position += self.following()


class Numbered(OwnState):
    """Each copy has a number of its own in a closure, and never changes it."""

    made = itertools.count()

    def __init__(self, render_mode=None):
        super().__init__()
        number = next(Numbered.made)
        self.bias = lambda: number

    def move(self, action):
        self.position += self.bias()


class HiddenUntilTheFirstStep(OwnState):
    """Keeps what a reset draws in a closure, until the first step."""

    def __init__(self, render_mode=None):
        super().__init__()
        hidden = []
        self.keep = lambda value: hidden.append(value)
        self.take = lambda: hidden.pop() if hidden else 0

    def begin(self):
        self.keep(self.noise())

    def move(self, action):
        self.position += self.take()


class NoSeed(OwnState):
    def begin(self):
        self.source = np.random.default_rng()

    def noise(self):
        return self.source.normal(size=2)


class Growing(OwnState):
    def __init__(self, render_mode=None):
        super().__init__()
        self.history = []

    def move(self, action):
        self.history.append(1)


class GrowingMuch(OwnState):
    def begin(self):
        self.history = []

    def move(self, action):
        self.history.append(float(self.position[0]))


class Scan(OwnState):
    """Has nothing to keep until its first step, and much from then on."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.scan = None

    def move(self, action):
        self.scan = self.np_random.normal(size=720)
        self.position += self.scan[:2]


class Visits(OwnState):
    """Counts in dictionaries that know what is missing."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.visits = self.rewards = self.order = {}

    def begin(self):
        self.visits = collections.Counter()
        self.rewards = collections.defaultdict(float)
        self.order = collections.OrderedDict()

    def move(self, action):
        cell = int(self.position[0] * 4) % 8
        self.visits[cell] += 1
        self.rewards[cell] += 0.5
        self.order[cell] = True
        self.order.move_to_end(cell, last=False)
        self.position += self.visits[cell] + self.rewards[cell] + next(iter(self.order))


class SetsByKey(OwnState):
    def begin(self):
        self.seen_at = collections.defaultdict(set)


class OtherDict(dict):
    """Of which nobody knows what else it holds."""


class UnknownDict(OwnState):
    def begin(self):
        self.visits = OtherDict(first=1)


class Strict(OwnState):
    """Takes what its space contains, and nothing else."""

    action_space = spaces.Box(-0.1, 0.5, (1,))

    def move(self, action):
        assert self.action_space.contains(action), f"{action!r} {action.dtype}"


class Randomized(HalfCheetahEnv):
    """Another robot at each reset, on other ground at every third."""

    num_resets = 0

    def __init__(self, render_mode=None):
        super().__init__()
        self.num_resets = 0

    def reset_model(self):
        self.num_resets += 1
        self.model.body_mass[1:] = self.np_random.uniform(1, 9, self.model.nbody - 1)
        self.model.opt.gravity[2] = -self.np_random.uniform(8, 11)
        self.model.opt.density = self.np_random.uniform(0, 500)
        if self.num_resets % 3 == 0:
            self.model.geom_friction[:, 0] = self.np_random.uniform(0.1, 1)
        return super().reset_model()


class RandomizedSolver(HalfCheetahEnv):
    def __init__(self, render_mode=None):
        super().__init__()

    def reset_model(self):
        self.model.opt.impratio = self.np_random.uniform(1, 10)
        return super().reset_model()


class RandomizedSensors(HalfCheetahEnv):
    """Changes what no state of it holds."""

    def __init__(self, render_mode=None):
        super().__init__()

    def reset_model(self):
        self.model.jnt_actfrcrange[:, 1] += self.np_random.uniform(0, 1)
        self.model.jnt_actfrclimited[:] = 1
        self.model.jnt_actfrcrange[:, 0] = -self.model.jnt_actfrcrange[:, 1]
        return super().reset_model()


class LiveView(HalfCheetahEnv):
    """Looks at the heights of its parts where the simulator has them."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.heights = self.data.xpos[:, 2]

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.heights.sum()), terminated, truncated, info


class CopyOfAView(LiveView):
    """Which it had before the first episode; then it looks at what was there a step ago."""

    def reset_model(self):
        self.heights = self.data.xpos[:, 2].copy()
        return super().reset_model()

    def step(self, action):
        result = super().step(action)
        self.heights = self.data.xpos[:, 2].copy()
        return result
