"""What does not fit into memory is refused before anything is made, with what to lower."""

import dataclasses
import functools
import itertools
import re
import types

import jax
import numpy as np
import pytest

from experiments import durations, memory, online, operations
from experiments.tabular import command as tabular
from experiments.tabular import memory as tabular_memory
from qusac_jax import _belief, _memory, posterior, qusac
from qusac_jax.environments import TERMINATIONS, functional
from qusac_jax.qusac.config import DynamicsConfig
from qusac_jax.qusac.state import model_capacity
from qusac_jax.tabular import agent, environments, experiment
from tests.tasks import never

CPU = jax.devices("cpu")[:1]


@pytest.fixture(autouse=True)
def _a_computer_with_sixteen_gigabytes(monkeypatch):
    monkeypatch.setattr(_memory, "host_available", lambda: 16 * 10**9)


@pytest.mark.parametrize(
    ("change", "to_lower"),
    [
        ({"replay_capacity": 10**12}, "--config.replay_capacity"),
        ({"num_members": 10**8}, "--config.num_members"),
        ({"rollout_length": 10**11}, "--config.rollout_length"),
        ({"batch_size": 10**10}, "--config.batch_size"),
        ({"dynamics": DynamicsConfig(batch_size=10**11)}, "--config.dynamics.batch_size"),
        ({"critic_hidden": (10**9, 10**9)}, "the layer sizes"),
        ({"method": "exact_ube", "gap_samples": 10**9}, "--config.gap_samples"),
    ],
)
def test_a_deep_run_that_is_too_large_says_what_to_lower(change, to_lower):
    config = dataclasses.replace(qusac.Config(), **change)
    task = qusac.Task(3, 1, lambda *x: x)
    with pytest.raises(ValueError, match=r"GB of device memory \(D .*16 GB are free") as caught:
        memory.check(config, task, 1, CPU)
    assert to_lower in str(caught.value).partition("lower ")[2]
    memory.check(qusac.Config(), task, 1, CPU)


def test_what_decides_about_the_size_is_what_is_to_be_lowered():
    task = qusac.Task(3, 1, lambda *x: x)

    def remedies(config, **more):
        with pytest.raises(ValueError, match="of device memory") as caught:
            memory.check(config, task, 1, CPU, **more)
        return str(caught.value).partition("lower ")[2]

    explore = dataclasses.replace(qusac.presets.get("explore"), rollouts_per_step=10**8)
    assert "--config.roll_out_every, " in remedies(explore)
    assert "--config.fit_every, " not in remedies(explore)
    online = dataclasses.replace(qusac.Config(), rollouts_per_step=10**8)
    assert "--config.fit_every, " in remedies(online)
    dataset = dataclasses.replace(qusac.presets.get("sac"), replay_capacity=10**12)
    assert "--config.replay_capacity" in remedies(dataset)
    assert remedies(dataset, has_dataset=True) == (
        "--num_seeds, or take a smaller dataset or --size=small"
    )


@pytest.mark.parametrize(
    ("change", "to_lower"),
    [
        ({"num_members": 10_000}, {"replay_capacity", "num_members"}),
        ({"batch_size": 10**9}, {"batch_size", "num_members"}),
        ({"dynamics": DynamicsConfig(batch_size=10**9)}, {"dynamics.batch_size", "num_members"}),
    ],
)
def test_of_what_is_computed_with_the_largest_is_to_be_lowered(change, to_lower):
    config = dataclasses.replace(qusac.presets.get("mbpo"), **change)
    task = qusac.Task(3, 1, lambda *x: x)
    with pytest.raises(ValueError, match="of device memory") as caught:
        memory.check(config, task, 1, CPU)
    assert set(re.findall(r"--config\.([\w.]+)", str(caught.value))) == to_lower


@pytest.mark.parametrize(
    ("part", "flags"),
    [
        ("_update_bytes", {"batch_size", "num_members"}),
        ("_fit_step_bytes", {"batch_size", "num_members"}),
        ("_shuffle_bytes", {"replay_capacity", "num_members"}),
        ("_rollout_bytes", {"rollout_length"}),
    ],
)
def test_each_part_of_the_work_space_has_its_flags(part, flags, monkeypatch):
    monkeypatch.setattr(memory, part, lambda *_: 10**15)
    behind = memory._behind(qusac.Config(), qusac.Task(3, 1, lambda *x: x), False)
    assert {flag.removeprefix("--config.") for flag in behind["work"]} == flags


