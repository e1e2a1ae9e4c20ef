"""What reading may cost: whatever a file holds or promises ends in runs or one message, soon."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolaw import parquet
from isolaw.documents import reading
from isolaw.errors import DataError
from isolaw.readers import configs, containers, limits
from isolaw.readers.containers.notebook import _html_tables
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey
from isolaw.readers.table_files import columns_of, load

MB = limits.MB
STEP = b'{"step":1,"data":{"critic/score/mean":0.5,"val-core/aime24/acc/mean@8":0.5}}\n'
CONSOLE = b"step:1 - critic/score/mean:0.5 - critic/rewards/mean:0.1\n"
LONG = b"run_name,metric,step,value\nr,critic/score/mean,1,0.5\n"
SETTINGS = {"n": 8, "B_p": 16, "framework": "veRL"}
SECONDS, MEGABYTES = 15, 1_000
# Reads a path in a process of its own: the message, seconds of the processor, peak MB.
CHILD = """
import json, resource, sys, time
began = time.process_time()
from isolaw.errors import InputError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey
try:
    said = repr(survey([sys.argv[1]], HowToRead.of(set=json.loads(sys.argv[2]))).runs)
except InputError as error:
    said = str(error)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([said, time.process_time() - began, peak]))
"""


def repeated(path: Path, unit: bytes, size: int, head: bytes = b"", tail: bytes = b"") -> Path:
    block = unit * (MB // len(unit))
    with path.open("wb") as file:
        file.write(head)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(tail)
    return path


def sparse(path: Path, head: bytes, size: int = 100 << 30) -> Path:
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def cost(source: Path, settings: dict[str, object] | None = None) -> tuple[str, float, float]:
    # A process's peak counts what it was forked from: a small shell goes between.
    command = [sys.executable, "-c", CHILD, str(source), json.dumps(settings or SETTINGS)]
    shell = ["sh", "-c", '"$0" "$@"; exit $?', *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    said, seconds, megabytes = json.loads(done.stdout)
    return said, seconds, megabytes


def said_of(source: Path, settings: dict[str, object] | None = None) -> str:
    with pytest.raises(DataError) as caught:
        assert survey([source], HowToRead.of(set=settings or SETTINGS)).runs
    said = str(caught.value)
    assert str(source) in said
    return said


@pytest.mark.parametrize(
    "key",
    [
        ".".join(["a"] * 100_000) + "=1",
        "[" + ".".join(["a"] * 100_000) + "]\nb=1",
        "[[" + ".".join(["a"] * 100_000) + "]]\nb=1",
        ".".join(['"a"'] * 50_000) + "=1",
        "x={" + " . ".join(["a"] * 50_000) + "=1}",
        ".".join(["'a.b'", '"c\\"d"', "e"] * 5) + "=1",
    ],
    ids=["dotted", "table", "array", "quoted", "inline", "mixed"],
)
def test_a_deep_toml_key(tmp_path: Path, key: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"{key}\n")
    began = time.process_time()
    with pytest.raises(DataError, match=r"run\.toml: a TOML key of more than 10 parts"):
        configs.read(path)
    assert time.process_time() - began < 5
    (tmp_path / "run.jsonl").write_bytes(STEP)
    assert len(survey([tmp_path / "run.jsonl"], HowToRead.of(set=SETTINGS)).runs) == 1  # a sound log


def test_toml_of_common_depth(tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    path.write_text('a.b.c.d.e = 1\nurl = "https://a.b.c.d/e.f"\nbetas = [0.1, 0.2]\n[x.y."z.w"]\nv = 1.5\n')
    assert configs.read(path) == {
        "a.b.c.d.e": 1,
        "url": "https://a.b.c.d/e.f",
        "betas": [0.1, 0.2],
        "x.y.z.w.v": 1.5,
    }


@pytest.mark.parametrize("text", ['"' + '\\"' * 100_000, "'" * 200_000, "a" * 200_000, ' "\\' * 60_000])
def test_looking_for_deep_keys_is_linear(text: str) -> None:
    began = time.process_time()
    assert reading._DEEP_KEY.search(text) is None
    assert time.process_time() - began < 2.5


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        (
            "a.json",
            json.dumps({"k" * 400_000: {str(i): 1 for i in range(50_000)}}),
            "a key longer than 1,000",
        ),
        ("a.toml", "a = [" + "1," * 150_000 + "]", "TOML file of more than 250,000"),
        (
            "a.yaml",
            "".join(f"%TAG !{i}! x\n" for i in range(30_000)) + "--- {a: 1}\n",
            "more than 20 directives",
        ),
    ],
    ids=["prefix", "toml", "directives"],
)
def test_configurations_that_multiply(tmp_path: Path, name: str, text: str, match: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=match):
        configs.read(tmp_path / name)


def test_a_long_reference_is_none(tmp_path: Path) -> None:
    keys = {"a": "${" + "x" * 300_000 + "}", **{f"k{i}": "${a}" for i in range(20_000)}}
    began = time.process_time()
    assert configs.flatten(keys) == {}
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("run.jsonl", STEP),
        ("train.log", CONSOLE),
        ("long.csv", LONG),
        ("trainer_state.json", b'{"global_step":1,"log_history":[{"step":1,"reward":1}'),
        ("table.csv", b"step,value\n1,2\n"),
        ("table.parquet", b"PAR1"),
        ("none.txt", b"hello\n"),
    ],
)
def test_a_hole_of_100_gb(tmp_path: Path, name: str, head: bytes) -> None:
    path = sparse(tmp_path / name, head)
    began = time.process_time()
    said_of(path)
    assert time.process_time() - began < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("run.jsonl", marks=pytest.mark.nightly), "train.log"])
def test_a_line_that_does_not_end(tmp_path: Path, name: str) -> None:
    head = STEP if name == "run.jsonl" else CONSOLE * 800
    assert "longer than 256 MB" in said_of(sparse(tmp_path / name, head, 600 * MB))
    path = sparse(tmp_path / name, head, 20 * MB)  # a hole of a crash: the rest counts
    with path.open("ab") as file:
        file.write(b"\n" + (STEP if name == "run.jsonl" else CONSOLE).replace(b"1", b"2", 1))
    assert len(survey([path], HowToRead.of(set=SETTINGS)).runs) == 1


def test_time_is_relative_to_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = repeated(tmp_path / "run.jsonl", STEP, 3 * MB)
    assert len(survey([path], HowToRead.of(set=SETTINGS)).runs) == 1
    monkeypatch.setattr(limits, "FLOOR_S", 0.0)
    monkeypatch.setattr(limits, "S_PER_MB", 1e-6)
    said = said_of(path)
    assert "s per MB" in said
    assert "leave it out" in said


def test_waiting_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOOR_S", 0.1)
    with limits.opened(repeated(tmp_path / "run.jsonl", STEP, MB)) as file:
        time.sleep(0.2)  # as on a slow disk
        assert file.read(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("run.jsonl", STEP + b"1\n" * 200_000, "over 100,000 lines that are not JSON objects"),
        (
            "trainer_state.json",
            b'{"global_step":1,"log_history":[' + b"[]," * 200_000 + b"{}]}",
            "over 100,000 records that are not objects",
        ),
        (
            "run.jsonl",
            STEP + b"".join(b'{"step":1,"data":{"a/%d":1}}\n' % i for i in range(110_000)),
            r"records with .* values of .* metrics; expected at most what takes 750 MB",
        ),
    ],
    ids=["no objects", "lists", "names"],
)
def test_counts(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=match):
        list(containers.get("jsonl" if name == "run.jsonl" else "trainer-state").read(tmp_path / name))


def test_long_names_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(STEP + b'{"step":2,"data":{"' + b"x" * 5_000 + b'":1,"critic/score/mean":1}}\n')
    (log,) = containers.get("jsonl").read(path)
    assert log.dropped == {"values of names longer than 1,000 characters": 1}


class TestTables:
    @pytest.mark.parametrize(
        ("content", "match"),
        [
            (b",".join(b"c%d" % i for i in range(20_000)) + b"\n1\n", "20,000 columns"),
            (b'"a\n",' + b"a," * 20_000 + b"\n1\n", "20,002 columns"),
            (b"a,b\n" + b"\n" * 2_000_000, "2,000,001 rows"),
            (b"a,b\n" + (b"," * 99 + b"\n") * 60_000, r"6,000,002 cells"),
            (b'{"a":1}\n' * 1_100_000, "1,100,000 rows"),
            (b"".join(b'{"a%d":1,"b%d":2}\n' % (i, i) for i in range(3_000)), "cells"),
            (b'{"a":1}\n{' + b",".join(b'"%d":1' % i for i in range(11_000)) + b"}\n", "over 10,000 columns"),
        ],
        ids=["columns", "quoted", "lines", "commas", "rows", "sparse", "wide"],
    )
    def test_sizes(self, tmp_path: Path, content: bytes, match: str) -> None:
        path = tmp_path / "table"
        path.write_bytes(content)
        began = time.process_time()
        with pytest.raises(DataError, match=match):
            load(path)
        assert time.process_time() - began < SECONDS

    def test_a_value_is_not_shown_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_bytes(b"n,b,step,avg@4\n8,8,1," + b"x" * 2 * MB + b"\n")
        with pytest.raises(DataError) as caught:
            assert survey([path], HowToRead.of(set={"n": 8, "B_p": 8}, metric="avg@4")).runs
        assert len(str(caught.value)) < 2_000

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["rows", "text", "plain", "delta", "columns", "footer"])
    def test_parquet_that_unfolds(self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet, "_MOST_BYTES", 3 * MB)
        path = tmp_path / "t.parquet"
        if kind == "rows":
            pq.write_table(pa.table({"step": pa.nulls(3_000_000, pa.int8())}), path, compression="zstd")
        elif kind == "text":  # one text of 100 kB in 100,000 rows: 10 GB
            text = pa.DictionaryArray.from_arrays(
                pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 100_000])
            )
            pq.write_table(pa.table({"step": text}), path, store_schema=False)
        elif kind == "plain":
            text = pa.array(["x" * 4 * MB])
            pq.write_table(pa.table({"step": text}), path, compression="zstd", use_dictionary=False)
        elif kind == "delta":
            text = pa.array(["x" * 10_000] * 1_000)
            options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "compression": "zstd"}
            pq.write_table(pa.table({"step": text}), path, **options)
        elif kind == "columns":
            pq.write_table(pa.table({f"c{i}": [1] for i in range(11_000)}), path)
        else:
            path.write_bytes(b"PAR1" + b"x" * 100 + b"\xf0\xff\xff\xff" + b"PAR1")
        assert path.stat().st_size < 4 * MB
        began = time.process_time()
        with pytest.raises(DataError, match=r"t\.parquet: .*(isolaw reads|not a readable)"):
            parquet.read_parquet(path)
        if kind in ("columns", "footer"):
            assert columns_of(path, b"PAR1") == []
        assert time.process_time() - began < SECONDS

    def test_a_footer_that_lies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The footer says a few bytes, the page 4 MB: Arrow would allocate what the page says."""
        monkeypatch.setattr(parquet, "_MOST_BYTES", 3 * MB)
        path = tmp_path / "t.parquet"
        pq.write_table(
            pa.table({"step": pa.array(["x" * 4 * MB])}), path, compression="zstd", use_dictionary=False,
            write_statistics=False,
        )  # fmt: skip
        true = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
        content = path.read_bytes()
        old, new = varint(true), b"\x88\x80\x80\x00"
        assert len(old) == len(new)
        assert old in content
        path.write_bytes(content.replace(old, new))
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 4
        with pytest.raises(DataError, match="4 MB or more when unpacked"):
            parquet.read_parquet(path)

    @pytest.mark.slow
    def test_one_row_of_long_texts_is_refused_before_it_is_decoded(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        text = pa.array(["a" * 60 * MB])
        table = pa.table({"n": [8], **{f"c{i}": text for i in range(6)}})
        pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
        assert path.stat().st_size < MB
        said, _, megabytes = cost(path)
        assert "MB or more when unpacked; isolaw reads up to 1" in said
        assert megabytes < 500  # decoded, the row takes more than 1 GB

    @pytest.mark.parametrize(
        "unit",
        ["</a", "<?", "<!--", "<table a='", "<table ", "<tr ", "<td ", "<td>x", "<td>", " x", "x<b>", "&"],
    )
    def test_html_takes_linear_time(self, unit: str) -> None:
        began = time.process_time()
        text = "<table><tr><th>step</th><th>reward</th></tr><tr><td>1</td><td>0.5</td></tr></table>"
        assert _html_tables(text + unit * 200_000)[0] == (["step", "reward"], [["1", "0.5"]])
        _html_tables("<table><tr><td>" + unit * 200_000)
        assert time.process_time() - began < SECONDS / 3

    @pytest.mark.parametrize("version", ["1.0", "2.0"])
    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
    def test_sound_parquet_is_read_as_it_is(self, tmp_path: Path, version: str, compression: str) -> None:
        path = tmp_path / "t.parquet"
        table = pa.table(
            {
                "run": [f"run {i % 7}" for i in range(5_000)],
                "large": pa.array(["é", None] * 2_500, pa.large_string()),
                "kind": pa.array(["a", "b"] * 2_500).dictionary_encode(),
                "step": list(range(5_000)),
                "value": [0.5] * 5_000,
                "on": [True, None] * 2_500,
                "at": pa.array([0] * 5_000, pa.timestamp("us")),
                "lists": [[1, 2]] * 5_000,
            }
        )
        pq.write_table(
            table, path, data_page_version=version, compression=compression, row_group_size=1_500,
            data_page_size=1_000,
        )  # fmt: skip
        pd.testing.assert_frame_equal(
            parquet.read_parquet(path).to_pandas(), pq.read_table(path).drop_columns("lists").to_pandas()
        )
        assert load(path).attrs["notes"] == ["isolaw left out columns of lists: lists"]


def varint(number: int) -> bytes:
    number, out = number << 1, b""  # zigzag
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_a_configuration_beyond_the_limits_is_named_where_it_is_missed(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(STEP)
    (tmp_path / "run.toml").write_text("a." * 20 + "a = 1")
    with pytest.raises(DataError, match=r"isolaw did not use its configuration: run\.toml \(cannot be read"):
        assert survey([tmp_path / "run.jsonl"]).runs


class TestDirectories:
    @pytest.mark.slow
    def test_pipes_are_not_opened(self, tmp_path: Path) -> None:
        for name in ("x.jsonl", "config.yaml", "run.yaml", "sweep.json"):
            os.mkfifo(tmp_path / name)
        wandb = tmp_path / "run-1-a"
        (wandb / "files").mkdir(parents=True)
        for name in ("run-a.wandb", "files/wandb-metadata.json", "files/config.yaml", "files/output.log"):
            os.mkfifo(wandb / name)
        mlflow = tmp_path / "mlruns" / "0" / "a"
        (mlflow / "metrics").mkdir(parents=True)
        (mlflow / "meta.yaml").write_text("run_name: a\n")
        os.mkfifo(mlflow / "metrics" / "reward")
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), json.dumps(SETTINGS)],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        assert "the W&B run has no history" in done.stdout

    def test_more_files_than_are_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for i in range(30):
            (tmp_path / f"{i}.jsonl").write_bytes(STEP)
        monkeypatch.setattr(limits, "MOST_LOGS", 20)
        assert "over 20 logs" in said_of(tmp_path)
        monkeypatch.setattr(limits, "MOST_FILES", 20)
        assert "over 20 files and directories" in said_of(tmp_path)

    def test_deep_folders_of_metrics(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = tmp_path / "a"
        (run / "metrics").mkdir(parents=True)
        (run / "meta.yaml").write_text("run_name: a\n")
        (run / "metrics" / "reward").write_text("1 0.5 1\n")
        monkeypatch.chdir(run / "metrics")
        for _ in range(1_200):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(tmp_path)
        try:
            (log,) = containers.get("mlflow").read(run)
        finally:
            subprocess.run(["rm", "-r", str(run)], check=True)  # pytest's own way is recursive
        assert list(log.series) == ["reward"]

    def test_a_bad_file_hides_no_good_one(self, tmp_path: Path) -> None:
        for i in range(3):
            (tmp_path / f"good{i}.jsonl").write_bytes(STEP)
        sparse(tmp_path / "bad.jsonl", STEP)
        said = said_of(tmp_path, {"framework": "veRL"})
        assert said.count("bad.jsonl: 107,374 MB") == 1
        assert all(f"good{i}" in said for i in range(3))


LARGE: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "state": (
        "trainer_state.json",
        lambda path: repeated(
            path,
            b'{"step":1,"loss":1,"t":"' + b"x" * 4_000 + b'"},',
            500 * MB,
            b'{"global_step":1,"log_history":[{"t":"\xf0\x9f\x98\x80"},',
            b"{}]}",
        ),
        "",
    ),
    "state of one text": (
        "trainer_state.json",
        lambda path: repeated(
            path, b"x", 500 * MB, b'{"global_step":1,"log_history":[{"a":"\xf0\x9f\x98\x80', b'"}]}'
        ),
        "has no record",
    ),
    "csv of one field": (
        "t.csv",
        lambda path: repeated(path, b"x", 1_000 * MB, b'step,value\n1,"\xf0\x9f\x98\x80', b'"\n'),
        "up to 100 MB",
    ),
    "export of one line": (
        "w.csv",
        lambda path: repeated(path, b"x", 1_000 * MB, LONG),
        "8 million characters",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.nightly] * (c != "export of one line")) for c in LARGE]
)
def test_large_files(tmp_path: Path, case: str) -> None:
    name, build, match = LARGE[case]
    path = build(tmp_path / name)
    said, seconds, megabytes = cost(path)
    path.unlink()
    assert match in said
    assert seconds < SECONDS + (3 if case == "state" else 0)
    assert megabytes < MEGABYTES


