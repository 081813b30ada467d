"""Environments that go on as they would have, and those that are refused because they do not."""

import random

import gymnasium
import numpy as np
import pytest

from qusac_jax import environments
from qusac_jax.environments import encoding
from tests.environments import hidden_state


@pytest.fixture
def register():
    names = []

    def add(env_class):
        gymnasium.register(f"{env_class.__name__}-v0", entry_point=env_class)
        names.append(f"{env_class.__name__}-v0")
        return f"gym:{names[-1]}"

    yield add
    for name in names:
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    "env_class",
    [
        hidden_state.OwnState,
        hidden_state.View,
        hidden_state.TwoViews,
        hidden_state.SharedList,
        hidden_state.SharedGenerator,
        hidden_state.Sampling,
        hidden_state.SamplingFromTheClass,
        hidden_state.LastObservations,
        hidden_state.History,
        hidden_state.Scan,
        hidden_state.Visits,
        hidden_state.Transposed,
        hidden_state.Column,
        hidden_state.Sign,
        hidden_state.Strict,
        hidden_state.Passing,
        hidden_state.Randomized,
        hidden_state.LiveView,
        hidden_state.CopyOfAView,
    ],
)
def test_state_in_attributes_is_continued(register, env_class):
    name = register(env_class)
    environments.check_continues(name, seed=3)
    env = environments.VectorEnvironment(name, [1, 2])
    env.reset()
    shape = (60, 2, env.spec.action_size)
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    for action in actions[:20]:
        env.step(action)
    saved = env.state()
    expected = [env.step(action) for action in actions[20:]]
    for is_used in (False, True):
        other = environments.VectorEnvironment(name, [8, 9])
        if is_used:
            other.reset()
            other.step(actions[0])
        other.set_state(saved)
        for action, wanted in zip(actions[20:], expected, strict=True):
            found = other.step(action)
            np.testing.assert_array_equal(found.next_observation, wanted.next_observation)
            np.testing.assert_array_equal(found.observation, wanted.observation)


def test_what_came_after_a_state_was_saved_is_gone_where_it_is_restored(register):
    name = register(hidden_state.Passing)
    env, other = (environments.VectorEnvironment(name, [seed]) for seed in (1, 2))
    env.reset()
    saved = env.state()
    other.reset()
    other.step(np.ones((1, 1)))
    other.set_state(saved)
    expected, found = (each.step(np.zeros((1, 1))).observation for each in (env, other))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("env_class", "cause"),
    [
        (hidden_state.GlobalNumpy, "it changes NumPy's global random generator"),
        (hidden_state.GlobalPython, "it changes Python's global random generator"),
        (hidden_state.ClassCounter, "it changes the class attribute 'count' of ClassCounter"),
        (hidden_state.ModuleCounter, r"it changes the variable 'total' of the module '.*hidden_st"),
        (hidden_state.Closure, "in a closure"),
        (hidden_state.Numbered, "the observation after 1 steps is another; .*clos"),
        (hidden_state.HiddenUntilTheFirstStep, "the observation after 1 steps is another; .*clos"),
        (hidden_state.NoSeed, "first observation of an episode, 16 steps later, is another"),
        (hidden_state.Growing, "attribute 'history' of its Growing grows: a reset does not make"),
        (
            hidden_state.UnknownDict,
            "attribute 'visits' .* is a tests.*OtherDict, which holds state",
        ),
        (hidden_state.Masked, "attribute 'seen_so_far' .* is a numpy.ma.MaskedArray, which holds"),
        (hidden_state.SetsByKey, "attribute 'seen_at' .*defaultdict that makes <class 'set'>"),
        (hidden_state.RandomizedSolver, "'opt.impratio' of MuJoCo's model, which is not among"),
        (hidden_state.RandomizedSensors, "'jnt_actfrcrange' of MuJoCo's model, which is not among"),
        (hidden_state.GrowingMuch, "'history' of its GrowingMuch grows: after .* it is too large"),
    ],
)
def test_state_elsewhere_is_refused_with_the_cause(register, env_class, cause):
    name = register(env_class)
    message = f"(?s)env: '{name}' cannot be resumed exactly.*{cause}.*--resume_env=restart"
    with pytest.raises(ValueError, match=message) as raised:
        environments.check_continues(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        *environments.PAPER_TASKS,
        "dmc:quadruped:fetch",
        "dmc:stacker:stack_2",
        "gym:Pendulum-v1",
        "gym:Hopper-v5",
        "gym:Humanoid-v5",
    ],
)
def test_known_environments_pass(name):
    environments.check_continues(name, seed=2**32 - 1)


