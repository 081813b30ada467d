"""D4RL files written by hand, good ones and bad ones."""

import hashlib

import h5py
import numpy as np
import pytest

from qusac_jax import datasets
from qusac_jax.datasets import checks
from qusac_jax.environments import Spec


def test_keeps_every_row_where_next_observations_are_given(d4rl_arrays, write_hdf5):
    path = write_hdf5(d4rl_arrays)
    dataset = datasets.load(path)
    batch = dataset.transitions()
    np.testing.assert_array_equal(batch.observation, d4rl_arrays["observations"])
    np.testing.assert_array_equal(batch.next_observation, d4rl_arrays["next_observations"])
    np.testing.assert_array_equal(batch.action, d4rl_arrays["actions"])
    np.testing.assert_array_equal(batch.reward, d4rl_arrays["rewards"])
    np.testing.assert_array_equal(batch.terminated, d4rl_arrays["terminals"])
    np.testing.assert_array_equal(dataset.truncated, d4rl_arrays["timeouts"])
    assert [field.dtype for field in batch] == [np.float32] * 4 + [bool]
    assert dataset.next_observation_known.all()
    assert (dataset.num_transitions, dataset.num_dropped, dataset.num_episodes) == (9, 0, 3)
    np.testing.assert_array_equal(dataset.episode_returns, [10, 60])  # not of the unfinished one
    assert dataset.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (dataset.source, dataset.reference, dataset.env) == ("d4rl", None, None)


def test_successors_never_cross_an_episode(d4rl_arrays, write_hdf5):
    del d4rl_arrays["next_observations"]
    dataset = datasets.load(write_hdf5(d4rl_arrays))
    # Row 6 was cut by the time limit, row 8 is the last of the file: both go.
    number = dataset.observation[:, 0]
    np.testing.assert_array_equal(number, [0, 1, 2, 3, 100, 101, 200])
    np.testing.assert_array_equal(dataset.terminated, [0, 0, 0, 1, 0, 0, 0])
    known = np.array([1, 1, 1, 0, 1, 1, 1], bool)  # a terminal row: kept, but its successor unknown
    np.testing.assert_array_equal(dataset.next_observation_known, known)
    np.testing.assert_array_equal(dataset.next_observation[known, 0], number[known] + 1)
    np.testing.assert_array_equal(dataset.next_observation[3], dataset.observation[3])
    assert dataset.num_dropped == 2
    np.testing.assert_array_equal(dataset.episode_returns, [10, 60])  # with the dropped rewards
    batch = dataset.transitions(known_next_observations=True)
    np.testing.assert_array_equal(batch.observation[:, 0], number[known])
    assert len(batch.reward) == len(batch.action) == 6


@pytest.mark.parametrize("with_next", [True, False])
def test_terminal_wins_where_a_row_is_both(d4rl_arrays, write_hdf5, with_next):
    d4rl_arrays["timeouts"][3] = True
    if not with_next:
        del d4rl_arrays["next_observations"]
    dataset = datasets.load(write_hdf5(d4rl_arrays))
    assert dataset.terminated[3]
    assert dataset.truncated[3]
    assert dataset.num_episodes == 3


