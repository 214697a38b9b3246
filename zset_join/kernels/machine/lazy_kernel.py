"""A dispatcher of numba that is cheap to make: what compiling and loading need is made when the kernel is first used.

A process registers hundreds of kernels and calls a few dozen. numba's own dispatcher reads the signature of the function, makes
a compiler, a registration and a cache; that is 0.6 ms for each, more than the imports of all modules together. Here
the C part alone is made, which is all that a first call looks at; the first call that finds nothing compiled, and every access
to an attribute that does not exist yet (numba's own, when another kernel calls this one), makes the rest. Calls of compiled
kernels pass through nothing of this: they are the C part's. What other kernels call is compiled by a second dispatcher, see
`zset_join.kernels.machine.whole_code`.

Source: `numba.core.dispatcher.Dispatcher.__init__`, whose work `_make` does later and whole.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from numba import _dispatcher
from numba.core import entrypoints
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import OmittedArg
from numba.core.registry import CPUDispatcher
from numba.core.runtime import rtsys
from numba.core.typeconv.rules import default_type_manager

from zset_join.kernels.machine.whole_code import PartKernel, WholeCompiler

__all__ = ["OPTIONS", "LazyCache", "LazyKernel"]

OPTIONS: Mapping[str, Any] = {"nopython": True, "nogil": True, "boundscheck": None, "no_cfunc_wrapper": True}
"""What `numba.njit(nogil=True)` gives its dispatchers, without the entry for callers in C: a fifth of the compiling."""
_making = threading.RLock()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leave cycles of objects alone meanwhile; one thread at a time is within, as numba compiles in one."""
    with global_compiler_lock:
        is_on = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if is_on:
                gc.enable()


class LazyKernel(CPUDispatcher):  # type: ignore[misc]  # numba has no types
    """Dispatch calls of one function to its compiled code."""

    def __init__(
        self,
        py_func: FunctionType,
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - numba rebuilds dispatchers by these names
        targetoptions: Mapping[str, Any] = OPTIONS,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        code = py_func.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = tuple(map(OmittedArg, py_func.__defaults__ or ()))
        _dispatcher.Dispatcher.__init__(
            self, default_type_manager.get_pointer(), len(names), self._fold_args, names, defaults, False, False, False
        )
        functools.update_wrapper(self, py_func)
        self._not_made = (py_func, locals, targetoptions, prepare)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self._make()  # or another thread has, since the attribute was missed
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        self._make()
        return super()._compile_for_args(*args, **kws)

    def compile(self, sig: Any) -> Any:
        """Return the code for a signature, loaded or compiled without collections of garbage, which saves a tenth."""
        with _no_collection():
            return super().compile(sig)

    def _compilation_chain_init_hook(self) -> None:
        """Read no extensions of numba: compiled code is loaded without them, `LazyCache` reads them before compiling."""

    @functools.cached_property
    def _part(self) -> PartKernel:
        """Return the dispatcher of callers that are kernels."""
        return PartKernel(self.py_func, self.targetoptions)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the function that a compiled kernel calls."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return the function that a compiled kernel calls, once its signature is known."""
        return self._part.get_overload(sig)

    def _make(self) -> None:
        """Create the parts that `__init__` omitted."""
        with _making:
            waiting = self.__dict__.pop("_not_made", None)
            if waiting is None:
                return
            py_func, locals_, options, prepare = waiting
            super().__init__(py_func, locals_, dict(options), pipeline_class=WholeCompiler)
            if prepare is not None:
                prepare(self)


class LazyCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """Load cached code without numba's rules of typing and lowering: 70 modules that only compiling needs.

    Code that is kept may call numba's runtime, which is made ready first.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function that is kept for a signature; None where it must be compiled."""
        rtsys.initialize(target_context)
        loaded = self._load_overload(sig, target_context)
        if loaded is None:
            entrypoints.init_all()
        return loaded
