"""Label and field selectors: parsing with Kubernetes' error texts, and fast matching.

A selector is parsed once per request and evaluated for every object, so parsing compiles it to one function.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dray.api.document import Document, GroupVersionKind
from dray.api.field_errors import FieldErrors, Path, aggregate, invalid, quote
from dray.api.limits import INTEGER_DIGITS_MAX
from dray.api.names import label_value, qualified_name


class SelectorError(ValueError):
    """An invalid selector; the text is that of the API."""


Matcher: TypeAlias = Callable[[Mapping[str, str]], bool]


class Operator(enum.StrEnum):
    """Operators of a label requirement; the values are Kubernetes' spelling."""

    DOES_NOT_EXIST = "!"
    EQUALS = "="
    DOUBLE_EQUALS = "=="
    IN = "in"
    NOT_EQUALS = "!="
    NOT_IN = "notin"
    EXISTS = "exists"
    GREATER_THAN = "gt"
    LESS_THAN = "lt"


_EQUALITY: Final = frozenset({Operator.EQUALS, Operator.DOUBLE_EQUALS})
_POSITIVE: Final = _EQUALITY | {Operator.IN}
_NEGATIVE: Final = frozenset({Operator.NOT_EQUALS, Operator.NOT_IN})
_ORDER: Final = frozenset({Operator.GREATER_THAN, Operator.LESS_THAN})
_SETS: Final = frozenset({Operator.IN, Operator.NOT_IN})
_UNARY: Final = frozenset({Operator.EXISTS, Operator.DOES_NOT_EXIST})
_INT64_MAX: Final = (1 << 63) - 1
# Of a selector in a request, which is evaluated for every object, and in a watch for every event.
REQUIREMENTS_MAX: Final = 256
_TOO_MANY: Final = f"must have at most {REQUIREMENTS_MAX} requirements"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a label; `values` is sorted."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator} ({','.join(self.values)})"
            case Operator.GREATER_THAN:
                return f"{self.key}>{self.values[0]}"
            case Operator.LESS_THAN:
                return f"{self.key}<{self.values[0]}"
            case _:
                return f"{self.key}{self.operator}{self.values[0]}"


def requirement(key: str, operator: Operator, values: Iterable[str] = ()) -> Requirement:
    """Return a validated requirement; raises `SelectorError`."""
    listed = tuple(sorted(set(values)))
    errors = _key_errors(key, Path("key")) + _values_errors(key, operator, listed)
    if errors:
        raise SelectorError(aggregate(errors))
    return Requirement(key, operator, listed)


def _key_errors(key: str, path: Path) -> FieldErrors:
    problems = qualified_name(key)
    return [invalid(path, key, "; ".join(problems))] if problems else []


def _values_errors(key: str, operator: Operator, values: tuple[str, ...]) -> FieldErrors:
    path = Path("values")
    errors: FieldErrors = []
    if operator in _SETS and not values:
        errors.append(invalid(path, list(values), "for 'in', 'notin' operators, values set can't be empty"))
    if operator in _UNARY and values:
        errors.append(invalid(path, list(values), "values set must be empty for exists and does not exist"))
    if operator in _ORDER:
        errors += [
            invalid(path.index(i), value, "for 'Gt', 'Lt' operators, the value must be an integer")
            for i, value in enumerate(values)
            if _parse_int64(value) is None
        ]
    for i, value in enumerate(values):
        problems = label_value(value)
        if problems:
            errors.append(invalid(path.index(i).key(key), value, "; ".join(problems)))
    return errors