def test_each_buffer_is_told_by_itself_if_it_is_there():
    task = qusac.Task(3, 1, lambda *x: x)
    said = lambda name: memory.describe(qusac.presets.get(name), task, 1, CPU)
    assert re.search(
        r"\(D [\d.]+ .B, D_model .*, D_1\.\.D_N .*, networks .*, work space", said("qusac")
    )
    assert re.search(r"\(D [\d.]+ .B, D_model [^,]*, networks", said("mbpo"))
    assert re.search(r"\(D [\d.]+ .B, networks", said("sac"))


def test_environments_on_the_device_are_counted_with_those_of_evaluations():
    config, task = qusac.presets.get("sac", "small"), qusac.Task(3, 1, lambda *x: x)
    env = "functional:tests.pendulum:Pendulum"
    # A state of two numbers and a count, an observation of three, two returns, a length, a key.
    a_stream = memory.stream_bytes(env, 0)
    state = functional.load(env).reset(jax.random.key(0))
    of_state = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
    assert a_stream == of_state + 4 * (3 + 2 + 1) + 8
    assert memory.stream_bytes(env, 9) == 10 * a_stream
    assert memory.stream_bytes("pendulum", 9) == 0
    size = memory.stream_bytes(env, 10**9)
    assert memory.expected(config, task, 2, size).environments == 2 * size
    with pytest.raises(ValueError, match=r"environments .* GB.*; lower --eval_episodes or "):
        memory.check(config, task, 1, CPU, streams_size=size)
    said = memory.describe(config, task, 1, CPU, memory.stream_bytes(env, 5))
    assert "environments " in said


def test_copies_of_the_environment_are_counted(monkeypatch):
    with pytest.raises(ValueError, match="3000000002 copies of the environment would take about"):
        memory.check_copies(5, 2, 1_500_000_000)
    memory.check_copies(5, 2, 100)
    monkeypatch.setattr(_memory, "host_available", lambda: 16 * 10**9)
    with pytest.raises(ValueError, match="202 copies of the environment would take about 202 GB"):
        memory.check_copies(10**9, 2, 100)


@pytest.mark.parametrize(
    "flag",
    [
        "--length=100000",
        "--num_episodes=1000000000000",
        "--num_members=10000000000",
        "--num_seeds=1000000000",
    ],
)
def test_a_tabular_run_that_is_too_large_leaves_nothing_behind(flag, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert tabular.main(["tabular", flag, f"--workdir={workdir}"]) == 2
    error = capsys.readouterr().err
    assert flag.partition("=")[0] in error.partition("lower ")[2]
    assert error.count("\n") == 1
    assert not workdir.exists()


def test_an_inspection_that_is_too_large_is_refused(tmp_path, capsys):
    arguments = ["--inspect", "--inspect_episodes=1000000000000", f"--workdir={tmp_path / 'run'}"]
    assert tabular.main(["tabular", *arguments]) == 2
    assert "--num_episodes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_memory_is_told_on_request(tmp_path, capsys):
    workdir = f"--workdir={tmp_path / 'run'}"
    assert tabular.main(["tabular", "--memory", "--length=40", workdir]) == 0
    assert "0.963 GB of memory (environment 0.123 GB, beliefs" in capsys.readouterr().out
    tiny = ["--env=gym:tests.short_env:Short-v0", "--termination=never", workdir]
    assert online.main(["online", "--memory", "--config.replay_capacity=1000000000", *tiny]) == 0
    assert "GB of device memory (D 3" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("is_array", "n"), [(False, 20), (True, 20), (True, 2000)])
def test_predicted_bytes_of_a_sample_are_those_that_xla_takes(is_array, n):
    states = 30
    prior = np.ones((states, 2, states + 1)) if is_array else None
    belief = posterior.init(states, 2, concentration=prior)
    taken = _belief.sample.lower(belief, jax.random.key(0), n).compile().memory_analysis()
    needed = taken.temp_size_in_bytes + taken.output_size_in_bytes
    assert needed / 2 < posterior.sample_bytes(belief, n) < 2 * needed


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact_ube", "moments", "psrl"])
def test_predicted_bytes_of_planning_are_near_those_that_xla_takes(method):
    config = experiment.Config(agent=agent.Config(method=method), seed_axis="map")
    environment = environments.deep_sea(10)
    num_states = environment.num_states
    belief = posterior.init(num_states, 2)
    policy = np.zeros(num_states, np.int32)
    start = agent.init_warm_start(num_states, config.agent)
    key = jax.random.key(0)
    lowered = agent._optimize.lower(belief, policy, start, key, config=config.agent)
    taken = lowered.compile().memory_analysis().temp_size_in_bytes
    predicted = tabular_memory.expected(environment, config, 1).planning
    assert taken / 3 < predicted < 6 * taken


