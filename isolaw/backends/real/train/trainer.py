"""The optimiser: a DeepSpeed engine around a causal language model.

A step is one update from all rows of the global batch, for any number of processes and micro-batches. The
objective is a sum over rows with weights of the *global* batch (`algorithms.objective`), so

    gradient = Σ_processes Σ_micro-batches ∂loss

holds exactly if nothing rescales it: the trainer sets the boundaries of gradient accumulation itself
(DeepSpeed would divide by its number of steps), and a factor undoes DeepSpeed's mean over processes.

AdamW is torch's own; ZeRO 0 to 3, float32 or bfloat16 with float32 master weights. The state is whole tensors
by name (safetensors), so that a run continues on another number of processes or ZeRO stage. With LoRA it is
the adapters alone (`adapters`), and `Trainer.weights` merges them.
"""

from __future__ import annotations

import functools
import gc
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open

from isolaw.backends.real import environment
from isolaw.backends.real.algorithms.lora import LoRA
from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import process_group, tensor_file
from isolaw.backends.real.train.adapters import Adapters
from isolaw.backends.real.train.memory.footprint import BUCKET, LIVE
from isolaw.backends.real.train.packing import Packed, micro_batches, pack
from isolaw.backends.real.train.policy import Policy, agrees, load
from isolaw.config import RunSpec

# Keys of the section [real] that are the trainer's.
_OPTIONS = {"dtype", "zero_stage", "micro_batch_tokens", "gradient_checkpointing", "offload_optimizer"}
_MOMENTS = ("exp_avg", "exp_avg_sq")


def trainer_keys(spec: RunSpec, options: RealOptions) -> dict[str, Any]:
    """Return a `Trainer`'s arguments, except the model, for a run and its section ``[real]``."""
    recipe = spec.recipe
    return {
        **options.model_dump(include=_OPTIONS),
        "weight_decay": recipe.weight_decay or 0.0,
        "max_grad_norm": recipe.max_grad_norm or 0.0,
        "float32_head": recipe.float32_head,
        "lora": LoRA.of(recipe, spec.seed),
    }


