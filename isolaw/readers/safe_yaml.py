"""YAML as plain mappings, lists and scalars, read as events: tags, nesting and aliases do nothing.

A configuration may come from anywhere. PyYAML's loaders build objects, recurse, and expand aliases; here
an alias is a reference to what was read, and tags are ignored.
"""

from __future__ import annotations

from typing import Any

from isolaw.errors import DataError
from isolaw.readers.limits import DEEPEST

_MOST_DIRECTIVES = 20


def scalar(text: str) -> Any:
    """Return what a bare word means in YAML or on Hydra's command line.

    Unlike PyYAML, and like OmegaConf, ``1e-6`` is a number.

    >>> [scalar(word) for word in ("8", "1e-6", "null", "True", "grpo")]
    [8, 1e-06, None, True, 'grpo']
    """
    text = text.strip()
    if text.lower() in ("", "~", "null", "none"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) < 100 and text[-1] in "0123456789.":
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
    return text


def literal(text: str) -> Any:
    """Return a quoted text without its quotes, and a bare word as `scalar` does."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else scalar(text)


def parse_yaml(text: str) -> Any:
    """Return a YAML document as plain mappings, lists and scalars.

    Raises `DataError` if it is not YAML, or is nested too deeply.

    >>> parse_yaml("data: {train_batch_size: 512}\\nlr: 1e-6\\nx: !!python/object/apply:os.abort []")
    {'data': {'train_batch_size': 512}, 'lr': 1e-06, 'x': []}
    """
    import yaml

    if text.startswith("%") and text.count("\n%") >= _MOST_DIRECTIVES:  # the parser compares each with each
        raise DataError(f"YAML with more than {_MOST_DIRECTIVES} directives")
    root: list[Any] = []
    stack: list[tuple[Any, list[Any]]] = [(root, [])]  # a container, and the key that waits for its value
    anchors: dict[str, Any] = {}
    try:
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            value: Any
            if isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                continue
            if isinstance(event, yaml.AliasEvent):
                _put(stack[-1], anchors.get(event.anchor))
                continue
            if isinstance(event, yaml.ScalarEvent):
                value = event.value if event.style else scalar(event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                value = {} if isinstance(event, yaml.MappingStartEvent) else []
            else:
                continue
            if event.anchor:
                anchors[event.anchor] = value
            _put(stack[-1], value)
            if isinstance(event, yaml.CollectionStartEvent):
                stack.append((value, []))
                if len(stack) > DEEPEST:  # before the parser's own time becomes quadratic
                    raise DataError(f"YAML nested deeper than {DEEPEST}")
    except yaml.YAMLError as error:
        raise DataError(f"not YAML ({' '.join(str(error).split())[:200]})") from None
    return root[0] if root else None


def _put(place: tuple[Any, list[Any]], value: Any) -> None:
    container, key = place
    if isinstance(container, list):
        container.append(value)
    elif key:
        container[str(key.pop())] = value
    elif isinstance(value, list | dict):
        key.append(f"<{type(value).__name__}>")  # never expanded: it may be an alias bomb
    else:
        key.append("null" if value is None else value)
