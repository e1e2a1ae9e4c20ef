"""Planned against measured memory of training: python benchmarks/memory.py [--only NAME] [--write]

What a GPU needs to train is planned from a model's configuration by `isolaw.backends.real.footprint`. Here
it is measured without a GPU: the trainer's own code, DeepSpeed's engine included, runs a forward and a
backward pass over two micro-batches and an optimiser step on *fake* tensors, which have shapes and storages
but no data, as the first of 1 or 8 processes whose collectives do nothing. A dispatch mode follows the
bytes of all storages that are alive; their highest sum during a step is the peak.

So the peak is that of the tensors alone. CUDA's context, NCCL's buffers, kernels' work spaces and what the
allocator loses to fragmentation are no tensors; the plan counts them as guesses (`footprint`), and the
comparison leaves them out. ``--write`` puts the table into docs/real.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "real.md"
BEGIN, END = "<!-- benchmarks/memory.py -->", "<!-- end -->"
MICRO_BATCH, ROW = 16_384, 4_096  # tokens
GPUS, STAGES = (1, 8), (2, 3)

_QWEN = {"model_type": "qwen2", "max_position_embeddings": 32_768}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": {
        **_QWEN,
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-1.5B": {
        **_QWEN,
        "vocab_size": 151_936,
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": {
        **_QWEN,
        "vocab_size": 152_064,
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "Llama-3.1-8B": {
        "model_type": "llama",
        "max_position_embeddings": 131_072,
        "vocab_size": 128_256,
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
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
    detail: bool = False,
) -> dict[str, dict[str, int]]:
    """Return the peaks in bytes of the passes and of the optimiser's step, without and with a KL term.

    Of the first of ``gpus`` processes, in the steady state: AdamW's moments exist.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from isolaw.backends.real.sampling import Rollouts

    rows = 2 * (micro_batch_tokens // row_tokens)  # two micro-batches: gradients of one exist in the next
    prompt = row_tokens // 8
    batch = Rollouts(
        [[i] * prompt for i in range(rows)],
        [[i] * (row_tokens - prompt) for i in range(rows)],
        [[]] * rows,
        [True] * rows,
    )
    small = Rollouts([[1]], [[1]], [[]], [True])
    live = _live()
    out: dict[str, dict[str, int]] = {}
    with _group(gpus), FakeTensorMode(allow_non_fake_inputs=True), live:
        trainer = _trainer(config, zero_stage, micro_batch_tokens, dtype, gradient_checkpointing)
        trainer.backward(small, lambda _part, _packed, logp, _entropy: logp.sum(), temperature=1.0)
        trainer.update(1.0)
        reference = None
        for name in ("", "KL"):

            def loss_of(_part: Any, packed: Any, logp: Any, entropy: Any) -> Any:
                if reference is not None:
                    with torch.no_grad():
                        theirs, _ = reference(packed, 1.0)
                    return (theirs - logp).exp().sum() + entropy.sum()
                return logp.exp().sum() + entropy.sum()

            if name:
                reference = trainer.frozen("")
            out[name] = {}
            for part, act in {
                "passes": lambda: trainer.backward(batch, loss_of, temperature=1.0),  # noqa: B023
                "update": lambda: trainer.update(1.0),
            }.items():
                live.reset()
                act()
                out[name][part] = live.peak
                if detail:
                    print(name, part, f"{live.peak / 2**30:.2f} GiB", file=sys.stderr)
                    live.show()
        trainer.close()
    return out


@contextlib.contextmanager
def _group(size: int) -> Iterator[None]:
    """A group of processes of which only the first exists; collectives return at once."""
    import torch.distributed as dist
    import torch.distributed._tools.fake_collectives  # their shapes  # noqa: F401
    from torch.testing._internal.distributed.fake_pg import FakeStore

    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "DS_ACCELERATOR": "cpu"}
    with mock.patch.dict(os.environ, {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _trainer(
    config: dict[str, Any], zero_stage: int, tokens: int, dtype: str, gradient_checkpointing: bool
) -> Any:
    """The trainer, its model made from a configuration, and with what it does on GPUs alone."""
    import torch
    from deepspeed.runtime.zero import partitioned_param_coordinator
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    from isolaw.backends.real import packing, policy, trainer

    own = dict(config)
    shapes = AutoConfig.for_model(own.pop("model_type"), **own)

    def load(
        _folder: str, dtype: str, device: Any, *, zero: Any = None, float32_head: bool = False, **more: Any
    ) -> Any:
        import deepspeed

        packing.register()
        divided = deepspeed.zero.Init(config_dict_or_path=zero) if zero else contextlib.nullcontext()
        with no_init_weights(), divided:
            model = AutoModelForCausalLM.from_config(
                shapes, dtype=getattr(torch, dtype), attn_implementation=packing.ATTENTION
            )
        model.tie_weights()
        type(model).to = torch.nn.Module.to
        return policy.Policy(model, float32_head=float32_head, **more)

    fused = torch.optim.AdamW
    with (
        mock.patch.object(trainer, "load", load),
        mock.patch.object(trainer, "agrees", lambda *_, **__: None),
        mock.patch.object(torch.optim, "AdamW", lambda *a, **k: fused(*a, **{**k, "fused": True})),
    ):
        # What compares values has none to compare; a fake tensor cannot be swapped for itself elsewhere.
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda *_, **__: None
        torch.nn.Module.to = lambda self, *_, **__: self
        made = trainer.Trainer(
            "",
            dtype=dtype,
            zero_stage=zero_stage,
            micro_batch_tokens=tokens,
            gradient_checkpointing=gradient_checkpointing,
        )
    made.varlen = dtype == "bfloat16"
    return made


def _live() -> Any:
    """A dispatch mode that follows the storages that are alive."""
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
            ):  # a number that nothing has computed: as if all were well
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
                many = sum(own == what for _, own in self.at_peak)
                print(f"{size / 2**20:12.1f} MiB  {many:3d} {what}", file=sys.stderr)

    return Live()


if __name__ == "__main__":
    name, g, s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    kw = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    from isolaw.backends.real import environment

    environment.prepare()
    import torch  # noqa
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    r = measure(MODELS[name], gpus=g, zero_stage=s, detail=True, **kw)
    print(json.dumps([name, g, s, kw, r]))
