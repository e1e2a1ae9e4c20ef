"""Train a causal language model with a DeepSpeed engine.

A step is one update from all rows of the global batch, for any number of processes and micro-batches. The
objective is a sum over rows with weights of the *global* batch (`algorithms.objective`), so

    gradient = Σ_processes Σ_micro-batches ∂loss

holds exactly unless something rescales it. DeepSpeed would divide by the number of accumulation steps, so the
trainer sets the accumulation boundaries itself. DeepSpeed also averages over processes, and the trainer
multiplies the loss by their number to undo this.

The optimiser is torch's AdamW. ZeRO stages 0 to 3 are supported, in float32 or in bfloat16 with float32
master weights. The state consists of whole tensors by name (safetensors), so a run can continue with another
number of processes or another ZeRO stage. With LoRA, the state contains only the adapters (`adapters`), and
`Trainer.weights` merges them.
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
from isolaw.backends.real.train import process_group, row_tensors
from isolaw.backends.real.train.adapters import Adapters
from isolaw.backends.real.train.memory.footprint import BUCKET, LIVE
from isolaw.backends.real.train.packing import Packed, micro_batches, pack
from isolaw.backends.real.train.policy import Policy, pretrained
from isolaw.config import RunSpec

# Keys of the section [real] that are arguments of the trainer.
_OPTION_KEYS = {"dtype", "zero_stage", "micro_batch_tokens", "gradient_checkpointing", "offload_optimizer"}
_MOMENTS = ("exp_avg", "exp_avg_sq")


def trainer_arguments(spec: RunSpec, options: RealOptions) -> dict[str, Any]:
    """Return the arguments of a `Trainer` for a run and its section ``[real]``, except the model's folder."""
    recipe = spec.recipe
    return {
        **options.model_dump(include=_OPTION_KEYS),
        "weight_decay": recipe.weight_decay or 0.0,
        "max_grad_norm": recipe.max_grad_norm or 0.0,
        "float32_head": recipe.float32_head,
        "lora": LoRA.of(recipe, spec.seed),
    }


