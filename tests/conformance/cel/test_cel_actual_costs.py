"""Costs at run time: the values of Kubernetes' tests, and that generated code never charges less.

The rows of `STABLE` are those of `TestCelCostStability` in Kubernetes' apiextensions-apiserver, the rows of
`test_costs_of_libraries` those of its `cost_test.go`, less what Kubernetes folds in a rule.
"""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.cel.environments import compile_device_selector, compile_rule, device_view
from dray.cel.errors import CELCostError
from dray.cel.program import COST_LIMIT, Program

pytestmark = pytest.mark.api_cel

INTEGER: Document = {"type": "integer"}
NUMBER: Document = {"type": "number"}
BOOLEAN: Document = {"type": "boolean"}
TEXT: Document = {"type": "string"}
INT_OR_STRING: Document = {"x-kubernetes-int-or-string": True}
UNKNOWN: Document = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def formatted(form: str) -> Document:
    return {"type": "string", "format": form}


def array(items: Document, **more: Any) -> Document:
    return {"type": "array", "items": items, **more}


def keyed(items: Document, *keys: str) -> Document:
    return array(items, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


def mapping(values: Document) -> Document:
    return {"type": "object", "additionalProperties": values}


def fields(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


def numbered(*schemas: Document) -> Document:
    return fields(**{f"val{position}": schema for position, schema in enumerate(schemas, start=1)})


def values(*given: Any) -> Document:
    return {f"val{position}": value for position, value in enumerate(given, start=1)}


def same(literal: str) -> str:
    """Return a rule that compares two equal fields with a literal and with each other."""
    return f"self.val1 == {literal} && {literal} == self.val1 && self.val1 == self.val2"


KV = fields(k=TEXT, v=TEXT)
LIST_MAPS = [
    [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}],
    [{"k": "b", "v": "2"}, {"k": "a", "v": "1"}],
    [{"k": "b", "v": "3"}, {"k": "a", "v": "1"}],
    [{"k": "c", "v": "4"}],
]

STABLE: list[tuple[Document, Document, dict[str, int]]] = [
    (
        numbered(INTEGER, INTEGER, INTEGER),
        values(2**63 - 1, 2**63 - 1, 2**31 - 1),
        {
            same(str(2**63 - 1)): 11,
            "self.val1 == self.val2": 5,
            "type(self.val1) == int": 4,
            "self.val3 + 1 == 2147483647 + 1": 5,
        },
    ),
    (
        numbered(INTEGER, NUMBER),
        values(5, 10.0),
        {
            "double(self.val1) < self.val2": 6,
            "self.val1 < int(self.val2)": 6,
            "double(5) < 10.0": 1,
            "5 < int(10.0)": 1,
            "double(self.val1) < 10.0": 4,
        },
    ),
    (
        numbered(TEXT, TEXT),
        values("Rook takes \U0001f451", "Rook takes \U0001f451"),
        {
            same("'Rook takes \U0001f451'"): 14,
            "self.val1.startsWith('Rook')": 4,
            "!self.val1.startsWith('knight')": 5,
            "self.val1.matches('^[^0-9]*$')": 8,
            "!self.val1.matches('^[0-9]*$')": 7,
            "type(self.val1) == string": 4,
            "size(self.val1) == 12": 4,
            "self.val1.charAt(3) == 'k'": 4,
            "self.val1.indexOf('o') == 1": 4,
            "self.val1.indexOf('o', 2) == 2": 4,
            "self.val1.replace(' ', 'x') == 'Rookxtakesx\U0001f451'": 7,
            "self.val1.replace(' ', 'x', 1) == 'Rookxtakes \U0001f451'": 7,
            "self.val1.split(' ') == ['Rook', 'takes', '\U0001f451']": 6,
            "self.val1.split(' ', 2) == ['Rook', 'takes \U0001f451']": 6,
            "self.val1.substring(5) == 'takes \U0001f451'": 5,
            "self.val1.substring(0, 4) == 'Rook'": 5,
            "self.val1.substring(4, 10).trim() == 'takes'": 6,
            "self.val1.upperAscii() == 'ROOK TAKES \U0001f451'": 6,
            "self.val1.lowerAscii() == 'rook takes \U0001f451'": 6,
        },
    ),
    (
        numbered(formatted("byte"), formatted("byte")),
        values("QUI=", "QUI="),
        {
            "self.val1 == self.val2": 5,
            "self.val1 == b'AB'": 3,
            "type(self.val1) == bytes": 4,
            "size(self.val1) == 2": 4,
        },
    ),
    (
        numbered(BOOLEAN, BOOLEAN, BOOLEAN, BOOLEAN),
        values(True, True, False, False),
        {same("true"): 11, "self.val1 != self.val4": 5},
    ),
    (
        numbered(formatted("duration"), formatted("duration")),
        values("1h2m3s4ms", "1h2m3s4ms"),
        {
            same("duration('1h2m3s4ms')"): 11,
            "self.val1 == duration('1h2m') + duration('3s4ms')": 4,
            "self.val1.getHours() == 1": 4,
            "type(self.val1) == google.protobuf.Duration": 4,
        },
    ),
    (
        numbered(formatted("date-time"), formatted("date-time")),
        values("2011-08-18T19:03:37.010000000+01:00", "2011-08-18T19:03:37.010000000+01:00"),
        {
            same("timestamp('2011-08-18T19:03:37.010+01:00')"): 11,
            "self.val1 == timestamp('2011-08-18T00:00:00.000+01:00') + duration('19h3m37s10ms')": 4,
            "self.val1.getDate('01:00') == 18": 4,
        },
    ),
    (
        fields(enumStr={**TEXT, "enum": ["Pending", "Available", "Bound", "Released", "Failed"]}),
        {"enumStr": "Pending"},
        {"self.enumStr == 'Pending'": 3, "self.enumStr in ['Pending', 'Available']": 2},
    ),
    (
        numbered(
            INTEGER,
            NUMBER,
            NUMBER,
            NUMBER,
            BOOLEAN,
            TEXT,
            formatted("byte"),
            TEXT,
            formatted("duration"),
            TEXT,
            formatted("date-time"),
            TEXT,
            formatted("date"),
        ),
        values(
            10,
            10.0,
            10.49,
            10.5,
            True,
            "10",
            "MTA=",
            "3723.004s",
            "1h2m3s4ms",
            "2011-08-18T19:03:37.01+01:00",
            "2011-08-18T19:03:37.01+01:00",
            "2011-08-18T00:00:00Z",
            "2011-08-18",
        ),
        {
            "int(self.val2) == self.val1": 6,
            "double(self.val1) == self.val2": 6,
            "bytes(self.val6) == self.val7": 6,
            "string(self.val1) == self.val6": 6,
            "string(self.val4) == '10.5'": 4,
            "string(self.val7) == self.val6": 6,
            "duration(self.val8) == self.val9": 6,
            "timestamp(self.val10) == self.val11": 6,
            "timestamp(self.val12) == self.val13": 6,
            "string(self.val13) == self.val12": 7,
        },
    ),
    (
        numbered(array(INTEGER), array(INTEGER)),
        values([1, 2, 3], [1, 2, 3]),
        {
            same("[1, 2, 3]"): 11,
            "1 in self.val1": 5,
            "self.val2[0] in self.val1": 8,
            "!(0 in self.val1)": 6,
            "self.val1 + self.val2 == [1, 2, 3, 1, 2, 3]": 6,
            "self.val1 + [4, 5] == [1, 2, 3, 4, 5]": 4,
        },
    ),
    (
        numbered(*[array(TEXT, **{"x-kubernetes-list-type": "set"})] * 2),
        values(["a", "b", "c"], ["a", "c", "b"]),
        {
            "self.val1 == ['c', 'b', 'a']": 3,
            "self.val1 == self.val2": 5,
            "'a' in self.val1": 5,
            "self.val2[0] in self.val1": 8,
            "!('x' in self.val1)": 6,
            "self.val1 + self.val2 == ['a', 'b', 'c']": 6,
            "self.val1 + ['c', 'd'] == ['a', 'b', 'c', 'd']": 4,
        },
    ),
    (
        fields(objs=array(keyed(KV, "k"))),
        {"objs": LIST_MAPS},
        {
            "self.objs[0] == self.objs[1]": 7,
            "self.objs[0] + self.objs[2] == self.objs[2]": 11,
            "self.objs[0] == [self.objs[0][0], self.objs[0][1]]": 22,
            "self.objs[2] + [self.objs[0][0], self.objs[0][1]] == self.objs[0]": 26,
            "size(self.objs[0] + [self.objs[3][0]]) == 3": 20,
        },
    ),
    (
        numbered(mapping(TEXT), mapping(TEXT)),
        values({"k1": "a", "k2": "b"}, {"k2": "b", "k1": "a"}),
        {
            "self.val1 == self.val2": 5,
            "'k1' in self.val1": 3,
            "!('k3' in self.val1)": 4,
            "self.val1 == {'k1': 'a', 'k2': 'b'}": 3,
        },
    ),
    (
        fields(
            a=fields(b=INTEGER, c=INTEGER, d={**INTEGER, "nullable": True}),
            a1=fields(b1=fields(c1=INTEGER), d2=fields(e2=INTEGER)),
        ),
        {"a": {"b": 1, "d": None}, "a1": {"b1": {"c1": 4}}},
        {
            "has(self.a.b)": 2,
            "has(self.a1.b1.c1)": 3,
            "!(has(self.a1.d2) && has(self.a1.d2.e2))": 3,
            "!has(self.a1.d2)": 3,
        },
    ),
    (
        fields(val=mapping(INTEGER)),
        {"val": {"b": 1, "d": 2}},
        {
            "!('a' in self.val)": 4,
            "'b' in self.val": 3,
            "!has(self.val.a)": 3,
            "has(self.val.b)": 2,
            "self.val.all(k, self.val[k] > 0)": 17,
            "self.val.exists_one(k, self.val[k] == 2)": 14,
            "!self.val.exists_one(k, self.val[k] > 0)": 17,
            "size(self.val) == 2": 4,
            "size(self.val.filter(k, self.val[k] > 1)) == 1": 26,
        },
    ),
    (
        fields(listMap=keyed(fields(k=TEXT, v=TEXT, v2=TEXT), "k")),
        {"listMap": [{"k": "a1", "v": "b1"}, {"k": "a2", "v": "b2"}, {"k": "a3", "v": "b3", "v2": "z"}]},
        {
            "has(self.listMap[0].v)": 3,
            "self.listMap.all(m, m.k.startsWith('a'))": 21,
            "self.listMap.all(m, !has(m.v2) || m.v2 == 'z')": 21,
            "self.listMap.exists(m, m.k.endsWith('1'))": 13,
            "self.listMap.exists_one(m, m.k == 'a3')": 15,
            "!self.listMap.all(m, m.k.endsWith('1'))": 18,
            "!self.listMap.exists(m, m.v == 'x')": 25,
            "!self.listMap.exists_one(m, m.k.startsWith('a'))": 20,
            "size(self.listMap.filter(m, m.k == 'a1')) == 1": 27,
            "self.listMap.exists(m, m.k == 'a1' && m.v == 'b1')": 16,
            "self.listMap.map(m, m.v).exists(v, v == 'b1')": 55,
            "self.listMap.exists(m, has(m.v2) && m.v2 == 'z')": 21,
            "!self.listMap.all(m, has(m.v2) && m.v2 != 'z')": 10,
            "self.listMap.exists_one(m, has(m.v2) && m.v2 == 'z')": 12,
            "self.listMap.filter(m, has(m.v2) && m.v2 == 'z').size() == 1": 24,
            "self.listMap.map(m, has(m.v2) && m.v2 == 'z', m.v2).size() == 1": 25,
            "self.listMap.filter(m, has(m.v2) && m.v2 == 'z').map(m, m.v2).size() == 1": 39,
            # An element without the field is an error, which is charged and absorbed.
            "self.listMap.exists(m, m.v2 == 'z')": 24,
            "!self.listMap.all(m, m.v2 != 'z')": 22,
        },
    ),
    (
        fields(array=array(INTEGER)),
        {"array": [1, 1, 2, 2, 3, 3, 4, 5]},
        {
            "2 in self.array": 10,
            "self.array.all(e, e > 0)": 43,
            "self.array.exists(e, e > 2)": 36,
            "self.array.exists_one(e, e > 4)": 22,
            "!self.array.all(e, e < 2)": 21,
            "!self.array.exists(e, e < 0)": 52,
            "!self.array.exists_one(e, e == 2)": 25,
            "size(self.array.filter(e, e%2 == 0)) == 3": 68,
            "self.array.map(e, e * 20).filter(e, e > 50).exists(e, e == 60)": 194,
            "size(self.array) == 8": 4,
        },
    ),
    (
        fields(something=INT_OR_STRING),
        {"something": "25%"},
        {
            "type(self.something) == int ? self.something == 1 : self.something == '25%'": 7,
            "type(self.something) == string && self.something == '25%'": 7,
            "self.something == '25%'": 3,
            "self.something != 1": 3,
            "self.something == 1 || self.something == '25%'": 6,
            "self.something == '25%' || self.something == 1": 3,
            "self.something != ['anything']": 3,
        },
    ),
    (
        fields(min=INT_OR_STRING, current=INTEGER, available=INTEGER),
        {"min": "50%", "current": 5, "available": 10},
        {
            r"type(self.min) == string && self.min.matches(r'(\d+(\.\d+)?%)')": 10,
            "type(self.min) == int ? self.current <= self.min : double(self.current) / double(self.available) >= "
            "double(self.min.replace('%', '')) / 100.0": 17,
        },
    ),
    (
        fields(withUnknownList=array(UNKNOWN)),
        {"withUnknownList": [{"a": "a", "b": "b"}, {"a": "x", "b": "y"}, {"a": "x", "b": "y"}, {}, {}]},
        {
            "self.withUnknownList[0] != self.withUnknownList[1]": 7,
            "self.withUnknownList[1] == self.withUnknownList[2]": 7,
            "self.withUnknownList[3] == self.withUnknownList[4]": 6,
        },
    ),
    (
        fields(
            mapOfMap=mapping(mapping(TEXT)),
            mapOfListMap=mapping(keyed(KV, "k")),
            listOfMap=array(mapping(TEXT)),
            listOfListMap=array(keyed(fields(k3=TEXT, v3=TEXT), "k3")),
        ),
        {
            "mapOfMap": {"x": {"y": "b"}},
            "mapOfListMap": {"o": [{"k": "1", "v": "d"}]},
            "listOfMap": [{"z": "g"}],
            "listOfListMap": [[{"k3": "3", "v3": "i"}]],
        },
        {
            "self.mapOfMap['x']['y'] == 'b'": 5,
            "self.mapOfListMap['o'].exists(e, e.k == '1' && e.v == 'd')": 14,
            "self.listOfMap[0]['z'] == 'g'": 5,
            "self.mapOfMap.map(k, k).map(k, k).size() == 1": 32,
            "self.listOfListMap.map(e, e).map(e, e).size() == 1": 32,
            "self.mapOfMap.map(k, self.mapOfMap[k].map(m, m)).size() == 1": 34,
            "self.listOfMap.map(e, e.map(m, m)).size() == 1": 32,
        },
    ),
    (
        fields(obj=fields(field=TEXT, absentField=TEXT), m=mapping(TEXT), l=array(TEXT)),
        {"obj": {"field": "a"}, "m": {"k": "v"}, "l": ["a"]},
        {
            "optional.of('a') != optional.of('b')": 3,
            "optional.of('a') != optional.none()": 3,
            "optional.of('a').hasValue()": 2,
            "optional.of('a').or(optional.of('a')).hasValue()": 2,
            "optional.none().or(optional.of('a')).hasValue()": 3,
            "optional.of('a').optMap(v, v == 'value').hasValue()": 8,
            "self.obj.?field == optional.of('a')": 5,
            "self.obj.?absentField == optional.none()": 4,
            "self.obj.?field.orValue('v') == 'a'": 4,
            "self.m[?'k'] == optional.of('v')": 5,
            "self.l[?0] == optional.of('a')": 5,
            "optional.ofNonZeroValue(1).hasValue()": 2,
        },
    ),
    (
        numbered(TEXT, TEXT),
        values("20", "200M"),
        {
            "isQuantity(self.val1)": 3,
            "isQuantity('20Mi')": 1,
            "quantity('200M') == quantity('0.2G') && quantity('0.2G') == quantity('200M')": 6,
            "quantity(self.val1).isLessThan(quantity(self.val2))": 7,
            "quantity('200M').compareTo(quantity('0.2G')) == 0": 4,
            "quantity('50k').add(quantity('20')) == quantity('50.02k')": 5,
            "quantity('50k').sub(20) == quantity('49980')": 4,
            "quantity(self.val1).isInteger()": 4,
        },
    ),
]


def check(program: Program, given: list[Any], cost: int) -> None:
    measured = program.measure(given)
    assert measured.result() is True
    assert measured.cost == cost
    bounded = program.run_bounded(given, COST_LIMIT)
    assert (bounded.value, bounded.error) == (True, None)
    assert bounded.cost_bound >= cost
    # At the limit the rule holds, below it is cancelled, whatever generated code charges.
    assert program.run(*given, cost_limit=cost) is True
    if cost:
        with pytest.raises(CELCostError):
            program.run(*given, cost_limit=cost - 1)


@pytest.mark.parametrize(
    ("schema", "value", "rule", "cost"),
    [
        pytest.param(schema, value, rule, cost, id=rule)
        for schema, value, rules in STABLE
        for rule, cost in rules.items()
    ],
)
def test_costs_of_rules(schema: Document, value: Document, rule: str, cost: int) -> None:
    compiled = compile_rule(rule, schema, with_old_self=False)
    check(compiled.program, [compiled.converted(value)], cost)


LIBRARY: list[tuple[str, int]] = [
    ("self.l.sum() == 15", 8),
    ("self.l.isSorted()", 7),
    ("self.t.isSorted()", 7),
    ("self.l.indexOf(3) == 2", 8),
    ("self.s.indexOf('123') == 1", 8),
    ("url('https:://kubernetes.io/').getHost() == ''", 4),
    ("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 7),
    ("ip('192.168.0.1').isGlobalUnicast()", 3),
    ("ip('2001:db8:3333:4444:5555:6666:7777:8888') != ip('192.168.0.1')", 7),
    ("ip.isCanonical('192.168.0.1')", 3),
    ("cidr('192.168.0.0/16').ip() == ip('192.168.0.0')", 6),
    ("cidr('192.168.0.0/16').containsCIDR(cidr('192.168.0.0/16'))", 7),
    ("cidr('192.168.0.0/16').containsCIDR('192.168.0.0/30')", 7),
    ("cidr('192.168.0.0/16').containsIP(ip('192.168.0.1'))", 5),
    ("cidr('2001:db8::/32').containsIP('2001:db8:3333:4444:5555:6666:7777:8888')", 7),
    ("'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 9),
    ("strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')", 9),
    ("self.n.join(' ') != ''", 7),
    ("self.n.join() != ''", 5),
    ("'abc 123 def 123'.find('123') == '123'", 3),
    ("'abc 123 def 123'.findAll('123').size() == 2", 4),
    ("!format.named('dns1123Label').value().validate('my-name').hasValue()", 12),
    ("!format.named('dns1123Subdomain').value().validate('my-name').hasValue()", 19),
    ("format.named('dns1123Label').value() == format.named('dns1123Label').value()", 5),
    ("sets.contains(self.l, [2, 3])", 13),
    ("sets.equivalent(self.l, self.l)", 55),
    ("sets.intersects(self.l, [])  == false", 4),
    ("semver('1234.56789012345.67890123456789').major() == 1234", 6),
    ("{'a': 1, 'b': 2}.all(k, v, v > 0)", 11),
    ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 10),
    ("{'a': 1, 'b': 2}.existsOne(k, v, v > 1)", 8),
    ("{'a': 1, 'b': 2}.transformMap(k, v, v + 1).size() == 2", 13),
    ("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1).size() == 2", 17),
    ("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1}).size() == 2", 73),
    ("[1, 2].transformList(i, v, v + 1).size() == 2", 31),
    # A step from a computed value costs one more than from a variable.
    ("(self.l + [6])[5] == 6", 6),
    ("(self.s == '' ? self.n : self.t)[0] == 'x' || true", 5),
    ("cel.bind(x, self.s, x == x)", 9),
    ("cel.bind(x, self.s, true)", 0),
]
SUBJECT = fields(l=array(INTEGER), t=array(TEXT), n=array(TEXT), s=TEXT)
SUBJECT_VALUE = {
    "l": [1, 2, 3, 4, 5],
    "t": ["012345678901"] * 5,
    "n": ["aa", "bb", "cc", "d", "e", "f", "g", "h", "i", "j"],
    "s": "01234567890123456789012345678901234567890123456789",
}


@pytest.mark.parametrize(("rule", "cost"), LIBRARY)
def test_costs_of_libraries(rule: str, cost: int) -> None:
    compiled = compile_rule(rule, SUBJECT, with_old_self=False)
    check(compiled.program, [compiled.converted(SUBJECT_VALUE)], cost)


DEVICE = device_view(
    "gpu.example.com",
    {
        "attributes": {"model": {"string": "a100"}, "numa": {"int": 1}, "links": {"ints": [1, 2, 3]}},
        "capacity": {"memory": {"value": "40Gi"}},
    },
)
HERE = "device.attributes['gpu.example.com']"


@pytest.mark.parametrize(
    ("selector", "cost"),
    [
        ("device.driver == 'gpu.example.com'", 4),
        (f"{HERE}.model == 'a100'", 5),
        (f"{HERE}.model.startsWith('a') && {HERE}.numa >= 1", 10),
        (f"{HERE}.links.exists(link, link == 2)", 20),
        (f"{HERE}.links.includes(2)", 7),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0", 7),
        (f"'model' in {HERE} && has({HERE}.numa)", 7),
    ],
)
def test_costs_of_selectors(selector: str, cost: int) -> None:
    check(compile_device_selector(selector).program, [DEVICE], cost)
