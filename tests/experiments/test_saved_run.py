"""A finished run looked at again: returns, final returns, events, pictures."""

import dataclasses
import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qusac_jax
from experiments import evaluate, files, online, run_reader
from experiments.inspect import command, fans, state_maps
from experiments.saved_run import SavedRun
from qusac_jax import datasets, environments
from qusac_jax.qusac import model, presets
from tests import events
from tests.run_files import change_config
from tests.tiny import ENV, ONLINE

STEPS = [40, 60, 80]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two seeds with three checkpoints."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    more = ["--checkpoint_every=20", "--keep_checkpoints=3", "--action_cost=0.1"]
    assert online.main(["online", *ONLINE, *more, f"--workdir={workdir}"]) == 0
    return workdir


def returns_by_hand(policy, seed):
    """Of one episode with the mean action, with and without the cost of 0.1 a²."""
    env = environments.make(ENV, seed=seed)
    observation, total, cost, is_over = env.reset()[0], 0.0, 0.0, False
    while not is_over:
        action = np.asarray(policy(observation))
        observation, reward, terminated, truncated, _ = env.step(action)
        total, cost = total + reward, cost + 0.1 * float(np.sum(action**2))
        is_over = terminated or truncated
    return total - cost, total


def test_evaluate_gives_the_returns_of_its_episodes(finished, tmp_path, capsys):
    arguments = ["--episodes=3", "--seed=5", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(finished), *arguments]) == 0
    out = capsys.readouterr().out
    written = json.loads((tmp_path / "step_80.json").read_text())
    for i in range(2):
        policy = qusac_jax.load_policy(finished, seed_index=i)
        expected = np.transpose([returns_by_hand(policy, 5 + e) for e in range(3)])
        np.testing.assert_allclose(written["returns"][i], expected[0], atol=1e-4)
        np.testing.assert_allclose(written["task_returns"][i], expected[1], atol=1e-4)
        # 4.3027 is the 97.5 % quantile of Student's t with two degrees of freedom.
        half = 4.3027 * np.std(expected[0], ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(written["mean_return_half_interval"][i], half, rtol=1e-3)
        assert f"| {i} | {expected[0].mean():.1f} ± {half:.1f} |" in out
    assert "| mean of seeds |" in out
    assert evaluate.main(["evaluate", str(finished), *arguments, "--seed_index=1"]) == 0
    alone = json.loads((tmp_path / "step_80_seed_1.json").read_text())
    np.testing.assert_allclose(alone["returns"], written["returns"][1:], atol=1e-4)


def test_the_interval_of_a_run_is_that_of_the_means_of_its_seeds():
    returns = np.array([[1.0, 3.0], [5.0, 7.0]])
    scores = evaluate.Scores("run", ENV, 80, [3, 4], 0, False, returns, returns + 10, None)
    # 12.7062 is Student's quantile with one degree of freedom: for 1 and 3, and for 2 and 6.
    assert evaluate.table(scores).splitlines()[-3:] == [
        "| 3 | 2.0 ± 12.7 | 12.0 ± 12.7 | 1.0 | 3.0 |",
        "| 4 | 6.0 ± 12.7 | 16.0 ± 12.7 | 5.0 | 7.0 |",
        "| mean of seeds | 4.0 ± 25.4 | 14.0 ± 25.4 | 1.0 | 7.0 |",
    ]


def test_every_drawn_action_has_a_key_of_its_own():
    def keys_of(run_seeds, first):
        taken = []
        policy = evaluate._sampled(lambda _, keys: taken.append(keys), run_seeds, first)
        for _ in range(3):
            policy(None)
        return np.asarray(jax.random.key_data(jnp.stack(taken)))

    both, second, later = keys_of([4, 5], 0), keys_of([5], 0), keys_of([4], 25)
    np.testing.assert_array_equal(both[:, 1:], second)  # the seed of the run decides
    every = np.concatenate([both, later], axis=1).reshape(9, -1)
    assert len(np.unique(every, axis=0)) == 9


def test_evaluate_draws_actions(finished, tmp_path, capsys):
    saved = SavedRun(finished)
    step, actor = saved.actor()
    mean = evaluate.score(saved, step, actor, [0, 1], 40, 0)
    drawn = evaluate.score(saved, step, actor, [0, 1], 40, 0, is_sampled=True)
    # The cost of a drawn action has its variance more, of which a policy that has hardly learned
    # has much.
    cost = lambda scores: (scores.task_returns - scores.returns).mean(1)
    assert (cost(drawn) > cost(mean) + 0.01).all()
    arguments = ["--episodes=40", "--sampled", "--seed=0", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(finished), *arguments]) == 0
    assert "40 episodes per seed with sampled actions, mean" in capsys.readouterr().out
    written = json.loads((tmp_path / "step_80_sampled.json").read_text())
    assert written["is_sampled"]
    np.testing.assert_array_equal(written["returns"], drawn.returns)  # the same keys


