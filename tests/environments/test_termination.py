"""Termination functions against what the real environments do."""

import sys

import gymnasium
import jax
import numpy as np
import pytest

from qusac_jax import environments


def rollout(name, num_steps, policy):
    env = environments.make(name, seed=0)
    rng = np.random.default_rng(1)
    observation, _ = env.reset()
    transitions, ends = [], []
    for _ in range(num_steps):
        action = policy(observation, rng, env.action_space.shape[0])
        successor, _, terminated, truncated, _ = env.step(action)
        transitions.append((observation, np.float32(action), successor))
        ends.append(terminated)
        observation = env.reset()[0] if terminated or truncated else successor
    return [np.stack(part) for part in zip(*transitions, strict=True)], np.array(ends)


def uniform(observation, rng, size):
    return rng.uniform(-1, 1, size)


def push_along(observation, rng, size):
    return np.sign(observation[1:]) + 0.0 * rng.uniform(size=size)


@pytest.mark.parametrize(
    ("name", "num_steps", "policy"),
    [
        ("gym:Hopper-v4", 600, uniform),
        ("gym:Hopper-v5", 600, uniform),
        ("gym:Walker2d-v5", 600, uniform),
        ("gym:Ant-v5", 1500, uniform),
        ("gym:Humanoid-v5", 300, uniform),
        ("gym:InvertedPendulum-v4", 300, uniform),
        ("gym:InvertedPendulum-v5", 300, uniform),
        ("gym:MountainCarContinuous-v0", 400, push_along),
    ],
)
def test_agrees_with_the_environment(name, num_steps, policy):
    transitions, ends = rollout(name, num_steps, policy)
    assert 0 < ends.sum() < num_steps
    predicted = jax.jit(environments.termination_fn(name))(*transitions)
    np.testing.assert_array_equal(predicted, ends)


@pytest.mark.parametrize("name", ["gym:HalfCheetah-v5", "gym:Pendulum-v1", "gym:Swimmer-v5"])
def test_never_ending_ones_do_not_end(name):
    transitions, ends = rollout(name, 250, uniform)
    assert not ends.any()
    predicted = environments.termination_fn(name)(*transitions)
    assert predicted.shape == ends.shape
    assert not predicted.any()


@pytest.mark.parametrize("name", ["gym:InvertedDoublePendulum-v4", "gym:InvertedDoublePendulum-v5"])
def test_double_pendulum_agrees_but_near_the_threshold(name):
    (observation, action, successor), ends = rollout(name, 1000, uniform)
    predicted = environments.termination_fn(name)(observation, action, successor)
    sine, cosine = successor[:, 1:3], successor[:, 3:5]
    both = np.arctan2(sine, cosine).cumsum(1)
    height = 0.6 * np.cos(both).sum(1)
    clear = np.abs(height - 1.0) > 0.02
    assert ends[clear].sum() > 10
    np.testing.assert_array_equal(predicted[clear], ends[clear])
    assert (predicted == ends).mean() > 0.95


def test_leading_axes_and_values_that_are_not_finite():
    hopper = environments.termination_fn("gym:Hopper-v5")
    standing = np.zeros((2, 3, 11), np.float32)
    standing[..., 0] = 1.25
    standing[0, 1, 0] = 0.5  # fallen
    standing[1, 0, 1] = 0.3  # tilted
    standing[1, 2, 5] = np.nan
    done = hopper(standing, np.zeros((2, 3, 3)), standing)
    np.testing.assert_array_equal(done, [[False, True, False], [True, False, True]])


@pytest.mark.parametrize("task", ["Hopper", "Walker2d", "HalfCheetah"])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_versions_of_d4rl_share_the_functions(task, version):
    old = environments.termination_fn(f"gym:{task}-{version}")
    assert old is environments.termination_fn(f"gym:{task}-v4")
    assert old is environments.termination_fn(f"gym:{task}-v5")