def _parse_int64(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > INTEGER_DIGITS_MAX:
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


class LabelSelector:
    """A conjunction of requirements; without any it matches everything."""

    __slots__ = ("matches", "requirements")

    def __init__(self, requirements: Iterable[Requirement] = (), *, nothing: bool = False) -> None:
        self.requirements: Final = tuple(sorted(requirements, key=lambda item: item.key))
        self.matches: Final[Matcher] = _never if nothing else _compile(self.requirements)

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """Parse `a=b,c!=d,e in (x,y),!f,g,h>1`."""
        return cls(_LabelParser(text).parse()) if text else EVERYTHING

    @classmethod
    def from_document(cls, document: Document | None) -> LabelSelector:
        """Convert a `metav1.LabelSelector`: None matches nothing, an empty one everything."""
        if document is None:
            return NOTHING
        requirements = [
            requirement(key, Operator.EQUALS, (value,)) for key, value in (document.get("matchLabels") or {}).items()
        ]
        for expression in document.get("matchExpressions") or ():
            operator = EXPRESSION_OPERATORS.get(expression.get("operator", ""))
            if operator is None:
                raise SelectorError(f"{quote(expression.get('operator', ''))} is not a valid label selector operator")
            requirements.append(requirement(expression.get("key", ""), operator, expression.get("values") or ()))
        return cls(requirements)

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> LabelSelector:
        """Return a selector for exactly these labels, without validation."""
        return cls(Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items())

    @property
    def is_everything(self) -> bool:
        """Report whether every object matches."""
        return not self.requirements and self.matches is not _never

    def __str__(self) -> str:
        return ",".join(str(item) for item in self.requirements)


# Of a requirement in a `metav1.LabelSelector`.
EXPRESSION_OPERATORS: Final = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


def _always(_labels: Mapping[str, str]) -> bool:
    return True


def _never(_labels: Mapping[str, str]) -> bool:
    return False


def _compile(requirements: Sequence[Requirement]) -> Matcher:
    if not requirements:
        return _always
    if all(item.operator in _EQUALITY for item in requirements):
        return _compile_equalities([(item.key, item.values[0]) for item in requirements])
    checks = [_compile_one(item) for item in requirements]
    if len(checks) == 1:
        return checks[0]
    return lambda labels: all(check(labels) for check in checks)


def _compile_equalities(pairs: Sequence[tuple[str, str]]) -> Matcher:
    if len(pairs) == 1:
        (key, value), *_ = pairs
        return lambda labels: labels.get(key) == value

    def matches(labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in pairs)

    return matches


def _compile_one(item: Requirement) -> Matcher:
    key, values = item.key, frozenset(item.values)
    if item.operator in _POSITIVE:
        return lambda labels: labels.get(key) in values
    if item.operator in _NEGATIVE:
        return lambda labels: labels.get(key) not in values
    if item.operator is Operator.EXISTS:
        return lambda labels: key in labels
    if item.operator is Operator.DOES_NOT_EXIST:
        return lambda labels: key not in labels
    # Checked when the requirement was made.
    bound = _parse_int64(item.values[0]) or 0
    if item.operator is Operator.GREATER_THAN:
        return lambda labels: (number := _parse_int64(labels.get(key, ""))) is not None and number > bound
    return lambda labels: (number := _parse_int64(labels.get(key, ""))) is not None and number < bound


EVERYTHING: Final = LabelSelector()
NOTHING: Final = LabelSelector(nothing=True)


# --- Grammar of label selectors.

_SPECIAL: Final = frozenset("=!(),><")
_WHITESPACE: Final = frozenset(" \t\r\n")
_SYMBOLS: Final = frozenset({")", ",", "!", "==", "=", ">", "<", "!=", "("})
_BINARY: Final[Mapping[str, Operator]] = {
    "in": Operator.IN,
    "=": Operator.EQUALS,
    "==": Operator.DOUBLE_EQUALS,
    ">": Operator.GREATER_THAN,
    "<": Operator.LESS_THAN,
    "notin": Operator.NOT_IN,
    "!=": Operator.NOT_EQUALS,
}
_BINARY_LISTED: Final = "in, notin, =, ==, !=, gt, lt"
_END: Final = ("end", "")
_Token: TypeAlias = tuple[str, str]


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        if text[position] in _WHITESPACE:
            position += 1
            continue
        scan = _scan_symbol if text[position] in _SPECIAL else _scan_word
        token, position = scan(text, position)
        tokens.append(token)
    return tokens


def _scan_symbol(text: str, position: int) -> tuple[_Token, int]:
    literal = text[position : position + 2]
    if literal not in _SYMBOLS:
        literal = text[position]
    return ("symbol", literal), position + len(literal)


def _scan_word(text: str, position: int) -> tuple[_Token, int]:
    end = position
    while end < len(text) and text[end] not in _SPECIAL and text[end] not in _WHITESPACE:
        end += 1
    return ("word", text[position:end]), end


class _LabelParser:
    """Recursive-descent parser; its messages are part of the API."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._position = 0

    def _peek(self) -> _Token:
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._peek()
        self._position += 1
        return token

    def parse(self) -> list[Requirement]:
        requirements: list[Requirement] = []
        while self._peek() != _END:
            if not _starts_requirement(self._peek()):
                raise SelectorError(f"found '{self._peek()[1]}', expected: !, identifier, or 'end of string'")
            if len(requirements) == REQUIREMENTS_MAX:
                raise SelectorError(_TOO_MANY)
            try:
                requirements.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            self._separator()
        return requirements

    def _separator(self) -> None:
        token = self._take()
        if token == ("symbol", ","):
            if not _starts_requirement(self._peek()):
                raise SelectorError(f"found '{self._peek()[1]}', expected: identifier after ','")
        elif token != _END:
            raise SelectorError(f"found '{token[1]}', expected: ',' or 'end of string'")

    def _requirement(self) -> Requirement:
        negated = self._peek() == ("symbol", "!")
        if negated:
            self._take()
        kind, key = self._take()
        if kind != "word":
            raise SelectorError(f"found '{key}', expected: identifier")
        errors = _key_errors(key, Path())
        if errors:
            raise SelectorError(aggregate(errors))
        if negated:
            return requirement(key, Operator.DOES_NOT_EXIST)
        if self._at_end_of_term():
            return requirement(key, Operator.EXISTS)
        operator = self._operator()
        return requirement(key, operator, self._set() if operator in _SETS else self._exact())

    def _at_end_of_term(self) -> bool:
        return self._peek() == _END or self._peek() == ("symbol", ",")

    def _operator(self) -> Operator:
        _, literal = self._take()
        operator = _BINARY.get(literal)
        if operator is None:
            raise SelectorError(f"found '{literal}', expected: {_BINARY_LISTED}")
        return operator

    def _exact(self) -> tuple[str, ...]:
        if self._at_end_of_term():
            return ("",)
        kind, literal = self._take()
        if kind != "word":
            raise SelectorError(f"found '{literal}', expected: identifier")
        return (literal,)

    def _set(self) -> set[str]:
        _, literal = opening = self._take()
        if opening != ("symbol", "("):
            raise SelectorError(f"found '{literal}' expected: '('")
        first = self._peek()
        if first == ("symbol", ")"):
            self._take()
            return set()
        if first[0] != "word" and first != ("symbol", ","):
            raise SelectorError(f"found '{first[1]}', expected: ',', ')' or identifier")
        values = self._identifiers()
        self._take()
        return values

    def _identifiers(self) -> set[str]:
        """Parse words between commas up to the closing parenthesis; nothing between commas is the empty value."""
        values: set[str] = set()
        while True:
            kind, literal = token = self._take()
            if kind == "word":
                values.add(literal)
                following = self._peek()
                if following == ("symbol", ")"):
                    return values
                if following != ("symbol", ","):
                    raise SelectorError(f"found '{following[1]}', expected: ',' or ')'")
            elif token == ("symbol", ","):
                if self._gap(values):
                    return values
            else:
                raise SelectorError(f"found '{literal}', expected: ',', or identifier")

    def _gap(self, values: set[str]) -> bool:
        """Add the empty value where a comma stands for one; return True at the closing parenthesis."""
        if not values:
            values.add("")
        following = self._peek()
        if following == ("symbol", ")"):
            values.add("")
            return True
        if following == ("symbol", ","):
            self._take()
            values.add("")
        return False


def _starts_requirement(token: _Token) -> bool:
    return token[0] == "word" or token == ("symbol", "!")


# --- Field selectors.


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One requirement of a field; `operator` is "=" or "!="."""

    field: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{_escape(self.value)}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """A conjunction of requirements; without any it matches everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FieldSelector:
        """Parse `metadata.name=x,status.phase!=Running`; empty terms (a trailing comma) are skipped."""
        terms = sorted(filter(None, _split_terms(text)))
        if len(terms) > REQUIREMENTS_MAX:
            raise SelectorError(_TOO_MANY)
        return cls(tuple(_parse_term(text, term) for term in terms))

    def matches(self, getter: Callable[[str], str]) -> bool:
        """Report whether the object matches, given the getter of its field values."""
        return all((getter(item.field) == item.value) == (item.operator == "=") for item in self.requirements)

    def compile(self, getters: Mapping[str, Callable[[Any], str]]) -> Callable[[Any], bool]:
        """Return a matcher with the fields bound to getters of an object; every field must have one."""
        fields = dict.fromkeys(item.field for item in self.requirements)
        checks = [(getters[field], *self._values(field)) for field in fields]
        if len(checks) == 1:
            # Several requirements of one field are usual: Pods that have neither succeeded nor failed.
            ((get, values, is_in),) = checks
            return lambda obj: (get(obj) in values) is is_in

        def matches(obj: Any) -> bool:
            return all((get(obj) in values) is is_in for get, values, is_in in checks)

        return matches

    def _values(self, field: str) -> tuple[tuple[str, ...], bool]:
        """Return the only values that the field may have (True), or those that it may not have (False)."""
        excluded = tuple(item.value for item in self.requirements if item.field == field and item.operator != "=")
        wanted = {item.value for item in self.requirements if item.field == field and item.operator == "="}
        if not wanted:
            return excluded, False
        # No value is equal to two different ones.
        return tuple(wanted.difference(excluded)) if len(wanted) == 1 else (), True

    def exact(self, field: str) -> str | None:
        """Return the value that the selector requires of the field, None when it requires none."""
        for item in self.requirements:
            if item.field == field and item.operator == "=":
                return item.value
        return None

    @property
    def is_everything(self) -> bool:
        """Report whether every object matches."""
        return not self.requirements

    def __str__(self) -> str:
        return ",".join(str(item) for item in self.requirements)


# Kinds whose error differs from the usual "field label not supported: x".
_OWN_WORDS: Final[Mapping[str, str]] = {
    "ResourceSlice": "field label not supported for {kind}: {field}",
    "Job": 'field label "{field}" not supported for Job',
}


def unsupported_field_message(field: str, kind: GroupVersionKind, *, selectable: bool) -> str:
    """Return the error for a field that the kind cannot be selected by; `selectable` kinds have fields of their own."""
    if not selectable:
        return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    return _OWN_WORDS.get(kind.kind, "field label not supported: {field}").format(field=field, kind=kind)


_ESCAPABLE: Final = frozenset("\\,=")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _split_terms(text: str) -> list[str]:
    terms: list[str] = []
    start, escaped = 0, False
    for position, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == ",":
            terms.append(text[start:position])
            start = position + 1
    terms.append(text[start:])
    return terms


def _parse_term(text: str, term: str) -> FieldRequirement:
    for position, char in enumerate(term):
        pair = term[position : position + 2]
        if pair in ("!=", "=="):
            return FieldRequirement(term[:position], "!=" if pair == "!=" else "=", _unescape(term[position + 2 :]))
        if char == "=":
            return FieldRequirement(term[:position], "=", _unescape(term[position + 1 :]))
    raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")


def _unescape(value: str) -> str:
    if not _ESCAPABLE.intersection(value):
        return value
    result: list[str] = []
    characters = iter(value)
    for char in characters:
        if char == "\\":
            following = next(characters, "")
            if following not in _ESCAPABLE:
                raise SelectorError(f"invalid field selector: invalid escape sequence: \\{following}")
            result.append(following)
        elif char in _ESCAPABLE:
            raise SelectorError(f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            result.append(char)
    return "".join(result)
