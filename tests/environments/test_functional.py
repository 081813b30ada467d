"""Environments on the device: the protocol, automatic resets, saved states."""

import collections
import dataclasses
import functools
import pathlib
import sys
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import environments
from qusac_jax.environments import device_tasks, functional, names, streams
from tests.pendulum import MAX_SPEED, Pendulum

NAME = "functional:tests.pendulum:Pendulum"


def rolled_out(action, num_steps, seed=0, env=None, **options):
    """A stream and the results of its steps, with one action throughout."""
    env = env or Pendulum()

    def step(stream, _):
        return streams.advance(env, stream, action, **options)

    first = streams.start(env, streams.first_key(jnp.uint32(seed)))
    last, results = jax.lax.scan(step, first, length=num_steps)
    return first, last, results


def test_a_name_gives_the_sizes_and_the_termination():
    spec = environments.spec(NAME)
    assert (spec.observation_size, spec.action_size, spec.max_episode_steps) == (3, 1, 20)
    ends = spec.task().termination
    observation = np.array([[0.0, 0.0, MAX_SPEED - 0.1], [0.0, 0.0, -MAX_SPEED - 0.1]])
    np.testing.assert_array_equal(ends(observation, None, observation), [False, True])


def test_transitions_are_those_of_the_environment_and_episodes_follow_each_other():
    env, action = Pendulum(), jnp.array([0.5])
    first, _, results = rolled_out(action, 45)
    observation = first.observation
    np.testing.assert_allclose(observation, env.observation(first.state))
    # Deterministic but for a push of 0.1: the speed changes by DT (sin(angle) + 2 * 0.5).
    change = results.next_observation[:, 2] - jnp.append(
        observation[2], results.observation[:-1, 2]
    )
    before = jnp.concatenate([observation[None], results.observation[:-1]])
    np.testing.assert_allclose(change, 0.1 * (before[:, 1] + 1.0), atol=0.05)
    np.testing.assert_allclose(
        results.reward, results.next_observation[:, 0] - 0.01 * 1.0, atol=1e-5
    )
    assert np.flatnonzero(results.truncated).tolist() == [19, 39]
    assert not results.terminated.any()
    # After an end, what is acted on is the first observation of another episode.
    is_same = (results.observation == results.next_observation).all(-1)
    assert np.flatnonzero(~is_same).tolist() == [19, 39]


def test_returns_and_lengths_are_those_of_the_episodes_that_ended():
    _, last, results = rolled_out(jnp.array([0.5]), 45, action_cost=0.2)
    ended = np.flatnonzero(~np.isnan(results.episode_return))
    assert ended.tolist() == [19, 39]
    np.testing.assert_allclose(results.reward, results.task_reward - 0.2 * 0.25, atol=1e-6)
    np.testing.assert_allclose(results.episode_return[19], results.reward[:20].sum(), rtol=1e-5)
    np.testing.assert_allclose(
        results.episode_task_return[39], results.task_reward[20:40].sum(), rtol=1e-5
    )
    np.testing.assert_array_equal(results.episode_length[ended], [20, 20])
    np.testing.assert_allclose(last.episode_return, results.reward[40:].sum(), rtol=1e-5)


def test_an_end_is_no_time_limit():
    class Short(Pendulum):
        def reset(self, key):
            return super().reset(key)._replace(speed=jnp.float32(5.9))

        def terminated(self, state):
            return state.speed > 5.9

    _, _, results = rolled_out(jnp.array([1.0]), 200, env=Short())
    assert results.terminated.any()
    assert not (results.terminated & results.truncated).any()
    np.testing.assert_array_equal(results.terminated, results.next_observation[:, 2] > 5.9)


def test_actions_are_clipped_and_mapped_to_the_bounds():
    class Echo(Pendulum):
        action_size = 2
        action_low, action_high = (-2.0, 0.0), (2.0, 10.0)

        def reward(self, state, action, next_state):
            return action[0] + 100.0 * action[1]

    for action, expected in [((-1, -1), -2.0), ((0, 0), 500.0), ((9, 1), 1002.0)]:
        _, _, results = rolled_out(jnp.array(action, jnp.float32), 1, env=Echo())
        np.testing.assert_allclose(results.task_reward, expected, rtol=1e-6)


def test_actions_stay_within_bounds_that_are_rounded():
    class Echo(Pendulum):
        action_low, action_high = -1.38, 0.82

        def reward(self, state, action, next_state):
            return action[0]

    _, _, results = rolled_out(jnp.ones(1), 1, env=Echo())
    assert results.task_reward[0] == np.float32(0.82)


