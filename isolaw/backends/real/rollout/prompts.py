"""Prompts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isolaw.backends.real.rollout.problems import Problem, ProblemSet
from isolaw.errors import DataError, Issue


def encode(problems: Sequence[Problem], tokenizer: Any) -> list[list[int]]:
    """Return the token ids of each prompt, by a Hugging Face tokenizer.

    The tokenizer's chat template formats messages, up to where the assistant's turn begins. Raise `DataError`
    if it has none for messages, or if the template refuses them.
    """
    chats = [q for q in problems if not isinstance(q.prompt, str)]
    if chats and not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"problem {chats[0].id!r}: its prompt is a list of messages, and the tokenizer of "
            f"{tokenizer.name_or_path} has no chat template; expected prompts that are text"
        )
    texts = iter(tokenizer([q.prompt for q in problems if isinstance(q.prompt, str)] or [""]).input_ids)
    return [next(texts) if isinstance(q.prompt, str) else _encode_chat(q, tokenizer) for q in problems]


def _encode_chat(problem: Problem, tokenizer: Any) -> list[int]:
    try:
        ids = tokenizer.apply_chat_template(problem.prompt, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a template is a program
        raise DataError(
            f"problem {problem.id!r}: the tokenizer's chat template refuses its messages: "
            f"{str(error) or type(error).__name__}"
        ) from None
    return list(ids)


def encode_phrase(phrase: str, tokenizer: Any) -> list[int]:
    """Return the tokens of an interruption's phrase, which stands within a text."""
    return list(tokenizer(phrase, add_special_tokens=False).input_ids)


def check_phrase(phrase: str, tokenizer: Any) -> list[Issue]:
    """Return an `Issue` if the tokenizer does not know all of an interruption's phrase."""
    known = tokenizer.decode(encode_phrase(phrase, tokenizer))
    if "".join(known.split()) == "".join(phrase.split()) != "":
        return []
    note = f"the model's tokenizer knows only {known!r} of it"
    return [Issue("recipe.interrupt_phrase", note, phrase, "a phrase in the model's tokens")]


def check_lengths(
    problem_set: ProblemSet,
    tokenizer: Any,
    context: int,
    max_response_tokens: int,
    key: str = "recipe.max_response_tokens",
) -> list[Issue]:
    """Return an `Issue` for each part whose prompts leave no room for a response in the context.

    ``key`` is the user's key of ``max_response_tokens``.
    """
    out = []
    room = context - max_response_tokens
    if room < 1:
        return [Issue(key, found=max_response_tokens, accepted=f"fewer than the context of {context}")]
    for part, problems in problem_set.parts.items():
        where = f"{problem_set.name}/{part}".rstrip("/")
        try:
            lengths = [len(ids) for ids in encode(problems, tokenizer)]
        except DataError as error:
            return [Issue(where, str(error))]
        except Exception as error:  # of a damaged tokenizer
            why = f"{type(error).__name__}: {error}"[:200]
            return [Issue(where, f"the tokenizer cannot encode its prompts: {why}")]
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if lengths[longest] > room:
            number = sum(length > room for length in lengths)
            many = f"{number} prompts are too long, the longest that of" if number > 1 else "too long:"
            note = f"{many} problem {problems[longest].id!r}"
            accepted = f"at most {room} ({context} of context − {max_response_tokens} of response)"
            out.append(Issue(where, note, f"{lengths[longest]} tokens", accepted))
    return out
