"""Plain values from text: JSON, YAML and printed Python such as ``{'loss': 0.25, 'kl': np.float64(nan)}``.

A log can come from anywhere, so nothing is evaluated. An alias only refers to a value read earlier, and tags
are ignored. `ast.literal_eval` is not an alternative: it supports neither ``nan`` nor ``tensor(0.5)``, and
can be made to exhaust stack and memory.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from isolaw.documents.reading import whole_characters
from isolaw.errors import DataError
from isolaw.readers.limits import DEEPEST

_MOST_DIRECTIVES = 20
_WHITESPACE = re.compile(r"\s*")
_KEY = re.compile(r"(?:'([^'\\\n]{1,300})'|\"([^\"\\\n]{1,300})\")\s{0,9}:\s{0,9}")
# A short text, an integer as long as Python prints it, or a word that can be a call: -1e-06, nan,
# np.float64(0.5), tensor(0.5, device='cuda:0').
_PLAIN_VALUE = re.compile(
    r"'([^'\\]{0,300})'|\"([^\"\\]{0,300})\"|-?\d{61,4300}|[-+\w.]{1,60}(?:\([^(){}]{0,200}\))?"
)
# A whole quotation, or a structural character.
_STRUCTURE = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|[(\[{,)\]}'"]""", re.S)
_NAMESPACE_FIELD = re.compile(r"[, ]*(\w{1,60})=(namespace\()?")
_NAMESPACE_END = re.compile(r"[, ]*\)")
_MOST_NAMESPACES = 20  # nesting depth


