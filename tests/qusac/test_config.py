"""Every mistake in a hyperparameter is named before anything is built."""

import dataclasses

import pytest

from qusac_jax.qusac import dynamics_network, presets
from qusac_jax.qusac.config import Config, DynamicsConfig
from qusac_jax.qusac.state import model_capacity
from qusac_jax.qusac.uncertainty import METHODS


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("method", "uper_bound", "did you mean 'upper_bound'"),
        ("discount", 1.0, r"discount must lie in \[0, 1\), got 1.0"),
        ("discount", -0.1, "discount"),
        ("num_members", 0, "num_members must be an integer of at least 1, got 0"),
        ("num_critics", 0, "num_critics"),
        ("batch_size", -1, "batch_size"),
        ("updates_per_step", 0, "updates_per_step"),
        ("actor_learning_rate", 0.0, "actor_learning_rate must be a positive finite number"),
        ("critic_learning_rate", float("nan"), "critic_learning_rate"),
        ("critic_hidden", (256, 0), "critic_hidden must be a tuple of positive layer sizes"),
        ("risk", float("inf"), "risk must be finite"),
        ("target_rate", 1.5, "target_rate"),
        ("warmup_steps", 2, "warmup_steps"),
        ("warmup_steps", 200_000, "warmup_steps must lie in"),
        ("critic_hidden", (True,), "critic_hidden must be a tuple of positive layer sizes"),
        ("clip_u", 1, "clip_u must be True or False, got 1"),
        ("batch_size", 2.0, "batch_size must be an integer"),
        ("gap_samples", 1, "gap_samples"),
        ("num_members", 1, "at least two critic groups"),
        ("real_ratio", 1.5, r"real_ratio must lie in \[0, 1\]"),
        ("penalty", "moppo", r"penalty 'moppo' is unknown \(did you mean 'mopo'\?\)"),
        ("penalty_scale", -1.0, "penalty_scale must be finite and at least 0"),
        ("regularizer", "kombo", r"regularizer 'kombo' is unknown \(did you mean 'combo'\?\)"),
        ("regularizer", "combo", "real_ratio 0.0 of batch_size 256; use .* a real_ratio such as"),
        ("regularizer_weight", float("nan"), "regularizer_weight"),
        ("roll_out_every", -1, "roll_out_every"),
    ],
)
def test_bad_value_is_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Config(), **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "holdout_every",
            1,
            "holdout_every must be an integer of at least 2 and at most 1000000000, got 1",
        ),
        ("ema_decay", 1.0, r"ema_decay must lie in \[0, 1\), got 1.0"),
        ("ema_decay", -0.5, "ema_decay"),
        ("reward_prior_scale", -1.0, "reward_prior_scale must be finite and at least 0, got -1.0"),
        ("reward_prior_scale", float("nan"), "reward_prior_scale"),
        ("reward_scale", 0.0, "reward_scale must be a positive finite number, got 0.0"),
        ("hidden", (), None),
        ("hidden", (0,), "hidden must be a tuple of positive layer sizes"),
        (
            "max_steps",
            0,
            "max_steps must be an integer of at least 1 and at most 1000000000, got 0",
        ),
        (
            "max_epochs",
            10**10,
            "max_epochs must be an integer of at least 1 and at most 1000000000, got 10000000000",
        ),
    ],
)
def test_bad_value_of_the_dynamics_is_named(field, value, message):
    if message is None:  # a linear model is one, too
        DynamicsConfig(**{field: value})
        return
    with pytest.raises(ValueError, match=message):
        DynamicsConfig(**{field: value})


def test_offline_hyperparameters_are_those_of_the_table_of_appendix_e1():
    table = {
        "risk": -1.0,
        "discount": 0.99,
        "batch_size": 512,
        "critic_hidden": (256, 256, 256),
        "actor_learning_rate": 3e-5,
        "critic_learning_rate": 3e-4,
        "real_ratio": 0.5,
        "fit_every": 1_000,
        "rollouts_per_step": 50,
        "rollout_length": 15,
        "retain_refreshes": 5,
    }
    config = dataclasses.asdict(presets.get("qusac", is_offline=True))
    assert {name: config[name] for name in table} == table


def test_a_buffer_has_room_for_as_many_refreshes_as_are_retained():
    config = dataclasses.replace(
        Config(), num_members=3, fit_every=4, rollouts_per_step=3, rollout_length=2
    )
    assert model_capacity(config) == 24
    assert model_capacity(dataclasses.replace(config, retain_refreshes=3)) == 72


@pytest.mark.parametrize("dynamics", [None, {"hidden": (8,)}])
def test_the_dynamics_have_a_configuration_of_their_own(dynamics):
    with pytest.raises(ValueError, match="dynamics must be a DynamicsConfig, got"):
        Config(dynamics=dynamics)


