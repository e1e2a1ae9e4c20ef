"""Draw multi-turn rollouts: a user's function (`function_rollout`) requests turns, the sampler draws them.

    while rollouts are unfinished:
        send each rollout its input; it requests another turn or ends
        encode the texts that the environments added, and draw the next turn of all rollouts together

A rollout's response is everything after its first prompt. Tokens of the environment are context for the
model's next turn. `Rollouts.inserted` records their positions. Environment tokens do not enter
log-probabilities, the gradient, the KL term or token weights. They count toward ``max_response_tokens``,
because they take up the same context.

A rollout's draws depend only on its seed and the number of the turn. The first turn uses the seed itself, so
a function with one turn gives the same draws as no function. If a rollout's function raises, is late or
returns an invalid value, isolaw keeps its tokens and sets its reward to 0. A rollout that has no turn or
token left is cut off. Its reward is the reward of its last turn, or the reward that its function returns.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isolaw.backends.real.options import RealOptions
from isolaw.backends.real.rollout.function_rollout import Reply, RolloutFunction
from isolaw.backends.real.rollout.problems import Message, Problem
from isolaw.backends.real.rollout.prompts import encode, encode_phrase, encode_reply
from isolaw.backends.real.rollout.rewards import ROLLOUT
from isolaw.backends.real.rollout.samplers import Rollouts, Sampler
from isolaw.errors import DataError

_TURN = 3  # key of a random stream derived from a rollout's seed; `interruption` uses 1 and 2


@dataclass
class Conversation:
    """The trainer's record of a multi-turn rollout: its tokens, and how it ended."""

    problem: Problem
    seed: int
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    inserted: list[int] = field(default_factory=list)  # as in `Rollouts`
    turns: int = 0
    written: str = ""  # the model's text in the last turn
    finished: bool = False
    is_chat: bool = False
    reward: float = 0.0  # the reward that its function returned
    failed: str = ""  # the reason for a failure, else empty

    @property
    def environment_tokens(self) -> int:
        """Number of environment tokens in the response."""
        return sum(self.inserted[1::2]) - sum(self.inserted[::2])

    def turn_seed(self) -> int:
        """Return the seed of the next turn."""
        if not self.turns:
            return self.seed
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_TURN, self.turns))
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


class Turns:
    """Draws multi-turn rollouts with a user's function.

    ``longest`` is the maximum number of tokens of prompt and response together.
    """

    def __init__(self, options: RealOptions, tokenizer: Any, longest: int) -> None:
        assert options.rollout is not None
        self.name, self.most, self.longest = options.rollout, options.rollout_turns, longest
        self.tokenizer, self.chat = tokenizer, options.chat
        self.needs_reward = ROLLOUT in options.rewards
        self.function = RolloutFunction(
            self.name, options.reward_workers, options.rollout_timeout, options.modules
        )

    def draw(
        self,
        sampler: Sampler,
        problems: Sequence[Problem],
        *,
        prompts: Sequence[list[int]],
        seeds: Sequence[Sequence[int]],
        max_tokens: int,
        **how: float,
    ) -> list[Conversation]:
        """Return a rollout for each problem.

        The other arguments are as in `Sampler.generate`, for one turn. Warn about failed rollouts, with the
        most frequent reasons.
        """
        rows = [
            Conversation(problem, seed, prompt)
            for problem, prompt, (seed,) in zip(problems, prompts, seeds, strict=True)
        ]
        told: dict[int, Any] = {number: vars(row.problem) for number, row in enumerate(rows)}
        while told:
            replies, told = self.function.advance(told), {}
            drawing: dict[int, int] = {}  # the maximum tokens of the next turn, by rollout
            for number, reply in sorted(replies.items()):
                row = rows[number]
                if "added" not in reply:
                    self._end(row, reply)
                elif room := self._room(row, reply, max_tokens):
                    drawing[number] = room
                else:
                    row.finished, told[number] = False, None
            if not drawing:
                continue
            asking = [rows[number] for number in drawing]
            drawn = sampler.generate(
                [row.prompt + row.tokens for row in asking],
                [[row.turn_seed()] for row in asking],
                max_tokens=list(drawing.values()),
                **how,
            )
            texts = self.tokenizer.batch_decode(drawn.tokens, skip_special_tokens=True)
            for k, (number, row) in enumerate(zip(drawing, asking, strict=True)):
                row.tokens = row.tokens + drawn.tokens[k]
                row.logprobs = row.logprobs + drawn.logprobs[k]
                row.turns, row.written, row.finished = row.turns + 1, texts[k], drawn.finished[k]
                told[number] = [row.written, row.finished]
        if failed := Counter(row.failed for row in rows if row.failed):
            said = "; ".join(f"{number:,} {kind}" for kind, number in failed.most_common(3))
            count = sum(failed.values())
            warnings.warn(
                f"{count:,} of {len(rows):,} rollouts of {self.name} failed and got reward 0: {said}",
                stacklevel=2,
            )
        return rows

    def _end(self, row: Conversation, reply: Reply) -> None:
        row.failed = row.failed or reply.get("failed", "")
        if row.failed:
            return
        if reply["reward"] is not None:
            row.reward = reply["reward"]
        elif self.needs_reward and row.finished:
            row.failed = f"it returned no reward, which real.reward = {ROLLOUT!r} needs"

    def _room(self, row: Conversation, reply: Reply, max_tokens: int) -> int:
        """Add the environment's tokens to a rollout; return the token limit of its next turn, or 0."""
        if row.failed or (self.most and row.turns >= self.most):
            return 0
        try:
            added = self._encoded(row, reply)
        except DataError as error:
            row.failed = str(error)
            return 0
        if not row.turns and not 0 < len(added) < self.longest:
            row.failed = f"its first prompt has {len(added)} tokens; expected 1 to {self.longest - 1}"
            return 0
        if not row.turns:
            row.prompt = added
        room = min(max_tokens, self.longest - len(row.prompt)) - len(row.tokens)
        if row.turns:
            room -= len(added)
            if added and room > 0:
                row.inserted += [len(row.tokens), len(row.tokens) + len(added)]
                row.tokens = row.tokens + added
        return max(room, 0)

    def _encoded(self, row: Conversation, reply: Reply) -> list[int]:
        """Return the tokens of the environment's items; raise `DataError` if they cannot be encoded."""
        items: list[str | Message] = reply["added"]
        messages = [{"role": "user", "content": item} if isinstance(item, str) else item for item in items]
        texts = [item for item in items if isinstance(item, str)]
        if row.turns and row.is_chat:
            last = row.tokens[-1:]
            return encode_reply(row.problem, last, row.finished, messages, self.tokenizer, self.chat)
        if row.turns:
            if len(texts) < len(items):
                raise DataError("it added a message to a conversation that began with text")
            return encode_phrase("".join(texts), self.tokenizer) if texts else []
        prompt = "".join(texts) if len(texts) == len(items) else messages
        opening = Problem(row.problem.id, prompt, row.problem.answer)
        row.is_chat = self.chat.messages(opening) is not None
        return encode([opening], self.tokenizer, self.chat, reply["tools"])[0]

    def close(self) -> None:
        """End the worker processes of the function."""
        self.function.close()


def rollouts_of(rows: Sequence[Conversation]) -> Rollouts:
    """Return conversations as `Rollouts`, the format in which samplers return responses."""
    return Rollouts(
        [row.prompt for row in rows],
        [row.tokens for row in rows],
        [row.logprobs for row in rows],
        [row.finished for row in rows],
        [row.inserted or [0, 0] for row in rows],
    )
