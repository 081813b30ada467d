"""Local uncertainties against slow loops and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import uncertainty


def test_variance_divides_by_members_less_one():
    # Values 0, 2, 4: mean 2, squared deviations 4 + 0 + 4, over 3 - 1.
    np.testing.assert_allclose(uncertainty.ensemble_var(jnp.array([[0.0], [2.0], [4.0]])), [4.0])


@pytest.mark.parametrize(
    ("method", "propagated"),
    [("upper_bound", 0.25 * 8.0), ("pombu", 2.0 + 0.25 * 8.0), ("exact_ube", 2.0 + 0.25 * 6.0)],
)
def test_what_is_propagated_by_hand(method, propagated):
    # Two members, whose critics say -2 and 2, a variance of 8, and who expect rewards of 0 and 2, a
    # variance of 2. Their next states are worth 0 and 4, again 8. At two actions there one critic
    # says 1 more and 1 less than that, the other 1 less and 1 more: a gap of 2.
    worth = jnp.array([0.0, 4.0])[None, :, None, None]  # [N, N, J, B]
    own = jnp.array([[1.0, -1.0], [-1.0, 1.0]])[:, None, :, None]
    values = uncertainty.Values(
        q=jnp.array([[-2.0], [2.0]]), reward=jnp.array([[0.0], [2.0]]), next_q=worth + own
    )
    np.testing.assert_allclose(uncertainty.METHODS[method].local(values, 0.5), [propagated])


def test_one_member_is_never_uncertain():
    np.testing.assert_array_equal(uncertainty.member_variance(jnp.ones((1, 5))), np.zeros(5))


def loop_gap(next_q):
    num_members, _, _, batch = next_q.shape
    total = np.zeros(batch)
    for i in range(num_members):
        difference = next_q[i, i] - next_q[:, i].mean(0)  # [K, B]
        total += difference.var(0, ddof=1)
    return total / num_members


def test_gap_equals_a_loop():
    next_q = np.asarray(jax.random.normal(jax.random.key(0), (3, 3, 4, 6)))
    np.testing.assert_allclose(uncertainty.gap(jnp.asarray(next_q)), loop_gap(next_q), rtol=1e-5)


def test_gap_vanishes_when_actions_do_not_matter():
    # The policy's noise is the only aleatoric part here: equal values for all K actions, no gap.
    per_state = jax.random.normal(jax.random.key(0), (3, 3, 1, 6))
    next_q = jnp.broadcast_to(per_state, (3, 3, 4, 6))
    np.testing.assert_allclose(uncertainty.gap(next_q), 0.0, atol=1e-6)
    expected = np.asarray(per_state).mean(0)[:, 0].var(0, ddof=1)
    np.testing.assert_allclose(uncertainty.exact_ube(next_q), expected, rtol=1e-5)


def test_exact_is_pombu_less_gap_clipped_at_zero():
    key_state, key_action = jax.random.split(jax.random.key(1))
    next_q = 2.0 * jax.random.normal(key_state, (1, 4, 1, 50))
    next_q = next_q + jax.random.normal(key_action, (4, 4, 5, 50))
    w = np.asarray(next_q).mean((0, 2)).var(0, ddof=1)
    u = w - loop_gap(np.asarray(next_q))
    assert (u < 0).any()
    assert (u > 0).any()
    np.testing.assert_allclose(uncertainty.exact_ube(next_q), np.maximum(u, 0), rtol=1e-4)
    assert (uncertainty.exact_ube(next_q) <= w + 1e-6).all()


def test_disagreement_is_the_variance_of_expected_changes():
    # Two members, one state: components differ by 1 and by 0, so variances are 1/2 and 0.
    change = jnp.array([[[1.0, 5.0]], [[2.0, 5.0]]])
    np.testing.assert_allclose(uncertainty.disagreement(change), [0.25])


def test_what_no_member_has_any_idea_of_counts_for_one():
    # Variances 2 and 1/2 of the components; where both are huge, no more than 1.
    change = jnp.array([[[1.0, 5.0], [1e6, -1e6]], [[3.0, 6.0], [-1e6, 1e6]]])
    np.testing.assert_allclose(uncertainty.disagreement(change), [0.75, 1.0])


def test_information_gain_compares_what_is_unknown_with_noise():
    # Two members, three states, variances over them 1/2 and 0. As much noise as that in the first
    # component, much more in the second state, little in the third.
    change = jnp.broadcast_to(jnp.array([[1.0, 5.0], [2.0, 5.0]])[:, None], (2, 3, 2))
    noise = jnp.sqrt(jnp.array([0.5, 1e6, 0.5 / (np.e**4 - 1)]) - 0.03**2)
    noise = jnp.broadcast_to(noise[None, :, None], (2, 3, 2))
    gain = uncertainty.information_gain(change, noise)
    np.testing.assert_allclose(gain, [0.25 * np.log(2), 0.0, 1.0], rtol=1e-5, atol=1e-6)


def test_what_is_known_to_a_fraction_of_a_deviation_tells_little():
    # Members that agree to 0.003 deviations and expect as little noise: half of log 2 without what
    # is negligible, half of log(1 + 0.01) with it.
    change = jnp.array([[[0.0]], [[np.sqrt(2) * 0.003]]])
    gain = uncertainty.information_gain(change, jnp.full((2, 1, 1), 0.003))
    np.testing.assert_allclose(gain, [0.5 * np.log1p(0.01 / 1.01)], rtol=1e-4)


def test_what_is_no_variance_of_values():
    others = {name for name, method in uncertainty.METHODS.items() if not method.is_of_values}
    assert others == {"disagreement", "information_gain"}