@pytest.mark.parametrize("method", ["pombu", "exact_ube"])
def test_methods_that_need_a_model_say_so(method):
    with pytest.raises(ValueError, match="at least two dynamics models"):
        Config(method=method, critic_data="replay")


def test_exact_ube_needs_critics_that_can_disagree():
    with pytest.raises(ValueError, match="method 'exact_ube' needs at least two critic groups"):
        Config(method="exact_ube", critic_data="model")
    Config(method="pombu", critic_data="model")


@pytest.mark.parametrize("method", ["ensemble_var", "upper_bound"])
@pytest.mark.parametrize("preset", ["mbpo", "sac"])
def test_one_group_of_critics_cannot_disagree_whatever_the_risk(preset, method):
    with pytest.raises(ValueError, match=f"method '{method}' needs at least two critic groups"):
        dataclasses.replace(presets.get(preset), method=method)


def test_defaults_are_the_paper_table():
    # Table "Hyperparameters for the DeepMind Control Suite experiments", appendix D.
    config = Config()
    assert config.replay_capacity == 10**5
    assert config.batch_size == 256
    assert config.warmup_steps == 5_000
    assert config.updates_per_step == 10
    assert config.actor_hidden == (128, 128)
    assert config.critic_hidden == (256, 256)
    assert config.actor_learning_rate == config.critic_learning_rate == 3e-4
    assert (config.num_members, config.num_critics, config.risk) == (5, 1, 1.0)
    assert (config.fit_every, config.rollouts_per_step, config.rollout_length) == (250, 400, 5)
    assert config.dynamics.hidden == (200,) * 4
    assert config.dynamics.learning_rate == 1e-3


def test_configs_are_hashable_and_comparable():
    assert hash(Config()) == hash(Config())
    assert Config() != Config(risk=-1.0)


def test_rollouts_follow_each_fit_however_seldom_others_are():
    assert Config().rollout_interval == Config(roll_out_every=251).rollout_interval == 250
    assert Config(roll_out_every=249).rollout_interval == 249
    assert presets.get("qusac").rollout_interval == 50
    assert presets.get("qusac", is_offline=True).rollout_interval == 1_000


def test_rollouts_are_as_fresh_at_the_small_sizes():
    for name in ("qusac", "mbpo", "explore", "paper", "paper_mbpo"):
        paper, small = presets.get(name), presets.get(name, "small")
        assert small.rollout_interval == paper.rollout_interval
        assert small.fit_every == 2 * paper.fit_every


def test_mbpo_deviates_as_the_paper_says():
    mbpo = presets.get("mbpo")
    assert (mbpo.num_critics, mbpo.risk, mbpo.num_groups) == (2, 0.0, 1)


def test_the_papers_presets_share_its_model_but_for_sac():
    paper, mbpo = presets.get("paper"), presets.get("paper_mbpo")
    assert paper.dynamics == mbpo.dynamics
    assert (paper.dynamics.nll_beta, paper.dynamics.ema_decay, paper.clip_u) == (0.0, 0.0, False)
    assert (mbpo.num_critics, mbpo.risk, mbpo.num_groups) == (2, 0.0, 1)
    sac = presets.get("paper_sac")
    assert sac == dataclasses.replace(presets.get("sac"), updates_per_step=10)


def test_the_papers_preset_is_the_papers_table_and_its_authors_facts():
    online = presets.get("paper")
    table = {  # appendix D.1
        "replay_capacity": 100_000,
        "batch_size": 256,
        "warmup_steps": 5_000,
        "updates_per_step": 10,
        "target_entropy": None,  # minus the action size
        "actor_hidden": (128, 128),
        "critic_hidden": (256, 256),
        "actor_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "num_members": 5,
        "fit_every": 250,
        "rollouts_per_step": 400,
        "rollout_length": 5,
        "retain_refreshes": 1,
        "num_critics": 1,
        "risk": 1.0,
        "method": "upper_bound",
    }
    # What they say of their code, and that nothing of ours is added to it.
    facts = {
        "discount": 0.99,
        "target_rate": 0.005,
        "initial_temperature": 1.0,
        "temperature_learning_rate": 3e-4,
        "critic_init_gain": 1.0,  # of their later code
        "gap_samples": 10,
        "critic_data": "member",
        "clip_u": False,
        "critic_steps": 1,
        "unet_steps": 1,
        "real_ratio": 0.0,
        "roll_out_every": 0,
        "rollout_starts": "uniform",
        "random_first_actions": 0.0,
        "normalize_observations": False,
        "risk_schedule": None,
        "relative_risk": False,
    }
    model = {
        "hidden": (200, 200, 200, 200),
        "learning_rate": 1e-3,
        "batch_size": 0,  # the agent's
        "init_scale": 2.0,
        "normalize_inputs": "deviation",
        "normalize_targets": False,
        "bootstrap": True,
        "holdout_every": 20,  # 5 %
        "stop_rule": "mean",
        "patience": 1,
        "improvement": 0.01,
        "nll_beta": 0.0,
        "ema_decay": 0.0,
        "clip_observations": False,
        "reward_prior_scale": 0.0,
    }
    values = dataclasses.asdict(online)
    assert {name: values[name] for name in table | facts} == table | facts
    assert {name: values["dynamics"][name] for name in model} == model
    assert (dynamics_network._MIN_LOG_VAR, dynamics_network._MAX_LOG_VAR) == (-10.0, 0.5)
    # 500 episodes of F = 250 and all their epochs.
    assert online.dynamics.max_epochs >= 10**6
    assert online.dynamics.max_steps >= 10**9


