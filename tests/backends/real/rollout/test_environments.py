"""Whole runs over environments of other libraries, where they are installed: gymnasium, verifiers."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isolaw.backends.real.rollout.problems import write_set

pytestmark = pytest.mark.real

GYMNASIUM = """
import gymnasium
from gymnasium.spaces import Text
from isolaw.backends.real.rollout.from_gymnasium import rollout_of

class Again(gymnasium.Env):
    '''Ask for a sum until it is right, at most twice.'''
    action_space = observation_space = Text(32, charset="0123456789+=")
    def __init__(self, answer): self.answer = answer
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.tries = 0
        return "", {}
    def step(self, action):
        self.tries += 1
        right = action == self.answer
        return "=", (1.0, 0.5)[self.tries - 1] * right, right, self.tries == 2, {}

gymnasium.register("Again-v0", Again)
def make(problem): return gymnasium.make("Again-v0", answer=problem.answer, disable_env_checker=True)
rollout = rollout_of(make)
"""
VERIFIERS = """
import openai
import verifiers.v1 as vf
from isolaw.backends.real.rollout.from_verifiers import problems_of, rollout_of

class Square(vf.TaskData):
    answer: str

class SquareTask(vf.Task[Square]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)
    @vf.reward(weight=0.25)
    async def has_a_one(self, trace) -> float:
        return float("1" in trace.last_reply)

class Squares(vf.Taskset[SquareTask]):
    def load(self):
        for a in range(12, 18):
            yield SquareTask(Square(prompt=f"{a}*{a}=", answer=str(a * a)), self.config.task)

class Loop(vf.Harness[vf.HarnessConfig]):
    '''A harness in the environment's own process.'''
    SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False
    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        given = data.prompt if isinstance(data.prompt, list) else [vf.UserMessage(content=data.prompt)]
        messages = [{"role": one.role, "content": one.content} for one in given]
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

class Twice(vf.Env[vf.SingleAgentEnvConfig]):
    '''Asks for the same square again.'''
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            await talk.turn()
            await talk.turn(task.data.prompt)

__all__ = ["Squares", "Loop", "Twice"]
ENVIRONMENT = {"taskset": {"id": "squares"}, "agent": {"runtime": {"type": "subprocess"}}}
rollout = rollout_of(ENVIRONMENT)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module that a run can import."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.nightly
def test_an_environment_of_gymnasium(module: Callable[..., None], train: Callable[..., Any]) -> None:
    pytest.importorskip("gymnasium")
    module("again", GYMNASIUM)
    curve = train(
        recipe={"max_response_tokens": 14},
        real={"rollout": "again:rollout", "reward": "rollout", "sampler": "transformers"},
        sweep={"compute": 96},
    )
    turns, reward = (curve["train", name][3] for name in ("turns", "reward"))
    assert 1 < turns < 2  # right at once, or asked again
    assert 0 < reward < 1
    assert set(curve["train", "failed_fraction"].values()) == {0.0}


@pytest.mark.nightly
def test_an_environment_of_verifiers(
    module: Callable[..., None], train: Callable[..., Any], made: Any, tmp_path: Path
) -> None:
    """Its tasks, its agent's harness and its rewards; two turns of a chat."""
    pytest.importorskip("verifiers")
    module("squares", VERIFIERS)
    import squares  # type: ignore[import-not-found]

    problems = list(squares.problems_of(squares.ENVIRONMENT))
    assert [problem.prompt for problem in problems][:2] == ["12*12=", "13*13="]
    write_set(tmp_path / "set", {"train": problems[:4], "validation": problems[4:]})
    shutil.copytree(made.model, tmp_path / "chat")
    template = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' }}{% endfor %}"
    (tmp_path / "chat" / "chat_template.jinja").write_text(template)
    curve = train(
        problems={"set": str(tmp_path / "set"), "n_train": 4, "n_validation": 2},
        recipe={"max_response_tokens": 22, "temperature": 1.0},
        grid={"problems_per_batch": [4], "rollouts_per_problem": [4]},
        real={
            "model": str(tmp_path / "chat"),
            "rollout": "squares:rollout",
            "reward": "rollout",
            "sampler": "transformers",
        },
        sweep={"compute": 32},
    )
    assert set(curve["train", "failed_fraction"].values()) == {0.0}
    assert 1.5 < curve["train", "turns"][2] <= 2  # a first turn may take all tokens
    assert 4 < curve["train", "environment_tokens"][2] <= 6
    assert 0 < curve["train", "reward"][2] < 1  # a 1 in the last answer counts a quarter
    assert curve["train", "mismatch_max"][2] < 1e-4


def test_an_agent_talks_to_an_endpoint() -> None:
    """As OpenAI's clients do: tools, streams, messages that come back, and a refusal where they changed."""
    aiohttp = pytest.importorskip("aiohttp")
    from isolaw.backends.real.rollout.from_verifiers import _Chat
    from isolaw.backends.real.rollout.function_rollout import Written

    written = ['Let me add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "2", "never"]
    asked: list[Any] = []

    async def generate(conversation: list[Any], tools: Any = None) -> Written:
        asked.append((list(conversation), tools))
        return Written(written[len(asked) - 1])

    async def talk() -> None:
        chat, tools = _Chat(generate), [{"type": "function", "function": {"name": "add"}}]
        async with chat.served() as url, aiohttp.ClientSession() as client:
            assert url.startswith("http://127.0.0.1:")

            async def post(messages: list[Any], **more: Any) -> tuple[int, str]:
                body = {"model": "policy", "messages": messages, **more}
                async with client.post(f"{url}/chat/completions", json=body) as reply:
                    return reply.status, await reply.text()

            user = {"role": "user", "content": [{"type": "text", "text": "1+1?"}]}
            status, text = await post([user], tools=tools)
            message = json.loads(text)["choices"][0]["message"]
            assert (status, message["content"]) == (200, "Let me add.")
            (call,) = message["tool_calls"]
            assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}

            result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
            status, text = await post([user, message, result], tools=tools, stream=True)
            chunk = json.loads(text.split("data: ")[1])
            assert chunk["choices"] == [
                {"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "2"}}
            ]
            status, text = await post([{"role": "user", "content": "2+2?"}, message, result])
            assert status == 400
            assert "the agent changed its conversation" in text
        assert isinstance(chat.error, ValueError)
        assert asked[0] == ([{"role": "user", "content": "1+1?"}], tools)
        assert asked[1][0][1:] == [{"role": "assistant", "content": written[0]}, result]
        assert len(asked) == 2

    asyncio.run(talk())
