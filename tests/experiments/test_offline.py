"""Offline training as a person runs it, on a small dataset."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import sys
import types

import h5py
import jax
import numpy as np
import pytest

import qusac_jax
from experiments import config_file, evaluate, evaluation, memory, offline, online
from experiments.saved_run import SavedRun
from experiments.studies import frozen_data, frozen_fits
from experiments.training import handover, run_flags
from experiments.training.offline_run import OfflineRun
from qusac_jax import datasets, environments, qusac
from qusac_jax.policy import load_actor
from qusac_jax.qusac import networks, replay
from tests import tiny
from tests.run_files import metrics_rows
from tests.short_env import LIMIT
from tests.tiny import ACTION_COST, DATASET, ENV

pytestmark = pytest.mark.usefixtures("dataset")  # where ids are looked up
OFFLINE = ["offline", *tiny.OFFLINE]
ONLINE = ["online", *tiny.CONTINUED]


def train(workdir, *arguments):
    return offline.main([*OFFLINE, f"--workdir={workdir}", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    assert train(workdir) == 0
    return workdir


def test_a_run_leaves_scores_and_facts_behind(finished, dataset):
    rows = metrics_rows(finished)
    assert [(float(row["step"]), float(row["seed"])) for row in rows] == [
        (step, seed) for step in (0, 4, 8, 12) for seed in (0, 1)
    ]
    for row in rows:
        # 0 % is a return of -20, 100 % one of 5, both with the cost of actions.
        assert float(row["eval_return"]) < float(row["eval_task_return"])
        score = 100 * (float(row["eval_return"]) + 20) / 25
        assert float(row["eval_score"]) == pytest.approx(score, abs=1e-6)
        assert np.isfinite(float(row["expected_return"]))
        assert float(row["expected_std"]) > 0
    assert all(np.isfinite(float(rows[0][f"holdout_mse_{n}"])) for n in range(2))
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["dataset"]["sha256"] == dataset.sha256
    assert summary["dataset"]["num_transitions"] == dataset.num_transitions
    assert summary["dataset"]["reference"]["origin"].endswith("(this test)")
    final = 100 * (np.array(summary["final_returns"]) + 20) / 25
    np.testing.assert_allclose(summary["final_scores"], final)
    config = json.loads((finished / "config.json").read_text())
    assert config["action_cost"] == summary["dataset"]["action_cost"] == ACTION_COST
    assert "action_cost" not in config["dataset"]  # as in runs from before it was recorded
    assert summary["steps"] == 12
    np.testing.assert_array_equal(SavedRun(finished).state(12).learner.num_updates, [12, 12])
    functions = ("fit_dynamics", "roll_out", "learn", "diagnose", "values_at", "act")
    assert all(summary["compilations"][name] == 1 for name in functions)
    assert qusac_jax.load_policy(finished)(np.zeros(3)).shape == (1,)


def test_a_policy_is_scored_with_the_action_cost_of_the_data(finished, tmp_path):
    options = ["--episodes=2", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(finished), *options]) == 0
    written = json.loads((tmp_path / "step_12.json").read_text())
    returns = np.array(written["returns"])
    assert (returns < written["task_returns"]).all()
    np.testing.assert_allclose(written["scores"], 100 * (returns + 20) / 25)


def test_what_was_expected_of_episodes_stands_beside_what_came():
    returns = np.array([[1.0, 3.0], [5.0, 7.0]])
    run = types.SimpleNamespace(
        _state=None,
        _values_at=lambda state, observation: (10 * returns, 0.1 * returns),
        _dataset=types.SimpleNamespace(reference=datasets.ScoreReference(-20.0, 5.0, "test")),
    )
    episodes = evaluation.Evaluation(returns, returns + 1, 0.5 * returns, np.zeros((2, 2, 3)))
    columns = OfflineRun._episode_columns(run, episodes)  # type: ignore[arg-type]
    assert {name: column.tolist() for name, column in columns.items()} == {
        "eval_score": [88.0, 104.0],  # of returns of 2 and 6
        "eval_discounted_return": [1.0, 3.0],
        "expected_return": [20.0, 60.0],
        "expected_std": [pytest.approx(0.2), pytest.approx(0.6)],
    }


@pytest.mark.slow
def test_stopped_and_continued_equals_undisturbed(finished, tmp_path, monkeypatch, capsys):
    advance = OfflineRun._advance

    def interrupted(self):
        metrics = advance(self)
        if self.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(OfflineRun, "_advance", interrupted)
        assert train(tmp_path / "run") == 143
    assert "stopped at step 8" in capsys.readouterr().out
    assert train(tmp_path / "run") == 0
    assert "continuing at step 8" in capsys.readouterr().out
    for name in ("metrics.csv",):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.slow
def test_dynamics_of_another_run_give_the_same_run(finished, tmp_path, capsys):
    assert train(tmp_path / "run", f"--dynamics={finished}") == 0
    assert "fitting the dynamics" not in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (
        finished / "metrics.csv"
    ).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eval_every=6"], "eval_every must be a multiple of config.fit_every = 4, got 6; use"),
        (["--config.roll_out_every=2"], "roll_out_every counts steps between fits, got 2, and"),
        (["--config.updates_per_step=2"], "config.updates_per_step: offline a step is an update"),
        (["--config.replay_capacity=9"], "config.replay_capacity: D is the dataset, and as large"),
        (["--dataset="], "dataset is missing"),
        (["--dataset=shrt/random-v0"], "shrt/random-v0"),
        (["--env=cartpole_swingup", "--termination=never"], "observations"),
        (["--config.rollout_length=100000000000"], "--config.rollout_length, "),
        (["--action_cost=0.2"], "have the action cost 0.1, got 0.2; leave --action_cost out"),
        (["--action_bounds=unit"], "is a Minari dataset, which brings its own"),
        (["--action_bounds=environment", "--env="], "env is missing; pass --env"),
        (["--dynamics=nowhere"], "dynamics: 'nowhere' holds none; pass the workdir"),
        (["--preset=combo", "--config.real_ratio=1.0"], "regularizer 'combo' compares"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, capsys, arguments, message):
    assert train(tmp_path / "run", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_has_no_effect_is_said(tmp_path, capsys):
    (tmp_path / "fitted" / "dynamics").mkdir(parents=True)
    unused = ["--preset=sac", f"--dynamics={tmp_path / 'fitted'}", "--termination=never"]
    assert train(tmp_path / "run", *unused, "--memory") == 0
    said = capsys.readouterr().err
    assert "warning: dynamics has no effect" in said
    assert "warning: termination has no effect" in said
    (tmp_path / "some.json").write_text('{"updates_per_step": 3}')
    assert train(tmp_path / "run", f"--config_file={tmp_path / 'some.json'}") == 2
    assert "config.updates_per_step: offline a step is an update" in capsys.readouterr().err


def test_studies_of_what_a_run_has_met_refuse_it(finished, capsys):
    for study in (frozen_data, frozen_fits):
        assert study.main(["study", str(finished)]) == 2
        assert "learned from a dataset" in capsys.readouterr().err


@pytest.mark.slow
def test_dynamics_that_were_fitted_otherwise_are_refused(
    finished, dataset, tmp_path, capsys, monkeypatch
):
    arguments = [f"--dynamics={finished}", "--config.dynamics.patience=2"]
    assert train(tmp_path / "run", *arguments) == 2
    assert "other values (dynamics.patience: 5 there, 2 now);" in capsys.readouterr().err
    scaled = dataclasses.replace(dataset, action_high=2 * dataset.action_high)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load", lambda *args, **options: scaled)
        assert train(tmp_path / "scaled", f"--dynamics={finished}") == 2
    assert "fitted with other values (action_high: [" in capsys.readouterr().err
    assert train(tmp_path / "one", f"--dynamics={finished}", "--num_seeds=1") == 2
    said = capsys.readouterr().err
    assert "fitted with other values (seeds: [0, 1] there, [0] now)" in said
    assert "Traceback" not in said
    (tmp_path / "dynamics").mkdir()
    assert train(tmp_path / "other", f"--dynamics={tmp_path}") == 2
    assert "cannot be read (there is no complete checkpoint" in capsys.readouterr().err
    # Nothing was computed, so that the directory is free for the corrected command.
    assert train(tmp_path / "other", f"--dynamics={finished}", "--num_steps=4") == 0


@pytest.mark.slow
def test_networks_read_observations_in_units_of_the_dataset(dataset, tmp_path, capsys):
    workdir = tmp_path / "run"
    arguments = ["--preset=sac", "--num_steps=4", "--config.normalize_observations=True"]
    assert train(workdir, *arguments) == 0
    actor, _ = load_actor(workdir)
    for found, expected in zip(
        networks.statistics(actor),
        (dataset.observation.mean(0), dataset.observation.var(0)),
        strict=True,
    ):
        np.testing.assert_allclose(found, np.broadcast_to(expected, (2, 3)), rtol=1e-4, atol=1e-6)
    # Online they are taken over, and follow what comes to the dataset.
    online_run = tmp_path / "online"
    asked = [*ONLINE, f"--init_from={workdir}", "--preset=sac", f"--workdir={online_run}"]
    assert online.main(asked) == 0
    means = [networks.statistics(load_actor(path)[0])[0] for path in (workdir, online_run)]
    assert 0 < np.abs(means[1] - means[0]).max() < 0.2 * dataset.observation.std()
    capsys.readouterr()
    assert online.main([*asked, "--config.normalize_observations=False"]) == 2
    assert "has normalize_observations True, got False" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["mopo", "combo", "sac"])
def test_baselines_train(tmp_path, preset):
    assert train(tmp_path / "run", f"--preset={preset}", "--num_seeds=1", "--num_steps=4") == 0
    assert len(metrics_rows(tmp_path / "run")) == 2


def test_the_papers_sizes_fit_into_16_gb():
    # Walker2d: per transition 2 x 17 + 6 + 1 floats and a flag; D_model and D_1..D_5.
    task = qusac.Task(17, 6, environments.TERMINATIONS["walker2d"])
    config = qusac.presets.get("qusac", is_offline=True)
    needed = memory.expected(config, task, 1)
    per_transition = 4 * (2 * 17 + 6 + 1) + 1
    counters = 8  # of each buffer
    assert needed.replay == 1_000_000 * per_transition + counters
    assert needed.model_data == 3_750_000 * per_transition + counters
    assert needed.member_data == 5 * needed.model_data
    assert needed.total < 4e9


@pytest.mark.slow
def test_an_offline_agent_goes_on_online(finished, dataset, tmp_path, capsys):
    workdir = tmp_path / "online"
    arguments = [*ONLINE, f"--workdir={workdir}", f"--init_from={finished}"]
    assert online.main([*arguments, "--config.risk_schedule=linear:-1:1:100"]) == 0
    config = json.loads((workdir / "config.json").read_text())["config"]
    assert config["critic_hidden"] == [8]
    assert config["dynamics"]["normalize_inputs"] == "deviation"
    assert config["real_ratio"] == 0.5
    rows = metrics_rows(workdir)
    # D holds the dataset before the first step, and one transition more after each.
    assert [float(row["replay_size"]) for row in rows[::2]] == [
        dataset.num_transitions + step for step in (0, 4, 8)
    ]
    last, first = metrics_rows(finished)[-2:], rows[:2]
    assert [row["alpha"] for row in first] == [row["alpha"] for row in last]
    # Two steps are too few to learn from: the policy is the offline run's, for each seed.
    short = tmp_path / "short"
    few = ["--num_steps=2", "--eval_every=2", f"--workdir={short}", f"--init_from={finished}"]
    assert online.main([*ONLINE, *few]) == 0
    for seed in (0, 1):
        policies = [
            qusac_jax.load_policy(path, seed_index=seed) for path in (finished, short, workdir)
        ]
        actions = [float(policy(np.ones(3))[0]) for policy in policies]
        assert actions[0] == actions[1] != actions[2]
    capsys.readouterr()
    other = ["--num_seeds=1", f"--workdir={tmp_path / 'other'}"]
    assert online.main([*ONLINE, f"--init_from={finished}", *other]) == 2
    assert "use --seed=0 --num_seeds=2" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert online.main([*ONLINE, f"--init_from={tmp_path / 'nowhere'}"]) == 2
    assert "pass the workdir of an offline run" in capsys.readouterr().err
    other[1] = f"--workdir={tmp_path / 'third'}"
    assert online.main([*ONLINE, f"--init_from={workdir}", *other]) == 2
    assert "is no offline run" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.num_members=3", "num_members 2, got 3"),
        ("--config.dynamics.hidden=(9,)", "dynamics.hidden (8,), got (9,)"),
        ("--config.dynamics.reward_prior_scale=1", "dynamics.reward_prior_scale 0.0, got 1.0"),
        ("--termination=learned", "dynamics.learn_termination False, got True"),
    ],
)
def test_other_networks_than_those_taken_over_are_refused(finished, capsys, argument, message):
    assert online.main([*ONLINE, f"--init_from={finished}", argument]) == 2
    assert f"the offline run has {message}; leave it out" in capsys.readouterr().err


def test_rewards_in_D_are_of_one_task(finished, capsys):
    asked = [*ONLINE, f"--init_from={finished}", "--memory"]
    assert online.main([*asked, "--action_cost=0.7"]) == 0
    assert "action_cost is 0.7, but 0.1 in" in capsys.readouterr().err
    assert online.main(asked) == 0
    assert "warning" not in capsys.readouterr().err
    assert online.main([*asked, "--env=pendulum"]) == 0
    assert f"is of '{ENV}', this run of 'pendulum'; D will hold" in capsys.readouterr().err
    assert handover.action_cost(finished, ENV, None, None) == ACTION_COST


def test_a_run_that_has_begun_keeps_its_action_cost(finished, tmp_path):
    assert handover.action_cost(finished, ENV, None, str(tmp_path)) == ACTION_COST
    (tmp_path / "config.json").write_text('{"action_cost": 0.05}')
    assert handover.action_cost(finished, ENV, None, str(tmp_path)) == ACTION_COST  # not begun yet
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    assert handover.action_cost(finished, ENV, None, str(tmp_path)) == 0.05
    assert handover.action_cost(finished, ENV, 0.3, str(tmp_path)) == 0.3


def test_data_of_another_environment_are_warned_of(dataset, capsys):
    offline._tell(dataset, environments.spec(ENV))
    assert "warning" not in capsys.readouterr().err
    offline._tell(dataset, environments.spec("pendulum"))
    said = f"env is 'pendulum', but the data are of '{ENV}', and scores are against returns there"
    assert said in capsys.readouterr().err


def test_a_dataset_may_lie_elsewhere_when_a_run_is_continued(
    finished, dataset, tmp_path, monkeypatch
):
    workdir, elsewhere = tmp_path / "run", tmp_path / "minari"
    shutil.copytree(finished, workdir)
    shutil.copytree(os.environ["MINARI_DATASETS_PATH"], elsewhere)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(elsewhere))
    assert datasets.load(DATASET).path != dataset.path
    assert train(workdir) == 0
    assert json.loads((workdir / "config.json").read_text())["dataset"]["path"].startswith(
        str(elsewhere)
    )


@pytest.mark.slow
def test_what_a_run_took_over_may_be_gone_when_it_is_continued(finished, tmp_path):
    source, workdir, there = (tmp_path / name for name in ("source", "run", "online"))
    shutil.copytree(finished, source)
    assert train(workdir, f"--dynamics={source}", "--num_steps=8") == 0
    further = [*ONLINE, f"--workdir={there}", f"--init_from={source}"]
    assert online.main(further) == 0
    shutil.copytree(there, tmp_path / "kept")
    assert online.main([*further, "--num_steps=12"]) == 0
    with_source = (there / "metrics.csv").read_bytes()
    shutil.rmtree(there)
    (tmp_path / "kept").rename(there)
    shutil.rmtree(source)
    assert online.main([*further, "--num_steps=12"]) == 0
    assert (there / "metrics.csv").read_bytes() == with_source
    assert train(workdir, f"--dynamics={source}") == 0
    assert (workdir / "metrics.csv").read_bytes() == (finished / "metrics.csv").read_bytes()
    assert train(workdir) == 0
    assert json.loads((workdir / "config.json").read_text())["dynamics"] == str(source)
    shutil.rmtree(workdir / "checkpoints")
    assert train(workdir, f"--dynamics={source}") == 2  # it would have to be fitted anew


def test_an_offline_agent_goes_on_in_an_environment_of_its_sizes(finished, tmp_path, capsys):
    workdir = tmp_path / "run"
    other = ["--env=gym:MountainCarContinuous-v0", f"--workdir={workdir}"]
    assert online.main([*ONLINE, f"--init_from={finished}", *other]) == 2
    assert "has observations of 3 numbers and actions of 1, " in capsys.readouterr().err
    assert not workdir.exists()


def test_the_config_json_of_a_run_says_all_hyperparameters(finished, tmp_path):
    offline_config = config_file.of_run(finished, argument="run", remedy="")
    config = dataclasses.replace(offline_config, discount=0.9, real_ratio=0.25, warmup_steps=7)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": dataclasses.asdict(config), "preset": "qusac"}))
    found = continued(offline_config, f"--config_file={path}")
    assert (found.discount, found.real_ratio, found.warmup_steps) == (0.9, 0.25, 7)
    explore = dataclasses.asdict(qusac.presets.get("explore"))
    path.write_text(json.dumps({"config": explore, "preset": "explore"}))
    with pytest.raises(ValueError, match="has method 'upper_bound', got 'information_gain'"):
        continued(offline_config, f"--config_file={path}")


def test_a_dataset_does_not_get_code_executed(dataset, tmp_path, monkeypatch, capsys):
    (tmp_path / "module_of_a_dataset.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    env = "gym:module_of_a_dataset:Env-v0"
    data = dataclasses.replace(dataset, env=env)
    monkeypatch.setattr(datasets, "load", lambda *_, **__: data)
    arguments = [argument for argument in OFFLINE if not argument.startswith("--env=")]
    assert offline.main([*arguments, f"--workdir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert f"names '{env}', and importing that module executes it" in said
    assert f"pass --env={env}" in said
    assert "module_of_a_dataset" not in sys.modules


def test_actions_of_other_bounds_are_warned_of(dataset, capsys):
    spec = environments.spec(ENV)
    offline._check_bounds(dataset, spec)
    assert not capsys.readouterr().err
    other = spec._replace(action_low=(-4.0,), action_high=(4.0,))
    suite = dataclasses.replace(dataset, env="dmc:quadruped:walk")  # saved with [-1, 1]
    offline._check_bounds(suite, other._replace(name="dmc:quadruped:walk"))
    assert not capsys.readouterr().err
    offline._check_bounds(dataset, other)
    assert "both become [-1, 1], which is right only if" in capsys.readouterr().err


def continued(offline, *arguments):
    """The configuration of an online run that goes on with an agent of that one."""
    options = online.make_flags()
    options(["online", *arguments])
    return run_flags.read_config(options, change=functools.partial(handover.continued, offline))


def test_what_an_agent_cannot_do_can_be_switched_off():
    mbpo = qusac.presets.get("mbpo", is_offline=True)
    with pytest.raises(ValueError, match="relative_risk needs a method that propagates"):
        continued(mbpo, "--preset=explore")
    off = ["--config.relative_risk=False", "--config.critic_steps=1"]
    config = continued(mbpo, "--preset=explore", *off)
    assert config.method == "ensemble_mean"
    assert config.critic_data == "model"
    assert config.rollout_starts == "values"
    assert config.discount == mbpo.discount != qusac.presets.get("explore").discount


def test_the_replay_buffer_has_room_for_the_dataset_and_more():
    preset = qusac.presets.get("qusac", is_offline=True)
    offline = dataclasses.replace(preset, replay_capacity=70, warmup_steps=70)
    assert continued(offline).replay_capacity == 70 + qusac.Config().replay_capacity
    config = continued(offline, "--config.replay_capacity=30", "--config.discount=0.9")
    assert config.replay_capacity == 100
    assert config.discount == 0.9
    assert config.warmup_steps == 3


def outside(observation, action, next_observation):
    """When an episode of the short environment terminates."""
    del observation, action
    return abs(next_observation[..., 0]) > LIMIT


@pytest.fixture
def without_next(dataset, tmp_path):
    """The dataset as an HDF5 file that does not hold the observations after the steps."""
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = dataset.observation, dataset.action
        file["rewards"] = dataset.reward
        file["terminals"], file["timeouts"] = dataset.terminated, dataset.truncated
    return path


def test_learned_ends_need_some_to_learn_from(without_next, tmp_path, capsys):
    options = [f"--dataset={without_next}", "--termination=learned"]
    assert train(tmp_path / "run", *options) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no end to learn from" in err
    assert not (tmp_path / "run").exists()


def test_actions_of_a_file_are_read_as_the_flag_says(without_next, tmp_path, capsys):
    def bounds(*arguments):
        options = offline.make_flags()
        options(["offline", *arguments])
        return offline._action_bounds(options)

    assert bounds() is None
    assert bounds("--action_bounds=unit") == (-1.0, 1.0)
    pendulum = ["--env=gym:Pendulum-v1"]
    assert bounds("--action_bounds=environment", *pendulum) == ((-2.0,), (2.0,))
    assert train(tmp_path / "run", f"--dataset={without_next}", *pendulum) == 2
    assert "--action_bounds=environment (in Python" in capsys.readouterr().err


def test_the_action_cost_is_the_datasets_unless_it_is_not_recorded(dataset):
    unknown = dataclasses.replace(dataset, action_cost=None)
    assert offline._action_cost(None, dataset) == ACTION_COST
    assert offline._action_cost(ACTION_COST, dataset) == ACTION_COST
    assert offline._action_cost(None, unknown) is None
    assert offline._action_cost(0.2, unknown) == 0.2


def test_rows_without_a_next_observation_do_not_go_online(dataset, without_next, capsys):
    data = datasets.load(without_next)
    two_seeds = jax.tree.map(lambda x: np.stack([x, x]), replay.full(data.transitions()))
    about = {"dataset": datasets.describe(data)}
    rows = handover._known_rows(about, two_seeds, uses_model=True)
    np.testing.assert_array_equal(rows, data.next_observation_known)
    assert 0 < rows.sum() < len(rows)
    assert f"without {(~rows).sum()} of the dataset's {len(rows)}" in capsys.readouterr().out
    assert handover._known_rows(about, two_seeds, uses_model=False).all()
    about["dataset"] = datasets.describe(dataset)
    assert handover._known_rows(about, two_seeds, uses_model=True).all()
    assert handover._known_rows({}, two_seeds, uses_model=True).all()


@pytest.mark.parametrize("num_known", [0, 2])
def test_a_model_needs_transitions_that_lead_somewhere(without_next, tmp_path, capsys, num_known):
    with h5py.File(without_next, "a") as file:
        file["timeouts"][:] = False
        file["terminals"][:] = True
        file["terminals"][:num_known] = False
    given = f"--dataset={without_next}", "--termination=never"
    assert train(tmp_path / "run", *given) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"has {num_known} transitions whose next observation is known, of " in err
    assert not (tmp_path / "run").exists()
    offline._check_known(datasets.load(without_next), qusac.presets.get("sac"))


@pytest.mark.slow
def test_rows_without_a_next_observation_reach_no_model(
    without_next, tmp_path, monkeypatch, capsys
):
    fitted = []
    fit_and_keep = OfflineRun._fit_and_keep

    def noted(self, path):
        fit = self._fit

        def record(state):
            fitted.append(state.replay)
            return fit(state)

        self._fit = record
        fit_and_keep(self, path)

    monkeypatch.setattr(OfflineRun, "_fit_and_keep", noted)
    known = int(datasets.load(without_next).next_observation_known.sum())
    workdir, own = tmp_path / "offline", "--termination=tests.experiments.test_offline:outside"
    options = [f"--dataset={without_next}", own, "--num_seeds=1", "--num_steps=4"]
    assert train(workdir, *options) == 0
    said = capsys.readouterr().err
    assert "disagrees" not in said
    assert "ends of episodes could not be compared with the termination" in said
    found = json.loads((workdir / "summary.json").read_text())["termination_disagreements"]
    assert found == {"transitions": known, "missed": [0], "invented": [0]}
    (buffer,) = fitted
    assert buffer.size.tolist() == [known]
    assert not np.any(buffer.data.terminated)
    there = tmp_path / "online"
    few = ["--num_steps=2", "--eval_every=2", "--num_seeds=1", f"--workdir={there}"]
    assert online.main([*ONLINE, own, *few, f"--init_from={workdir}"]) == 0
    sizes = [float(row["replay_size"]) for row in metrics_rows(there)]
    assert sizes == [known, known + 2]