def test_file_that_ends_with_an_episode(d4rl_arrays, write_hdf5):
    del d4rl_arrays["next_observations"]
    d4rl_arrays["terminals"][8] = True
    dataset = datasets.load(write_hdf5(d4rl_arrays))
    assert dataset.num_dropped == 1
    assert dataset.observation[-1, 0] == 201
    np.testing.assert_array_equal(dataset.episode_returns, [10, 60, 14])


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_a_loop(write_hdf5, seed):
    rng = np.random.default_rng(seed)
    arrays = {
        "observations": np.arange(40, dtype=np.float32)[:, None],
        "actions": np.zeros((40, 1), np.float32),
        "rewards": rng.integers(-5, 5, 40).astype(np.float32),
        "terminals": rng.random(40) < 0.2,
        "timeouts": rng.random(40) < 0.2,
    }
    dataset = datasets.load(write_hdf5(arrays))
    kept, returns, running = [], [], 0.0
    for row in range(40):
        terminal, timeout = arrays["terminals"][row], arrays["timeouts"][row]
        running += arrays["rewards"][row]
        if terminal:
            kept.append((row, row, False))
        elif not timeout and row < 39:
            kept.append((row, row + 1, True))
        if terminal or timeout:
            returns.append(running)
            running = 0.0
    rows, successors, known = map(np.array, zip(*kept, strict=True))
    np.testing.assert_array_equal(dataset.observation[:, 0], rows)
    np.testing.assert_array_equal(dataset.next_observation[:, 0], successors)
    np.testing.assert_array_equal(dataset.next_observation_known, known)
    np.testing.assert_array_equal(dataset.reward, arrays["rewards"][rows])
    np.testing.assert_array_equal(dataset.terminated, arrays["terminals"][rows])
    np.testing.assert_array_equal(dataset.truncated, arrays["timeouts"][rows])
    np.testing.assert_allclose(dataset.episode_returns, returns)
    unfinished = not (arrays["terminals"] | arrays["timeouts"])[-1]
    assert dataset.num_episodes == len(returns) + unfinished
    assert dataset.num_transitions + dataset.num_dropped == 40


def test_single_unfinished_episode_is_accepted(d4rl_arrays, write_hdf5):
    d4rl_arrays["terminals"][:] = d4rl_arrays["timeouts"][:] = False
    dataset = datasets.load(write_hdf5(d4rl_arrays))
    assert dataset.num_episodes == 1
    assert dataset.episode_returns.shape == (0,)
    assert datasets.describe(dataset)["behavior"] is None


def test_numbers_of_other_types(d4rl_arrays, write_hdf5):
    expected = {key: value.copy() for key, value in d4rl_arrays.items()}
    d4rl_arrays["observations"] = d4rl_arrays["observations"].astype(">f8")
    d4rl_arrays["rewards"] = d4rl_arrays["rewards"].astype(np.int64)
    d4rl_arrays["terminals"] = d4rl_arrays["terminals"].astype(np.uint8)
    d4rl_arrays["timeouts"] = d4rl_arrays["timeouts"].astype(np.float32)
    dataset = datasets.load(write_hdf5(d4rl_arrays, compression="gzip"))
    np.testing.assert_array_equal(dataset.observation, expected["observations"])
    np.testing.assert_array_equal(dataset.reward, expected["rewards"])
    np.testing.assert_array_equal(dataset.terminated, expected["terminals"])
    assert dataset.observation.dtype == dataset.reward.dtype == np.float32


def test_actions_are_scaled_and_rounding_is_clipped(d4rl_arrays, write_hdf5):
    d4rl_arrays["actions"] = np.float32([[-2, 1]] * 8 + [[2.00001, 5]])
    path = write_hdf5(d4rl_arrays)
    dataset = datasets.load(path, action_bounds=(-2, [2, 6]))
    np.testing.assert_allclose(dataset.action[0], [-1, -0.25])
    np.testing.assert_allclose(dataset.action[-1], [1, 0.75])
    assert dataset.action.max() <= 1
    np.testing.assert_array_equal(dataset.action_low, [-2, -2])
    np.testing.assert_array_equal(dataset.action_high, [2, 6])
    with pytest.raises(ValueError, match=r"data.hdf5, key 'actions', row 0, column 0: -2.0 is out"):
        datasets.load(path)
    for bounds in ((-1, np.inf), (1, -1), (-1, [1, 1, 1]), ("a", "b")):
        with pytest.raises(ValueError, match="action_bounds"):
            datasets.load(path, action_bounds=bounds)


def change(key, row, value):
    def spoil(arrays):
        arrays[key] = arrays[key].astype(np.float64)
        arrays[key][row] = value

    return spoil


