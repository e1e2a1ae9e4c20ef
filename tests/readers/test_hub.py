"""Logs in data sets of the Hugging Face Hub, against a local server that answers as the Hub does."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, NotInstalled
from isolaw.readers.hub import local
from isolaw.readers.survey import survey

pytest.importorskip("huggingface_hub")
LOGS = Path(__file__).parents[2] / "examples" / "logs"
SHA = "a" * 40
BRANCH = "b" * 40
NAME = "hf://datasets/me/logs"


class Hub(ThreadingHTTPServer):
    """Repositories, each a folder for every revision, and what was asked for."""

    def __init__(self, files: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files, self.asked = files, list[str]()
        self.gated = False

    @property
    def downloads(self) -> list[str]:
        return [
            request.partition("/resolve/")[2][41:]
            for request in self.asked
            if request.startswith("GET /datasets")
        ]


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self, body: bool = True) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        owner, name, kind, rest = path.removeprefix("/api").removeprefix("/datasets/").split("/", 3)
        if (owner, name) != ("me", "logs"):
            return self.refuse(404, "RepoNotFound")
        if kind in ("tree", "revision"):
            sha = {"main": SHA, "refs/pr/1": BRANCH, "v1/x": BRANCH}.get(rest, rest)
            if sha not in self.server.files:
                return self.refuse(404, "RevisionNotFound")
            top = self.server.files[sha]
            files = [item for item in sorted(top.rglob("*")) if item.is_file()]
            named = [(str(item.relative_to(top)), item.read_bytes()) for item in files]
            tree = [
                {"type": "file", "path": p, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                for p, b in named
            ]
            info = {"id": "me/logs", "sha": sha, "siblings": [{"rfilename": p} for p, _ in named]}
            return self.answer(json.dumps(tree if kind == "tree" else info).encode(), {}, body)
        if self.server.gated:
            return self.refuse(403, "GatedRepo")
        sha, _, file = rest.partition("/")
        data = (self.server.files[sha] / file).read_bytes()
        return self.answer(data, {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, body)

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def answer(self, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(200)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with the data set me/logs, and an empty cache; the libraries read their settings once."""
    files = {SHA: tmp_path / "main", BRANCH: tmp_path / "branch"}
    shutil.copytree(LOGS / "verl", files[SHA] / "runs")
    shutil.copytree(LOGS / "table", files[SHA] / "table")
    (files[SHA] / "model.safetensors").write_bytes(b"weights")
    shutil.copytree(LOGS / "table", files[BRANCH])
    server = Hub(files)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    reach(monkeypatch, server.server_address[1])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


def reach(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """What ``HF_ENDPOINT`` sets before huggingface_hub is imported."""
    from huggingface_hub import constants

    url = f"http://127.0.0.1:{port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "".join(template[1:]))
    monkeypatch.setattr(constants, "ENDPOINT", url)


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.slow
def test_a_data_set_is_downloaded_once_and_read_as_a_folder(hub: Hub, monkeypatch) -> None:
    expected = isolaw.read(hub.files[SHA] / "runs")
    runs = isolaw.read(f"{NAME}/runs")
    pd.testing.assert_frame_equal(runs.points.drop(columns="run_id"), expected.points.drop(columns="run_id"))
    assert runs.source == f"{NAME}/runs"
    assert not [name for name in hub.downloads if name.startswith("table/") and not name.endswith(".toml")]
    before = len(hub.downloads)
    isolaw.read(f"{NAME}/runs")
    assert len(hub.downloads) == before
    survey([NAME])
    assert "model.safetensors" not in hub.downloads
    offline(monkeypatch)
    asked = len(hub.asked)
    pd.testing.assert_frame_equal(isolaw.read(f"{NAME}/runs").points, runs.points)
    assert len(hub.asked) == asked


@pytest.mark.parametrize("path", ["table/results.csv", "table/*.csv"])
@pytest.mark.parametrize("revision", ["", f"@{SHA}"])
def test_a_file_or_a_glob_of_a_revision(hub: Hub, path: str, revision: str) -> None:
    reading = survey([f"{NAME}{revision}/{path}"])
    (log,) = reading.candidates
    assert log.sources[0].endswith(f"snapshots/{SHA}/table/results.csv")
    assert {name for name in hub.downloads if name.startswith("runs/")} <= {
        name for name in hub.downloads if Path(name).suffix in (".yaml", ".toml", ".json")
    }
    assert reading.notes[0].startswith(f"{NAME}{revision}/{path}: isolaw read it from ")


@pytest.mark.parametrize("revision", ["refs/pr/1", "v1%2Fx", BRANCH])
def test_revisions(hub: Hub, revision: str) -> None:
    assert local(f"{NAME}@{revision}/results.csv").endswith(f"snapshots/{BRANCH}/results.csv")


@pytest.mark.slow
def test_a_sweep(hub: Hub, tiny) -> None:
    runs = isolaw.sweep(tiny(), hub.files[SHA] / "sweep")
    pd.testing.assert_frame_equal(isolaw.read(f"{NAME}/sweep").points, runs.points)


def failure(source: str) -> str:
    with pytest.raises(DataError) as raised:
        isolaw.read(source)
    return str(raised.value)


def test_what_does_not_exist(hub: Hub) -> None:
    assert "RepositoryNotFoundError: 404" in failure("hf://datasets/me/nothing")
    assert f"{NAME}@v9: not downloaded: RevisionNotFoundError" in failure(f"{NAME}@v9")
    for path in ("table/result.csv", "*.parquet"):
        assert failure(f"{NAME}/{path}") == f"{NAME}/{path}: no such file or folder in the data set"


@pytest.mark.parametrize("source", ["hf://me/logs", "hf://datasets/logs", f"{NAME}/../x", "hf://models/me/x"])
def test_other_forms(source: str) -> None:
    expected = "expected hf://datasets/OWNER/NAME[@REVISION][/PATH]"
    assert failure(source) == f"source: found {source!r}; {expected}"


def test_a_gated_data_set(hub: Hub) -> None:
    hub.gated = True
    assert f"{NAME}: not downloaded: GatedRepoError" in failure(NAME)


@pytest.mark.slow
def test_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    isolaw.read(f"{NAME}/runs")
    reach(monkeypatch, 9)
    isolaw.read(f"{NAME}/runs")
    assert "Connection refused" in failure(NAME)
    offline(monkeypatch)
    assert "not downloaded: LocalEntryNotFoundError: " in failure("hf://datasets/me/other")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NotInstalled, match=r"huggingface_hub is not installed: pip install 'isolaw\[hub\]'"):
        isolaw.read(NAME)


def test_commands(hub: Hub, isolaw, tmp_path: Path) -> None:
    code, said, notes = isolaw("read", f"{NAME}/runs")
    assert code == 0
    assert f"note: {NAME}/runs: isolaw read it from " in notes
    assert f"isolaw fit {NAME}/runs" in said
    code, _, notes = isolaw("read", f"{NAME}/runs", "--save")
    assert code == 2
    assert f"--save: found {NAME}/runs; expected one folder, or files of one folder" in notes
    code, _, notes = isolaw("fit", f"{NAME}/nothing", "--out", tmp_path / "law.json")
    assert (code, "no such file or folder in the data set" in notes) == (2, True)
    code, _, notes = isolaw("answer", f"{NAME}/nothing", "--compute", "1M")
    assert (code, "no such file or folder in the data set" in notes) == (2, True)