def test_samples_and_beliefs_that_are_too_large_are_refused():
    belief = posterior.init(3, 2)
    for n in (10**10, 10**12):
        with pytest.raises(ValueError, match=f"sampling n = {n} MDPs would take about .* smaller"):
            posterior.sample(belief, jax.random.key(0), n)
    for num_states in (10**6, 10**12):
        with pytest.raises(ValueError, match=r"the belief would take about .* lower num_states"):
            posterior.init(num_states, 2)
    support = np.broadcast_to(np.int32(0), (10**5, 2, 10**5))
    with pytest.raises(ValueError, match=r"the belief would take about .* fewer successors"):
        posterior.init(10**5, 2, support=support)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (5.4e7, "54 MB"),
        (1.234e10, "12.3 GB"),
        (2.739e12, "2,739 GB"),
        (1e24, "1e+15 GB"),
    ],
)
def test_sizes_in_words(size, words):
    assert _memory.in_words(size) == words


def test_available_memory_is_that_of_the_device_or_the_host(tmp_path, monkeypatch):
    stats = {"bytes_limit": 5}
    gpu = types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    assert _memory.available(gpu) == 5
    stats["bytes_in_use"] = 2
    assert _memory.available(gpu) == 3
    gpu.memory_stats = lambda: None
    assert _memory.available(gpu) is None
    assert _memory.available(CPU[0]) == 16 * 10**9
    monkeypatch.undo()
    files = ("memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(_memory, "_GROUPS", ((str(tmp_path), *files),))
    limit, used, stat = (tmp_path / name for name in (*files[:2], "memory.stat"))
    limit.write_text("max\n")
    assert _memory.host_available() > 10**6
    limit.write_text("12345\n")
    assert _memory.host_available() == 12345
    used.write_text("12000\n")
    stat.write_text("anon 11000\ninactive_file 700\n")
    assert _memory.host_available() == 12345 - 12000 + 700
    with pytest.raises(ValueError, match=r"2 GB of memory, but 0.00104 MB are free; less"):
        _memory.check(2 * 10**9, "it", "less", is_on_host=True)
    used.write_text("20000\n")  # others may have raised it past the limit
    assert _memory.host_available() == 0


@pytest.mark.parametrize(
    "name", ["upper_bound", "pombu", "exact_ube", "disagreement", "ensemble_mean", "mbpo"]
)
def test_operations_of_an_update_are_those_of_the_documentation(name):
    # docs/scaling.md: 2 B [6 N M W_c + (N + 4) W_a + 6 W_u + local], with weights without biases.
    config = qusac.presets.PRESETS.get(name) or qusac.Config(method=name)
    task = qusac.Task(17, 6, lambda *x: x)
    layers = lambda *sizes: sum(a * b for a, b in itertools.pairwise(sizes))
    critic = layers(23, *config.critic_hidden, 1) * config.num_critics
    unet, actor = layers(23, *config.unet_hidden, 1), layers(17, *config.actor_hidden, 12)
    model, n = layers(23, *config.dynamics.hidden, 36), config.num_groups
    ahead = lambda draws: 5 * model + draws * 5 * (5 * critic + actor)
    local = {
        "upper_bound": 5 * critic,
        "pombu": ahead(1),
        "exact_ube": ahead(config.gap_samples),
        "disagreement": 5 * model,
    }
    total = 6 * n * critic + (n + 4) * actor
    total += 6 * unet + local[name] if name in local else -actor
    said = operations.update_flops(config, task)
    np.testing.assert_allclose(2 * config.batch_size * total, said, rtol=1e-12)


def test_small_sizes_are_named_where_networks_are_larger():
    never = TERMINATIONS["never"]
    task = qusac.Task(observation_size=3, action_size=1, termination=never)
    step = lambda: None

    def small_seconds(config):
        return durations.expected(step, config, task, 1_000).small_seconds

    paper, small = qusac.presets.get("qusac", "paper"), qusac.presets.get("qusac", "small")
    assert small_seconds(paper) is not None
    assert small_seconds(small) is None
    assert small_seconds(dataclasses.replace(small, fit_every=200)) is None
    assert small_seconds(dataclasses.replace(small, critic_hidden=(32, 32))) is None
    # What cannot be made small is not announced so.
    assert small_seconds(dataclasses.replace(paper, rollout_length=600)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "changes", "verb", "more"),
    [
        ("qusac", {}, qusac.fit, {}),  # of one epoch's shuffles
        ("qusac", {"replay_capacity": 1_000_000}, qusac.fit, {}),
        ("qusac", {}, qusac.roll_out, {}),
        ("mbpo", {}, qusac.roll_out, {}),
        ("qusac", {"method": "exact_ube"}, qusac.learn, {"num_updates": 1}),
    ],
)
def test_predicted_work_space_is_near_what_xla_takes(preset, changes, verb, more):
    config = dataclasses.replace(qusac.presets.get(preset, "small"), **changes)
    task = qusac.Task(17, 6, TERMINATIONS["never"])
    state = jax.eval_shape(lambda key: qusac.init(key, config=config, task=task), jax.random.key(0))
    jitted = jax.jit(functools.partial(verb, config=config, task=task, **more), donate_argnums=0)
    found = jitted.lower(state).compile().memory_analysis().temp_size_in_bytes
    predicted = {
        qusac.fit: memory._fit_bytes,
        qusac.roll_out: memory._rollout_bytes,
        qusac.learn: memory._update_bytes,
    }[verb](config, task)
    assert found / 2 < predicted < 2 * found


