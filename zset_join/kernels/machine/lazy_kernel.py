"""A dispatcher of numba that is cheap to make: what compiling and loading need is made when the kernel is first used.

A process registers hundreds of kernels and calls a few dozen. numba's own dispatcher reads the signature of the function, makes
a compiler, a registration and a cache; that is 0.6 ms for each, more than the imports of all modules together. Here
the C part alone is made, which is all that a first call looks at; the first call that finds nothing compiled, and every access
to an attribute that does not exist yet (numba's own, when another kernel calls this one), makes the rest. Calls of compiled
kernels pass through nothing of this: they are the C part's. What other kernels call is compiled by a second dispatcher, see
`zset_join.kernels.machine.lazy_kernel`.

Source: `numba.core.dispatcher.Dispatcher.__init__`, whose work `_make` does later and whole.

`PartKernel`, `WholeCompiler`: how kernels are compiled: what Python calls becomes machine code, what only kernels call stays
LLVM's IR until then.

numba compiles a kernel that another one calls as if Python called it, too: it optimizes it with all that it calls, emits
machine code and a wrapper for Python, and optimizes the same IR again in every caller; each value of a literal argument makes a
kernel of its own. Here a kernel has two dispatchers. That of its callers in Python (`LazyKernel`) makes a *whole*: all that it
calls, directly or not, is linked once, optimized once and emitted. That of its callers among the kernels (`PartKernel`) makes
a *part*: IR without optimization, machine code or wrapper, one for all values of literal arguments. Parts are never kept.

Source: `numba.core.codegen.CPUCodeLibrary` and `numba.core.typed_passes.NativeLowering`, whose steps these omit.

Known limits: kernels cannot raise what is known only when they run, or work on Python's objects: the environment that numba has
for that is set for wholes alone.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

from numba import _dispatcher
from numba.core import entrypoints
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.dispatcher import OmittedArg
from numba.core.registry import CPUDispatcher
from numba.core.runtime import rtsys
from numba.core.typeconv.rules import default_type_manager
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.types.misc import unliteral
from numba.core.untyped_passes import InlineClosureLikes

__all__ = ["LazyCache", "LazyKernel"]


class _NoEngine:
    """An engine for code that is not emitted: it has no variables to set."""

    def set_env(self, name: str, environment: object) -> None:
        """Leave the environment alone: the whole that the part is linked into has the variable."""


class _Part(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """Holds the IR of one kernel that kernels call, and what it calls."""

    @property
    def codegen(self) -> Any:
        return _NoEngine()

    def finalize(self) -> None:
        """Take no more code; nothing is linked, optimized or emitted."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 - numba's name
        """Return an address that nobody calls."""
        self._ensure_finalized()
        return 1

    @property
    def called(self) -> Sequence[Any]:
        """Return the libraries of what it calls."""
        libraries: Sequence[Any] = self._linking_libraries
        return libraries


class _Whole(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """Holds one kernel that Python calls, with all that it calls."""

    def finalize(self) -> None:
        """Link every part once, optimize and emit."""
        # The linker takes of a library what was used before; so callers come before what they call.
        self._linking_libraries: list[Any]
        order: list[Any] = []
        seen: set[Any] = set()
        waiting: list[tuple[Any, bool]] = [(library, False) for library in self._linking_libraries]
        while waiting:
            library, is_done = waiting.pop()
            if is_done:
                order.append(library)
            elif library not in seen:
                seen.add(library)
                waiting.append((library, True))
                waiting += [(one, False) for one in library.called] if isinstance(library, _Part) else ()
        self._linking_libraries = order[::-1]
        super().finalize()


class _Lowering(NativeLowering):  # type: ignore[misc]  # numba has no types
    library: ClassVar[type[JITCodeLibrary]]

    def run_pass(self, state: Any) -> bool:
        """Lower to IR, into a library of the right kind."""
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        lowered: bool = super().run_pass(state)
        return lowered


@register_pass(mutates_CFG=True, analysis_only=False)
class _WholeLowering(_Lowering):
    _name = "whole_lowering"
    library = _Whole


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(_Lowering):
    _name = "part_lowering"
    library = _Part


_WITHOUT_USE = (InlineClosureLikes, NopythonRewrites)
"""Passes that change nothing in kernels, which have no functions within and no expressions of whole arrays: 6 ms of each."""


class WholeCompiler(Compiler):  # type: ignore[misc]  # numba has no types
    """numba's passes without two that change no kernel, the last of them for wholes."""

    lowering: ClassVar[type[_Lowering]] = _WholeLowering

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipelines with the lowering of ours."""
        pipelines: list[Any] = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (self.lowering if one is NativeLowering else one, why)
                for one, why in pipeline.passes
                if one not in _WITHOUT_USE
            ]
            pipeline._finalized = False
            pipeline.finalize()
        return pipelines


class _PartCompiler(WholeCompiler):
    lowering = _PartLowering


class PartKernel(CPUDispatcher):  # type: ignore[misc]  # numba has no types
    """Compile a function for the kernels that call it, one time for all values of an argument."""

    def __init__(self, function: FunctionType, options: Mapping[str, Any]) -> None:
        super().__init__(function, None, {**options, "no_cpython_wrapper": True}, pipeline_class=_PartCompiler)

    def get_call_template(self, args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        """Return the function for these argument types; a literal counts as a value."""
        return super().get_call_template(
            tuple(unliteral(one) for one in args), {name: unliteral(one) for name, one in kws.items()}
        )


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