def scalar(text: str) -> Any:
    """Return the value of an unquoted word in YAML or on Hydra's command line.

    Unlike PyYAML, and like OmegaConf, ``1e-6`` is a number.

    >>> [scalar(word) for word in ("8", "1e-6", "null", "True", "grpo")]
    [8, 1e-06, None, True, 'grpo']
    """
    text = text.strip()
    if text.lower() in ("", "~", "null", "none"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = parse_number(text) if len(text) < 100 and text[-1] in "0123456789." else None
    return text if number is None else number


def parse_number(text: str) -> int | float | None:
    """Return the number that a text spells, or None.

    >>> [parse_number(text) for text in ("8", "1e-6", "inf", "grpo")]
    [8, 1e-06, inf, None]
    """
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return None


def literal(text: str) -> Any:
    """Return a quoted text without its quotes, and the value of an unquoted word as `scalar` does."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else scalar(text)


def parse_json(text: bytes | str) -> Any:
    """Return a JSON document, which may contain NaN and Infinity, or None if the text is not JSON.

    >>> parse_json(b'{"loss": NaN}'), parse_json(b'{"loss": ')
    ({'loss': nan}, None)
    """
    for parse in (orjson.loads, loads):  # the second is four times slower, but accepts NaN and Infinity
        try:
            return parse(text)
        except (ValueError, RecursionError):
            continue
    return None


def loads(text: bytes | str) -> Any:
    r"""Return a JSON document. Half of a surrogate pair, which no file can store, becomes a question mark.

    Raises `ValueError` or `RecursionError` if the text is not JSON.

    >>> loads('{"note": "\\ud800", "step": NaN}')
    {'note': '?', 'step': nan}
    """
    return json.loads(whole_characters(text))


def parse_yaml(text: str) -> Any:
    """Return a YAML document as plain mappings, lists and scalars.

    Raises `DataError` if the text is not YAML or is nested too deeply.

    >>> parse_yaml("data: {train_batch_size: 512}\\nlr: 1e-6\\nx: !!python/object/apply:os.abort []")
    {'data': {'train_batch_size': 512}, 'lr': 1e-06, 'x': []}
    """
    import yaml

    # PyYAML only parses here, and no loader constructs objects. CSafeLoader would compose in C, where deep
    # nesting overflows the stack (SIGSEGV). SafeLoader takes ten times as long, and merge keys (<<) double
    # its time.
    if text.startswith("%") and text.count("\n%") >= _MOST_DIRECTIVES:  # compared pairwise by the parser
        raise DataError(f"YAML with more than {_MOST_DIRECTIVES} directives")
    root: list[Any] = []
    open_containers: list[tuple[Any, list[Any]]] = [(root, [])]  # each with the key that waits for its value
    anchors: dict[str, Any] = {}
    try:
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            value: Any
            if isinstance(event, yaml.CollectionEndEvent):
                open_containers.pop()
                continue
            if isinstance(event, yaml.AliasEvent):
                _add_value(open_containers[-1], anchors.get(event.anchor))
                continue
            if isinstance(event, yaml.ScalarEvent):
                value = event.value if event.style else scalar(event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                value = {} if isinstance(event, yaml.MappingStartEvent) else []
            else:
                continue
            if event.anchor:
                anchors[event.anchor] = value
            _add_value(open_containers[-1], value)
            if isinstance(event, yaml.CollectionStartEvent):
                open_containers.append((value, []))
                if len(open_containers) > DEEPEST:  # before the parser's own time becomes quadratic
                    raise DataError(f"YAML nested deeper than {DEEPEST}")
    except yaml.YAMLError as error:
        raise DataError(f"not YAML ({' '.join(str(error).split())[:200]})") from None
    return root[0] if root else None


def _add_value(waiting: tuple[Any, list[Any]], value: Any) -> None:
    container, waiting_key = waiting
    if isinstance(container, list):
        container.append(value)
    elif waiting_key:
        container[str(waiting_key.pop())] = value
    elif isinstance(value, list | dict):
        waiting_key.append(f"<{type(value).__name__}>")  # not expanded, since it could be an alias bomb
    else:
        waiting_key.append("null" if value is None else value)


def parse_dictionary(text: str, position: int = 0) -> tuple[dict[str, str] | None, int]:
    """Parse the dictionary literal that starts at ``position``, and return its plain values as text.

    Returns the values, without nested ones, and the end of the dictionary. If there is no dictionary, returns
    None and the position up to which the text was read. This is the length of the text if the text ends
    within the dictionary.

    >>> parse_dictionary("12: {'loss': '0.25', 'kl': np.float64(nan), 'names': ['a', {}], 'n': 8} done", 4)
    ({'loss': '0.25', 'kl': 'np.float64(nan)', 'n': '8'}, 71)
    >>> parse_dictionary("{'loss': 0.25, 'k"), parse_dictionary("{'a', 'b'}")
    ((None, 17), (None, 4))
    """
    values: dict[str, str] = {}
    position = _skip_space(text, position + 1)
    while not text.startswith("}", position):
        key = _KEY.match(text, position)
        if key is None:
            return None, len(text) if _may_be_cut_off(text, position) else position + 3
        value = _PLAIN_VALUE.match(text, key.end())
        end = _skip_space(text, value.end()) if value else -1
        if value and text[end : end + 1] in (",", "}"):
            content = value[1] if value[1] is not None else value[2]
            values[key[1] or key[2]] = value[0] if content is None else content
        else:
            end = _end_of_value(text, key.end())
        if end >= len(text):
            return None, len(text)
        if text[end] not in ",}":
            return None, end
        position = _skip_space(text, end + 1) if text[end] == "," else end
    return values, position + 1


def parse_namespace(section: str, text: str) -> dict[str, Any]:
    """Parse a printed, possibly nested ``SimpleNamespace`` into dotted keys that start with ``section``.

    >>> parse_namespace("actor", "namespace(adam=namespace(lr=1e-06, betas=[0.9, 0.95]), name='a, b', n=8)")
    {'actor.adam.lr': 1e-06, 'actor.adam.betas': '[0.9, 0.95]', 'actor.name': 'a, b', 'actor.n': 8}
    """
    values: dict[str, Any] = {}
    path = [section]
    position = len("namespace(")
    while path and len(path) < _MOST_NAMESPACES:
        if closing := _NAMESPACE_END.match(text, position):
            path.pop()
            position = closing.end()
        elif (field := _NAMESPACE_FIELD.match(text, position)) is None:
            break
        elif field[2]:
            path.append(field[1])
            position = field.end()
        else:
            position = _end_of_value(text, field.end())
            values[".".join([*path, field[1]])] = literal(text[field.end() : position])
    return values


def _skip_space(text: str, position: int) -> int:
    return _WHITESPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches nothing, too


def _may_be_cut_off(text: str, position: int) -> bool:
    """Return whether the text could have been cut off within a key, so that more text could complete it."""
    remaining = text[position : position + 303]
    is_open = not remaining or (remaining[0] in "'\"" and remaining.count(remaining[0]) < 2)
    return is_open and position + len(remaining) == len(text)


def _end_of_value(text: str, position: int) -> int:
    """Return the end of a list, a dictionary or a long text, at a structural character on the same level."""
    depth = 0
    for match in _STRUCTURE.finditer(text, position):
        character = match[0]
        if character in "([{":
            depth += 1
        elif character in ",)]}":
            if not depth:
                return match.start()
            depth -= character != ","
        elif len(character) == 1:  # an unclosed quotation
            break
    return len(text)
