"""Compiles the kernels of a segment in a few C++ files.

Inductor compiles each kernel in a file of its own, which takes about 0.9 CPU seconds. Most of that time goes to
templates of its header, which every file instantiates anew. A kernel itself takes about 0.2 s.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

_UNIT = 8  # kernels per file: files are compiled in parallel, and GCC inlines less in long ones

# A Python function for each kernel, in the place for helpers of Inductor's bindings; then the body of the module's
# function, which returns all of them.
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
    """A calling convention of Python: C++ of the parameters, of their number, and its flags."""

    arguments: str
    given: str
    flags: str


_TUPLE = _Convention("PyObject* args", "PyTuple_GET_SIZE(args)", "METH_VARARGS")
_ARRAY = _Convention("PyObject* const* args, Py_ssize_t nargs", "nargs", "METH_FASTCALL")  # later versions of torch
_INCLUDE = re.compile(r"^[ \t]*#include\b.*$", re.MULTILINE)
_ENTRY = re.compile(r'extern "C"\s+void\s+kernel\(')


class _Kernel(NamedTuple):
    """A kernel: C++ types of its arguments, and its source as a file of its own."""

    arguments: Sequence[str]
    source: str


@contextmanager
def in_units() -> Generator[None]:
    """Make Inductor compile several kernels per file, in this context and thread."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.async_compile import AsyncCompile

    inductor: Any = AsyncCompile
    alone, wait, here = inductor.cpp_pybinding, inductor.wait, threading.get_ident()

    def noted(self: object, arguments: list[str], source: str) -> Any:
        together = threading.get_ident() == here and _is_plain(source)
        return _Kernel(arguments, source) if together else alone(self, arguments, source)

    def resolved(self: object, scope: dict[str, Any]) -> None:
        named = [(name, value) for name, value in scope.items() if isinstance(value, _Kernel)]
        units = [named[at : at + _UNIT] for at in range(0, len(named), _UNIT)]
        loads = [
            _load([kernel for _, kernel in unit]) for unit in units
        ]  # start all of them before waiting for the first
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
    """Return whether a source fits into a namespace beside others: it has one function, and defines no macro."""
    return len(_ENTRY.findall(source)) == source.count('extern "C"') == 1 and "#define" not in source


def _load(kernels: Sequence[_Kernel]) -> Any:
    """Start to compile a file. Return a function that waits for it and returns its module."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    bindings: Any = CppPythonBindingsCodeCache
    submit = AsyncCompile.submit if get_compile_threads() > 1 else None
    return bindings.load_async(_source(kernels, bindings.suffix_template), submit_fn=submit)


def _source(kernels: Sequence[_Kernel], bindings: str) -> str:
    """Return the source of a file. bindings: Inductor's template of the bindings of a single kernel."""
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
