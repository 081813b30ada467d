"""Saved policies: the environment's units, and damage that is noticed."""

import json
import resource
import shutil
import signal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qusac_jax
from qusac_jax import _checksums, environments
from qusac_jax.policy import Policy, save_policy
from qusac_jax.qusac import networks
from tests.networks import constant

ENV = "gym:Pendulum-v1"  # torques in [-2, 2]
HIDDEN = (8, 8)


def save(path, env=ENV, low=(-2.0,), high=(2.0,), observation_size=3):
    actor = networks.Actor(HIDDEN, len(low))
    init = jax.vmap(lambda key: actor.init(key, jnp.zeros(observation_size)))
    params = init(jax.random.split(jax.random.key(0), 2))
    metadata = {"env": env, "action_cost": 0.0, "seeds": [0, 1], "step": 5}
    save_policy(path, params, hidden=HIDDEN, action_low=low, action_high=high, metadata=metadata)
    return actor, params


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    return run, *save(run / "policy")


OBSERVATION = np.array([0.6, -0.8, 3.0], np.float32)


def test_actions_are_in_the_units_of_the_environment(saved):
    run, actor, params = saved
    act = jax.jit(networks.mean_action, static_argnums=0)  # compiled, as the policy is
    for index in (0, 1):
        policy = qusac_jax.load_policy(run, seed_index=index)
        one = jax.tree.map(lambda x, index=index: x[index], params)
        expected = act(actor, one, OBSERVATION)
        np.testing.assert_array_equal(policy.normalized(OBSERVATION), expected)
        np.testing.assert_array_equal(policy(OBSERVATION), 2 * expected)
        np.testing.assert_allclose(jax.jit(policy)(OBSERVATION), 2 * expected, rtol=1e-6)
    drawn = [policy(OBSERVATION, key) for key in jax.random.split(jax.random.key(1), 40)]
    assert np.max(np.abs(drawn)) > 1  # more than half of the torque, and no more than all
    assert np.max(np.abs(drawn)) <= 2


def test_bounds_that_are_not_symmetric(tmp_path):
    low, high = (0.0, -1.0, 5.0), (10.0, 1.0, 5.5)
    save(tmp_path / "policy", low=np.float32(low), high=np.float32(high))
    policy = qusac_jax.load_policy(tmp_path)
    a = np.float64(policy.normalized(OBSERVATION))
    expected = np.array(low) + (a + 1) / 2 * (np.array(high) - np.array(low))
    np.testing.assert_allclose(policy(OBSERVATION), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_low": (2.0,), "action_high": (-2.0,)}, "each lower one below the upper"),
        ({"action_low": (float("-inf"),)}, "finite"),
        ({"action_low": (-2.0, -2.0)}, "as many"),
        ({"hidden": (8,)}, r"layers \[8\]"),
        ({"action_low": (-2.0, -2.0), "action_high": (2.0, 2.0)}, "of 2 actions"),
        ({"metadata": {"step": jnp.zeros(())}}, "metadata"),
    ],
)
def test_what_could_not_be_loaded_replaces_nothing(saved, tmp_path, change, message):
    save(tmp_path / "policy")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given = {"hidden": HIDDEN, "action_low": (-2.0,), "action_high": (2.0,), "metadata": {}}
    with pytest.raises(ValueError, match=message):
        save_policy(tmp_path / "policy", saved[2], **given | change)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_the_environment_of_the_training_takes_the_policys_actions(saved):
    policy = qusac_jax.load_policy(saved[0])
    assert repr(policy) == f"Policy(env={ENV!r}, observation_size=3, action_size=1)"
    env, raw = policy.environment(seed=3), gymnasium.make("Pendulum-v1")
    trained_in = environments.make(ENV, seed=3)
    observation, _ = env.reset()
    np.testing.assert_array_equal(raw.reset(seed=3)[0], observation)
    trained_in.reset()
    assert env.action_space == raw.action_space
    for _ in range(20):
        action, normalized = policy(observation), policy.normalized(observation)
        observation, reward, *_ = env.step(np.asarray(action))
        for other, its_action in ((raw, action), (trained_in, normalized)):
            found, its_reward, *_ = other.step(np.asarray(its_action))
            np.testing.assert_allclose(found, observation, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(its_reward, reward, rtol=1e-5)


def test_the_environment_of_the_training_has_its_action_cost(saved):
    policy = qusac_jax.load_policy(saved[0])
    policy.description["action_cost"] = 0.3
    env = policy.environment(seed=3)
    env.reset()
    _, reward, *_, info = env.step(np.ones(1))  # half of the largest torque
    np.testing.assert_allclose(info["task_reward"] - reward, 0.3 * 0.5**2, rtol=1e-6)


def test_an_environment_that_is_another_now_is_refused(tmp_path):
    save(tmp_path / "policy", low=(-1.0,), high=(1.0,))
    with pytest.raises(ValueError, match=r"its actions lie in \[-2.0\] to \[2.0\]"):
        qusac_jax.load_policy(tmp_path).environment()


def files_of(path):
    return sorted(f.relative_to(path) for f in path.rglob("*") if f.is_file())


def test_a_flipped_bit_in_any_file_is_noticed(saved, tmp_path):
    for number, name in enumerate(files_of(saved[0] / "policy")):
        copy = tmp_path / str(number)
        shutil.copytree(saved[0] / "policy", copy)
        content = (copy / name).read_bytes()
        middle = len(content) // 2
        damaged = bytes([content[middle] ^ 4]) if content else b"x"
        (copy / name).write_bytes(content[:middle] + damaged + content[middle + 1 :])
        with pytest.raises(ValueError, match=r"is damaged: .*run the training's command again"):
            qusac_jax.load_policy(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": [9, 9]}, r"hidden \[9, 9\] and action_size 1, which the weights"),
        ({"hidden": [8]}, "which the weights"),
        ({"action_size": 2}, "which the weights"),
        ({"action_low": [-2.0, -2.0]}, "the 1 bounds of its actions are missing"),
        ({"action_high": [float("nan")]}, "the 1 bounds"),
        ({"action_low": [3.0]}, "the 1 bounds"),
    ],
)
def test_a_description_that_does_not_fit_the_weights_is_refused(saved, tmp_path, change, message):
    copy = tmp_path / "policy"
    shutil.copytree(saved[0] / "policy", copy)
    description = json.loads((copy / "policy.json").read_text())
    (copy / "policy.json").write_text(json.dumps({**description, **change}))
    with pytest.raises(ValueError, match=r"policy.json changed"):
        qusac_jax.load_policy(copy)
    _checksums.write(copy)
    with pytest.raises(ValueError, match=message):
        qusac_jax.load_policy(copy)


