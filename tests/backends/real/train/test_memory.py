"""The memory planner: its equations against measurement, what it chooses, and what it refuses."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from isolaw import SweepSpec, engine, executors
from isolaw.backends.real import BACKEND, environment, models
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.train.memory import planner, step_time
from isolaw.backends.real.train.memory.decoder import Decoder
from isolaw.backends.real.train.memory.footprint import GIB, PARTS, Demand, Footprint
from isolaw.cli import run
from isolaw.config import ExecutorSection
from isolaw.errors import SpecError
from isolaw.machine import Cards, card_speed, cards, examine

ROOT = Path(__file__).parents[4]
EXAMPLES = ("real-qwen-easy.toml", "real-qwen-hard.toml", "cluster/real-ray.toml", "cluster/real-slurm.toml")
H100 = "h100-80g:8"


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memory_benchmark", ROOT / "benchmarks" / "memory.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()
SMALL = {
    **BENCHMARK.MODELS["Qwen2.5-0.5B"],
    "vocab_size": 2_000,
    "hidden_size": 256,
    "intermediate_size": 1_024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}

# -- the equations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Llama-3.1-8B", 8_030_261_248),
    ],
)
def test_parameters_are_counted_from_the_configuration(name: str, parameters: int) -> None:
    decoder = Decoder.of(BENCHMARK.MODELS[name])
    assert decoder
    assert decoder.parameters == parameters  # as published


@pytest.mark.real
def test_parameters_are_those_of_the_files(made: Any) -> None:
    from safetensors.torch import load_file

    tensors = load_file(made.model / "model.safetensors")
    assert models.decoder(made.model).parameters == sum(tensor.numel() for tensor in tensors.values())


def test_the_plan_is_within_a_tenth_of_what_was_measured_and_the_page_is_current() -> None:
    measured = json.loads((ROOT / "benchmarks" / "memory.json").read_text())
    cells = list(itertools.product(BENCHMARK.MODELS, BENCHMARK.GPUS, BENCHMARK.STAGES, (False, True)))
    assert len(cells) == len(measured)
    for name, gpus, stage, kl in cells:
        peak = measured[f"{name}/{gpus}/{stage}/{'KL' if kl else ''}"]
        assert BENCHMARK.planned(name, gpus, stage, kl) == pytest.approx(peak, rel=0.1), (name, gpus, stage)
    documented = (ROOT / "docs" / "real.md").read_text()
    for found in (BENCHMARK.summary(), BENCHMARK.gpu_summary()):
        assert found in documented, "python benchmarks/memory.py --write"


def footprint(
    model: Decoder,
    row_tokens: int = 256,
    reference: bool = False,
    critic: bool = False,
    lora_rank: int | None = None,
    **more: Any,
) -> Footprint:
    plain = {
        "dtype": "bfloat16", "processes": 8, "zero_stage": 2, "offload_optimizer": False,
        "gradient_checkpointing": True, "micro_batch_tokens": 2_048, "sampler": "vllm", "gpu_memory": 0.4,
    }  # fmt: skip
    options = RealOptions(model="m", **{**plain, **more})
    own = {"critic": critic, "lora_rank": lora_rank}
    demand = Demand(model, 80 * GIB, row_tokens, reference, **own)
    return Footprint(demand, options)


_MEASURE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("benchmark", sys.argv[1])
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)
benchmark._prepare()
config, cells = json.loads(sys.argv[2]), json.loads(sys.argv[3])
with benchmark._group(cells[0]["gpus"]):
    found = [benchmark.measure(config, **cell) for cell in cells]
print(json.dumps([[max(parts.values()) for parts in one.values()] for one in found]))
"""


