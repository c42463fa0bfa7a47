"""Parser by precedence climbing. The first syntax error ends it, with the message of cel-go's parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from dray.cel import tree
from dray.cel.errors import CELError, Issue
from dray.cel.lexer import RESERVED, Token, tokenize
from dray.cel.tree import DEPTH_MAX, NESTING_MAX, Call, Ident, Literal, Node, Select

# Precedence of the binary operators below `||` and `&&`.
_BINARY: Final = {
    "<": (1, "_<_"),
    "<=": (1, "_<=_"),
    ">": (1, "_>_"),
    ">=": (1, "_>=_"),
    "==": (1, tree.EQUALS),
    "!=": (1, tree.NOT_EQUALS),
    "in": (1, tree.IN),
    "+": (2, "_+_"),
    "-": (2, "_-_"),
    "*": (3, "_*_"),
    "/": (3, "_/_"),
    "%": (3, "_%_"),
}
# Tokens that may begin an expression, in the order of the grammar's token numbers.
_STARTS: Final = (
    "'['", "'{'", "'('", "'.'", "'-'", "'!'", "'true'", "'false'", "'null'",
    "NUM_FLOAT", "NUM_INT", "NUM_UINT", "STRING", "BYTES", "IDENTIFIER",
)  # fmt: skip
_START_KINDS: Final = frozenset(name.strip("'") for name in _STARTS)
# Further tokens that may occur where an element is expected, by the closing bracket.
_ALSO: Final[Mapping[str | None, str]] = {")": ")", "]": "],?", "}": "},?"}
_ORDER: Final = ("'['", "']'", "'{'", "'}'", "'('", "')'", "'.'", "','", "'-'", "'!'", "'?'", *_STARTS[6:])
_LITERALS: Final = {"true": True, "false": False, "null": None}
_CLASSES: Final = frozenset({"NUM_FLOAT", "NUM_INT", "NUM_UINT", "STRING", "BYTES"})


def parse(source: str) -> Node:
    """Parse a whole expression."""
    tokens, issues = tokenize(source)
    parser = _Parser(tokens, issues)
    try:
        root = parser.expression()
        parser.end()
    except _SyntaxStopError:
        root = None
    except RecursionError:
        raise CELError.of(source, [Issue(0, _too_deep())]) from None
    if root is None or issues:
        raise CELError.of(source, issues)
    return root


def _too_deep() -> str:
    return f"expression recursion limit exceeded: {DEPTH_MAX}"


class _SyntaxStopError(Exception):
    """Ends the parser; the issue is recorded."""


def depth_above(*nodes: Node | None) -> int:
    """Return the depth of a node with these children."""
    return 1 + max((node.depth for node in nodes if node is not None), default=0)


class _Parser:
    def __init__(self, tokens: Sequence[Token], issues: list[Issue]) -> None:
        self._tokens = tokens
        self._position = 0
        self._issues = issues
        self._nesting = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _accept(self, kind: str) -> Token | None:
        return self._next() if self._token.kind == kind else None

    def _fail(self, message: str, offset: int | None = None) -> NoReturn:
        self._issues.append(Issue(self._token.offset if offset is None else offset, message))
        raise _SyntaxStopError

    def report(self, offset: int, message: str) -> None:
        """Record an issue after which parsing continues."""
        self._issues.append(Issue(offset, message))

    def _expect(self, kind: str) -> Token:
        token = self._accept(kind)
        if token is not None:
            return token
        following = self._tokens[min(self._position + 1, len(self._tokens) - 1)]
        text = self._token.text
        if following.kind == kind:
            return self._fail(f"Syntax error: extraneous input '{text}' expecting '{kind}'")
        return self._fail(f"Syntax error: missing '{kind}' at '{text}'")

    def end(self) -> None:
        """Require the end of the source."""
        if self._token.kind == "EOF":
            return
        last = self._tokens[self._position + 1].kind == "EOF"
        self._fail(f"Syntax error: {'extraneous' if last else 'mismatched'} input '{self._token.text}' expecting <EOF>")

    def _unexpected(self, closing: str | None) -> NoReturn:
        wanted = set(_STARTS) | {f"'{kind}'" for kind in _ALSO.get(closing, ())}
        expecting = ", ".join(name for name in _ORDER if name in wanted)
        following = self._tokens[min(self._position + 1, len(self._tokens) - 1)]
        may_follow = _START_KINDS | {kind for kind in (closing or "") if kind in ")]}"}
        verb = "extraneous" if self._token.kind != "EOF" and following.kind in may_follow else "mismatched"
        self._fail(f"Syntax error: {verb} input '{self._token.text}' expecting {{{expecting}}}")

    def bounded(self, node: Node) -> Node:
        """Return the node unless it makes the tree too deep."""
        if node.depth > DEPTH_MAX:
            self._fail(_too_deep(), 0)
        return node

    def expression(self, closing: str | None = None) -> Node:
        """Parse a conditional, or what binds tighter."""
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            self._fail(f"expression recursion limit exceeded: {NESTING_MAX}", 0)
        node = self._logical(closing)
        question = self._accept("?")
        if question is not None:
            truthy = self._logical(None)
            if self._token.kind != ":":
                self._fail(f"Syntax error: mismatched input '{self._token.text}' expecting ':'")
            self._next()
            falsy = self.expression()
            args = (node, truthy, falsy)
            node = self.bounded(Call(question.offset, depth_above(*args), tree.CONDITIONAL, None, args))
        self._nesting -= 1
        return node

    def _logical(self, closing: str | None) -> Node:
        """Parse `||` and `&&`; a chain becomes one call of many arguments, which keeps the tree flat."""
        alternatives: list[Node] = []
        or_offset = 0
        while True:
            terms = [self._binary(1, closing)]
            and_offset = self._token.offset
            while self._accept("&&") is not None:
                terms.append(self._binary(1, None))
            alternatives.append(self._joined(tree.AND, and_offset, terms))
            or_offset = or_offset or self._token.offset
            if self._accept("||") is None:
                return self._joined(tree.OR, or_offset, alternatives)
            closing = None

    def _joined(self, function: str, offset: int, nodes: list[Node]) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        return self.bounded(Call(offset, depth_above(*nodes), function, None, tuple(nodes)))

    def _binary(self, strength: int, closing: str | None) -> Node:
        left = self._unary(closing)
        while True:
            operator = _BINARY.get(self._token.kind)
            if operator is None or operator[0] < strength:
                return left
            offset = self._next().offset
            right = self._binary(operator[0] + 1, None)
            left = self.bounded(Call(offset, depth_above(left, right), operator[1], None, (left, right)))

    def _unary(self, closing: str | None) -> Node:
        first = self._token
        if first.kind not in ("-", "!"):
            return self._member(self._primary(closing))
        count = 0
        while self._token.kind == first.kind:
            self._next()
            count += 1
        if first.kind == "-" and self._token.kind in ("NUM_INT", "NUM_FLOAT"):
            # The last minus belongs to the literal: -9223372036854775808 has no positive counterpart.
            count -= 1
            operand = self._member(self._number(self._next(), first.offset, negative=True))
        else:
            self._operand_follows(first)
            operand = self._member(self._primary(None))
        if count % 2 == 0:
            return operand
        name = tree.NEGATE if first.kind == "-" else tree.NOT
        return self.bounded(Call(first.offset, depth_above(operand), name, None, (operand,)))

    def _operand_follows(self, operator: Token) -> None:
        """Report cel-go's error when a sign ends the expression."""
        if self._token.kind != "EOF":
            return
        if operator.kind == "-":
            self.report(self._token.offset, "Syntax error: no viable alternative at input '-'")
            self._unexpected(None)
        self._fail(f"Syntax error: extraneous input '<EOF>' expecting {{{', '.join(_STARTS)}}}")

    def _number(self, token: Token, offset: int, *, negative: bool) -> Literal:
        if not negative and token.kind == "NUM_INT" and token.value >= 2**63:
            self.report(offset, "invalid int literal")
        return Literal(offset, 1, -token.value if negative else token.value)

    def _primary(self, closing: str | None) -> Node:
        token = self._token
        if token.kind in _CLASSES:
            self._next()
            if token.kind in ("STRING", "BYTES"):
                return Literal(token.offset, 1, token.value)
            return self._number(token, token.offset, negative=False)
        if token.kind in _LITERALS:
            self._next()
            return Literal(token.offset, 1, _LITERALS[token.kind])
        if token.kind in ("IDENTIFIER", "."):
            return self._name()
        opener = {"(": self._parenthesized, "[": self._list, "{": self._map}.get(token.kind)
        if opener is None:
            self._unexpected(closing)
        return opener()

    def _parenthesized(self) -> Node:
        self._next()
        node = self.expression()
        self._expect(")")
        return node

    def _name(self) -> Node:
        self._accept(".")
        token = self._token
        if token.kind != "IDENTIFIER":
            self._fail(f"Syntax error: mismatched input '{token.text}' expecting IDENTIFIER")
        self._next()
        if token.text in RESERVED:
            self.report(token.offset, f"reserved identifier: {token.text}")
        if self._token.kind == "(":
            offset = self._token.offset
            return self.bounded(self._call(offset, token.text, None, self._arguments()))
        return Ident(token.offset, 1, token.text)

    def _arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        args: list[Node] = []
        if self._accept(")") is not None:
            return ()
        args.append(self.expression(")"))
        while self._accept(",") is not None:
            args.append(self.expression())
        self._expect(")")
        return tuple(args)

    def _more(self, closing: str) -> bool:
        """Report whether another element follows in brackets; a trailing comma is allowed."""
        if self._accept(closing) is not None:
            return False
        if self._accept(",") is None:
            following = self._tokens[min(self._position + 1, len(self._tokens) - 1)]
            verb = "extraneous" if following.kind in (closing, ",") else "mismatched"
            self._fail(f"Syntax error: {verb} input '{self._token.text}' expecting {{'{closing}', ','}}")
        if self._token.kind not in _START_KINDS | {"?", closing}:
            if self._token.kind == ",":
                self._fail(f"Syntax error: mismatched input ',' expecting '{closing}'")
            self._expect(closing)
        return self._accept(closing) is None

    def _list(self) -> Node:
        offset = self._next().offset
        elements: list[tuple[Node, bool]] = []
        more = self._accept("]") is None
        while more:
            optional = self._accept("?") is not None
            elements.append((self.expression(None if elements else "]"), optional))
            more = self._more("]")
        return self.bounded(tree.ListNode(offset, depth_above(*(node for node, _ in elements)), tuple(elements)))

    def _map(self) -> Node:
        offset = self._next().offset
        entries: list[tuple[Node, Node, bool]] = []
        more = self._accept("}") is None
        while more:
            optional = self._accept("?") is not None
            key = self.expression(None if entries else "}")
            self._expect(":")
            entries.append((key, self.expression(), optional))
            more = self._more("}")
        children = [node for key, value, _ in entries for node in (key, value)]
        return self.bounded(tree.MapNode(offset, depth_above(*children), tuple(entries)))

    def _member(self, node: Node) -> Node:
        while True:
            kind, offset = self._token.kind, self._token.offset
            if kind == ".":
                node = self._selection(node)
            elif kind == "[":
                self._next()
                function = tree.OPTIONAL_INDEX if self._accept("?") is not None else tree.INDEX
                key = self.expression()
                self._expect("]")
                node = Call(offset, depth_above(node, key), function, None, (node, key))
            elif kind == "{" and tree.qualified_name(node) is not None:
                node = self._struct(node)
            else:
                return node
            self.bounded(node)

    def _selection(self, operand: Node) -> Node:
        offset = self._next().offset
        optional = self._accept("?") is not None
        token = self._token
        if token.kind != "IDENTIFIER" and optional:
            self._fail(f"Syntax error: mismatched input '{token.text}' expecting {{IDENTIFIER, ESC_IDENTIFIER}}")
        if token.kind != "IDENTIFIER":
            self._fail(f"Syntax error: no viable alternative at input '.{'' if token.kind == 'EOF' else token.text}'")
        self._next()
        if not optional and self._token.kind == "(":
            call_offset = self._token.offset
            return self._call(call_offset, token.text, operand, self._arguments())
        return Select(offset, depth_above(operand), operand, token.text, optional)

    def _struct(self, node: Node) -> Node:
        offset = self._next().offset
        while self._token.kind != "}":
            self._accept("?")
            if self._accept("IDENTIFIER") is None:
                self._fail(f"Syntax error: mismatched input '{self._token.text}' expecting IDENTIFIER")
            self._expect(":")
            self.expression()
            if self._accept(",") is None:
                break
        self._expect("}")
        return tree.StructNode(offset, node.depth, tree.qualified_name(node) or "")

    def _call(self, offset: int, name: str, target: Node | None, args: tuple[Node, ...]) -> Node:
        from dray.cel.macros import expand

        expanded = expand(self.report, offset=offset, name=name, target=target, args=args)
        return expanded or Call(offset, depth_above(target, *args), name, target, args)
