"""The optimiser's side: a DeepSpeed engine around a causal language model.

A step is one update from all rows of the global batch, for any number of processes and micro-batches. The
objective is a sum over rows with weights of the *global* batch (`isolaw.backends.real.objective`), so

    gradient = Σ_processes Σ_micro-batches ∂loss

holds exactly when nothing in between rescales: gradient accumulation is held open by hand (DeepSpeed would
divide by its number of steps), and DeepSpeed's mean over processes is undone by a factor.

AdamW is torch's own; ZeRO 0 to 3, float32 or bfloat16 with float32 master weights. State is kept as
whole tensors by name (safetensors), so that a run continues on another number of processes or ZeRO stage.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from isolaw.backends.real import environment, process_group
from isolaw.backends.real.sampling import Rollouts
from isolaw.backends.real.terms import logprobs_and_entropy

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Padded:
    """Rows as tensors: prompts padded on the left and responses on the right.

    Attributes
    ----------
    ids, attention
        (R, P + T).
    mask
        (R, T), bool: which are tokens of a response.
    distinct, place
        one row of each kind, (U,), and which of these every row equals, (R,); None where no two are equal.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor
    distinct: torch.Tensor | None = None
    place: torch.Tensor | None = None

    @property
    def response(self) -> torch.Tensor:
        """The response tokens, (R, T)."""
        return self.ids[:, -self.mask.shape[1] :]


def pad(rollouts: Rollouts, device: torch.device) -> Padded:
    """Return rollouts as tensors."""
    rows = list(zip(rollouts.prompts, rollouts.tokens, strict=True))
    prompts, responses = (np.array([len(x) for x in part])[:, None] for part in zip(*rows, strict=True))
    before, after = int(prompts.max()), max(1, int(responses.max()))
    column = np.arange(-before, after)
    attention = (column >= -prompts) & (column < responses)
    ids = np.zeros(attention.shape, dtype=np.int64)
    ids[attention] = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), dtype=np.int64)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    place = [known.setdefault((tuple(p), tuple(t)), len(known)) for p, t in rows]
    first = np.unique(place, return_index=True)[1] if len(known) < len(rows) else None

    def tensor(values: Any) -> torch.Tensor:
        return torch.as_tensor(values, device=device)

    return Padded(
        tensor(ids),
        tensor(attention.astype(np.int64)),
        tensor(attention[:, before:]),
        None if first is None else tensor(first),
        None if first is None else tensor(place),
    )


