"""Methods that a user writes, named by their module."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import qusac
from qusac_jax.qusac import estimates
from qusac_jax.qusac import parts as parts_lib
from tests import own_methods
from tests.sizes import small
from tests.tasks import never

TASK = qusac.Task(observation_size=3, action_size=1, termination=never)


def config(name, **fields):
    return small(qusac.Config(method=f"tests.own_methods:{name}", num_members=2, **fields))


def test_an_own_method_is_what_the_agent_estimates():
    parts = parts_lib.build(config("spread"), 1)
    learner = parts_lib.init(jax.random.key(0), parts.config, 3, 1)
    q = jnp.array([[1.0, 5.0], [4.0, 5.0]])[:, None]  # [N, M, B]
    std = estimates.value_std(parts, learner, jnp.zeros((2, 3)), jnp.zeros((2, 1)), q)
    np.testing.assert_allclose(std, [3.0, 0.0])
    assert parts.config.qvariance is own_methods.spread
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
        ("of_members", "must return float32[7] for a batch of 7, got float32[2]; take"),
        ("whole_numbers", "must return float32[7] for a batch of 7, got int32[7]; take"),
        ("of_numpy", "cannot be traced, or has no gradient: TracerArrayConversionError: "),
        ("of_the_model", "cannot be traced, or has no gradient: TypeError: "),
        ("without_gradient", "cannot be traced, or has no gradient: ValueError: Reverse-mode"),
    ],
)
def test_a_wrong_one_is_refused_before_anything_is_trained(name, message):
    full = f"method 'tests.own_methods:{name}' {message}"
    with pytest.raises(ValueError, match=re.escape(full)):
        qusac.init(jax.random.key(0), config=config(name), task=TASK)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("tests.own_methods:sprea", r"no qusac\.uncertainty\.Method 'sprea' \(did you mean 'spr"),
        ("tests.own_methods:squared_range", "no qusac.uncertainty.Method 'squared_range'"),
        ("tests.no_such_methods:spread", "cannot be imported: ModuleNotFoundError"),
        ("tests.own_methods:", "method must be named as MODULE:NAME, got 'tests.own_methods:'"),
    ],
)
def test_one_that_is_not_there_is_named(method, message):
    with pytest.raises(ValueError, match=message):
        qusac.Config(method=method)