class Trainer:
    """The model of a folder under DeepSpeed, with options of the section ``[real]``.

    ``max_grad_norm`` clips gradients (0: not); with ``float32_head`` logits are computed in float32; with
    ``lora`` adapters are trained, and the model's own weights stay as they are.
    """

    prefix = ""  # of the names of its files in a state

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        zero_stage: int = 0,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        micro_batch_tokens: int = 16_384,
        gradient_checkpointing: bool = True,
        offload_optimizer: bool = False,
        float32_head: bool = False,
        lora: LoRA | None = None,
    ) -> None:
        self.micro_batch_tokens = micro_batch_tokens
        self.dtype = dtype
        deepspeed = _deepspeed()
        on_gpu = environment.gpus() > 0
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.varlen = on_gpu and dtype == "bfloat16"
        if dtype == "bfloat16" or offload_optimizer:
            zero_stage = max(zero_stage, 1)  # from which DeepSpeed keeps float32 master weights by name
        self._config = config = _config(dtype, zero_stage, max_grad_norm, offload_optimizer, on_gpu)
        self._zero = config if zero_stage == 3 else None
        self._float32_head = float32_head
        self._threads = _torch_threads() if offload_optimizer else None
        policy = self._build(model, gradient_checkpointing=gradient_checkpointing).train()
        environment.hold()
        self.adapters = Adapters(policy.model, lora) if lora else None
        if self.adapters:
            self._train_beside(policy)
        optimizer = torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad],
            lr=0.0,
            betas=(0.9, 0.999),
            weight_decay=weight_decay,
            fused=on_gpu or offload_optimizer,  # no temporary copies; fast in host memory
        )
        self.engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=config)
        self.module = self.engine.module.model
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.steps = 0
        if isinstance(policy, Policy):
            agrees(self.engine, dtype, self.device, varlen=self.varlen)

    def _build(self, folder: str, *, gradient_checkpointing: bool = False) -> Any:
        """Return the module to train."""
        how = {"float32_head": self._float32_head, "gradient_checkpointing": gradient_checkpointing}
        return load(folder, self.dtype, self.device, zero=self._zero, **how)

    def _train_beside(self, policy: Any) -> None:
        """Make the parts trainable that are trained next to adapters; a policy has none."""

    def frozen(self, model: str) -> Any:
        """Return the policy of a model's folder with constant weights; ZeRO-3 divides them, too.

        With LoRA it is the trained policy without its adapters.
        """
        if self.adapters:
            return self.adapters.without(self.engine.module)
        policy = self._build(model).eval().requires_grad_(False)
        if not hasattr(next(policy.parameters()), "ds_id"):
            return policy
        import deepspeed

        return deepspeed.initialize(model=policy, config=self._config)[0]

    def micro_batches(self, rollouts: Rollouts) -> list[list[int]]:
        """Return rows cut into micro-batches (`packing.micro_batches`), equally many in every process."""
        parts = micro_batches(rollouts, self.micro_batch_tokens)
        count = torch.tensor(len(parts), device=self.device)
        if self.world > 1:
            dist.all_reduce(count, op=dist.ReduceOp.MAX)
        return parts + [[]] * (int(count) - len(parts))

    def pack(self, rollouts: Rollouts) -> Packed:
        """Return rows packed for this trainer; without rows, one row of weight 0."""
        if not len(rollouts):  # other processes need this one's part in the exchange of weights
            rollouts = Rollouts([[0]], [[0]], [], [])
        return pack(rollouts, self.device, varlen=self.varlen)

    @torch.no_grad()
    def logprobs(self, rollouts: Rollouts, temperature: float, policy: Any = None) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's drawn tokens, by default of the current weights."""
        return self.by_row(rollouts, self.engine if policy is None else policy, temperature)

    def by_row(self, rollouts: Rollouts, module: Any, *inputs: float) -> list[torch.Tensor]:
        """Return a module's first output for each row's drawn tokens."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(rollouts)
        lengths = rollouts.lengths
        for rows in self.micro_batches(rollouts):
            found = module(self.pack(rollouts.rows(rows)), *inputs)[0]
            for row, values in zip(rows, found, strict=False):
                out[row] = values[: lengths[row]]
        return out

    def backward(
        self,
        rollouts: Rollouts,
        loss_of: Callable[..., torch.Tensor],
        **inputs: float,
    ) -> None:
        """Accumulate the gradient of the whole batch, of which ``rollouts`` are this process's rows, or none.

        ``loss_of`` returns a micro-batch's part of the loss, from the indices of its rows, their tensors and
        the module's outputs, for a policy log-probabilities (R, T) and entropy (R, T). ``inputs`` are the
        module's, for a policy the temperature. All processes call it equally often, so that all run a
        reference model; without rows the tensors hold one row of weight 0.
        """
        parts = self.micro_batches(rollouts)
        for number, rows in enumerate(parts):
            self.engine.set_gradient_accumulation_boundary(number == len(parts) - 1)
            packed = self.pack(rollouts.rows(rows))
            loss = loss_of(rows, packed, *self.engine(packed, **inputs))
            # DeepSpeed takes the mean over processes, the objective is their sum.
            self.engine.backward(loss * self.world)

    def update(self, lr: float) -> float:
        """Make the optimiser's step from the accumulated gradient; return its norm before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        whole = [p.grad for _, p in self._trained() if p.grad is not None and not _partitioned(p)]
        norm = torch.nn.utils.get_total_norm(whole) if whole else None  # DeepSpeed accepts only its own
        with _threads(self._threads):
            self.engine.step()
        self.steps += 1
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by name, as whole tensors, before `update`."""
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(p).float().cpu().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters that the optimiser updates, by name."""
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the current weights by name, each as a whole tensor; all processes take part.

        Adapters are merged into them one by one.
        """
        if self.adapters:
            yield from self.adapters.merged(_whole)
            return
        for name, parameter in self.module.named_parameters():
            with _whole(parameter):
                yield name, parameter.detach()

    def save(self, folder: Path) -> None:
        """Write the trained parameters and their moments; all processes take part, the first one writes."""
        trained = self._trained()
        shapes = {name: getattr(p, "ds_shape", p.shape) for name, p in trained}
        for kind in self._kinds():
            whole = (_read(self.engine, p, kind) for _, p in trained)
            if self.rank == 0:
                tensor_file.write(folder / f"{self.prefix}{kind}.safetensors", shapes, whole)
            else:
                deque(whole, maxlen=0)
        if self.rank == 0:
            (folder / f"{self.prefix}optimizer.json").write_text(json.dumps({"steps": self.steps}))

    def restore(self, folder: Path) -> None:
        """Continue from the state that `save` wrote."""
        steps = int(json.loads((folder / f"{self.prefix}optimizer.json").read_text())["steps"])
        if steps:
            self._materialise()
        self.steps = steps
        for kind in self._kinds():
            with safe_open(folder / f"{self.prefix}{kind}.safetensors", framework="pt") as stored:
                for name, parameter in self._trained():
                    _write(self.engine, parameter, kind, stored.get_tensor(name).to(self.device))
        if steps:
            for state in _adam_states(self.engine.optimizer):
                state["step"].fill_(steps)

    def _kinds(self) -> tuple[str, ...]:
        """Return the parts of a parameter in a state: its value and, after a first step, AdamW's moments."""
        return ("model", *_MOMENTS) if self.steps else ("model",)

    def _materialise(self) -> None:
        """Create AdamW's moments by an update with lr 0 and no gradient."""
        loss = self.engine(self.pack(Rollouts([], [], [], [])))[0].sum() * 0.0
        self.engine.set_gradient_accumulation_boundary(True)
        self.engine.backward(loss)
        self.update(0.0)

    def close(self) -> None:
        """Release the engine's memory, including weights and moments; the trainer is then unusable."""
        parts = [*self.engine.module.parameters(), *self.engine.module.modules()]
        self.engine.destroy()
        # DeepSpeed hangs its optimisers on the parameters, and autograd functions of ZeRO-3 on the modules,
        # where Python's collector cannot see it.
        for part in (*parts, self.engine.optimizer, self.engine):
            vars(part).clear()
        self.engine = self.module = self.adapters = None
        gc.collect()  # its other parts refer to each other


