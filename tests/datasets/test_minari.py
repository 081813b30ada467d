"""Minari datasets by Minari's own writer, whole and broken."""

import copy
import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import gymnasium
import h5py
import minari
import numpy as np
import pytest

from qusac_jax import datasets, environments
from qusac_jax.datasets import loading, saving

REFERENCE = datasets.ScoreReference(-1500.0, -150.0, "ten episodes of each policy")
ID = "pendulum/test-v0"


@pytest.fixture
def saved(root, episodes):
    datasets.save(ID, episodes, env_name="gym:Pendulum-v1", reference=REFERENCE)
    return root / "pendulum" / "test-v0"


def edit(folder, **changes):
    path = folder / "data" / "metadata.json"
    metadata = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))


def test_round_trip(saved, episodes):
    dataset = datasets.load(ID)
    observation = np.concatenate([e.observation[:-1] for e in episodes])
    np.testing.assert_array_equal(dataset.observation, observation)
    np.testing.assert_array_equal(dataset.next_observation, observation + 1)
    action = np.concatenate([e.action for e in episodes])
    np.testing.assert_allclose(dataset.action, action, atol=1e-7)
    for field in ("reward", "terminated", "truncated"):
        expected = np.concatenate([getattr(e, field) for e in episodes])
        np.testing.assert_array_equal(getattr(dataset, field), expected)
    assert dataset.next_observation_known.all()
    assert (dataset.num_transitions, dataset.num_episodes, dataset.num_dropped) == (9, 3, 0)
    np.testing.assert_array_equal(dataset.episode_returns, [6, 6])  # not of the unfinished one
    np.testing.assert_array_equal(dataset.action_high, [2])
    assert dataset.reference is not None
    assert dataset.reference[:2] == REFERENCE[:2]
    assert dataset.reference.origin == (
        "ref_min_score and ref_max_score of pendulum/test-v0 (ten episodes of each policy)"
    )
    assert (dataset.source, dataset.env) == ("minari", "gym:Pendulum-v1")
    np.testing.assert_allclose(datasets.normalized_score(-825.0, dataset.reference), 50)
    json.dumps(datasets.describe(dataset))
    datasets.check_matches(dataset, environments.spec("gym:Pendulum-v1"))
    assert [batch.dtype for batch in dataset.transitions()] == [np.float32] * 4 + [bool]


def test_other_programs_can_use_what_save_writes(saved, episodes):
    dataset = minari.load_dataset(ID)
    env = dataset.recover_environment()
    assert dataset.action_space == env.action_space
    env.close()
    np.testing.assert_allclose(dataset[0].actions, 2 * episodes[0].action)
    assert dataset.total_steps == 9
    np.testing.assert_allclose(minari.get_normalized_score(dataset, np.array(-825.0)), 0.5)


def test_actions_are_written_in_the_units_of_any_bounds(episodes):
    space = gymnasium.spaces.Box(np.float32([5.0]), np.float32([11.0]))
    buffer = saving._buffer(minari, episodes[0], space)
    np.testing.assert_allclose(buffer.actions, [[5], [7], [9], [11]], rtol=1e-6)


def test_path_and_id_are_the_same_dataset(saved):
    by_id = datasets.load(ID)
    for path in (saved, saved / "data", saved / "data" / "main_data.hdf5"):
        assert datasets.load(path).sha256 == by_id.sha256
        assert datasets.load(path).reference == by_id.reference


@pytest.mark.parametrize("given", [5, b"x.hdf5"])
def test_what_is_no_path_and_no_id_is_refused(given):
    with pytest.raises(ValueError, match=f"dataset must be a path or a Minari id, got {given!r}"):
        datasets.load(given)


def test_an_id_of_another_format_is_not_downloaded(saved):
    edit(saved, data_format="arrow")
    (saved / "data" / "main_data.hdf5").unlink()
    with pytest.raises(ValueError, match=r"data_format 'arrow'; only 'hdf5' can be read"):
        datasets.load(ID)