def replace(key, make):
    return lambda arrays: arrays.update({key: make(arrays[key])})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: a.pop("timeouts"), r"no key 'timeouts' \(it has: .*rewards.*\); add it"),
        (lambda a: a.pop("observations"), r"no key 'observations'"),
        (change("rewards", 5, np.nan), r"key 'rewards', row 5: nan is not finite"),
        (change("rewards", 5, 1e300), r"key 'rewards', row 5: inf is not finite in float32"),
        (change("observations", (7, 1), -np.inf), r"'observations', row 7, column 1: -inf"),
        (change("next_observations", 2, np.nan), r"'next_observations', row 2, column 0: nan"),
        (change("actions", 4, np.nan), r"'actions', row 4, column 0: nan"),
        (
            change("actions", 4, 1.001),
            r"'actions', row 4, column 0: 1.00.* is outside the bounds.*action_bounds=environment",
        ),
        (change("terminals", 4, 0.5), r"'terminals', row 4: 0.5 is neither 0 nor 1"),
        (change("timeouts", 4, np.nan), r"'timeouts', row 4: nan is neither 0 nor 1"),
        (replace("rewards", lambda a: a[:-1]), r"unequal numbers of rows: .*'rewards' 8"),
        (replace("rewards", lambda a: a[:, None]), r"'rewards' has the shape \(9, 1\); store one"),
        (replace("rewards", lambda a: a[0]), r"unequal numbers of rows"),
        (replace("observations", lambda a: a[:, 0]), r"'observations' has the shape \(9,\)"),
        (replace("next_observations", lambda a: a[:, :1]), r"'next_observations' has the shape"),
        (replace("actions", lambda a: a.astype(np.complex64)), r"'actions' has the dtype complex"),
        (replace("rewards", lambda a: a.astype("S4")), r"'rewards' has the dtype \|S4"),
        (replace("rewards", lambda a: a > 0), r"'rewards' has the dtype bool; store it as float32"),
        (replace("terminals", lambda a: [b"no"] * 9), r"'terminals' has the dtype"),
        (
            replace("rewards", lambda a: np.arange(9) + 2**24 - 7),
            r"'rewards', row 8: 16777217 is an integer that float32 does not hold",
        ),
    ],
)
def test_errors_name_file_key_and_row(d4rl_arrays, write_hdf5, spoil, message):
    spoil(d4rl_arrays)
    with pytest.raises(ValueError, match=rf"(?s)data\.hdf5.*{message}"):
        datasets.load(write_hdf5(d4rl_arrays))


def test_too_few_rows(d4rl_arrays, write_hdf5):
    with pytest.raises(ValueError, match="key 'rewards' is empty"):
        datasets.load(write_hdf5({k: v[:0] for k, v in d4rl_arrays.items()}))
    with pytest.raises(ValueError, match="2 usable transitions"):
        datasets.load(write_hdf5({k: v[:2] for k, v in d4rl_arrays.items()}))
    assert datasets.load(write_hdf5({k: v[:3] for k, v in d4rl_arrays.items()})).num_episodes == 1


def test_group_where_an_array_should_be(d4rl_arrays, write_hdf5):
    del d4rl_arrays["rewards"]
    path = write_hdf5(d4rl_arrays)
    with h5py.File(path, "a") as file:
        file.create_group("rewards")
    with pytest.raises(ValueError, match="'rewards' is a group"):
        datasets.load(path)


