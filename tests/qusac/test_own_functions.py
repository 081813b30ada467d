"""Methods, penalties and regularizers that a user writes, named by their module."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import qusac
from qusac_jax.qusac import estimates, learner, model, presets
from qusac_jax.qusac import parts as parts_lib
from tests import own_functions
from tests.sizes import small
from tests.tasks import never

TASK = qusac.Task(observation_size=3, action_size=1, termination=never)


def config(method, **fields):
    return small(qusac.Config(method=f"tests.own_functions:{method}", num_members=2, **fields))


def offline(**fields):
    return dataclasses.replace(
        small(presets.get("mbpo", "small", is_offline=True)), num_members=2, **fields
    )


def test_an_own_method_is_what_the_agent_estimates():
    parts = parts_lib.build(config("spread"), 1)
    state = parts_lib.init(jax.random.key(0), parts.config, 3, 1)
    q = jnp.array([[1.0, 5.0], [4.0, 5.0]])[:, None]  # [N, M, B]
    std = estimates.value_std(parts, state, jnp.zeros((2, 3)), jnp.zeros((2, 1)), q)
    np.testing.assert_allclose(std, [3.0, 0.0])
    assert parts.config.qvariance is own_functions.spread
    assert not parts.config.uses_unet


def test_what_it_needs_is_asked_for():
    with pytest.raises(ValueError, match="spread' needs at least two critic groups"):
        config("spread", critic_data="model")
    with pytest.raises(ValueError, match="expected_changes' needs at least two dynamics models"):
        config("expected_changes", critic_data="replay")


@pytest.mark.parametrize("name", ["spread", "expected_changes", "next_values", "upper_bound"])
def test_a_right_one_is_taken(name):
    assert qusac.init(jax.random.key(0), config=config(name), task=TASK).learner.num_updates == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("both", "has both local and direct; leave one of them out"),
        (
            "of_members",
            "must return float32[9] for qusac.uncertainty.Values of shapes [2, 9], got float32[2]",
        ),
        (
            "whole_numbers",
            "must return float32[9] for qusac.uncertainty.Values and the discount of",
        ),
        ("of_numpy", "cannot be traced or has no gradient: TracerArrayConversionError: "),
        ("of_the_model", "cannot be traced: TypeError: "),
        ("without_gradient", "cannot be traced or has no gradient: ValueError: Reverse-mode"),
    ],
)
def test_a_wrong_one_is_refused_before_anything_is_trained(name, message):
    full = f"method 'tests.own_functions:{name}' {message}"
    with pytest.raises(ValueError, match=re.escape(full)):
        qusac.init(jax.random.key(0), config=config(name), task=TASK)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("tests.own_functions:sprea", r"no qusac\.uncertainty\.Method 'sprea' \(did you mean 'spr"),
        ("tests.own_functions:squared_range", "no qusac.uncertainty.Method 'squared_range'"),
        ("tests.no_such_methods:spread", "cannot be imported: ModuleNotFoundError"),
        ("tests.own_functions:", "method must be named as MODULE:NAME, got 'tests.own_functions:'"),
    ],
)
def test_one_that_is_not_there_is_named(method, message):
    with pytest.raises(ValueError, match=message):
        qusac.Config(method=method)


def test_own_penalties_and_regularizers_are_what_the_agent_uses():
    taken = offline(
        penalty="tests.own_functions:apart", regularizer="tests.own_functions:small_values"
    )
    qusac.init(jax.random.key(0), config=taken, task=TASK)
    penalty = model._penalty(dataclasses.replace(taken, penalty_scale=2.0))
    # Members that expect 0 and 2, both without noise: a deviation of 1, twice.
    mean = jnp.array([0.0, 2.0])[:, None, None] * jnp.ones((2, 1, 1))
    np.testing.assert_allclose(penalty(mean, jnp.zeros_like(mean)), [2.0])
    q = jnp.array([[[3.0, 1.0]], [[2.0, 0.0]]])  # 5 and 2 in the mean square
    found = learner._regularization(taken.regularizer, taken, q)
    np.testing.assert_allclose(found, taken.regularizer_weight * 7.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"penalty": "tests.own_functions:apart_in_all"},
            "must return float32[10] for mean and std [N, B, O + 1] of shapes [2, 10, 4], "
            "[2, 10, 4], got float32[10, 4]",
        ),
        (
            {"regularizer": "tests.own_functions:small_values_of_each"},
            "must return float32[] for q [N, M, B] and is_real [B] of shapes [1, 2, 10], [10], got "
            "float32[1, 2]",
        ),
        ({"penalty": "tests.own_functions:small_valus"}, "has no function 'small_valus' (did you"),
        (
            {"regularizer": "kombo"},
            "is unknown (did you mean 'combo'?); choose from combo, MODULE:NAME",
        ),
    ],
)
def test_a_wrong_penalty_or_regularizer_is_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        qusac.init(jax.random.key(0), config=offline(**fields), task=TASK)
