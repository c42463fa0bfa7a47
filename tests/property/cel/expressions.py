"""Random expressions over a few variables: mostly well typed, sometimes not."""

from __future__ import annotations

import random

INTS = ("0", "1", "2", "-1", "7", "100", "9223372036854775807", "-9223372036854775808", "i", "j")
UINTS = ("0u", "1u", "5u", "18446744073709551615u", "u")
DOUBLES = ("0.0", "1.0", "1.5", "-2.25", "1e30", "d")
STRINGS = ('""', '"a"', '"abc"', '"A100"', '"h\\u00e9llo"', "'x\\ny'", "s", "t")
BYTES = ('b""', 'b"abc"', 'b"\\xff"', "raw")
BOOLS = ("true", "false", "yes")
LISTS = ("[4]", "[1, 2, 3]", "l")
MAPS = ('{"b": 2}', '{"a": 1}', "m")
TEXT_LISTS = ('["a", "b"]', "names")
DYNS = ("x", 'any["a"]', "any.b", 'any["missing"]', "any.list", "dyn(1)", 'dyn("a")', "any.nested.k")
TIMES = ('timestamp("2023-05-06T07:08:09.123Z")', 'timestamp("1969-12-31T23:59:59Z")', "when")
SPANS = ('duration("1h30m")', 'duration("-1.5s")', 'duration("100ms")', "span")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
GETTERS = ("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours")
ZONES = ("", '"UTC"', '"America/New_York"', '"+05:30"', '"-08:00"')


