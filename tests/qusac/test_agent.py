"""The whole agent: seeds as a batch axis, one compilation, every method and preset."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import (
    agent,
    diagnostics,
    estimates,
    model,
    multistep,
    networks,
    parts,
    presets,
    replay,
    schedule,
)
from qusac_jax.qusac import state as state_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.uncertainty import METHODS
from qusac_jax.task import Task, Transition
from tests.networks import constant
from tests.sizes import small
from tests.tasks import ends_beyond, never

TASK = Task(observation_size=3, action_size=2, termination=ends_beyond(3.0))
SMALL = small(Config(num_members=3))
OWN = [f"tests.own_functions:{name}" for name in ("spread", "expected_changes", "next_values")]


class Runner:
    """Jitted functions of an agent, mapped over seeds or not."""

    def __init__(self, config, mapped, task=TASK):
        def compiled(function, **static):
            function = functools.partial(function, **static)
            return jax.jit(jax.vmap(function) if mapped else function)

        both = {"config": config, "task": task}
        self.config = config
        self.init = compiled(agent.init, **both)
        self.collect = compiled(agent.collect, **both)
        self.train_step = compiled(agent.train_step, **both)
        self.refresh = compiled(agent.refresh, **both)
        self.roll_out = compiled(agent.roll_out, **both)
        self.diagnose = compiled(diagnostics.diagnose, **both)

    def run(self, keys, transitions, num_steps=14):
        state = self.init(keys)
        actions = []
        metrics = {}
        for step in range(num_steps):
            transition = jax.tree.map(lambda x, step=step: x[step], transitions)
            observation = transition.next_observation
            due = schedule.online(step + 1, config=self.config)
            if due.refresh:
                state, _ = self.refresh(state)
            if due.roll_out:
                state = self.roll_out(state)
            if due.learn:
                state, action, metrics = self.train_step(state, transition, observation)
            else:
                state, action = self.collect(state, transition, observation)
            actions.append(action)
        return state, jnp.stack(actions), metrics


def random_transitions(seed, num_steps=14):
    keys = jax.random.split(jax.random.key(seed), 4)
    observation = jax.random.normal(keys[0], (num_steps, 3))
    action = jax.random.uniform(keys[1], (num_steps, 2), minval=-1.0)
    return Transition(
        observation,
        action,
        jax.random.normal(keys[2], (num_steps,)),
        observation + 0.1 * jax.random.normal(keys[3], (num_steps, 3)),
        jnp.zeros(num_steps, bool),
    )


@pytest.fixture(scope="module")
def alone():
    return Runner(SMALL, mapped=False)


@pytest.mark.slow
def test_seeds_side_by_side_equal_seeds_alone(alone):
    keys = jax.random.split(jax.random.key(0), 2)
    transitions = [random_transitions(i) for i in range(2)]
    side_by_side = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *transitions)
    _, actions, metrics = Runner(SMALL, mapped=True).run(keys, side_by_side)
    for i in range(2):
        _, expected, expected_metrics = alone.run(keys[i], transitions[i])
        np.testing.assert_allclose(actions[:, i], expected, atol=1e-4)
        for name, value in expected_metrics.items():
            np.testing.assert_allclose(metrics[name][i], value, rtol=1e-2, atol=1e-3, err_msg=name)


def test_a_run_compiles_each_function_once(alone):
    alone.run(jax.random.key(5), random_transitions(5))
    for name in ("init", "collect", "train_step", "refresh"):
        assert getattr(alone, name)._cache_size() == 1, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qusac", "explore", "explore_upper_bound", "paper", "sac"])
@pytest.mark.parametrize("is_offline", [False, True])
def test_a_state_keeps_its_types(name, is_offline):
    # Other ones, weak types among them, would have every function compiled a second time.
    config = small(presets.get(name, is_offline=is_offline))
    both = {"config": config, "task": TASK}
    state = jax.eval_shape(functools.partial(agent.init, **both), jax.random.key(0))
    first = jax.tree.map(lambda x: x[0], random_transitions(0))
    verbs = {"train_step": (first, first.observation), "learn": ()}
    verbs |= {"refresh": (), "roll_out": ()} if config.uses_model else {}
    for verb, arguments in verbs.items():
        call = functools.partial(getattr(agent, verb), **both)
        after = jax.eval_shape(call, state, *arguments)
        after = after if isinstance(after, agent.TrainState) else after[0]
        told = lambda x: (x.shape, x.dtype, x.weak_type)
        assert jax.tree.map(told, after) == jax.tree.map(told, state), verb


def test_what_the_model_predicts_by_hand(alone):
    state = alone.init(jax.random.key(0))
    rewards = jnp.array([0.0, 2.0, 0.1, 4.0])
    data = jax.tree.map(lambda x: x[:4], random_transitions(0))._replace(reward=rewards)
    diagnose = lambda state: alone.diagnose(state, jax.random.key(1))
    assert diagnose(state)["rewarded_predicted"] == 0.0  # D is empty
    state = state._replace(replay=replay.add(state.replay, data))
    # Members that predict the rewards 1, 1.5 and 2 everywhere, 1.5 in the mean.
    said = jnp.zeros((3, 2 * (TASK.observation_size + 1)))
    said = said.at[:, TASK.observation_size].set(jnp.array([1.0, 1.5, 2.0]))
    params = constant(state.dynamics.params, said)
    state = state._replace(dynamics=state.dynamics._replace(params=params))
    metrics = diagnose(state)
    np.testing.assert_allclose(metrics["rewarded_predicted"], 2 * 1.5 / (2.0 + 4.0), rtol=1e-6)
    # The logarithm 0, softly bounded by 0.5 from above, and then by -10 from below.
    above = 0.5 - np.log1p(np.exp(0.5))
    below = -10.0 + np.log1p(np.exp(above + 10.0))
    # In float32, logarithms near 10 are exact to 1e-6, and differences of two of them to less.
    np.testing.assert_allclose(metrics["noise_variance"], np.exp(below), rtol=1e-5)


def test_what_is_predicted_of_rewards_that_sum_to_0_is_finite(alone):
    data = jax.tree.map(lambda x: x[:4], random_transitions(0))._replace(reward=jnp.zeros(4))
    state = alone.init(jax.random.key(0))
    state = state._replace(replay=replay.add(state.replay, data))
    predicted = diagnostics.diagnose(
        state, jax.random.key(1), config=SMALL, task=TASK, reward_threshold=-1.0
    )["rewarded_predicted"]
    assert jnp.isfinite(predicted)


def test_before_the_first_rollouts_the_log_is_about_states_of_D(alone):
    empty = alone.init(jax.random.key(0))
    data = jax.tree.map(lambda x: x[:4], random_transitions(0))
    values = [
        alone.diagnose(state, jax.random.key(1))["mean_q"]
        for state in (
            empty,
            empty._replace(replay=replay.add(empty.replay, data)),
            empty._replace(model_data=replay.add(empty.model_data, data)),
        )
    ]
    assert values[0] != values[1]
    np.testing.assert_allclose(values[1], values[2], rtol=0.2)


@pytest.mark.slow
def test_every_critic_learns_from_the_data_of_its_member():
    # Rewards i in D_i and discount 0: critic i must say i, whatever D_model holds.
    config = dataclasses.replace(
        SMALL, discount=0.0, updates_per_step=400, critic_learning_rate=3e-2
    )
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    data = jax.tree.map(lambda x: x[:8], random_transitions(0, 24))
    members = jnp.arange(3.0)[:, None] * jnp.ones(8)
    steps = multistep.single(data)
    fill = jax.vmap(lambda buffer, r: replay.add(buffer, steps._replace(reward=r)))
    other = data._replace(reward=jnp.full(8, -9.0))
    state = state._replace(
        member_data=fill(state.member_data, members),
        model_data=replay.add(state.model_data, other),
        replay=replay.add(state.replay, other),
    )
    one = jax.tree.map(lambda x: x[0], data)
    state, _, _ = agent.train_step(state, one, one.observation, config=config, task=TASK)
    critic = networks.Critic(config.critic_hidden, config.num_groups, config.num_critics)
    q = networks.apply(critic, state.learner.critic, data.observation, data.action)
    np.testing.assert_allclose(jnp.mean(q, axis=(1, 2)), [0.0, 1.0, 2.0], atol=0.2)


@pytest.mark.slow
def test_rollouts_follow_the_dynamics_that_have_just_been_fitted():
    fit = dataclasses.replace(SMALL.dynamics, learning_rate=1e-2, max_epochs=40)
    config = dataclasses.replace(SMALL, dynamics=fit)
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    data = random_transitions(0, 64)
    data = data._replace(next_observation=data.observation + 2.0, reward=jnp.full(64, 5.0))
    state = state._replace(replay=replay.add(state.replay, data))
    state, _ = agent.refresh(state, config=config, task=TASK)
    for buffer in (state.model_data, state.member_data):
        first, moved = buffer.data.observation, buffer.data.next_observation
        np.testing.assert_allclose(jnp.mean(moved - first), 2.0, atol=0.5)
        np.testing.assert_allclose(jnp.mean(buffer.data.reward), 5.0, atol=1.0)


def test_what_is_not_finite_is_found_by_its_name(alone):
    state = alone.init(jax.random.key(0))
    assert all(diagnostics.finite_parts(state).values())
    spoil = lambda tree: jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), tree)
    moments = state.dynamics.opt_state[0]._replace(mu=spoil(state.dynamics.opt_state[0].mu))
    broken = state._replace(
        learner=state.learner._replace(target_critic=spoil(state.learner.target_critic)),
        dynamics=state.dynamics._replace(opt_state=(moments, *state.dynamics.opt_state[1:])),
    )
    found = diagnostics.finite_parts(broken)
    assert {name for name, finite in found.items() if not finite} == {"target_critic", "dynamics"}


@pytest.mark.parametrize("wrong", [{"reward": jnp.nan}, {"action": 7.0}])
def test_what_a_jitted_loop_could_not_refuse_is_found(alone, wrong):
    state = alone.init(jax.random.key(0))
    transitions = random_transitions(1)
    wrong = {name: jnp.full_like(getattr(transitions, name), x) for name, x in wrong.items()}
    found = diagnostics.finite_parts(jax.jit(agent.observe)(state, transitions._replace(**wrong)))
    assert {name for name, finite in found.items() if not finite} == {"replay"}


def test_learning_changes_what_it_should(alone):
    key = jax.random.key(1)
    before = alone.init(key)
    after, _, metrics = alone.run(key, random_transitions(1))
    for name in ("actor", "critic", "target_critic", "unet", "target_unet", "log_temperature"):
        old, new = getattr(before.learner, name), getattr(after.learner, name)
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), old, new)
        assert min(jax.tree.leaves(moved)) > 0, name
    assert int(after.replay.size) == 14
    # Two refreshes of 3 x 4 rollouts and 2 steps fill a buffer that keeps one refresh.
    assert int(after.model_data.size) == state_lib.model_capacity(SMALL) == 24
    np.testing.assert_array_equal(after.member_data.size, [24, 24, 24])
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, *OWN])
def test_every_method_runs_and_reports_finite_values(method):
    config = dataclasses.replace(SMALL, method=method)
    runner = Runner(config, mapped=False)
    state, actions, metrics = runner.run(jax.random.key(0), random_transitions(0))
    assert (np.abs(actions) <= 1).all()
    assert all(np.isfinite(value) for value in metrics.values())
    values = runner.diagnose(state, jax.random.key(1))
    bound = values.pop("sqrt_u_bound")
    assert np.isfinite(bound) == config.uses_unet
    assert all(np.isfinite(value) for value in values.values())
    assert (float(values["mean_sqrt_u"]) > 0) == (method != "ensemble_mean")
    assert (state.learner.unet is not None) == config.uses_unet


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pombu", "exact_ube"])
def test_local_uncertainty_of_predicted_ends_is_that_of_rewards(method):
    config = dataclasses.replace(SMALL, method=method, updates_per_step=1)
    local = {}
    for ends in (False, True):
        task = dataclasses.replace(
            TASK, termination=lambda o, a, n, ends=ends: jnp.full(n.shape[:-1], ends)
        )
        runner = Runner(config, mapped=False, task=task)
        state = runner.init(jax.random.key(0))
        # Members that expect the same reward: where all expect the end, nothing is uncertain.
        said = jnp.zeros((3, 2 * (TASK.observation_size + 1)))
        said = said.at[:, : TASK.observation_size].set(jnp.arange(3.0)[:, None])
        params = constant(state.dynamics.params, said)
        data = random_transitions(0)
        state = state._replace(
            dynamics=state.dynamics._replace(params=params),
            replay=replay.add(state.replay, data),
            model_data=replay.add(state.model_data, data),
        )
        first = jax.tree.map(lambda x: x[0], data)
        _, _, metrics = runner.train_step(state, first, first.next_observation)
        local[ends] = float(metrics["local_uncertainty"])
    assert local[False] > 0.0
    assert local[True] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["information_gain", "upper_bound"])
def test_the_unet_looks_ahead_in_the_rollouts_of_D_model(method):
    config = dataclasses.replace(SMALL, method=method, unet_steps=2, discount=0.9)
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    state = agent.observe(state, random_transitions(0))
    state = agent.roll_out(state, config=config, task=TASK)
    size = int(state.model_data.size)
    data = jax.tree.map(lambda x: np.asarray(x[:size]), state.model_data.data)
    predict = model.predictor(state.dynamics, config, TASK)
    local = estimates.propagated_uncertainty(
        parts.build(config, 2), state.learner, data, predict, jax.random.key(9)
    )
    # Where a rollout's first step leads is where its second one begins.
    came_from = {tuple(o): i for i, o in enumerate(data.observation)}
    second = np.array([came_from.get(tuple(o), -1) for o in data.next_observation])
    has_second = (second >= 0) & ~data.terminated
    assert 0 < has_second.sum() < size
    expected = local + np.where(has_second, 0.81 * local[second], 0.0)
    np.testing.assert_allclose(data.propagated, expected, rtol=1e-4)
    weights = np.where(has_second, 1.81, 1.0)
    np.testing.assert_allclose(data.per_step, expected / weights, rtol=1e-4)
    is_over = data.terminated | (has_second & data.terminated[second])
    np.testing.assert_array_equal(data.num_steps, np.where(is_over, 0, 1 + has_second))
    last = np.where(has_second[:, None], data.next_observation[second], data.next_observation)
    np.testing.assert_array_equal(data.led_to, last)

    # The U-net learns from these, and the critics do not.
    other = state.model_data.data._replace(propagated=2.0 * state.model_data.data.propagated)
    learn = jax.jit(functools.partial(agent.learn, config=config, task=TASK, num_updates=1))
    one, _ = learn(state)
    two, _ = learn(state._replace(model_data=state.model_data._replace(data=other)))
    alike = lambda x, y: all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    )
    assert alike(one.learner.critic, two.learner.critic)
    assert not alike(one.learner.unet, two.learner.unet)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"method": "exact_ube"},
        {"method": "pombu", "retain_refreshes": 2},
        {"method": "disagreement", "critic_data": "model"},
        {"method": "upper_bound", "real_ratio": 0.5},
        {"method": "ensemble_mean"},
    ],
)
def test_seeds_whose_unet_looks_ahead_equal_seeds_alone(more):
    config = dataclasses.replace(SMALL, **{"unet_steps": 2, **more})
    keys = jax.random.split(jax.random.key(0), 2)
    transitions = [random_transitions(i) for i in range(2)]
    side_by_side = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *transitions)
    state, actions, metrics = Runner(config, mapped=True).run(keys, side_by_side)
    _, expected, expected_metrics = Runner(config, mapped=False).run(keys[0], transitions[0])
    np.testing.assert_allclose(actions[:, 0], expected, atol=1e-4)
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name][0], value, rtol=1e-2, atol=1e-3, err_msg=name)
    assert isinstance(state.model_data.data, multistep.Ahead) == config.unet_looks_ahead


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mbpo", "paper_mbpo", "mopo", "combo", "sac"])
def test_presets_run(name):
    config = small(presets.get(name))
    state, actions, _ = Runner(config, mapped=False).run(jax.random.key(0), random_transitions(0))
    assert np.isfinite(actions).all()
    assert state.member_data is None
    assert (state.dynamics is None) == (name == "sac")
    q_kernel = state.learner.critic["params"]["MLP_0"]["Dense_0"]["kernel"]
    assert q_kernel.shape == (1, 2, 5, 8)  # one group of two clipped critics


@pytest.mark.slow
def test_members_expect_rewards_of_their_own_with_a_prior():
    data = random_transitions(0)
    spread = {}
    for scale in (0.0, 1.0, 10.0):
        dynamics = dataclasses.replace(SMALL.dynamics, reward_prior_scale=scale)
        config = dataclasses.replace(SMALL, dynamics=dynamics)
        state = agent.init(jax.random.key(0), config=config, task=TASK)
        mean, _ = model.predict(
            state.dynamics, data.observation, data.action, config=config, task=TASK
        )
        spread[scale] = float(mean[..., -1].std(0).mean())
    assert spread[10.0] > 2.0 + spread[0.0]
    assert spread[1.0] < 0.3 * spread[10.0]


@pytest.mark.parametrize("name", ["qusac", "mopo"])
def test_batches_are_half_real_and_half_of_the_model_exactly(name):
    config = dataclasses.replace(small(presets.get(name)), num_members=3, real_ratio=0.5)
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    data = jax.tree.map(lambda x: x[:8], random_transitions(0, 24))
    fill = lambda buffer, reward: replay.add(buffer, data._replace(reward=jnp.full(8, reward)))
    state = state._replace(replay=fill(state.replay, -1.0), model_data=fill(state.model_data, 1.0))
    if state.member_data is not None:
        data = multistep.single(data)
        members = jax.vmap(fill)(state.member_data, jnp.array([2.0, 3.0, 4.0]))
        state = state._replace(member_data=members)
    critic, policy = agent._sample_batches(state, jax.random.key(1), config)
    half = config.batch_size // 2
    np.testing.assert_array_equal(policy.reward, np.repeat([-1.0, 1.0], half))
    by_group = [2.0, 3.0, 4.0] if name == "qusac" else [1.0]
    expected = [np.repeat([-1.0, model], half) for model in by_group]
    np.testing.assert_array_equal(critic.reward, expected)


@pytest.mark.parametrize(
    ("field", "shape"),
    [("observation", (1,)), ("action", ()), ("reward", (1,)), ("next_observation", (4,))],
)
def test_transitions_of_other_shapes_are_refused(alone, field, shape):
    one = jax.tree.map(lambda x: x[0], random_transitions(0))
    other = one._replace(**{field: jnp.zeros(shape)})
    expected = jnp.shape(getattr(one, field))
    observation = jnp.zeros(3)
    state = alone.init(jax.random.key(0))
    message = re.escape(f"transition.{field} must have shape {expected}, got {shape}")
    for verb in (agent.collect, agent.train_step):
        with pytest.raises(ValueError, match=message):
            verb(state, other, observation, config=SMALL, task=TASK)
    several = random_transitions(0)
    expected, shape = (14, *expected), (14, *shape)
    if field == "reward":  # which says how many there are
        expected = r"[B]"
    message = re.escape(f"transition.{field} must have shape {expected}, got {shape}")
    with pytest.raises(ValueError, match=message):
        jax.jit(agent.observe)(state, several._replace(**{field: jnp.zeros(shape)}))
    with pytest.raises(ValueError, match=re.escape("must have shape [..., 3], got (2,)")):
        agent.collect(state, one, jnp.zeros(2), config=SMALL, task=TASK)


@pytest.mark.parametrize("values", [(0, 1), (3.5, 1), (3, -1), (3, 1, "never"), (3, 1, None)])
def test_a_task_has_sizes_and_a_termination(values):
    with pytest.raises(ValueError, match="must be a"):
        Task(*values, *(() if len(values) == 3 else (TASK.termination,)))


def test_learning_before_the_first_rollouts_is_refused():
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="D is empty"):
        agent.learn(state, config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="fewer than two transitions"):
        agent.refresh(state, config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="D is empty, and rollouts start there"):
        agent.roll_out(state, config=SMALL, task=TASK)
    state = agent.observe(state, random_transitions(0))
    assert int(state.replay.size) == 14
    with pytest.raises(ValueError, match="the model's buffers are empty: call `refresh`"):
        agent.learn(state, config=SMALL, task=TASK)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), state._replace(key=None))
    with pytest.raises(ValueError, match="the model's buffers are empty"):
        agent.check_ready(both._replace(key=jax.random.split(state.key)))


def test_a_jitted_function_may_close_over_the_state():
    both = {"config": SMALL, "task": TASK}
    state = agent.init(jax.random.key(0), **both)
    filled = state._replace(
        replay=state.replay._replace(size=jnp.int32(2)),
        model_data=state.model_data._replace(size=jnp.int32(2)),
    )
    for verb in (agent.learn, agent.fit, agent.roll_out):
        with pytest.raises(ValueError, match=r"D (is empty|holds fewer than two)"):
            jax.eval_shape(functools.partial(verb, state, **both))
        jax.eval_shape(functools.partial(verb, filled, **both))


@pytest.mark.parametrize("num_updates", [0, -1, 1.5])
def test_learning_takes_at_least_one_update(num_updates):
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="num_updates must be an integer of at least 1"):
        agent.learn(state, config=SMALL, task=TASK, num_updates=num_updates)


def test_a_train_step_acts_with_what_it_has_learned(alone):
    state, _, _ = alone.run(jax.random.key(3), random_transitions(3))
    last = jax.tree.map(lambda x: x[-1], random_transitions(4))
    observation = last.next_observation
    after, action, _ = alone.train_step(state, last, observation)
    key_act = jax.random.split(state.key, 3)[2]
    acted = lambda actor: agent.act(actor, observation, key_act, config=SMALL, task=TASK)
    np.testing.assert_allclose(action, acted(after.actor), rtol=1e-5)
    assert np.abs(np.asarray(action - acted(state.actor))).max() > 1e-4
    assert int(after.replay.size) == int(state.replay.size) + 1


def test_learning_without_a_step_moves_the_actor_and_leaves_D(alone):
    state, _, _ = alone.run(jax.random.key(3), random_transitions(3))
    learned, metrics = jax.jit(functools.partial(agent.learn, config=SMALL, task=TASK))(state)
    assert all(np.isfinite(value) for value in metrics.values())
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), learned.actor, state.actor)
    assert min(jax.tree.leaves(moved)) > 0
    assert int(learned.replay.size) == int(state.replay.size)


LEARNS_ENDS = dataclasses.replace(
    SMALL, method="pombu", dynamics=dataclasses.replace(SMALL.dynamics, learn_termination=True)
)


def state_that_expects_ends(log_odds):
    """A state of `LEARNS_ENDS` whose members expect an end everywhere, or nowhere."""
    state = agent.init(jax.random.key(0), config=LEARNS_ENDS, task=TASK)
    head = jax.tree.map(jnp.zeros_like, state.dynamics.params["params"]["termination"])
    head["Dense_2"]["bias"] += log_odds + jnp.arange(-1.0, 2.0)[:, None]  # [N, 1]
    params = {"params": {**state.dynamics.params["params"], "termination": head}}
    return state._replace(dynamics=state.dynamics._replace(params=params))


@pytest.mark.slow
@pytest.mark.parametrize(("log_odds", "missed", "false"), [(-10.0, 1.0, 0.0), (10.0, 0.0, 1.0)])
def test_errors_of_learned_ends_are_shares_of_what_is_held_out(log_odds, missed, false):
    state = state_that_expects_ends(log_odds)
    every = LEARNS_ENDS.dynamics.holdout_every
    data = random_transitions(0, 2 * every)
    state = agent.observe(state, data._replace(terminated=jnp.arange(2 * every) == every))
    values = diagnostics.diagnose(state, jax.random.key(0), config=LEARNS_ENDS, task=TASK)
    assert (float(values["missed_ends"]), float(values["false_ends"])) == (missed, false)
    none = agent.observe(state_that_expects_ends(log_odds), data)
    values = diagnostics.diagnose(none, jax.random.key(0), config=LEARNS_ENDS, task=TASK)
    assert float(values["missed_ends"]) == 0.0


def test_fits_may_have_a_batch_size_of_their_own():
    small, large = SMALL.batch_size, 2 * SMALL.batch_size
    fitted = []
    for own, of_fits in ((large, 0), (small, large), (small, 0)):
        dynamics = dataclasses.replace(SMALL.dynamics, batch_size=of_fits)
        config = dataclasses.replace(SMALL, batch_size=own, dynamics=dynamics)
        state = agent.observe(
            agent.init(jax.random.key(0), config=config, task=TASK), random_transitions(0, 60)
        )
        fit = jax.jit(functools.partial(agent.fit, config=config, task=TASK))
        fitted.append(fit(state)[0].dynamics.params)
    jax.tree.map(np.testing.assert_array_equal, fitted[0], fitted[1])
    different = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), fitted[1], fitted[2])
    assert all(jax.tree.leaves(different))


@pytest.mark.slow
def test_every_second_rollout_starts_by_value():
    config = dataclasses.replace(
        SMALL,
        method="ensemble_mean",
        rollout_starts="values",
        rollout_length=1,
        rollouts_per_step=150,
    )
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    # A few states have a large first component; critics value it, or nothing.
    data = random_transitions(0, 60)
    data = data._replace(
        observation=data.observation.at[:, 0].set(jnp.exp(data.observation[:, 0])),
        reward=jnp.zeros_like(data.reward),  # rare
    )
    first = state.learner.critic["params"]["MLP_0"]
    for worth in (1.0, 0.0):
        params = jax.tree.map(jnp.zeros_like, first)
        params["Dense_0"]["kernel"] = params["Dense_0"]["kernel"].at[..., 0, 0].set(0.02)
        params["Dense_1"]["kernel"] = params["Dense_1"]["kernel"].at[..., 0, 0].set(worth)
        learner = state.learner._replace(critic={"params": {"MLP_0": params}})
        filled = agent.observe(state._replace(learner=learner), data)
        filled = jax.jit(functools.partial(agent.roll_out, config=config, task=TASK))(filled)
        start = np.asarray(filled.member_data.data.observation)[:, :, 0]  # [N, B]
        known = np.asarray(filled.replay.data.observation)[:60]
        assert set(start.ravel()) <= set(known[:, 0])
        uniform, middle = known[:, 0].mean(), (known[:, 0].min() + known[:, 0].max()) / 2
        np.testing.assert_allclose(start[:, ::2].mean(), uniform, atol=0.15)
        if worth:
            # Values are nearly linear in the component: half of the starts in half of its range.
            assert (known[:, 0] > middle).mean() < 0.1
            np.testing.assert_allclose((start[:, 1::2] > middle).mean(), 0.5, atol=0.1)
        else:
            np.testing.assert_allclose(start[:, 1::2].mean(), uniform, atol=0.15)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_so_many_rollouts_begin_with_a_uniform_action(share):
    config = dataclasses.replace(
        SMALL, rollout_length=1, rollouts_per_step=200, random_first_actions=share
    )
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    # A policy that knows what it wants.
    actor = constant(state.actor, jnp.repeat(jnp.array([3.0, -5.0]), TASK.action_size))
    state = state._replace(learner=state.learner._replace(actor=actor))
    state = agent.observe(state, random_transitions(0, 60))
    state = jax.jit(functools.partial(agent.roll_out, config=config, task=TASK))(state)
    for buffer in (state.model_data, state.member_data):
        action = np.asarray(buffer.data.action)
        assert abs(action.mean() - (1.0 - share)) < 0.1
        assert action.min() < -0.9 if share else action.min() > 0.9


def test_rollouts_stay_in_the_range_that_D_has_by_then():
    config = dataclasses.replace(
        SMALL,
        rollouts_per_step=150,
        dynamics=dataclasses.replace(SMALL.dynamics, clip_observations=True),
    )
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    roll_out = jax.jit(functools.partial(agent.roll_out, config=config, task=TASK))
    known = []
    for seed, offset in ((0, 0.0), (1, 20.0)):  # nothing is fitted in between
        data = random_transitions(seed)
        moved = [x + offset for x in (data.observation, data.next_observation)]
        known += moved
        state = agent.observe(state, data._replace(observation=moved[0], next_observation=moved[1]))
        state = roll_out(state)
        least, most = np.concatenate(known).min(0), np.concatenate(known).max(0)
        led_to = state.model_data.data.next_observation[: int(state.model_data.size)]
        np.testing.assert_array_equal(led_to, np.clip(led_to, least, most))
        np.testing.assert_array_equal(state.dynamics.most[:-1], most)
        assert (led_to.max(0) > offset).all()


@pytest.mark.slow
@pytest.mark.parametrize("log_odds", [-10.0, 10.0])
def test_rollouts_end_where_the_members_expect_it(log_odds):
    config = LEARNS_ENDS
    state = state_that_expects_ends(log_odds)
    state = agent.observe(state, random_transitions(0))
    state = agent.roll_out(state, config=config, task=TASK)
    for buffer, ends in (
        (state.model_data, state.model_data.data.terminated),
        (state.member_data, state.member_data.data.num_steps == 0),
    ):
        is_there = np.arange(ends.shape[-1]) < np.asarray(buffer.size)[..., None]
        assert (np.asarray(ends)[is_there] == (log_odds > 0)).all()
    assert int(state.model_data.size) == (12 if log_odds > 0 else 24)  # L F rollouts of K = 2
    _, metrics = agent.learn(state, config=config, task=TASK)
    assert np.isfinite(metrics["local_uncertainty"])


def test_refresh_without_a_model_is_refused():
    config = small(presets.get("sac"))
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    with pytest.raises(ValueError, match="critic_data 'replay' trains without a model"):
        agent.refresh(state, config=config, task=TASK)


def test_mean_action_is_deterministic_and_draws_are_not():
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    act = functools.partial(agent.act, state.learner.actor, config=SMALL, task=TASK)
    observation = jnp.ones((4, 3))
    np.testing.assert_array_equal(act(observation), act(observation))
    assert not np.allclose(act(observation, jax.random.key(0)), act(observation, jax.random.key(1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.array([0.0, np.nan])}, "transition.reward must be finite"),
        ({"next_observation": np.full((2, 3), 1e39)}, "transition.next_observation must be finite"),
        ({"action": np.full((2, 2), -9.0)}, r"lie in \[-1, 1\], got -9 to -9"),
        ({"action": np.full((2, 2), -128, np.int8)}, r"lie in \[-1, 1\]"),
        ({"reward": np.array([1j, 0])}, "transition.reward must hold real numbers"),
        ({"terminated": np.array([0.0, 0.5])}, "must be bool, or 0 and 1"),
    ],
)
def test_transitions_that_would_spoil_d_are_refused(change, message):
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    good = Transition(np.zeros((2, 3)), np.ones((2, 2)), np.zeros(2), np.zeros((2, 3)), np.zeros(2))
    assert int(agent.observe(state, good).replay.size) == 2
    with pytest.raises(ValueError, match=message):
        agent.observe(state, good._replace(**change))


def test_a_seed_is_no_key():
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="key must be a key of JAX"):
        agent.act(state.actor, np.zeros(3, np.float32), 0, config=SMALL, task=TASK)
    with pytest.raises(ValueError, match="key must be a key of JAX"):
        agent.init(0, config=SMALL, task=TASK)


@pytest.mark.parametrize("given", [None, (1.0, 2.0), {"reward": 1.0}])
def test_what_is_no_transition_is_named(given):
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    with pytest.raises(ValueError, match=r"must be a qusac.Transition, got [N({]"):
        agent.observe(state, given)
    with pytest.raises(ValueError, match=r"must be a qusac.Transition, got [N({]"):
        agent.collect(state, given, np.zeros(3), config=SMALL, task=TASK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": None}, "config must be a qusac.Config, got NoneType"),
        ({"config": TASK, "task": SMALL}, "config must be a qusac.Config, got Task"),
        ({"task": (3, 1)}, "task must be a qusac.Task, got tuple"),
    ],
)
def test_what_an_agent_cannot_be_made_of_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        agent.init(jax.random.key(0), **{"config": SMALL, "task": TASK} | change)


def test_what_a_policy_cannot_act_on_is_named():
    state = agent.init(jax.random.key(0), config=SMALL, task=TASK)
    both = {"config": SMALL, "task": TASK}
    with pytest.raises(ValueError, match="observation must hold real numbers in rows of one leng"):
        agent.act(state.actor, (np.zeros(3), {}), **both)  # what an environment's reset returns
    with pytest.raises(ValueError, match=r"got a TrainState; pass state\.actor"):
        agent.act(state, np.zeros(3), **both)


def test_lists_are_arrays():
    both = {"config": small(presets.get("sac")), "task": Task(2, 1, never)}
    one = Transition([0.5, 1.0], [0.25], 2.0, [1.5, -1.0], False)
    as_arrays = Transition(*map(np.asarray, one))
    of_one = Transition(*(np.asarray(x)[None] for x in one))
    begin = lambda: agent.init(jax.random.key(0), **both)
    expected = agent.observe(begin(), of_one).replay
    lists = Transition(*(x.tolist() for x in of_one))
    collect = functools.partial(agent.collect, **both)
    traced = lambda reward: collect(
        begin(), one._replace(reward=reward, action=[reward / 8]), one.next_observation
    )
    found = (
        agent.observe(begin(), lists).replay,
        collect(begin(), one, one.next_observation)[0].replay,
        collect(begin(), as_arrays, one.next_observation)[0].replay,
        jax.jit(traced)(2.0)[0].replay,
    )
    for buffer in found:
        jax.tree.map(np.testing.assert_array_equal, buffer, expected)
    with pytest.raises(ValueError, match="action must hold real numbers"):
        agent.observe(begin(), lists._replace(action=[["a"]]))


@pytest.mark.parametrize(
    ("preset", "method"),
    [
        ("qusac", "upper_bound"),
        ("qusac", "exact_ube"),
        ("explore", "information_gain"),
        ("explore_upper_bound", "upper_bound"),
        ("combo", "ensemble_mean"),
        ("sac", "ensemble_mean"),
    ],
)
def test_numbers_are_float32_where_jax_has_float64(preset, method):
    config = dataclasses.replace(small(presets.get(preset)), method=method)
    both = {"config": config, "task": TASK}
    array = lambda *shape: jax.ShapeDtypeStruct(shape, np.float64)
    transition = Transition(array(3), array(2), array(), array(3), jax.ShapeDtypeStruct((), bool))
    with jax.enable_x64(True):

        def step(key, transition, observation):
            state, action = agent.collect(agent.init(key, **both), transition, observation, **both)
            if config.uses_model:
                state, _ = agent.refresh(state, **both)
            state, other_action, metrics = agent.train_step(state, transition, observation, **both)
            seen = diagnostics.diagnose(state, state.key, **both)
            pairs = transition.observation[None], transition.action[None]
            values = [diagnostics.values_at(state, *given, **both) for given in (pairs, pairs[:1])]
            return state, action, other_action, metrics, seen, values

        result = jax.eval_shape(step, jax.random.key(0), transition, array(3))
    types = {str(x.dtype) for x in jax.tree.leaves(result)}
    assert "float32" in types
    assert not types & {"float64", "int64"}


def test_metrics_are_those_of_the_last_update():
    config = dataclasses.replace(small(presets.get("sac")), temperature_learning_rate=0.1)
    task = Task(3, 1, never)
    state = agent.init(jax.random.key(0), config=config, task=task)
    state = agent.observe(state, replay.init(4, 3, 1).data)
    state, metrics = agent.learn(state, config=config, task=task, num_updates=3)
    np.testing.assert_allclose(metrics["alpha"], jnp.exp(state.learner.log_temperature), rtol=1e-6)
