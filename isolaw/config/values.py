"""What a value in a sweep file may be."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_MOST_SEEDS = 10_000
_LARGEST = 2**53  # beyond this a float64 is no longer exact


class Section(BaseModel):
    """A section of a sweep file: no key but its own, and no change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def whole(value: Any) -> Any:
    """Accept 1e7 where a whole number is meant."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def listed(value: Any) -> Any:
    """Accept one value where a list is meant."""
    return value if isinstance(value, list | tuple) else [value]


def once(values: tuple[str, ...]) -> tuple[str, ...]:
    """What is named twice counts once."""
    return tuple(dict.fromkeys(values))


def seed_list(value: Any) -> Any:
    """``seeds = 3`` means the seeds 0, 1, 2."""
    value = whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= _MOST_SEEDS:
            raise ValueError(f"a number of seeds from 1 to {_MOST_SEEDS:,}, or a list of seeds")
        return list(range(value))
    return value


Count = Annotated[int, BeforeValidator(whole), Field(ge=1, le=_LARGEST, strict=True)]
Index = Annotated[int, BeforeValidator(whole), Field(ge=0, le=_LARGEST, strict=True)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
