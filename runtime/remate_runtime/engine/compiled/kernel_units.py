"""Kernels of a segment in a few C++ files. Inductor compiles each in a file of its own, and most of the .9 CPU seconds
that one takes go to templates of its header, which every file instantiates anew; a kernel itself takes about .2."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

_UNIT = 8  # kernels: files are still compiled side by side, and GCC inlines less in long ones

# A function of Python per kernel, where Inductor's own bindings have room for helpers; and what its module's one
# function gives.
_KERNEL = """
static PyObject* kernel{at}_py(PyObject* self, {arguments}) {{
    try {{
        if({given} != {count}) [[unlikely]]
            throw std::runtime_error("requires {count} args");
        kernel{at}_::kernel({parsed}); Py_RETURN_NONE;
    }} catch(std::exception const& e) {{
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }} catch(...) {{
        PyErr_SetString(PyExc_RuntimeError, "unhandled error");
        return nullptr;
    }}
}}
"""
_METHODS = "static PyMethodDef kernels[] = {{{}}};"
_METHOD = '{{"kernel{at}", (PyCFunction)(void(*)(void))kernel{at}_py, {flags}, ""}}'
_ALL = """
PyObject* all = PyTuple_New({count});
for(int at = 0; all && at < {count}; at++) {{
    PyObject* one = PyCFunction_New(&kernels[at], NULL);
    if(!one) {{ Py_CLEAR(all); break; }}
    PyTuple_SET_ITEM(all, at, one);
}}
return all;
"""


class _Convention(NamedTuple):
    """How Python hands arguments over: C++ of the parameters, of their number, and the flags that say so."""

    arguments: str
    given: str
    flags: str


_TUPLE = _Convention("PyObject* args", "PyTuple_GET_SIZE(args)", "METH_VARARGS")
_ARRAY = _Convention("PyObject* const* args, Py_ssize_t nargs", "nargs", "METH_FASTCALL")  # of later versions of torch
_INCLUDE = re.compile(r"^[ \t]*#include\b.*$", re.MULTILINE)
_ENTRY = re.compile(r'extern "C"\s+void\s+kernel\(')


class _Kernel(NamedTuple):
    """arguments: C++ types. source: of a file of its own."""

    arguments: Sequence[str]
    source: str


@contextmanager
def in_units() -> Iterator[None]:
    """What Inductor compiles meanwhile in this thread, or reads from its folder, it does by several kernels."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.async_compile import AsyncCompile

    inductor: Any = AsyncCompile
    alone, wait, here = inductor.cpp_pybinding, inductor.wait, threading.get_ident()

    def noted(self: Any, arguments: list[str], source: str) -> Any:
        together = threading.get_ident() == here and _is_plain(source)
        return _Kernel(arguments, source) if together else alone(self, arguments, source)

    def resolved(self: Any, scope: dict[str, Any]) -> None:
        named = [(name, value) for name, value in scope.items() if isinstance(value, _Kernel)]
        units = [named[at : at + _UNIT] for at in range(0, len(named), _UNIT)]
        loads = [_load([kernel for _, kernel in unit]) for unit in units]  # all are begun before one is waited for
        for unit, load in zip(units, loads, strict=True):
            scope.update(zip((name for name, _ in unit), load().kernel(), strict=True))
        wait(self, scope)

    with compile_lock:
        inductor.cpp_pybinding, inductor.wait = noted, resolved
        try:
            yield
        finally:
            inductor.cpp_pybinding, inductor.wait = alone, wait


def _is_plain(source: str) -> bool:
    """Whether it may stand in a namespace beside others: one function, and no macro that they would see."""
    return len(_ENTRY.findall(source)) == source.count('extern "C"') == 1 and "#define" not in source


def _load(kernels: Sequence[_Kernel]) -> Any:
    """Begins to compile a file. What is given waits for it, and gives its module."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    bindings: Any = CppPythonBindingsCodeCache
    submit = AsyncCompile.submit if get_compile_threads() > 1 else None
    return bindings.load_async(_source(kernels, bindings.suffix_template), submit_fn=submit)


def _source(kernels: Sequence[_Kernel], bindings: str) -> str:
    """bindings: Inductor's template for those of a file with one kernel."""
    includes = dict.fromkeys(line for kernel in kernels for line in _INCLUDE.findall(kernel.source))
    bodies = [
        f"namespace kernel{at}_ {{\n{_ENTRY.sub('static void kernel(', _INCLUDE.sub('', kernel.source))}\n}}\n"
        for at, kernel in enumerate(kernels)
    ]
    by = (_ARRAY if "parse_arg(PyObject* const* args" in bindings else _TUPLE)._asdict()
    functions = [
        _KERNEL.format(at=at, count=len(kernel.arguments), parsed=_parsed(kernel.arguments), **by)
        for at, kernel in enumerate(kernels)
    ]
    methods = _METHODS.format(", ".join(_METHOD.format(at=at, **by) for at in range(len(kernels))))
    suffix = bindings.format(
        arg_len=0,
        call_entry_func=_ALL.format(count=len(kernels)),
        entry_func="kernel",
        extra_parse_arg="\n".join([*functions, methods]),
    )
    return "\n".join([*includes, *bodies, suffix])


def _parsed(arguments: Sequence[str]) -> str:
    return ", ".join(f"parse_arg<{kind.replace('const ', '')}>(args, {at})" for at, kind in enumerate(arguments))
