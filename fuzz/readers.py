"""Feed the log readers what a fuzzer makes of sound logs: ``python fuzz/readers.py READER [-libfuzzer=…]``.

READER is a container's name, ``table``, ``config``, ``read`` (a log and its configuration, all of reading),
or one of `OF_OPTIONS`; without one they are listed. Anything but a message fails, as do more than 500 MB,
more than 5 s for 1 MB, and more than 2 s for an input of `OF_OPTIONS`; what failed is
kept under ``.fuzz/READER/``, and is read again when its name is given: ``… READER FILE``.

Several files are one input, with `SEPARATOR` between them. Checksums count as right: the fuzzer would never
hit one, and behind them nothing would be tested.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import atheris
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

with atheris.instrument_imports(include=["isolaw"]):
    from isolaw.config import SweepSpec
    from isolaw.errors import DataError, InputError
    from isolaw.parquet import frame_of, read_parquet
    from isolaw.readers import configs, containers, frameworks, table_files, tables
    from isolaw.readers.how_to_read import HowToRead
    from isolaw.readers.name_patterns import NamePattern, suggest
    from isolaw.readers.survey import survey
    from isolaw.runs import Runs

    for name in containers.CONTAINERS:
        containers.get(name)
    list(frameworks.known())

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".fuzz"
SEPARATOR = b"\n==\n"
SECONDS, MEGABYTES = 5, 500
LARGE = 1_000_000
ONE_IN = 64  # inputs are also read repeated to 1 MB: time may not grow faster than size
SETTINGS = [{"n": 8, "B_p": 16}, {"n": 8, "B_p": 16, "framework": "veRL"}, None]
OF_OPTIONS = (
    "isolaw-toml",
    "name-pattern",
    "parquet-metadata",
)  # what is read besides logs
MLFLOW = ("meta.yaml", "tags/mlflow.runName", "params/data.train_batch_size", "metrics/critic/score/mean")
CONFIGS = ("config.yaml", "config.json", "config.toml")


class Right:
    """A checksum that every other equals."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def believe_checksums() -> None:
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    from isolaw.readers.containers import wandb_offline

    pywrap_tensorflow.masked_crc32c = lambda _data: Right()
    wandb_offline.zlib = SimpleNamespace(crc32=lambda *_: Right())


