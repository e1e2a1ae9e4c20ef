"""Encode prompts and conversations as token ids, and check that they fit the model's context."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isolaw.backends.real.rollout.problems import Message, Problem, ProblemSet
from isolaw.errors import DataError, Issue, nearest


@dataclass(frozen=True)
class Chat:
    """Rules that turn prompts into conversations: a system message, and arguments of the chat template.

    If either of them is set, a text prompt becomes a user's message.

    >>> Chat.of("Be brief.", {"enable_thinking": False}).messages(Problem("1", "1+1=", "2"))
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': '1+1='}]
    >>> Chat().messages(Problem("1", "1+1=", "2")) is None
    True
    """

    system: str | None = None
    arguments: str = "{}"  # JSON, so that it can be hashed

    @classmethod
    def of(cls, system: str | None, arguments: Mapping[str, Any] | None) -> Chat:
        """Return the `Chat` of a system message and template arguments, from a section or a command."""
        return cls(system, json.dumps(arguments or {}, sort_keys=True))

    def messages(self, problem: Problem) -> list[Message] | None:
        """Return the messages of a problem, or None if its prompt remains text.

        Raise `DataError` for two system messages.
        """
        prompt = problem.prompt
        if isinstance(prompt, str):
            if self == Chat():
                return None
            prompt = [{"role": "user", "content": prompt}]
        if self.system is None:
            return prompt
        if any(message["role"] == "system" for message in prompt):
            raise DataError(
                f"problem {problem.id!r}: found a system message in its prompt; expected none, "
                "since `system` is set"
            )
        return [{"role": "system", "content": self.system}, *prompt]

    def issues(self, tokenizer: Any, where: str) -> list[Issue]:
        """Return issues of the template's arguments; a template would silently ignore unknown arguments."""
        if not (arguments := json.loads(self.arguments)):
            return []
        template = str(getattr(tokenizer, "chat_template", None) or "")
        reserved = list(inspect.signature(tokenizer.apply_chat_template).parameters)
        template_words = sorted(set(re.findall(r"[A-Za-z_]\w*", template)))
        out = []
        for name in arguments:
            if name in reserved:
                out.append(Issue(f"{where}.{name}", "isolaw sets it", accepted="an argument of the template"))
            elif template and name not in template_words:
                note = "the model's chat template does not use this argument"
                out.append(Issue(f"{where}.{name}", note, nearest=nearest(name, template_words)))
        return out


def encode(problems: Sequence[Problem], tokenizer: Any, chat: Chat = Chat()) -> list[list[int]]:
    """Return the token ids of each prompt, using a Hugging Face tokenizer.

    The tokenizer's chat template formats messages, up to the beginning of the assistant's turn. Raise
    `DataError` if there are messages but no template, or if the template fails.
    """
    chats = [chat.messages(p) for p in problems]
    first_chat = next((p for p, messages in zip(problems, chats, strict=True) if messages), None)
    if first_chat and not getattr(tokenizer, "chat_template", None):
        reason = (
            "its prompt is a list of messages"
            if isinstance(first_chat.prompt, list)
            else "the settings turn the prompt into a message"
        )
        raise DataError(
            f"problem {first_chat.id!r}: {reason}, and the tokenizer of "
            f"{tokenizer.name_or_path} has no chat template; expected prompts that are text"
        )
    plain_prompts = [p.prompt for p, messages in zip(problems, chats, strict=True) if not messages]
    encoded_texts = iter(tokenizer(plain_prompts or [""]).input_ids)
    return [
        _encode_chat(p, messages, tokenizer, chat) if messages else next(encoded_texts)
        for p, messages in zip(problems, chats, strict=True)
    ]


def _encode_chat(problem: Problem, messages: list[Message], tokenizer: Any, chat: Chat) -> list[int]:
    extra = json.loads(chat.arguments)
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **extra)
    except Exception as error:  # a template is a program and can raise any exception
        raise DataError(
            f"problem {problem.id!r}: the tokenizer's chat template rejects the messages of this problem: "
            f"{str(error) or type(error).__name__}"
        ) from None
    return list(ids)


def turn_ends(problems: Sequence[Problem], tokenizer: Any, chat: Chat = Chat()) -> tuple[int, ...]:
    """Return the ids of the tokens that end a response to these problems, besides the end of sequence.

    This is the token with which the chat template ends a turn, if any prompt is a conversation. A base model
    may not have it as its end of sequence, and would continue with another turn.
    """
    if all(chat.messages(problem) is None for problem in problems):
        return ()
    token = _end_of_turn(tokenizer)
    return () if token is None else (tokenizer.convert_tokens_to_ids(token),)


def _end_of_turn(tokenizer: Any) -> str | None:
    """Return the special token with which the chat template ends an assistant's turn, or None."""
    turns = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    try:
        ids = tokenizer.apply_chat_template(turns, return_dict=False)
    except Exception:  # no template, or one that rejects these messages
        return None
    special = {token.content for token in tokenizer.added_tokens_decoder.values()}
    tokens = tokenizer.convert_ids_to_tokens(ids)
    texts = [i for i, token in enumerate(tokens) if token not in special and "2" in token]
    last_text = max(texts, default=-1)
    return next((token for token in tokens[last_text + 1 :] if token in special), None)


def encode_phrase(phrase: str, tokenizer: Any) -> list[int]:
    """Return the tokens of a part of a longer text, such as an interruption's phrase."""
    return list(tokenizer(phrase, add_special_tokens=False).input_ids)


def check_phrase(phrase: str, tokenizer: Any) -> list[Issue]:
    """Return an `Issue` if the tokenizer cannot represent the whole phrase of an interruption."""
    decoded = tokenizer.decode(encode_phrase(phrase, tokenizer))
    if "".join(decoded.split()) == "".join(phrase.split()) != "":
        return []
    represented = f"only {decoded!r}" if decoded.strip() else "nothing"
    note = f"the model's tokenizer knows {represented} of the phrase"
    return [Issue("recipe.interrupt_phrase", note, phrase, "a phrase in the model's tokens")]


def check_lengths(
    problem_set: ProblemSet,
    tokenizer: Any,
    context: int,
    max_response_tokens: int,
    key: str = "recipe.max_response_tokens",
    chat: Chat = Chat(),
) -> list[Issue]:
    """Return an `Issue` for each part whose prompts leave no room for a response in the context.

    ``key`` is the key or option that sets ``max_response_tokens``; the issue names it.
    """
    out = []
    prompt_limit = context - max_response_tokens
    if prompt_limit < 1:
        return [Issue(key, found=max_response_tokens, accepted=f"fewer than the context of {context}")]
    for part, problems in problem_set.parts.items():
        where = f"{problem_set.name}/{part}".rstrip("/")
        try:
            lengths = [len(ids) for ids in encode(problems, tokenizer, chat)]
        except DataError as error:
            return [Issue(where, str(error))]
        except Exception as error:  # the tokenizer is damaged
            reason = f"{type(error).__name__}: {error}"[:200]
            return [Issue(where, f"the tokenizer cannot encode the prompts: {reason}")]
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if lengths[longest] > prompt_limit:
            count = sum(length > prompt_limit for length in lengths)
            fault = (
                f"{count} prompts are too long; the longest is the prompt of" if count > 1 else "too long:"
            )
            note = f"{fault} problem {problems[longest].id!r}"
            accepted = f"at most {prompt_limit} ({context} of context − {max_response_tokens} of response)"
            out.append(Issue(where, note, f"{lengths[longest]} tokens", accepted))
    return out