def token_logprobs(
    model: Any, padded: Padded, temperature: float, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy at each response token, both (R, T), of what was sampled from.

    That is ``softmax(logits / temperature)``, so that ratios to the sampler's are 1 up to rounding. Equal
    rows, of which short answers have many, pass through the model once.
    """
    ids, attention, response = padded.ids, padded.attention, padded.response
    if padded.distinct is not None:
        ids, attention, response = (x[padded.distinct] for x in (ids, attention, response))
    logits = model(
        input_ids=ids,
        attention_mask=attention,
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=response.shape[1] + 1,
    ).logits[:, :-1]
    logprobs, entropy = logprobs_and_entropy(logits, response, temperature, entropy_gradient)
    if padded.place is not None:
        logprobs, entropy = logprobs[padded.place], entropy[padded.place]
    return logprobs, entropy


def load_model(path: str, dtype: str, *, float32_head: bool = False) -> Any:
    """Return the causal language model of a folder; ``float32_head`` computes its logits in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    if float32_head:
        head = model.get_output_embeddings()

        def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(hidden.float(), self.weight.float())

        head.forward = types.MethodType(forward, head)
    return model


class Trainer:
    """A model under DeepSpeed.

    Parameters
    ----------
    model
        folder of the base model.
    dtype
        ``float32`` or ``bfloat16``.
    zero_stage
        DeepSpeed's ZeRO stage, 0 to 3.
    weight_decay, max_grad_norm
        AdamW's, and the norm to which gradients are clipped (0: not).
    micro_batch
        rows of one forward and backward pass; None: as many as hold 16,384 tokens.
    """

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
    ) -> None:
        self.micro_batch_tokens = micro_batch_tokens
        self.dtype = dtype
        deepspeed = _deepspeed()
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if environment.gpus() else torch.device("cpu")
        )
        module = load_model(model, "float32", float32_head=float32_head).to(self.device)
        module.train()
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=0.0, betas=(0.9, 0.999), weight_decay=weight_decay
        )
        if dtype == "bfloat16":
            zero_stage = max(zero_stage, 1)  # where DeepSpeed keeps float32 master weights by name
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": zero_stage},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": max_grad_norm,
            "bf16": {"enabled": dtype == "bfloat16"},
            "steps_per_print": 10**9,
        }
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        self.world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.steps = 0

    @property
    def module(self) -> Any:
        """The model itself."""
        return self.engine.module

    def micro_batches(self, rollouts: Rollouts) -> list[list[int]]:
        """Return rows cut into micro-batches, of similar lengths, equally many in every process."""
        order = sorted(range(len(rollouts)), key=lambda i: len(rollouts.prompts[i]) + len(rollouts.tokens[i]))
        longest = max((len(p) for p in rollouts.prompts), default=1) + max(
            (len(t) for t in rollouts.tokens), default=1
        )
        size = max(1, self.micro_batch_tokens // longest)
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        return parts + [[]] * (self._largest(len(parts)) - len(parts))

    def _largest(self, value: int) -> int:
        if self.world == 1:
            return value
        tensor = torch.tensor(value, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    @torch.no_grad()
    def logprobs(self, rollouts: Rollouts, temperature: float) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        return logprobs_of(self.engine, rollouts, self.micro_batches(rollouts), temperature, self.device)

    def backward(
        self,
        rollouts: Rollouts,
        loss_of: Callable[[Sequence[int], Padded, torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> None:
        """Accumulate the gradient of the whole batch.

        Parameters
        ----------
        rollouts
            this process's rows of the batch; may be empty.
        loss_of
            given the indices of a micro-batch's rows, their tensors, log-probabilities (R, T) and entropy
            (R, T), its part of the loss.
        temperature
            the sampler's.
        entropy_gradient
            whether the loss has an entropy term.
        """
        parts = self.micro_batches(rollouts)
        for number, rows in enumerate(parts):
            self.engine.set_gradient_accumulation_boundary(number == len(parts) - 1)
            if rows:
                padded = pad(rollouts.rows(rows), self.device)
                logp, h = token_logprobs(self.engine, padded, temperature, entropy_gradient)
                loss = loss_of(rows, padded, logp, h)
            else:  # this process has no rows left, and the others wait for its part in the exchange
                loss = token_logprobs(self.engine, _empty(self.device), temperature)[0].sum() * 0.0
            # DeepSpeed takes the mean over processes; the objective is their sum.
            self.engine.backward(loss * self.world)

    def update(self, lr: float) -> float:
        """Make the optimiser's step from the accumulated gradient; return its norm before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        whole = [p.grad for p in self.module.parameters() if p.grad is not None and not _partitioned(p)]
        norm = torch.nn.utils.get_total_norm(whole) if whole else None  # DeepSpeed tells only its own
        self.engine.step()
        self.steps += 1
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the accumulated gradient by name, as whole tensors, before `update`."""
        from deepspeed.utils import safe_get_full_grad

        return {
            name: safe_get_full_grad(p).float().cpu().clone() for name, p in self.module.named_parameters()
        }

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the current weights by name, each as a whole tensor; all processes take part."""
        for name, parameter in self.module.named_parameters():
            with self._gathered([parameter]):
                yield name, parameter.detach()

    def _gathered(self, parameters: Iterable[torch.nn.Parameter]) -> Any:
        partitioned = [p for p in parameters if hasattr(p, "ds_id")]
        if not partitioned:
            return nullcontext()
        from deepspeed import zero

        return zero.GatheredParameters(partitioned)

    def save(self, folder: Path) -> None:
        """Write weights and moments; all processes take part, the first one writes."""
        tensors: dict[str, dict[str, torch.Tensor]] = {name: {} for name in ("model", *_MOMENTS)}
        for name, parameter in self.module.named_parameters():
            for kind in tensors:
                if kind == "model" or self.steps:
                    whole = _read(self.engine, parameter, kind)
                    if self.rank == 0:
                        tensors[kind][name] = whole.float().cpu().contiguous().clone()
        if self.rank == 0:
            for kind, values in tensors.items():
                save_file(values, folder / f"{kind}.safetensors")
            (folder / "optimizer.json").write_text(json.dumps({"steps": self.steps}))

    def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        steps = int(json.loads((folder / "optimizer.json").read_text())["steps"])
        if steps:
            self._materialise()
        for kind in ("model", *_MOMENTS) if steps else ("model",):
            stored = load_file(folder / f"{kind}.safetensors")
            for name, parameter in self.module.named_parameters():
                _write(self.engine, parameter, kind, stored[name].to(self.device))
        if steps:
            for state in _adam_states(self.engine.optimizer):
                state["step"].fill_(steps)
        self.steps = steps

    def _materialise(self) -> None:
        """Make AdamW's moments exist: an update with lr 0 and no gradient."""
        loss = token_logprobs(self.engine, _empty(self.device), 1.0)[0].sum() * 0.0
        self.engine.set_gradient_accumulation_boundary(True)
        self.engine.backward(loss)
        self.update(0.0)

    def close(self) -> None:
        """Release the engine's memory."""
        self.engine.destroy()


def logprobs_of(
    model: Any, rollouts: Rollouts, parts: Sequence[Sequence[int]], temperature: float, device: torch.device
) -> list[torch.Tensor]:
    """Return each row's log-probabilities under ``model``, computed by micro-batches."""
    out: list[torch.Tensor] = [torch.empty(0)] * len(rollouts)
    for rows in parts:
        padded = pad(rollouts.rows(rows), device) if rows else _empty(device)
        logp, _ = token_logprobs(model, padded, temperature)
        for row, values in zip(rows, logp, strict=False):
            out[row] = values[: len(rollouts.tokens[row])]
    return out


def _empty(device: torch.device) -> Padded:
    one = torch.ones((1, 1), dtype=torch.long, device=device)
    return Padded(
        torch.zeros((1, 2), dtype=torch.long, device=device),
        torch.ones((1, 2), dtype=torch.long, device=device),
        one.bool(),
    )


def _deepspeed() -> Any:
    """Import DeepSpeed and start the process group, of one process unless torchrun says otherwise."""
    environment.prepare()
    import deepspeed

    if not environment.gpus():
        import deepspeed.ops

        # Compiling its shared-memory operator takes 45 s; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    process_group.start()
    deepspeed.init_distributed(verbose=False)
    return deepspeed


def _partitioned(parameter: torch.nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _read(engine: Any, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if not _partitioned(parameter):
        return parameter.detach() if kind == "model" else engine.optimizer.state[parameter][kind]
    if kind == "model":
        return safe_get_full_fp32_param(parameter)
    return safe_get_full_optimizer_state(parameter, kind)


def _write(engine: Any, parameter: torch.nn.Parameter, kind: str, value: torch.Tensor) -> None:
    from deepspeed import zero
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    with torch.no_grad():
        if kind != "model":
            if _partitioned(parameter):
                safe_set_full_optimizer_state(parameter, value, kind)
            else:
                engine.optimizer.state[parameter][kind].copy_(value)
            return
        if _partitioned(parameter):  # the float32 master, then the copy that computes
            safe_set_full_fp32_param(parameter, value)
        context = (
            zero.GatheredParameters([parameter], modifier_rank=0)
            if hasattr(parameter, "ds_id")
            else nullcontext()
        )
        with context:
            parameter.copy_(value)


def _adam_states(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield AdamW's own states, through DeepSpeed's wrappers."""
    while not isinstance(optimizer, torch.optim.AdamW):
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        if "step" in state:
            yield state