def _config(
    dtype: str, zero_stage: int, max_grad_norm: float, offload_optimizer: bool, on_gpu: bool
) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    zero: dict[str, Any] = {
        "stage": zero_stage,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "stage3_prefetch_bucket_size": BUCKET,
        "stage3_max_live_parameters": LIVE,
        "stage3_max_reuse_distance": LIVE,
    }
    if offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpu}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": max_grad_norm,
        "bf16": {"enabled": dtype == "bfloat16"},
        "steps_per_print": 10**9,
    }
    if dtype == "bfloat16":  # the error of its sums grows with the number of micro-batches, and so with B
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        if zero_stage == 1:  # it exchanges the sum, not each micro-batch's gradient
            config["communication_data_type"] = "fp32"
    return config


@functools.cache
def _torch_threads() -> int:
    """Return torch's threads when the first trainer starts, before vLLM leaves it one."""
    return torch.get_num_threads()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """While entered, torch has so many threads (None: as many as now).

    vLLM sets one thread for its own steps, and compiles its model for that number.
    """
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _deepspeed() -> Any:
    """Import DeepSpeed and start the process group, of one process unless the environment says otherwise."""
    with environment.importing():
        import deepspeed

    if not environment.gpus():
        import deepspeed.ops

        # Compiling its shared-memory operator takes 45 s; gloo does not need it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from deepspeed.runtime import bf16_optimizer

    bf16_optimizer.see_memory_usage = lambda *args, **more: None  # it prints, and collects garbage
    process_group.start()
    deepspeed.init_distributed(verbose=False)
    return deepspeed


def _partitioned(parameter: torch.nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _whole(*parameters: torch.nn.Parameter, modifier_rank: int | None = None) -> Any:
    """While entered, this process has whole parameters, which ZeRO-3 gathered from all processes."""
    if not hasattr(parameters[0], "ds_id"):
        return nullcontext()
    from deepspeed import zero

    return zero.GatheredParameters(list(parameters), modifier_rank=modifier_rank)


def _read(engine: Any, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if not _partitioned(parameter):
        return parameter.detach() if kind == "model" else engine.optimizer.state[parameter][kind]
    if kind == "model":
        return safe_get_full_fp32_param(parameter)
    return safe_get_full_optimizer_state(parameter, kind)


def _write(engine: Any, parameter: torch.nn.Parameter, kind: str, value: torch.Tensor) -> None:
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    with torch.no_grad():
        if kind == "model":
            if _partitioned(parameter):  # the float32 master, then the copy that computes
                safe_set_full_fp32_param(parameter, value)
            with _whole(parameter, modifier_rank=0):
                parameter.copy_(value)
        elif _partitioned(parameter):
            safe_set_full_optimizer_state(parameter, value, kind)
        else:
            engine.optimizer.state[parameter][kind].copy_(value)


def _adam_states(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the states of the AdamW that DeepSpeed wraps."""
    while not isinstance(optimizer, torch.optim.AdamW):
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        if "step" in state:
            yield state
