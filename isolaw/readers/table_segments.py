"""Tables with runs in segments: one column names the run, and another column names each start of the run.

If a job is killed and submitted again, a tracker gives it another id under the same name. A *segment* is one
combination of values in the columns that name runs. Segments with the same name and recipe form one run if
each continues the previous one: it starts later and ends later. If two segments have the same step, the later
value is kept, as in logs (`isolaw.readers.stitch`). A segment that ends before the end of its predecessor is
a separate repeat, i.e. a run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from isolaw.errors import DataError
from isolaw.readers.how_to_read import HowToRead, Rule, applying
from isolaw.readers.names import ALIASES, DEFAULTS, RECIPE, RUN_NAMES, guess
from isolaw.runs import COLUMNS, KEY, listed, plain

_NONE = "none"  # placeholder for values that only some names contain
_SHOWN = 4
_SEGMENT, _RANK = "_segment", "_rank"  # columns of the table while its runs are joined


@dataclass(frozen=True)
class _Naming:
    """The columns by which a table distinguishes its runs and their segments."""

    names: tuple[str, ...]  # from the coarsest (the run's name) to the finest
    recipe: dict[str, str]  # lr, kl, … → their columns
    others: tuple[str, ...]  # columns of text or booleans that vary between runs but not within a run

    @property
    def attributes(self) -> dict[str, str]:
        """The name of each attribute of a run, mapped to its column."""
        return {**self.recipe, **{column: column for column in self.others}}

    @property
    def used(self) -> list[str]:
        """All columns of the table that name runs or their attributes."""
        return [*self.names, *self.recipe.values(), *self.others]


def names_of(table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns that name runs, the coarsest first, without columns that number the rows."""
    called = guess(columns, RUN_NAMES).values()
    names = [name for name in called if table[name].notna().all() and table[name].nunique() * 2 <= len(table)]
    return sorted(names, key=lambda column: int(table[column].nunique()))


def from_names(
    frame: pd.DataFrame, ways: Sequence[HowToRead], used: set[Rule], columns: Mapping[str, str], source: str
) -> pd.DataFrame:
    """Return a column for each value that ``ways`` give to names of runs. ``used`` collects their rules.

    Raises `DataError` if a name contradicts a column of the table.
    """
    said = {**{ALIASES.get(str(name), str(name)): str(name) for name in frame.columns}, **columns}
    out = pd.DataFrame(index=frame.index)
    for column in names_of(frame, [str(each) for each in frame.columns]):
        known = {
            name: {of: a for of, a in applying(ways, str(name), []).items() if a.pattern or a.glob}
            for name in frame[column].unique()
        }
        used |= {a.rule for values in known.values() for a in values.values()}
        for of in dict.fromkeys(of for values in known.values() for of in values):
            value = frame[column].map(
                {name: values[of].value for name, values in known.items() if of in values}
            )
            if said.get(of) in frame.columns:
                there = frame[said[of]]
                differs = value.notna() & there.notna() & value.map(_text).ne(there.map(_text))
                if differs.any():
                    at = differs.idxmax()
                    rule = known[frame[column][at]][of].rule
                    raise DataError(
                        f"{source}: {frame.index.name} {at}: {of} is {_text(value[at])} in the name "
                        f"{frame[column][at]!r} ({rule}), but {_text(there[at])} in the column {said[of]}; "
                        "correct the wrong value"
                    )
                value = there.where(there.notna(), value)
            rest = DEFAULTS.get(of, None if of in COLUMNS else _NONE)
            out[of] = value if rest is None else value.astype(object).fillna(rest)
    return out


def _text(value: object) -> str:
    return str(plain(value))


def find(table: pd.DataFrame, identity: Sequence[str], free: Sequence[str]) -> _Naming | None:
    """Return the columns of ``free`` that name runs, if the identity columns do not distinguish runs.

    Returns None if no column does, or if none varies among the rows with the same identity.
    """
    names = names_of(table, free)
    if not names or not (table.groupby(list(identity))[names].nunique() > 1).any(axis=None):
        return None
    varying = [column for column in free if column not in names and table[column].nunique() > 1]
    of_segment = table.groupby(names, sort=False)[varying].nunique(dropna=False)
    fixed = [c for c in varying if (of_segment[c] == 1).all() and table[c].notna().all()]
    recipe = guess(fixed, RECIPE)
    rest = [c for c in fixed if c not in recipe.values() and table[c].dtype.kind not in "iuf"]
    runs = table.groupby([names[0], *recipe.values()], sort=False)
    others = [  # a different text for each run is a label, not a setting
        c for c in rest if (runs[c].nunique() == 1).all() and table[c].nunique() < max(runs.ngroups, 3)
    ]
    return _Naming(tuple(names), recipe, tuple(others))


