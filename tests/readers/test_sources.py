"""What a source leads to: files, globs, directories, and what is passed over there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.files import natural
from isolaw.readers import containers
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.sources import Search, search
from isolaw.runs import Runs

Toy = Callable[..., Path]


def names(found: Search, top: Path) -> list[str]:
    return [str(place.path.relative_to(top)) for place in found.sources]


def test_a_file(toy: Toy, tmp_path: Path) -> None:
    (found,) = search([toy(tmp_path / "a.txt")]).sources
    assert found.container is not None
    assert (found.container.name, found.is_sweep) == ("toy", False)


def test_a_directory_in_natural_order(toy: Toy, tmp_path: Path) -> None:
    for name in ("checkpoint-100", "checkpoint-50", "checkpoint-9"):
        toy(tmp_path / "run" / name / "state")
    toy(tmp_path / "run" / "final")
    found = search([tmp_path / "run"])
    assert names(found, tmp_path / "run") == [
        "checkpoint-9/state",
        "checkpoint-50/state",
        "checkpoint-100/state",
        "final",
    ]


def test_globs(toy: Toy, tmp_path: Path) -> None:
    for name in ("s10", "s2", "s1"):
        toy(tmp_path / "runs" / name / "log")
        toy(tmp_path / "runs" / name / "deep" / "log")
    assert names(search([tmp_path / "runs/s*/log"]), tmp_path / "runs") == ["s1/log", "s2/log", "s10/log"]
    assert len(search([f"{tmp_path}/**/log"]).sources) == 6
    assert len(search([f"{tmp_path}/runs/s[12]"]).sources) == 4
    with pytest.raises(DataError, match="no file matches"):
        search([tmp_path / "runs" / "t*"])


def test_a_file_whose_name_looks_like_a_glob(toy: Toy, tmp_path: Path) -> None:
    path = toy(tmp_path / "run[1]" / "log*")
    assert [place.path for place in search([path]).sources] == [path]


def test_what_is_no_log_is_passed_over_and_counted(toy: Toy, tmp_path: Path) -> None:
    toy(tmp_path / "log")
    (tmp_path / "model.safetensors").write_bytes(os.urandom(100_000))
    (tmp_path / "README.md").write_text("# a run")
    (tmp_path / "empty").touch()
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 and nothing")
    toy(tmp_path / ".hidden" / "log")
    toy(tmp_path / ".log")
    toy(tmp_path / "__pycache__" / "log")
    found = search([tmp_path])
    assert names(found, tmp_path) == ["log"]
    assert found.skipped.total() == 5
    assert found.notes_for([])[-1] == (
        "5 of the files found are not logs (1 .md, 1 empty, 1 .safetensors, 1 .parquet, 1 .csv); "
        "isolaw reads a configuration with its log"
    )


def test_links_are_followed_once_and_last(toy: Toy, tmp_path: Path) -> None:
    run = toy(tmp_path / "b-run" / "log").parent
    (run / "up").symlink_to(tmp_path)
    (tmp_path / "a-latest").symlink_to(run)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    outside = toy(tmp_path.parent / "elsewhere" / "log").parent
    (tmp_path / "c-link").symlink_to(outside)
    found = search([tmp_path])
    assert names(found, tmp_path) == ["b-run/log"]
    (note,) = found.notes
    assert note.endswith(f"links that lead out of the folder: {tmp_path / 'c-link'}; name them to read them")
    found = search([tmp_path / "a-latest"])  # the folder that the user names can be a link
    assert [place.path.name for place in found.sources] == ["log"]
    assert "up; name them" in found.notes[0]
    assert len(search([tmp_path / "c-link"]).sources) == 1


OUT = ("tree", "file", "up", "root", "chain", "absolute")


@pytest.mark.parametrize("kind", OUT)
@pytest.mark.parametrize("glob", ["", "/**", "/**/log"])
def test_links_do_not_lead_out_of_a_folder(toy: Toy, tmp_path: Path, kind: str, glob: str) -> None:
    top, other = tmp_path / "downloaded", toy(tmp_path / "mine" / "log").parent
    run = toy(top / "run" / "log").parent
    target = {
        "tree": Path("../../mine"),
        "file": Path("../../mine/log"),
        "up": Path("../.."),
        "root": Path("/"),
        "chain": Path("../next"),
        "absolute": other,
    }[kind]
    (top / "next").symlink_to("../mine") if kind == "chain" else None
    (run / "odd").symlink_to(target)
    found = search([f"{top}{glob}"])
    paths = {os.path.realpath(place.path) for place in found.sources}
    assert paths == {str(run / "log")}
    assert any("run/odd" in text for text in found.notes)


def test_cycles_end(toy: Toy, tmp_path: Path) -> None:
    toy(tmp_path / "run" / "log")
    for name in ("a", "b", "c"):
        (tmp_path / "run" / name).symlink_to("..")
        (tmp_path / name).symlink_to(name)  # a link to itself
    assert names(search([tmp_path]), tmp_path) == ["run/log"]
    assert names(search([f"{tmp_path}/**/log"]), tmp_path) == ["run/log"]


def test_devices_pipes_and_sockets_are_named(toy: Toy, tmp_path: Path) -> None:
    toy(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(os.path.relpath(tmp_path / "socket"))
    notes = "\n".join(search([tmp_path]).notes)
    for name in ("pipe", "zero", "socket"):
        assert str(tmp_path / name) in notes


def test_a_link_into_a_log_that_is_a_folder_counts_once(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "1" / "abc"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_name: a\n")
    (run / "metrics" / "critic").write_text("1 0.5 1\n2 0.6 2\n")
    (tmp_path / "latest").symlink_to(run)
    (tmp_path / "metric.jsonl").symlink_to(run / "metrics" / "critic")
    assert names(search([tmp_path]), tmp_path) == ["mlruns/1/abc"]


def test_a_run_of_mlflow_stays_in_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "abc"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_name: a\n")
    (run / "metrics" / "critic").write_text("1 0.5 1\n2 0.6 2\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("1 0.5 1\n2 0.6 2\n")
    (run / "metrics" / "up").symlink_to(tmp_path)
    (run / "metrics" / "secret").symlink_to(tmp_path / "other" / "secret")
    (log,) = containers.get("mlflow").read(run)
    assert set(log.series) == {"critic"}


def test_a_folder_of_the_hubs_cache_is_made_of_links(toy: Toy, tmp_path: Path) -> None:
    repository = tmp_path / "datasets--a--b"
    blob = toy(repository / "blobs" / "0123")
    snapshot = repository / "snapshots" / "main" / "runs"
    snapshot.mkdir(parents=True)
    (snapshot / "log").symlink_to(blob)
    (snapshot / "odd").symlink_to(toy(tmp_path / "mine" / "log"))
    assert names(search([snapshot]), snapshot) == ["log"]


def test_a_pipe_is_never_opened_in_a_search(toy: Toy, tmp_path: Path) -> None:
    toy(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe")
    worker = threading.Thread(target=lambda: search([tmp_path]), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive()


def test_depth_has_a_bound(toy: Toy, tmp_path: Path) -> None:
    toy(tmp_path / "log")
    toy(tmp_path.joinpath(*"d" * 40) / "log")
    found = search([tmp_path])
    assert names(found, tmp_path) == ["log"]
    assert "deeper than 24" in found.notes[0]


def test_a_sweep_below_a_directory(toy: Toy, tmp_path: Path, tiny: Any) -> None:
    import isolaw

    made = isolaw.sweep(tiny(), tmp_path / "all" / "ours")
    toy(tmp_path / "all" / "theirs" / "log")
    found = search([tmp_path / "all"])
    assert [(place.path.name, place.is_sweep) for place in found.sources] == [("ours", True), ("log", False)]
    made.to_parquet(tmp_path / "points.parquet")
    made.points.to_csv(tmp_path / "points.csv", index=False)
    ours = [place.path.name for place in search([tmp_path]).sources if place.is_ours]
    assert sorted(ours) == ["points.csv", "points.parquet"]


def test_nothing_is_said_with_what_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("nothing")
    with pytest.raises(DataError) as error:
        search([tmp_path])
    for word in (
        str(tmp_path),
        "found no log",
        "sweep.json",
        "1 file searched",
        "tensorboard",
        "--column names the columns",
    ):
        assert word in str(error.value)
    with pytest.raises(DataError, match="gone: No such file"):
        search([tmp_path / "gone"])


def test_a_form_can_be_forced(toy: Toy, tmp_path: Path) -> None:
    path = toy(tmp_path / "log")
    (tmp_path / "other").write_text("text")
    assert search([path], [HowToRead.of(format="toy")]).sources[0].container is not None
    assert search([tmp_path / "other"], [HowToRead.of(format="toy")]).sources[0].container is not None
    assert names(search([tmp_path], [HowToRead.of(format="toy")]), tmp_path) == ["log"]
    with pytest.raises(DataError, match="found no log"):
        search([tmp_path], [HowToRead.of(format="tensorboard")])
    with pytest.raises(InputError) as error:
        search([path], [HowToRead.of(format="tensorbord")])
    for word in ("format: no format 'tensorbord'", "did you mean 'tensorboard'", "auto"):
        assert word in str(error.value)


def test_tables_are_chosen_by_their_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"it": [1, 2], "acc": [0.1, 0.2]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "b.parquet")
    frame.to_json(tmp_path / "c.jsonl", orient="records", lines=True)
    frame.drop(columns="acc").to_csv(tmp_path / "d.csv", index=False)
    found = search([tmp_path], [HowToRead.of(columns={"step": "it", "avg@1": "acc"})])
    assert names(found, tmp_path) == ["a.csv", "b.parquet", "c.jsonl"]
    assert found.skipped == {".csv": 1}


def test_natural_order_of_any_name() -> None:
    order = ["", "1", "1a", "2", "10", "a", "a1", "a2", "a10", "a10b", "b"]
    assert sorted(set(order), key=natural) == order
    sorted(["²", "٣", "9" * 250, "a", "1"], key=natural)


@pytest.mark.parametrize("name", sorted(containers.CONTAINERS))
def test_every_container_goes_by_its_name(name: str) -> None:
    assert containers.get(name).name == name


def test_every_framework_goes_by_its_name() -> None:
    from isolaw.readers import frameworks

    for name in frameworks.FRAMEWORKS:
        found = frameworks.named(name.upper())
        assert found is not None
    assert {value.name for value in frameworks.known()} <= set(frameworks.FRAMEWORKS)
    assert frameworks.find(["loss", "reward", "step", "lr"], {}) is None


def test_runs_need_a_source() -> None:
    import isolaw

    with pytest.raises(InputError, match="found no source"):
        isolaw.read()
    assert Runs is isolaw.Runs


def test_the_documentation_names_every_container_and_framework() -> None:
    from isolaw.readers import frameworks

    root = Path(__file__).parents[2]
    formats, readme = ((root / name).read_text() for name in ("docs/formats.md", "README.md"))
    for name in containers.CONTAINERS:
        assert f"`{name}`" in formats
    for name in frameworks.FRAMEWORKS:
        assert name in readme


def test_a_folder_with_the_ends_of_runs_says_that_they_are_no_curves(tmp_path: Path) -> None:
    rows = "".join(f"m-r{n},{n},0.6\n" for n in (4, 8, 16))
    (tmp_path / "final.csv").write_text("run_name,num_rollouts,final_accuracy\n" + rows)
    (tmp_path / "README").write_text("The end of each run, as a table.\n")
    with pytest.raises(DataError, match="one final value per run is not a learning curve"):
        isolaw.read(tmp_path)
