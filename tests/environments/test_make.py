"""Construction, action cost, scaling, guards and error messages of single environments."""

import os

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from qusac_jax import environments
from qusac_jax.environments.names import load_suite


class ProbeEnv(gymnasium.Env):
    """Counts its steps in the observation; misbehaves as told."""

    def __init__(self, action_space=None, observation_space=None, bad=None, render_mode=None):
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (2,))
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (1,))
        self.render_mode = render_mode
        self.bad = bad
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        observation, reward = np.full(1, self.count, np.float32), 1.0
        if self.bad == "observation" and self.count == 3:
            observation[0] = np.nan
        if self.bad == "reward" and self.count == 3:
            reward = np.inf
        return observation, reward, False, False, {"seen": np.array(action)}


@pytest.fixture
def register():
    names = []

    def add(**arguments):
        env_id = f"Probe{len(names)}-v0"
        gymnasium.register(env_id, entry_point=ProbeEnv, kwargs=arguments)
        names.append(env_id)
        return f"gym:{env_id}"

    yield add
    for name in names:
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("name", "domain", "task", "rho"),
    [
        ("acrobot", "acrobot", "swingup_sparse", 0.01),
        ("reacher_hard", "reacher", "hard", 0.01),
        ("cartpole_swingup", "cartpole", "swingup_sparse", 0.01),
        ("pendulum", "pendulum", "swingup", 0.05),
        ("point_mass", "point_mass", "easy", 0.05),
        ("ball_in_cup", "ball_in_cup", "catch", 0.2),
    ],
)
def test_paper_tasks_are_the_suites_with_action_cost(name, domain, task, rho):
    raw = load_suite().load(domain, task, task_kwargs={"random": 7})
    expected = raw.reset()
    env = environments.make(name, seed=7)
    observation, _ = env.reset()
    assert observation.dtype == np.float32
    assert env.observation_space.contains(observation)
    rng = np.random.default_rng(0)
    steps = 0
    while True:
        np.testing.assert_array_equal(
            observation, np.float32(np.hstack([np.ravel(o) for o in expected.observation.values()]))
        )
        if expected.last():
            break
        action = rng.uniform(-1, 1, env.action_space.shape)
        expected = raw.step(action)
        observation, reward, terminated, truncated, info = env.step(action)
        steps += 1
        assert info["task_reward"] == expected.reward
        np.testing.assert_allclose(
            reward, expected.reward - rho * np.sum(action**2), rtol=0, atol=1e-12
        )
        assert not terminated
        assert truncated == expected.last()
    assert steps == 1000 == environments.spec(name).max_episode_steps


def test_spec_of_a_paper_task():
    assert environments.spec("pendulum") == environments.Spec(
        "pendulum", 3, 1, 0.05, 1000, "never", (-1.0,), (1.0,)
    )
    assert environments.spec("dmc:pendulum:swingup").action_cost == 0
    assert environments.spec("pendulum", action_cost=0.5).action_cost == 0.5
    hopper = environments.spec("gym:Hopper-v5")
    ones = (1.0, 1.0, 1.0)
    assert hopper[:6] == ("gym:Hopper-v5", 11, 3, 0.0, 1000, "hopper")
    assert (hopper.action_low, hopper.action_high) == (tuple(-x for x in ones), ones)
    assert environments.spec("gym:Pendulum-v1").action_high == (2.0,)


@pytest.mark.parametrize(
    ("name", "joint"),
    [("reacher_hard", "shoulder"), ("dmc:cheetah:run", "rooty"), ("dmc:hopper:hop", "rooty")],
)
def test_whole_turns_are_not_observed_as_sine_and_cosine(name, joint):
    turned = {}
    for form in ("", ":sincos"):
        env = environments.make(f"{name}{form}", seed=3)
        env.reset()
        before = env.step(np.zeros(env.action_space.shape))[0]
        env.unwrapped._env.physics.named.data.qpos[joint] += 4 * np.pi
        # The observation of the task after the turns, through the wrappers.
        after = _observe_again(env)
        turned[form] = before, after
    (raw, raw_after), (wound, wound_after) = turned[""], turned[":sincos"]
    index = int(np.argmax(np.abs(raw_after - raw)))
    np.testing.assert_allclose(raw_after[index] - raw[index], 4 * np.pi, rtol=1e-5)
    np.testing.assert_allclose(wound_after, wound, atol=1e-5)
    pair = [np.sin(raw[index]), np.cos(raw[index])]
    np.testing.assert_allclose(wound[index : index + 2], pair, atol=1e-6)
    np.testing.assert_array_equal(np.delete(wound, [index, index + 1]), np.delete(raw, index))