class Trainer:
    """A model under DeepSpeed, with options of the section ``[real]``.

    ``folder`` contains the model. ``max_grad_norm`` clips gradients (0: no clipping). With
    ``float32_head``, logits are computed in float32. With ``lora``, only adapters are trained, and the
    model's own weights are frozen.
    """

    prefix = ""  # prefix of the names of its files in a state

    def __init__(
        self,
        folder: str,
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
        deepspeed = _start_deepspeed()
        on_gpu = environment.gpus() > 0
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.varlen = on_gpu and dtype == "bfloat16"
        if dtype == "bfloat16" or offload_optimizer:
            zero_stage = max(zero_stage, 1)  # DeepSpeed keeps float32 master weights by name from stage 1
        self._config = config = _config(dtype, zero_stage, max_grad_norm, offload_optimizer, on_gpu)
        self._zero_config = config if zero_stage == 3 else None
        self._float32_head = float32_head
        self._optimiser_threads = _first_thread_count() if offload_optimizer else None
        policy = self._build(folder, gradient_checkpointing=gradient_checkpointing).train()
        environment.stop_freezing()
        self.adapters = Adapters(policy.model, lora) if lora else None
        if self.adapters:
            self._unfreeze(policy)
        optimizer = torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad],
            lr=0.0,
            betas=(0.9, 0.999),
            weight_decay=weight_decay,
            fused=on_gpu or offload_optimizer,  # makes no temporary copies, and is fast in host memory
        )
        self.engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=config)
        self.model = self.engine.module.model
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.steps = 0

    def _build(self, folder: str, *, gradient_checkpointing: bool = False) -> Any:
        """Return the module that this trainer trains."""
        model = pretrained(folder, self.dtype, self.device, zero=self._zero_config)
        return Policy(model, float32_head=self._float32_head, gradient_checkpointing=gradient_checkpointing)

    def _unfreeze(self, policy: Any) -> None:
        """Unfreeze parameters that are trained in addition to adapters; a policy has no such parameters."""

    def frozen_policy(self, folder: str) -> Any:
        """Return a policy with the frozen weights of a model's folder; ZeRO-3 also partitions frozen weights.

        With LoRA, this is the trained policy with its adapters disabled.
        """
        if self.adapters:
            return self.adapters.without_adapters(self.engine.module)
        policy = self._build(folder).eval().requires_grad_(False)
        if not hasattr(next(policy.parameters()), "ds_id"):
            return policy
        import deepspeed

        return deepspeed.initialize(model=policy, config=self._config)[0]

    def micro_batches(self, rollouts: Rollouts) -> list[list[int]]:
        """Return micro-batches of rows (`packing.micro_batches`), equally many in every process."""
        batches = micro_batches(rollouts, self.micro_batch_tokens)
        count = torch.tensor(len(batches), device=self.device)
        if self.world > 1:
            dist.all_reduce(count, op=dist.ReduceOp.MAX)
        return batches + [[]] * (int(count) - len(batches))

    def pack(self, rollouts: Rollouts) -> Packed:
        """Return the rows packed for this trainer; if there are none, pack one row of weight 0."""
        if not len(rollouts):  # every process must take part in the exchange of weights
            rollouts = Rollouts([[0]], [[0]], [], [])
        return pack(rollouts, self.device, varlen=self.varlen)

    @torch.no_grad()
    def logprobs(self, rollouts: Rollouts, temperature: float, policy: Any = None) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's drawn tokens, by default under the current weights."""
        return self.by_row(rollouts, self.engine if policy is None else policy, temperature)

    def by_row(self, rollouts: Rollouts, module: Any, *inputs: float) -> list[torch.Tensor]:
        """Return the first output of a module for the drawn tokens of each row, as one array per row."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(rollouts)
        lengths = rollouts.lengths
        for rows in self.micro_batches(rollouts):
            outputs = module(self.pack(rollouts.rows(rows)), *inputs)[0]
            for row, values in zip(rows, outputs, strict=False):
                out[row] = values[: lengths[row]]
        return out

    def backward(self, rollouts: Rollouts, loss_of: Callable[..., torch.Tensor], **inputs: float) -> None:
        """Accumulate the gradient of the whole batch; ``rollouts`` are the rows of this process, if any.

        ``loss_of`` returns the loss of a micro-batch, given the indices of its rows, the packed rows, and the
        module's outputs. For a policy, the outputs are log-probabilities and entropies of shape (R, T).
        ``inputs`` are the other inputs of the module, for a policy the temperature. All processes call
        ``loss_of`` the same number of times, so that all of them run a reference model. Without rows, the
        tensors contain one row of weight 0.
        """
        batches = self.micro_batches(rollouts)
        for index, rows in enumerate(batches):
            self.engine.set_gradient_accumulation_boundary(index == len(batches) - 1)
            packed = self.pack(rollouts.rows(rows))
            loss = loss_of(rows, packed, *self.engine(packed, **inputs))
            # DeepSpeed averages over processes, but the objective is a sum over them.
            self.engine.backward(loss * self.world)

    def update(self, lr: float) -> float:
        """Make an optimiser step with the accumulated gradient; return the gradient norm before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        whole = [p.grad for _, p in self._trained() if p.grad is not None and not _is_partitioned(p)]
        norm = torch.nn.utils.get_total_norm(whole) if whole else None  # DeepSpeed has none in stage 0
        with _with_threads(self._optimiser_threads):
            self.engine.step()
        self.steps += 1
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient as whole tensors by name; call this before `update`."""
        from deepspeed.utils import safe_get_full_grad

        return {name: safe_get_full_grad(p).float().cpu().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters that the optimiser updates, by name."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and whole tensors of the current weights; all processes must call this.

        Adapters are merged into the weights one by one.
        """
        if self.adapters:
            yield from self.adapters.merged(gathered)
            return
        for name, parameter in self.model.named_parameters():
            with gathered(parameter):
                yield name, parameter.detach()

    def save(self, folder: Path) -> None:
        """Write the trained parameters and their moments; all processes must call this, the first writes."""
        trained = self._trained()
        shapes = {name: getattr(p, "ds_shape", p.shape) for name, p in trained}
        for quantity in self._quantities():
            whole = (_read_state(self.engine, p, quantity) for _, p in trained)
            if self.rank == 0:
                row_tensors.write_float32(folder / f"{self.prefix}{quantity}.safetensors", shapes, whole)
            else:
                deque(whole, maxlen=0)
        if self.rank == 0:
            (folder / f"{self.prefix}optimizer.json").write_text(json.dumps({"steps": self.steps}))

    def restore(self, folder: Path) -> None:
        """Restore the state that `save` wrote."""
        steps = int(json.loads((folder / f"{self.prefix}optimizer.json").read_text())["steps"])
        if steps:
            self._materialise()
        self.steps = steps
        for quantity in self._quantities():
            with safe_open(folder / f"{self.prefix}{quantity}.safetensors", framework="pt") as stored:
                for name, parameter in self._trained():
                    _write_state(self.engine, parameter, quantity, stored.get_tensor(name).to(self.device))
        if steps:
            for state in _adam_states(self.engine.optimizer):
                state["step"].fill_(steps)

    def _quantities(self) -> tuple[str, ...]:
        """Return the parts of a state: the parameters and, after the first step, AdamW's moments."""
        return ("model", *_MOMENTS) if self.steps else ("model",)

    def _materialise(self) -> None:
        """Create AdamW's moments by an update with lr 0 and a zero gradient."""
        loss = self.engine(self.pack(Rollouts([], [], [], [])))[0].sum() * 0.0
        self.engine.set_gradient_accumulation_boundary(True)
        self.engine.backward(loss)
        self.update(0.0)

    def close(self) -> None:
        """Release the engine's memory, including weights and moments; the trainer is unusable afterwards."""
        objects = [*self.engine.module.parameters(), *self.engine.module.modules()]
        self.engine.destroy()
        # DeepSpeed attaches its optimisers to the parameters, and autograd functions of ZeRO-3 to the
        # modules. Python's garbage collector cannot see these references.
        for holder in (*objects, self.engine.optimizer, self.engine):
            vars(holder).clear()
        self.engine = self.model = self.adapters = None
        gc.collect()  # the other parts of the engine refer to each other


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
    if dtype == "bfloat16":  # the error of bfloat16 sums would grow with the number of micro-batches
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        if zero_stage == 1:  # stage 1 communicates the sum, not the gradient of each micro-batch
            config["communication_data_type"] = "fp32"
    return config