class Expressions:
    """Draws expressions of a wanted type; `depth` bounds their nesting."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._makers = {
            "int": self._int,
            "uint": self._uint,
            "double": self._double,
            "string": self._string,
            "bytes": self._bytes,
            "bool": self._bool,
            "list": self._list,
            "map": self._map,
            "texts": self._texts,
            "dyn": self._dyn,
            "time": self._time,
            "span": self._span,
        }

    def draw(self, kind: str | None = None, depth: int = 3) -> str:
        """An expression; one in fifty is of another type than wanted."""
        if kind is None or self._rng.random() < 0.02:
            kind = self._rng.choice(sorted(self._makers))
        if depth > 0 and self._rng.random() < 0.08:
            truthy, falsy = self.draw(kind, depth - 1), self.draw(kind, depth - 1)
            return f"({self.draw('bool', depth - 1)} ? {truthy} : {falsy})"
        return self._makers[kind](depth)

    def _pick(self, options: tuple[str, ...]) -> str:
        return self._rng.choice(options)

    def _leaf(self, options: tuple[str, ...], depth: int) -> str | None:
        return self._pick(options) if depth <= 0 or self._rng.random() < 0.3 else None

    def _int(self, depth: int) -> str:
        leaf = self._leaf(INTS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: (
                    f"({self.draw('int', lower)} {self._pick(('+', '-', '*', '/', '%'))} {self.draw('int', lower)})"
                ),
                lambda: f"size({self.draw('string', lower)})",
                lambda: f"{self.draw('list', lower)}.size()",
                lambda: f"{self.draw('list', lower)}[{self.draw('int', lower)}]",
                lambda: f"{self.draw('map', lower)}[{self.draw('string', lower)}]",
                lambda: f"-({self.draw('int', lower)})",
                lambda: f"int({self.draw(self._pick(('uint', 'double', 'string')), lower)})",
                lambda: f"{self.draw('map', lower)}.a",
                lambda: f"{self.draw('time', lower)}.{self._pick(GETTERS)}({self._pick(ZONES)})",
                lambda: f"{self.draw('span', lower)}.{self._pick(('getHours', 'getMinutes', 'getSeconds'))}()",
                lambda: f"int({self.draw('time', lower)})",
                lambda: f"{self.draw('string', lower)}.indexOf({self.draw('string', lower)})",
                lambda: f"{self.draw('string', lower)}.lastIndexOf({self.draw('string', lower)})",
                lambda: f"cel.bind(w, {self.draw('int', lower)}, w + {self.draw('int', lower)})",
                lambda: f"m[?{self.draw('string', lower)}].orValue({self.draw('int', lower)})",
                lambda: f"l[?{self.draw('int', lower)}].value()",
                lambda: f"{self._optional('int', lower)}.value()",
            ]
        )()

    def _uint(self, depth: int) -> str:
        leaf = self._leaf(UINTS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        operator = self._pick(("+", "-", "*", "/", "%"))
        return self._rng.choice(
            [
                lambda: f"({self.draw('uint', lower)} {operator} {self.draw('uint', lower)})",
                lambda: f"uint({self.draw(self._pick(('int', 'double', 'string')), lower)})",
            ]
        )()

    def _double(self, depth: int) -> str:
        leaf = self._leaf(DOUBLES, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: (
                    f"({self.draw('double', lower)} {self._pick(('+', '-', '*', '/'))} {self.draw('double', lower)})"
                ),
                lambda: f"double({self.draw(self._pick(('int', 'uint')), lower)})",
                lambda: f"-{self.draw('double', 0)}",
            ]
        )()

    def _string(self, depth: int) -> str:
        leaf = self._leaf(STRINGS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"({self.draw('string', lower)} + {self.draw('string', lower)})",
                lambda: f"string({self.draw(self._pick(('int', 'uint', 'double', 'bool', 'bytes')), lower)})",
                lambda: f"{self.draw('texts', lower)}[{self.draw('int', lower)}]",
                lambda: f"{self.draw('string', lower)}.{self._pick(('lowerAscii', 'upperAscii', 'trim'))}()",
                lambda: f"{self.draw('string', lower)}.charAt({self.draw('int', lower)})",
                lambda: f"{self.draw('string', lower)}.substring({self.draw('int', lower)})",
                lambda: (
                    f"{self.draw('string', lower)}.replace({self.draw('string', lower)}, {self.draw('string', lower)})"
                ),
                lambda: f"{self.draw('texts', lower)}.join({self.draw('string', lower)})",
                lambda: f"cel.bind(w, {self.draw('string', lower)}, w + {self.draw('string', lower)} + w)",
                lambda: f"{self._optional('string', lower)}.orValue({self.draw('string', lower)})",
            ]
        )()

    def _bytes(self, depth: int) -> str:
        leaf = self._leaf(BYTES, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"({self.draw('bytes', lower)} + {self.draw('bytes', lower)})",
                lambda: f"bytes({self.draw('string', lower)})",
            ]
        )()

    def _bool(self, depth: int) -> str:
        leaf = self._leaf(BOOLS, depth - 1)
        if leaf:
            return leaf
        lower = depth - 1
        kind = self._pick(("int", "uint", "double", "string", "bytes", "bool", "time", "span"))
        match = self._pick(("contains", "startsWith", "endsWith"))
        macro = self._pick(("all", "exists", "exists_one"))
        return self._rng.choice(
            [
                lambda: f"({self.draw('bool', lower)} && {self.draw('bool', lower)})",
                lambda: f"({self.draw('bool', lower)} || {self.draw('bool', lower)} || {self.draw('bool', lower)})",
                lambda: f"!{self.draw('bool', 0)}",
                lambda: f"({self.draw(kind, lower)} {self._pick(COMPARISONS)} {self.draw(kind, lower)})",
                lambda: f"({self.draw('dyn', lower)} {self._pick(('==', '!='))} {self.draw(None, lower)})",
                lambda: f"({self.draw('dyn', lower)} {self._pick(('==', '!='))} {self.draw('dyn', lower)})",
                lambda: f"({self.draw('list', lower)} == {self.draw('list', lower)})",
                lambda: f"({self.draw('map', lower)} != {self.draw('map', lower)})",
                lambda: f"({self.draw('int', lower)} in {self.draw('list', lower)})",
                lambda: f"({self.draw('string', lower)} in {self.draw('map', lower)})",
                lambda: f"{self.draw('string', lower)}.{match}({self.draw('string', lower)})",
                lambda: f"{self.draw('list', lower)}.{macro}(e, {self._with('e', 'int', lower)})",
                lambda: f"{self.draw('map', lower)}.{macro}(k, {self._with('k', 'string', lower)})",
                lambda: f"has({self._pick(('m', 'any'))}.{self._pick(('a', 'b', 'missing'))})",
                lambda: f'{self.draw("string", lower)}.matches("{self._pick(("a+", "^A", "[0-9]$", "", "(x|y)*"))}")',
                lambda: f"any.?{self._pick(('a', 'b', 'missing', 'nested.?k'))}.hasValue()",
                lambda: f"{self._optional(kind, lower)}.hasValue()",
                lambda: f"type({self.draw(None, lower)}) == type({self.draw(None, lower)})",
            ]
        )()

    def _optional(self, kind: str, depth: int) -> str:
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"optional.of({self.draw(kind, lower)})",
                lambda: f"optional.ofNonZeroValue({self.draw(kind, lower)})",
                lambda: f"(false ? optional.of({self.draw(kind, lower)}) : optional.none())",
                lambda: f"optional.none().or(optional.of({self.draw(kind, lower)}))",
                lambda: f"optional.of({self.draw(kind, lower)}).optMap(o, o + {self.draw(kind, lower)})",
            ]
        )()

    def _with(self, variable: str, kind: str, depth: int) -> str:
        """A condition on an iteration variable."""
        return f"({variable} {self._pick(COMPARISONS)} {self.draw(kind, depth)})"

    def _list(self, depth: int) -> str:
        leaf = self._leaf(LISTS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"({self.draw('list', lower)} + {self.draw('list', lower)})",
                lambda: f"[{self.draw('int', lower)}, {self.draw('int', lower)}]",
                lambda: f"{self.draw('list', lower)}.map(e, e {self._pick(('+', '*'))} {self.draw('int', lower)})",
                lambda: f"{self.draw('list', lower)}.map(e, {self._with('e', 'int', lower)}, e)",
                lambda: f"{self.draw('list', lower)}.filter(e, {self._with('e', 'int', lower)})",
            ]
        )()

    def _map(self, depth: int) -> str:
        leaf = self._leaf(MAPS, depth)
        return leaf or f"{{{self.draw('string', depth - 1)}: {self.draw('int', depth - 1)}}}"

    def _texts(self, depth: int) -> str:
        leaf = self._leaf(TEXT_LISTS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"{self.draw('map', lower)}.map(k, k + {self.draw('string', lower)})",
                lambda: f'{self.draw("string", lower)}.split("{self._pick(("l", "a", "0", "zz"))}")',
                lambda: f"[?{self._optional('string', lower)}, {self.draw('string', lower)}]",
            ]
        )()

    def _dyn(self, depth: int) -> str:
        leaf = self._leaf(DYNS, depth)
        return leaf or f"dyn({self.draw(None, depth - 1)})"

    def _time(self, depth: int) -> str:
        leaf = self._leaf(TIMES, depth)
        return leaf or f"({self.draw('time', depth - 1)} {self._pick(('+', '-'))} {self.draw('span', depth - 1)})"

    def _span(self, depth: int) -> str:
        leaf = self._leaf(SPANS, depth)
        if leaf:
            return leaf
        lower = depth - 1
        return self._rng.choice(
            [
                lambda: f"({self.draw('span', lower)} {self._pick(('+', '-'))} {self.draw('span', lower)})",
                lambda: f"({self.draw('time', lower)} - {self.draw('time', lower)})",
            ]
        )()