def write(folder: Path, names: Iterable[str], content: bytes) -> None:
    parts = content.split(SEPARATOR)
    for name, part in zip(names, parts, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(part)


def drain(name: str, path: Path) -> None:
    """Read as this container, whatever it makes of the file."""
    container = containers.get(name)
    container.directory(path.parent)
    if path.is_file():
        container.file(path, path.read_bytes()[:65_536])
    for log in container.read(path):
        assert len(log.step) == len(log.wall_s)
        for key, series in log.series.items():
            assert isinstance(key, str)
            assert len(series.record) == len(series.value)
        json.dumps(log.config, default=str)


def as_file(name: str) -> Callable[[Path, bytes], None]:
    def read(folder: Path, content: bytes) -> None:
        write(folder, ["log", "config.yaml"], content)
        drain(name, folder / "log")

    return read


def as_mlflow(folder: Path, content: bytes) -> None:
    (folder / "metrics").mkdir()
    write(folder, MLFLOW, content)
    drain("mlflow", folder)


def as_wandb(folder: Path, content: bytes) -> None:
    names = ("run-a.wandb", "files/config.yaml")
    write(folder, names, content)
    drain("wandb-offline", folder)


def as_config(folder: Path, content: bytes) -> None:
    for name in CONFIGS:
        (folder / name).write_bytes(content)
        with contextlib.suppress(DataError):
            configs.read(folder / name)


def as_table(folder: Path, content: bytes) -> None:
    """A table whose first bytes say Parquet, or say nothing."""
    write(folder, ["table"], content)
    with contextlib.suppress(DataError):
        tables.read_table(folder / "table", HowToRead.of(set={"n": 8, "B_p": 4}, metric="acc"))
    table_files.columns_of(folder / "table", content[:65_536])


def whole(folder: Path, content: bytes) -> None:
    """All of reading: as a directory whose files nobody named."""
    write(folder, ["log", "config.yaml"], content)
    reading = survey([folder], HowToRead.of(set=SETTINGS[zlib.crc32(content) % len(SETTINGS)]))
    json.dumps([candidate.to_dict() for candidate in reading.candidates], allow_nan=False)


def as_isolaw_toml(folder: Path, content: bytes) -> None:
    """The file that is read with a log, and as a sweep file."""
    rows = "".join(f'{{"step": {step}, "critic/score/mean": 0.5}}\n' for step in range(3))
    (folder / "n8-log.jsonl").write_text(rows)
    (folder / "isolaw.toml").write_bytes(content)
    with contextlib.suppress(InputError):
        SweepSpec.read(folder / "isolaw.toml", ["sweep.compute=1e7"])
    survey([folder], HowToRead.of(set={"B_p": 16}))


def as_name_pattern(_: Path, content: bytes) -> None:
    """A pattern, and names."""
    pattern, *names = content.decode("utf-8", "replace").split(SEPARATOR.decode())
    if names:
        suggest(names, ["n", "B_p", "seed"])
    read = NamePattern(pattern)
    for name in names:
        read.read(name, names)


def as_parquet_metadata(folder: Path, content: bytes) -> None:
    """What a file says about itself: to pandas, to Arrow and to isolaw; and a footer with other bytes."""
    kinds = (b"pandas", b"ARROW:schema", b"isolaw")
    metadata = dict(zip(kinds, content.split(SEPARATOR), strict=False))
    table = pa.table(
        {"run_name": ["a"], "timestamp": ["b"], "step": [1], "__index_level_0__": [2], "v": [0.5]}
    )
    path = folder / "a.parquet"
    pq.write_table(
        table.replace_schema_metadata(metadata), path, store_schema=b"ARROW:schema" not in metadata
    )
    whole, damaged = path.read_bytes(), [zlib.crc32(content + bytes([i])) for i in range(3)]
    for number in (0, *damaged):
        other = bytearray(whole)
        if number:
            other[len(whole) - 9 - number % (len(whole) // 2)] = number >> 24
        path.write_bytes(other)
        for read in (lambda: frame_of(read_parquet(path), path), lambda: Runs.from_parquet(path)):
            with contextlib.suppress(DataError):
                read()


READERS: dict[str, Callable[[Path, bytes], None]] = {
    **{name: as_file(name) for name in containers.CONTAINERS},
    "mlflow": as_mlflow,
    "wandb-offline": as_wandb,
    "config": as_config,
    "table": as_table,
    "read": whole,
    "isolaw-toml": as_isolaw_toml,
    "name-pattern": as_name_pattern,
    "parquet-metadata": as_parquet_metadata,
}


def fixtures(name: str) -> ModuleType:
    """A module of the tests: they write sound logs."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "tests" / "readers" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def seeds(reader: str, folder: Path) -> list[bytes]:
    """Sound logs, as the tests write them."""
    verl = fixtures("containers/conftest").VerlRun(steps=4)
    config = json.dumps(verl.config).encode()
    hostile = fixtures("test_hostile").seeds(folder / "canary")
    console = verl.console()
    metrics = [
        verl.jsonl().encode(),
        b'{"step": 1, "time": 1.7e9, "reward/all/mean": 0.5, "nested": {"a": 1}}\n',
    ]
    dicts = fixtures("containers/test_stdout_dicts")
    stdout = [dicts.trainer().encode(), dicts.trainer(dicts.old, bars=False).encode()]
    stdout.append(dicts.slime(range(2)).encode())
    swift = "".join(dicts.SWIFT.format(step=step, reward=0.5) for step in (5, 10))
    stdout += [(dicts.UNSLOTH + dicts.trainer(dicts.old)).encode(), swift.encode()]
    tinker = fixtures("frameworks/test_tinker")
    record = {"step": 0, "env/all/reward/total": 0.5, **tinker.METRICS, **tinker.TEST}
    metrics.append(json.dumps(record).encode())
    histories = fixtures("containers/test_json_document")
    documents = [
        json.dumps(value, indent=1).encode()
        for value in (histories.RECORDS, histories.COLUMNS, {"args": {"n": 8}, "history": histories.RECORDS})
    ]
    documents.append(b"".join(json.dumps(item, indent=1).encode() for item in histories.RECORDS))
    states = fixtures("containers/test_trainer_state")
    state = [states.state(states.HISTORY).encode()]
    csv = fixtures("containers/test_wandb_csv")
    exports = [value.encode() for value in (csv.WIDE, csv.LONG, csv.HISTORY, csv.GLOBAL_STEP)]
    boards = fixtures("containers/test_tensorboard")
    values = [(s, 1.0 * s, boards.scalar(boards.SCORE, s / 8)) for s in (1, 2)]
    values += [(2, 2.0, boards.text("args/text_summary", config.decode()))]
    events = [boards.write(folder, values).read_bytes()]
    offline = fixtures("containers/test_wandb_offline")
    records = [offline.history(step, **{boards.SCORE: "0.5", "_runtime": "7"}) for step in (1, 2)]
    updated = offline.Record()
    updated.config.update.add(key="data", value_json='{"train_batch_size": 16}')
    offline.wandb_file(folder, updated.SerializeToString(), *records)
    runs = [SEPARATOR.join([(folder / "run-dddd4444.wandb").read_bytes(), stdout[0], config])]
    runs.append(SEPARATOR.join([offline.HEADER, stdout[0], hostile["config.yaml"]]))
    runs.append(SEPARATOR.join([b"", console, b""]))
    pq.write_table(pa.table({"run": ["a", "b"], "step": [1, 2], "v": [0.5, None]}), folder / "t.parquet")
    steps, notebooks = fixtures("containers/test_step_console"), fixtures("containers/test_notebook")
    book = notebooks.write(
        folder / "a.ipynb", notebooks.stream(notebooks.BANNER), notebooks.display(notebooks.html([0.5, 0.25]))
    )
    forms = (steps.areal, steps.nemo, steps.mlx, steps.mlx_lines, steps.roll)
    consoles = [form([0.5, 0.25]).encode() for form in forms]
    consoles.append("\n".join(fixtures("containers/test_prime_rl_console").LINES).encode())
    line = b"Epoch %d/2 step %d: acc=0.5 samples=%d | eval: acc=0.25\n"
    plain = b"Group size: 8\n" + b"".join(line % (i // 3 + 1, i % 3, 32 * i) for i in range(6))
    texts = [*consoles, *metrics, *documents, console, *stdout, *state, *exports, *events]
    frame = pd.DataFrame({"run_name": ["a"], "step": [1]}).set_index("step")
    schema = base64.b64encode(pa.Table.from_pandas(frame).schema.serialize().to_pybytes())
    return {
        "jsonl": metrics,
        "json": documents,
        "verl-console": [console, hostile["train.log"]],
        "step-console": consoles,
        "notebook": [book.read_bytes()],
        "stdout-dicts": [*stdout, hostile["stdout.txt"]],
        "trainer-state": state,
        "wandb-csv": exports,
        "tensorboard": events,
        "wandb-offline": runs,
        "mlflow": [
            SEPARATOR.join([b"run_name: 'a'\nlifecycle_stage: active\n", b"a", b"16", b"1 0.5 1\n2 0.5 2\n"])
        ],
        "config": [
            config,
            hostile["config.yaml"],
            b"a: &a [1, *a]\nb: ${a}\n",
            b'[data]\nn = 8\n"a.b" = [1]\n',
            b"a.b.c.d.e.f.g.h.i = {j.k = 1}\n[[l.m]]\n",
            b"%TAG !a! b\n--- {a: !a!b &c 1, d: *c, e: '${a}'}\n",
        ],
        "table": [plain, (folder / "t.parquet").read_bytes(), b"step,acc\n1,0.5\n", hostile["rows.jsonl"]],
        "isolaw-toml": [
            b'format = "jsonl"\nonly = ["*n8*"]\nname_pattern = ["n{n}-*"]\n[set]\nB_p = 128\n',
            b'[set."*n8*"]\nseed = 1\nlr = 1e-6\n[set."runs/*"]\nn = 8\n',
            b'[columns]\nn = "g"\nC = "a * b"\n[set]\nB_p = 8\n[metrics]\n"avg@4" = "a"\n',
            b"[sweep]\ncompute = 1e7\nseeds = 2\n[grid]\nrollouts_per_problem = [8, 16]\n",
            b"".join(b"[t%d]\nk%d = 1\n" % (i, i) for i in range(500)),
        ],
        "name-pattern": [
            SEPARATOR.join(value)
            for value in (
                (b"*-s{seed}-p{B_p}-n{n}*", b"grpo-s21-p8-n128-m4", b"grpo-s22-p8-n32-m4"),
                (b"*a*a*a*a*a*aX{n}", b"a" * 60),
                (b"*n{n}-lr{lr}/*", b"runs/n8-lr1e-6/a", b"runs/n8-lr2e-6/a"),
            )
        ],
        "parquet-metadata": [
            json.dumps({"index_columns": ["gone"], "columns": [], "column_indexes": []}).encode(),
            SEPARATOR.join(
                [pa.Table.from_pandas(frame).schema.metadata[b"pandas"], schema, b'{"a": {"n": 8}}']
            ),
        ],
        "read": [text + SEPARATOR + config for text in texts],
    }[reader]


def dictionary(path: Path) -> Path:
    """Words that the forms are made of, in libFuzzer's syntax."""
    words = (
        "step:|step:1 - |np.float64(|tensor(|, device='cuda:0')|'loss': |'reward': |'epoch': |{'|nan|NaN|"
        '"step": |"data": {|"log_history": [|"history": [|"global_step": |critic/score/mean|'
        "val-core/a/acc/mean@8|Step |1e999|-Infinity|!!python/object/apply:|&a |*a|${a}|_step|_runtime|"
        "run_name,metric,step,value| - |__MIN|100%|##|config: {|config_cb None None {|"
        "'global_step/max_steps': '1/2'| | Total steps = 1,000| 1/2 [|"
        "Initial validation metrics: {|Epoch 1/2 step 3: |eval: |total_episodes|group size = 4|"
        "hex(zeroblob(9999999))|CREATE VIEW metrics AS |GENERATED ALWAYS AS (|"
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i FROM c) |"
        "name_pattern = [|[set.'*']|{n}|{seed}|index_columns|column_indexes|pandas_type|"
        "metrics_tag: {|(TaskRunner pid=1) |GRPOConfig(|,\n|\r|\x1b[36m"
    )
    escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in words.split("|"))
    path.write_text("".join(f'"{word}"\n' for word in escaped if word))
    return path


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in READERS:
        print("\n".join(READERS))
        sys.exit(len(sys.argv) > 1)
    reader = sys.argv.pop(1)
    kept = KEPT / reader
    corpus = kept / "corpus"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if not corpus.is_dir():
            corpus.mkdir(parents=True)
            for number, content in enumerate(seeds(reader, folder)):
                (corpus / f"seed-{number}").write_bytes(content)
        believe_checksums()
        warnings.simplefilter("error")  # it would stand between the user's results
        read = READERS[reader]

        def attempt(content: bytes) -> None:
            run = folder / "run"
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir()
            began = time.process_time()
            try:
                read(run, content)
            except InputError as error:
                said = str(error)
            else:
                said = "no error"
            assert said
            took = time.process_time() - began
            most = 2 if reader in OF_OPTIONS else SECONDS
            assert took < most, f"{took:.1f} s for {len(content):,} bytes"

        def one(content: bytes) -> None:
            attempt(content)
            if zlib.crc32(content) % ONE_IN == 0 and reader not in OF_OPTIONS:
                parts = content.split(SEPARATOR)
                size = LARGE // len(parts)
                attempt(SEPARATOR.join((part * (size // max(len(part), 1) + 1))[:size] for part in parts))

        options = [
            f"-rss_limit_mb={MEGABYTES}",
            f"-timeout={10 * SECONDS}",  # seconds of the wall: the machine may be busy
            "-max_len=65536",
            f"-artifact_prefix={kept}/",
            f"-dict={dictionary(kept / 'words')}",
            "-print_final_stats=1",
        ]
        given = sys.argv[1:]
        again = any(not word.startswith("-") for word in given)
        atheris.Setup([sys.argv[0], *options, *given, *([] if again else [str(corpus)])], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