@functools.cache
def _first_thread_count() -> int:
    """Return torch's number of threads at the start of the first trainer, before vLLM sets it to one."""
    return torch.get_num_threads()


@contextmanager
def _with_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads inside the block (None: no change).

    vLLM sets one thread for its own steps and compiles its model for this number.
    """
    previous = torch.get_num_threads()
    if count in (None, previous):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def _start_deepspeed() -> Any:
    """Import DeepSpeed and start the process group, with one process unless the environment sets a rank."""
    with environment.importing():
        import deepspeed

    if not environment.gpus():
        import deepspeed.ops

        # Compiling DeepSpeed's shared-memory operator takes 45 s, and gloo does not need it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from deepspeed.runtime import bf16_optimizer

    bf16_optimizer.see_memory_usage = lambda *args, **kwargs: None  # prints and collects garbage
    process_group.start()
    deepspeed.init_distributed(verbose=False)
    return deepspeed


def _is_partitioned(parameter: torch.nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def gathered(*parameters: torch.nn.Parameter, modifier_rank: int | None = None) -> Any:
    """Return a context in which ZeRO-3 has gathered the whole parameters from all processes."""
    if not hasattr(parameters[0], "ds_id"):
        return nullcontext()
    from deepspeed import zero

    return zero.GatheredParameters(list(parameters), modifier_rank=modifier_rank)


def _read_state(engine: Any, parameter: torch.nn.Parameter, quantity: str) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if not _is_partitioned(parameter):
        return parameter.detach() if quantity == "model" else engine.optimizer.state[parameter][quantity]
    if quantity == "model":
        return safe_get_full_fp32_param(parameter)
    return safe_get_full_optimizer_state(parameter, quantity)


def _write_state(engine: Any, parameter: torch.nn.Parameter, quantity: str, value: torch.Tensor) -> None:
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    with torch.no_grad():
        if quantity == "model":
            if _is_partitioned(parameter):  # write the float32 master, then the copy for the forward pass
                safe_set_full_fp32_param(parameter, value)
            with gathered(parameter, modifier_rank=0):
                parameter.copy_(value)
        elif _is_partitioned(parameter):
            safe_set_full_optimizer_state(parameter, value, quantity)
        else:
            engine.optimizer.state[parameter][quantity].copy_(value)


def _adam_states(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the states of the AdamW that DeepSpeed wraps."""
    while not isinstance(optimizer, torch.optim.AdamW):
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        if "step" in state:
            yield state
