"""Datasets from `python -m experiments.collect`: what is in them, interruptions, mistakes."""

import json
import os
import pathlib
import shutil
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import kept_policies
from experiments.collect import command, maker, recording
from experiments.inspect import command as inspect_command
from qusac_jax import datasets, environments, qusac
from qusac_jax.qusac import Transition, presets
from tests.short_env import LIMIT, MAX_STEPS
from tests.sizes import small

ENV = "gym:tests.short_env:Short-v0"
TINY = [
    f"--env={ENV}",
    "--num_steps=80",
    "--num_transitions=60",
    "--reference_episodes=12",
    "--eval_every=20",
    "--eval_episodes=2",
    "--checkpoint_every=40",
    "--config.warmup_steps=10",
    "--config.batch_size=8",
    "--config.actor_hidden=(8,)",
    "--config.critic_hidden=(8,)",
]
KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")
IDS = [f"Short-v0/{kind}-v0" for kind in KINDS]


def run(*arguments):
    return command.main(["collect", *TINY, *arguments])


def transitions(observation, following, terminated):
    """Of a one-dimensional environment; rewards count the steps."""
    count = len(observation)
    return Transition(
        np.float32(observation)[:, None],  # type: ignore[arg-type]
        np.linspace(-1, 1, count, dtype=np.float32)[:, None],  # type: ignore[arg-type]
        np.arange(count, dtype=np.float32),  # type: ignore[arg-type]
        np.float32(following)[:, None],  # type: ignore[arg-type]
        np.array(terminated, bool),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The datasets' folder and the run's, of a whole run."""
    path = tmp_path_factory.mktemp("collect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(path / "minari"))
        assert run(f"--workdir={path}/run") == 0
    return path


@pytest.fixture
def copy(made, tmp_path, monkeypatch):
    """A copy of both that a test may change."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "copy" / "minari"))
    return tmp_path / "copy"


def test_datasets_hold_whole_episodes_with_their_ends(copy):
    plan = json.loads((copy / "run" / "datasets.json").read_text())["Short-v0"]
    for name in IDS:
        data = datasets.load(name)
        is_replay = name == "Short-v0/medium-replay-v0"
        assert data.env == ENV
        assert data.observation.shape[1] == 3
        if is_replay:
            assert data.num_transitions == plan["medium_step"]
        else:
            assert 60 <= data.num_transitions < 60 + 2 * MAX_STEPS
        ends = data.terminated | data.truncated
        assert ends.sum() == data.num_episodes or is_replay
        assert ends.sum() == len(data.episode_returns)
        # Terminated is where the walk left its range, truncated where time ran out within it.
        outside = np.abs(data.next_observation[:, 0]) > LIMIT
        np.testing.assert_array_equal(data.terminated, outside)
        time = data.next_observation[:, 2]
        np.testing.assert_array_equal(data.truncated & ~outside, (time > 1.25) & ~outside)
        # Within an episode each step begins where the one before ended.
        inside = np.flatnonzero(~ends[:-1])
        np.testing.assert_array_equal(data.observation[inside + 1], data.next_observation[inside])
        np.testing.assert_allclose(data.reward, 1 - data.next_observation[:, 0] ** 2, rtol=1e-4)


def test_metadata_have_returns_and_references(copy, capsys):
    plan = json.loads((copy / "run" / "datasets.json").read_text())["Short-v0"]
    for kind, name in zip(KINDS, IDS, strict=True):
        data = datasets.load(name)
        metadata = json.loads((copy / "minari" / name / "data" / "metadata.json").read_text())
        about = metadata["qusac_jax_collect"]
        assert data.action_cost == about["action_cost"] == 0.0
        assert about["kind"] == kind
        assert about["return_episodes"] == len(data.episode_returns)
        np.testing.assert_allclose(about["return_mean"], data.episode_returns.mean(), rtol=1e-5)
        np.testing.assert_allclose(about["return_std"], data.episode_returns.std(), rtol=1e-4)
        assert (data.reference is not None) == plan["learned"]
        if data.reference is not None:
            expected = (plan["random_return"], plan["expert_return"])
            np.testing.assert_allclose(data.reference[:2], expected)


def test_medium_expert_is_half_of_each(copy):
    both, medium, expert = (
        datasets.load(f"Short-v0/{kind}-v0") for kind in ("medium-expert", "medium", "expert")
    )
    ends = np.flatnonzero(medium.terminated | medium.truncated) + 1
    half = int(ends[ends >= 30][0])
    np.testing.assert_array_equal(both.action[:half], medium.action[:half])
    rest = both.num_transitions - half
    assert 30 <= rest < 30 + MAX_STEPS
    np.testing.assert_array_equal(both.action[half:], expert.action[:rest])


def test_random_actions_are_uniform_and_medium_replay_is_what_the_run_stored(copy):
    action = datasets.load("Short-v0/random-v0").action
    assert action.min() < -0.8
    assert action.max() > 0.8
    plan = json.loads((copy / "run" / "datasets.json").read_text())["Short-v0"]
    replay = datasets.load("Short-v0/medium-replay-v0")
    env = environments.VectorEnvironment(ENV, [0])
    observation = env.reset()
    for step in range(plan["medium_step"]):
        result = env.step(replay.action[step : step + 1])
        np.testing.assert_array_equal(replay.observation[step], observation[0])
        np.testing.assert_array_equal(replay.next_observation[step], result.next_observation[0])
        assert replay.terminated[step] == result.terminated[0]
        assert replay.truncated[step] == (result.truncated[0] and not result.terminated[0])
        observation = result.observation


def test_a_second_call_refuses_before_it_trains(copy, capsys):
    before = sorted(p for p in copy.rglob("*"))
    assert run(f"--workdir={copy}/run") == 2
    assert run(f"--workdir={copy}/other") == 2
    err = capsys.readouterr().err
    assert err.count("Short-v0/random-v0") >= 2
    assert "--namespace" in err
    assert sorted(p for p in copy.rglob("*")) == before
    assert run(f"--workdir={copy}/other", "--exist_ok") == 2  # of another run
    assert run(f"--workdir={copy}/run", "--exist_ok") == 0
    out = capsys.readouterr().out
    assert "making" not in out
    assert "Short-v0/random-v0" in out
    assert run(f"--workdir={copy}/run", "--namespace=mine") == 0  # trains nothing anew
    out = capsys.readouterr().out
    assert "continuing at step 80" in out
    np.testing.assert_array_equal(
        datasets.load("mine/Short-v0/expert-v0").action, datasets.load(IDS[-1]).action
    )


def test_interrupted_writing_is_completed(copy, capsys):
    before = {name: datasets.load(name) for name in IDS}
    kept = {name: before[name].sha256 for name in IDS[:2]}
    # As after a hard kill while the third was written; another run was killed likewise.
    token = json.loads((copy / "run" / "datasets.json").read_text())["Short-v0"]["token"]
    for name in IDS[2:]:
        shutil.rmtree(copy / "minari" / name)
    folder = copy / "minari" / "Short-v0"
    own, other = (folder / f".medium-replay-v0.{word}" for word in (token, "other"))
    for left in (own, other):
        (left / "data").mkdir(parents=True)
        (left / "data" / "metadata.json").write_text('{"total_ep')
    assert run(f"--workdir={copy}/run") == 0
    out = capsys.readouterr().out
    assert [name for name in IDS if f"making {name}" in out] == IDS[2:]
    for name in IDS:
        again = datasets.load(name)
        np.testing.assert_array_equal(again.action, before[name].action)
        np.testing.assert_array_equal(again.next_observation, before[name].next_observation)
        assert again.sha256 == kept.get(name, again.sha256)
    assert not own.exists()
    assert other.exists()


def test_a_run_that_was_killed_before_its_table_shows_it(copy, capsys):
    path = copy / "run" / "datasets.json"
    plans = json.loads(path.read_text())
    assert plans["Short-v0"].pop("finished")
    path.write_text(json.dumps(plans))
    assert run(f"--workdir={copy}/run") == 0
    out = capsys.readouterr().out
    assert "making" not in out
    assert all(name in out for name in IDS)


@pytest.mark.parametrize("learned", [False, True])
def test_the_references_decide_on_medium(copy, monkeypatch, capsys, learned):
    random, expert = np.arange(12.0) - 20, np.arange(12.0) - (0 if learned else 20)
    found = {"random reference": random, "expert reference": expert}
    monkeypatch.setattr(
        maker.DatasetMaker, "_reference", lambda self, stream, policy: found[stream]
    )
    steps, returns = np.array([0, 20, 40, 60, 80]), np.array([9.0, -9.0, -7.0, 3.0, 1.0])
    monkeypatch.setattr(command.CollectRun, "evaluations", lambda self: (steps, returns))
    assert run(f"--workdir={copy}/run", "--namespace=set") == 0
    out = capsys.readouterr().out
    medium = datasets.load("set/Short-v0/medium-v0")
    # Either way step 40: the first trained policy above -14.5 + 20 / 3, or that half way.
    assert datasets.load("set/Short-v0/medium-replay-v0").num_transitions == 40
    if learned:
        assert medium.reference is not None
        assert medium.reference[:2] == (-14.5, 5.5)
        assert "the first to reach -7.8" in out
    else:
        assert medium.reference is None
        assert "not clearly better than random" in out


@pytest.fixture
def made_by():
    """What makes datasets with an action cost of 0.5, of a policy that has learned nothing."""
    spec, config = environments.spec(ENV, 0.5), small(presets.get("sac"))
    actor = qusac.init(jax.random.key(0), config=config, task=spec.task("never")).actor
    training = types.SimpleNamespace(
        step=80,
        actor=lambda step: actor,
        evaluations=lambda: (np.array([0, 40, 80]), np.array([-30.0, 0.0, 0.0])),
    )
    return maker.DatasetMaker(ENV, spec, config, 0, training, None, lambda: None)  # type: ignore[arg-type]


def test_rewards_have_the_action_cost_that_is_noted(made_by):
    env = made_by._environment("random", 2)
    env.reset()
    result = env.step(np.ones((2, 1)))
    np.testing.assert_allclose(result.task_reward - result.reward, 0.5, rtol=1e-5)


@pytest.mark.parametrize(("gain", "learned"), [(2.0, False), (4.0, True)])
def test_the_expert_acts_without_noise_and_has_to_be_clearly_better(
    made_by, monkeypatch, gain, learned
):
    # Twelve returns with a variance of 13 each: two errors of the difference are 2.94.
    returns = {"random reference": np.arange(12.0), "expert reference": np.arange(12.0) + gain}
    policies = {}

    def reference(self, stream, policy):
        policies[stream] = policy
        return returns[stream]

    monkeypatch.setattr(maker.DatasetMaker, "_reference", reference)
    assert made_by._decide()["learned"] == learned
    first, again = (policies["expert reference"](jnp.ones((1, 3))) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_other_peoples_folders_stay(copy, capsys):
    shutil.rmtree(copy / "minari" / IDS[4])
    (copy / "minari" / IDS[4]).mkdir()
    (copy / "minari" / IDS[4] / "thesis.txt").write_text("precious")
    assert run(f"--workdir={copy}/run") == 2
    assert IDS[4] in capsys.readouterr().err
    assert (copy / "minari" / IDS[4] / "thesis.txt").read_text() == "precious"


def test_what_another_program_is_writing_stays(copy, capsys):
    path = copy / "minari" / IDS[4] / "data" / "metadata.json"
    text = json.dumps({"dataset_id": IDS[4], "total_episodes": 0})
    path.write_text(text)
    assert run(f"--workdir={copy}/run") == 2
    assert IDS[4] in capsys.readouterr().err
    assert path.read_text() == text


def test_datasets_made_otherwise_are_not_mixed(copy, capsys):
    shutil.rmtree(copy / "minari" / IDS[4])
    assert run(f"--workdir={copy}/run", "--num_transitions=70") == 2
    assert "num_transitions: 60 there, 70 now" in capsys.readouterr().err


def test_the_training_is_not_made_longer(copy, capsys):
    shutil.rmtree(copy / "minari" / IDS[4])
    assert run(f"--workdir={copy}/run", "--num_steps=100", "--namespace=other") == 2
    assert "num_steps is 100, but the run in" in capsys.readouterr().err
    assert json.loads((copy / "run" / "config.json").read_text())["num_steps"] == 80


@pytest.mark.slow
@pytest.mark.parametrize("when", ["training", "writing"])
def test_a_signal_stops_and_the_same_command_continues(made, tmp_path, monkeypatch, capsys, when):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with monkeypatch.context() as patch:
        if when == "training":
            target, name = command.CollectRun, "_evaluate"
        else:
            target, name = maker.DatasetMaker, "_save"
        original, calls = getattr(target, name), []

        def interrupted(self, *arguments):
            original(self, *arguments)
            calls.append(name)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(target, name, interrupted)
        assert run(f"--workdir={tmp_path}/run") == 128 + signal.SIGTERM
    assert f"--workdir={tmp_path}/run" in capsys.readouterr().out
    assert [datasets.exists(name) for name in IDS] == (
        [False] * 5 if when == "training" else [True] * 3 + [False] * 2
    )
    assert run(f"--workdir={tmp_path}/run") == 0
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "minari"))
    expected = {name: datasets.load(name).action for name in IDS}
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    for name in IDS:
        np.testing.assert_array_equal(datasets.load(name).action, expected[name])


