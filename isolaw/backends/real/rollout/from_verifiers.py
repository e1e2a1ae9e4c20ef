"""Make rollout functions from environments of `verifiers` 0.4 (github.com/primeintellect-ai/verifiers).

::

    # gsm8k.py; real.rollout = "gsm8k:rollout", real.reward = "rollout"
    from isolaw.backends.real.rollout.from_verifiers import rollout_of
    rollout = rollout_of({"taskset": {"id": "gsm8k-v1"}, "agent": {"runtime": {"type": "subprocess"}}})

``rollout_of`` accepts an environment's configuration: the section ``[env]`` of verifiers. `problems_of` turns
each task of the environment into a problem. The environment plays an episode with its own agents, tools and
harness. The agents' model is a chat completions endpoint in this process, which answers with `generate`. The
reward is from the environment. An episode has one conversation, so with several agents all but one need
their own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

from isolaw import commands
from isolaw.backends.real.rollout.problems import Problem

# The format of tool calls of Qwen and Hermes.
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def problems_of(environment: dict[str, Any], count: int | None = None) -> Iterator[Problem]:
    """Yield an environment's tasks as problems for `problems.write_set`; the answer is the task's key."""
    taskset = vf().load_taskset(vf().resolve_env_config(environment).taskset)
    for task in taskset if count is None else taskset.take(count):
        yield Problem(task.key, task.data.prompt_text or "-", task.key, {"task": task.data.idx})


def rollout_of(environment: dict[str, Any]) -> Callable[[Problem, Any], Awaitable[Any]]:
    """Return the rollout function of an environment, given its configuration.

    Raise `ImportError` if verifiers 0.4 or newer is not installed; isolaw then rejects the sweep.
    """
    if not importlib.util.find_spec("verifiers"):
        raise ImportError(f"verifiers is not installed: {commands.install('verifiers')}")
    if tuple(map(int, version("verifiers").split(".")[:2])) < (0, 4):
        raise ImportError(f"found verifiers {version('verifiers')}; expected 0.4 or newer")
    played: asyncio.Future[tuple[Any, dict[int, Any]]] | None = None

    async def started() -> tuple[Any, dict[int, Any]]:
        """Return the environment and its tasks by index, which all rollouts of a process share."""
        nonlocal played
        if played is None:
            played = starting = asyncio.get_running_loop().create_future()
            try:
                own = vf().load_environment(vf().resolve_env_config(environment))
                await own.serving().__aenter__()  # never exited: it serves until the process ends
            except BaseException as error:  # including time limits: waiting rollouts fail, later ones retry
                played = None
                starting.set_exception(RuntimeError(f"the environment did not start: {error!r}"))
                starting.exception()  # marks the exception as retrieved, even if no rollout waits
                raise
            starting.set_result((own, {task.data.idx: task for task in own.taskset}))
        return await played

    async def rollout(problem: Problem, generate: Any) -> tuple[list[Any], float]:
        own, tasks = await started()
        chat = _Chat(generate)
        async with chat.served() as url:
            client = vf().EvalClientConfig(base_url=url, api_key_var="ISOLAW_NO_KEY")
            context = vf().ModelContext(model="policy", client=client)
            episode = await own.run_episode(tasks[problem.columns["task"]], context)
        if chat.error:
            raise chat.error
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}")
        return chat.conversation, sum(trace.reward for trace in episode.traces if trace.agent.trainable)

    return rollout


def vf() -> Any:
    """Import and return the module ``verifiers.v1``."""
    return importlib.import_module("verifiers.v1")


class _Chat:
    """A chat completions endpoint that continues one conversation."""

    def __init__(self, generate: Any) -> None:
        self.generate = generate
        self.conversation: list[Any] = []
        self.error: Exception | None = None

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve on localhost under a secret path until the block ends; yield the URL."""
        from aiohttp import web

        app, path = web.Application(), f"/{secrets.token_urlsafe()}/v1"
        app.router.add_post(f"{path}/chat/completions", self._complete)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        finally:
            await runner.cleanup()

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        known = len(self.conversation)
        try:
            messages = [_plain(message) for message in body["messages"]]
            if len(messages) < known or not all(map(_same, messages, self.conversation)):
                raise ValueError("the agent changed its conversation, but a rollout can only append to it")
            added = messages[known:]
            written = await self.generate([*self.conversation, *added], tools=body.get("tools"))
        except Exception as error:  # ends the rollout; the environment gets an error response
            self.error = self.error or error
            return web.json_response({"error": {"message": str(error)}}, status=400)
        self.conversation += [*added, {"role": "assistant", "content": written}]
        message = {"role": "assistant", **_parsed(written)}
        reason = "tool_calls" if "tool_calls" in message else "stop" if written.finished else "length"
        whole = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        choice = {"index": 0, "finish_reason": reason}
        if not body.get("stream"):
            return web.json_response({**whole, "choices": [{**choice, "message": message}]})
        for number, call in enumerate(message.get("tool_calls", [])):
            call["index"] = number
        chunk = {**whole, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
        text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")


def _same(message: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return whether a message equals an earlier one.

    The content of assistant messages is not compared, because the agent returns them with parsed tool calls.
    """
    return message == own or message["role"] == own["role"] == "assistant"


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its content as text."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part.get("text", "") for part in content)
    return {**message, "content": content}


def _parsed(written: str) -> dict[str, Any]:
    """Parse the model's text into the content and the tool calls of a message.

    >>> _parsed('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')["tool_calls"][0]["function"]
    {'name': 'add', 'arguments': '{"a": 1}'}
    """
    calls: list[dict[str, Any]] = []
    for text in _CALL.findall(written):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            call = json.loads(text)
            function = {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))}
            calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    if not calls:
        return {"content": str(written)}
    return {"content": _CALL.sub("", written).strip(), "tool_calls": calls}