def _observe_again(env):
    """What would be observed of the physics as it is now."""
    layers, layer = [], env
    while isinstance(layer, gymnasium.Wrapper):
        layers.append(layer)
        layer = layer.env
    task = env.unwrapped._env
    parts = task.task.get_observation(task.physics).values()
    observation = {"observations": np.concatenate([np.ravel(part) for part in parts])}
    for layer in reversed(layers):
        if isinstance(layer, gymnasium.ObservationWrapper):
            observation = layer.observation(observation)
    return observation


def test_a_paper_task_keeps_its_action_cost_with_sine_and_cosine():
    spec = environments.spec("reacher_hard:sincos")
    assert spec[:6] == ("reacher_hard:sincos", 7, 2, 0.01, 1000, "never")


@pytest.mark.parametrize("name", ["reacher_hard", "gym:Hopper-v5"])
def test_same_seed_same_trajectory_over_episodes(name):
    first, second, other = (environments.make(name, seed=seed) for seed in (5, 5, 6))
    for _ in range(3):
        starts = [env.reset()[0] for env in (first, second, other)]
        np.testing.assert_array_equal(starts[0], starts[1])
        assert np.any(starts[0] != starts[2])
        for _ in range(5):
            steps = [env.step(env.action_space.high / 2)[0] for env in (first, second)]
            np.testing.assert_array_equal(*steps)
    np.testing.assert_array_equal(first.reset(seed=9)[0], other.reset(seed=9)[0])


def test_actions_are_clipped_then_rescaled(register):
    low, high = np.float32([-2, 0]), np.float32([2, 10])
    name = register(action_space=spaces.Box(low, high))
    env = environments.make(name, action_cost=0.1)
    assert env.action_space == spaces.Box(-1, 1, (2,))
    env.reset()
    _, reward, _, _, info = env.step(np.array([-3.0, 0.5]))
    # -3 counts as -1, which is -2 there; 0.5 lies at three quarters of [0, 10].
    np.testing.assert_allclose(info["seen"], [-2.0, 7.5], rtol=1e-6)
    np.testing.assert_allclose(reward, 1.0 - 0.1 * (1.0 + 0.25), rtol=1e-6)
    assert info["task_reward"] == 1.0


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (-0.3, 0.9), (-0.15, 0.3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_actions_are_within_the_bounds(register, low, high, dtype):
    env = environments.make(register(action_space=spaces.Box(low, high, (1,), dtype)))
    env.reset()
    bounds = env.unwrapped.action_space
    for action, wanted in ((-1, bounds.low), (1, bounds.high)):
        *_, info = env.step(np.full(1, action, np.float32))
        np.testing.assert_allclose(info["seen"], wanted, rtol=1e-6)
        assert bounds.low <= info["seen"] <= bounds.high


def test_a_limit_is_given_to_environments_without(register):
    env = environments.make(register())
    env.reset()
    truncated = [env.step(np.zeros(2))[3] for _ in range(1000)]
    assert truncated == [False] * 999 + [True]


@pytest.mark.parametrize("quantity", ["observation", "reward"])
def test_values_that_are_not_finite_are_named(register, quantity):
    name = register(bad=quantity)
    env = environments.make(name)
    env.reset()
    env.step(np.zeros(2))
    env.step(np.zeros(2))
    with pytest.raises(ValueError, match=rf"{name}.*{quantity} that is not finite at step 3"):
        env.step(np.zeros(2))


def test_a_physics_that_diverges_is_named():
    env = environments.make("cartpole_swingup", seed=0)
    env.reset()
    env.unwrapped.get_wrapper_attr("physics").data.qvel[:] = 1e200
    with pytest.raises(ValueError, match=r"cartpole_swingup.*not finite at step 1"):
        env.step(np.zeros(1))


@pytest.mark.parametrize("action", [np.array([np.nan, 0.0]), np.array([np.inf, 0.0]), np.zeros(3)])
def test_bad_actions_are_named(register, action):
    env = environments.make(register())
    env.reset()
    with pytest.raises(ValueError, match=r"2,.*finite numbers"):
        env.step(action)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cartpole_swngup", "did you mean 'cartpole_swingup'"),
        ("dmc:cartpole:swing", "did you mean 'dmc:cartpole:swingup'"),
        ("dmc:cartpole", "no task 'dmc:cartpole'"),
        ("gym:Hoper-v5", "did you mean 'gym:Hopper-v5'"),
        ("gym:no_such_module:X-v0", "install"),
        ("gym:.:Pendulum-v1", "the module '.' of 'gym:.:Pendulum-v1' cannot be imported"),
        ("gym::Pendulum-v1", "the module '' of 'gym::Pendulum-v1' cannot be imported"),
        ("", "acrobot"),
        ("pendulum:sincos", "no angle.*leave ':sincos' out.*reacher, cheetah, hopper"),
        ("reacher_hard:sincs", "did you mean 'reacher_hard'"),
        ("dmc:reacher:had:sincos", "did you mean 'dmc:reacher:hard'"),
        ("gym:Pendulum-v1:sincos", "only tasks of the suite have the form :sincos"),
        ("reacher_hard:sincos:sincos", "there is no environment"),
    ],
)
def test_unknown_names_list_near_misses(name, message):
    with pytest.raises(ValueError, match=message):
        environments.check_name(name)