def pandas_says(**keys: object) -> bytes:
    sound = {"index_columns": [], "column_indexes": [], "columns": [], "pandas_version": "2.2.0"}
    return json.dumps(sound | keys).encode()


FALSE = {
    "index": pandas_says(index_columns=["gone"]),
    "no JSON": b"{",
    "a list": b"[1]",
    "range": pandas_says(
        index_columns=[{"kind": "range", "name": None, "start": 0, "stop": 9**18, "step": 1}]
    ),
    "column indexes": pandas_says(
        column_indexes=[{"name": "x", "pandas_type": "odd", "numpy_type": "odd"}] * 3
    ),
    "columns": pandas_says(
        columns=[{"name": "n", "pandas_type": "datetimetz", "metadata": {"timezone": "x/y"}}]
    ),
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("kind", FALSE)
def test_what_parquet_says_to_pandas_does_not_count(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.parquet"
    rows = {"run_name": ["a", "a"], "timestamp": ["", ""], "step": [1, 2], "n": [8, 8], "avg@4": [0.5, 0.25]}
    pq.write_table(pa.table(rows).replace_schema_metadata({b"pandas": FALSE[kind]}), path)
    assert load(path)["step"].to_list() == [1, 2]


@pytest.mark.parametrize("zone", ["nowhere/at-all", "\x00", "+99:99"])
def test_values_that_pandas_has_not_are_a_message(tmp_path: Path, zone: str) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"step": pa.array([1], pa.timestamp("us", zone))}), path)
    with pytest.raises(DataError, match=r"t\.parquet: not a readable Parquet file"):
        load(path)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("jsonl", '{{"step": 1, "data": {{"critic/score/mean": 0.5}}}}\n'
                  '{{"step": 2, "data": {{"critic/score/mean": {}}}}}\n'),
        ("wandb-csv", "_step,_runtime,critic/score/mean\n1,1,0.5\n2,2,{}\n"),
        ("wandb-csv", "run_name,metric,step,value\nr,critic/score/mean,1,0.5\nr,critic/score/mean,2,{}\n"),
        ("stdout-dicts", "{{'reward': 0.5, 'loss': 0.5, 'epoch': 0.1}}\n"
                         "{{'reward': {}, 'loss': 0.5, 'epoch': 0.2}}\n"),
    ],
)  # fmt: skip
def test_a_reward_of_400_digits_is_not_finite(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / "log"
    path.write_text(form.format(10**400))
    (log,) = containers.get(name).read(path)
    assert log.dropped == {"values that are not finite": 1}


@pytest.mark.parametrize("list_of", [False, True])
def test_a_tables_integer_of_400_digits_is_not_finite(tmp_path: Path, list_of: bool) -> None:
    path = tmp_path / "rows.jsonl"
    rows = ['{"step": 1, "acc": 0.5}', f'{{"step": 2, "acc": {10**400}}}']
    path.write_text(f"[{','.join(rows)}]" if list_of else "\n".join(rows))
    assert load(path)["acc"].tolist() == [0.5, float("inf")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(k, marks=pytest.mark.nightly) for k in ("repeated", "distinct", "view")), "decimals"],
)
def test_a_small_parquet_file_takes_no_500_mb(tmp_path: Path, kind: str) -> None:
    path, long = tmp_path / "t.parquet", "x" * 300_000
    options: dict[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 2**30}
    if kind == "repeated":  # each batch of rows has a copy of the dictionary
        rows = pa.array([0, *[1] * 500_000], pa.int32())
        columns = {"step": pa.DictionaryArray.from_arrays(rows, ["x" * 30 * MB, ""])}
    elif kind == "distinct":
        columns = {"step": pa.array([f"{long}{i}" for i in range(900)])}
        options["use_dictionary"] = False
    elif kind == "view":  # one text in 10,000 rows
        views = struct.pack("<i4sii", 300_000, b"xxxx", 0, 0) * 10_000
        buffers = [None, pa.py_buffer(views), pa.py_buffer(long.encode())]
        columns = {"step": pa.Array.from_buffers(pa.string_view(), 10_000, buffers)}
    else:
        half = pa.array([Decimal("0.5")] * 16_000, pa.decimal256(76, 10))
        columns = {f"c{i}": half for i in range(1_500)}
    pq.write_table(pa.table(columns), path, **options)
    assert path.stat().st_size < MB
    _, seconds, megabytes = cost(path)
    assert seconds < SECONDS
    assert megabytes < 700  # 250 MB of them without a file


