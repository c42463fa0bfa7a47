"""Lexer. Every pattern matches in linear time."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, Final

from dray.cel.errors import Issue
from dray.cel.values import INT_MAX, UINT_MAX, Uint

KEYWORDS: Final = frozenset({"true", "false", "null", "in"})
RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)

_ESCAPE: Final = r"\\(?:[abfnrtv\"'`?\\]|[0-3][0-7]{2}|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f]+|//[^\n]*)
  | (?P<string>(?P<prefix>[bB]?[rR]|[bB]?)(?:
        (?<=[rR])(?P<raw>\"\"\"(?:[^\"]|\"(?!\"\"))*\"\"\"|'''(?:[^']|'(?!''))*'''|\"[^\"\r\n]*\"|'[^'\r\n]*')
      | (?<![rR])(?P<cooked>\"\"\"(?:[^\"\\]|ESCAPE|\"(?!\"\"))*\"\"\"|'''(?:[^'\\]|ESCAPE|'(?!''))*'''
                |\"(?:[^\"\\\r\n]|ESCAPE)*\"|'(?:[^'\\\r\n]|ESCAPE)*')))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<unsigned>[uU])?
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<punctuation>&&|\|\||==|!=|<=|>=|[\[\]{}().,\-!?:+*/%<>])
    """.replace("ESCAPE", _ESCAPE),
    re.VERBOSE,
)
_OPENED: Final = re.compile(rf"\"(?:[^\"\\\r\n]|{_ESCAPE})*|'(?:[^'\\\r\n]|{_ESCAPE})*")
_ESCAPES: Final = re.compile(_ESCAPE)
_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    '"': '"',
    "'": "'",
    "`": "`",
    "?": "?",
    "\\": "\\",
}


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `kind` is the text of punctuation and keywords, or the name of a token class."""

    kind: str
    text: str
    offset: int
    value: Any = None


def tokenize(source: str) -> tuple[list[Token], list[Issue]]:
    """Return the tokens of the source; invalid text is reported and skipped."""
    tokens: list[Token] = []
    issues: list[Issue] = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            text = _unrecognized(source, position)
            shown = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
            issues.append(Issue(position, f"Syntax error: token recognition error at: '{shown}'"))
            position += len(text)
            continue
        if match.lastgroup != "space":
            tokens.append(_token(match, issues))
        position = match.end()
    tokens.append(Token("EOF", "<EOF>", len(source)))
    return tokens, issues


def _unrecognized(source: str, position: int) -> str:
    """Return the invalid text: a character, or a string up to where it becomes invalid."""
    opened = _OPENED.match(source, position)
    if opened is None:
        # An incomplete operator includes the character after it.
        return source[position : position + (2 if source[position] in "=&|" else 1)]
    end = opened.end()
    return source[position : end + (2 if source[end : end + 1] == "\\" else 1)]


def _token(match: re.Match[str], issues: list[Issue]) -> Token:
    text, offset = match[0], match.start()
    if match["string"] is not None:
        return _string_token(match, issues)
    if match["float"] is not None:
        value = float(text)
        if value == float("inf"):
            issues.append(Issue(offset, "invalid double literal"))
        return Token("NUM_FLOAT", text, offset, value)
    if match["int"] is not None:
        return _int_token(match, issues)
    if match["ident"] is not None:
        return Token(text if text in KEYWORDS else "IDENTIFIER", text, offset)
    return Token(text, text, offset)


# More digits always overflow.
_DIGITS_MAX: Final = 20
_FENCE_LENGTH: Final = 3
_SURROGATES: Final = range(0xD800, 0xE000)


def _int_token(match: re.Match[str], issues: list[Issue]) -> Token:
    digits, offset = match["int"], match.start()
    significant = digits.removeprefix("0x").lstrip("0")
    value = int(digits, 16 if digits.startswith("0x") else 10) if len(significant) <= _DIGITS_MAX else UINT_MAX + 1
    if match["unsigned"]:
        if value > UINT_MAX:
            issues.append(Issue(offset, "invalid uint literal"))
        return Token("NUM_UINT", match[0], offset, Uint(min(value, UINT_MAX)))
    # One more than the largest int is allowed here: a minus sign may precede it.
    if value > INT_MAX + 1:
        issues.append(Issue(offset, "invalid int literal"))
    return Token("NUM_INT", match[0], offset, value)


def _string_token(match: re.Match[str], issues: list[Issue]) -> Token:
    quoted = match["raw"] or match["cooked"]
    body = quoted[3:-3] if len(quoted) >= 2 * _FENCE_LENGTH and quoted[:3] in ('"""', "'''") else quoted[1:-1]
    is_bytes = match["prefix"][:1] in ("b", "B")
    value: str | bytes | None
    if match["raw"] is not None:
        value = body.encode() if is_bytes else body
    else:
        value = _unescape_bytes(body) if is_bytes else _unescape(body)
    if value is None:
        issues.append(Issue(match.start(), "Syntax error: unable to unescape string"))
    return Token("BYTES" if is_bytes else "STRING", match[0], match.start(), value)


def _unescape(body: str) -> str | None:
    if "\\" not in body:
        return body
    parts, last = [], 0
    for escape in _ESCAPES.finditer(body):
        char = _escaped_char(escape[0][1:])
        if char is None:
            return None
        parts += [body[last : escape.start()], char]
        last = escape.end()
    return "".join([*parts, body[last:]])


def _escaped_char(code: str) -> str | None:
    if code in _SIMPLE:
        return _SIMPLE[code]
    point = int(code[1:], 16) if code[0] in "xXuU" else int(code, 8)
    if point > sys.maxunicode or point in _SURROGATES:
        return None
    return chr(point)


def _unescape_bytes(body: str) -> bytes | None:
    parts, last = [], 0
    for escape in _ESCAPES.finditer(body):
        code = escape[0][1:]
        if code[0] in "uU":
            return None
        if code in _SIMPLE:
            byte = _SIMPLE[code].encode()
        else:
            byte = bytes([int(code[1:], 16) if code[0] in "xX" else int(code, 8)])
        parts += [body[last : escape.start()].encode(), byte]
        last = escape.end()
    return b"".join([*parts, body[last:].encode()])