def test_damaged_files(d4rl_arrays, write_hdf5, tmp_path):
    path = write_hdf5(d4rl_arrays, compression="gzip", chunks=True)
    with h5py.File(path) as file:
        offset = file["rewards"].id.get_chunk_info(0).byte_offset
    whole = path.read_bytes()

    def damaged(content):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"data\.hdf5.*(truncated or damaged)"):
            datasets.load(path)
        assert path.read_bytes() == content

    damaged(whole[: len(whole) // 2])
    damaged(b"")
    damaged(b"not HDF5 at all")
    damaged(bytes([whole[0] ^ 0xFF]) + whole[1:])  # the signature
    flipped = bytearray(whole)
    flipped[offset + 2 : offset + 12] = bytes(b ^ 0xFF for b in flipped[offset + 2 : offset + 12])
    damaged(bytes(flipped))  # the compressed rewards


def test_no_flipped_byte_gives_another_error(d4rl_arrays, write_hdf5):
    path = write_hdf5(d4rl_arrays, compression="gzip", chunks=True)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    messages = []
    for position in rng.integers(len(whole), size=150):
        flipped = bytearray(whole)
        flipped[position] ^= int(rng.integers(1, 256))
        path.write_bytes(flipped)
        try:
            datasets.load(path)  # another valid number, or a part of the file that says nothing
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 5
    assert all("data.hdf5" in message for message in messages)


def test_matches_the_environment(d4rl_arrays, write_hdf5):
    path = write_hdf5(d4rl_arrays)
    fitting = Spec("gym:Some-v0", 2, 1, 0.0, 100, "never")
    dataset = datasets.load(path)
    datasets.check_matches(dataset, fitting)
    with pytest.raises(ValueError, match=r"key 'observations' has 2 .*'gym:Some-v0' has 3"):
        datasets.check_matches(dataset, fitting._replace(observation_size=3))
    with pytest.raises(ValueError, match=r"key 'actions' has 1 .*'gym:Some-v0' has 4"):
        datasets.check_matches(dataset, fitting._replace(action_size=4))


def test_bounds_that_are_not_the_environments(d4rl_arrays, write_hdf5):
    # The file does not say in which units its actions are: as they are in the environment's, the
    # number 1 is half of what the agent's 1 does there.
    path = write_hdf5(d4rl_arrays)
    spec = Spec("gym:Some-v0", 2, 1, 0.0, 100, "never", (-2.0,), (2.0,))
    assumed, other = datasets.load(path), datasets.load(path, action_bounds=(-3, 3))
    with pytest.raises(ValueError, match=r"\[-1.0\] to \[1.0\], but .* \[-2.0\] to \[2.0\]; pass"):
        datasets.check_matches(assumed, spec)
    with pytest.raises(ValueError, match=r"\[-3.0\] to \[3.0\], but"):
        datasets.check_matches(other, spec)
    scaled = datasets.load(path, action_bounds=(-1, 1))
    datasets.check_matches(scaled, spec)
    np.testing.assert_array_equal(scaled.action, d4rl_arrays["actions"])
    own = datasets.load(path, action_bounds=(spec.action_low, spec.action_high))
    datasets.check_matches(own, spec)
    np.testing.assert_allclose(own.action, d4rl_arrays["actions"] / 2, atol=1e-7)
    datasets.check_matches(assumed, spec._replace(action_low=(-1.0,), action_high=(1.0,)))


def test_an_array_without_a_shape_is_damage(d4rl_arrays, write_hdf5):
    path = write_hdf5(d4rl_arrays)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = h5py.Empty("f4")
    with pytest.raises(ValueError, match=r"rewards.* is empty"):
        datasets.load(path)


def test_integers_far_below_zero_are_not_rounded_either():
    with pytest.raises(ValueError, match="row 1: -16777217 is an integer that float32 does not"):
        checks.as_floats("here", np.array([0, -(2**24) - 1]), ndim=1)


def test_a_report_counts_ends_and_what_is_missing(d4rl_arrays, write_hdf5):
    facts = datasets.describe(datasets.load(write_hdf5(d4rl_arrays)))
    del d4rl_arrays["next_observations"]
    fewer = datasets.describe(datasets.load(write_hdf5(d4rl_arrays)))
    names = ("transitions", "dropped", "unknown_next_observations", "terminated", "truncated")
    assert [facts[f"num_{name}"] for name in names] == [9, 0, 0, 1, 1]
    assert [fewer[f"num_{name}"] for name in names] == [7, 2, 1, 1, 0]