def test_a_damaged_policy_is_an_error(copy, capsys):
    shutil.rmtree(copy / "minari" / IDS[4])
    path = copy / "run" / "policies" / "80.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    assert run(f"--workdir={copy}/run") == 2
    assert "80.npz cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env=gym:Nothing-v9"], ["gym:Nothing-v9"]),
        (["--env=functional:tests.pendulum:Pendulum"], ["stepped on the device", "gym:"]),
        (["--num_transitions=12"], ["num_transitions is 12", "13 steps"]),
        (["--config.replay_capacity=79"], ["replay_capacity is 79", "80"]),
        (["--config.warmup_steps=80"], ["warmup_steps is 80", "num_steps"]),
        (["--config.critic_data=member"], ["critic_data", "SAC"]),
        (["--name=a:b"], ["a:b", "no Minari id"]),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert run(f"--workdir={tmp_path}/run", *arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_flags_that_no_picture_reads_are_named(made, tmp_path, capsys):
    arguments = [f"{made}/run", "--cells=4", "--rollout_length=5", f"--output={tmp_path}"]
    assert inspect_command.main(["inspect", *arguments]) == 0
    warnings = capsys.readouterr().err
    assert "rollout_length has no effect on the pictures of this run" in warnings
    assert "cells" not in warnings
    assert (tmp_path / "maps.png").exists()
    assert not (tmp_path / "rollouts.png").exists()


def test_sizes_of_another_run_leave_no_room_for_size(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    config = f"--config_file={made}/run/config.json"
    assert run(f"--workdir={tmp_path}/run", "--size=small", config) == 2
    assert "size is 'small', but config_file is of a run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "minari"))
    assert run(f"--workdir={tmp_path}/run") == 2
    assert "MINARI_DATASETS_PATH" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("MINARI_DATASETS_PATH", "/proc/minari")  # also where root may write all
    assert run(f"--workdir={tmp_path}/run") == 2
    assert "'/proc/minari" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_names_of_datasets():
    def name(*arguments):
        options = command.make_flags()
        options(["collect", *arguments])
        return command._dataset_name(options)

    assert name("--env=gym:Pendulum-v1") == "Pendulum-v1"
    assert name(f"--env={ENV}") == "Short-v0"
    assert name("--env=dmc:cartpole:swingup") == "cartpole-swingup"
    assert name("--env=reacher_hard:sincos") == "reacher_hard-sincos"
    assert name("--env=pendulum", "--namespace=mine") == "mine/pendulum"
    assert name("--env=pendulum", "--name=x2") == "x2"


def test_a_buffer_is_cut_where_observations_jump():
    #     terminated | cut by time  | unfinished
    data = transitions([0, 1, 5, 6, 7, 9], [1, 2, 6, 7, 8, 10], [0, 1, 0, 0, 0, 0])
    first, second, third = recording.from_buffer(data, 1000)
    np.testing.assert_array_equal(first.observation[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(second.observation[:, 0], [5, 6, 7, 8])
    np.testing.assert_array_equal(third.observation[:, 0], [9, 10])
    np.testing.assert_array_equal(first.terminated, [False, True])
    np.testing.assert_array_equal(second.truncated, [False, False, True])
    assert not first.truncated.any()
    assert not second.terminated.any()
    assert not (third.terminated | third.truncated).any()
    np.testing.assert_array_equal(second.reward, [2, 3, 4])
    np.testing.assert_array_equal(recording.returns([first, second, third]), [1, 9])


def test_a_buffer_is_cut_at_the_time_limit_and_at_a_termination_without_a_jump():
    data = transitions([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0])
    lengths = [len(e.reward) for e in recording.from_buffer(data, 3)]
    assert lengths == [3, 1, 1]
    ends = [(e.terminated[-1], e.truncated[-1]) for e in recording.from_buffer(data, 3)]
    assert ends == [(False, True), (True, False), (False, False)]
    assert [len(e.reward) for e in recording.from_buffer(data, 4)] == [4, 1]
    empty = Transition(*(x[:0] for x in data))
    with pytest.raises(ValueError, match="none"):
        recording.from_buffer(empty, 3)


def test_collecting_takes_episodes_in_the_order_in_which_they_begin():
    env = environments.VectorEnvironment(ENV, [3, 4, 5])
    rng = np.random.default_rng(0)
    taken: list[np.ndarray] = []

    def policy(observation):
        taken.append(observation[:, 0].copy())
        return rng.uniform(-1, 1, (3, 1))

    episodes = recording.collect(env, policy, 40)
    lengths = [len(e.reward) for e in episodes]
    assert sum(lengths) >= 40 > sum(lengths[:-1])
    # The first three began at once, each in its own copy, whatever their lengths.
    np.testing.assert_array_equal([e.observation[0, 0] for e in episodes[:3]], taken[0])
    begins = [
        next(t for t, row in enumerate(taken) if e.observation[0, 0] in row) for e in episodes
    ]
    assert begins == sorted(begins)
    assert all(e.terminated[-1] or e.truncated[-1] for e in episodes)
    assert recording.first_transitions(episodes, 1) == episodes[:1]
    assert len(recording.first_transitions(episodes, lengths[0] + 1)) == 2
    assert len(recording.first_transitions(episodes, 1000)) == len(episodes)


def test_the_medium_policy_is_the_first_to_pass_once_something_is_learned():
    steps, returns = np.array([0, 10, 20, 30]), np.array([5.0, 1.0, 2.0, 3.0])
    assert recording.first_to_pass(steps, returns, 2.0, after=10) == 20
    assert recording.first_to_pass(steps, returns, 1.0, after=10) == 10
    assert recording.first_to_pass(steps, returns, 4.0, after=10) is None


def test_arrays_come_back_or_are_refused(tmp_path: pathlib.Path):
    tree = {"params": {"kernel": np.eye(3, dtype=np.float32), "bias": np.arange(3)}}
    kept_policies.save(tmp_path, 7, tree)
    assert kept_policies.steps(tmp_path) == [7]
    again = kept_policies.load(tmp_path, 7, tree)
    np.testing.assert_array_equal(again["params"]["kernel"], np.eye(3))
    assert [p.name for p in tmp_path.rglob("*.*")] == ["7.npz"]
    with pytest.raises(ValueError, match="shapes"):
        kept_policies.load(tmp_path, 7, {"params": {"kernel": np.eye(2), "bias": np.arange(3)}})
    with pytest.raises(ValueError, match=r"7.npz cannot be read"):
        kept_policies.load(tmp_path, 7, {"other": np.eye(2)})


def test_no_two_streams_or_seeds_share_their_numbers(made_by):
    drawn = [tuple(made_by._sequence(name).generate_state(2)) for name in maker._STREAMS]
    made_by._seed += 1
    drawn += [tuple(made_by._sequence(name).generate_state(2)) for name in maker._STREAMS]
    assert len(set(drawn)) == 10


def test_medium_is_the_final_policy_where_no_evaluation_was_good_enough(made_by, monkeypatch):
    found = {"random reference": np.arange(12.0) + 30, "expert reference": np.arange(12.0) + 90}
    monkeypatch.setattr(
        maker.DatasetMaker, "_reference", lambda self, stream, policy: found[stream]
    )
    plan = made_by._decide()  # of returns of 0 at most
    assert (plan["learned"], plan["medium_step"], plan["medium_passed"]) == (True, 80, False)
    said = maker._about_medium(plan | {"num_steps": 80})
    assert "no evaluation reached 55.5, a third of the way" in said


def test_what_is_not_said_of_a_collection_follows_its_steps():
    def asked(*arguments):
        options = command.make_flags()
        options(["collect", f"--env={ENV}", *arguments])
        config = command._config(options, 2_000)
        return config, command._schedule(options, environments.spec(ENV), 2_000)

    config, schedule = asked("--size=small")
    assert config.warmup_steps == 200
    assert (schedule["eval_every"], schedule["checkpoint_every"]) == (100, 100)
    _, schedule = asked("--size=small", "--eval_every=500")
    assert schedule["checkpoint_every"] == 500


def test_descriptions_name_the_policies():
    plan = {"medium_step": 40, "num_steps": 80}
    told = {kind: maker.describe(kind, plan) for kind in maker.KINDS}
    assert told["medium"] == "actions drawn from SAC's policy after 40 of 80 steps"
    assert told["medium-replay"] == "all that SAC saw in its first 40 steps"
    assert told["expert"] == "actions drawn from SAC's policy after all 80 steps"