def test_trying_it_out_leaves_no_trace(register):
    space = hidden_state.SamplingFromTheClass.action_space
    space.seed(5)

    def generators():
        of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
        return encoding.encode([of_numpy, space.np_random])

    before, of_python = generators(), random.getstate()
    environments.check_continues(register(hidden_state.SamplingFromTheClass))
    with pytest.raises(ValueError, match="global"):
        environments.check_continues(register(hidden_state.GlobalNumpy))
    assert generators() == before
    assert random.getstate() == of_python


def test_shared_objects_and_memory_stay_shared():
    buffer = np.arange(6.0)
    columns = np.asfortranarray(np.arange(6).reshape(2, 3))
    inner = [1, buffer]
    generator = np.random.default_rng(0)
    values = [buffer, buffer[2:4], columns, columns[:, 1], inner, (inner, generator), generator]
    encoder = encoding.Encoder(values)
    saved = encoding.from_json(encoding.to_json([encoder.encode(value) for value in values]))
    decoder = encoding.Decoder()
    base, part, table, column, items, pair, drawn = (decoder.decode(value) for value in saved)
    np.testing.assert_array_equal(table, columns)
    assert items[1] is base
    assert pair[0] is items
    assert pair[1] is drawn
    base[2], column[0] = 99, -1
    assert part[0] == 99
    assert table[0, 1] == -1
    assert drawn.random() == generator.random()


def test_arrays_stay_laid_out_as_they_were_in_memory():
    table = np.arange(24.0).reshape(2, 3, 4)
    values = [
        table.T,
        np.asfortranarray(table),
        table[::-1, 1, ::2].copy("K"),
        np.arange(24.0)[::-3],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.zeros((3, 0)).T,
        np.ones((1, 3)).T,
        table.T.astype(np.complex64),
    ]
    for value in values:
        for current in (None, value, value.copy("C"), value.copy("F"), np.zeros(value.shape)):
            (saved,) = encoding.from_json(encoding.to_json([encoding.encode(value)]))
            found = encoding.Decoder().decode(saved, current)
            np.testing.assert_array_equal(found, value, strict=True)
            assert found.strides == value.strides or value.flags.c_contiguous
            assert found.flags.c_contiguous == value.flags.c_contiguous


@pytest.mark.parametrize(
    "value", [np.ma.array([1.0, 2.0], mask=[0, 1]), np.zeros(2).view(np.recarray)]
)
def test_arrays_that_compute_otherwise_are_no_plain_values(value):
    with pytest.raises(encoding.NotPlainError, match=type(value).__name__):
        encoding.encode(value)


def test_a_list_that_contains_itself_is_no_plain_value():
    own = []
    own.append(own)
    with pytest.raises(encoding.NotPlainError, match="contains itself"):
        encoding.encode(own)


def test_a_state_with_less_of_the_model_is_refused():
    env = environments.VectorEnvironment("gym:HalfCheetah-v5", [0])
    env.reset()
    saved = env.state()
    message = rf"'model' must be float64\[1, {saved['model'].shape[1]}\]"
    with pytest.raises(ValueError, match=message):
        env.set_state({**saved, "model": saved["model"][:, :-1]})


def test_saving_changes_nothing(register):
    name = register(hidden_state.SamplingInSteps)
    space = hidden_state.SamplingInSteps.action_space
    actions = np.zeros((20, 1, 1), np.float32)

    def observations(saved_at):
        space.seed(4)
        env = environments.VectorEnvironment(name, [0])
        env.reset()
        found = []
        for t, action in enumerate(actions):
            if t in saved_at:
                env.state()
            found.append(env.step(action).next_observation)
        return found

    np.testing.assert_array_equal(observations([10]), observations([]))