@pytest.mark.nightly
@pytest.mark.slow
def test_a_long_text_column_is_read_whole(tmp_path: Path) -> None:
    """Arrow repeats all texts so far with each batch of rows: 5 GB for 100 MB."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"step": [f"{i:0100d}" for i in range(1_000_000)]}), path)
    assert cost(path)[2] < 1_000


def test_a_damaged_column_chunk_is_a_message(tmp_path: Path) -> None:
    """A column of another type, or none, in a row group: Arrow's view of it would end the process."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": ["x"], "step": [1], "v": [0.5]}), path)
    sound = path.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    for at in range(footer, footer + 128):
        path.write_bytes(sound[:at] + b"\x22" + sound[at + 1 :])
        with contextlib.suppress(DataError):
            parquet.read_parquet(path)


@pytest.mark.slow
def test_a_table_of_many_runs(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"r{i},32,8,{i},1,0.5\n" for i in range(5_001))
    path.write_text("run_id,B_p,n,seed,step,avg@4\n" + rows)
    (table,) = survey([path]).candidates
    assert table.message.startswith("5,001 runs; isolaw reads up to 5,000 of a table")


def test_columns_with_the_same_beginning(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"a": ["x"], "a.b": ["y"], "a.c": [1], "é.x": ["z"]})
    pq.write_table(table, path)
    assert parquet.read_parquet(path) == table
