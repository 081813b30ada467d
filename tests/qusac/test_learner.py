"""Probe problems with known values, solved by the gradient updates alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import diagnostics, estimates, losses, multistep, networks
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Transition
from tests.networks import constant, with_bias

# Temperature near zero and fixed, so that values are those of the plain MDP.
PROBE = Config(
    num_members=2,
    batch_size=64,
    actor_hidden=(16,),
    critic_hidden=(32, 32),
    unet_hidden=(32, 32),
    critic_learning_rate=3e-3,
    unet_learning_rate=3e-3,
    temperature_learning_rate=1e-12,
    initial_temperature=1e-6,
    target_rate=0.05,
)


def groups(config, batch):
    steps = multistep.single(batch)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (config.num_groups, *x.shape)), steps)


def train(config, make_batch, num_updates, learner=None, predict=None):
    """Updates on fresh batches `make_batch(key)`, the same for all critic groups."""
    example = make_batch(jax.random.key(0))
    sizes = (example.observation.shape[-1], example.action.shape[-1])
    if learner is None:
        learner = parts_lib.init(jax.random.key(1), config, *sizes)

    @jax.jit
    def run(learner, keys):
        def step(learner, key):
            key_batch, key_update = jax.random.split(key)
            batch = make_batch(key_batch)
            return learner_lib.update(
                learner, groups(config, batch), batch, predict, key_update, config=config
            )

        return jax.lax.scan(step, learner, keys)

    return run(learner, jax.random.split(jax.random.key(2), num_updates))


def q_values(config, learner, observation, action):
    critic = networks.Critic(config.critic_hidden, config.num_groups, config.num_critics)
    return networks.apply(critic, learner.critic, observation, action)


def predictions(key, num_members, size):
    """What members with two observations expect; some expect the episode to end."""
    keys = jax.random.split(key, 3)
    next_observation = jax.random.normal(keys[0], (num_members, size, 2))
    reward = jax.random.normal(keys[1], (num_members, size))
    ends = jax.random.bernoulli(keys[2], 0.3, reward.shape)
    noise = 1.0 + jnp.abs(next_observation)
    return estimates.Expectation(next_observation, 0.5 * next_observation, noise, reward, ends)


def one_step_batch(key, size=64):
    """Ends at once with reward s + 2 a."""
    key_s, key_a = jax.random.split(key)
    observation = jax.random.uniform(key_s, (size, 1), minval=-1.0)
    action = jax.random.uniform(key_a, (size, 1), minval=-1.0)
    return Transition(
        observation,
        action,
        observation[:, 0] + 2.0 * action[:, 0],
        observation,
        jnp.ones(size, bool),
    )


@pytest.mark.slow
def test_one_step_value_is_the_reward_and_the_actor_finds_its_maximum():
    learner, _ = train(PROBE, one_step_batch, 1_500)
    test = one_step_batch(jax.random.key(9), 200)
    q = q_values(PROBE, learner, test.observation, test.action)
    np.testing.assert_allclose(q, jnp.broadcast_to(test.reward, q.shape), atol=0.2)
    # Q rises with a everywhere, so the best action is 1.
    actor = networks.Actor(PROBE.actor_hidden, 1)
    best = networks.mean_action(actor, learner.actor, test.observation)
    assert float(best.min()) > 0.8


def chain_batch(key, length, size=64):
    """s = t / length walks to the end in `length` steps whatever the action; reward 1 there."""
    key_t, key_a = jax.random.split(key)
    t = jax.random.randint(key_t, (size,), 0, length)
    return Transition(
        observation=(t / length)[:, None],
        action=jax.random.uniform(key_a, (size, 1), minval=-1.0),
        reward=(t == length - 1).astype(jnp.float32),
        next_observation=((t + 1) / length)[:, None],
        terminated=t == length - 1,
    )


def test_two_step_value_is_discounted_once():
    batch = functools.partial(chain_batch, length=2)
    config = dataclasses.replace(PROBE, discount=0.5)
    learner, _ = train(config, batch, 1_500)
    q = q_values(config, learner, jnp.array([[0.0], [0.5]]), jnp.zeros((2, 1)))
    np.testing.assert_allclose(q, jnp.broadcast_to(jnp.array([0.5, 1.0]), q.shape), atol=0.05)


@pytest.mark.parametrize(
    ("num_steps", "value"),
    [
        pytest.param(0, 1.0, marks=pytest.mark.slow),
        pytest.param(1, 2.0, marks=pytest.mark.slow),
        (2, 4 / 3),
    ],
)
def test_what_follows_several_steps_is_discounted_as_often(num_steps, value):
    # From a state back to it in n steps that earn 1 together: Q = 1 / (1 - 0.5^n), or 1 at an end.
    state, rewards = jnp.zeros((64, 1)), jnp.ones(64)
    action = jax.random.uniform(jax.random.key(2), (64, 1), minval=-1.0)
    config = dataclasses.replace(PROBE, discount=0.5)
    steps = multistep.Steps(state, action, rewards, state, jnp.full(64, num_steps, jnp.uint8))
    groups = jax.tree.map(lambda x: jnp.broadcast_to(x, (config.num_groups, *x.shape)), steps)
    transition = Transition(state, action, rewards, state, jnp.zeros(64, bool))
    update = lambda learner, key: learner_lib.update(
        learner, groups, transition, None, key, config=config
    )
    keys = jax.random.split(jax.random.key(0), 1_500)
    start = parts_lib.init(jax.random.key(1), config, 1, 1)
    learner, _ = jax.jit(lambda learner: jax.lax.scan(update, learner, keys))(start)
    q = q_values(config, learner, state, action)
    np.testing.assert_allclose(q, value, atol=0.05)


def test_truncation_is_bootstrapped():
    # A one-state loop with reward 1 that never terminates: Q = 1 / (1 - 0.5) = 2.
    def loop(key, size=64):
        action = jax.random.uniform(key, (size, 1), minval=-1.0)
        return Transition(
            jnp.zeros((size, 1)),
            action,
            jnp.ones(size),
            jnp.zeros((size, 1)),
            jnp.zeros(size, bool),
        )

    config = dataclasses.replace(PROBE, discount=0.5)
    learner, _ = train(config, loop, 1_500)
    q = q_values(config, learner, jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    np.testing.assert_allclose(q, 2.0, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("clip_u", [False, True])
def test_unet_solves_the_ube_on_a_chain(clip_u):
    # Critics that stay as they are and ignore the action: w(s) is known, and
    # U_t = γ² w_t + γ² U_{t+1}, with nothing after the last step. The remedies against runaway U
    # must leave this fixed point alone.
    length = 4
    config = dataclasses.replace(
        PROBE,
        critic_learning_rate=1e-12,
        clip_u=clip_u,
        discount=0.9,
        critic_init_gain=2.0,
    )
    learner = parts_lib.init(jax.random.key(3), config, 1, 1)
    kernel = learner.critic["params"]["MLP_0"]["Dense_0"]["kernel"]
    learner.critic["params"]["MLP_0"]["Dense_0"]["kernel"] = kernel.at[..., 1, :].set(0.0)
    learner, _ = train(config, functools.partial(chain_batch, length=length), 6_000, learner)

    states = (jnp.arange(length) / length)[:, None]
    q = losses.group_value(q_values(config, learner, states, jnp.zeros((length, 1))))
    w = np.asarray(q).var(0, ddof=1)
    assert w.max() > 0.05
    expected = np.zeros(length + 1)
    for t in reversed(range(length)):
        expected[t] = 0.81 * w[t] + 0.81 * expected[t + 1]
    unet = networks.UNet(config.unet_hidden)
    log_u = networks.apply(unet, learner.unet, states, jnp.zeros((length, 1)))
    u = np.exp(np.asarray(log_u))
    np.testing.assert_allclose(u, expected[:-1], rtol=0.1, atol=0.02)


@pytest.mark.slow
def test_unet_tells_small_disagreements_apart():
    # Members of a good model differ by thousandths of a deviation. The two of this one do so by
    # d(s) = (1 + 3 s) 1e-5 in variance, and U_t = d_t + γ² U_{t+1}, with nothing after the last.
    length = 4
    config = dataclasses.replace(PROBE, method="disagreement", discount=0.9)
    variance = lambda state: 1e-5 * (1.0 + 3.0 * state)

    def predict(observation, action):
        half = jnp.sqrt(variance(observation) / 2.0)
        change = jnp.stack([half, -half])
        nothing = jnp.zeros(change.shape[:-1])
        following = observation + change
        return estimates.Expectation(following, change, change, nothing, nothing > 0)

    batch = functools.partial(chain_batch, length=length)
    learner, _ = train(config, batch, 4_000, predict=predict)
    states = (jnp.arange(length) / length)[:, None]
    expected = np.zeros(length + 1)
    for t in reversed(range(length)):
        expected[t] = variance(t / length) + 0.81 * expected[t + 1]
    parts = parts_lib.build(config, 1)
    action = jnp.zeros((length, 1))
    q = q_values(config, learner, states, action)
    std = estimates.value_std(parts, learner, states, action, q)
    np.testing.assert_allclose(std**2, expected[:-1], rtol=0.1)


@pytest.mark.slow
def test_a_u_that_is_too_high_is_forgotten_at_the_rate_of_its_target():
    # Every state loops to itself: U = γ² w / (1 - γ²). From e^10 the excess falls by a factor e in
    # 1 / (τ (1 - γ²)) updates: 105 with τ = 0.05 and 1,050 with 0.005.
    def loop(key, size=64):
        batch = chain_batch(key, 4, size)
        ends = jnp.zeros(size, bool)
        return batch._replace(next_observation=batch.observation, terminated=ends)

    def u_and_limit(rate):
        config = dataclasses.replace(
            PROBE,
            critic_learning_rate=1e-12,
            actor_learning_rate=1e-12,
            discount=0.9,
            clip_u=False,
            target_rate=rate,
        )
        learner = parts_lib.init(jax.random.key(0), config, 1, 1)
        learner.critic["params"]["MLP_0"]["Dense_0"]["kernel"] *= jnp.array([[1.0], [0.0]])
        raised = with_bias(learner.unet, 10.0)
        learner = learner._replace(unet=raised, target_unet=raised)
        learner, _ = train(config, loop, 2_000, learner)
        states, action = (jnp.arange(4) / 4)[:, None], jnp.zeros((4, 1))
        w = losses.group_value(q_values(config, learner, states, action)).var(0, ddof=1)
        unet = networks.UNet(config.unet_hidden)
        log_u = networks.apply(unet, learner.unet, states, action)
        return jnp.exp(log_u).mean(), (0.81 * w / 0.19).mean()

    fast, limit = u_and_limit(0.05)
    assert float(limit) > 0.1  # or the tolerance below would say nothing
    np.testing.assert_allclose(fast, limit, rtol=0.3, atol=0.02)
    slow, _ = u_and_limit(0.005)
    assert float(slow) > 100.0 * float(limit)


@pytest.mark.slow
@pytest.mark.parametrize("clip_u", [False, True])
def test_targets_of_the_unet_are_capped_at_the_bound(clip_u):
    # A target U-net that stays far too high, about e^12, is only followed without the cap.
    config = dataclasses.replace(PROBE, discount=0.9, clip_u=clip_u, target_rate=1e-9)
    learner = parts_lib.init(jax.random.key(0), config, 1, 1)
    learner = learner._replace(target_unet=with_bias(learner.unet, 12.0))
    batch = functools.partial(chain_batch, length=4)
    learner, _ = train(config, batch, 1_500, learner)
    unet = networks.UNet(config.unet_hidden)
    states = jnp.array([[0.0], [0.25], [0.5]])  # the last one is not bootstrapped
    u = jnp.exp(networks.apply(unet, learner.unet, states, jnp.zeros((3, 1))))
    bound = config.largest_u(float(learner.local_max))
    if clip_u:
        np.testing.assert_allclose(u, bound, rtol=0.3)
    else:
        assert float(u.min()) > 100.0 * bound


@pytest.mark.parametrize("real_ratio", [0.0, 0.25])
@pytest.mark.parametrize("clip_u", [False, True])
def test_several_steps_of_the_unet_by_hand(real_ratio, clip_u):
    # The target U-net says 20 everywhere: a target is what is propagated over n steps plus γ^2n
    # times 20, and nothing more after an end (n = 0). Of a real transition, the first, nothing is
    # known but what the critics say now, and they agree.
    config = dataclasses.replace(
        PROBE, discount=0.9, unet_steps=3, clip_u=clip_u, batch_size=4, real_ratio=real_ratio
    )
    learner = parts_lib.init(jax.random.key(0), config, 1, 1)
    learner = learner._replace(
        unet=constant(learner.unet, np.log(5.0)),
        target_unet=constant(learner.target_unet, np.log(20.0)),
        critic=constant(learner.critic, 0.0),
    )
    batch = jax.tree.map(lambda x: x[:4], chain_batch(jax.random.key(0), length=1_000_000))
    assert not batch.terminated.any()
    ahead = multistep.ahead(batch, jnp.full(4, 7.0), 1, 0.9)._replace(
        propagated=jnp.array([1.0, 1.0, 3.0, 0.5]),
        per_step=jnp.array([1.0, 1.0, 1.2, 0.25]),
        num_steps=jnp.array([1, 1, 3, 0], jnp.uint8),
    )
    updated, metrics = learner_lib.update(
        learner, groups(config, batch), ahead, None, jax.random.key(1), config=config
    )
    target = np.array([1.0 + 0.81 * 20.0, 1.0 + 0.81 * 20.0, 3.0 + 0.81**3 * 20.0, 0.5])
    local = np.array([1.0, 1.0, 1.2, 0.25])
    if real_ratio:
        target[0], local[0] = 0.81 * 20.0, 0.0
    if clip_u:
        target = np.minimum(target, 1.2 / 0.19)
    np.testing.assert_allclose(
        metrics["unet_loss"], np.mean((np.log1p(target) - np.log(6.0)) ** 2), rtol=1e-5
    )
    np.testing.assert_allclose(metrics["local_uncertainty"], local.mean(), rtol=1e-5)
    np.testing.assert_allclose(updated.local_max, 1.2)


@pytest.mark.slow
def test_risk_moves_the_actor_towards_or_away_from_uncertainty():
    # Two frozen critics that agree at a = -1 and disagree ever more towards a = 1, zero mean:
    # mean Q is flat, so only the sign of λ decides.
    for risk in (1.0, -1.0):
        config = dataclasses.replace(
            PROBE,
            method="ensemble_var",
            risk=risk,
            critic_hidden=(4,),
            critic_learning_rate=1e-12,
            actor_learning_rate=1e-2,
        )
        learner = parts_lib.init(jax.random.key(0), config, 1, 1)
        params = jax.tree.map(jnp.zeros_like, learner.critic)
        first, second = (params["params"]["MLP_0"][f"Dense_{i}"] for i in range(2))
        first["kernel"] = first["kernel"].at[..., 1, 0].set(0.5)
        first["bias"] = first["bias"].at[..., 0].set(0.6)  # tanh(0.6 + a / 2): small to large
        second["kernel"] = second["kernel"].at[:, 0, 0, 0].set(jnp.array([1.0, -1.0]))
        learner = learner._replace(critic=params, target_critic=params)
        learner, _ = train(config, one_step_batch, 400, learner)
        actor = networks.Actor(config.actor_hidden, 1)
        mean = networks.mean_action(actor, learner.actor, jnp.zeros((1, 1)))
        assert float(risk * mean[0, 0]) > 0.5


@pytest.mark.slow
def test_temperature_reaches_the_target_entropy():
    config = dataclasses.replace(
        PROBE,
        method="ensemble_mean",
        initial_temperature=1.0,
        temperature_learning_rate=1e-2,
        actor_learning_rate=3e-3,
        target_entropy=-0.5,
    )
    learner, _ = train(config, one_step_batch, 2_000)
    stats = diagnostics.describe_values(
        parts_lib.build(config, 1),
        learner,
        one_step_batch(jax.random.key(7), 2_000).observation,
        jax.random.key(8),
    )
    np.testing.assert_allclose(stats["entropy"], -0.5, atol=0.15)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("pombu", marks=pytest.mark.slow),
        "exact_ube",
        "disagreement",
        "information_gain",
    ],
)
def test_members_that_agree_are_not_uncertain(method):
    # The same model and critic five times, and a policy that is random: nothing is epistemic.
    config = dataclasses.replace(PROBE, method=method, num_members=5)
    learner = parts_lib.init(jax.random.key(0), config, 2, 1)
    same = lambda tree: jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), tree)
    learner = learner._replace(critic=same(learner.critic))
    batch = one_step_batch(jax.random.key(2))
    prediction = same(predictions(jax.random.key(1), 5, 64))
    local = estimates.propagated_uncertainty(
        parts_lib.build(config, 1), learner, batch, lambda *_: prediction, jax.random.key(3)
    )
    np.testing.assert_allclose(local, 0.0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("pombu", marks=pytest.mark.slow), "exact_ube"])
def test_local_uncertainty_is_that_of_loops_over_members(method):
    config = dataclasses.replace(PROBE, method=method, num_members=3, num_critics=2, discount=0.9)
    key = jax.random.key(3)
    learner = parts_lib.init(jax.random.key(0), config, 2, 1)
    learner = learner._replace(critic=jax.tree.map(lambda x: 3.0 * x, learner.critic))
    prediction = predictions(jax.random.key(2), 3, 6)
    next_observation, *_, reward, ends = prediction
    assert 0 < ends.sum() < ends.size
    batch = one_step_batch(jax.random.key(2), 6)
    parts = parts_lib.build(config, 1)
    local = estimates.propagated_uncertainty(parts, learner, batch, lambda *_: prediction, key)

    actor = networks.Actor(config.actor_hidden, 1)
    num_actions = config.gap_samples if method == "exact_ube" else 1
    expected = np.zeros(6)
    for b in range(6):
        w_terms, g_terms = [], []
        for i in range(3):
            states = jnp.broadcast_to(next_observation[i], (num_actions, 6, 2))
            actions, _ = networks.sample_action(actor, learner.actor, states, key)
            at = states[:, b], actions[:, b]
            q = np.asarray(q_values(config, learner, *at)).min(1)  # [members, J]
            if ends[i, b]:
                q = np.zeros_like(q)  # nothing comes after the end
            w_terms.append(q.mean())
            g_terms.append(np.var(q[i] - q.mean(0), ddof=1) if num_actions > 1 else 0.0)
        w, g = np.var(w_terms, ddof=1), np.mean(g_terms)
        expected[b] = np.var(reward[:, b], ddof=1) + 0.81 * max(w - g, 0.0)
    np.testing.assert_allclose(local, expected, rtol=1e-4)
    assert expected.min() > 0.0