def test_what_a_unet_looks_ahead_at_is_counted():
    task = qusac.Task(17, 6, TERMINATIONS["walker2d"])
    one, ten = (
        dataclasses.replace(qusac.presets.get("explore"), method="exact_ube", unet_steps=n)
        for n in (1, 10)
    )
    before, after = (memory.expected(config, task, 1) for config in (one, ten))
    transitions = model_capacity(ten)
    # Two floats, an observation and a byte for each transition of D_model.
    assert after.model_data - before.model_data == transitions * (4 * (17 + 2) + 1)
    assert after.member_data == before.member_data
    # Looked ahead at are 2,000 rollouts at once, in place of a batch of 256.
    assert 5 * before.work < after.work
    # And at each of their 10 steps once, in place of at each of 500 updates of 256.
    updates = [
        config.rollout_interval * 10 * operations.update_flops(config, task)
        for config in (one, ten)
    ]
    rollouts = [operations.rollout_flops(config, task) for config in (one, ten)]
    per_pair = (rollouts[1] - rollouts[0]) / transitions
    assert per_pair > 0
    np.testing.assert_allclose((updates[0] - updates[1]) / (500 * 256), per_pair)


@pytest.mark.parametrize(
    ("seconds", "words"), [(89, "89 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations_in_words(seconds, words):
    assert durations.in_words(seconds) == words


def test_a_run_takes_its_updates_and_its_share_of_fits_and_rollouts(monkeypatch):
    task = qusac.Task(observation_size=3, action_size=1, termination=never)
    config = qusac.presets.get("qusac", "small")
    clock = iter(np.arange(0.0, 100.0, 0.5))
    monkeypatch.setattr(durations.time, "perf_counter", lambda: next(clock))
    found = durations.expected(lambda: None, config, task, 1_000)
    assert found.steps_per_second == 2.0
    updates = config.updates_per_step * operations.update_flops(config, task)
    refreshes = operations.fit_flops(config, task) / config.fit_every
    refreshes += operations.rollout_flops(config, task) / config.rollout_interval
    np.testing.assert_allclose(found.seconds, 500 * (1 + refreshes / updates))
    assert "1000 steps will take about" in found.describe(1_000)
    assert "(2 learning steps/s here" in found.describe(1_000)


def test_a_typical_fit_has_three_epochs_if_it_may():
    task = qusac.Task(observation_size=3, action_size=1, termination=never)
    config = dataclasses.replace(qusac.presets.get("qusac", "small"), replay_capacity=10_000)

    def steps(**changes):
        dynamics = dataclasses.replace(config.dynamics, **changes)
        changed = dataclasses.replace(config, dynamics=dynamics)
        return operations.fit_flops(changed, task) / operations.fit_step_flops(changed, task)

    per_epoch = -(-10_000 // config.fit_batch_size)
    assert steps(max_epochs=50, max_steps=10**6) == 3 * per_epoch
    assert steps(max_epochs=2, max_steps=10**6) == 2 * per_epoch
    assert steps(max_epochs=50, max_steps=7) == 7
