"""Batches of environments: equal to single ones, and continued bit by bit."""

import importlib

import gymnasium
import numpy as np
import orbax.checkpoint as ocp
import pytest
from gymnasium import spaces

from qusac_jax import environments


def actions_for(env, num_steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (num_steps, len(env), env.spec.action_size)).astype(np.float32)


def assert_same(result, expected):
    for field, value, wanted in zip(result._fields, result, expected, strict=True):
        np.testing.assert_array_equal(value, wanted, err_msg=field)


def shorten(env, num_steps):
    """Episodes of `num_steps`, so that a few of them fit into a quick test."""
    for single in env._envs:
        if env.spec.name.startswith("gym:"):
            layer = single
            while not isinstance(layer, gymnasium.wrappers.TimeLimit):
                layer = layer.env
            layer._max_episode_steps = num_steps
        else:
            vars(single.unwrapped)["_env"]._step_limit = num_steps
    return env


def test_equals_single_environments_and_resets_by_itself():
    seeds = [3, 4]
    batch = shorten(environments.VectorEnvironment("pendulum", seeds), 6)
    singles = [environments.make("pendulum", seed=seed) for seed in seeds]
    observation = batch.reset()
    np.testing.assert_array_equal(observation, [env.reset()[0] for env in singles])
    returns, task_returns = np.zeros(2), np.zeros(2)
    for t, actions in enumerate(actions_for(batch, 14), start=1):
        result = batch.step(actions)
        steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        np.testing.assert_array_equal(result.next_observation, [step[0] for step in steps])
        np.testing.assert_array_equal(result.reward, np.float32([step[1] for step in steps]))
        assert not result.terminated.any()
        returns += [step[1] for step in steps]
        task_returns += [step[4]["task_reward"] for step in steps]
        if t % 6 == 0:
            assert result.truncated.all()
            np.testing.assert_array_equal(result.observation, [e.reset()[0] for e in singles])
            np.testing.assert_allclose(result.episode_return, returns, rtol=1e-12)
            np.testing.assert_allclose(result.episode_task_return, task_returns, rtol=1e-12)
            np.testing.assert_array_equal(result.episode_length, [6, 6])
            returns, task_returns = np.zeros(2), np.zeros(2)
        else:
            assert not result.truncated.any()
            np.testing.assert_array_equal(result.observation, result.next_observation)
            assert np.isnan(result.episode_return).all()


def test_a_result_is_not_changed_by_the_next_step():
    env = environments.VectorEnvironment("pendulum", [0])
    env.reset()
    first = env.step(np.ones((1, 1)))
    kept = first.observation.copy()
    env.step(np.ones((1, 1)))
    np.testing.assert_array_equal(first.observation, kept)


RESUMABLE = [
    *environments.PAPER_TASKS,
    "dmc:point_mass:hard",
    "dmc:fish:swim",
    "dmc:quadruped:fetch",
    "dmc:stacker:stack_2",
    "gym:Pendulum-v1",
    "gym:Hopper-v5",
    "gym:Ant-v5",
    "gym:Humanoid-v5",
    "gym:MountainCarContinuous-v0",
]


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("name", RESUMABLE)
def test_resumed_equals_uninterrupted(name, used_before):
    env = shorten(environments.VectorEnvironment(name, [1, 2]), 50)
    env.reset()
    actions = actions_for(env, 150)
    cut = 51 + int(np.random.default_rng(len(name)).integers(48))  # inside the second episode
    for action in actions[:cut]:
        last = env.step(action)
    state = {key: value.copy() for key, value in env.state().items()}
    expected = [env.step(action) for action in actions[cut:]]

    other = shorten(environments.VectorEnvironment(name, [8, 9]), 50)
    if used_before:
        other.reset()
        for action in actions[:30]:
            other.step(-action)
    np.testing.assert_array_equal(other.set_state(state), last.observation)
    for action, wanted in zip(actions[cut:], expected, strict=True):
        assert_same(other.step(action), wanted)
    again = other.state()
    for key, value in env.state().items():
        np.testing.assert_array_equal(again[key], value, err_msg=key)


@pytest.mark.parametrize("name", ["reacher_hard", "gym:Pendulum-v1"])
def test_whole_episodes_of_full_length(name):
    env = environments.VectorEnvironment(name, [1])
    env.reset()
    length = env.spec.max_episode_steps
    actions = actions_for(env, 3 * length)
    cut = length + 377 % length
    for action in actions[:cut]:
        env.step(action)
    state = env.state()
    expected = [env.step(action) for action in actions[cut:]]
    assert sum(result.truncated[0] for result in expected) == 2
    other = environments.VectorEnvironment(name, [2])
    other.set_state(state)
    for action, wanted in zip(actions[cut:], expected, strict=True):
        assert_same(other.step(action), wanted)


@pytest.mark.parametrize("name", ["reacher_hard", "gym:Hopper-v5", "gym:Pendulum-v1"])
def test_shapes_are_fixed(name):
    env = environments.VectorEnvironment(name, [0, 1])
    other = environments.VectorEnvironment(name, [11, 2**32 - 1], action_cost=0.3)
    env.reset()
    other.reset()
    target = {key: (value.shape, value.dtype) for key, value in other.state().items()}
    for action in actions_for(env, 120):
        env.step(action)
    assert {key: (value.shape, value.dtype) for key, value in env.state().items()} == target


def test_survives_orbax(tmp_path):
    env = environments.VectorEnvironment("reacher_hard", [0])
    env.reset()
    for action in actions_for(env, 20):
        env.step(action)
    fresh = environments.VectorEnvironment("reacher_hard", [5])
    fresh.reset()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", env.state())
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", fresh.state())
    fresh.set_state(restored)
    for action in actions_for(env, 20, seed=1):
        assert_same(fresh.step(action), env.step(action))


