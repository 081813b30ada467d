"""The plain PyTorch update has the losses of the JAX one, on the same weights, batch and noise."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmark import torch_agent, torch_baseline
from qusac_jax.qusac import agent, learner, model, multistep, networks, presets
from qusac_jax.task import Task, Transition
from tests import sizes
from tests.tasks import never

torch = pytest.importorskip("torch", reason="it is in the extra `bench`")

TASK = Task(3, 2, never)
BATCH = 16


def initial(config):
    """An agent whose target networks have weights of their own."""
    init = jax.jit(functools.partial(agent.init, config=config, task=TASK))
    state, other = init(jax.random.key(0)), init(jax.random.key(1)).learner
    targets = {"target_critic": other.critic, "target_unet": other.unet}
    return state._replace(learner=state.learner._replace(**targets))


def batches(key, *leading):
    keys = jax.random.split(key, 5)
    shape = (*leading, BATCH)
    return Transition(
        jax.random.normal(keys[0], (*shape, TASK.observation_size)),
        jax.random.uniform(keys[1], (*shape, TASK.action_size), minval=-1.0),
        jax.random.normal(keys[2], shape),
        jax.random.normal(keys[3], (*shape, TASK.observation_size)),
        jax.random.bernoulli(keys[4], 0.2, shape),
    )


def tensor(x):
    return torch.tensor(np.asarray(x))


def layers(params, *index):
    """Of an MLP: weights and biases of the element of its stack at an index."""
    (mlp,) = (value for name, value in params["params"].items() if name.startswith("MLP"))
    return [
        (tensor(mlp[f"Dense_{i}"]["kernel"][index]), tensor(mlp[f"Dense_{i}"]["bias"][index]))
        for i in range(len(mlp))
    ]


def noise_of(actor, params, observation, key):
    """The standard normal numbers behind the actions that a key draws."""
    action, _ = networks.sample_action(actor, params, observation, key)
    mean, log_std = networks.apply(actor, params, observation)
    before = np.arctanh(np.asarray(action, np.float64))
    return tensor(((before - mean) / np.exp(log_std)).astype(np.float32))


def copied(state, config):
    """The PyTorch learner with the weights of a JAX one."""
    start = state.learner
    members = range(config.num_members if config.method in ("pombu", "exact_ube") else 0)
    groups, critics = range(config.num_groups), range(config.num_critics)
    learner = torch_agent.Learner(
        config,
        actor=layers(start.actor),
        critics=[[layers(start.critic, i, j) for j in critics] for i in groups],
        unet=layers(start.unet) if config.uses_unet else None,
        dynamics=[layers(state.dynamics.params, i) for i in members],
    )
    targets = [
        (learner.target_critics[i][j], layers(start.target_critic, i, j))
        for i in groups
        for j in critics
    ]
    if config.uses_unet:
        targets.append((learner.target_unet, layers(start.target_unet)))
    with torch.no_grad():
        for network, weights in targets:
            for layer, given in zip(network, weights, strict=True):
                for old, new in zip(layer, given, strict=True):
                    old.copy_(new)
    return learner


def config_of(name):
    if name in torch_agent.METHODS:
        config = dataclasses.replace(presets.get("qusac"), method=name)
    else:
        config = presets.get(name)
    return dataclasses.replace(sizes.small(config), batch_size=BATCH)


@pytest.mark.parametrize("name", [*torch_agent.METHODS, "mbpo"])
def test_losses_of_an_update_are_ours(name):
    config = config_of(name)
    assert torch_agent.is_known(config)
    state = initial(config)
    start = state.learner
    critic, policy = batches(jax.random.key(1), config.num_groups), batches(jax.random.key(2))
    key = jax.random.key(3)
    predict = model.predictor(state.dynamics, config, TASK)

    # Keys as `learner.update` splits them.
    key_unet, key_critic, key_actor = jax.random.split(key, 3)
    key_next, key_local = jax.random.split(key_unet)
    actor = networks.Actor(config.actor_hidden, TASK.action_size)
    draw = lambda observation, key: noise_of(actor, start.actor, observation, key)
    samples = config.gap_samples if config.method == "exact_ube" else 1
    expected = predict(policy.observation, policy.action).next_observation[0]
    noise = torch_agent.Noise(
        unet=draw(policy.next_observation, key_next),
        local=draw(jnp.broadcast_to(expected, (samples, *expected.shape)), key_local),
        critic=draw(critic.next_observation, key_critic),
        actor=draw(policy.observation, key_actor),
    )
    ours = copied(state, config)
    as_batch = lambda transition: {k: tensor(v) for k, v in transition._asdict().items()}
    groups = [jax.tree.map(lambda x, i=i: x[i], critic) for i in range(config.num_groups)]
    theirs = ours.update([as_batch(group) for group in groups], as_batch(policy), noise)

    steps = multistep.single(critic)
    after, metrics = learner.update(start, steps, policy, predict, key, config=config)
    for loss, value in theirs.items():
        assert float(value) == pytest.approx(float(metrics[loss]), rel=2e-4), loss
    # The optimizers and targets too, which the next update starts from.
    np.testing.assert_allclose(
        ours.critics[0][0][0][0].detach(), layers(after.critic, 0, 0)[0][0], atol=2e-5
    )
    np.testing.assert_allclose(
        ours.target_critics[0][0][0][0], layers(after.target_critic, 0, 0)[0][0], atol=2e-6
    )
    np.testing.assert_allclose(ours.actor[0][0].detach(), layers(after.actor)[0][0], atol=2e-5)
    assert ours.log_temperature.item() == pytest.approx(float(after.log_temperature), abs=1e-5)


def test_log_probabilities_far_out_are_finite():
    config = config_of("upper_bound")
    _, log_prob = copied(initial(config), config).act(torch.zeros(3), torch.full((2,), 50.0))
    assert np.isfinite(float(log_prob))


@pytest.mark.parametrize("name", ["sac", "mopo", "exact_ube"])
def test_the_baseline_is_timed(name):
    config = dataclasses.replace(config_of(name), real_ratio=0.0 if name == "sac" else 0.5)
    baseline = torch_baseline.baseline(config, TASK, 1)
    assert baseline.per_second > 0
    assert baseline.name.startswith("PyTorch 2")


@pytest.mark.parametrize("name", ["combo", "disagreement"])
def test_what_it_does_not_know_has_no_baseline(name):
    config = presets.get("combo") if name == "combo" else presets.get("qusac")
    if name != "combo":
        config = dataclasses.replace(config, method=name)
    assert torch_baseline.baseline(config, TASK, 1) is None
