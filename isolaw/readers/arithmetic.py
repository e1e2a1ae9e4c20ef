"""Arithmetic on columns, for ``--derive "compute=prompts_seen*rollout_n"``.

Numbers, column names, ``+ - * / //``, and brackets: nothing else is accepted and nothing is evaluated
as code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from isolaw.errors import DataError, unknown

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_EXPECTED = "numbers, column names, + - * / // and brackets"
_LONGEST = 1_000


def derive(expression: str, columns: Mapping[str, Any]) -> Any:
    """Return the value of ``expression`` over ``columns`` (arrays or Series of one length).

    Raises `DataError` for anything but arithmetic, an unknown column, or a column that is not numeric.

    >>> derive("(a + 1) * 2", {"a": np.array([1.0, 2.0])})
    array([4., 6.])
    """
    if len(expression) > _LONGEST:
        raise DataError(f"--derive: the expression is longer than {_LONGEST} characters")
    try:
        with np.errstate(all="ignore"):  # a division by zero is reported as a value that is not finite
            return _value(ast.parse(expression.strip(), mode="eval").body, columns)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(f"--derive {expression!r}: not arithmetic; expected {_EXPECTED}") from None
    except DataError as error:
        raise DataError(f"--derive {expression!r}: {error}") from None


def _value(node: ast.expr, columns: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, columns), _value(node.right, columns))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, columns)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return np.float64(str(node.value))  # through text: a huge integer becomes inf, not an error
    if isinstance(node, ast.Name):
        if node.id not in columns:
            raise DataError(unknown("column", node.id, columns))
        numbers = pd.to_numeric(columns[node.id], errors="coerce")
        if np.all(pd.isna(numbers)):
            raise DataError(f"column {node.id!r} is not numeric")
        return np.asarray(numbers, dtype=np.float64)
    raise DataError(f"{ast.unparse(node)!r} is not arithmetic on columns; expected {_EXPECTED}")