def as_of_an_earlier_version(path):
    description = json.loads((path / "policy.json").read_text())
    del description["action_low"], description["action_high"]
    (path / "policy.json").write_text(json.dumps(description))
    (path / "checksums.json").unlink()


def test_policies_of_earlier_versions_act_only_where_the_bounds_are_known(tmp_path):
    save(tmp_path / "known", env="pendulum", low=(-1.0,), high=(1.0,))
    expected = qusac_jax.load_policy(tmp_path / "known")(OBSERVATION)
    as_of_an_earlier_version(tmp_path / "known")
    policy = qusac_jax.load_policy(tmp_path / "known")
    np.testing.assert_array_equal(policy(OBSERVATION), expected)
    save(tmp_path / "unknown")
    as_of_an_earlier_version(tmp_path / "unknown")
    with pytest.raises(ValueError, match="does not say in which bounds the actions of 'gym:Pend"):
        qusac_jax.load_policy(tmp_path / "unknown")


def test_checksums_that_are_gone_are_missed(saved, tmp_path):
    shutil.copytree(saved[0] / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "checksums.json").unlink()
    with pytest.raises(ValueError, match="its checksums or"):
        qusac_jax.load_policy(tmp_path)


def test_a_policy_that_was_being_replaced_is_found(tmp_path):
    save(tmp_path / "run" / "policy")
    (tmp_path / "run" / "policy").rename(tmp_path / "run" / "policy.previous")
    for path in ("run", "run/policy"):
        assert qusac_jax.load_policy(tmp_path / path).action_low == [-2.0]
    save(tmp_path / "run" / "policy", low=(-1.0,))
    assert qusac_jax.load_policy(tmp_path / "run").action_low == [-1.0]


def test_a_policy_that_was_being_replaced_outlives_a_write_that_fails(tmp_path, monkeypatch):
    save(tmp_path / "policy")
    (tmp_path / "policy").rename(tmp_path / "policy.previous")  # killed between the two renames

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("qusac_jax._policy_files._write", full)
    with pytest.raises(ValueError, match="could not write the policy"):
        save(tmp_path / "policy", low=(-1.0,))
    assert qusac_jax.load_policy(tmp_path).action_low == [-2.0]


def test_a_full_disk_leaves_the_policy_that_was_there(tmp_path):
    save(tmp_path / "policy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"could not write the policy to .* disk space"):
            save(tmp_path / "policy", low=(-1.0,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert qusac_jax.load_policy(tmp_path).action_low == [-2.0]


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (-0.3, 0.9), (0.2, 0.7)])
def test_the_largest_actions_are_within_the_bounds_although_they_are_rounded(low, high):
    params = networks.Actor((8,), 1).init(jax.random.key(0), jnp.zeros(3))
    description = {"hidden": (8,), "action_low": np.float32([low]), "action_high": [high]}
    for mean in (-20.0, 20.0):  # whose tanh is -1 or 1
        policy = Policy(constant(params, [mean, 0.0]), description)
        action = policy(np.zeros(3))
        assert policy.action_low <= action <= policy.action_high
        np.testing.assert_allclose(action, low if mean < 0 else high, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "path None is no path"),
        (b"run", "path b'run' is no path"),
        ("~nobody_of_that_name/run", "path '~nobody_of_that_name/run' is no path"),
        ("l\udce4uf", "is no path in UTF-8"),
        ("a" * 5000, "cannot be read .*; pass the --workdir"),
    ],
)
def test_what_is_no_path_is_named(saved, path, message):
    with pytest.raises(ValueError, match=message):
        qusac_jax.load_policy(path)


@pytest.mark.parametrize("path", [5, "l\udce4uf"])
def test_a_policy_is_written_to_paths_only(saved, path):
    given = {"hidden": HIDDEN, "action_low": (-2.0,), "action_high": (2.0,), "metadata": {}}
    with pytest.raises(ValueError, match=r"path .* is no path"):
        save_policy(path, saved[2], **given)


@pytest.mark.parametrize("given", [(OBSERVATION, {}), [[1, 2, 3], [1]], "abc", None])
def test_observations_that_are_no_array_are_named(saved, given):
    policy = qusac_jax.load_policy(saved[0])
    with pytest.raises(ValueError, match="observation must hold real numbers in rows of one leng"):
        policy(given)
