"""Hypothesis strategies: legal changelogs of your own relations, with the values and the order of events that go wrong.

Needs the package hypothesis: `pip install './path/to/the/clone[testing]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.testing.legal_changes import Line, LiveRows, value_pool

with needed_for("zset_join.testing.strategies, unlike the rest of zset_join.testing,"):
    from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["changelogs", "histories"]

_Values = Mapping[str, Sequence[Any]]
_NOTHING: _Values = {}


def changelogs(relation: Relation, *, values: _Values = _NOTHING, max_changes: int = 12) -> SearchStrategy[list[Line]]:
    """Draw legal runs of changes of one relation, as `(row, weight)` lines in arrival order."""
    # Every prefix is legal. Drawn often: equal values, duplicates, moves of the join key, deletes, also of unknown keys and
    # without payload, equal and late sequences, several copies, NULL, NaN, both zeros, empty strings.
    return _drawn(relation, values, max_changes).map(lambda drawn: _legal(relation, drawn))


def histories(
    *relations: Relation, values: _Values = _NOTHING, max_changes: int = 12, max_epochs: int = 4
) -> SearchStrategy[list[list[list[Line]]]]:
    """Draw epochs for an operator with these inputs: per epoch and input, its lines."""
    known = {name for relation in relations for name in relation.schema.names}
    _refuse_unknown(values, known)
    own = [{name: values[name] for name in values if name in relation.schema.names} for relation in relations]
    return st.integers(1, max_epochs).flatmap(
        lambda epochs: st.tuples(
            *(
                st.tuples(
                    changelogs(relation, values=chosen, max_changes=max_changes),
                    st.lists(st.integers(0, epochs - 1), min_size=2 * max_changes, max_size=2 * max_changes),
                )
                for relation, chosen in zip(relations, own, strict=True)
            )
        ).map(lambda inputs: _cut(inputs, epochs))
    )


def _drawn(relation: Relation, values: _Values, max_changes: int) -> SearchStrategy[list[Any]]:
    _refuse_unknown(values, set(relation.schema.names))
    never_null = {*relation.primary_key, *relation.sequence_by}
    pools = []
    for field in relation.schema:
        pool = tuple(values[field.name]) if field.name in values else value_pool(field.type)
        if field.name in never_null:
            pool = tuple(value for value in pool if value is not None)
        if not pool:
            raise OptionError(
                f'values={{"{field.name}": [...]}} leaves nothing to draw for "{field.name}" of "{relation.name}"; a primary '
                "key and a sequence are never NULL.",
                code="ARGUMENT",
                column=field.name,
            )
        pools.append(st.sampled_from(pool))
    small = st.integers(0, 15)
    return st.lists(st.tuples(st.tuples(*pools), small, small, small, small), max_size=max_changes)


def _legal(relation: Relation, drawn: Sequence[Any]) -> list[Line]:
    live = LiveRows(relation)
    return [
        line
        for row, operation, pick, copies, bits in drawn
        for line in live.change(row, operation=operation, pick=pick, copies=copies, bits=bits)
    ]


def _cut(inputs: Sequence[tuple[list[Line], list[int]]], epochs: int) -> list[list[list[Line]]]:
    cut: list[list[list[Line]]] = [[[] for _ in inputs] for _ in range(epochs)]
    for number, (lines, places) in enumerate(inputs):
        for line, place in zip(lines, sorted(places[: len(lines)]), strict=True):
            cut[place][number].append(line)
    return cut


def _refuse_unknown(values: _Values, known: set[str]) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise OptionError(f"values= names {unknown}, and the columns are {sorted(known)}.", code="ARGUMENT", unknown=unknown)
