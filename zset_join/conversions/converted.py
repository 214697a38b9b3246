"""Result of a conversion, and helpers of all conversions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Bools", "Converted", "flags", "joined", "none_convert", "only", "whole"]

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Converted:
    """n values of the target type."""

    values: pa.Array
    unfit: Bools | None = None


def flags(array: pa.Array) -> Bools:
    """Return booleans as an array of NumPy, NULL as False."""
    values: Bools = array.fill_null(False).to_numpy(zero_copy_only=False)
    return values


def only(array: pa.Array, fits: Bools) -> pa.Array:
    """Return an array with NULL where a value does not fit."""
    return array if fits.all() else pc.if_else(pa.array(fits), array, pa.scalar(None, array.type))


def joined(values: pa.Array, fits: Bools, valid: Bools) -> Converted:
    """Return values of which some do not fit; NULLs among the given ones do."""
    unfit = valid & ~fits
    return Converted(values, unfit if unfit.any() else None)


def none_convert(array: pa.Array, kind: pa.DataType) -> Converted:
    """Return NULLs: no value of the array converts, but for its NULLs."""
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return Converted(pa.nulls(len(array), kind), valid if valid.any() else None)


def whole(parts: Sequence[tuple[npt.NDArray[np.int64], Converted]], length: int, kind: pa.DataType) -> Converted:
    """Return values that were converted in parts, each with the rows it is of; other rows are NULL."""
    unfit = np.zeros(length, np.bool_)
    at = np.full(length, -1, np.int64)
    arrays, begin = [], 0
    for rows, part in parts:
        at[rows] = np.arange(begin, begin + len(rows))
        begin += len(rows)
        arrays.append(part.values)
        if part.unfit is not None:
            unfit[rows] = part.unfit
    if not arrays:
        return Converted(pa.nulls(length, kind))
    values = pa.concat_arrays(arrays).take(pa.array(at, mask=at < 0))
    return Converted(values, unfit if unfit.any() else None)