@pytest.mark.parametrize(
    ("task", "size", "index", "value", "ended"),
    [  # as mujoco-py's Hopper-v2 and Walker2d-v2 say: all inequalities are strict
        ("Hopper", 11, 0, 0.7001, False),
        ("Hopper", 11, 0, 0.6999, True),
        ("Hopper", 11, 0, 50.0, False),
        ("Hopper", 11, 1, -0.2001, True),
        ("Hopper", 11, 4, 99.0, False),
        ("Hopper", 11, 4, -101.0, True),
        ("Walker2d", 17, 0, 0.7999, True),
        ("Walker2d", 17, 0, 2.0001, True),
        ("Walker2d", 17, 1, -0.9999, False),
        ("Walker2d", 17, 1, 1.0001, True),
        ("Walker2d", 17, 4, 101.0, False),
    ],
)
def test_healthy_ranges_of_v2(task, size, index, value, ended):
    observation = np.zeros(size, np.float32)
    observation[0] = 1.25
    observation[index] = value
    done = environments.termination_fn(f"gym:{task}-v2")(observation, np.zeros(3), observation)
    assert bool(done) == ended


def test_override_and_unknown():
    name = "gym:MountainCarContinuous-v0"
    never = environments.termination_fn(name, "never")
    assert not never(np.zeros(2), np.zeros(1), np.ones(2))

    def own(observation, action, next_observation):
        return next_observation[..., 0] > 0

    assert environments.termination_fn(name, own) is own
    with pytest.raises(
        ValueError, match=r"'hoper' is unknown \(did you mean 'hopper'.*MODULE:FUNC"
    ):
        environments.termination_fn(name, "hoper")
    with pytest.raises(ValueError, match=r"known.*Hopper-v5.*--termination=never"):
        environments.termination_fn("gym:LunarLanderContinuous-v3")


@pytest.fixture
def own_env():
    gymnasium.register("Own-v0", entry_point="nobody.asks:for_it")
    yield
    del gymnasium.registry["Own-v0"]


@pytest.mark.parametrize(
    ("name", "sizes", "termination", "message"),
    [
        ("gym:Pendulum-v1", (3, 1), "hopper", r"'hopper' is for Hopper-v4, .* has 3 and 1: leave"),
        ("pendulum", (3, 1), "humanoid", "leave --termination out, as 'never' is right for it"),
        ("gym:Hopper-v5", (11, 3), "walker2d", "as 'hopper' is right"),
        ("gym:InvertedPendulum-v5", (4, 1), "inverted_double_pendulum", "as 'inverted_pendulum'"),
        ("gym:Own-v0", (3, 1), "hopper", r"of 11 numbers and actions of 3; 'gym:Own-v0' has 3 and"),
        ("gym:Own-v0", (27, 4), "ant", "27 or 105 or 111 numbers and actions of 8.*may call ant"),
        ("gym:Own-v0", (3, 1), "mountain_car_continuous", "has 3 and 1: name a function of your"),
    ],
)
def test_functions_for_other_tasks_are_refused(own_env, name, sizes, termination, message):
    spec = environments.Spec(name, *sizes, 0.0, 200, "unknown")
    with pytest.raises(ValueError, match=message):
        spec.task(termination)


@pytest.mark.parametrize(
    ("name", "sizes", "termination"),
    [
        ("gym:Hopper-v5", (11, 3), "hopper"),
        ("gym:Hopper-v5", (11, 3), "never"),
        ("gym:Own-v0", (11, 3), "hopper"),
        ("gym:Own-v0", (105, 8), "ant"),
        ("gym:Own-v0", (2, 1), "mountain_car_continuous"),
        ("gym:Own-v0", (7, 2), "never"),
    ],
)
def test_functions_that_may_fit_are_taken(own_env, name, sizes, termination):
    task = environments.Spec(name, *sizes, 0.0, 200, "unknown").task(termination)
    assert task.termination is environments.TERMINATIONS[termination]


@pytest.mark.parametrize("name", ["Ant", "Hopper", "Humanoid", "InvertedDoublePendulum"])
@pytest.mark.parametrize("version", ["v4", "v5"])
def test_known_sizes_are_those_of_gymnasium(name, version):
    spec = environments.spec(f"gym:{name}-{version}")
    spec.task(spec.termination)