def test_minaris_own_entries_about_people(root, episodes):
    save = lambda **metadata: datasets.save(
        "own/people-v0", episodes, env_name="gym:Pendulum-v1", metadata=metadata
    )
    for entries, message in (
        ({"author": 3}, "metadata: author must be text or a list of it, got 3"),
        ({"code_permalink": []}, "metadata: code_permalink must be text"),
        ({"note": object()}, "metadata: .* not JSON serializable; give numbers, text"),
    ):
        with pytest.raises(ValueError, match=message):
            save(**entries)
    save(author="Ada", author_email=["a@b.c"], note=[1, "two"])
    metadata = minari.load_dataset("own/people-v0").storage.metadata
    assert set(metadata["author"]) == {"Ada"}
    assert set(metadata["author_email"]) == {"a@b.c"}
    assert metadata["note"] == [1, "two"]


def test_environment_that_is_not_of_gymnasium(root, episodes):
    datasets.save("own/suite-v0", episodes, env_name="dmc:pendulum:swingup")
    dataset = datasets.load("own/suite-v0")
    assert (dataset.env, dataset.reference) == ("dmc:pendulum:swingup", None)
    np.testing.assert_array_equal(dataset.action_low, [-1])


def test_an_environment_made_with_what_json_cannot_hold(root, episodes):
    entry_point = "gymnasium.envs.classic_control:PendulumEnv"
    gymnasium.register("Moon-v0", entry_point, kwargs={"g": np.float32(1.62)})
    try:
        datasets.save("own/moon-v0", episodes, env_name="gym:Moon-v0")
        assert datasets.load("own/moon-v0").env == "gym:Moon-v0"
    finally:
        del gymnasium.registry["Moon-v0"]


def test_namesake_of_d4rl_is_scored_by_its_own_metadata(root, episodes):
    datasets.save("mujoco/hopper-medium-v2", episodes, env_name="own:world")
    assert datasets.load("mujoco/hopper-medium-v2").reference is None


