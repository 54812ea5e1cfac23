"""Checks the section `digest`. Does not require torch."""

from __future__ import annotations

import re
from typing import Any

from .json_values import is_list, is_object
from .limits import MAX_DEPTH, MAX_INTEGER, MAX_MODULES, MAX_NAME, MAX_TEXT
from .literals import Faults, check_number, check_spelling
from .module_paths import count_paths
from .schedule import Digest, ModuleGroup
from .signature import escape

_HASH = re.compile(r"[0-9a-f]{16}")
_KINDS = ("is", "object", "dict", "pairs", "length", "hash", "absent", "either")
_BESIDE = {"is": {"is", "source", "of"}, "object": {"object", "fields", "items"}}
_HINT = f"a literal, an array, or an object with one of {', '.join(_KINDS)}"


class DigestCheck:
    """Checks a digest, and each of its groups separately."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._paths = 0

    def digest(self, digest: Digest, where: str) -> None:
        """Check the digest without its groups."""
        for field in ("packages", "functions", "values", "patched", "fields"):
            for name in getattr(digest, field):
                self._name(name, f"{where}/{field}/{escape(name)}")
        for name, version in digest.packages.items():
            self._text(version, f"{where}/packages/{escape(name)}")
        for name, digest_of_source in digest.functions.items():
            if digest_of_source is not None and not _HASH.fullmatch(digest_of_source):
                self._add("not a hash", f"{where}/functions/{escape(name)}", "16 hexadecimal digits, or null")
        for field in ("values", "patched"):
            for name, value in getattr(digest, field).items():
                self._value(value, f"{where}/{field}/{escape(name)}", 4)
        for name, names in digest.fields.items():
            for index, item in enumerate(names):
                self._name(item, f"{where}/fields/{escape(name)}/{index}")
        self._text(digest.note, f"{where}/note")

    def group(self, group: ModuleGroup, where: str) -> None:
        paths = 0
        for index, path in enumerate(group.at):
            if path:
                self._name(path, f"{where}/at/{index}")
            count = count_paths(path)
            if not count:
                self._add("a run of numbers that ends before it begins", f"{where}/at/{index}", "write h.[0-11]")
            paths += count
        self._paths += paths
        if self._paths > MAX_MODULES:
            self._faults.add("R072", f"a digest of more than {MAX_MODULES} modules", f"{where}/at")
            return
        self._name(group.kind, f"{where}/class")
        for name, value in group.reads.items():
            self._name(name, f"{where}/reads/{escape(name)}")
            self._read(value, f"{where}/reads/{escape(name)}", paths)
        for index, hook in enumerate(group.hooks):
            self._name(hook, f"{where}/hooks/{index}")

    def _read(self, value: object, where: str, paths: int) -> None:
        if not is_object(value) or value.keys() != {"each"}:
            self._value(value, where, 6)
        elif not is_list(value["each"]) or len(value["each"]) != paths:
            self._add(f"`each` lists a value for each of the {paths} paths of `at`", f"{where}/each")
        else:
            for index, item in enumerate(value["each"]):
                self._value(item, f"{where}/each/{index}", 8)

    def _value(self, value: object, where: str, depth: int) -> None:
        if depth >= MAX_DEPTH - 1:
            self._faults.add("R071", f"arrays and objects nested more than {MAX_DEPTH} deep", where)
        elif isinstance(value, str):
            self._text(value, where)
        elif is_list(value):
            for index, item in enumerate(value):
                self._value(item, f"{where}/{index}", depth + 1)
        elif is_object(value):
            self._special(value, where, depth)
        else:
            check_number(self._faults, value, where)

    def _special(self, value: dict[str, Any], where: str, depth: int) -> None:
        kind = next((key for key in _KINDS if key in value), None)
        if kind is None:
            check_spelling(self._faults, value, where)
            return
        item = value[kind]
        for key in value.keys() - _BESIDE.get(kind, {kind, "hash"}):
            self._add(f"what has {kind!r} has no {key[:80]!r}", f"{where}/{escape(key)}", _HINT)
        source = value.get("source" if kind == "is" else "hash")
        if source is not None and not (isinstance(source, str) and _HASH.fullmatch(source)):
            self._add("not a hash", where, "16 hexadecimal digits")
        if kind in ("is", "object"):
            self._name(item, f"{where}/{kind}") if isinstance(item, str) else self._add("not a name", where, _HINT)
            for key in ("of", "fields", "items"):
                self._value(value.get(key), f"{where}/{key}", depth + 1)
        elif kind == "dict":
            if not is_object(item):
                self._add("expected an object", f"{where}/dict", _HINT)
                return
            for key, entry in item.items():
                self._name(key, f"{where}/dict/{escape(key)}")
                self._value(entry, f"{where}/dict/{escape(key)}", depth + 2)
        elif kind == "pairs":
            if not is_list(item) or any(not is_list(pair) or len(pair) != 2 for pair in item):
                self._add("expected an array of [key, value]", f"{where}/pairs", _HINT)
                return
            self._value(item, f"{where}/pairs", depth + 1)
        elif kind == "length" and not (type(item) is int and 0 <= item <= MAX_INTEGER):
            self._add("not a length", f"{where}/length", _HINT)
        elif kind == "absent" and item is not True:
            self._add("not true", f"{where}/absent", _HINT)
        elif kind == "either":
            if not is_list(item) or len(item) != 2:
                self._add("`either` lists two values", f"{where}/either", "before and after the first call")
                return
            for index, entry in enumerate(item):
                self._value(entry, f"{where}/either/{index}", depth + 2)

    def _name(self, name: str, where: str) -> None:
        if len(name) > MAX_NAME:
            self._faults.add("R073", f"a name of more than {MAX_NAME} characters", where)

    def _text(self, text: str, where: str) -> None:
        if len(text) > MAX_TEXT:
            self._faults.add("R073", f"a text of more than {MAX_TEXT} characters", where, "shorten it")

    def _add(self, message: str, where: str, hint: str = "") -> None:
        self._faults.add("R018", message, where, hint)
