"""How kernels are compiled: what Python calls becomes machine code, what only kernels call stays LLVM's IR until then.

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

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.types.misc import unliteral
from numba.core.untyped_passes import InlineClosureLikes

__all__ = ["PartKernel", "WholeCompiler"]


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