@pytest.mark.parametrize(
    "name", ["pendulum", "dmc:walker:run", "gym:Pendulum-v1", "dmc:hopper:hop:sincos"]
)
def test_known_names_pass(name):
    environments.check_name(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:CartPole-v1", r"Discrete\(2\), but actions must be a flat Box"),
        ("dmc:lqr:lqr_2_1", "unbounded"),
        ("gym:FrozenLake-v1", "Discrete.*flat Box or a Dict of Boxes"),
    ],
)
def test_spaces_that_do_not_fit(name, message):
    with pytest.raises(ValueError, match=message):
        environments.make(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action_space": spaces.Box(-np.inf, np.inf, (2,))}, "unbounded"),
        ({"action_space": spaces.Box(0, 3, (2,), np.int64)}, "integer"),
        ({"observation_space": spaces.Box(0, 255, (8, 8, 3), np.uint8)}, "flat Box"),
        ({"observation_space": spaces.Tuple([spaces.Box(0, 1)])}, "flat Box"),
    ],
)
def test_probe_spaces_that_do_not_fit(register, arguments, message):
    with pytest.raises(ValueError, match=message):
        environments.make(register(**arguments))


class WithoutSpaces(gymnasium.Env):
    """Does not define its spaces."""


def test_spaces_that_are_not_defined(monkeypatch):
    gymnasium.register("Probe-v0", entry_point=WithoutSpaces)
    try:
        with pytest.raises(ValueError, match="observation space None, but observations must be a"):
            environments.make("gym:Probe-v0")
        monkeypatch.setattr(WithoutSpaces, "observation_space", spaces.Box(0, 1), raising=False)
        with pytest.raises(ValueError, match="action space None, but actions must be a flat Box"):
            environments.make("gym:Probe-v0")
    finally:
        del gymnasium.registry["Probe-v0"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_observation_of_one_number_is_flat_too(register, dtype):
    env = environments.make(register(observation_space=spaces.Box(-np.inf, np.inf, (), dtype)))
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    first, _ = env.reset()
    following, *_ = env.step(np.zeros(2))
    for observation, wanted in ((first, 0.0), (following, 1.0)):
        np.testing.assert_array_equal(observation, np.float32([wanted]), strict=True)


@pytest.mark.parametrize("cost", [-0.1, np.nan, np.inf])
def test_action_cost_is_checked(cost):
    with pytest.raises(ValueError, match="action_cost"):
        environments.make("pendulum", action_cost=cost)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_is_checked(seed):
    with pytest.raises(ValueError, match="seed must be"):
        environments.make("pendulum", seed=seed)


OWN = """
import gymnasium, numpy as np


class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


gymnasium.register("Own-v0", Base)
"""


def test_environments_of_other_packages_are_named_with_their_module(tmp_path, monkeypatch):
    # Its constructor knows nothing of render_mode.
    (tmp_path / "own_package.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    spec = environments.spec("gym:own_package:Own-v0")
    assert (spec.observation_size, spec.action_size, spec.termination) == (2, 1, "unknown")
    with pytest.raises(ValueError, match="no environment 'gym:own_package:Other-v0'"):
        environments.check_name("gym:own_package:Other-v0")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise RuntimeError('no such\\nluck')", "RuntimeError: no such luck"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("def (", "SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(source, cause, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"'broken_package' of .* cannot be imported .{cause}"):
        environments.check_name("gym:broken_package:Own-v0")


def test_an_outdated_model_file_is_not_reported_for_each_copy(tmp_path, monkeypatch, capfd):
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    before, heard = mujoco.get_mju_user_warning(), []
    try:
        for handler in (None, heard.append):  # without one MuJoCo writes them itself
            mujoco.set_mju_user_warning(handler)
            environments.make("gym:HalfCheetah-v4").close()
            assert mujoco.get_mju_user_warning() == handler
    finally:
        mujoco.set_mju_user_warning(before)
    assert not heard
    assert "settotalmass" not in "".join(capfd.readouterr())
    assert not os.listdir(tmp_path)
