"""--config_file: the hyperparameters of another run, or some of them; flags win."""

import dataclasses
import functools
import json

import pytest

from experiments import config_file, offline, online
from experiments.training import run_flags
from qusac_jax.qusac import presets


def config_of(*arguments):
    options = online.make_flags()
    options(["program", *arguments])
    return run_flags.read_config(options), options.preset


def write(path, content):
    path.write_text(json.dumps(content))
    return f"--config_file={path}"


def test_the_config_of_a_run_comes_back_with_its_preset(tmp_path):
    config = dataclasses.replace(presets.get("mbpo", "small"), batch_size=9, target_entropy=-1.0)
    run = {"env": "pendulum", "preset": "mbpo", "config": dataclasses.asdict(config)}
    file = write(tmp_path / "config.json", run)
    assert config_of(file) == (config, "mbpo")
    changed = dataclasses.replace(config, batch_size=10)
    assert config_of(file, "--config.batch_size=10", "--preset=mbpo") == (changed, "mbpo")
    for flag in ("--size=small", "--preset=sac"):
        with pytest.raises(ValueError, match="config_file is of a run, which has every"):
            config_of(file, flag)


def test_a_run_of_before_a_field_was_there_comes_back_as_it_was(tmp_path):
    config = presets.get("explore", "small")
    fields = dataclasses.asdict(config)
    del fields["roll_out_every"], fields["dynamics"]["normalize_targets"]
    file = write(tmp_path / "config.json", {"preset": "explore", "config": fields})
    earlier = dataclasses.replace(
        config,
        roll_out_every=0,
        dynamics=dataclasses.replace(config.dynamics, normalize_targets=False),
    )
    assert config_of(file) == (earlier, "explore")
    given = config_file.read(str(tmp_path / "config.json"))
    assert (
        config_file.changed(config, given)
        == config_file.of_run(tmp_path, argument="run", remedy="leave it out")
        == earlier
    )


def test_what_is_gone_is_left_out_of_an_earlier_run_and_said_where_it_mattered(tmp_path, capsys):
    config = presets.get("explore", "small")
    fields = dataclasses.asdict(config) | {"reset_every": 0}
    fields["dynamics"]["learn_variance_bounds"] = True
    file = write(tmp_path / "config.json", {"preset": "explore", "config": fields})
    assert config_of(file) == (config, "explore")
    said = capsys.readouterr().err
    assert "dynamics.learn_variance_bounds=True is gone, it is False now" in said
    assert "reset_every" not in said
    of_run = functools.partial(config_file.of_run, argument="run", remedy="leave it out")
    with pytest.raises(ValueError, match=r"another version \('dynamics.learn_variance_bounds'\)"):
        of_run(tmp_path)
    fields["dynamics"]["learn_variance_bounds"] = False  # as runs do today
    write(tmp_path / "config.json", {"preset": "explore", "config": fields})
    assert of_run(tmp_path) == config


def test_what_a_file_of_some_fields_says_is_given_as_what_flags_say(tmp_path):
    options = online.make_flags()
    file = write(tmp_path / "some.json", {"dynamics": {"decay": 1}, "risk": 2})
    options(["program", file, "--config.gap_samples=3"])
    assert config_file.given_fields(options) == {"dynamics.decay", "risk", "gap_samples"}
    run = {"preset": "qusac", "config": dataclasses.asdict(presets.get("qusac"))}
    write(tmp_path / "some.json", run)  # a run's has them all
    assert config_file.given_fields(options) == {"gap_samples"}


def test_only_the_result_of_file_and_flags_is_checked(tmp_path):
    file = write(tmp_path / "some.json", {"critic_steps": 5})
    with pytest.raises(ValueError, match="critic_steps 5 look ahead"):
        config_of(file, "--preset=mbpo")
    config, _ = config_of(file, "--preset=mbpo", "--config.critic_data=member")
    assert config.critic_steps == 5


def test_who_gave_a_bad_value_is_blamed(tmp_path):
    file = write(tmp_path / "some.json", {"risk": 0.5})
    with pytest.raises(ValueError, match=r"^discount must lie in"):
        config_of(file, "--config.discount=2")
    with pytest.raises(ValueError, match=r"^config_file '.*some.json': discount must lie in"):
        config_of(write(tmp_path / "some.json", {"discount": 2}))


