"""Export a run's model as a folder in Hugging Face format (`isolaw export`).

A state contains whole float32 tensors by name, regardless of ZeRO stage and number of processes (`trainer`).
The export loads them into the base model in the run's dtype. The result has the same weights as the trainer
in its forward pass. With LoRA, the state contains adapters. The export merges them, which gives the weights
that the sampler draws from. The tokenizer and the generation config are copied from the base model. The
export needs host memory for one copy of the model, and no GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.arguments import checked
from isolaw.backends.real import environment, models
from isolaw.backends.real.algorithms.lora import LoRA
from isolaw.config import RunSpec
from isolaw.errors import DataError, Issue, RunError, SpecError, StoreError
from isolaw.files import check_destination, give_usual_modes
from isolaw.store import RunStore
from isolaw.store.sweep import find_run

FORMAT = "isolaw.export/1"
ABOUT = "isolaw.json"
_GENERATION_FILE = "generation_config.json"


@checked
def export(run: str | Path, out: str | Path) -> dict[str, Any]:
    """Export the model of a run at its last saved step to a folder that ``from_pretrained`` can load.

    Parameters
    ----------
    run
        The run's folder ``OUT/runs/<run_id>``, or ``OUT/<run_id>``. An unambiguous prefix of the id is
        enough. If the run is still executing, isolaw exports the last state that it saved.
    out
        A folder that does not exist or is empty. A failed export leaves no partial folder behind.

    Returns
    -------
    dict
        The keys format, run_id, step, compute (rollouts generated up to this step), dtype, parameters and
        directory.

    Raises
    ------
    InputError
        If ``out`` is not empty; if the run does not exist, trains no model or has no undamaged state; or if
        the base model is missing or has changed.
    """
    target = _check_target(out)
    run_store = find_run(run)
    spec = run_store.read_spec()
    if spec.backend != "real":
        raise StoreError(
            f"{run_store.folder}: the run is of the backend {spec.backend!r}, which trains no model"
        )
    base = _base_model(spec, run_store)
    step, compute, weights = _last_state(run_store)
    about = {"format": FORMAT, "run_id": run_store.run_id, "step": step, "compute": compute}
    with _complete_folder(target) as folder:
        dtype, parameters = _write_model(folder, base, weights, spec)
        (folder / ABOUT).write_text(json.dumps({**about, "base": spec.content["model"]}, indent=1) + "\n")
        give_usual_modes(folder)
    return {**about, "dtype": dtype, "parameters": parameters, "directory": str(out)}


def _check_target(out: str | Path) -> Path:
    """Return the path of the folder to write; raise `SpecError` if writing could overwrite anything."""
    target = check_destination(models.folder(str(out), "--out"))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        fault = "a folder that is not empty" if target.is_dir() else "a file"
        accepted = "a new or empty folder"
        raise SpecError([Issue("--out", f"{out}: {fault}; it is left unchanged", accepted=accepted)])
    return target


def _base_model(spec: RunSpec, run: RunStore) -> Path:
    """Return the folder of the model that the run started from."""
    base = Path(spec.sources["model"])
    if issues := models.check(base, where=f"{run.folder}: its base model"):
        raise SpecError(issues)
    if models.digest(base) != spec.content["model"]:
        raise DataError(f"{base}: the files changed after the run began; expected the run's base model")
    return base


def _last_state(run: RunStore) -> tuple[int, int, Path]:
    """Return the step of the last state, the rollouts generated up to it, and the path of its weights."""
    while (step := run.last_state) is not None:
        records = run.recorded()
        try:
            is_sound = step in records.states and run.states.is_sound(step, records.states[step])
        except FileNotFoundError:
            is_sound = False
        if is_sound:
            compute = next(int(line["compute"]) for line in records.checkpoints if line["step"] == step)
            return step, compute, run.states.folder(step) / "model.safetensors"
        if run.last_state == step:  # otherwise the run is still executing and has replaced this state
            raise StoreError(f"{run.states.folder(step)}: damaged: its checksum does not match")
    raise StoreError(
        f"{run.folder}: the run has no state to export; it has not saved a state yet, or the state was "
        "deleted"
    )


@contextlib.contextmanager
def _complete_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder and rename it to ``target`` at the end; a failure leaves nothing behind."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(target)  # can replace only an empty folder
    except OSError as error:
        raise DataError(f"{error.filename or target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_model(folder: Path, base: Path, weights: Path, spec: RunSpec) -> tuple[str, int]:
    """Write the base model with the weights of a state; return its dtype and number of parameters."""
    dtype, lora = spec.options["dtype"], LoRA.of(spec.recipe)
    with environment.importing():
        import torch
        from safetensors import safe_open
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils import logging

        from isolaw.backends.real.train.adapters import Adapters

    logging.disable_progress_bar()
    # Open the file first: a run that is still executing can delete it, but an open file stays readable.
    with safe_open(weights, framework="pt") as state, torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        parameters = dict(model.named_parameters())
        adapters = Adapters(model, lora) if lora else None
        all_parameters = dict(model.named_parameters())
        all_parameters = {name: p for name, p in all_parameters.items() if p.requires_grad}
        if differing := sorted(all_parameters.keys() ^ set(state.keys())):
            raise RunError(
                f"{weights}: the weights differ from the weights of {base}: {', '.join(differing[:3])}, …"
            )
        for name, parameter in all_parameters.items():
            parameter.copy_(state.get_tensor(name))
        if adapters:
            adapters.remove()
    generation = base / _GENERATION_FILE
    if generation.is_file():  # copied unchanged: transformers refuses to write some configs that it can read
        model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    if generation.is_file():
        shutil.copyfile(generation, folder / _GENERATION_FILE)
    models.tokenizer(base).save_pretrained(folder)
    return dtype, sum(parameter.numel() for parameter in parameters.values())
