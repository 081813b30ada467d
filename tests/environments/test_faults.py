"""Environments with bugs: each is one line that names the environment, the step and the cause."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from qusac_jax import environments

SPACE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
GOOD = np.zeros(3, np.float32)


class Faulty(gymnasium.Env):
    """Returns in its third step, or in its second reset, what it is told; or raises it."""

    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, from_step=None, from_reset=None, space=SPACE, render_mode=None):
        self.observation_space = space
        self._from = {"step": from_step, "reset": from_reset}
        self._count = {"step": 0, "reset": 0}

    def _answer(self, verb, good, number):
        self._count[verb] += 1
        answer = self._from[verb]
        if answer is None or self._count[verb] != number:
            return good
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _seen(self):
        is_dict = isinstance(self.observation_space, spaces.Dict)
        return dict.fromkeys(self.observation_space, GOOD) if is_dict else GOOD

    def reset(self, *, seed=None, options=None):
        return self._answer("reset", (self._seen(), {}), 2)

    def step(self, action):
        return self._answer("step", (self._seen(), 0.0, False, False, {}), 3)


@pytest.fixture
def make():
    def build(**arguments):
        gymnasium.register("Faulty-v0", entry_point=Faulty, kwargs=arguments)
        return environments.make("gym:Faulty-v0")

    yield build
    del gymnasium.registry["Faulty-v0"]


def answer(observation=GOOD, reward=0.0, terminated=False, truncated=False, info=None):
    return observation, reward, terminated, truncated, {} if info is None else info


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (ZeroDivisionError("no\nluck"), r"step failed .* with ZeroDivisionError: no luck \(.*py, "),
        (SystemExit(0), r"step failed .* with SystemExit: 0 \(.*test_faults.py, line \d+\)"),
        (answer(np.zeros(1, np.float32)), r"observation ndarray of shape \(1,\) .*shape \(3,\)"),
        (answer(np.zeros((1, 3), np.float32)), r"observation ndarray of shape \(1, 3\)"),
        (answer(None), r"observation NoneType None at .*shape \(3,\)"),
        (answer(["a", "b", "c"]), r"observation list of shape \(3,\) .*an array of numbers"),
        (answer([[1], [2, 3], 4]), r"observation list \[\[1\], \[2, 3\], 4\]"),
        (answer(np.full(3, np.nan, np.float32)), "an observation that is not finite"),
        (answer(reward=np.zeros(1)), r"reward ndarray of shape \(1,\) .*must be one real number"),
        (answer(reward="1.5"), r"reward str 1.5 at .*must be one real number"),
        (answer(reward=None), r"reward NoneType None"),
        (answer(reward=1j), r"reward complex 1j"),
        (answer(reward=np.inf), "a reward that is not finite"),
        (answer(reward=1e39), "a reward that is not finite .*: 1e[+]39"),
        (answer(np.full(3, 1e300)), "an observation that is not finite"),
        (answer(terminated="False"), r"terminated str False .*must be True or False"),
        (answer(truncated=np.zeros(2, bool)), r"truncated ndarray of shape \(2,\)"),
        (answer(terminated=None), r"terminated NoneType None"),
        ((GOOD, 0.0, False, False, None), r"info NoneType None .*must be a dictionary"),
        ((GOOD, 0.0, False, {}), r"unpack.*as since Gym 0.26"),
        ((GOOD, 0.0, False, False), r"unpack.*as since Gym 0.26"),
    ],
)
def test_a_bug_in_step(make, returned, cause):
    env = make(from_step=returned)
    env.reset()
    env.step(np.zeros(1))
    env.step(np.zeros(1))
    with pytest.raises(environments.FaultyEnvironmentError, match=cause) as error:
        env.step(np.zeros(1))
    message = str(error.value)
    assert "'gym:Faulty-v0'" in message
    assert "step 3" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (KeyError("size"), "reset failed .* with KeyError"),
        (SystemExit(0), "reset failed .* with SystemExit"),
        (GOOD, r"unpack.*as since Gym 0.26"),
        ((np.zeros(1, np.float32), {}), r"reset returned as observation ndarray of shape \(1,\)"),
    ],
)
def test_a_bug_in_reset(make, returned, cause):
    env = make(from_reset=returned)
    env.reset()
    env.step(np.zeros(1))
    with pytest.raises(environments.FaultyEnvironmentError, match=cause) as error:
        env.reset()
    assert "at step 1" in str(error.value)


def test_a_step_before_the_first_reset_is_the_callers_mistake(make):
    with pytest.raises(environments.FaultyEnvironmentError, match=r"call reset\(\) first$"):
        make().step(np.zeros(1))


def test_a_dictionary_that_lacks_an_entry(make):
    space = spaces.Dict({"a": SPACE, "b": SPACE})
    env = make(space=space, from_step=answer({"a": GOOD}))
    env.reset()
    env.step(np.zeros(1))
    env.step(np.zeros(1))
    with pytest.raises(environments.FaultyEnvironmentError, match=r"step failed .*KeyError: 'b'"):
        env.step(np.zeros(1))


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array(1.0)])
def test_numbers_of_all_kinds_are_rewards(make, reward):
    env = make(from_step=answer(list(GOOD), reward, np.bool_(True), 0))
    env.reset()
    for _ in range(2):
        env.step(np.zeros(1))
    _, found, terminated, truncated, _ = env.step(np.zeros(1))
    assert (found, terminated, truncated) == (1.0, True, False)


def test_observations_may_be_lists_of_any_dtype(make):
    for dtype in (np.float32, np.float64):
        space = spaces.Box(-np.inf, np.inf, (3,), dtype)
        for spaces_, seen in ((space, [1, 2, 3]), (spaces.Dict(a=space), {"a": [1, 2, 3]})):
            env = make(space=spaces_, from_step=answer(seen))
            env.reset()
            for _ in range(3):
                observation, *_ = env.step(np.zeros(1))
            np.testing.assert_array_equal(observation, [1, 2, 3])
            del gymnasium.registry["Faulty-v0"]
    make()


class Amplifying(Faulty):
    """Changes the action that it is given."""

    def step(self, action):
        action *= 3
        return super().step(action)


def test_the_cost_is_that_of_the_action_as_it_was_given():
    gymnasium.register("Amplifying-v0", entry_point=Amplifying)
    try:
        env = environments.make("gym:Amplifying-v0", action_cost=1.0)
        env.reset()
        assert env.step(np.full(1, 0.1))[1] == pytest.approx(-0.01)
    finally:
        del gymnasium.registry["Amplifying-v0"]


def test_ctrl_c_is_no_bug(make):
    env = make(from_step=KeyboardInterrupt())
    env.reset()
    env.step(np.zeros(1))
    env.step(np.zeros(1))
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(1))


def test_a_constructor_that_leaves_the_program_is_an_error():
    def constructor(render_mode=None):
        raise SystemExit(0)

    gymnasium.register("Leaving-v0", entry_point=constructor)
    try:
        with pytest.raises(ValueError, match="'gym:Leaving-v0' cannot be built here"):
            environments.make("gym:Leaving-v0")
    finally:
        del gymnasium.registry["Leaving-v0"]
