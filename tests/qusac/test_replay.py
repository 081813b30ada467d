"""The ring buffer against a list."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from qusac_jax.qusac import replay
from qusac_jax.task import Transition

CAPACITY = 6


def numbered(values):
    """Transitions recognizable by a number."""
    values = jnp.asarray(values, jnp.float32)
    return Transition(
        observation=values[:, None] * jnp.ones(2),
        action=values[:, None],
        reward=values,
        next_observation=values[:, None] + jnp.ones(2),
        terminated=values % 2 == 1,
    )


add = jax.jit(replay.add)


@hypothesis.given(
    strategies.lists(
        strategies.lists(strategies.booleans(), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
@hypothesis.settings(deadline=None, max_examples=40)
def test_holds_the_last_that_the_mask_let_in(masks):
    buffer = replay.init(CAPACITY, 2, 1)
    written = []
    for i, mask in enumerate(masks):
        numbers = [3 * i + 1, 3 * i + 2, 3 * i + 3]
        buffer = add(buffer, numbered(numbers), jnp.asarray(mask))
        written += [n for n, m in zip(numbers, mask, strict=True) if m]
    expected = written[-CAPACITY:]
    assert int(buffer.size) == len(expected)
    assert sorted(np.asarray(buffer.data.reward)[: len(expected)].tolist()) == sorted(expected)
    # All fields moved together.
    np.testing.assert_array_equal(buffer.data.observation[:, 1], buffer.data.reward)
    np.testing.assert_array_equal(
        buffer.data.terminated[: len(expected)],
        np.asarray(buffer.data.reward)[: len(expected)] % 2 == 1,
    )


def test_wraps_around_in_order():
    buffer = replay.init(CAPACITY, 2, 1)
    for start in (1, 5, 9):
        buffer = add(buffer, numbered(range(start, start + 4)))
    # 12 written over 6 slots: slot i holds 7 + i.
    np.testing.assert_array_equal(buffer.data.reward, [7, 8, 9, 10, 11, 12])
    assert int(buffer.position) == 0


def test_samples_valid_slots_uniformly():
    buffer = add(replay.init(CAPACITY, 2, 1), numbered([1, 2, 3, 4]))
    batch = replay.sample(buffer, jax.random.key(0), 40_000)
    values, counts = np.unique(np.asarray(batch.reward), return_counts=True)
    np.testing.assert_array_equal(values, [1, 2, 3, 4])
    # Standard deviation of a count is sqrt(40000 * 3 / 16) = 87; five of them.
    np.testing.assert_allclose(counts, 10_000, atol=435)


def test_growing_does_not_recompile():
    step = jax.jit(lambda buffer, batch: replay.add(buffer, batch))
    buffer = replay.init(CAPACITY, 2, 1)
    for i in range(10):
        buffer = step(buffer, numbered([i]))
    assert step._cache_size() == 1


def test_batch_larger_than_the_buffer_is_refused():
    with pytest.raises(ValueError, match="batch has 7 transitions, more than the capacity 6"):
        replay.add(replay.init(CAPACITY, 2, 1), numbered(range(7)))
