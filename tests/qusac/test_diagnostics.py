"""What the log says about a state, against values known by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import diagnostics, replay
from qusac_jax.task import Transition


def buffer_of(rewards, capacity=6):
    rewards = jnp.asarray(rewards, jnp.float32)
    zeros = jnp.zeros((len(rewards), 1))
    ends = jnp.zeros(len(rewards), bool)
    return replay.add(replay.init(capacity, 1, 1), Transition(zeros, zeros, rewards, zeros, ends))


def test_rewarded_share_ignores_empty_slots():
    assert float(diagnostics.rewarded_share(buffer_of([0, 0, 1, 2]), 0.5)) == 0.5
    assert float(diagnostics.rewarded_share(replay.init(6, 1, 1), -1.0)) == 0.0


def test_rewarded_slots_are_named_and_counted():
    buffer = buffer_of([0, 1, 0, 2])
    slots, is_there = diagnostics.rewarded_slots(buffer, 0.5, 3)
    np.testing.assert_array_equal(slots[is_there], [1, 3])
    np.testing.assert_array_equal(is_there, [True, True, False])
    slots, is_there = jax.jit(diagnostics.rewarded_slots, static_argnums=2)(buffer, 0.5, 1)
    np.testing.assert_array_equal(slots[is_there], [1])
