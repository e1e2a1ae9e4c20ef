"""Planned against measured memory of training: python benchmarks/memory.py [--only MODEL] [--write]

`isolaw.backends.real.train.memory` plans what a GPU needs to train from a model's configuration. This
benchmark measures the same without a GPU. The trainer's own code, DeepSpeed's engine included, runs forward
and backward passes over two micro-batches and an optimiser step on *fake* tensors, which have shapes and
storages but no data. It runs as the first of 1 or 8 processes whose collectives do nothing. A dispatch mode
follows the bytes of all live storages; their highest sum during a step is the peak.

The peak covers tensors alone. CUDA's context, NCCL's buffers, kernels' work spaces and the allocator's
fragmentation are outside tensors: the plan adds `footprint.OVERHEADS`, and the comparison leaves them out.
Measured peaks are in memory.json next to this file (some ten minutes of one core); ``--write`` puts their
comparison into docs/real.md.

``--gpu FILE`` measures on a GPU instead, with random weights in one process: the allocator's peak and
reserve, the card's memory beyond them, and the seconds of a step. FILE grows with each case.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
DOCS, MEASURED = ROOT / "docs" / "real.md", Path(__file__).with_suffix(".json")
GPU_MEASURED = ROOT / "docs" / "gpu" / "2026-11-27-h200-2" / "memory.json"
BEGIN, END = "<!-- benchmarks/memory.py -->", "<!-- end -->"
MICRO_BATCH, ROW = 16_384, 4_096  # tokens
GPUS, STAGES = (1, 8), (2, 3)


def _config(kind: str, context: int, tied: bool, *sizes: int) -> dict[str, Any]:
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
    )
    own = dict(zip(names.split(), sizes, strict=True))
    return {"model_type": kind, "max_position_embeddings": context, "tie_word_embeddings": tied, **own}


# On a GPU: model, and what differs from ZeRO-2 with gradient checkpointing.
GPU_CASES: list[tuple[str, dict[str, Any]]] = [
    ("Qwen2.5-0.5B", {}),
    ("Qwen2.5-0.5B", {"zero_stage": 1}),
    ("Qwen2.5-0.5B", {"zero_stage": 3}),
    ("Qwen2.5-0.5B", {"gradient_checkpointing": False}),
    ("Qwen2.5-1.5B", {}),
    ("Qwen2.5-1.5B", {"kl": True}),
    ("Qwen2.5-1.5B", {"zero_stage": 1}),
    ("Qwen2.5-1.5B", {"zero_stage": 3}),
    ("Qwen2.5-1.5B", {"gradient_checkpointing": False}),
    ("Qwen2.5-7B", {"lora_rank": 32}),
]
MODELS = {
    "Qwen2.5-0.5B": _config("qwen2", 32_768, True, 151_936, 896, 4_864, 24, 14, 2),
    "Qwen2.5-1.5B": _config("qwen2", 32_768, True, 151_936, 1_536, 8_960, 28, 12, 2),
    "Qwen2.5-7B": _config("qwen2", 32_768, False, 152_064, 3_584, 18_944, 28, 28, 4),
    "Llama-3.1-8B": _config("llama", 131_072, False, 128_256, 4_096, 14_336, 32, 32, 8),
}


def measure(
    config: dict[str, Any],
    *,
    gpus: int,
    zero_stage: int,
    micro_batch_tokens: int = MICRO_BATCH,
    row_tokens: int = ROW,
    dtype: str = "bfloat16",
    gradient_checkpointing: bool = True,
    fake: bool = True,
    detail: bool = False,
    critic: bool = False,
    lora_rank: int | None = None,
) -> dict[str, dict[str, int]]:
    """Return the peaks, in bytes, of the passes and of the optimiser's step, without and with a KL term.

    With ``critic`` also of PPO's: the critic's values, and the updates of the policy and of the critic.

    The peaks are for the first of ``gpus`` processes, in the steady state, when AdamW's moments exist. With
    ``fake = False`` the tensors are real, and attention is computed without the kernel that only GPUs have.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from isolaw.backends.real.rollout.samplers import Rollouts

    rows = 2 * (micro_batch_tokens // row_tokens)  # two micro-batches: gradients of one exist in the next
    prompt = row_tokens // 8
    batch = Rollouts(
        [[i] * prompt for i in range(rows)],
        [[i] * (row_tokens - prompt) for i in range(rows)],
        [[]] * rows,
        [True] * rows,
    )
    live = _live()
    out: dict[str, dict[str, int]] = {}
    without_data = FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
    with _group(gpus), without_data, live:
        how = (zero_stage, micro_batch_tokens, dtype, gradient_checkpointing)
        trainer = _trainer(config, *how, lora_rank=lora_rank)
        trainer.varlen = fake and dtype == "bfloat16"
        trainer.backward(Rollouts([[1]], [[1]], [[]], [True]), _loss(None), temperature=1.0)
        trainer.update(1.0)
        for name in ("", "KL"):
            loss = _loss(trainer.frozen_policy("") if name else None)
            live.reset()
            trainer.backward(batch, loss, temperature=1.0)
            out[name] = {"passes": live.peak}
            if detail:
                live.show()
            live.reset()
            trainer.update(1.0)
            out[name]["update"] = live.peak
            if detail:
                live.show()
        if critic:
            loss = _loss(None)
            valued = _trainer(config, *how, value=True, lora_rank=lora_rank)
            valued.varlen = trainer.varlen
            for _ in range(2):  # in the second AdamW's moments exist
                live.reset()
                valued.values(batch)
                trainer.backward(batch, loss, temperature=1.0)
                trainer.update(1.0)
                valued.backward(batch, lambda _rows, _packed, values: values.square().sum())
                valued.update(1.0)
            out["PPO"] = {"passes": live.peak}
            valued.close()
        trainer.close()
    return out


def measure_on(
    device: str,
    config: dict[str, Any],
    *,
    zero_stage: int,
    micro_batch_tokens: int = MICRO_BATCH,
    row_tokens: int = ROW,
    gradient_checkpointing: bool = True,
    kl: bool = False,
    lora_rank: int | None = None,
) -> dict[str, float]:
    """Return bytes and seconds of a step over two micro-batches, in bfloat16, after one that warms up.

    ``allocated`` and ``reserved`` are the allocator's peaks, including ``before``, its bytes at the
    beginning; ``outside`` is the rest of the card's memory in use.
    """
    import torch

    from isolaw.backends.real.rollout.samplers import Rollouts

    rows, prompt = 2 * (micro_batch_tokens // row_tokens), row_tokens // 8
    own = torch.Generator().manual_seed(0)
    tokens = torch.randint(config["vocab_size"], (rows, row_tokens), generator=own).tolist()
    batch = Rollouts([row[:prompt] for row in tokens], [row[prompt:] for row in tokens], [], [True] * rows)
    card = torch.get_device_module(device) if device != "cpu" else None
    before = card.memory_allocated() if card else 0
    trainer = _trainer(
        config,
        zero_stage,
        micro_batch_tokens,
        "bfloat16",
        gradient_checkpointing,
        lora_rank=lora_rank,
        on=device,
    )
    loss = _loss(trainer.frozen_policy("") if kl else None)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in trainer.model.parameters())
    out: dict[str, float] = {"tokens": rows * row_tokens, "parameters": parameters}
    for _ in range(2):
        if card:
            card.empty_cache()
            card.reset_peak_memory_stats()
            card.synchronize()
        began = time.perf_counter()
        trainer.backward(batch, loss, temperature=1.0)
        if card:
            card.synchronize()
        passed = time.perf_counter()
        norm = trainer.update(1e-6)
        if card:
            card.synchronize()
        out |= {"passes_s": passed - began, "update_s": time.perf_counter() - passed, "grad_norm": norm}
    if card:
        free, total = card.mem_get_info()
        out |= {"allocated": card.max_memory_allocated(), "reserved": card.max_memory_reserved()}
        out |= {"before": before, "outside": total - free - card.memory_reserved(), "card": total}
    trainer.close()
    return out


def _loss(reference: Any) -> Any:
    """Return a loss with gradients to both outputs of a policy, and a KL term if there is a reference."""
    import torch

    def loss(_rows: Any, packed: Any, logprobs: Any, entropy: Any) -> Any:
        if reference is None:
            return logprobs.exp().sum() + entropy.sum()
        with torch.no_grad():
            theirs, _ = reference(packed, 1.0)
        return (theirs - logprobs).exp().sum() + entropy.sum()

    return loss


@contextlib.contextmanager
def _group(size: int) -> Iterator[None]:
    """Start a group of processes of which only the first exists; collectives return at once."""
    import torch.distributed as dist
    import torch.distributed._tools.fake_collectives  # their shapes  # noqa: F401
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():  # for several measurements in a row
        yield
        return
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "DS_ACCELERATOR": "cpu"}
    with mock.patch.dict(os.environ, {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _trainer(
    config: dict[str, Any],
    zero_stage: int,
    tokens: int,
    dtype: str,
    gradient_checkpointing: bool,
    value: bool = False,
    lora_rank: int | None = None,
    on: str | None = None,
) -> Any:
    """Return the trainer or the critic, its model made from a configuration, with its GPU-only code paths.

    ``on`` is the device of real tensors; without it they are fake, in host memory.
    """
    import torch
    from deepspeed.runtime.zero import partitioned_param_coordinator
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from isolaw.backends.real.algorithms.lora import LoRA
    from isolaw.backends.real.train import adapters, packing, policy, ppo, trainer

    own = dict(config)
    shapes = AutoConfig.for_model(own.pop("model_type"), **own)

    def pretrained(_folder: str, dtype: str, device: Any, *, zero: Any = None) -> Any:
        import deepspeed

        packing.register()
        divided = deepspeed.zero.Init(config_dict_or_path=zero) if zero else contextlib.nullcontext()
        with no_init_weights(), divided, torch.device(on or "cpu"):
            model = AutoModelForCausalLM.from_config(
                shapes, dtype=getattr(torch, dtype), attn_implementation=packing.ATTENTION
            )
        model.tie_weights()
        if on:
            torch.manual_seed(0)
        for parameter in model.parameters():  # otherwise a step on NaN would be skipped
            getattr(parameter, "ds_tensor", parameter).data.normal_(0.0, 0.02)
        if not on:
            type(model).to = torch.nn.Module.to
        return model

    policy.pretrained = trainer.pretrained = ppo.pretrained = pretrained  # for `frozen`, later, too
    make = functools.partial(
        ppo._Critic if value else trainer.Trainer,
        "",
        dtype=dtype,
        zero_stage=zero_stage,
        micro_batch_tokens=tokens,
        gradient_checkpointing=gradient_checkpointing,
        lora=LoRA(lora_rank) if lora_rank else None,
    )
    if on:
        return make()
    fused = torch.optim.AdamW
    with (
        mock.patch.object(torch.optim, "AdamW", lambda *a, **k: fused(*a, **{**k, "fused": True})),
        contextlib.ExitStack() as more,
    ):
        # What compares values has none to compare; a fake tensor cannot be swapped for itself elsewhere.
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda *_, **__: None
        torch.nn.Module.to = lambda self, *_, **__: self
        inject = adapters.Adapters.__init__

        def in_dtype(self: Any, model: Any, lora: Any) -> None:  # what `to` would do
            torch.set_default_dtype(getattr(torch, dtype))
            inject(self, model, lora)
            torch.set_default_dtype(torch.float32)

        more.enter_context(mock.patch.object(adapters.Adapters, "__init__", in_dtype))
        return make()


def _live() -> Any:
    """A dispatch mode that follows live storages."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Live(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.now = self.peak = self.shown = 0
            self.alive: dict[int, tuple[int, str]] = {}
            self.at_peak: list[tuple[int, str]] = []

        def reset(self) -> None:
            self.peak = self.shown = self.now

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten._local_scalar_dense.default and isinstance(
                args[0], torch._subclasses.FakeTensor
            ):  # a number without data: assume that it is valid
                kind = args[0].dtype
                return False if kind == torch.bool else 1.0 if kind.is_floating_point else 0
            result = function(*args, **(kwargs or {}))
            for value in tree_iter(result):
                if isinstance(value, torch.Tensor) and value.device.type != "meta":
                    self.follow(value, function)
            return result

        def follow(self, tensor: Any, function: Any) -> None:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            before = self.alive.get(key)
            if before is None:
                weakref.finalize(storage, self.gone, key)
            if before is None or before[0] != size:
                what = f"{function} {tuple(tensor.shape)} {tensor.dtype}"
                self.alive[key] = (size, what if before is None else before[1])
                self.now += size - (before[0] if before else 0)
            self.peak = max(self.peak, self.now)
            if self.now > 1.002 * self.shown:
                self.shown, self.at_peak = self.now, list(self.alive.values())

        def gone(self, key: int) -> None:
            self.now -= self.alive.pop(key, (0, ""))[0]

        def show(self) -> None:
            sizes: Counter[str] = Counter()
            for size, what in self.at_peak:
                sizes[what] += size
            for what, size in sizes.most_common(28):
                many = sum(storage == what for _, storage in self.at_peak)
                print(f"{size / 2**20:12.1f} MiB  {many:3d} {what}", file=sys.stderr)

    return Live()


def planned(
    name: str,
    gpus: int,
    zero_stage: int,
    kl: bool,
    *,
    gradient_checkpointing: bool = True,
    lora_rank: int | None = None,
) -> int:
    """Return the planned bytes of the tensors of such a cell."""
    from isolaw.backends.real.options import RealOptions
    from isolaw.backends.real.train.memory.decoder import Decoder
    from isolaw.backends.real.train.memory.footprint import GIB, Demand, Footprint

    model = Decoder.of(MODELS[name])
    assert model is not None
    options = RealOptions(
        model=name,
        dtype="bfloat16",
        sampler="vllm",
        processes=gpus,
        zero_stage=zero_stage,
        gradient_checkpointing=gradient_checkpointing,
        micro_batch_tokens=MICRO_BATCH,
    )
    demand = Demand(model, 80 * GIB, ROW, kl, lora_rank=lora_rank)
    return Footprint(demand, options).tensor_bytes()


def summary() -> str:
    """Return how far planned peaks are from measured ones, as a sentence."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    deviations = [
        planned(name, gpus, stage, kl) / measured[f"{name}/{gpus}/{stage}/{'KL' if kl else ''}"] - 1
        for name, gpus, stage, kl in itertools.product(MODELS, GPUS, STAGES, (False, True))
    ]
    least, most = min(deviations), max(deviations)
    return (
        f"Over {len(deviations)} cases ({', '.join(MODELS)}; {' and '.join(map(str, GPUS))} GPUs; ZeRO "
        f"{' and '.join(map(str, STAGES))}; with and without a KL term), the planned peaks of the "
        f"tensors in training deviate by {least:+.1%} to {most:+.1%} from measured ones."
    )


def gpu_summary() -> str:
    """Return how far the GPU allocator's peaks are from the plan."""
    cases = json.loads(GPU_MEASURED.read_text(encoding="utf-8"))
    errors = [_planned_for(case) / (case["allocated"] - case["before"]) - 1 for case in cases]
    return (
        f"On one H200, planned peaks deviate by {min(errors):+.1%} to {max(errors):+.1%} from the "
        f"allocator's, in {len(cases)} cases in bfloat16 with two micro-batches of {MICRO_BATCH:,} tokens in "
        f"rows of {ROW:,}."
    )


def _planned_for(case: dict[str, Any]) -> int:
    """Return the planned bytes of the tensors of one of `GPU_CASES`."""
    more = {key: case[key] for key in ("gradient_checkpointing", "lora_rank") if key in case}
    return planned(case["model"], 1, case["zero_stage"], bool(case.get("kl")), **more)


def main() -> None:
    """Measure cells, each in a process of its own, and print them; or measure one cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MODELS, help="measure this model alone")
    parser.add_argument(
        "--write", action="store_true", help="put the result into docs/real.md; measure nothing"
    )
    parser.add_argument("--gpu", type=Path, metavar="FILE", help="measure on this machine's GPU, into FILE")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gpu:
        _on_gpu(options.gpu)
        return
    if options.cell:
        _prepare()
        name, gpus, stage = options.cell.split("/")
        peaks = measure(MODELS[name], gpus=int(gpus), zero_stage=int(stage))
        print(json.dumps({f"{options.cell}/{kl}": max(parts.values()) for kl, parts in peaks.items()}))
        return
    if options.write:
        text = DOCS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        DOCS.write_text(f"{before}{BEGIN}\n{summary()}\n\n{gpu_summary()}\n{END}{after}", encoding="utf-8")
        return
    for name, gpus, stage in itertools.product([options.only] if options.only else MODELS, GPUS, STAGES):
        command = [sys.executable, __file__, "--cell", f"{name}/{gpus}/{stage}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        kept = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
        kept |= json.loads(done.stdout.splitlines()[-1])
        MEASURED.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")
    print(summary())


def _on_gpu(out: Path) -> None:
    """Measure `GPU_CASES` on a GPU, and write each with its planned bytes as soon as it is done."""
    from isolaw.backends.real import environment

    environment.prepare()
    found: list[dict[str, Any]] = []
    for name, differs in GPU_CASES:
        case = {"zero_stage": 2, **differs}
        row: dict[str, Any] = {"model": name, **case}
        row["planned"] = _planned_for(row)
        try:
            row |= measure_on("cuda", MODELS[name], **case)
        except Exception as error:  # the other cases are worth having
            row["error"] = f"{type(error).__name__}: {error}"
        print(row, flush=True)
        found.append(row)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _prepare() -> None:
    from isolaw.backends.real import environment

    environment.prepare()
    import deepspeed.ops

    # As in the trainer: compiling its shared-memory operator takes 45 s.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


if __name__ == "__main__":
    main()