def test_more_episodes_than_copies_begin_with_the_same_ones(finished, monkeypatch):
    saved = SavedRun(finished)
    step, actor = saved.actor()
    few = evaluate.score(saved, step, actor, [0, 1], 2, 0)
    monkeypatch.setattr(evaluate, "_MOST_COPIES", 2)
    many = evaluate.score(saved, step, actor, [0, 1], 3, 0)
    assert many.returns.shape == (2, 3)
    np.testing.assert_array_equal(many.returns[:, :2], few.returns)
    # As many at once, or rounding differs.
    next_two = evaluate.score(saved, step, actor, [0, 1], 2, 2)
    np.testing.assert_array_equal(many.returns[:, 2:], next_two.returns[:, :1])
    # Drawn actions are those of the run's seed, and others in each round.
    asked = []
    monkeypatch.setattr(evaluate, "_sampled", lambda act, *keys: asked.append(keys) or act)
    second = jax.tree.map(lambda x: x[1:], actor)
    evaluate.score(saved, step, second, [1], 3, 5, is_sampled=True)
    assert asked == [([1], 5), ([1], 7)]


def test_policies_of_checkpoints(finished, tmp_path):
    saved = SavedRun(finished)
    assert saved.checkpoints() == STEPS
    step, final = saved.actor()
    assert step == 80
    run = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(run / "policy")
    restored = SavedRun(run).actor()[1]
    jax.tree.map(np.testing.assert_array_equal, restored, final)
    differs = jax.tree.map(lambda x, y: (x != y).any(), saved.actor(40)[1], final)
    assert any(jax.tree.leaves(differs))
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="neither a checkpoint nor a policy"):
        SavedRun(run).actor()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "has no config.json"),
        ("{", "cannot be read"),
        ('{"env": "deep_sea", "num_episodes": 3}', "is a tabular one"),
        ('{"env": "pendulum", "preset": "sac"}', "has no method, seed, num_seeds, config"),
        (
            '{"env": "pendulum", "preset": "sac", "method": "ensemble_mean", "seed": 0, '
            '"num_seeds": 1, "config": {}}',
            "is of another version",
        ),
        (
            '{"env": "pendulum", "preset": "sac", "method": "ensemble_mean", "seed": "a", '
            '"num_seeds": 1, "config": {}}',
            "seed in config.json is 'a', which is no seed",
        ),
        (
            '{"env": ["pendulum"], "preset": "sac", "method": "ensemble_mean", "seed": 0, '
            '"num_seeds": 1, "config": {}}',
            "env in config.json is ['pendulum'], which is no env",
        ),
        (
            '{"env": "pendulum", "preset": "sac", "method": "ensemble_mean", "seed": 0, '
            '"num_seeds": 1, "config": {}, "dataset": "a"}',
            "dataset in config.json is 'a', which is no dataset",
        ),
        (
            '{"env": "pendulum", "preset": "sac", "method": "ensemble_mean", "seed": 0, '
            '"num_seeds": 1, "config": {"dynamics": {"normalize_inputs": true}}}',
            "is of another version (normalize_inputs True is unknown",
        ),
        ('{"env": "seven_room", "inspect_episodes": [1]}', "is a tabular one"),
        (
            '{"env": "pendulum"}',
            "has no method, preset, seed, num_seeds, config in config.json;",
        ),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, capsys, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    for program in (evaluate, command):
        assert program.main(["program", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


def test_what_a_run_does_not_have_is_refused(finished, tmp_path, capsys):
    output = f"--output={tmp_path}"
    for program, argument, message in (
        (evaluate, "--step=30", "step must be one of [40, 60, 80]"),
        (evaluate, "--seed_index=2", "seed_index must lie in [0, 2)"),
        (command, "--steps=20,30", "steps must be some of [40, 60, 80]"),
        (command, "--seed_index=-1", "seed_index must lie in [0, 2)"),
    ):
        assert program.main(["program", str(finished), argument, output]) == 2
        assert message in capsys.readouterr().err
    assert evaluate.main(["program", str(finished), str(finished)]) == 2
    assert "run must be one workdir, got 2" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"env": "gym:MountainCarContinuous-v0"}, {"num_seeds": 3}])
