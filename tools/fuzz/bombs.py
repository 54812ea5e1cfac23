"""Files that were made to cost their reader much, by what they abuse. Each family makes a file of about a given size.

What a file may cost at most is said here too: the benchmark, the fuzz target and the tests hold the reader to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_EMPTY = (Path(__file__).parents[2] / "schema/corpus/valid/empty-program.json").read_text()
_LEAF = '{"forward": [{"id": "f", "op": "aten.rand", "args": [[2]], "out": "f32[2]"}]}'
_OPERATION = '{"id":"a","op":"aten.rand","args":[%s],"out":"f32[2]"}'


def allowed_seconds(size: int, expanded: int = 0) -> float:
    """CPU seconds allowed for a file of `size` bytes: 2 per 10 MB, 60 microseconds for each operation, instance, event
    and parameter after expansion, and one second."""
    return 1 + 2 * size / 10e6 + 60e-6 * expanded


def allowed_bytes(size: int, expanded: int = 0) -> int:
    """Memory allowed for a file of `size` bytes: ten times its size, 2 kB for each operation, instance, event and
    parameter after expansion, and 32 MiB."""
    return (32 << 20) + 10 * size + 2000 * expanded


def _with(blocks: str = "", program: str = "", more: str = "") -> bytes:
    text = _EMPTY.replace('"blocks": {}', f'"blocks": {{{blocks}}}')
    return text.replace('"program": []', f'"program": [{program}]{more}').encode()


def _model(field: str) -> bytes:
    return _EMPTY.replace('"outputs": {"literal": null}', field).encode()


def _times(unit: str, size: int) -> str:
    """`unit`, repeated with commas in between, up to `size` characters. `{}` in it is replaced by a counter."""
    if "{n}" not in unit:
        return ",".join([unit] * max(1, size // (len(unit) + 1)))
    count = max(1, size // (len(unit) + 4))
    return ",".join(unit.replace("{n}", str(at)) for at in range(count))


def _argument(inside: str) -> bytes:
    return _with(f'"b": {{"forward": [{_OPERATION % inside}]}}', '{"id":"i","block":"b"}')


def _tree(depth: int, leaf: str, plan: str = "") -> tuple[str, str]:
    blocks = [
        f'"b{k}":{{"instances":[{{"id":"l","block":"b{k + 1}"}},{{"id":"r","block":"b{k + 1}"}}]}}'
        for k in range(depth)
    ]
    return ",".join([*blocks, f'"b{depth}":{leaf}']), '{"id":"all","block":"b0"}' + plan


def _padded(data: bytes, size: int) -> bytes:
    """A file whose expansion is large at any size. A note of up to 50,000 characters pads it to the requested size."""
    note = '"note": "' + "x" * min(50_000, max(0, size - len(data))) + '", "blocks"'
    return data.replace(b'"blocks"', note.encode(), 1)


def _chain(size: int) -> bytes:
    """A legal file: one block of operations, each of which reads the previous one."""
    first = '{"id":"o0","op":"aten.rand","args":[[2]],"out":"f32[2]"}'
    lines = (f'{{"id":"o{n}","op":"aten.neg","args":["%o{n - 1}"],"out":"f32[2]"}}' for n in range(1, size // 68))
    return _with(f'"b": {{"forward": [{",".join([first, *lines])}]}}', '{"id":"i","block":"b"}')


def _expanded(size: int) -> bytes:
    blocks, program = _tree(15, _LEAF)
    return _padded(_with(blocks, program), size)


def _expanded_block(block: str) -> Family:
    """Many instances of one block that are each as large as the whole block."""
    return lambda n: _with(
        '"b": {' + block.replace("@", _times('"x{n}":"f32[2]"', n // 2)) + "}",
        _times('{"id":"i{n}","block":"b"}', n // 2),
    )


def _expanded_arguments(size: int) -> bytes:
    block = _OPERATION % f"[{_times('12345', size // 2)}]"
    return _with(f'"b": {{"forward": [{block}]}}', _times('{"id":"i{n}","block":"b"}', size // 2))


def _expanded_plans(size: int) -> bytes:
    """Every instance follows a plan with many recomputations that name only an instance of views."""
    view = (
        '{"inputs": {"x": "f32[2]"}, "forward": [{"id": "v", "op": "aten.view", "args": ["%x", [2]], "out": "f32[2]"}]}'
    )
    plan = _times('{"recompute":["v"],"before":"v"}', size // 3)
    inner = f'{{"instances": [{{"id":"v","block":"v","with":{{"x":"%x"}}}}], "inputs": {{"x": "f32[2]"}}, "plans": {{"p": [{plan}]}}}}'
    program = _times('{"id":"i{n}","block":"c","plan":"p","with":{"x":"%x"}}', size // 2)
    return (
        _model('"inputs": {"args": [{"tensor": "f32[2]", "name": "x"}]}, "outputs": {"literal": null}')
        .replace(b'"blocks": {}', f'"blocks": {{"v": {view}, "c": {inner}}}'.encode())
        .replace(b'"program": []', f'"program": [{program}]'.encode())
    )


def _remade_views(size: int) -> bytes:
    """A chain of views that must be computed again after every recomputation of its base."""
    links = max(2, size // 160)
    lines = ['{"id":"v0","op":"aten.rand","args":[[2]],"out":"f32[2]"}']
    lines += [f'{{"id":"v{k}","op":"aten.view","args":["%v{k - 1}",[2]],"out":"f32[2]"}}' for k in range(1, links)]
    lines += [f'{{"id":"n","op":"aten.neg","args":["%v{links - 1}"],"out":"f32[2]"}}']
    backward = '{"id": "b", "op": "aten.neg", "args": ["%n"], "out": "f32[2]"}'
    plan = _times('{"recompute":["v0","n"],"before":"b"}', size // 2)
    block = f'{{"forward": [{",".join(lines)}], "backward": [{backward}], "plans": {{"p": [{plan}]}}}}'
    return _with(f'"b": {block}', '{"id":"i","block":"b","plan":"p"}')


def _refused_expansion(size: int) -> bytes:
    blocks, program = _tree(31, _LEAF)
    return _padded(_with(blocks, program), size)


def _recomputes(size: int) -> bytes:
    leaf = _LEAF[:-1] + ', "backward": [{"id": "b", "op": "aten.neg", "args": ["%f"], "out": "f32[2]"}]}'
    blocks, program = _tree(13, leaf)
    entry = '{"recompute":["all"],"before":"all"}'
    return _with(blocks, program, f', "statements": [{_times(entry, min(size, 3800))}]')


def _names(size: int, wrong: str) -> bytes:
    """Many similar names, and references that differ from each by a letter."""
    count = size // 150
    operations = [f'{{"id":"layer.{n:07d}.x","op":"aten.rand","args":[[2]],"out":"f32[2]"}}' for n in range(count)]
    missed = [f'{{"id":"y{n}","op":"aten.neg","args":["%layer.{n:07d}.{wrong}"],"out":"f32[2]"}}' for n in range(count)]
    return _with(f'"b": {{"forward": [{",".join(operations + missed)}]}}', '{"id":"i","block":"b"}')


def _misspelt_recomputes(size: int) -> bytes:
    operations = [
        f'{{"id":"layer.{n:07d}.x","op":"aten.rand","args":[[2]],"out":"f32[2]"}}' for n in range(size // 150)
    ]
    plan = _times('{"recompute":["layer.{n}.y"],"before":"layer.{n}.z"}', size // 2)
    return _with(
        f'"b": {{"forward": [{",".join(operations)}], "plans": {{"p": [{plan}]}}}}', '{"id":"i","block":"b","plan":"p"}'
    )


Family = Callable[[int], bytes]


def _constant(size: int, dtype: str) -> bytes:
    data = _times("12345", size)
    count = data.count(",") + 1
    return _with(
        f'"b": {{"constants": {{"c": {{"type": "{dtype}[{count}]", "data": [{data}]}}}}}}', '{"id":"i","block":"b"}'
    )


def _arguments(unit: str) -> Family:
    return lambda n: _argument(f"[{_times(unit, n)}]")


def _program(unit: str, block: str = _LEAF) -> Family:
    return lambda n: _with(f'"b": {block}', _times(unit, n))


def _block(field: str, unit: str, program: str = '{"id":"i","block":"b"}') -> Family:
    """`field` of a block, in which @ stands for the repeated part."""
    return lambda n: _with('"b": {' + field.replace("@", _times(unit, n)) + "}", program)


def _of_model(field: str, unit: str) -> Family:
    tail = "" if "outputs" in field else ', "outputs": {"literal": null}'
    return lambda n: _model(field.replace("@", _times(unit, n)) + tail)


def _top(field: str, unit: str) -> Family:
    return lambda n: _with(more=", " + field.replace("@", _times(unit, n)))


def _first(unit: str) -> Family:
    return lambda n: _EMPTY.replace("{", "{" + _times(unit, n) + ",", 1).encode()


def _sized(unit: str) -> Family:
    """Operations of a file with a named size."""
    dims = (
        '"dims": {"b": {"min": 1, "max": 9, "planned": 2}}, "inputs": {"args": [{"tensor": "f32[b]", "name": "x"}]}, '
    )

    def sized(size: int) -> bytes:
        data = _with(f'"b": {{"forward": [{_times(unit, size)}]}}', '{"id":"i","block":"b"}')
        return data.replace(b'"outputs"', dims.encode() + b'"outputs"', 1)

    return sized


_LONG = "+".join(
    f"{99 - k}*b^{8 - k // 2}*(b//{k + 2})" for k in range(12)
)  # no normal form: refused, after it was read
_GROWING = "*".join(["(b+b//3+b//5+b//7+1)"] * 11)
_SLASH = "\\"
_OP = _OPERATION % "[2]"

FAMILIES: dict[str, Family] = {
    "empty objects as program": _program("{}"),
    "empty arrays as program": _program("[]"),
    "numbers as program": _program("7"),
    "empty objects as operations": _block('"forward": [@]', "{}"),
    "empty objects as argument": _arguments("{}"),
    "empty arrays as argument": _arguments("[]"),
    "objects as argument": _arguments('{"a":1}'),
    "literals as argument": _arguments('{"dtype":"f32"}'),
    "bad literals as argument": _arguments('{"dtype":"f33"}'),
    "small numbers as argument": _arguments("1"),
    "numbers as argument": _arguments("12345"),
    "fractions as argument": _arguments("0.5"),
    "huge numbers as argument": _arguments("1e999"),
    "long numbers as argument": lambda n: _argument("9" * n),
    "texts as argument": _arguments('"ab"'),
    "longer texts as argument": _arguments('"abcdefghij"'),
    "references as argument": _arguments('"%a"'),
    "one long text": lambda n: _argument('"' + "x" * n + '"'),
    "one long name": lambda n: _with(program='{"id":"' + "x" * n + '","block":"b"}'),
    "one long key": lambda n: _with(blocks='"' + "x" * n + '": {}'),
    "many keys": _first('"k{n}":0'),
    "many keys of a block": _block("@", '"k{n}":0'),
    "the same key again": _first('"k":0'),
    "the same key again, elsewhere legal": lambda n: _with(_times('"b":{}', n)),
    "many parameters": _of_model('"parameters": {@}', '"p{n}":"f32[2]"'),
    "many bad parameters": _of_model('"parameters": {@}', '"p{n}":"f33[2]"'),
    "many types": _of_model('"parameters": {@}', '"p{n}":"f32[{n}]"'),
    "runs of parameters": _of_model('"parameters": {@}', '"h{n}.[0-60000]":"f32[2]"'),
    "names of runs": lambda n: _padded(
        _model(f'"parameters": {{"{"h" * 490}.[0-65535]": {{"w": "f32[2]"}}}}, "outputs": {{"literal": null}}'), n
    ),
    "runs within runs": _of_model(
        '"parameters": {@}', '"h{n}.[0-999999999]":{"k.[0-999999999]":{"w.[0-999999999]":"f32[2]"}}'
    ),
    "many blocks": lambda n: _with(_times('"b{n}":{}', n)),
    "many instances": _program('{"id":"i{n}","block":"b"}'),
    "many instances of nothing": _program('{"id":"i{n}","block":"c"}'),
    "many instances of one name": _program('{"id":"i","block":"b"}'),
    "many instances with a fault": _program('{"id":"i{n}","block":"b"}', '{"inputs": {"x": "f32[2]"}, "forward": []}'),
    "many bindings of nothing": lambda n: _with(
        f'"b": {_LEAF}', '{"id":"i","block":"b","with":{' + _times('"x{n}":"%y"', n) + "}}"
    ),
    "many inputs that are not bound": _block('"inputs": {@}, "forward": []', '"x{n}":"f32[2]"'),
    "many operations": _chain,
    "many operations of one id": _block('"forward": [@]', _OP),
    "bad types": _block('"forward": [@]', _OP.replace("f32", "f33")),
    "many wrong operators": _block('"forward": [@]', _OP.replace("aten.rand", "evil.op{n}")),
    "many outputs": lambda n: _argument("[2]").replace(
        b'"out":"f32[2]"', b'"out":[%s]' % _times('"f32[2]"', n).encode()
    ),
    "many names that differ little": lambda n: _names(n, "y"),
    "recomputations of names that differ little": _misspelt_recomputes,
    "many plans": _block('"forward": [], "plans": {@}', '"p{n}":[]'),
    "many empty recomputations": _top('"statements": [@]', '{"recompute":[],"before":"x"}'),
    "many recomputations of nothing": _top('"statements": [@]', '{"recompute":["x"],"before":"x"}'),
    "unknown statements": _top('"statements": [@]', '{"reran":["x"]}'),
    "many outputs of the model": _of_model('"outputs": {"tuple": [@]}', '{"value":"%x{n}","name":"o{n}"}'),
    "outputs that are no tree": _of_model('"outputs": {"tuple": [@]}', "0"),
    "many inputs of the model": _of_model('"inputs": {"args": [@]}', '{"tensor":"f32[2]","name":"o{n}"}'),
    "many features": _top('"requires": [@]', '"x{n}"'),
    "many namespaces": _top('"namespaces": [@]', '"x{n}"'),
    "longer namespaces": _top('"namespaces": [@]', '"namespace{n}"'),
    "costs of nothing": lambda n: _with(
        f'"b": {_LEAF}',
        '{"id":"i","block":"b"}',
        f', "costs": {{"b": {{{_times(chr(34) + "operation{n}.of.a.module.by.its.name" + chr(34) + ":5", n)}}}}}',
    ),
    "costs of blocks that are not there": _top('"costs": {@}', '"block{n}.of.a.module.by.its.name":{}'),
    "costs out of their range": _top('"costs": {"b": {@}}', '"operation{n}.of.a.module.by.its.name":-5'),
    "numbers as digest": _top('"digest": {"values": {"v": [@]}}', "12345"),
    "each of a digest": _top(
        '"digest": {"modules": [{"at": ["h.[0-199999]"], "class": "C", "reads": {"p": {"each": [@]}}}]}', "12345"
    ),
    "runs of a digest": _top('"digest": {"modules": [@]}', '{"at":["h.[0-99999999]"],"class":"C"}'),
    "paths of a digest": _top('"digest": {"modules": [{"at": [@], "class": "C"}]}', '"h.{n}"'),
    "functions of a digest": _top('"digest": {"functions": {@}}', '"f{n}":"x"'),
    "elements of a constant": lambda n: _constant(n, "i64"),
    "bad elements of a constant": lambda n: _constant(n, "bool"),
    "many sizes": _of_model('"dims": {@}, "outputs": {"literal": null}', '"b{n}":{"min":1,"max":9,"planned":2}'),
    "types of different sizes": _sized('{"id":"a","op":"aten.rand","args":[],"out":"f32[b+{n}]"}'),
    "types of many sizes": _sized(
        '{"id":"a","op":"aten.rand","args":[],"out":"f32[@]"}'.replace("@", ",".join(["b+{n}"] * 60))
    ),
    "types of one size": _sized('{"id":"a","op":"aten.rand","args":[],"out":"f32[b]"}'),
    "types of sizes that there are not": _sized('{"id":"a","op":"aten.rand","args":[],"out":"f32[c{n}]"}'),
    "long expressions": _sized(
        '{"id":"a","op":"aten.rand","args":[{"size":"@+{n}"}],"out":"f32[2]"}'.replace("@", _LONG)
    ),
    "expressions that grow": _sized(
        '{"id":"a","op":"aten.rand","args":[{"size":"{n}*@"}],"out":"f32[2]"}'.replace("@", _GROWING)
    ),
    "expressions of floats": _sized('{"id":"a","op":"aten.rand","args":[{"float":"{n}/(b+{n})"}],"out":"f32[2]"}'),
    "open arrays": lambda n: _argument("[" * n),
    "deep arrays": lambda n: _argument("[" * (n // 2) + "]" * (n // 2)),
    "spaces": lambda n: _EMPTY.replace("{", "{" + " " * n, 1).encode(),
    "lines": lambda n: _EMPTY.replace("{", "{" + "\n" * n, 1).replace("version", "versions").encode(),
    "escapes": lambda n: _argument('"' + f"{_SLASH}u0041" * (n // 6) + '"'),
    "half characters": _arguments(f'"{_SLASH}ud800"'),
    "not UTF-8": lambda n: b"\xff" * n,
    "not UTF-8 at the end": lambda n: _argument('"' + "x" * n + '"')[:-1] + b"\xff",
    "wide characters": lambda n: _argument(f"[{_times(chr(34) + chr(0x1F600) * 3 + chr(34), n // 2)}]"),
    "not JSON at the end": lambda n: _program('{"id":"a","block":"b"}')(n)[:-2],
    "numbers of another language": _arguments("NaN"),
    "instances of many inputs": _expanded_block('"inputs": {@}, "forward": []'),
    "instances of many parameters": _expanded_block('"parameters": {@}, "forward": []'),
    "instances of many arguments": _expanded_arguments,
    "instances of many recomputations of views": _expanded_plans,
    "views made again and again": _remade_views,
    "a small file of 32,768 operations": _expanded,
    "a small file of 2^31 operations": _refused_expansion,
    "a small file of very many recomputations": _recomputes,
}
