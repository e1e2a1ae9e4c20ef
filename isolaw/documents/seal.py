"""Seals: checksums that detect damaged documents and documents of another owner.

The checksum is the CRC-32 of the canonical JSON, seeded with the owner's name. It detects accidental damage
but not forgery, unless the reader can recompute the content.

>>> document = sealed({"compute": 512}, "a")
>>> document
{'compute': 512, 'crc': 'c00b2c46'}
>>> is_sealed(document, "a"), is_sealed(document, "b"), is_sealed(document | {"compute": 513}, "a")
(True, False, False)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, ASCII. Raises `ValueError` for NaN and infinity.

    >>> canonical_json({"b": 1, "a": [1.0]})
    '{"a":[1.0],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sealed(document: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return a JSON document with the checksum for ``owner`` added."""
    crc = zlib.crc32(canonical_json(document).encode(), zlib.crc32(owner.encode()))
    return {**document, "crc": f"{crc:08x}"}


def is_sealed(document: Mapping[str, Any], owner: str) -> bool:
    """Return whether a document is unchanged since `sealed` added the checksum for ``owner``."""
    try:
        return document == sealed({key: document[key] for key in document if key != "crc"}, owner)
    except (ValueError, RecursionError):  # some JSON can be read but not written, such as 1e999
        return False