def test_a_copy_among_others_is_the_copy_alone():
    both, alone = environments.vector(NAME, [3, 4]), environments.vector(NAME, [4])
    assert len(both) == 2
    np.testing.assert_array_equal(both.reset()[1:], alone.reset())
    for i in range(25):
        actions = np.sin(i + np.arange(2.0))[:, None]
        there, here = both.step(actions), alone.step(actions[1:])
        for name, value in here._asdict().items():
            np.testing.assert_allclose(getattr(there, name)[1:], value, rtol=1e-6, err_msg=name)
    assert (there.observation[0] != there.observation[1]).all()


def test_a_copy_that_waits_stays_as_it_is():
    env = environments.vector(NAME, [0, 1])
    before = env.reset()
    result = env.step(np.ones((2, 1)), [1, 0])
    assert result.reward[1] == 0.0
    np.testing.assert_array_equal(result.observation[1], before[1])
    assert (result.observation[0] != before[0]).any()
    assert np.isnan(env.step(np.ones((2, 1))).episode_length).all()


def test_a_saved_state_continues_exactly():
    env, other = environments.vector(NAME, [0, 1]), environments.vector(NAME, [5, 6])
    env.reset()
    env.step(np.ones((2, 1)))
    saved = {name: value.copy() for name, value in env.state().items()}
    expected = [env.step(np.full((2, 1), 0.3)) for _ in range(25)]
    np.testing.assert_array_equal(other.set_state(saved), np.asarray(saved["leaf_2"]))
    for result in expected:
        again = other.step(np.full((2, 1), 0.3))
        for name, value in result._asdict().items():
            np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)
    with pytest.raises(ValueError, match="environment state does not fit"):
        environments.vector(NAME, [0]).set_state(saved)


def with_changes(**changes):
    """The pendulum's parts with some exchanged or, with None, left out."""
    env = Pendulum()
    parts = {name: getattr(env, name) for name in functional._FIELDS} | changes
    return types.SimpleNamespace(**{k: v for k, v in parts.items() if v is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"truncated": None}, "has no truncated"),
        ({"episode_length": 0}, "episode_length of 'mine' must be a positive integer, got 0"),
        ({"action_low": 2.0}, "action_low below action_high"),
        ({"action_low": (0.0, 0.0, 0.0)}, "one for each of the 1 components"),
        ({"action_low": {"a": 1}}, "action_low and action_high of 'mine' must be numbers"),
        ({"termination": True}, "termination of 'mine' must be a name of .*, got True"),
        ({"observation_size": 4}, r"observation of 'mine' must be floating\[4\], got float32\[3\]"),
        ({"reward": lambda *_: jnp.zeros(2)}, r"reward of 'mine' must be number\[\]"),
        ({"reward": lambda *_: jnp.zeros(()) + 0j}, r"reward of 'mine' must be number.*complex"),
        ({"terminated": lambda _: 1.0}, r"terminated of 'mine' must be bool"),
        ({"step": lambda state, *_: state.angle}, "different structures"),
        ({"step": lambda state, *_: state._replace(speed=jnp.zeros(2))}, "differ in shape"),
        ({"step": lambda state, *_: state if state.speed > 0 else None}, "cannot be traced"),
    ],
)
def test_what_does_not_keep_to_the_protocol_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        functional.check(with_changes(**changes), "mine")


def test_the_example_of_the_documentation_keeps_to_the_protocol():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    (example,) = [x for x in page.split("```") if x.startswith("python") and "class Pendulum" in x]
    names = {}
    exec(example.removeprefix("python"), names)
    functional.check(names["Pendulum"](), "documentation")


class Packaged:
    """An environment in the manner of Brax, which counts how often it is traced."""

    action_size = 1
    dt = 0.05
    mj_model = None  # drawn in test_video.py

    def __init__(self):
        self.traced = []

    def reset(self, key):
        self.traced.append("reset")
        zero = jnp.zeros(())
        return PackagedState(jnp.zeros(2), zero, zero, {"speed": zero}, {"left": zero})

    def step(self, state, action):
        self.traced.append("step")
        state.info["left"] = state.info["left"] + 1  # as Brax does
        return state.replace(obs=state.obs + action, reward=1, metrics={"speed": action[0]})


@flax.struct.dataclass
class PackagedState:
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


