"""Estimated costs of rules for custom resources: the values of Kubernetes' tests, with and without declared bounds.

The names are those of `TestCostEstimation` in Kubernetes' apiextensions-apiserver. A rule that Kubernetes accepts by
its cost must be accepted here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dray.api.document import Document
from dray.cel.environments import compile_device_selector, compile_rule
from dray.cel.schema import cardinality_max

pytestmark = pytest.mark.api_cel

RULE_COST_MAX = 10_000_000

Bound = int | None
NUMBER: Document = {"type": "number"}
INTEGER: Document = {"type": "integer"}
BOOLEAN: Document = {"type": "boolean"}
INT_OR_STRING: Document = {"x-kubernetes-int-or-string": True}


def formatted(form: str) -> Document:
    return {"type": "string", "format": form}


def text(most: Bound = None, **fields: Any) -> Document:
    return {"type": "string", **fields, **({} if most is None else {"maxLength": most})}


def array(items: Document, most: Bound = None) -> Document:
    return {"type": "array", "items": items, **({} if most is None else {"maxItems": most})}


def mapping(values: Document, most: Bound = None) -> Document:
    return {"type": "object", "additionalProperties": values, **({} if most is None else {"maxProperties": most})}


def fields(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


def arrays_of(items: Document) -> Callable[[Bound], Document]:
    return lambda most: array(items, most)


def maps_of(values: Document) -> Callable[[Bound], Document]:
    return lambda most: mapping(values, most)


class Row(NamedTuple):
    schema: Callable[[Bound], Document]
    rule: str
    # Without bounds; None if it is only known to exceed the limit.
    unbounded: int | None
    most: int
    bounded: int


ROWS = {
    "number array with all": Row(arrays_of(NUMBER), "self.all(x, true)", 4718591, 10, 32),
    "string with contains": Row(text, "self.contains('test')", 314574, 10, 5),
    "string with startsWith": Row(text, "self.startsWith('test')", 2, 15, 2),
    "string with endsWith": Row(text, "self.endsWith('test')", 2, 30, 2),
    "concat string": Row(text, 'size(self + "hello") > size("hello")', 314578, 4, 7),
    "index of array with numbers": Row(arrays_of(NUMBER), "self[1] == 0.0", 2, 5000, 2),
    "index of array with strings": Row(arrays_of(text()), "self[1] == self[1]", 314577, 8, 314577),
    "O(n^2) loop with numbers": Row(arrays_of(NUMBER), "self.all(x, self.all(y, true))", None, 10, 352),
    "O(n^3) loop with numbers": Row(arrays_of(NUMBER), "self.all(x, self.all(y, self.all(z, true)))", None, 10, 3552),
    "regex matches simple": Row(text, 'self.matches("x")', 314574, 50, 22),
    "regex matches empty string": Row(text, '"".matches("(((((((((())))))))))[0-9]")', 7, 10, 7),
    "regex matches empty regex": Row(text, 'self.matches("")', 1, 100, 1),
    "map of strings with value length": Row(
        lambda most: mapping(text(most), most), "self.all(x, x.contains(self[x]))", 2752507, 10, 72
    ),
    "set array maxLength to zero": Row(arrays_of(NUMBER), "self[3] == 0.0", 2, 0, 2),
    "set map maxLength to zero": Row(maps_of(NUMBER), 'self["x"] == 0.0', 2, 0, 2),
    "set string maxLength to zero": Row(text, 'self == "x"', 2, 0, 1),
    "set bytes maxLength to zero": Row(lambda most: text(most, format="byte"), 'self == b"x"', 2, 0, 1),
    "set maxLength greater than estimated maxLength": Row(
        arrays_of(NUMBER), "self.all(x, x == 0.0)", 6291454, 3 * 1024 * 2048, 25165826
    ),
    "int-or-string array with all": Row(arrays_of(INT_OR_STRING), "self.all(x, true)", 4718591, 10, 32),
    "index of array with int-or-strings": Row(arrays_of(INT_OR_STRING), "self[0] == 5", 3, 10, 3),
    "index of array with booleans": Row(arrays_of(BOOLEAN), "self[0] == false", 2, 25, 2),
    "index of array of objects": Row(arrays_of(fields(required=INTEGER)), "self[0] == null", 2, 422, 2),
    "index of array of array of numbers": Row(
        lambda most: array(array(NUMBER, most), most), "self[0][0] == -1.0", 3, 51, 3
    ),
    "array of number maps with all": Row(arrays_of(mapping(NUMBER)), "self.all(x, x.y == 25.2)", 6291452, 12, 74),
    "index of array of number maps": Row(arrays_of(mapping(NUMBER)), "self[0].x > 2.0", 4, 3000, 4),
    "duration array with all": Row(arrays_of(formatted("duration")), "self.all(x, true)", 2359295, 5, 17),
    "index of duration array": Row(arrays_of(formatted("duration")), "self[0].getHours() == 2", 4, 525, 4),
    "date array with all": Row(arrays_of(formatted("date")), "self.all(x, true)", 725936, 15, 47),
    "index of date array": Row(arrays_of(formatted("date")), "self[2].getDayOfMonth() == 13", 4, 42, 4),
    "date-time array with all": Row(arrays_of(formatted("date-time")), "self.all(x, true)", 428963, 25, 77),
    "index of date-time array": Row(arrays_of(formatted("date-time")), "self[2].getMinutes() == 45", 4, 99, 4),
    "map of int-or-strings with all": Row(maps_of(INT_OR_STRING), "self.all(x, true)", 1348169, 15, 47),
    "map of number maps with all": Row(maps_of(mapping(NUMBER)), "self.all(x, true)", 1179647, 10, 32),
    "map of number arrays with all": Row(maps_of(array(NUMBER)), "self.all(x, true)", 1179647, 25, 77),
    "map of durations with all": Row(maps_of(formatted("duration")), "self.all(x, true)", 1048577, 5, 17),
    "map of dates with all": Row(maps_of(formatted("date")), "self.all(x, true)", 524288, 10, 32),
    "map of date-times with all": Row(maps_of(formatted("date-time")), "self.all(x, true)", 349526, 25, 77),
    "extended library regex find": Row(text, "self.find('[0-9]+') == ''", 629147, 10, 11),
    "extended library join": Row(
        lambda most: array(text(most), most), "self.join(' ') == 'aa bb'", 329853068905, 10, 43
    ),
    "extended library isSorted": Row(
        lambda most: array(text(most), most), "self.isSorted() == true", 329854432052, 10, 52
    ),
    "extended library replace": Row(
        lambda most: fields(str=text(most), before=text(2), after=text(4)),
        "self.str.replace(self.before, self.after) == 'does not matter'",
        629154,
        4,
        12,
    ),
    "extended library split": Row(
        lambda most: fields(str=text(most), separator=text(most)),
        "self.str.split(self.separator) == []",
        629160,
        10,
        22,
    ),
    "extended library lowerAscii": Row(text, "self.lowerAscii() == 'lower!'", 314575, 10, 6),
    "check cost of size call": Row(maps_of(INTEGER), "oldSelf.size() == self.size()", 5, 10, 5),
    "check cost of timestamp comparison": Row(maps_of(formatted("date-time")), 'self["a"] == self["b"]', 8, 7, 8),
    "check cost of duration comparison": Row(maps_of(formatted("duration")), 'self["c"] == self["d"]', 8, 42, 8),
    "enums with maxLength equals to the longest possible value": Row(
        lambda most: text(most, enum=["A", "B", "C", "LongValue"]), "self.contains('A')", 2, 1000, 401
    ),
}


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_costs_of_kubernetes(row: Row) -> None:
    unbounded = compile_rule(row.rule, row.schema(None)).estimated_cost
    if row.unbounded is None:
        assert unbounded > RULE_COST_MAX
    else:
        assert unbounded == row.unbounded
    assert compile_rule(row.rule, row.schema(row.most)).estimated_cost == row.bounded


OBJECT = fields(n=INTEGER, s=text(10), when=formatted("date-time"), tags=array(text(5), 4), labels=mapping(text(3), 2))
# Least and most, by the rules of the cost model: a variable or field costs 1, a call without a rule 1, a list 10, a map
# 30; a text of maxLength n has up to 4n bytes, and reading ten of them costs 1.
RULES: list[tuple[str, int, int]] = [
    # A presence test costs what precedes the last field, an optional field one more.
    ("has(self.n)", 1, 1),
    ("has(self.labels.a)", 2, 2),
    ("self.?n.hasValue()", 3, 3),
    ("self.?n.orValue(3) > 1", 4, 4),
    ("optional.of(self.n).hasValue()", 4, 4),
    ("optional.none().orValue(1) == 1", 3, 3),
    ("self.?s.optMap(v, v + 'x').hasValue()", 5, 1844674407370955264 + 19),
    # Fields of a scalar type have the size zero, and so has a type name where the rule is about an object.
    ("self.n == 1", 2, 2),
    ("type(self.n) == int", 4, 4),
    ("type(self.when) == google.protobuf.Timestamp", 4, 4),
    ("type(ip('1.1.1.1')) == net.IP", 3, 3),
    ("type(quantity('1')) == kubernetes.Quantity", 3, 3),
    # Constructors read their text; Kubernetes' types are compared at a fixed cost.
    ("quantity(self.s).isGreaterThan(quantity('1'))", 4, 8),
    ("quantity(self.s) == quantity('1')", 4, 8),
    ("isIP(self.s) && cidr('10.0.0.0/8').containsIP(self.s)", 2, 17),
    ("semver(self.s).major() == 1", 4, 8),
    ("url(self.s).getHost() == 'a'", 4, 8),
    ("format.dns1123Label().validate(self.s).hasValue()", 4, 132),
    # Searching.
    ("self.s.indexOf('a') == 1", 3, 7),
    ("self.tags.indexOf('a') == 1", 3, 15),
    ("self.tags.exists(t, t.matches('a+'))", 3, 35),
    ("'a' in self.tags", 2, 6),
    ("'a' in self.labels", 3, 3),
    # Macros.
    ("self.tags.map(t, t + 'a').size() == 4", 15, 79),
    ("self.tags.filter(t, t == 'a').size() == 1", 15, 75),
    ("self.tags.exists_one(t, t == 'a')", 4, 20),
    ("self.labels.transformMap(k, v, v).size() == 2", 35, 43),
    ("self.labels.transformMapEntry(k, v, {v: k}).size() == 2", 35, 103),
    ("cel.bind(x, self.s, x == x)", 15, 18),
    ("[1, 2].sum() == 3", 13, 13),
]


@pytest.mark.parametrize(("rule", "least", "most"), RULES)
def test_costs_by_the_model(rule: str, least: int, most: int) -> None:
    costs = compile_rule(rule, OBJECT).estimated_costs
    assert (costs.least, costs.most) == (least, most)


# The values of Kubernetes' cost_test.go for its libraries, least and most.
_TEXT = "'ABCDEFGHIJ abcdefghij'"
_LIBRARY: list[tuple[str, int, int]] = [
    # Lists.
    ("[1, 2, 3, 4, 5].sum() == 15", 16, 16),
    ("[uint(1), uint(2), uint(3), uint(4), uint(5)].max() == 5u", 21, 21),
    ("[duration('1s'), duration('2s'), duration('3s')].isSorted()", 16, 16),
    ("[1, 2, 3, 4, 5].indexOf(3) == 2", 16, 16),
    ("'01234567890123456789012345678901234567890123456789'.indexOf('123') == 1", 6, 6),
    # URLs.
    ("url('https:://kubernetes.io/').getHost() == ''", 4, 4),
    ("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 7, 9),
    ("url('https:://kubernetes.io/') == url('http://x.b')", 5, 5),
    # Addresses and networks.
    ("ip('192.168.0.1').isLoopback()", 3, 3),
    ("ip('2001:db8:3333:4444:5555:6666:7777:8888').family() == 6", 6, 6),
    ("ip('192.168.0.1') == ip('192.168.0.1')", 5, 5),
    ("ip.isCanonical('192.168.0.1')", 3, 3),
    ("ip.isCanonical('2001:db8:3333:4444:5555:6666:7777:8888')", 8, 8),
    ("cidr('192.168.0.0/16').prefixLength() == 16", 4, 4),
    ("cidr('192.168.0.0/16') == cidr('2001:db8::/32')", 5, 5),
    ("cidr('192.168.0.0/16').containsCIDR(cidr('192.0.0.0/30'))", 7, 11),
    ("cidr('192.168.0.0/16').containsCIDR('192.0.0.0/30')", 7, 11),
    ("cidr('192.168.0.0/16').containsIP(ip('192.169.0.1'))", 5, 8),
    ("cidr('192.168.0.0/16').containsIP('192.0.0.1')", 4, 7),
    # Strings.
    (f"{_TEXT}.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 7, 9),
    (f"strings.quote({_TEXT}) == strings.quote({_TEXT})", 7, 11),
    ("'abc 123 def 123'.replace('123', '456').size() == 1", 5, 5),
    ("'abc 123 def 123'.split(' ', 1).size() == 1", 5, 5),
    ("'abc 123 def 123'.substring(5, 8).size() == 3", 4, 4),
    ("'  abc 123 def 123  '.trim().size() == 15", 4, 4),
    ("'abc 123 def 123'.findAll('123', 1).size() == 1", 4, 4),
    # Quantities, versions and formats.
    ("quantity('200M') == quantity('0.2G') && quantity('0.2G') == quantity('200M')", 3, 6),
    ("quantity('50k').add(quantity('20')) == quantity('50.02k')", 5, 5),
    ("quantity('50k').add(20).sub(quantity('100k')).sub(-50000).asInteger() > 0", 7, 7),
    ("isSemver('1234.56789012345.67890123456789')", 4, 4),
    ("semver('1234.56789012345.67890123456789').major() == 1", 6, 6),
    ("semver('1.0.0').isLessThan(semver('1.1.0'))", 3, 3),
    ("format.named('dns1123Label').value().validate('my-name').hasValue()", 35, 35),
    ("format.named('dns1123Label').value() == format.named('dns1123Label').value()", 5, 11),
    # Sets.
    ("sets.contains([], [])", 21, 21),
    ("sets.contains([1, 2, 3, 4], [2, 3])", 29, 29),
    ("sets.contains([[1], [2, 3]], [[2, 3]])", 53, 53),
    ("sets.equivalent([], [])", 21, 21),
    ("sets.equivalent([1], [1, 1])", 25, 25),
    ("sets.equivalent([1, 2, 3], [3, 2, 1])", 39, 39),
    ("!sets.intersects([1], [1, 2])", 24, 24),
    # Macros with two variables.
    ("{'a': 1, 'b': 2}.all(k, v, v > 0)", 37, 41),
    ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 39, 43),
    ("{'a': 1, 'b': 2}.existsOne(k, v, v > 0)", 38, 40),
    ("{'a': 1, 'b': 2}.transformMap(k, v, v + 1).size() == 2", 73, 73),
    ("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1).size() == 2", 69, 77),
    ("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1}).size() == 2", 133, 133),
    ("{'a': 1, 'b': 2}.transformMapEntry(k, v, v < 5, {k: v + 1}).size() == 2", 69, 137),
    ("[1, 2].all(i, v, v > 0)", 17, 21),
    ("[1, 2].existsOne(i, v, v > 0)", 18, 20),
    ("[1, 2].transformList(i, v, v + 1).size() == 2", 51, 51),
    ("[1, 2].transformList(i, v, v < 5, v + 1).size() == 2", 29, 55),
]


@pytest.mark.parametrize(("rule", "least", "most"), _LIBRARY)
def test_costs_of_libraries(rule: str, least: int, most: int) -> None:
    """A rule must be a condition: a comparison of a number adds one, and size() another one."""
    costs = compile_rule(rule, OBJECT).estimated_costs
    assert (costs.least, costs.most) == (least, most)


def test_the_size_of_a_type_is_not_known_in_a_selector() -> None:
    # device, its field, type() and the name of the type, and comparing what has no bound.
    assert compile_device_selector("type(device.driver) == string").estimated_cost == 4 + 1844674407370955264


@pytest.mark.parametrize(
    ("schema", "most"),
    [(INTEGER, 1572864), (text(), 1048576), (BOOLEAN, 629145), ({**fields(a=INTEGER), "required": ["a"]}, 349525)],
)
def test_number_of_values_without_a_bound(schema: Document, most: int) -> None:
    assert cardinality_max(schema) == most
