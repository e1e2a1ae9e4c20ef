"""A vLLM that is none: it keeps the books of a GPU's memory, and draws by the plain sampler.

`installed` puts it in vLLM's place and has the sampler believe in a GPU, while the trainer stays on the CPU.
It notes every call, every forward pass of another model, and what would go wrong on a GPU: memory used twice,
weights used that were dropped. As a program it is a rank of a run::

    torchrun … stand_in.py JOBS FOLDER
"""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from isolaw.backends.real import environment
from isolaw.backends.real.rollout import samplers

PARTS = ("weights", "kv_cache")
OF_MACHINE = ("seconds", "machine")  # in a line


class Books:
    """What has happened, in order, and what a GPU would not have stood."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.faults: list[str] = []
        self.arguments: list[dict[str, Any]] = []
        self.sampling: set[str] = set()  # names of SamplingParams that were set
        self.llms: list[LLM] = []  # of which one is open at a time
        self.own: set[int] = set()  # ids of the modules that draw

    def note(self, event: str, *demands: tuple[bool, str]) -> None:
        self.events.append(event)
        self.faults += [f"{event}: {fault}" for fine, fault in demands if not fine]


class SamplingParams:
    """vLLM's, of which the books keep the names that are set."""

    books: Books

    def __init__(self, **fields: Any) -> None:
        self.books.sampling |= set(fields)
        vars(self).update(fields)

    def clone(self) -> SamplingParams:
        return SamplingParams(**vars(self))


class LLM:
    """vLLM's ``LLM``, awake at first, as vLLM is."""

    books: Books
    plain: Callable[..., samplers.TransformersSampler]

    def __init__(self, model: str, **arguments: Any) -> None:
        self.books.arguments.append(arguments)
        dtype = arguments["dtype"]
        self.sampler = self.plain(model, dtype=dtype)
        self.books.own |= {id(module) for module in self.sampler.model.modules()}
        self.sampler.model.load_weights = self._load_weights
        self.overrides = arguments.get("hf_overrides", {})
        self.awake = set(PARTS)
        self.cached = False
        self.prefixes = False  # whether the prefix cache holds any of former weights
        self.valid = arguments.get("load_format") != "dummy"
        head = self.overrides.get("head_dtype", dtype)
        self.model_config = SimpleNamespace(head_dtype=getattr(torch, head))
        engine = SimpleNamespace(shutdown=lambda: self.books.llms.remove(self))
        self.llm_engine = SimpleNamespace(engine_core=engine, has_unfinished_requests=lambda: False)
        self.books.llms.append(self)
        gc.freeze()  # as vLLM does

    def sleep(self, level: int = 1) -> None:
        self.books.note(f"sleep {level}", (self.awake == set(PARTS), "parts of it sleep already"))
        self.awake, self.cached = set(), True
        if level == 2:
            self.valid = False
            with torch.no_grad():
                for parameter in self.sampler.model.parameters():
                    parameter.fill_(torch.nan)

    def wake_up(self, tags: list[str] | None = None) -> None:
        for tag in tags or PARTS:
            self.books.note(
                f"wake {tag}",
                (tag not in self.awake, "it is awake"),
                (not self.cached, "torch's cache is full of what the trainer had"),
            )
            self.awake.add(tag)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert (method, list(kwargs)) == ("reload_weights", ["weights_iterator"])
        wanted = set(self.sampler.parameters)  # those of a head that is untied, too
        if self.overrides.get("tie_word_embeddings", True) and not _separate_head(self.sampler.model):
            wanted.discard("lm_head.weight")
        loaded = self.sampler.model.load_weights(kwargs["weights_iterator"])
        self.books.note(
            "load",
            ("weights" in self.awake, "its weights have no memory"),
            (loaded == wanted, f"without {sorted(wanted - loaded)}"),
        )
        self.valid = self.cached = True  # weights of ZeRO-3 were gathered
        self.prefixes = True

    def reset_prefix_cache(self) -> bool:
        self.prefixes = False
        return True

    @torch.no_grad()
    def _load_weights(self, weights: samplers.Weights) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            self.sampler.parameters[name].copy_(tensor)
            loaded.add(name)
        return loaded

    def generate(self, prompts: Any, parameters: Any, use_tqdm: bool) -> list[Any]:
        self.books.note(
            "generate",
            (self.awake == set(PARTS), f"asleep: {sorted(set(PARTS) - self.awake)}"),
            (self.valid, "without weights"),
            (not self.prefixes, "with the prefix cache of former weights"),
        )
        first = parameters[0]
        drawn = self.sampler.generate(
            [list(prompt["prompt_token_ids"]) for prompt in prompts],
            [[one.seed] for one in parameters],
            temperature=first.temperature,
            top_p=first.top_p,
            max_tokens=first.max_tokens,
        )
        rows = zip(drawn.tokens, drawn.logprobs, drawn.finished, strict=True)
        return [
            SimpleNamespace(
                outputs=[
                    SimpleNamespace(
                        token_ids=tokens,
                        logprobs=SimpleNamespace(logprobs=logprobs),
                        finish_reason="stop" if finished else "length",
                    )
                ]
            )
            for tokens, logprobs, finished in rows
        ]

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        return [function(self.sampler.model)]


