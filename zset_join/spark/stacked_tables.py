"""The tables of one snapshot of groups as a single table, so that they travel together to the bucket of their group.

An aggregate's snapshot has a table of groups and one per multiset, all with the key columns in front and a weight. Stacked, a
row says which table it is of; the key columns are shared, and so are other columns of equal type.

The law: `parted(stacked(tables))` are the tables, row by row in their order.

Cost: a copy of nothing but NULLs; a row is as wide as the widest table, and where types differ a bit wider.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["StackedTables"]

_TABLE = "table"


class StackedTables:
    """Stack tables, and part them again.

    Args:
        schemas: table name to its columns: the key columns first, `weight` among the others.
        keys: how many key columns there are.
        weight: the column that all tables have beside the key.

    >>> schemas = {name: pa.schema({"k": pa.int64(), name: pa.string(), "w": pa.int64()}) for name in ("a", "b")}
    >>> StackedTables(schemas, keys=1, weight="w").schema.names
    ['k0', 'table', 'v0', 'w']
    """

    def __init__(self, schemas: Mapping[str, pa.Schema], *, keys: int, weight: str) -> None:
        self._schemas = dict(schemas)
        self._weight = weight
        first = next(iter(self._schemas.values()))
        self.keys = tuple(f"k{at}" for at in range(keys))
        self._key_types = [first.field(at).type for at in range(keys)]
        self._shared: list[pa.DataType] = []
        self._places = {name: self._placed(schema) for name, schema in self._schemas.items()}

    def _placed(self, schema: pa.Schema) -> dict[str, str]:
        """Return, per column of a table, the column of the stack."""
        places = dict(zip(schema.names, self.keys, strict=False))
        free = list(range(len(self._shared)))
        for field in list(schema)[len(self.keys) :]:
            if field.name == self._weight:
                places[field.name] = self._weight
                continue
            place = next((place for place in free if self._shared[place] == field.type), None)
            if place is None:
                place = len(self._shared)
                self._shared.append(field.type)
            else:
                free.remove(place)
            places[field.name] = f"v{place}"
        return places

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the columns of the stack."""
        fields = [pa.field(name, kind) for name, kind in zip(self.keys, self._key_types, strict=True)]
        fields.append(pa.field(_TABLE, pa.int32()))
        fields += [pa.field(f"v{at}", kind) for at, kind in enumerate(self._shared)]
        return pa.schema([*fields, pa.field(self._weight, pa.int64())])

    def stacked(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return all tables as one."""
        made = []
        for number, (name, places) in enumerate(self._places.items()):
            table, rows = tables[name], tables[name].num_rows
            columns = {place: table.column(column) for column, place in places.items()}
            columns[_TABLE] = pa.array(np.full(rows, number, np.int32))
            made.append(pa.table([columns.get(at.name, pa.nulls(rows, at.type)) for at in self.schema], schema=self.schema))
        return pa.concat_tables(made)

    def parted(self, stack: pa.Table) -> dict[str, pa.Table]:
        """Return the tables that were stacked, or what became of them."""
        found = {}
        for number, (name, places) in enumerate(self._places.items()):
            rows, schema = stack.filter(pc.equal(stack.column(_TABLE), number)), self._schemas[name]
            found[name] = pa.table([rows.column(places[column]) for column in schema.names], schema=schema)
        return found