MODULE = """
import jax.numpy as jnp
import numpy as np

threshold = 0.5

def tall(observation, action, next_observation):
    return (next_observation[..., 0] > threshold) & (action[..., 0] < 1.0)

def first_axis_only(observation, action, next_observation):
    return next_observation[:, 0] > threshold

def as_floats(observation, action, next_observation):
    return jnp.where(next_observation[..., 0] > threshold, 1.0, 0.0)

def with_numpy(observation, action, next_observation):
    return np.asarray(next_observation)[..., 0] > threshold

def nothing(observation, action, next_observation):
    pass

def of_one_argument(observation):
    return observation[..., 0] > threshold
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_ends.py").write_text(MODULE)
    (tmp_path / "broken_ends.py").write_text("raise RuntimeError('no such luck')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_ends"
    sys.modules.pop("own_ends", None)


SPEC = environments.Spec("gym:Pendulum-v1", 3, 1, 0.0, 200, "never")


def test_a_function_of_ones_own_by_module_and_name(own_module):
    task = SPEC.task(f"{own_module}:tall")
    observation = np.array([[0.4, 0.0, 0.0], [0.6, 0.0, 0.0]], np.float32)
    done = task.termination(observation, np.zeros((2, 1), np.float32), observation)
    np.testing.assert_array_equal(done, [False, True])
    assert SPEC.task(f"{own_module}:tall") == task  # one key of the compilation cache


@pytest.mark.parametrize(
    ("termination", "message"),
    [
        ("no_such_module:tall", r"'no_such_module:tall' cannot be imported: ModuleNotFoundError"),
        ("broken_ends:tall", r"cannot be imported: RuntimeError: no such luck"),
        ("own_ends:taal", r"'own_ends' has no function 'taal' \(did you mean 'tall'"),
        ("own_ends:threshold", r"has no function 'threshold'"),
        (":tall", "named as MODULE:FUNCTION, got ':tall'"),
        ("own_ends:", "named as MODULE:FUNCTION, got 'own_ends:'"),
        ("own_ends:first_axis_only", r"booleans \[3, 2\] for .*\[3, 2, 3\].*got bool\[3, 3\]"),
        ("own_ends:as_floats", r"'as_floats' must return booleans \[2\].*got float32\[2\]"),
        ("own_ends:nothing", "got None"),
        ("own_ends:with_numpy", "cannot be traced .*TracerArrayConversionError.*jax.numpy"),
        ("own_ends:of_one_argument", "cannot be traced .*TypeError"),
    ],
)
def test_a_function_that_cannot_be_used_is_explained_in_one_line(own_module, termination, message):
    with pytest.raises(ValueError, match=message) as error:
        SPEC.task(termination)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "size", "index", "value", "ended"),
    [
        ("Hopper", 11, 0, 0.7, True),
        ("Hopper", 11, 1, 0.2, True),
        ("Hopper", 11, 1, 0.1999, False),
        ("Hopper", 11, 1, 0.2001, True),
        ("Hopper", 11, 2, 100.0, True),
        ("Hopper", 11, 10, 101.0, True),
        ("Walker2d", 17, 0, 0.8001, False),
        ("Walker2d", 17, 0, 1.9999, False),
        ("Walker2d", 17, 1, -1.0, True),
        ("Walker2d", 17, 1, -1.0001, True),
        ("Ant", 27, 0, 0.1999, True),
        ("Ant", 27, 0, 0.2, False),  # these bounds are inclusive
        ("Ant", 27, 0, 1.0, False),
        ("Ant", 27, 0, 1.0001, True),
        ("Ant", 27, 1, 3.0, False),
        ("Humanoid", 376, 0, 1.0, True),
        ("Humanoid", 376, 0, 1.0001, False),
        ("Humanoid", 376, 0, 1.9999, False),
        ("Humanoid", 376, 0, 2.0, True),
        ("Humanoid", 376, 1, 3.0, False),
        ("InvertedPendulum", 4, 1, 0.2, False),
        ("InvertedPendulum", 4, 1, -0.2001, True),
        ("InvertedPendulum", 4, 1, 0.2001, True),
    ],
)
def test_bounds_of_healthy_ranges(task, size, index, value, ended):
    observation = np.zeros(size, np.float32)
    observation[0] = {"Ant": 0.5, "InvertedPendulum": 0.0}.get(task, 1.25)
    observation[index] = value
    before = np.zeros(size, np.float32) + np.nan  # what came before has no say
    done = environments.termination_fn(f"gym:{task}-v4")(before, np.zeros(1), observation)
    assert bool(done) == ended


@pytest.mark.parametrize(
    ("position", "velocity", "ended"),
    [(0.45, 0.0, True), (0.4499, 0.07, False), (0.5, -1e-6, False), (0.6, 0.01, True)],
)
def test_the_car_has_arrived_where_it_does_not_roll_back(position, velocity, ended):
    arrived = environments.termination_fn("gym:MountainCarContinuous-v0")
    observation = np.array([position, velocity], np.float32)
    assert bool(arrived(0.0 * observation, np.zeros(1), observation)) == ended