@pytest.fixture
def measured(preloaded: Path) -> Callable[..., list[list[int]]]:
    """Peaks of each cell without and with a KL term, and with a critic, all from one process of its own."""

    def measure(*cells: dict[str, Any], config: dict[str, Any] = SMALL) -> list[list[int]]:
        arguments = [str(ROOT / "benchmarks" / "memory.py"), json.dumps(config), json.dumps(cells)]
        words = [preloaded / "python", "-c", _MEASURE, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return list(json.loads(done.stdout.splitlines()[-1]))

    return measure


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.nightly
def test_the_plan_is_within_a_tenth_of_deepspeed(measured: Callable[..., list[list[int]]]) -> None:
    decoder = Decoder.of(SMALL)
    assert decoder
    ways: list[dict[str, Any]] = [
        {"zero_stage": 0, "dtype": "float32"},
        {"zero_stage": 1},
        {"zero_stage": 2, "gradient_checkpointing": False},
        {"zero_stage": 3},
        # A rank as large as the layers'.
        {"zero_stage": 0, "dtype": "float32", "lora_rank": 256},
        {"zero_stage": 3, "lora_rank": 256},
    ]
    common = {"gpus": 8, "micro_batch_tokens": 16_384, "row_tokens": 2_048, "critic": True}
    for way, peaks in zip(ways, measured(*({**common, **way} for way in ways)), strict=True):
        for peak, more in zip(peaks, ({}, {"reference": True}, {"critic": True}), strict=True):
            planned = footprint(decoder, micro_batch_tokens=16_384, **{**more, **way})
            assert planned.tensor_bytes() == pytest.approx(peak, rel=0.1), way


@pytest.mark.real
@pytest.mark.slow
def test_tensors_without_data_take_what_real_ones_do(measured: Callable[..., list[list[int]]]) -> None:
    cell = {"zero_stage": 3, "gpus": 2, "dtype": "float32", "micro_batch_tokens": 512, "row_tokens": 256}
    fake, true = measured(cell, {**cell, "fake": False}, config={**SMALL, "num_hidden_layers": 1})
    assert fake == pytest.approx(true, rel=0.01)


def test_what_each_key_saves() -> None:
    decoder = Decoder.of(BENCHMARK.MODELS["Qwen2.5-7B"])
    assert decoder

    def total(phase: str, **more: Any) -> int:
        phases = footprint(decoder, **more).phases()
        assert all(set(parts) <= set(PARTS) for parts in phases.values())
        return sum(phases[phase].values())

    p = decoder.parameters
    assert total("train", zero_stage=2) - total("train", zero_stage=3) == pytest.approx(14 * p / 8, rel=0.2)
    offloaded = total("sample") - total("sample", offload_optimizer=True)
    assert offloaded == pytest.approx(1.03 * (12 * p / 8 - 2 * decoder.embedding_size), rel=1e-3)
    assert total("train", reference=True) - total("train") == pytest.approx(1.03 * 2 * p, rel=1e-3)
    # The sampler gives its memory back for all but drawing and taking over weights, and those alone.
    assert total("train", gpu_memory=0.9) == total("train")
    assert total("sync", gpu_memory=0.9) == total("sync")
    assert total("sample", gpu_memory=0.5) - total("sample") == pytest.approx(8 * GIB)


def test_a_state_of_lora_is_counted_from_the_configuration() -> None:
    decoder = Decoder.of(BENCHMARK.MODELS["Qwen2.5-7B"])
    assert decoder
    # By hand, of 28 layers with E = 3584, K = 512, I = 18944: q, o; k, v; gate, up, down.
    numbers = 28 * 16 * (2 * 2 * 3_584 + 2 * (3_584 + 512) + 3 * (3_584 + 18_944))
    full, lora = (footprint(decoder, processes=1, lora_rank=rank).phases()["train"] for rank in (None, 16))
    assert lora["optimiser"] == 12 * numbers
    assert lora["weights"] - full["weights"] == 2 * numbers
    assert lora["gradients"] == 4 * numbers
    held = footprint(decoder, processes=1, lora_rank=16, reference=True).phases()["train"]
    assert "reference" not in held  # it is the model without its adapters


@pytest.mark.slow
def test_seven_billion_on_one_card_with_lora_alone(planned: Callable[..., engine.ResolvedSweep]) -> None:
    alone = ("real.processes=1", "real.zero_stage=0", "real.offload_optimizer=false", "recipe.kl=0.001")
    with pytest.raises(SpecError, match=r"needs \d+\.\d GiB of each GPU, which has 79\.6"):
        planned("real-qwen-easy.toml", "h100-80g:1", *alone)
    (table,) = planned("real-qwen-easy.toml", "h100-80g:1", *alone, "recipe.lora_rank=32").notes
    assert all(sum(parts.values()) <= 0.95 * 80 * GIB for parts in table["phases"].values())
    assert table["gpu_memory"] >= 0.4  # for the sampler
    assert len(planned("real-qwen-easy.toml", "h100-80g:1", *alone, "grid.lora_rank=[1,64]").notes) == 2
    with pytest.raises(
        SpecError,
        match=r"recipe\.lora_rank.*larger than the full rank of any .*; found 3585; expected at most 3584",
    ):
        planned("real-qwen-easy.toml", "h100-80g:1", *alone, "recipe.lora_rank=3585")


# -- GPUs by name -----------------------------------------------------------------------------------------


def test_gpus_by_name() -> None:
    assert cards("A100-80g:4") == Cards(4, 80 * GIB, "a100-80g")
    assert cards("48g") == Cards(1, 48 * GIB)
    with pytest.raises(SpecError, match="did you mean 'h100-80g'"):
        cards("h100-80:8")
    for wrong in ("h100-80g:0", "h100-80g:x", "", "80", "0g", "-1g", "1e9g", "٨٠g", "80g:٨"):
        with pytest.raises(SpecError, match="names are a10g-24g"):
            cards(wrong)


def test_memory_and_name_are_those_of_the_visible_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, GPU-a, 81559, NVIDIA H100'\necho '1, GPU-b, 40960, NVIDIA A100'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    try:
        named = {"0": (81_559, "NVIDIA H100"), "0,1": (40_960, ""), "GPU-a": (81_559, "NVIDIA H100")}
        for visible, (mib, name) in named.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            environment._clear_caches()
            assert (environment.gpu_memory(), environment.gpu_name()) == (mib * 2**20, name)
        with environment.on_machines(8, 8):
            assert environment.gpu_memory() == 0  # those of other machines: not known
            with environment.on_machines(8, 4, 80 * GIB), environment.on_machines(8, 2):
                assert environment.gpu_memory() == 80 * GIB
    finally:
        environment._clear_caches()


# -- what is chosen, and what is refused --------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., engine.ResolvedSweep]:
    """Plan a sweep file of a model that is a configuration and nothing else, for machines of some name."""
    monkeypatch.setattr(planner, "_prompt_tokens", lambda *_: 1_024)
    monkeypatch.setattr("isolaw.backends.real._prompt_issues", lambda *_: ())
    monkeypatch.setattr("isolaw.executors.check", lambda *_: [])
    monkeypatch.setattr(environment, "installed", lambda _: True)
    for name in ("easy", "hard"):
        folder = tmp_path / "problems" / name
        folder.mkdir(parents=True)
        for part, count, shift in (("train", 64, 1), ("validation", 300, 2)):
            rows = [json.dumps({"prompt": f"{i}+{shift}=", "answer": i + shift}) for i in range(count)]
            (folder / f"{part}.jsonl").write_text("\n".join(rows))
    model = tmp_path / "models" / "Qwen2.5-7B-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(BENCHMARK.MODELS["Qwen2.5-7B"]))
    (model / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")  # of no tensor
    monkeypatch.chdir(tmp_path)

    def plan(example: str, machine: str | None = H100, *settings: str) -> engine.ResolvedSweep:
        if example.startswith("real-qwen") and not any("processes" in setting for setting in settings):
            settings = (*settings, "real.processes=8")
        spec = SweepSpec.read(ROOT / "examples" / example, settings)
        with executors.planned_for(cards(machine) if machine else None, spec.executor, "real"):
            made = engine.resolve_sweep(spec, tmp_path / "out")
            with executors.machines(spec.executor, "real"):
                made.notes[:] = planner.plan_tables(made.runs) or [planner.unplanned_reason(made.runs[0])]
            return made

    return plan


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_shipped_examples_fit_their_machines(
    planned: Callable[..., engine.ResolvedSweep], example: str
) -> None:
    (table,) = planned(example).notes
    assert table["runs"] == len(planned(example).runs)  # of the largest n, too
    for phase, parts in table["phases"].items():
        assert sum(parts.values()) <= 0.95 * table["gpu_bytes"], phase
    assert table["micro_batch_tokens"] >= table["row_tokens"]
    assert not table["offload_optimizer"]
    assert table["gpu_memory"] >= 0.4


@pytest.mark.slow
def test_what_is_open_is_chosen_the_cheapest_first(planned: Callable[..., engine.ResolvedSweep]) -> None:
    def table(machine: str, *settings: str) -> dict[str, Any]:
        (found,) = planned("real-qwen-easy.toml", machine, *settings).notes
        return found

    roomy, tight = table("h200-141g:8"), table("a100-40g:8")
    assert (roomy["micro_batch_tokens"], roomy["offload_optimizer"]) == (16_384, False)
    assert (roomy["gradient_checkpointing"], tight["gradient_checkpointing"]) == (False, True)
    recomputing = table("h200-141g:8", "real.gradient_checkpointing=true")["micro_batch_tokens"]
    assert tight["micro_batch_tokens"] < recomputing == 32_768 or tight["offload_optimizer"]
    assert tight["gpu_memory"] < roomy["gpu_memory"] <= 0.9
    given = table(H100, "real.micro_batch_tokens=8192", "real.gpu_memory=0.3", "real.offload_optimizer=true")
    assert (given["micro_batch_tokens"], given["gpu_memory"], given["offload_optimizer"]) == (8192, 0.3, True)
    assert given["host_bytes"] > 12 * 7_615_616_512 / 8


def test_an_asynchronous_run_divides_its_gpus(
    planned: Callable[..., engine.ResolvedSweep], tmp_path: Path
) -> None:
    example = str(ROOT / "examples" / "real-qwen-easy.toml")
    asynchronous = ("real.generation=async", "recipe.staleness=1", "grid.rollouts_per_problem=[8]")

    def table(machine: str, *settings: str) -> dict[str, Any]:
        (found,) = planned(example, machine, *asynchronous, *settings).notes
        return found

    (beside,) = planned(example, H100, *asynchronous, "real.generation=colocated").notes
    open_ = table(H100)
    phases, card = open_["phases"], open_["gpu_bytes"]
    # A sampler's card holds nothing of the trainer, and a trainer's nothing of the sampler.
    assert set(phases["sample"]) == {"sampler's weights", "sampler's cache", "reserve"}
    assert all("sampler's weights" not in phases[name] for name in ("compare", "train", "sync"))
    assert all(sum(parts.values()) <= 0.95 * card for parts in phases.values())
    assert open_["gpu_memory"] > beside["gpu_memory"]
    # Equal halves, unless the section sets the number of samplers; the fewest trainers that hold the run.
    assert open_["processes"] == open_["samplers"]
    given = table(H100, "real.samplers=1")
    assert (given["processes"], given["samplers"]) == (4, 1)
    assert (table(H100, "real.processes=4")["samplers"], table(H100, "recipe.kl=0")["samplers"]) == (4, 4)
    with pytest.raises(SpecError, match=r"real\.processes: 16 processes train and sample"):
        table(H100, "real.processes=8")
    # The weights alone, 14.2 GiB, are too much for a card of 16 GiB.
    small = ("recipe.kl=0", "recipe.max_response_tokens=512", "real.processes=4", "real.samplers=4")
    with pytest.raises(SpecError, match=r"real\.model: .*no setting of \[real\] fits .*docs/trainers\.md"):
        table("16g:8", *small)


GPU_RUNS = ROOT / "docs" / "gpu" / "2026-11-27-h200-2"
H200 = card_speed("h200-141g")


def test_the_constants_of_a_steps_time_are_the_measured_ones() -> None:
    """Two batches of 0.5B, and two models with all activations kept, determine them."""
    rows = json.loads((GPU_RUNS / "speed.json").read_text())["measured"]["speed"]
    small = Decoder.of(BENCHMARK.MODELS["Qwen2.5-0.5B"])
    few, many = (row["seconds_of_a_step"] for row in rows)
    length = step_time._Lengths(4.8, 512, 512)
    each = (many["generate"] - few["generate"]) / 256 / 512
    assert step_time._sampled_s(small, H200, length, 2) == pytest.approx(each, rel=0.01)
    reading = 2 * small.parameters / (step_time.BANDWIDTH * H200.bandwidth)
    assert few["generate"] / 512 - 256 * each == pytest.approx(step_time.DECODE_S + reading, rel=0.01)
    slope = (many["train"] - few["train"]) / 256
    assert few["train"] - 256 * slope == pytest.approx(step_time.UPDATE_S, rel=0.01)
    assert few["sync"] == pytest.approx(step_time.SYNC_S, rel=0.02)
    assert slope / 516.8 == pytest.approx(step_time._trained_s(small, H200, 516.8, 3), rel=0.05)


def test_the_passes_of_measured_cases_take_the_estimated_time() -> None:
    errors = {}
    for case in json.loads((GPU_RUNS / "memory.json").read_text()):
        model = Decoder.of(BENCHMARK.MODELS[case["model"]])
        recomputed = case.get("gradient_checkpointing", True)
        passes = 2 + (not case.get("lora_rank")) + recomputed + bool(case.get("kl"))
        found = step_time._trained_s(model, H200, BENCHMARK.ROW, passes)
        key = "stage 3" if case["zero_stage"] == 3 else "others" if recomputed else "kept"
        errors.setdefault(key, []).append(case["passes_s"] / case["tokens"] / found)
    assert errors["kept"] == pytest.approx([1, 1], abs=0.005)  # which determined the constants
    assert 0.93 < min(errors["others"]) < max(errors["others"]) < 1.03
    assert 1.1 < min(errors["stage 3"]) < max(errors["stage 3"]) < 1.65  # as the docstring says


def test_the_estimated_time_of_a_step(planned: Callable[..., engine.ResolvedSweep]) -> None:
    def step(machine: str, *settings: str) -> dict[str, float]:
        eight = () if "real.processes=4" in settings else ("real.processes=8",)
        (run,) = planned("real-qwen-easy.toml", machine, "sweep.seeds=1", *eight, *settings).runs
        with executors.planned_for(cards(machine), ExecutorSection(), "real"):
            found = BACKEND.estimate(run)
        return found and {name: part.step_s for name, part in found.parts.items()} | {"gpus": found.gpus}

    few, many = (step("h100-80g:8", f"grid.rollouts_per_problem=[{n}]") for n in (8, 512))
    assert few["gpus"] == many["gpus"] == 8
    assert many["train"] - step_time.UPDATE_S == pytest.approx(64 * (few["train"] - step_time.UPDATE_S))
    assert many["reward"] == pytest.approx(
        32 * 512 / 8 * 7e-3 / 2
    )  # math-verify, two workers of each process
    assert "reward" not in step("h100-80g:8", "grid.rollouts_per_problem=[8]", "real.reward=exact")
    assert few["sync"] > 2 * step_time.SYNC_S  # 7B's weights take longer than 0.5B's
    assert few["generate"] > many["generate"] / 64  # a step is as long as its longest response
    n8 = "grid.rollouts_per_problem=[8]"
    assert step("h200-141g:8", n8)["generate"] < few["generate"]  # more bandwidth
    assert step("h100-80g:8", n8, "recipe.kl=0")["train"] < few["train"]
    own = step("h100-80g:8", n8, "real.generation=async", "recipe.staleness=1", "real.processes=4")
    assert sorted(own.values())[0] == 0.0  # the faster side waits for the other
    assert step("80g:8", n8) is None  # a card of unknown speed


def test_a_dry_run_prints_the_estimated_cost(
    planned: Callable[..., engine.ResolvedSweep], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(ROOT / "examples" / "real-qwen-easy.toml")
    words = ["sweep", file, "--out", "out", "--dry-run", "--machine", H100]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert cost["source"] == "estimate"
    hours = [configuration["gpu_hours"]["value"] for configuration in cost["configurations"]]
    assert cost["gpu_hours"] == pytest.approx(sum(hours))
    assert [configuration["rollouts_per_problem"] for configuration in cost["configurations"]] == [
        2**k for k in range(3, 10)
    ]
    first = cost["configurations"][0]  # 3 runs of 3,906 steps
    seconds = sum(first["seconds_of_a_step"].values())
    assert first["gpus"] < cost["configurations"][-1]["gpus"] == 8  # small runs execute side by side
    training = 3 * 3_906 * seconds * first["gpus"] / 3_600
    assert 1.002 < hours[0] / training < 1.1  # with its evaluations
    assert first["tokens_per_gpu_s"] == pytest.approx(32 * 8 * 2_048 / seconds / first["gpus"])
    assert "The remaining runs take an estimated " in text


def test_an_interruptions_phrase_takes_its_place(
    planned: Callable[..., engine.ResolvedSweep], monkeypatch
) -> None:
    monkeypatch.setattr(planner, "_phrase_tokens", lambda _, phrase: len(phrase))
    (without,) = planned("real-qwen-easy.toml").notes
    interrupted = ("recipe.interrupt_at=[2000,3584]", 'recipe.interrupt_phrase="Stop"')
    (table,) = planned("real-qwen-easy.toml", H100, *interrupted).notes
    assert without["row_tokens"] == 1_024 + 4_096
    assert table["row_tokens"] == 1_024 + 3_584 + len("Stop") + 512


def test_what_does_not_fit_is_refused_with_settings_that_do(
    planned: Callable[..., engine.ResolvedSweep],
) -> None:
    stage_1 = ("real.zero_stage=1", "real.micro_batch_tokens=65536")
    for machine, settings in {H100: stage_1, "a100-40g:8": ("real.zero_stage=2",)}.items():
        with pytest.raises(SpecError) as raised:
            planned("real-qwen-easy.toml", machine, *settings)
        (problem,) = {str(problem): problem for problem in raised.value.issues}.values()
        assert re.search(
            r"(sample|train|compare|sync) needs \d+\.\d GiB of each GPU, which has", str(problem)
        )
        mended = [part.replace(" = ", "=") for part in problem.accepted.split(" and ")]
        assert problem.where == mended[0].partition("=")[0]
        planned("real-qwen-easy.toml", machine, *settings, *mended)  # is as good as its word


def test_a_run_takes_as_many_gpus_as_it_needs(
    planned: Callable[..., engine.ResolvedSweep], tmp_path: Path
) -> None:
    """The fewest that hold it, with at most 512 rollouts of a batch on each."""
    text = (ROOT / "examples" / "real-qwen-easy.toml").read_text()
    own = tmp_path / "open.toml"
    own.write_text("\n".join(line for line in text.splitlines() if not line.startswith("processes = ")))

    def gpus(*settings: str) -> dict[int, int]:
        few = ("sweep.seeds=1", "grid.problems_per_batch=[32]", "grid.rollouts_per_problem=[8, 64, 512]")
        runs = planned(str(own), H100, *few, *settings).runs
        found = {run.rollouts_per_problem: BACKEND.needs(run).gpus for run in runs}
        bounds = executors._limits(ExecutorSection(), runs)
        assert (bounds.max_gpus, bounds.jobs) == (8, None if len(set(found.values())) > 1 else 1)
        return found

    with environment.on_machines(8, 8, cards(H100).gpu_bytes):
        assert gpus("recipe.lora_rank=8") == {8: 1, 64: 4, 512: 8}
        assert gpus("recipe.kl=0") == {8: 4, 64: 4, 512: 8}  # 7.6 billion × 18 bytes and more
        assert set(gpus("real.processes=8").values()) == {8}


@pytest.mark.slow
def test_host_memory_is_checked_and_decides_how_many_runs_are_made(
    planned: Callable[..., engine.ResolvedSweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_memory(gib: float) -> None:
        monkeypatch.setattr(environment, "host_memory", functools.cache(lambda: int(gib * GIB)))

    # By hand: 8 processes of 4 GiB; the model in bfloat16, for each of them or, at ZeRO-3, for one.
    weights = 2 * 7_615_616_512 / GIB
    (every,) = planned("real-qwen-easy.toml", H100, "real.zero_stage=2").notes
    assert every["host_bytes"] / GIB == pytest.approx(8 * (4 + weights))
    (one,) = planned("real-qwen-easy.toml", H100, "real.zero_stage=3", "recipe.kl=0").notes
    assert one["host_bytes"] / GIB == pytest.approx(8 * 4 + max(weights, 8 * 4 * 152_064 * 3_584 / GIB))
    with_memory(100)
    with pytest.raises(
        SpecError, match=r"needs 145\.5 GiB of host memory, but this machine has 100\.0"
    ) as raised:
        planned("real-qwen-easy.toml", H100, "real.zero_stage=2")
    mended = raised.value.issues[0].accepted.replace(" = ", "=").split(" and ")
    assert "real.zero_stage=3" in mended
    planned("real-qwen-easy.toml", H100, "real.zero_stage=2", *mended)
    offload = ("real.offload_optimizer=true", "real.zero_stage=3")
    with pytest.raises(SpecError, match=r"real\.offload_optimizer: .*found True") as raised:
        planned("real-qwen-easy.toml", H100, *offload)  # 18 bytes a parameter, 128 GiB
    documented = (ROOT / "docs" / "real.md").read_text()
    assert str(raised.value.issues[0]) in documented, str(raised.value.issues[0])
    planned("real-qwen-easy.toml", H100, *offload, raised.value.issues[0].accepted.replace(" = ", "="))
    with_memory(8)
    with pytest.raises(SpecError, match=r"no setting of .* a machine of this size; .*docs/trainers\.md"):
        planned("real-qwen-easy.toml", H100)
    # Four runs of two GPUs each, of which the memory holds three.
    with_memory(75)
    few = ("real.processes=2", "real.zero_stage=3", "recipe.lora_rank=8")
    run = planned("real-qwen-easy.toml", H100, *few).runs[0]
    with environment.on_machines(8, 8, cards(H100).gpu_bytes):
        (each,) = planner.plan_tables([run])
        assert 4 * each["host_bytes"] > 75 * GIB > 3 * each["host_bytes"]
        assert BACKEND.jobs(run) == 3


def test_memory_of_other_machines_is_unknown() -> None:
    assert environment.host_memory() == examine([]).memory_bytes > 0
    with environment.on_machines(8, 8, 80 * GIB):
        assert environment.host_memory() == 0


@pytest.mark.slow
def test_what_is_named_is_not_refused_in_turn(planned: Callable[..., engine.ResolvedSweep]) -> None:
    def mends(machine: str, *settings: str) -> list[str]:
        with pytest.raises(SpecError) as raised:
            planned("real-qwen-easy.toml", machine, *settings)
        named = raised.value.issues[0].accepted.partition(";")[0]
        return [part.replace(" = ", "=") for part in named.split(" and ")]

    # GPUs that are there, before host memory.
    alone = ("real.processes=1", "real.zero_stage=0")
    spread = mends(H100, *alone)
    assert "real.offload_optimizer=true" not in spread
    planned("real-qwen-easy.toml", H100, *alone, *spread)
    # More GPUs than there are: only where no shorter response helps, and it is said.
    tight = ("real.offload_optimizer=false", "real.gradient_checkpointing=false")
    long = ("recipe.max_response_tokens=30000", *tight)
    planned("real-qwen-easy.toml", "a100-40g:8", *long, *mends("a100-40g:8", *long))
    with pytest.raises(SpecError, match=r"this requires [0-9]+ GPUs, but the plan has 1 "):
        planned("real-qwen-easy.toml", "a100-40g:1", *alone)


@pytest.mark.parametrize(
    "odd",
    [
        {"hidden_size": 0}, {"hidden_size": -3_584}, {"hidden_size": True}, {"vocab_size": "big"},
        {"num_hidden_layers": 0}, {"num_key_value_heads": "4"}, {"head_dim": -1}, {"intermediate_size": [1]},
    ],
)  # fmt: skip
def test_sizes_that_are_none_are_not_planned_with(odd: dict[str, Any]) -> None:
    assert Decoder.of({**BENCHMARK.MODELS["Qwen2.5-7B"], **odd}) is None


def test_more_processes_or_a_shorter_response_where_no_other_setting_helps(
    planned: Callable[..., engine.ResolvedSweep],
) -> None:
    def refused(*settings: str) -> str:
        with pytest.raises(SpecError) as raised:
            planned("real-qwen-easy.toml", "a100-40g:8", *settings)
        return str(raised.value.issues[0])

    one = refused("real.processes=1", "real.zero_stage=0", "recipe.kl=0.001")
    assert "expected real.processes = " in one
    assert "real.max" not in one


def test_a_login_node_refuses_nothing_and_says_why(planned: Callable[..., engine.ResolvedSweep]) -> None:
    (said,) = planned("cluster/real-slurm.toml", None).notes
    assert "--machine h100-80g:8" in said
    with pytest.raises(SpecError, match=r"executor\.gpus: found 8; expected .* at most the 4"):
        planned("cluster/real-slurm.toml", "h100-80g:4")


def test_dry_run_prints_the_table(
    planned: Callable[..., engine.ResolvedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", str(ROOT / "examples" / "real-qwen-easy.toml"), "--out", str(tmp_path / "out")]
    assert run([*arguments, "--dry-run", "--machine", H100]) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert ["GiB", "of", "each", "GPU", "sample", "compare", "train", "sync"] in lines
    assert ["capacity", *["79.6"] * 4] in lines
    assert run([*arguments, "--dry-run", "--machine", H100, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["memory"]
    assert all(sum(table["phases"]["train"].values()) < 0.95 * table["gpu_bytes"] for table in tables)
    apart = ("real.processes=5", "real.samplers=3", "real.generation=async", "recipe.staleness=1")
    sets = [word for setting in apart for word in ("--set", setting)]
    assert run([*arguments, *sets, "--dry-run", "--machine", H100]) == 0
    shown = capsys.readouterr().out
    assert "runs with 8 GPUs (5 train, 3 sample) each" in shown, shown
    assert run([*arguments, "--machine", H100]) == 2  # for this machine it is not
    assert "with --dry-run if runs execute on this machine" in capsys.readouterr().err


def test_a_run_decides_once_for_all_its_processes(planned: Callable[..., engine.ResolvedSweep]) -> None:
    one = planned("real-qwen-easy.toml").runs[0]
    with environment.on_machines(8, 8, cards(H100).gpu_bytes):
        told = planner.with_placement(one)
    with environment.on_machines(8, 8, 10 * GIB):  # a process that sees another card decides nothing
        assert planner.chosen(told).micro_batch_tokens == 32_768
    assert told.run_id == one.run_id
