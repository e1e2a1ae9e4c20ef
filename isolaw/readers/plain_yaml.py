"""YAML as plain mappings, lists and scalars, read as events: tags, nesting and aliases do nothing.

A configuration may come from anywhere. PyYAML's loaders build objects, recurse, and write out aliases; here
nothing is built but what is built here, and an alias is a reference.
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


def parse_yaml(text: str) -> Any:
    """Return a YAML document as plain mappings, lists and scalars; tags are ignored.

    Raises
    ------
    DataError
        not YAML, or nested too deeply.

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
        # Events, not objects: nothing is constructed but what is constructed here.
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                continue
            value: Any
            if isinstance(event, yaml.ScalarEvent):
                value = event.value if event.style else scalar(event.value)
            elif isinstance(event, yaml.MappingStartEvent):
                value = {}
            elif isinstance(event, yaml.SequenceStartEvent):
                value = []
            elif isinstance(event, yaml.AliasEvent):
                value = anchors.get(event.anchor)
            else:
                continue
            if getattr(event, "anchor", None) and not isinstance(event, yaml.AliasEvent):
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
    elif not key:
        if isinstance(value, list | dict):
            value = f"<{type(value).__name__}>"  # never written out: it may be an alias bomb
        key.append("null" if value is None else value)
    else:
        container[str(key.pop())] = value