@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari's advice
def test_data_collected_with_minari(root):
    # Minari's own collector, with a Dict of observations, which `environments.make` flattens.
    env = gymnasium.make("Pendulum-v1", max_episode_steps=5)
    space = gymnasium.spaces.Dict(
        {"velocity": gymnasium.spaces.Box(-9, 9, (1,)), "angle": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    env = gymnasium.wrappers.TransformObservation(
        env, lambda o: {"velocity": o[2:], "angle": o[:2]}, space
    )
    collector = minari.DataCollector(env)
    seen = []
    for seed in range(2):
        seen.append(collector.reset(seed=seed)[0])
        for _ in range(5):
            seen.append(collector.step(np.float32([1.0]))[0])
    collector.create_dataset("own/collected-v0")
    collector.close()
    dataset = datasets.load("own/collected-v0")
    flat = np.array([np.concatenate([o["angle"], o["velocity"]]) for o in seen])
    np.testing.assert_array_equal(dataset.observation, np.delete(flat, [5, 11], axis=0))
    np.testing.assert_array_equal(dataset.next_observation, np.delete(flat, [0, 6], axis=0))
    np.testing.assert_array_equal(np.flatnonzero(dataset.truncated), [4, 9])
    np.testing.assert_allclose(dataset.action, 0.5)  # 1 of [-2, 2]
    assert not dataset.terminated.any()
    assert dataset.env is None  # Minari cannot store this wrapper


def test_environment_from_minaris_own_metadata(saved):
    edit(saved, qusac_jax_env=None)
    dataset = datasets.load(ID)
    assert (dataset.env, "arguments" in dataset.env_note) == ("gym:Pendulum-v1", False)
    spec = copy.deepcopy(gymnasium.spec("Pendulum-v1"))  # it is the registry's own
    spec.kwargs["g"] = 1.62
    edit(saved, eval_env_spec=spec.to_json())
    dataset = datasets.load(ID)
    assert dataset.env == "gym:Pendulum-v1"
    assert "for evaluation, but for its own arguments" in dataset.env_note


def spoil(key, change):
    def apply(folder):
        with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
            value = change(file[key][()])
            del file[key]
            if value is not None:
                file[key] = value

    return apply


def put(index, value):
    def change(array):
        array = array.astype(float)
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (spoil("episode_1/rewards", put(2, np.nan)), r"'episode_1/rewards', row 2: nan"),
        (spoil("episode_1/actions", put((1, 0), 2.1)), r"'episode_1/actions', row 1.*outside"),
        (spoil("episode_0/terminations", put(1, 1)), r"'episode_0', row 1: .*goes on"),
        (spoil("episode_0/rewards", lambda a: a[:-1]), r"'episode_0' has unequal.*'rewards' 3"),
        (spoil("episode_0/observations", lambda a: a[:-1]), r"'observations less one' 3"),
        (spoil("episode_0/observations", lambda a: a[:, :2]), r"observation_space .* has 3"),
        (spoil("episode_2/truncations", lambda a: None), r"no key 'episode_2/truncations'"),
        (lambda f: edit(f, total_episodes=4), r"3 episodes, and key 'total_episodes'.* is 4"),
        (lambda f: edit(f, ref_max_score=-1501.0), r"min_return < max_return"),
        (lambda f: edit(f, data_format="arrow"), r"data_format 'arrow'; only 'hdf5' can be read"),
        (lambda f: edit(f, minari_version="9.9.9"), r"metadata\.json.*9\.9\.9"),
        (lambda f: edit(f, action_space="[]"), r"metadata\.json"),
        (lambda f: edit(f, dataset_id=None), r"metadata\.json \(KeyError: 'dataset_id'"),
        (lambda f: (f / "data" / "metadata.json").write_text("{"), r"metadata\.json"),
        (lambda f: (f / "data" / "main_data.hdf5").write_bytes(b""), r"main_data\.hdf5"),
    ],
)
def test_broken_datasets(saved, damage, message):
    damage(saved)
    with pytest.raises(ValueError, match=message):
        datasets.load(ID)


def test_spaces_that_are_no_boxes(saved):
    text = lambda space: minari.serialization.serialize_space(space)
    edit(saved, action_space=text(gymnasium.spaces.Discrete(3)))
    with pytest.raises(ValueError, match=r"key 'action_space' is Discrete"):
        datasets.load(ID)
    edit(saved, action_space=text(gymnasium.spaces.Box(-np.inf, np.inf, (1,))))
    with pytest.raises(ValueError, match=r"key 'action_space' has the action bounds -inf"):
        datasets.load(ID)
    edit(saved, observation_space=text(gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)))
    with pytest.raises(ValueError, match=r"key 'observation_space' is Box"):
        datasets.load(ID)


