"""Normalized scores by hand, and whose reference is used."""

import json

import numpy as np
import pytest

from qusac_jax import datasets
from qusac_jax.datasets import scores


@pytest.mark.parametrize(
    ("task", "score"),
    [  # 100 (1000 - min) / (max - min)
        ("hopper", 100 * 1020.272305 / 3254.572305),
        ("halfcheetah", 100 * 1280.178953 / 12415.178953),
        ("walker2d", 100 * 998.370992 / 4590.670992),
    ],
)
def test_built_in_references(task, score):
    reference = scores.d4rl_reference(task)
    np.testing.assert_allclose(datasets.normalized_score(1000.0, reference), score, rtol=1e-12)
    ends = datasets.normalized_score([reference.min_return, reference.max_return], reference)
    np.testing.assert_allclose(ends, [0, 100])


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("hopper_medium-v2.hdf5", "hopper"),
        ("hopper-medium-v2.hdf5", "hopper"),
        ("walker2d_medium_replay-v2.hdf5", "walker2d"),
        ("halfcheetah-medium-expert-v2", "halfcheetah"),
        ("halfcheetah_full_replay-v2.hdf5", "halfcheetah"),
        ("hopper_medium-v5.hdf5", None),
        ("my_hopper_medium-v2.hdf5", None),
        ("hopper.hdf5", None),
        ("mujoco/hopper/medium-v0", None),
    ],
)
def test_names_of_d4rl(name, task):
    assert scores.d4rl_task(name) == task


def hopper_file(write_hdf5, name, observation_size=11):
    return write_hdf5(
        {
            "observations": np.zeros((6, observation_size), np.float32),
            "actions": np.zeros((6, 3), np.float32),
            "rewards": np.full(6, 500, np.float32),
            "terminals": np.array([0, 0, 0, 0, 0, 1], bool),
            "timeouts": np.array([0, 1, 0, 0, 0, 0], bool),
        },
        name,
    )


def test_file_name_chooses_the_reference(write_hdf5):
    dataset = datasets.load(hopper_file(write_hdf5, "hopper_medium-v2.hdf5"))
    assert dataset.reference == (-20.272305, 3234.3, "built-in D4RL returns of hopper")
    assert dataset.env == "gym:Hopper-v4"
    assert "Hopper-v2" in dataset.env_note
    facts = json.loads(json.dumps(datasets.describe(dataset)))
    assert facts["reference"]["max_return"] == 3234.3
    behavior = facts["behavior"]
    assert (behavior["episodes"], behavior["mean_return"]) == (2, 1500)  # 1000 and 2000
    assert behavior["std_return"] == 500
    np.testing.assert_allclose(
        facts["behavior"]["normalized_score"], 100 * 1520.272305 / 3254.572305
    )
    assert facts["sha256"] == dataset.sha256
    assert (facts["num_transitions"], facts["num_dropped"]) == (5, 1)

    assert (dataset.action_cost, facts["action_cost"]) == (0.0, 0.0)

    other = datasets.load(hopper_file(write_hdf5, "mine.hdf5"))
    assert (other.reference, other.action_cost) == (None, None)
    assert datasets.describe(other)["behavior"]["normalized_score"] is None
    with pytest.raises(ValueError, match="no reference returns"):
        datasets.normalized_score(1.0, other.reference)


def test_name_of_d4rl_on_other_data(write_hdf5):
    with pytest.raises(ValueError, match=r"named after D4RL's hopper.*12 and 3.*not 11 and 3"):
        datasets.load(hopper_file(write_hdf5, "hopper_medium-v2.hdf5", observation_size=12))


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, np.nan), ("0", 1), (True, 3)])
def test_references_that_cannot_be(low, high):
    with pytest.raises(ValueError, match=r"min_return < max_return.*of some/set-v0"):
        scores.metadata_reference({"ref_min_score": low, "ref_max_score": high}, "some/set-v0")


def test_metadata_without_both_returns():
    assert scores.metadata_reference({"ref_max_score": 1.0}, "some/set-v0") is None


@pytest.mark.parametrize("returns", ["a", {}, [[1.0], [1.0, 2.0]]])
def test_returns_that_are_no_numbers_are_named(returns):
    with pytest.raises(ValueError, match="returns must be numbers in rows of one length, got"):
        datasets.normalized_score(returns, datasets.ScoreReference(0.0, 1.0, "mine"))
