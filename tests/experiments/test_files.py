"""Files that cannot be read or written are named before the work."""

import os
import resource

import pytest
from matplotlib.figure import Figure

from experiments import files, style


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\xff", "[" * 100_000])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ValueError, match=r"summary\.json cannot be read .*; choose another"):
        files.read_json(tmp_path / "summary.json", "choose another")


def test_columns_of_a_file_that_is_being_written(tmp_path):
    path = tmp_path / "metrics.csv"
    assert files.read_columns(path, ["step"])["step"].size == 0
    path.write_text("step,value\n1,2\n2,nan\n3,4")
    columns = files.read_columns(path, ["step"])
    assert list(columns) == ["step"]
    assert list(columns["step"]) == [1, 2]
    path.write_text('step,value\n"' + "x" * 200_000 + '",1\n')
    with pytest.raises(ValueError, match=r"metrics\.csv is no CSV file"):
        files.read_columns(path, ["step"])


def test_outputs_that_cannot_be_written_are_found_before_the_work(tmp_path):
    files.check_writable(tmp_path / "new" / "picture.png")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("kept")
    files.check_writable(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
    (tmp_path / "loop").symlink_to("loop")
    for bad in (tmp_path, "/proc/picture.png", tmp_path / "loop"):
        with pytest.raises(ValueError, match="cannot be written"):
            files.check_writable(bad)
    for bad in ("picture.png", "folder/picture.png"):
        with pytest.raises(ValueError, match=r"cannot be written \(.*/file is a file, no folder\)"):
            files.check_writable(tmp_path / "file" / bad)


def test_figures_end_in_a_format_that_there_is(tmp_path):
    for name in ("picture", "picture.png", "picture.PDF"):
        style.check_path(tmp_path / name)
    with pytest.raises(ValueError, match=r"picture\.xyz' is no picture; let it end in \.png"):
        style.check_path(tmp_path / "picture.xyz")
    with pytest.raises(ValueError, match="cannot be written"):
        style.check_path("/proc/picture.png")


def test_a_full_disk_is_named_with_the_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "curve.csv"
    path.write_text("kept")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"curve\.csv could not be written \(File too large\); free"
        ):
            files.write_csv(path, ["x"], [["1"] * 1000] * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["curve.csv"]
    assert path.read_text() == "kept"


def test_errors_of_the_writer_are_left_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"), files.replacing(tmp_path / "x"):
        (tmp_path / "nothing").read_text()


def test_a_file_is_replaced_by_a_whole_one_or_stays(tmp_path):
    path = tmp_path / "summary.json"
    files.write_json(path, {"step": 1})

    def write_half():
        with files.replacing(path) as file:
            file.write("half of")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_half()
    assert files.read_json(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]
    with files.replacing(path, "wb") as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_links_and_devices_stay_what_they_are(tmp_path):
    target, link = tmp_path / "there" / "summary.json", tmp_path / "summary.json"
    target.parent.mkdir()
    link.symlink_to(target)
    for step in (1, 2):
        files.check_writable(link)
        files.write_json(link, {"step": step})
        assert link.is_symlink()
        assert files.read_json(target) == {"step": step}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_csv(pipe, ["step"], [[1]])
    assert os.read(reader, 100) == b"step\n1\n"
    os.close(reader)


def test_tables_and_pictures_are_replaced_by_whole_ones(tmp_path, monkeypatch):
    table, picture = tmp_path / "table.csv", tmp_path / "picture.png"
    files.write_csv(table, ["step"], [[1]])
    figure = Figure()
    style.save(figure, picture)
    before = table.read_bytes(), picture.read_bytes()

    def no_room(file, **_):
        file.write(b"half of")
        raise OSError("No space left on device")

    monkeypatch.setattr(figure, "savefig", no_room)
    with pytest.raises(OSError, match="No space"):
        style.save(figure, picture)
    with pytest.raises(ZeroDivisionError):
        files.write_csv(table, ["step"], ([1 // n] for n in (1, 0)))
    assert (table.read_bytes(), picture.read_bytes()) == before
    assert sorted(tmp_path.iterdir()) == [picture, table]


def test_two_processes_may_replace_a_file_at_the_same_time(tmp_path, monkeypatch):
    path = tmp_path / "report.md"
    with files.replacing(path, is_shared=True) as first:
        first.write("first")
        monkeypatch.setattr(files.os, "getpid", lambda: 17)
        with files.replacing(path, is_shared=True) as second:
            second.write("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]