def test_an_environment_of_a_package_is_traced_once_and_its_states_are_left_alone():
    packaged = Packaged()
    env = device_tasks.PackagedEnvironment(
        packaged, model=None, episode_length=3, termination="never"
    )
    assert env.frames_per_second == 20
    functional.check(env)
    _, last, results = rolled_out(jnp.ones(1), 2, env=env)
    np.testing.assert_array_equal(last.observation, [2, 2])
    np.testing.assert_array_equal(results.reward, [1, 1])
    keys = jax.vmap(streams.first_key)(jnp.arange(4, dtype=jnp.uint32))
    both = jax.vmap(functools.partial(streams.start, env))(keys)
    jax.vmap(functools.partial(streams.advance, env))(both, jnp.ones((4, 1)))
    assert packaged.traced == ["reset", "step"]
    state = env.reset(jax.random.key(0))
    env.step(state, jnp.ones(1), jax.random.key(0))
    assert state.info["left"] == 0


class Suite:
    """Playground's control suite, of two tasks, one of which does not load."""

    ALL_ENVS = ("CartpoleSwingupSparse", "ReacherHard")

    def load(self, name, config_overrides):
        assert config_overrides == {"impl": "jax"}  # MJX in JAX, not in Warp
        if name == "ReacherHard":
            raise AttributeError("'MjSpec' object has no attribute 'find_body'")
        return Packaged()

    def get_default_config(self, name):
        assert name == "CartpoleSwingupSparse"
        return types.SimpleNamespace(episode_length=7)


def test_tasks_have_the_paper_s_action_cost_on_the_device_too():
    for name, alias in names.ALIASES.items():
        assert names.parse_name(f"playground:{name}").action_cost == alias.action_cost
    assert {name: alias.action_cost for name, alias in names.ALIASES.items()} == {
        "acrobot": 0.01,
        "reacher_hard": 0.01,
        "cartpole_swingup": 0.01,
        "pendulum": 0.05,
        "ball_in_cup": 0.2,
        "point_mass": 0.05,
    }
    assert names.parse_name("playground:CheetahRun").action_cost == 0.0


def test_the_paper_s_tasks_are_playground_s_by_their_short_names(monkeypatch):
    package = types.SimpleNamespace(dm_control_suite=Suite())
    monkeypatch.setitem(sys.modules, "mujoco_playground", package)
    for name in ("cartpole_swingup", "CartpoleSwingupSparse"):
        env = device_tasks.load_playground(name)
        functional.check(env)
        assert (env.episode_length, env.termination, env.action_size) == (7, "never", 1)
    with pytest.raises(ValueError, match=r"'playground:reacher_hard' cannot be loaded .*find_body"):
        device_tasks.load_playground("reacher_hard")
    with pytest.raises(ValueError, match="no task 'walker'; it has acrobot, reacher_hard, cartpo"):
        device_tasks.load_playground("walker")
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"needs mujoco_playground; pip install .*\[playground\]"):
        device_tasks.load_playground("acrobot")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brax:hoper", "did you mean 'brax:hopper'"),
        ("brax:hopper:sprng", "did you mean 'spring'"),
        ("functional:Pendulum", "must be named as functional:MODULE:NAME, got"),
        ("functional:tests.pendulum:Pendlum", "no class or function.*did you mean 'Pendulum'"),
        ("functional:tests.no_such:f", "cannot be imported"),
        ("functional:tests.pendulum:State", "cannot be made"),
    ],
)
def test_a_name_that_is_wrong_is_answered_with_the_remedy(name, message):
    with pytest.raises(ValueError, match=message):
        functional.load(name)


def raises():
    raise RuntimeError("of its own")


@dataclasses.dataclass
class Unhashable(Pendulum):
    """Compares by value, and may change."""

    length: float = 1.0


def test_an_environment_that_cannot_be_made_or_compiled_is_refused():
    with pytest.raises(ValueError, match="cannot be made: RuntimeError: of its own"):
        functional.load(f"functional:{__name__}:raises")
    with pytest.raises(ValueError, match="cannot be a static argument"):
        functional.check(Unhashable())


def test_the_host_s_functions_say_where_such_an_environment_goes():
    with pytest.raises(ValueError, match=r"use environments\.vector"):
        environments.make(NAME)
    with pytest.raises(ValueError, match="is stepped on the host"):
        functional.load("pendulum")