def join(
    table: pd.DataFrame, identity: Sequence[str], naming: _Naming, numbered: bool, seeded: bool
) -> tuple[pd.DataFrame, list[str]]:
    """Join segments to runs, and fill in ``run_id`` and ``seed``; return the table and notes.

    Unless ``numbered`` is true (the table has steps), every segment is a run. Unless ``seeded`` is true (the
    table has seeds), the runs of one configuration and recipe are numbered as repeats.
    """
    keys = list(dict.fromkeys([*identity, naming.names[0], *naming.recipe.values()]))
    segment = table.groupby([*keys, *naming.names[1:]], sort=False).ngroup().to_numpy()
    table = table.assign(**{_SEGMENT: segment})
    segments = table.drop_duplicates(_SEGMENT).set_index(_SEGMENT)
    steps = table.assign(step=pd.to_numeric(table["step"])).groupby(_SEGMENT)["step"]
    segments["first"], segments["last"] = steps.min(), steps.max()
    segments = segments.sort_values("first", kind="stable")
    segments["chain"], segments[_RANK] = _chains(segments, keys, numbered)
    heads = segments[segments[_RANK] == 0].set_index("chain")
    heads["run_id"] = pd.Series(_run_ids(heads, keys, naming))
    segments["run_id"] = segments["chain"].map(heads["run_id"])
    notes = []
    parts = segments["chain"].value_counts(sort=False)
    if (parts > 1).any():
        runs = heads["run_id"][parts.index[parts > 1]].tolist()
        notes.append(f"{parts[parts > 1].sum()} segments are {len(runs)} runs: {listed(runs, _SHOWN)}")
    if not seeded:
        alike = heads.groupby([*identity, *naming.attributes.values()], sort=False)
        segments["seed"] = segments["chain"].map(alike.cumcount())
        repeats = [" and ".join(names) for _, names in alike["run_id"] if len(names) > 1]
        if repeats:
            notes.append(
                f"repeats of one configuration by their columns, seeds from 0: {listed(repeats, 8, '; ')}"
            )
    named = ", ".join([*naming.names, *naming.attributes.values()])
    notes.insert(0, f"the columns {named} distinguish runs")
    for column in ("run_id", "seed"):
        table[column] = table[_SEGMENT].map(segments[column])
    table, dropped = once(table.drop(columns=_SEGMENT), table[_SEGMENT], table[_SEGMENT].map(segments[_RANK]))
    return table, [*notes, *dropped]


def _chains(segments: pd.DataFrame, keys: Sequence[str], numbered: bool) -> tuple[list[int], list[int]]:
    """Return the run of each segment, in order, and the segment's place in that run."""
    chain, rank = [], []
    open_: dict[int, list[int]] = {}  # key of a possible run → its chains
    ends: list[tuple[float, float, int]] = []  # first step, last step and place of each chain's last segment
    for of, first, last in zip(
        segments.groupby(list(keys), sort=False).ngroup(), segments["first"], segments["last"], strict=True
    ):
        known = open_.setdefault(int(of), [])
        before = [c for c in known if numbered and ends[c][0] < first and ends[c][1] < last]
        if before:
            at = min(before, key=lambda c: abs(ends[c][1] - first))
            ends[at] = (first, last, ends[at][2] + 1)
        else:
            at = len(ends)
            known.append(at)
            ends.append((first, last, 0))
        chain.append(at)
        rank.append(ends[at][2])
    return chain, rank


def _run_ids(heads: pd.DataFrame, keys: Sequence[str], naming: _Naming) -> dict[int, str]:
    """Return a name for each chain: the run's name, with settings or the segment added if it is ambiguous."""
    label, *finer = naming.names
    settings = [key for key in keys if key != label]
    shared = set(
        heads.groupby(label)[settings].nunique().pipe(lambda counts: counts.index[(counts > 1).any(axis=1)])
    )
    out: dict[int, str] = {}
    for chain, row in heads.iterrows():
        name = str(plain(row[label]))
        if row[label] in shared:
            name += "".join(f"/{key}={plain(row[key])}" for key in settings if heads[key].nunique() > 1)
        if name in out.values():
            name += f"/{plain(row[finer[-1]])}" if finer else f"/{chain}"
        out[int(chain)] = name  # type: ignore[call-overload]
    return out


def once(table: pd.DataFrame, segment: pd.Series, rank: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with one row for each step of a segment, and that of a run's last segment; notes.

    ``rank`` has the place of each row's segment in its run. Rows that differ within a segment stay.
    """
    notes = []
    equal = table.assign(**{_SEGMENT: segment}).duplicated([*KEY, _SEGMENT, "value"])
    if equal.any():
        notes = [
            f"{int(equal.sum()):,} rows repeat a step of their segment with the same value; isolaw left them "
            "out"
        ]
        table, rank = table[~equal], rank[~equal]
    old = rank < rank.groupby([table[name] for name in KEY]).transform("max")
    if old.any():
        overlap = table[table.duplicated(KEY, keep=False)]
        values = pd.to_numeric(overlap["value"], errors="coerce").groupby([overlap[name] for name in KEY])
        notes.append(
            f"{int(old.sum()):,} steps are in two segments of a run, {int((values.nunique() > 1).sum()):,} "
            "with different values: isolaw kept the later segment's"
        )
    return table[~old], notes
