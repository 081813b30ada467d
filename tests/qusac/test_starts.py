"""Where rollouts start, on data whose values are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import replay, starts
from qusac_jax.task import Transition

NUM_STATES = 1_000
POOL = 200_000


def rewarded(reward):
    """D with the states 0, 1, ..., 999 and as many slots that nothing was written to."""
    state = jnp.arange(float(NUM_STATES))[:, None]
    ends = jnp.zeros(NUM_STATES, bool)
    data = Transition(state, state, jnp.asarray(reward, jnp.float32), state, ends)
    return replay.add(replay.init(2 * NUM_STATES, 1, 1), data)


@pytest.fixture
def real():
    return rewarded(np.zeros(NUM_STATES))


def draw(made, count=20_000):
    return np.asarray(made(jax.random.key(1), count))[:, 0]


def by_value(real, score):
    keys = jax.random.split(jax.random.key(0))
    unseeded = lambda x, key: score(x)
    return starts.by_value(real, unseeded, *keys, chunks=400, size=POOL // 400)


def test_uniform_starts_are_everywhere_in_the_data(real):
    drawn = draw(starts.uniform(real))
    assert set(drawn) == set(range(NUM_STATES))
    np.testing.assert_allclose(drawn.mean(), (NUM_STATES - 1) / 2, rtol=0.02)


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_of_every_second_start_the_logarithm_of_the_rank_is_uniform(real, unit):
    drawn = draw(by_value(real, lambda x: unit * (x[:, 0] / NUM_STATES) ** 3 - 7.0 * unit))
    np.testing.assert_allclose(drawn[::2].mean(), (NUM_STATES - 1) / 2, rtol=0.02)
    # The best part p of the pool has the ranks up to p * POOL.
    for part in (0.01, 0.1, 0.5):
        best = drawn[1::2] >= (1 - part) * NUM_STATES
        np.testing.assert_allclose(best.mean(), np.log(part * POOL) / np.log(POOL), atol=0.015)


def test_states_that_are_worth_the_same_are_as_frequent(real):
    drawn = draw(by_value(real, lambda x: jnp.where(x[:, 0] < 990, 0.0, 1.0)))[1::2]
    for same in (drawn[drawn >= 990], drawn[drawn < 990] // 99):  # ten good states, ten of others
        counts = np.unique(same, return_counts=True)[1]
        assert len(counts) == 10
        np.testing.assert_allclose(counts / counts.mean(), 1.0, atol=0.2)


def test_where_nothing_is_worth_more_starts_are_everywhere(real):
    drawn = draw(by_value(real, lambda x: jnp.zeros(len(x))))
    assert set(drawn[1::2]) == set(range(NUM_STATES))
    np.testing.assert_allclose(drawn[1::2].mean(), (NUM_STATES - 1) / 2, rtol=0.02)


@pytest.mark.parametrize(
    ("reward", "share"),
    [
        (np.where(np.arange(NUM_STATES) < 25, 1.0, -0.1), 0.75),  # costs are no rewards
        (np.where(np.arange(NUM_STATES) < 50, 7.0, 0.0), 0.5),  # in any unit
        (np.where(np.arange(NUM_STATES) == 0, 1.0, 0.02), 0.79),  # and what is near to nothing
        (np.where(np.arange(NUM_STATES) < 100, 1.0, 0.0), 0.0),
        (np.ones(NUM_STATES), 0.0),
        (-np.ones(NUM_STATES), 1.0),
    ],
)
def test_the_more_is_rewarded_the_fewer_start_by_value(reward, share):
    best = lambda x: jnp.where(x[:, 0] == 999.0, 1.0, 0.0)
    drawn = draw(by_value(rewarded(reward), best))
    assert (drawn[::2] == 999).mean() < 0.01
    # The best state has the ranks up to POOL / NUM_STATES.
    by_rank = np.log(POOL / NUM_STATES) / np.log(POOL)
    np.testing.assert_allclose((drawn[1::2] == 999).mean(), share * by_rank, atol=0.015)


def test_starts_are_states_and_not_mixtures_of_them(real):
    drawn = draw(by_value(real, lambda x: -jnp.abs(x[:, 0] - 300.0)), count=7)
    assert drawn.shape == (7,)
    np.testing.assert_array_equal(drawn, np.round(drawn))