def _separate_head(model: Any) -> bool:
    return model.get_input_embeddings().weight is not model.get_output_embeddings().weight


class _OnGpu:
    """`environment`, but with a GPU."""

    count = 1

    def gpus(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        return getattr(environment, name)


@contextlib.contextmanager
def installed() -> Iterator[Books]:
    """While entered, vLLM is the stand-in and the sampler is on a GPU."""
    books, machine = Books(), _OnGpu()

    def plain(model: str, *, dtype: str) -> samplers.TransformersSampler:
        machine.count = 0
        try:
            return samplers.TransformersSampler(model, dtype=dtype)
        finally:
            machine.count = 1

    def forward(module: Any, _: Any) -> None:
        if isinstance(module, PreTrainedModel) and id(module) not in books.own:
            books.note("forward", *((not llm.awake, f"vLLM has {sorted(llm.awake)}") for llm in books.llms))
            for llm in books.llms:
                llm.cached = True

    def empty_cache() -> None:
        for llm in books.llms:
            llm.cached = False

    fake = types.ModuleType("vllm")
    fake.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    SamplingParams.books = LLM.books = books
    LLM.plain = staticmethod(plain)
    vars(fake).update(__version__="0.32", LLM=LLM, SamplingParams=SamplingParams, TokensPrompt=dict)
    modules = [samplers]
    with contextlib.suppress(ImportError):
        from isolaw.backends.real.rollout import vllm_sampler

        modules.append(vllm_sampler)
    samplers.close_samplers()
    before, emptied = sys.modules.get("vllm"), torch.cuda.empty_cache
    sys.modules["vllm"], torch.cuda.empty_cache = fake, empty_cache
    for module in modules:
        module.environment = machine
    hook = torch.nn.modules.module.register_module_forward_pre_hook(forward)
    try:
        yield books
    finally:
        hook.remove()
        samplers.close_samplers()
        for module in modules:
            module.environment = environment
        torch.cuda.empty_cache = emptied
        del sys.modules["vllm"]
        if before:
            sys.modules["vllm"] = before


def run(spec: Any) -> tuple[Books, list[dict[str, Any]]]:
    """Make a run with the stand-in; return its books and what its checkpoints measured."""
    from isolaw.backends.real.train import loop

    with installed() as books:
        lines = [checkpoint.line(0.0) for checkpoint in loop.train(spec, None)]
    return books, [{key: value for key, value in line.items() if key not in OF_MACHINE} for line in lines]


def main(jobs: Path, folder: Path) -> None:
    """Be a rank: make the runs of a file, and write what came of each."""
    from isolaw.config import RunSpec
    from isolaw.documents.validation import parse_section

    told = {}
    for name, job in json.loads(jobs.read_text()).items():
        books, lines = run(parse_section(RunSpec, job, source=name))
        told[name] = {"faults": books.faults, "arguments": books.arguments, "lines": lines}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.barrier()
    sys.stdout.flush()


if __name__ == "__main__":
    environment.prepare()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