def test_save_refuses_and_leaves_nothing_behind(saved, root, episodes, monkeypatch):
    before = sorted(root.rglob("*"))
    save = lambda episodes, name="pendulum/new-v0", **options: datasets.save(
        name, episodes, **{"env_name": "gym:Pendulum-v1", **options}
    )
    with pytest.raises(ValueError, match="exists already"):
        save(episodes, ID)
    with pytest.raises(ValueError, match="no Minari id"):
        save(episodes, "../outside-v0")
    with pytest.raises(ValueError, match="no Minari id"):
        save(episodes, "no-version")
    with pytest.raises(ValueError, match="at least one"):
        save([])
    for given in (None, episodes[0]):
        with pytest.raises(ValueError, match=r"a list of datasets.Episode, got one (No|Ep).*pass"):
            save(given)
    with pytest.raises(ValueError, match=r"episode 0, action, row 0, column 0: -2.0 is outside"):
        save([episodes[0]._replace(action=2 * episodes[0].action)])
    with pytest.raises(ValueError, match=r"episode 1 has unequal .*'reward' 2"):
        save([episodes[0], episodes[1]._replace(reward=np.zeros(2))])
    with pytest.raises(ValueError, match=r"episode 0, reward, row 0: nan"):
        save([episodes[0]._replace(reward=np.full(4, np.nan))])
    with pytest.raises(ValueError, match=r"episode 0 is empty or goes on"):
        save([episodes[0]._replace(truncated=np.ones(4, bool))])
    with pytest.raises(ValueError, match=r"actions have 1 components, but 'gym:Hopper-v5'"):
        save(episodes, env_name="gym:Hopper-v5")
    with pytest.raises(ValueError, match="cannot be built"):
        save(episodes, env_name="gym:NoSuch-v0")
    with pytest.raises(ValueError, match="there is no environment 'cartpole_swingp'"):
        save(episodes, env_name="cartpole_swingp")
    with pytest.raises(
        ValueError, match="observations have 3 numbers, but 'cartpole_swingup' has 5"
    ):
        save(episodes, env_name="cartpole_swingup")
    with pytest.raises(ValueError, match=r"actions have 1 .* but 'reacher_hard:sincos' has \(2,\)"):
        save(episodes, env_name="reacher_hard:sincos")
    with pytest.raises(ValueError, match=r"episode 1 must be a datasets\.Episode, got tuple"):
        save([episodes[0], tuple(episodes[1])])
    with pytest.raises(ValueError, match="reference must be a ScoreReference"):
        save(episodes, reference=(0.0, 1.0))
    with pytest.raises(ValueError, match="min_return < max_return"):
        save(episodes, reference=datasets.ScoreReference(1, 0, "swapped"))
    for options, message in (
        ({"metadata": {"qusac_jax_action_cost": -1}}, "metadata: qusac_jax_action_cost"),
        ({"metadata": {"ref_min_score": 3, "ref_max_score": 1}}, "min_return < max_return"),
        ({"metadata": {"eval_env_spec": {"id": "x"}}}, "eval_env_spec is written by Minari"),
        ({"metadata": {"a": float("nan")}}, "metadata: Out of range float"),
        ({"env_name": None}, "env_name must be text, got None"),
        ({"description": 5}, "description must be text, got 5"),
        ({"algorithm": ["a"]}, r"algorithm must be text, got \['a'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            save(episodes, **options)
    short = datasets.Episode(*(np.asarray(x)[:2] for x in episodes[0]))
    short = short._replace(observation=np.asarray(episodes[0].observation)[:3])
    with pytest.raises(ValueError, match=r"at least 3 transitions in all, .* got 2"):
        save([short])
    assert sorted(root.rglob("*")) == before

    for error in (OSError("disk full"), RuntimeError("disk full")):  # HDF5 has both

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(minari.MinariDataset, "update_dataset_from_buffer", fail)
        with pytest.raises(ValueError, match=r"cannot be written .*disk full.*nothing is left"):
            save(episodes)
    free = shutil.disk_usage(root)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(ValueError, match="would take about 1 MB, and 1 are free; free some"):
        save(episodes)
    assert not datasets.exists("pendulum/new-v0")
    assert sorted(root.rglob("*")) == before


def test_another_writer_of_the_same_id_is_left_alone(root, episodes, monkeypatch):
    write = minari.MinariDataset.update_dataset_from_buffer
    theirs = []

    def overtaken(self, buffers):
        monkeypatch.setattr(minari.MinariDataset, "update_dataset_from_buffer", write)
        datasets.save(ID, episodes[:1], env_name="gym:Pendulum-v1")  # as another process does
        theirs.append(datasets.load(ID).sha256)
        write(self, buffers)

    monkeypatch.setattr(minari.MinariDataset, "update_dataset_from_buffer", overtaken)
    with pytest.raises(ValueError, match="exists already"):
        datasets.save(ID, episodes, env_name="gym:Pendulum-v1")
    assert [datasets.load(ID).sha256] == theirs
    assert [path.name for path in (root / "pendulum").iterdir() if path.is_dir()] == ["test-v0"]


def test_only_the_same_token_removes_what_a_killed_write_left(root, episodes):
    left = [root / "pendulum" / f".test-v0.{token}" for token in ("mine", "other")]
    for folder in left:
        (folder / "data").mkdir(parents=True)
    datasets.save(ID, episodes, env_name="gym:Pendulum-v1", token="mine")
    assert [folder.exists() for folder in left] == [False, True]
    assert datasets.load(ID).num_transitions == 9
    assert list(minari.list_local_datasets()) == [ID]


def test_action_cost_of_the_rewards(saved, root, episodes):
    assert datasets.load(ID).action_cost is None  # not said
    options = {"env_name": "pendulum", "action_cost": 0.05}
    datasets.save("pendulum/cost-v0", episodes, **options)
    dataset = datasets.load("pendulum/cost-v0")
    assert (dataset.action_cost, datasets.describe(dataset)["action_cost"]) == (0.05, 0.05)
    with pytest.raises(ValueError, match=r"action_cost: .* finite number >= 0, got -1"):
        datasets.save("pendulum/less-v0", episodes, env_name="pendulum", action_cost=-1)
    edit(saved, qusac_jax_action_cost="much")
    with pytest.raises(ValueError, match=r"'qusac_jax_action_cost': .* got 'much'"):
        datasets.load(ID)
    edit(saved, qusac_jax_env=None, qusac_jax_action_cost=None)
    assert datasets.load(ID).action_cost == 0.0  # of another program


def test_unfinished_write_counts_as_no_dataset(saved):
    assert datasets.exists(ID)
    assert not datasets.exists("pendulum/other-v0")
    edit(saved, total_episodes=0)
    assert not datasets.exists(ID)
    with pytest.raises(ValueError, match="write of it was cut short"):
        datasets.load(ID)


def test_import_is_light():
    code = (
        "import sys, qusac_jax.datasets; "
        "sys.exit(', '.join({'jax', 'h5py', 'minari'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_missing_package(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r'needs h5py; pip install "minari\[hdf5\]"'):
        datasets.load(ID)


class TestWithoutADataset:
    """What is said, and done, where there is none on this computer."""

    def test_no_package_to_download_with(self, saved, monkeypatch):
        monkeypatch.setattr(loading, "_is_installed", lambda package: False)
        message = r"(?s)did you mean 'pendulum/test-v0'.*not on this computer.*minari\[hf\]"
        with pytest.raises(ValueError, match=message):
            datasets.load("pendulum/tst-v0")

    def test_no_network(self, root, monkeypatch):
        monkeypatch.setattr(loading, "_is_installed", lambda package: True)
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
        with pytest.raises(ValueError, match=r"127.0.0.1:9 cannot be reached.*copy its folder to"):
            datasets.load("mujoco/hopper/medium-v0")
        assert not root.exists()

    def test_network_that_does_not_answer(self, root, monkeypatch):
        def hang(*_, **__):
            threading.Event().wait(1.0)
            raise OSError("too late")

        monkeypatch.setattr(loading, "_is_installed", lambda package: True)
        monkeypatch.setattr(loading, "CONNECT_SECONDS", 0.05)
        monkeypatch.setattr(urllib.request, "urlopen", hang)
        with pytest.raises(ValueError, match=r"no answer within 0.05 seconds"):
            datasets.load("mujoco/hopper/medium-v0")

    def test_download(self, root, episodes, monkeypatch):
        monkeypatch.setattr(loading, "_is_installed", lambda package: True)
        monkeypatch.setattr(loading, "_unreachable", lambda server: None)
        asked = []

        def download(dataset_id, force_download):
            asked.append((dataset_id, force_download))
            datasets.save(dataset_id, episodes, env_name="gym:Pendulum-v1")

        monkeypatch.setattr(minari, "download_dataset", download)
        assert datasets.load("remote/set-v0").num_transitions == 9
        assert datasets.load("remote/set-v0").num_transitions == 9  # local now
        assert asked == [("remote/set-v0", False)]

    def test_download_that_was_cut_short_is_made_again(self, root, episodes, monkeypatch):
        monkeypatch.setattr(loading, "_is_installed", lambda package: True)
        monkeypatch.setattr(loading, "_unreachable", lambda server: None)
        (root / "remote" / "set-v0").mkdir(parents=True)

        def download(dataset_id, force_download):
            assert force_download
            (root / "remote" / "set-v0").rmdir()
            datasets.save(dataset_id, episodes, env_name="gym:Pendulum-v1")

        monkeypatch.setattr(minari, "download_dataset", download)
        assert datasets.load("remote/set-v0").num_transitions == 9

    def test_download_fails(self, root, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("no such dataset")

        monkeypatch.setattr(loading, "_is_installed", lambda package: True)
        monkeypatch.setattr(loading, "_unreachable", lambda server: None)
        monkeypatch.setattr(minari, "download_dataset", fail)
        with pytest.raises(ValueError, match=r"download failed \(RuntimeError: no such dataset\)"):
            datasets.load("remote/set-v0")

    @pytest.mark.parametrize("name", ["nowhere.hdf5", "./nothing", "hopper", "/tmp"])
    def test_neither_path_nor_id(self, root, name):
        with pytest.raises(ValueError, match="no Minari id"):
            datasets.load(name)

    def test_name_of_d4rl_is_not_looked_for_at_minari(self, root):
        with pytest.raises(ValueError, match=r"path of hopper-medium-v2\.hdf5"):
            datasets.load("hopper-medium-v2")

    def test_bounds_are_for_files_without_them(self, saved):
        with pytest.raises(ValueError, match="brings its own"):
            datasets.load(ID, action_bounds=(-1, 1))

    def test_a_server_that_refuses_has_answered(self, monkeypatch):
        def refuse(server, timeout):
            raise urllib.error.HTTPError(server, 400, "Bad Request", None, None)

        monkeypatch.setattr(urllib.request, "urlopen", refuse)
        assert loading._unreachable("https://storage.googleapis.com") is None

    def test_no_package_for_another_remote(self, root, monkeypatch):
        monkeypatch.setattr(
            loading, "_is_installed", lambda package: package != "google.cloud.storage"
        )
        monkeypatch.setenv("MINARI_REMOTE", "gcp://a-bucket")
        with pytest.raises(
            ValueError, match=r'needs google.cloud.storage: pip install "minari\[gcs\]'
        ):
            datasets.load("pendulum/test-v0")


def test_a_namespace_is_no_dataset(saved, episodes, root):
    (root / "pendulum").rename(root / "pendulum-v0")
    with pytest.raises(ValueError, match="is no dataset, but has some in it"):
        datasets.load("pendulum-v0")
    with pytest.raises(ValueError, match=r"exists already .* there are others in it"):
        datasets.save("pendulum-v0", episodes, env_name="gym:Pendulum-v1")


@pytest.mark.parametrize("name", ["~nobody_of_this_name/x.hdf5", "a" * 300])
def test_what_can_be_no_path_is_named(root, name):
    with pytest.raises(ValueError, match="is no path"):
        datasets.load(name)


def test_episodes_without_a_step_are_passed_over(saved):
    with h5py.File(saved / "data" / "main_data.hdf5", "a") as file:
        empty = file.create_group("episode_3")
        empty["observations"] = np.zeros((1, 3), np.float32)
        empty["actions"], empty["rewards"] = np.zeros((0, 1), np.float32), np.zeros(0, np.float32)
        empty["terminations"] = empty["truncations"] = np.zeros(0, bool)
    edit(saved, total_episodes=4)
    dataset = datasets.load(ID)
    assert (dataset.num_transitions, dataset.num_episodes) == (9, 3)
