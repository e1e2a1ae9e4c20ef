"""A run's model as a folder: its logits are the trainer's, from every stage of ZeRO, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from isolaw import engine
from isolaw.backends.real import export as exporting
from isolaw.backends.real import models
from isolaw.backends.real.export import export
from isolaw.backends.real.train.trainer import Trainer
from isolaw.errors import DataError, SpecError, StoreError
from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]

IDS = torch.tensor([[1, 5, 9, 3, 7, 7, 2]])


@pytest.fixture(scope="module")
def made_runs(sections, tmp_path_factory) -> Any:
    """Sweeps of one run, made once for each setting."""
    known: dict[str, Path] = {}

    def make(**real: Any) -> Path:
        key = json.dumps(real)
        if key not in known:
            out = tmp_path_factory.mktemp("sweep") / "out"
            engine.sweep(sections(real={"sampler": "transformers", **real}), out)
            (known[key],) = (out / "runs").iterdir()
        return known[key]

    return make


def logits(model: Any) -> torch.Tensor:
    model.eval().set_attn_implementation("eager")
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [(0, "float32"), *(pytest.param(stage, "bfloat16", marks=pytest.mark.nightly) for stage in (2, 3))],
)
def test_its_logits_are_the_trainers(
    made: Any, made_runs: Any, tmp_path: Path, stage: int, dtype: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    run = made_runs(zero_stage=stage, dtype=dtype)
    done = export(run, tmp_path / "model")
    assert (done["run_id"], done["step"], done["compute"], done["dtype"]) == (run.name, 5, 160, dtype)
    stored = SweepStore(run.parent.parent).run(run.name)
    trainer = Trainer(str(made.model), zero_stage=stage, dtype=dtype)
    try:
        trainer.restore(stored.states.folder(5))
        whole = dict(trainer.weights())
        if stage < 3:
            wanted = logits(trainer.model)
        else:
            import deepspeed

            with deepspeed.zero.GatheredParameters(list(trainer.model.parameters())):
                wanted = logits(trainer.model)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
        base = AutoModelForCausalLM.from_pretrained(made.model, dtype=getattr(torch, dtype))
        for name, parameter in loaded.named_parameters():
            assert torch.equal(parameter, whole[name].to("cpu")), name
        assert torch.equal(logits(loaded), wanted.cpu())
        assert not torch.equal(logits(base), wanted.cpu())  # it has learned something
    finally:
        trainer.close()
    assert models.check(tmp_path / "model") == []  # a sweep may start from it
    (tmp_path / "usual").touch()  # libraries write weights that only the user may read
    usual = (tmp_path / "usual").stat().st_mode
    folders = (tmp_path / "model", stored.states.folder(5))
    assert {file.stat().st_mode for folder in folders for file in folder.iterdir()} == {usual}
    text = "17+25="
    own, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "model", made.model))
    assert own(text).input_ids == theirs(text).input_ids
    ends = [
        GenerationConfig.from_pretrained(folder).eos_token_id for folder in (tmp_path / "model", made.model)
    ]
    assert ends[0] == ends[1] is not None


def test_the_command(isolaw: Any, made_runs: Any, tmp_path: Path) -> None:
    run = made_runs()
    out = run.parent.parent
    code, text, _ = isolaw("export", out / run.name[:10], "--out", tmp_path / "model", "--json")
    assert code == 0
    assert json.loads(text)["step"] == 5
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "generation_config.json", "isolaw.json",
    }  # fmt: skip
    code, text, _ = isolaw("export", run, "--out", tmp_path / "again")
    assert code == 0
    assert f"step 5 of run {run.name[:12]}, after 160 rollouts" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "model"]


def test_what_is_somebody_elses_stays(made_runs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    run = made_runs()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(SpecError, match="it is left unchanged; expected a new or empty folder"):
            export(run, tmp_path / name)
    (tmp_path / "empty").mkdir()
    export(run, tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_write_model", full)
    with pytest.raises(DataError, match="No space left on device"):
        export(run, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "mine"]
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


def test_runs_that_have_no_model(tiny: Any, made_runs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    engine.sweep(tiny(), tmp_path / "out")
    simulated = min((tmp_path / "out" / "runs").iterdir())
    with pytest.raises(StoreError, match="the run is of the backend 'bandit', which trains no model"):
        export(simulated, tmp_path / "model")
    run = made_runs(dtype="float32", checkpoint_minutes=9.0)
    monkeypatch.setattr(models, "digest", lambda folder: "other")
    with pytest.raises(DataError, match="the files changed after the run began"):
        export(run, tmp_path / "model")
    monkeypatch.undo()
    weights = SweepStore(run.parent.parent).run(run.name).states.folder(5) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StoreError, match="damaged: its checksum does not match"):
        export(run, tmp_path / "model")
    for file in weights.parent.iterdir():
        file.unlink()
    weights.parent.rmdir()
    with pytest.raises(StoreError, match="has no state to export"):
        export(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()
