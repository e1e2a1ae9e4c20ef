"""Configurations beside a log: found, read, flattened, and harmless whatever is in them."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import DataError
from isolaw.readers.configs import find_config, flatten, overrides, read, run_directory, scalar

# Flat keys


def test_flatten() -> None:
    nested = {
        "a": {"b": 1, "c": {"d": [1, 2], "e": None}},
        "f": [{"g": 1}, {"g": 2}],
        "h": [[1], [2]],
        3: "x",
    }
    assert flatten(nested) == {
        "a.b": 1,
        "a.c.d": [1, 2],
        "a.c.e": None,
        "f.0.g": 1,
        "f.1.g": 2,
        "h.0": [1],
        "h.1": [2],
        "3": "x",
    }
    assert flatten({}) == {}


def test_wandb_form() -> None:
    assert flatten({"_wandb": {"value": {}}, "wandb_version": 1, "lr": {"desc": None, "value": 1}}) == {
        "lr": 1
    }
    assert flatten({"data": {"value": {"n": 8}}}) == {"data.n": 8}
    mixed = {"lr": {"value": 1}, "name": "x"}  # not W&B's: one has no value
    assert flatten(mixed) == {"lr.value": 1, "name": "x"}


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("${data.size}", 512),
        ("${ data.size }", 512),
        ("${oc.select:data.size,1}", 512),
        ("${oc.select:data.gone,1}", 1),
        ("${oc.select:data.gone,null}", None),
        ("${data.again}", 512),
        ("half ${data.size}", "half ${data.size}"),
    ],
)
def test_references(value: str, resolved: Any) -> None:
    assert flatten({"data": {"size": 512, "again": "${data.size}"}, "x": value})["x"] == resolved


@pytest.mark.parametrize("value", ["${data.gone}", "${oc.env:HOME}", "${now:%Y}", "${x}", "${y}", "${.size}"])
def test_references_that_cannot_be_followed_are_left_out(value: str) -> None:
    assert flatten({"x": value, "y": "${x}", "z": 1}) == {"z": 1}


def test_flatten_is_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep or 1}
    with pytest.raises(DataError, match="nested deeper than 100"):
        flatten(deep)
    bomb: Any = "x"
    for _ in range(9):
        bomb = [bomb] * 9
    with pytest.raises(DataError, match="more than 100,000 values"):
        flatten({"a": bomb})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-1", -1), ("1e-6", 1e-6), ("1.", 1.0), (".5", 0.5), ("", None), ("~", None),
        ("Null", None), ("true", True), ("False", False), ("yes", "yes"), ("nan", "nan"), ("inf", "inf"),
        ("0x10", "0x10"),        ("1.2.3", "1.2.3"), ("9" * 5000, "9" * 5000), ("grpo", "grpo"), (" 8 ", 8),
    ],
)  # fmt: skip
def test_scalar(text: str, value: Any) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_overrides() -> None:
    words = [
        "data.n=8",
        "+a.b='x y'",
        "++c=1e-6",
        "~d.e",
        "noise",
        "--lr=0.1",
        "k=",
        "x y=1",
        "g={a:1}",
        "u=http://h?a=b",
    ]
    assert overrides(words) == {
        "data.n": 8,
        "a.b": "x y",
        "c": 1e-6,
        "lr": 0.1,
        "k": None,
        "g": "{a:1}",
        "u": "http://h?a=b",
    }


# Files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "data:\n  train_batch_size: 512\nlr: 1e-6\n"),
        ("config.yaml", '{"data": {"train_batch_size": 512}, "lr": 1e-6}'),
        ("config.json", '{"data": {"train_batch_size": 512}, "lr": 1e-6}'),
        ("config.toml", "lr = 1e-6\n[data]\ntrain_batch_size = 512\n"),
        ("overrides.yaml", "- data.train_batch_size=512\n- lr=1e-6\n"),
        (
            "config.yaml",
            "\ufeffdata: {train_batch_size: 512}\nlr: {value: 1e-6}\n".replace("{value: 1e-6}", "1e-6"),
        ),
    ],
)
def test_read(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read(path) == {"data.train_batch_size": 512, "lr": 1e-6}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", b"a: [1, 2\nb: 3", r"c\.yaml: not YAML \(.*line 2"),
        ("c.json", b'{"a": 1,}', r"c\.json: not JSON \("),
        ("c.json", b"[" * 100_000, r"c\.json: not JSON \("),
        ("c.toml", b"a = ", r"c\.toml: not valid TOML: "),
        ("c.yaml", b"just text", r"c\.yaml: not a configuration: it has no keys"),
        ("c.yaml", b"", r"c\.yaml: not a configuration"),
        ("c.yaml", b"a: 1\n" * 200_001, r"c\.yaml: a configuration larger than 1 MB"),
        ("c.yaml", b"\0\0\0", r"c\.yaml: not YAML"),
        ("c.yaml", b"a: " + b"[" * 500, r"c\.yaml: YAML nested deeper than 100"),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.yaml: No such file"):
        read(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a: &a {x: 1, y: 2}\n"
        + "".join(
            f"{b}: &{b} {{p: *{a}, q: *{a}, r: *{a}}}\n"
            for a, b in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
        ),
        "a: &a\n  b: *a\n",
        "a: &a [*a, *a]\n",
    ],
)
def test_aliases_are_no_bomb(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(bomb)
    started = time.process_time()
    with pytest.raises(DataError, match=r"c\.yaml: a configuration"):
        read(path)
    assert time.process_time() - started < 10


def test_nothing_is_constructed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    path = tmp_path / "c.yaml"
    path.write_text(
        f"a: !!python/object/apply:os.system ['touch {trap}']\n"
        f"b: !!python/object/new:pathlib.Path [{trap}]\n"
        f"c: !!python/name:os.system\n? !!python/object/apply:os.mkdir [{trap}]\n: 1\nn: 8\n"
    )
    assert read(path)["n"] == 8
    assert not trap.exists()


@given(
    content=st.binary(max_size=200)
    | st.text(alphabet="ab:-[]{}&*!|>'\"#%?, \n\t1", max_size=100).map(str.encode)
)
@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
def test_arbitrary_bytes(content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"c{suffix}"
    path.write_bytes(content)
    try:
        config = read(path)
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert all(isinstance(key, str) for key in config)


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "{a: ",
        "[a,",
        "- ",
        "? ",
        "a: b\n",
        "&a ",
        "*a\n",
        "{}\n",
        '"',
        "'a\n",
        "---\n",
        "k: [1]\n",
        "\t",
        "!a ",
    ],
)
def test_time_is_linear(tmp_path: Path, piece: str) -> None:
    for suffix in (".yaml", ".json", ".toml"):
        path = tmp_path / f"c{suffix}"
        path.write_text(piece * (100_000 // len(piece)))
        started = time.process_time()
        with contextlib.suppress(DataError):
            read(path)
        assert time.process_time() - started < 2.5


# Where it is


def put(path: Path, **config: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def test_the_most_particular_is_taken(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    assert find_config(log) == ({}, "")
    names = [
        "args.json",
        "config.json",
        "config.yaml",
        "experiment_config.json",
        ".hydra/config.yaml",
        "run.json",
        "run.yaml",
    ]
    for i, name in enumerate(names):
        put(tmp_path / name, n=i)
        assert find_config(log) == ({"n": i}, name)
    assert find_config(tmp_path) == ({"n": 4}, ".hydra/config.yaml")  # a directory has no name's own


def test_hydras_overrides_where_its_configuration_is_gone(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/overrides.yaml").write_text("- data.train_batch_size=512\n")
    assert find_config(tmp_path / "a.log") == ({"data.train_batch_size": 512}, ".hydra/overrides.yaml")


@pytest.mark.parametrize(
    "inside", ["checkpoint-500", "global_step_20", "files", "tensorboard_log", "monitors/file"]
)
def test_one_further_up_from_a_folder_inside_a_run(tmp_path: Path, inside: str) -> None:
    put(tmp_path / "run/config.yaml", n=8)
    log = tmp_path / "run" / inside / "trainer_state.json"
    log.parent.mkdir(parents=True)
    up = "/".join([".."] * (inside.count("/") + 1))
    assert find_config(log) == ({"n": 8}, f"{up}/config.yaml")
    assert run_directory(log.parent) == tmp_path / "run"


def test_a_run_is_called_as_the_user_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/a/checkpoint-5").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run_directory("runs/a/checkpoint-5") == run_directory("runs/a") == Path("runs/a")
    monkeypatch.chdir(tmp_path / "runs/a")
    assert run_directory("checkpoint-5") == run_directory(".") == tmp_path / "runs/a"  # "." is no name


def test_not_from_the_folder_of_all_runs(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", n=8)
    assert find_config(tmp_path / "qwen_n16/run.jsonl") == ({}, "")
    assert run_directory(tmp_path / "qwen_n16") == tmp_path / "qwen_n16"


def test_a_models_own_is_none(tmp_path: Path) -> None:
    put(tmp_path / "config.json", architectures=["Qwen2ForCausalLM"], hidden_size=896)
    assert find_config(tmp_path / "trainer_state.json") == ({}, "")
    put(tmp_path / "args.json", num_generations=8)
    assert find_config(tmp_path / "trainer_state.json") == ({"num_generations": 8}, "args.json")


def test_a_log_is_not_its_own_configuration(tmp_path: Path) -> None:
    put(tmp_path / "config.json", n=8)
    assert find_config(tmp_path / "config.json") == ({}, "")


def test_one_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: [")
    config, source = find_config(tmp_path / "run.log")
    assert config == {}
    assert source.startswith("config.yaml (cannot be read: not YAML")
    put(tmp_path / "config.json", n=8)
    assert find_config(tmp_path / "run.log") == ({"n": 8}, "config.json")


@pytest.mark.parametrize("name", ["config.yaml", ".hydra/config.yaml", "log.yaml"])
def test_a_link_next_to_a_log_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.yaml").write_text("n: 8\n")
    run, inside = tmp_path / "run", tmp_path / "run" / "own"
    (run / ".hydra").mkdir(parents=True)
    (run / name).symlink_to(tmp_path / "secret.yaml")
    config, source = find_config(run / "log.jsonl")
    assert (config, source) == ({}, f"{name} (not read: a link that leads out of the folder)")
    inside.write_text("n: 16\n")
    (run / name).unlink()
    (run / name).symlink_to(inside)
    assert find_config(run / "log.jsonl") == ({"n": 16}, name)