def test_action_cost_is_not_taken_from_the_state():
    env = environments.VectorEnvironment("pendulum", [0])
    env.reset()
    other = environments.VectorEnvironment("pendulum", [0], action_cost=0.5)
    other.set_state(env.state())
    result, wanted = other.step(np.ones((1, 1))), env.step(np.ones((1, 1)))
    np.testing.assert_allclose(wanted.reward - result.reward, 0.5 - 0.05, rtol=1e-6)


def test_states_of_another_kind_are_refused():
    env = environments.VectorEnvironment("pendulum", [0])
    env.reset()
    state = env.state()
    with pytest.raises(ValueError, match="same environment"):
        environments.VectorEnvironment("acrobot", [0]).set_state(state)
    with pytest.raises(ValueError, match="belongs to 'pendulum', not to 'dmc:pendulum:swingup'"):
        environments.VectorEnvironment("dmc:pendulum:swingup", [0]).set_state(
            {**state, "python": np.resize(state["python"], (1, 10240))}
        )
    with pytest.raises(ValueError, match="number of seeds"):
        environments.VectorEnvironment("pendulum", [0, 1]).set_state(state)
    with pytest.raises(ValueError, match="narrows 64-bit"):
        env.set_state({**state, "physics": state["physics"].astype(np.float32)})
    with pytest.raises(ValueError, match="must have the entries"):
        env.set_state({key: value for key, value in state.items() if key != "model"})
    with pytest.raises(ValueError, match="damaged"):
        env.set_state({**state, "python": np.zeros_like(state["python"])})


class OpaqueEnv(gymnasium.Env):
    """Keeps its state in an object that nobody can look into, as Box2D's worlds do."""

    action_space = spaces.Box(-1.0, 1.0, (1,))
    observation_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, render_mode=None):
        self.world = iter(range(10))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_state_that_cannot_be_saved_is_an_error():
    gymnasium.register("Opaque-v0", entry_point=OpaqueEnv)
    try:
        env = environments.VectorEnvironment("gym:Opaque-v0", [0])
        env.reset()
        env.step(np.zeros((1, 1)))
        with pytest.raises(ValueError, match=r"cannot be resumed exactly.*'world'.*range_iterator"):
            env.state()
    finally:
        del gymnasium.registry["Opaque-v0"]


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least one seed"):
        environments.VectorEnvironment("pendulum", [])
    with pytest.raises(ValueError, match="seed must be"):
        environments.VectorEnvironment("pendulum", [0, -3])
    with pytest.raises(ValueError, match="seed must be an integer"):
        environments.VectorEnvironment("pendulum", [0.5])
    with pytest.raises(ValueError, match="seeds must be a list of integers, got 3"):
        environments.VectorEnvironment("pendulum", 3)
    env = environments.VectorEnvironment("pendulum", [0, 1])
    with pytest.raises(RuntimeError, match=r"call reset\(\) before the first step\(\)"):
        env.step(np.zeros((2, 1)))
    env.reset()
    with pytest.raises(ValueError, match=r"actions must have shape \(2, 1\)"):
        env.step(np.zeros((1, 1)))
    for bad in (np.nan, 1j, "a", None):
        with pytest.raises(ValueError, match=r"action for 'pendulum' must be .* finite numbers"):
            env.step(np.full((2, 1), bad))
    before = env.state()["episode_length"]
    for active in ([True], [True] * 3, True):
        with pytest.raises(ValueError, match=r"active must have shape \(2,\), one for each env"):
            env.step(np.zeros((2, 1)), active)
    np.testing.assert_array_equal(env.state()["episode_length"], before)


def test_a_reset_forgets_the_episode_that_it_breaks_off():
    env = environments.VectorEnvironment("gym:Pendulum-v1", [0], action_cost=0.1)
    shorten(env, 4).reset()
    env.step(np.ones((1, 1)))
    env.reset()
    results = [env.step(np.ones((1, 1))) for _ in range(4)]
    rewards, task_rewards = np.transpose([[r.reward[0], r.task_reward[0]] for r in results])
    np.testing.assert_allclose(results[-1].episode_return, rewards.sum(), rtol=1e-5)
    np.testing.assert_allclose(results[-1].episode_task_return, task_rewards.sum(), rtol=1e-5)
    np.testing.assert_array_equal(results[-1].episode_length, 4)


def test_environments_are_closed_where_a_later_one_cannot_be_made(monkeypatch):
    made = []

    class Closing(gymnasium.Env):
        closed = False

        def close(self):
            self.closed = True

    def make(name, *, action_cost, seed):
        if seed == 2:
            raise ValueError("no third one")
        made.append(Closing())
        return made[-1]

    # Of the module; the package has a function of that name.
    module = importlib.import_module("qusac_jax.environments.vector")
    monkeypatch.setattr(module, "make", make)
    with pytest.raises(ValueError, match="no third one"):
        environments.VectorEnvironment("dmc:point_mass:easy", [0, 1, 2])
    assert [env.closed for env in made] == [True, True]


def test_a_continued_state_keeps_the_room_that_it_had():
    env, other = (environments.VectorEnvironment("gym:Pendulum-v1", [seed]) for seed in (0, 1))
    env.reset()
    state = env.state()
    wider = np.pad(state["python"], ((0, 0), (0, 1024)))  # of a version that kept more room
    other.set_state({**state, "python": wider})
    assert other.state()["python"].shape == wider.shape
