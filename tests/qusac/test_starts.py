"""Where rollouts start, on data whose best states are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import replay, starts
from qusac_jax.task import Transition

NUM_STATES = 1_000


@pytest.fixture
def real():
    """D with the states 0, 1, ..., 999 and as many slots that nothing was written to."""
    state = jnp.arange(float(NUM_STATES))[:, None]
    zeros = jnp.zeros(NUM_STATES)
    data = Transition(state, state, zeros, state, zeros.astype(bool))
    return replay.add(replay.init(2 * NUM_STATES, 1, 1), data)


def draw(made, count=20_000):
    return np.asarray(made(jax.random.key(1), count))[:, 0]


def promising(real, num_candidates, score=lambda x: x[:, 0] ** 3):
    return starts.promising(
        real, score, jax.random.key(0), num_candidates=num_candidates, chunks=40, size=500
    )


def test_uniform_starts_are_everywhere_in_the_data(real):
    drawn = draw(starts.uniform(real))
    assert set(drawn) == set(range(NUM_STATES))
    np.testing.assert_allclose(drawn.mean(), (NUM_STATES - 1) / 2, rtol=0.02)


@pytest.mark.parametrize("num_candidates", [2, 8])
def test_every_second_start_is_the_best_of_several(real, num_candidates):
    drawn = draw(promising(real, num_candidates))
    np.testing.assert_allclose(drawn[::2].mean(), (NUM_STATES - 1) / 2, rtol=0.02)
    # The largest of T uniform draws from [0, 1] is T / (T + 1) in the mean, and below x with
    # probability x^T. Scores are increasing and far from linear: only their order counts.
    best = drawn[1::2] / NUM_STATES
    np.testing.assert_allclose(best.mean(), num_candidates / (num_candidates + 1), atol=0.01)
    np.testing.assert_allclose((best < 0.8).mean(), 0.8**num_candidates, atol=0.02)


def test_starts_are_states_and_not_mixtures_of_them(real):
    drawn = draw(promising(real, 4, score=lambda x: -jnp.abs(x[:, 0] - 300.0)), count=7)
    assert drawn.shape == (7,)
    np.testing.assert_array_equal(drawn, np.round(drawn))
    # Four of 20,000 states in the pool: within 200 of the best with probability 1 - 0.6^4 = 0.87.
    assert (
        np.abs(draw(promising(real, 4, lambda x: -jnp.abs(x[:, 0] - 300.0)))[1::2] - 300) <= 200
    ).mean() == pytest.approx(1 - 0.6**4, abs=0.02)
