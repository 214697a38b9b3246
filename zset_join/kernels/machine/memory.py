"""Typed loads and stores at raw addresses, for the kernels only.

Rows live in memory that Arrow, a mapped file or an anonymous mapping owns. Kernels address all three the same way: by an
int64 address. Nothing here checks bounds; every caller proves that its address lies inside a live buffer, and the maker of
the address keeps its owner alive until the kernel returns.

Integers narrower than 64 bits are widened without sign, so that a value read and written back keeps its bits.

Known limits: little-endian hosts only (checked when `zset_join.state` is imported).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from zset_join.kernels.machine.compiled import kernel

__all__ = [
    "copy_bytes",
    "equal_bytes",
    "high_multiply",
    "load_u8",
    "load_u16",
    "load_u32",
    "load_u64",
    "prefetch",
    "shift_right",
    "store_u8",
    "store_u16",
    "store_u32",
    "store_u64",
    "zero_bytes",
]

_I64 = ir.IntType(64)


def _make_load(bits: int) -> Any:
    word = ir.IntType(bits)

    def load(typing_context: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, _I64)

        return types.int64(types.int64), generate

    load.__name__ = f"load_u{bits}"
    return intrinsic(load)


def _make_store(bits: int) -> Any:
    word = ir.IntType(bits)

    def store(typing_context: Any, address: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            narrowed = args[1] if bits == 64 else builder.trunc(args[1], word)
            builder.store(narrowed, builder.inttoptr(args[0], word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    store.__name__ = f"store_u{bits}"
    return intrinsic(store)


load_u8, load_u16, load_u32, load_u64 = (_make_load(bits) for bits in (8, 16, 32, 64))
store_u8, store_u16, store_u32, store_u64 = (_make_store(bits) for bits in (8, 16, 32, 64))


@intrinsic
def prefetch(typing_context: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Request the cache line at `address`; harmless at any address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], fnty=function_type)
        pointer = builder.inttoptr(args[0], byte_pointer)
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def shift_right(typing_context: Any, value: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Shift right without sign (`>>` on an int64 keeps the sign)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(args[0], args[1])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def high_multiply(typing_context: Any, left: Any, right: Any) -> tuple[Any, Callable[..., Any]]:
    """Multiply to 128 bits and return the high half xor the low half."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, wide(64)), _I64)
        return builder.xor(high, builder.trunc(product, _I64))

    return types.int64(types.int64, types.int64), generate


@kernel
def copy_bytes(target: int, source: int, length: int) -> None:
    """Copy `length` bytes between regions that do not overlap."""
    position = 0
    while position + 8 <= length:
        store_u64(target + position, load_u64(source + position))
        position += 8
    while position < length:
        store_u8(target + position, load_u8(source + position))
        position += 1


@kernel
def zero_bytes(target: int, length: int) -> None:
    """Set `length` bytes to zero."""
    position = 0
    while position + 8 <= length:
        store_u64(target + position, 0)
        position += 8
    while position < length:
        store_u8(target + position, 0)
        position += 1


@kernel
def equal_bytes(left: int, right: int, length: int) -> bool:
    """Compare `length` bytes."""
    position = 0
    while position + 8 <= length:
        if load_u64(left + position) != load_u64(right + position):
            return False
        position += 8
    while position < length:
        if load_u8(left + position) != load_u8(right + position):
            return False
        position += 1
    return True
