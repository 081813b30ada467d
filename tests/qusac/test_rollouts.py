"""Model rollouts through dynamics that are known exactly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import multistep, replay, rollouts, starts
from qusac_jax.qusac.dynamics_network import DynamicsNetwork
from qusac_jax.task import Transition
from tests.networks import constant
from tests.tasks import ends_beyond, never

N = 3
MODEL = DynamicsNetwork((4,), observation_size=1, num_members=N)


def counting_dynamics():
    """Member i adds 10^i to the state, without noise; the reward is i + 1."""
    dynamics = dynamics_lib.init(MODEL, jax.random.key(0), action_size=1, learning_rate=1e-3)
    params = constant(dynamics.params, [[10.0**i, i + 1.0, 0.0, 0.0] for i in range(N)])
    return dynamics._replace(params=params, noise_scale=jnp.zeros((N, 2)))


def policy(observation, key):
    del key
    return jnp.zeros((*observation.shape[:-1], 1))


def roll(
    termination, start, *, length=4, randomize_members=False, key=0, dynamics=None, penalty=None
):
    return rollouts.rollout(
        MODEL,
        counting_dynamics() if dynamics is None else dynamics,
        policy,
        termination,
        start,
        jax.random.key(key),
        length=length,
        randomize_members=randomize_members,
        penalty=penalty,
    )


def test_consistent_rollouts_stay_with_their_member():
    transitions, mask = roll(never, jnp.zeros((N, 2, 1)))
    steps = np.arange(1, 5)
    for i in range(N):
        expected = np.repeat(steps[:, None] * 10.0**i, 2, axis=1)
        np.testing.assert_allclose(transitions.next_observation[:, i, :, 0], expected, rtol=1e-5)
        np.testing.assert_allclose(transitions.reward[:, i], i + 1.0, rtol=1e-5)
    # What a step leads to is what the next one starts from.
    np.testing.assert_array_equal(transitions.observation[1:], transitions.next_observation[:-1])
    assert mask.all()


@pytest.mark.parametrize("randomize_members", [False, True])
def test_every_prediction_has_noise_of_its_own(randomize_members):
    # As many standard deviations for the state and the reward of each member as it expects.
    scale = jnp.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    dynamics = counting_dynamics()._replace(noise_scale=scale)
    start = jnp.zeros((N, 4_000, 1))
    transitions, _ = roll(
        never, start, length=2, randomize_members=randomize_members, dynamics=dynamics
    )
    _, std = dynamics_lib.predict(MODEL, dynamics, start, start)
    added = np.asarray(transitions.next_observation - transitions.observation)[..., 0]
    member = np.abs(added[..., None] - 10.0 ** np.arange(N)).argmin(-1)  # [2, N, 4000]
    std = np.asarray(std)[:, 0][member]  # of the state and the reward
    state = (added - 10.0**member) / std[..., 0]
    reward = (np.asarray(transitions.reward) - (member + 1.0)) / std[..., 1]
    for noise in (state, reward):
        for i in range(N):
            np.testing.assert_allclose(noise[member == i].std(), 1.0, rtol=0.06)
    drawn = np.stack([state[0], state[1], reward[0], reward[1]]).reshape(4, -1)
    np.testing.assert_allclose(np.corrcoef(drawn), np.eye(4), atol=0.05)
    # Nor do members share their noise.
    np.testing.assert_allclose(np.corrcoef(state[0]), np.eye(N), atol=0.08)


def test_every_action_of_a_rollout_is_drawn_anew():
    transitions, _ = rollouts.rollout(
        MODEL,
        counting_dynamics(),
        lambda observation, key: jax.random.uniform(key, observation.shape),
        never,
        jnp.zeros((N, 5, 1)),
        jax.random.key(0),
        length=3,
        randomize_members=False,
    )
    assert len(np.unique(transitions.action)) == transitions.action.size == 3 * N * 5


@pytest.mark.parametrize("randomize_members", [False, True])
def test_a_share_of_rollouts_takes_a_uniform_action_first(randomize_members):
    transitions, _ = rollouts.rollout(
        MODEL,
        counting_dynamics(),
        policy,
        never,
        jnp.zeros((N, 2_000, 1)),
        jax.random.key(0),
        length=3,
        randomize_members=randomize_members,
        random_first_actions=0.25,
    )
    first, *later = np.asarray(transitions.action)[..., 0]
    drawn = first[first != 0.0]  # the policy's is 0
    np.testing.assert_allclose(len(drawn) / first.size, 0.25, atol=0.02)
    assert -1.0 <= drawn.min() < -0.99
    assert 0.99 < drawn.max() <= 1.0
    np.testing.assert_allclose([drawn.mean(), drawn.var()], [0.0, 1 / 3], atol=0.05)
    assert not np.any(later)


def test_randomized_rollouts_meet_every_member_equally_often():
    transitions, _ = roll(never, jnp.zeros((N, 500, 1)), randomize_members=True)
    added = np.asarray(transitions.next_observation - transitions.observation)[..., 0]
    by_step = np.sort(added.reshape(4, -1), axis=1).reshape(4, N, -1)
    for i in range(N):
        np.testing.assert_allclose(by_step[:, i], 10.0**i, rtol=1e-3, atol=1e-3)
    # After four steps a state is a sum of four draws; independent draws give each composition of
    # the digits its multinomial share, for example 111-free "4 times member 0": (1/3)^4.
    final = np.round(np.asarray(transitions.next_observation[-1]).ravel())
    np.testing.assert_allclose((final == 4.0).mean(), 3.0**-4, atol=0.02)
    np.testing.assert_allclose((final == 112.0).mean(), 12 * 3.0**-4, atol=0.05)


def test_randomized_rollouts_keep_their_place():
    transitions, mask = roll(
        ends_beyond(150.0),
        jnp.arange(30.0).reshape(N, 10, 1) / 100,
        randomize_members=True,
    )
    np.testing.assert_array_equal(transitions.observation[1:], transitions.next_observation[:-1])
    # What it has met is of one rollout: the hundredths that it began with stay.
    hundredths = np.asarray(transitions.next_observation[..., 0]) % 1.0
    expected = np.broadcast_to(np.arange(30.0).reshape(N, 10) / 100, hundredths.shape)
    np.testing.assert_allclose(hundredths, expected, atol=1e-3)
    ended = np.cumsum(np.asarray(transitions.terminated), axis=0) > 0
    np.testing.assert_array_equal(mask[1:], ~ended[:-1])
    assert 0 < ended[-1].sum() < ended[-1].size


def test_nothing_after_a_predicted_termination_is_masked_in():
    # Member 0 counts 1, 2, 3, ...: over 1.5 it ends, at its second step; members 1 and 2 at once.
    transitions, mask = roll(ends_beyond(1.5), jnp.zeros((N, 2, 1)))
    expected = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]], bool)
    np.testing.assert_array_equal(mask, np.repeat(expected[:, :, None], 2, axis=2))
    np.testing.assert_array_equal(
        np.asarray(transitions.terminated)[np.asarray(mask)],
        np.asarray(transitions.next_observation)[..., 0][np.asarray(mask)] > 1.5,
    )


def test_rollouts_stay_in_the_range_of_observations_and_rewards():
    bounded = counting_dynamics()._replace(
        least=jnp.array([-1.0, 1.5]), most=jnp.array([25.0, 2.5])
    )
    transitions, _ = roll(never, jnp.zeros((N, 2, 1)), dynamics=bounded)
    steps = np.arange(1, 5)
    for i in range(N):
        expected = np.minimum(np.repeat(steps[:, None] * 10.0**i, 2, axis=1), 25.0)
        np.testing.assert_allclose(transitions.next_observation[:, i, :, 0], expected, rtol=1e-5)
        np.testing.assert_allclose(transitions.reward[:, i], [1.5, 2.0, 2.5][i], rtol=1e-5)
    # What is stored is what the rollout goes on from.
    np.testing.assert_array_equal(transitions.observation[1:], transitions.next_observation[:-1])
    # Episodes end where D has never been, too: members 1 and 2 get there.
    ended, _ = roll(ends_beyond(25.5), jnp.zeros((N, 2, 1)), dynamics=bounded)
    assert not ended.terminated[:, 0].any()
    assert ended.terminated[2, 1].all()
    assert ended.terminated[0, 2].all()


@pytest.mark.parametrize("randomize_members", [False, True])
def test_rewards_are_stored_less_a_penalty_by_all_members_at_the_pair(randomize_members):
    # Members expect rewards 1, 2, 3 and next states s + 1, s + 10, s + 100: what comes off is
    # 2 + (s + 37) wherever the rollout has got to.
    penalty = lambda mean, std: jnp.sum(jnp.mean(mean, axis=0), axis=-1) + 0.0 * std[0, :, 0]
    start = jnp.arange(2.0 * N).reshape(N, 2, 1)
    plain, mask = roll(never, start, randomize_members=randomize_members)
    less, same_mask = roll(never, start, randomize_members=randomize_members, penalty=penalty)
    np.testing.assert_array_equal(mask, same_mask)
    for name in ("observation", "action", "next_observation", "terminated"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(less, name))
    expected = plain.reward - (2.0 + plain.observation[..., 0] + 37.0)
    np.testing.assert_allclose(less.reward, expected, rtol=1e-5)


@pytest.mark.parametrize("num_rollouts", [1, 7, 2_000, 2_001, 2_500, 5_000, 100_000])
def test_chunks_cover_the_rollouts_and_deal_evenly(num_rollouts):
    chunks, size = rollouts.num_chunks(num_rollouts, N)
    assert size % N == 0
    assert size < rollouts.CHUNK + N
    assert num_rollouts <= chunks * size < num_rollouts + chunks * N


def test_chunks_of_rollouts_differ(monkeypatch):
    monkeypatch.setattr(rollouts, "CHUNK", 6)
    states = jnp.arange(1_000.0)[:, None]
    real = replay.full(Transition(states, states, states[:, 0], states, jnp.zeros(1_000, bool)))
    model_data, _ = rollouts.refill(
        functools.partial(rollouts.rollout, MODEL, counting_dynamics(), policy, never, length=1),
        starts.uniform(real),
        replay.init(12, 1, 1),
        None,
        jax.random.key(0),
        num_members=N,
        num_rollouts=12,
        critic_steps=1,
        discount=0.9,
    )
    assert int(model_data.size) == 12
    first, second = np.asarray(model_data.data.observation).reshape(2, 6)
    assert set(first) != set(second)


def test_refill_writes_no_transition_after_termination():
    real = replay.add(
        replay.init(8, 1, 1),
        Transition(
            jnp.zeros((8, 1)), jnp.zeros((8, 1)), jnp.zeros(8), jnp.ones((8, 1)), jnp.zeros(8, bool)
        ),
    )
    empty = replay.init(60, 1, 1)
    steps = replay.Buffer(multistep.single(empty.data), *empty[1:])
    members = jax.tree.map(lambda x: jnp.zeros((N, *x.shape), x.dtype), steps)
    # What is propagated at a state is 10 more than the state.
    look_ahead = lambda rollout, key: multistep.ahead(
        rollout, rollout.observation[..., 0] + 10.0, 2, 0.5**0.5
    )
    empty = replay.Buffer(
        multistep.ahead(empty.data, jnp.zeros(60), 1, 0.9), empty.position, empty.size
    )
    model_data, member_data = rollouts.refill(
        functools.partial(
            rollouts.rollout, MODEL, counting_dynamics(), policy, ends_beyond(1.5), length=4
        ),
        starts.uniform(real),
        empty,
        members,
        jax.random.key(0),
        num_members=N,
        num_rollouts=9,
        critic_steps=3,
        discount=0.9,
        look_ahead=look_ahead,
    )
    # From 0, member 0 makes two transitions, the others one.
    np.testing.assert_array_equal(member_data.size, [18, 9, 9])
    # The state before a transition never exceeds the limit, in any buffer.
    for buffer in (model_data, jax.tree.map(lambda x: x[0], member_data)):
        before = np.asarray(buffer.data.observation)[: int(buffer.size), 0]
        assert (before <= 1.5).all()
    assert 9 <= int(model_data.size) <= 18
    # Member 0: rewards of 1 at both steps, the second one ends. The others end at once.
    first = member_data.data.observation[0, :18, 0] == 0.0
    np.testing.assert_allclose(member_data.data.reward[0, :18], np.where(first, 1.9, 1.0))
    np.testing.assert_allclose(member_data.data.reward[1, :9], 2.0)
    np.testing.assert_array_equal(member_data.data.num_steps[0, :18], 0.0)
    # In D_model the U-net looks ahead. From 0, member 0 leads to 1, and from there every member to
    # an end; the others end at once.
    data = jax.tree.map(lambda x: np.asarray(x)[: int(model_data.size)], model_data.data)
    begins = data.observation[:, 0]
    expected = np.where(begins == 1.0, 11.0, np.where(data.terminated, 10.0, 10.0 + 0.5 * 11.0))
    np.testing.assert_allclose(data.propagated, expected)
    two_steps = (begins == 0.0) & ~data.terminated
    assert 0 < two_steps.sum() < len(begins)
    np.testing.assert_allclose(data.per_step, expected / np.where(two_steps, 1.5, 1.0))
    np.testing.assert_array_equal(data.num_steps, 0)
    assert (data.led_to[:, 0] > 1.5).all()


@pytest.mark.parametrize("randomize_members", [False, True])
def test_ends_are_asked_about_the_step_from_where_it_begins(randomize_members):
    far = lambda observation, action, following: (following - observation)[..., 0] > 1.5
    transitions, _ = roll(far, jnp.zeros((N, 5, 1)), randomize_members=randomize_members)
    added = (transitions.next_observation - transitions.observation)[..., 0]
    np.testing.assert_array_equal(transitions.terminated, added > 1.5)
    assert 0 < transitions.terminated.sum() < transitions.terminated.size