@pytest.mark.parametrize(
    "content",
    [
        {"risk": 2, "dynamics": {"hidden": [8, 8], "nll_beta": 0}},
        {"risk": 2.0, "dynamics.hidden": [8, 8], "dynamics.nll_beta": 0.0},
    ],
)
def test_some_fields_replace_those_of_the_preset(tmp_path, content):
    config, preset = config_of(write(tmp_path / "some.json", content), "--method=pombu")
    unchanged = presets.get("qusac")
    dynamics = dataclasses.replace(unchanged.dynamics, hidden=(8, 8), nll_beta=0.0)
    expected = dataclasses.replace(unchanged, method="pombu", risk=2.0, dynamics=dynamics)
    assert config == dataclasses.replace(expected, risk_schedule=None, risk_awaits_reward=False)
    assert preset == "qusac"
    assert isinstance(config.risk, float)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"risks": 1}, "'risks' is no hyperparameter .did you mean 'risk'"),
        ({"max_epochs": 1}, "did you mean 'dynamics.max_epochs'"),
        ({"dynamics": {"hiden": [8]}}, "did you mean 'dynamics.hidden'"),
        ({"dynamics": 3}, "'dynamics' is no hyperparameter"),
        ({"risk": {"a": 1}}, "'risk.a' is no hyperparameter"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 1, got 2.5"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"risk": "high"}, "risk must be finite, got 'high'"),
        ({"risk": float("nan")}, "risk must be finite, got nan"),
        ({"risk": True}, "risk must be finite, got True"),
        ({"risk": 10**400}, "risk must be finite, got 10{400}"),
        ({"dynamics": {"hidden": [True, 8]}}, "must be a tuple of positive layer sizes"),
        ({"preset": "of old", "config": {}}, "which there is not"),
        ({"preset": ["qusac"], "config": {"dynamics": {}}}, "which there is not"),
        ({"config": {"discount": 0.9}}, "is no config.json of a run.*at the top level"),
        ({"preset": "mbpo", "config": {"discount": 0.9}}, "is no config.json of a run"),
        ([1], "it is not a JSON object"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, content, message):
    file = tmp_path / "some.json"
    with pytest.raises(ValueError, match=message) as caught:
        config_of(write(file, content))
    assert str(file) in str(caught.value)


def test_a_run_of_the_other_kind_is_warned_of(tmp_path, capsys):
    run = {"preset": "qusac", "config": dataclasses.asdict(presets.get("qusac"))}
    file = write(tmp_path / "config.json", run)
    options = offline.make_flags()
    options(["program", file])
    assert run_flags.read_config(options, is_offline=True).risk == 1.0
    assert "is of an online run, and all of its" in capsys.readouterr().err
    options = online.make_flags()
    options(["program", write(tmp_path / "config.json", run | {"dataset": {"sha256": "a"}})])
    run_flags.read_config(options)
    assert "is of an offline run" in capsys.readouterr().err


def test_a_method_is_given_once():
    assert config_of("--method=pombu", "--config.method=pombu")[0].method == "pombu"
    with pytest.raises(ValueError, match=r"method is given twice: 'pombu' and .*'exact_ube'"):
        config_of("--method=pombu", "--config.method=exact_ube")


def test_a_termination_is_learned_or_not():
    options = online.make_flags()
    options(["program", "--termination=learned", "--config.dynamics.learn_termination=false"])
    with pytest.raises(ValueError, match="termination is given twice: 'learned' and"):
        run_flags.read_config(options)


@pytest.mark.parametrize("preset", ["qusac", "explore"])
def test_a_risk_that_is_given_takes_the_place_of_all_that_a_preset_says_of_it(tmp_path, preset):
    scheduled = presets.get(preset)
    constant = {"risk": 5.0, "risk_schedule": None, "risk_awaits_reward": False}
    expected = dataclasses.replace(scheduled, **constant)
    command = f"--preset={preset}"
    assert scheduled.risk_awaits_reward
    assert config_of(command, "--config.risk=5")[0] == expected
    assert config_of(command, write(tmp_path / "some.json", {"risk": 5}))[0] == expected
    run = {"preset": preset, "config": dataclasses.asdict(scheduled)}
    file = write(tmp_path / "config.json", run)
    assert config_of(file)[0] == scheduled
    assert config_of(file, "--config.risk=5")[0] == expected
    none = config_of(command, "--config.risk_schedule=none")[0]
    assert none == dataclasses.replace(expected, risk=1.0)
    other = "--config.risk_schedule=linear:1:0:5"
    begins = dataclasses.replace(expected, risk_schedule="linear:1:0:5")
    assert config_of(command, "--config.risk=5", other)[0] == begins
    assert config_of(command, other)[0] == dataclasses.replace(begins, risk=1.0)
    awaits = "--config.risk_awaits_reward=true"
    assert config_of(command, other, awaits)[0].risk_awaits_reward
    file = write(tmp_path / "some.json", {"risk": 5})
    assert config_of(command, file, other)[0].risk_schedule == "linear:1:0:5"
    with pytest.raises(ValueError, match="risk_awaits_reward holds back a risk_schedule, and"):
        config_of(command, "--config.risk=5", awaits)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reward_threshold_that_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=f"reward_threshold must be finite, got {value}; use 0"):
        config_of(f"--reward_threshold={value}")