def test_values_that_are_not_finite_stop_the_loop_on_the_host():
    env = environments.vector(NAME, [0])
    with pytest.raises(ValueError, match=r"actions for .* must be finite"):
        env.step(np.full((1, 1), np.nan))
    with pytest.raises(ValueError, match=r"actions must have shape \(1, 1\)"):
        env.step(np.zeros((1, 2)))
    first = "functional:tests.pendulum:LostAtFirst"
    with pytest.raises(environments.FaultyEnvironmentError, match="LostAtFirst' returned an obs"):
        environments.vector(first, [0])
    later = environments.vector("functional:tests.pendulum:LostLater", [0, 1])
    steps = (later.step(np.zeros((2, 1))) for _ in range(50))
    with pytest.raises(environments.FaultyEnvironmentError, match="LostLater' returned an obs"):
        collections.deque(steps, maxlen=0)


class Hopping(Pendulum):
    """Says that it ends like another task."""

    termination = "hopper"


class Misspelt(Pendulum):
    termination = "nevr"


def test_a_termination_by_name_must_be_one_for_this_environment():
    with pytest.raises(ValueError, match=r"Misspelt' 'nevr' is unknown \(did you mean 'never'"):
        environments.spec(f"functional:{__name__}:Misspelt")
    spec = environments.spec(f"functional:{__name__}:Hopping")
    with pytest.raises(ValueError, match=r"'hopper' is for .* has 3 and 1: name a function of"):
        spec.task()
    assert spec.task("never").termination is environments.TERMINATIONS["never"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        "inverted_pendulum",
        "hopper",
        "walker2d:spring",
        "halfcheetah:spring",
        "ant:spring",
        "humanoid",
        "inverted_double_pendulum",
        "inverted_double_pendulum:spring",
    ],
)
def test_brax_tasks_end_where_their_termination_says(task):
    pytest.importorskip("brax")
    env = functional.load(f"brax:{task}")
    ends = environments.spec(f"brax:{task}").task().termination

    def step(stream, key):
        action = jax.random.uniform(key, (env.action_size,), minval=-1.0)
        after, result = streams.advance(env, stream, action)
        return after, (result, ends(stream.observation, action, result.next_observation))

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, count):
        first = streams.start(env, key)
        return jax.lax.scan(step, first, jax.random.split(key, count))[1]

    results, predicted = run(jax.random.key(0), 300)
    differ = np.asarray(predicted) != np.asarray(results.terminated)
    if task == "inverted_double_pendulum:spring":
        assert differ.sum() <= 1
    if task.startswith("inverted_double"):
        # The height is read before the last physics step, the observation after.
        sines, cosines = np.split(np.asarray(results.next_observation)[differ, 1:5], 2, axis=-1)
        both = np.prod(cosines, -1) - np.prod(sines, -1)
        np.testing.assert_allclose(0.6 * (cosines[:, 0] + both), 1.0, atol=0.03)
    elif task == "humanoid":  # likewise
        np.testing.assert_allclose(results.next_observation[differ, 0], 1.0, atol=0.02)
    else:
        assert not differ.any()
    assert np.isfinite(results.next_observation).all()
    if task.startswith("halfcheetah"):
        assert not results.terminated.any()
    elif task != "ant:spring":  # which random actions do not topple
        assert results.terminated.any()
    # A new episode begins close to where all do, whatever happened before.
    started = results.observation[np.asarray(results.terminated)]
    if len(started) > 1:
        assert np.abs(started - started[0]).max() < 2.0


class Priceless(Pendulum):
    """Pays more than a number can say."""

    def reward(self, state, action, next_state):
        return jnp.full((), jnp.inf)


def test_a_reward_that_is_not_finite_stops_the_loop_on_the_host():
    env = environments.vector(f"functional:{__name__}:Priceless", [0])
    with pytest.raises(environments.FaultyEnvironmentError, match="Priceless' returned an obs"):
        env.step(np.zeros((1, 1)))


def test_what_a_copy_that_waits_would_do_does_not_matter():
    env = environments.vector(NAME, [0, 1])
    before = env.reset()
    result = env.step(np.array([[1.0], [np.nan]]), [1, 0])
    np.testing.assert_array_equal(result.observation[1], before[1])


@pytest.mark.parametrize("active", [[True], [True] * 3, True])
def test_which_copies_to_step_is_said_of_each(active):
    env = environments.vector(NAME, [0, 1])
    env.reset()
    with pytest.raises(ValueError, match=r"active must have shape \(2,\), one for each env"):
        env.step(np.zeros((2, 1)), active)