def test_a_policy_of_other_sizes_than_the_run_s_is_told(finished, tmp_path, capsys, change):
    run = change_config(shutil.copytree(finished, tmp_path / "run"), **change)
    assert evaluate.main(["evaluate", str(run), "--episodes=1"]) == 2
    assert "its policy is of other sizes or seeds than config.json" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_told(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    largest = max((run / "checkpoints" / "40").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert evaluate.main(["evaluate", str(run), "--step=40"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_there_is_one_final_return(finished):
    summary = json.loads((finished / "summary.json").read_text())
    columns = files.read_columns(
        finished / "metrics.csv", ("step", "eval_return", "eval_task_return")
    )
    last = columns["step"] == 80
    assert summary["final_returns"] == columns["eval_return"][last].tolist()
    assert summary["final_task_returns"] == columns["eval_task_return"][last].tolist()
    for axes in ({}, {"y": "train_return"}, {"x": "rewarded_steps", "smooth": 2}):
        curves = run_reader.read_runs([finished], **axes)
        assert [curve.final_return for curve in curves] == summary["final_returns"]
        assert [curve.final_step for curve in curves] == [80, 80]


def test_events_have_sections_and_a_writer_for_each_seed(finished):
    columns = files.read_columns(finished / "metrics.csv", ("seed", "eval_return", "critic_loss"))
    for seed in (0, 1):
        written = events.read(finished / "tensorboard" / f"seed_{seed}")
        scalars, plugins = {}, set()
        for event in written:
            for value in event.summary.value:
                plugins.add(value.metadata.plugin_data.plugin_name)
                if value.WhichOneof("value") == "simple_value":
                    scalars.setdefault(value.tag, []).append(value.simple_value)
        for tag, column in (("eval/return", "eval_return"), ("loss/critic", "critic_loss")):
            expected = columns[column][columns["seed"] == seed]
            expected = expected[np.isfinite(expected)]
            np.testing.assert_allclose(scalars[tag], expected, rtol=1e-6)
        assert {"uncertainty/mean_sqrt_u", "value/mean_q", "model/holdout_mse_1"} <= set(scalars)
        assert not [tag for tag in scalars if tag.startswith("other/")]
        assert ("timing/steps_per_second" in scalars) == (seed == 0)
        assert "hparams" in plugins


@pytest.mark.slow
def test_inspect_draws_both_pictures(finished, tmp_path):
    assert command.main(["inspect", str(finished), "--cells=8", f"--output={tmp_path}"]) == 0
    for name in ("maps.png", "rollouts.png"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.slow
def test_inspect_leaves_out_what_a_run_has_removed_meanwhile(
    finished, tmp_path, monkeypatch, capsys
):
    there = SavedRun(finished).checkpoints()
    assert len(there) > 1
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    read = SavedRun.agent

    def agent(self, step):
        shutil.rmtree(copy / "checkpoints" / str(there[0]), ignore_errors=True)
        return read(self, step)

    monkeypatch.setattr(SavedRun, "agent", agent)
    assert command.main(["inspect", str(copy), "--cells=8", f"--output={tmp_path}"]) == 0
    assert f"checkpoint {there[0]} was removed by the run" in capsys.readouterr().err
    assert (tmp_path / "maps.png").stat().st_size > 10_000


def test_scoring_a_policy_asks_no_termination(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    saved = SavedRun(change_config(run, termination="no_module:function"))
    for step in (40, 80):
        assert saved.actor(step)[0] == step
    with pytest.raises(ValueError, match="no_module"):
        saved.agent(80)


def test_an_agent_is_its_state_without_what_models_generated(finished):
    saved = SavedRun(finished)
    state, agent = saved.state(80), saved.agent(80)
    assert agent.model_data is agent.member_data is agent.key is None
    wanted = state._replace(model_data=None, member_data=None, key=None)
    chex.assert_trees_all_equal(agent, wanted)
    step, actor = saved.actor(40)
    assert step == 40
    chex.assert_trees_all_equal(actor, jax.tree.map(np.asarray, saved.state(40).actor))


def test_planes_of_observations():
    rng = np.random.default_rng(0)
    angle, velocity = rng.uniform(-3, 3, 50), rng.normal(0, 4, 50)
    pendulum = np.stack([np.cos(angle), np.sin(angle), velocity], 1)
    plane = state_maps.plane_of(pendulum)
    assert plane.names == ("angle", "velocity")
    np.testing.assert_allclose(plane.project(pendulum), np.stack([angle, velocity], 1), atol=1e-9)
    np.testing.assert_allclose(plane.observe(plane.project(pendulum)), pendulum, atol=1e-9)
    hanging = np.array([[-1, 0, 0], [-1, 1e-8, 0.1], [-1, -1e-8, -0.1]], np.float32)
    assert (np.abs(plane.project(hanging)[:, 0]) <= plane.high[0]).all()
    other = rng.normal(size=(51, 3))
    plane = state_maps.plane_of(other)
    np.testing.assert_array_equal(plane.project(other), other[:, :2])
    assert set(plane.observe(other[:, :2])[:, 2]) == {np.median(other[:, 2])}
    assert (plane.low < other[:, :2].min(0)).all()
    assert (plane.high > other[:, :2].max(0)).all()
    assert state_maps.plane_of(other[:, :1]).observe(np.ones((2, 2))).shape == (2, 1)
    assert state_maps.plane_of(np.zeros((5, 4))) is None


def test_maps_are_the_values_at_the_cells(finished):
    saved = SavedRun(finished)
    state = jax.tree.map(lambda x: x[1], saved.state(40))
    data = state_maps.data_of(state)
    assert len(data) == 40
    plane = state_maps.plane_of(data)
    both = {"config": saved.config, "task": saved.task}
    maps = state_maps.maps_of(state, plane, **both, num_cells=4)
    assert maps.visits.sum() == 40
    # The cell in the second row from below and the last column, as `imshow` draws it.
    size = (plane.high - plane.low) / 4
    point = plane.low + size * [3.5, 1.5]
    inside = np.all(np.abs(data[:, :2] - point) < size / 2, axis=1)
    assert maps.visits[1, 3] == inside.sum()
    q, std = qusac_jax.qusac.diagnostics.values_at(
        state, jnp.asarray(plane.observe(point[None]), jnp.float32), **both
    )
    np.testing.assert_allclose([maps.q[1, 3], maps.std[1, 3]], [q[0], std[0]], rtol=1e-4)


def test_fans_follow_each_member(finished):
    saved = SavedRun(finished)
    state = jax.tree.map(lambda x: x[0], saved.state(80))
    both = {"config": saved.config, "task": saved.task}
    rng = np.random.default_rng(0)
    trajectory = fans.Trajectory(
        rng.normal(size=(6, 3)).astype(np.float32),
        rng.uniform(-1, 1, (5, 1)).astype(np.float32),
        np.zeros(5),
    )
    fan = fans.roll_out(state.dynamics, trajectory, 3, **both)
    assert fan.observation.shape == (2, 4, 2, 3)
    assert fan.reward.shape == (2, 3, 2)
    for member in range(2):
        observation = trajectory.observation[3]
        for step in range(2):  # of the second rollout, whose third is after the end
            np.testing.assert_allclose(fan.observation[1, step, member], observation, rtol=1e-4)
            mean, _ = model.predict(
                state.dynamics, observation[None], trajectory.action[None, 3 + step], **both
            )
            observation = mean[member, 0, :-1]
            np.testing.assert_allclose(fan.reward[1, step, member], mean[member, 0, -1], rtol=1e-4)
        np.testing.assert_allclose(fan.observation[1, 2, member], observation, rtol=1e-4)
    assert np.isnan(fan.observation[1, 3]).all()
    assert np.isnan(fan.reward[1, 2]).all()
    assert np.isfinite(fan.observation[0]).all()


def test_evaluating_does_not_need_the_module_of_the_termination(finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    change_config(path, termination="gone_module:ends")
    arguments = ["--episodes=2", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(path), *arguments]) == 0


def test_seeds_of_a_run_are_those_from_its_first_on(tmp_path):
    config = presets.get("sac", "small")
    about = {"env": ENV, "method": config.method, "preset": "sac"}
    about |= {"seed": 3, "num_seeds": 2, "config": dataclasses.asdict(config)}
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert SavedRun(tmp_path).seeds == [3, 4]


def test_files_are_named_after_seeds_and_one_episode_has_no_interval(tiny_run, tmp_path, capsys):
    run = change_config(shutil.copytree(tiny_run, tmp_path / "run"), seed=3)
    arguments = ["--episodes=1", "--seed_index=1", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(run), *arguments]) == 0
    written = json.loads((tmp_path / "step_80_seed_4.json").read_text())
    assert written["seeds"] == [4]
    assert written["mean_return_half_interval"] == [None]
    assert "1 episode per seed\n" in capsys.readouterr().out


def test_scores_are_of_returns_with_action_cost(tiny_run, tmp_path, capsys):
    reference = datasets.ScoreReference(-20.0, 5.0, "this test")._asdict()
    run = shutil.copytree(tiny_run, tmp_path / "run")
    change_config(run, action_cost=0.5, dataset={"reference": reference})
    arguments = ["--episodes=2", f"--output={tmp_path}"]
    assert evaluate.main(["evaluate", str(run), *arguments]) == 0
    assert "| score in % |" in capsys.readouterr().out
    written = json.loads((tmp_path / "step_80.json").read_text())
    returns = np.array(written["returns"])
    assert (returns < np.array(written["task_returns"])).all()
    np.testing.assert_allclose(written["scores"], 100 * (returns + 20) / 25, rtol=1e-6)


def test_pictures_are_of_one_seed_and_rollouts_of_the_last_checkpoint(
    tiny_run, tmp_path, monkeypatch
):
    rolled, mapped = [], []
    monkeypatch.setattr(command, "_draw_rollouts", lambda *given: rolled.append(given))
    draw = lambda maps, plane, path, title, *, with_u: mapped.append((list(maps), title))
    monkeypatch.setattr(command.state_maps, "draw", draw)
    arguments = ["--cells=4", "--seed_index=1", f"--output={tmp_path}"]
    assert command.main(["inspect", str(tiny_run), *arguments]) == 0
    ((saved, state, _, _, title, _),) = rolled
    assert title.endswith("seed 1, step 80")
    expected = jax.tree.map(lambda x: x[1], saved.agent(80).actor)
    jax.tree.map(np.testing.assert_array_equal, state.actor, expected)
    ((steps, title),) = mapped
    assert steps == [50, 80]
    assert title.endswith("seed 1")


def test_what_is_played_is_an_episode_to_its_end():
    spec = environments.spec(ENV, 0.1)
    policy = lambda observation: np.ones(1)
    found = fans.play(spec, policy, 100, seed=3)
    env = environments.make(ENV, seed=3, action_cost=0.1)
    observations, rewards, is_over = [env.reset()[0]], [], False
    while not is_over:
        observation, reward, *ends, _ = env.step(np.ones(1))
        observations.append(observation)
        rewards.append(reward)
        is_over = any(ends)
    np.testing.assert_allclose(found.observation, observations, rtol=1e-6)
    np.testing.assert_allclose(found.reward, rewards, rtol=1e-5)
    assert len(fans.play(spec, policy, 2, seed=3).action) == 2


def test_fans_are_drawn_at_their_steps_of_what_varies_most(monkeypatch):
    drawn = []
    monkeypatch.setattr(fans.style, "save", lambda figure, path: drawn.append(figure))
    observation = np.arange(6.0)[:, None] * np.array([1.0, 0.0, 5.0, 2.0, 3.0, 4.0])
    trajectory = fans.Trajectory(observation, np.zeros((5, 1)), np.arange(5.0))
    fan = fans.Fan(np.zeros((2, 4, 2, 6)), np.zeros((2, 3, 2)))
    fans.draw(trajectory, fan, np.full(5, 0.5), None, "title")
    axes = drawn[0].axes
    assert [axis.get_ylabel() for axis in axes] == [
        *("reward", "obs. 2", "obs. 3", "obs. 4", "obs. 5", "sqrt(U)")
    ]
    begins = [line.get_xdata()[0] for line in axes[1].lines if len(line.get_xdata()) == 4]
    assert begins == [0, 0, 3, 3]  # of two members, twice
    real = [line for line in axes[1].lines if len(line.get_xdata()) == 6]
    np.testing.assert_array_equal(real[0].get_ydata(), observation[:, 2])