def test_small_sizes_draw_as_many_transitions_however_long_rollouts_are():
    drawn = {}
    for name in ("qusac", "explore"):
        config = presets.get(name, "small")
        drawn[name] = (config.rollouts_per_step * config.rollout_length, config.rollout_length)
    assert drawn == {"qusac": (500, 5), "explore": (500, 10)}


@pytest.mark.parametrize(
    ("name", "method"), [("explore", "information_gain"), ("explore_upper_bound", "upper_bound")]
)
def test_nothing_is_explored_offline(name, method):
    config = presets.get(name, is_offline=True)
    expected = presets.get("qusac", is_offline=True)
    assert config == dataclasses.replace(expected, method=method)
    assert (config.risk, config.risk_schedule) == (-1.0, None)


def test_what_rollouts_and_their_share_of_a_batch_do_needs_them():
    sac = presets.get("sac")
    with pytest.raises(ValueError, match=r"penalty 'mopo' .* critic_data 'replay' does without"):
        dataclasses.replace(sac, penalty="mopo")
    with pytest.raises(ValueError, match=r"regularizer 'combo' compares .* critic_data 'replay'"):
        dataclasses.replace(sac, regularizer="combo", real_ratio=0.5)
    with pytest.raises(ValueError, match=r"is of rollouts, and critic_data 'replay' has none"):
        dataclasses.replace(sac, rollout_starts="values")
    with pytest.raises(ValueError, match=r"real_ratio 0\.001 of batch_size 256 is no transition"):
        dataclasses.replace(presets.get("mbpo"), real_ratio=0.001)
    combo = presets.get("combo")
    for ratio in (1.0, 0.001):  # no model transition, no real one
        with pytest.raises(ValueError, match=f"real_ratio {ratio} of batch_size 256"):
            dataclasses.replace(combo, real_ratio=ratio)
    with pytest.raises(ValueError, match=r"critic_steps 5 look ahead .* critic_data 'model'"):
        Config(critic_steps=5, critic_data="model")


def test_a_unet_looks_ahead_where_there_are_steps_to_look_at():
    assert Config(unet_steps=5).unet_looks_ahead
    assert not Config(unet_steps=1).unet_looks_ahead
    assert not Config(unet_steps=5, rollout_length=1).unet_looks_ahead
    assert not Config(method="ensemble_var", unet_steps=5).unet_looks_ahead  # nothing is propagated


def test_mopo_and_combo_are_mbpo_on_half_and_half_with_one_thing_each():
    mbpo = presets.get("mbpo")
    mopo = dataclasses.replace(mbpo, real_ratio=0.5, penalty="mopo")
    assert presets.get("mopo") == mopo
    assert (mopo.penalty_scale, mopo.num_real) == (1.0, 128)
    combo = dataclasses.replace(mbpo, real_ratio=0.5, regularizer="combo")
    assert presets.get("combo") == combo


def test_models_read_and_learn_units_of_the_data_but_the_paper_s_learn_raw_ones():
    for name in ("qusac", "mbpo", "mopo", "combo", "explore", "paper", "paper_mbpo"):
        for is_offline in (False, True):
            dynamics = presets.get(name, is_offline=is_offline).dynamics
            assert dynamics.normalize_inputs != "no"
            assert dynamics.normalize_targets == (not name.startswith("paper"))


def test_unknown_preset_is_named():
    with pytest.raises(ValueError, match=r"preset 'mpbo' is unknown \(did you mean 'mbpo'"):
        presets.get("mpbo")


def test_methods_are_the_five_of_the_paper_and_two_more():
    paper = {"ensemble_mean", "ensemble_var", "upper_bound", "pombu", "exact_ube"}
    assert set(METHODS) == paper | {"disagreement", "information_gain"}
