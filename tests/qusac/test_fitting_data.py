"""The order in which the dynamics see their data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import fitting_data


@pytest.mark.parametrize("capacity", [12, 2**17, 2**17 + 1])
def test_every_training_slot_is_visited_once_per_epoch(capacity):
    order = fitting_data.shuffle(jax.random.key(0), jnp.int32(7), capacity, 3)
    for row in np.asarray(order):
        assert sorted(row[:7]) == list(range(7))
    assert len({tuple(row[:7]) for row in np.asarray(order)}) == 3  # each its own order


def test_every_training_slot_is_as_likely_at_every_place():
    order = fitting_data.shuffle(jax.random.key(0), jnp.int32(7), 12, 7_000)
    counts = [np.bincount(place, minlength=7) for place in np.asarray(order[:, :7]).T]
    np.testing.assert_allclose(counts, 1_000, atol=150)  # five standard deviations
