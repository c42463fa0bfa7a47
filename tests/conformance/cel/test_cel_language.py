"""The language definition, section by section: an expression and the value it must have.

Rows marked `error` fail at run time with the given text; rows marked `refused` do not compile.
"""

from __future__ import annotations

from typing import Any

import pytest

from dray import cel
from dray.api.quantity import Quantity
from dray.api.semver import Semver
from dray.cel import types
from dray.cel.errors import CELError, CELRuntimeError
from dray.cel.values import NONE, Duration, Optional, Timestamp, Uint

pytestmark = pytest.mark.api_cel

VARIABLES = {
    "x": types.DYN,
    "m": types.map_of(types.STRING, types.DYN),
    "l": types.list_of(types.INT),
    "s": types.STRING,
}
DATA: dict[str, Any] = {"x": 3, "m": {"a": 1, "b": {"c": [1, 2]}, "n": None}, "l": [1, 2, 3], "s": "hello"}

VALUES: list[tuple[str, Any]] = [
    # Literals
    ("1", 1),
    ("-0x1F", -31),
    ("0xFFu", Uint(255)),
    ("1.5e3", 1500.0),
    (".5", 0.5),
    ("null", None),
    (r'"\x41\u00e9\U0001F600\101\n\""', 'A\u00e9\U0001f600A\n"'),
    (r"r'\d'", r"\d"),
    ("'''a'b\nc'''", "a'b\nc"),
    (r"b'\xff\101a'", b"\xffAa"),
    ("b'é'", "é".encode()),
    ("[1, 2,]", [1, 2]),
    ("{'a': 1, 'b': 2}['b']", 2),
    ("1 // a comment\n + 1", 2),
    # Precedence and association
    ("1 + 2 * 3 - 4", 3),
    ("10 - 3 - 2", 5),
    ("-2 * -3", 6),
    ("--2", 2),
    ("!!true", True),
    ("true || false && false", True),
    ("1 < 2 == true", True),
    ("false ? 1 : true ? 2 : 3", 2),
    # Arithmetic
    ("7 / 2", 3),
    ("-7 / 2", -3),
    ("-7 % 2", -1),
    ("7 % -2", 1),
    ("5u - 3u", Uint(2)),
    ("1.0 / 0.0 == double('inf')", True),
    ("9223372036854775807 - 1", 9223372036854775806),
    ("-9223372036854775808", -9223372036854775808),
    ("'a' + 'b'", "ab"),
    ("[1] + [2]", [1, 2]),
    # Equality and order, across numeric types too
    ("1 < 1.5 && 2u > 1 && 1.0 <= 1u", True),
    ("dyn(1) == 1.0 && dyn(1u) == 1 && dyn(1) != '1'", True),
    ("dyn(true) == 1", False),
    ("dyn([1, 2]) == [1.0, 2.0]", True),
    ("dyn({'a': 1}) == {'a': 1.0}", True),
    ("double('NaN') == double('NaN')", False),
    ("[double('NaN')] == [double('NaN')]", False),
    ("null == null", True),
    ("dyn(1) == null", False),
    ("'a' < 'b' && b'a' < b'b' && false < true", True),
    # Logic absorbs errors that do not matter
    ("1 / 0 == 1 || true", True),
    ("true || 1 / 0 == 1", True),
    ("false && 1 / 0 == 1", False),
    ("1 / 0 == 1 && false", False),
    ("1 / 0 == 1 && 2 / 0 == 1 && false", False),
    ("[1, 0].exists(e, 10 / e == 10)", True),
    ("[0, 1].exists(e, 10 / e == 10)", True),
    ("[0, 2].all(e, 10 / e == 10)", False),
    ("{'a': 0, 'b': 2}.exists(k, v, 4 / v == 2)", True),
    ("x == 3 ? 'yes' : string(1 / 0)", "yes"),
    # Membership and selection
    ("2 in l && !(9 in l)", True),
    ("dyn(2.0) in l", True),
    ("'a' in m && !('z' in m)", True),
    ("has(m.a) && !has(m.z) && has(m.n)", True),
    ("has(m.b.c)", True),
    ("m.b.c[1]", 2),
    ("{1: 'one'}[dyn(1u)]", "one"),
    ("{true: 'yes', false: 'no'}[false]", "no"),
    ("{true: 1}.map(k, k)", [True]),
    ("l[dyn(1.0)]", 2),
    # Macros
    ("l.all(e, e > 0)", True),
    ("l.exists_one(e, e > 2) && !l.existsOne(e, e > 1)", True),
    ("l.map(e, e * e)", [1, 4, 9]),
    ("l.map(e, e > 1, e * 10)", [20, 30]),
    ("l.filter(e, e % 2 == 1)", [1, 3]),
    ("[].all(e, e > 0) && ![].exists(e, e > 0)", True),
    ("l.map(e, l.map(f, e * f))", [[1, 2, 3], [2, 4, 6], [3, 6, 9]]),
    ("l.all(i, e, e == i + 1)", True),
    ("l.exists(i, e, i == 2 && e == 3)", True),
    ("l.existsOne(i, e, e > 2)", True),
    ("l.transformList(i, e, i * e)", [0, 2, 6]),
    ("l.transformList(i, e, i > 0, e)", [2, 3]),
    ("{'a': 1}.transformMap(k, v, k + string(v))", {"a": "a1"}),
    ("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v * 2)", {"b": 4}),
    ("l.transformMap(i, e, e)", {0: 1, 1: 2, 2: 3}),
    ("{'a': 'x'}.transformMapEntry(k, v, {v: k})", {"x": "a"}),
    ("cel.bind(a, 1 + 1, a * a)", 4),
    ("cel.bind(a, 1, cel.bind(b, a + 1, a + b))", 3),
    ("cel.bind(unused, 1 / 0, 5)", 5),
    ("l.map(x, x + 1)", [2, 3, 4]),
    # Types and conversions
    ("type(1) == int && type(1u) == uint && type('') == string && type(null) == null_type", True),
    ("type([]) == list && type({}) == map && type(int) == type", True),
    ("type(timestamp(0)) == google.protobuf.Timestamp", True),
    ("int('-5') + int(2.9) + int(3u)", 0),
    ("uint(5) + uint('6')", Uint(11)),
    ("double('1e3') + double(1)", 1001.0),
    ("string(1.0) + string(true) + string(5u) + string(b'a')", "1true5a"),
    ("string(1000000.0)", "1e+06"),
    ("bool('t') && !bool('FALSE')", True),
    ("bytes('é')", "é".encode()),
    ("size('é') == 1 && size(b'é') == 2 && {'a': 1}.size() == 1", True),
    # Time
    ("duration('1h') + duration('30m')", Duration(5400 * 10**9)),
    ("timestamp('2023-01-01T00:00:00Z') - timestamp('2022-12-31T23:00:00Z') == duration('1h')", True),
    ("timestamp('2023-05-06T07:08:09.5+02:00')", Timestamp(1683349689_500_000_000)),
    ("string(timestamp('2023-05-06T07:08:09.500Z'))", "2023-05-06T07:08:09.5Z"),
    ("string(duration('1.5s'))", "1.5s"),
    ("timestamp('2023-05-06T07:08:09.123Z').getMilliseconds()", 123),
    ("timestamp('2023-05-06T07:08:09Z').getHours('America/New_York')", 3),
    ("timestamp('2023-05-06T07:08:09Z').getHours('+05:30')", 12),
    ("timestamp('2023-05-06T07:08:09Z').getDayOfWeek()", 6),
    ("timestamp('2023-05-06T07:08:09Z').getDayOfYear()", 125),
    ("timestamp('2023-05-06T07:08:09Z').getDayOfMonth() + timestamp('2023-05-06T07:08:09Z').getDate()", 11),
    ("duration('90m').getHours() * 1000 + duration('90m').getMinutes()", 1090),
    ("int(timestamp('1970-01-01T00:01:00Z'))", 60),
    # Optionals
    ("m.?a.orValue(0) + m.?z.orValue(10)", 11),
    ("m.?b.?c[?1].value()", 2),
    ("m[?'z'].hasValue()", False),
    ("l[?5].or(l[?0])", Optional(1)),
    ("optional.of(1).or(optional.of(1 / 0)).value()", 1),
    ("[?optional.none(), ?optional.of(2), 3]", [2, 3]),
    ("{?'a': optional.none(), ?'b': m.?a}", {"b": 1}),
    ("optional.of(2).optMap(v, v * 2).value()", 4),
    ("optional.none().optMap(v, v * 2)", NONE),
    ("optional.of(2).optFlatMap(v, l[?v]).value()", 3),
    ("optional.ofNonZeroValue('').hasValue() || optional.ofNonZeroValue([]).hasValue()", False),
    ("l.first().value() + l.last().value()", 4),
    ("optional.unwrap([optional.of(1), optional.none()])", [1]),
    # Strings
    ("'hello'.charAt(1) + 'hello'.charAt(5)", "e"),
    ("'hello'.indexOf('l') * 100 + 'hello'.lastIndexOf('l')", 203),
    ("'hello'.indexOf('l', 3) + 'hello'.indexOf('z')", 2),
    ("'HeLLo é'.lowerAscii() + 'é'.upperAscii()", "hello éé"),
    ("'a-b-c'.replace('-', '+') + 'aaa'.replace('a', 'b', 2)", "a+b+cbba"),
    ("'ab'.replace('', '_')", "_a_b_"),
    ("'a,b,c'.split(',')", ["a", "b", "c"]),
    ("'a,b,c'.split(',', 2)", ["a", "b,c"]),
    ("'abc'.split('', 2)", ["a", "bc"]),
    ("'abc'.split(',', 0)", []),
    ("'hello'.substring(1) + 'hello'.substring(1, 3)", "elloel"),
    ("'  \\t x \\n'.trim()", "x"),
    ("['a', 'b'].join() + ['a', 'b'].join('-')", "aba-b"),
    ("strings.quote('a\"b\\n')", '"a\\"b\\n"'),
    # Values in lists and maps are printed as literals, doubles with six digits.
    (
        "'%s'.format([[1, 'a\\n', {'k': true, 'b': 2u}, null, duration('1s'), 1.5, b'x', double('NaN'), int]])",
        '[1, "a\\n", {"b":2, "k":true}, null, duration("1s"), 1.500000, b"x", "NaN", int]',
    ),
    ("'%s %s %s'.format([1.5, 'a', timestamp(0)])", "1.5 a 1970-01-01T00:00:00Z"),
    ("'%f|%.2f|%.0f'.format([1234567.5, -1234.567, 2.5])", "1,234,567.500000|-1,234.57|2"),
    ("'%e|%e'.format([0.00123, -52.0])", "1.230000\u202f\u00d7\u202f10⁻⁰³|-5.200000\u202f\u00d7\u202f10⁰¹"),
    ("'%f %e'.format(['NaN', '-Infinity'])", "NaN -∞"),
    ("'%b %b %o %x %X'.format([5, true, 8u, 'hi', b'\\xff'])", "101 1 10 6869 FF"),
    # Positions beyond the end.
    ("'tacocat'.indexOf('a', 99) == -1 && 'tacocat'.lastIndexOf('a', 99) == -1", True),
    ("'tacocat'.indexOf('', 99) == 99", True),
    # Kubernetes' types: equal only to their like; a value of another type on the left asks nobody.
    ("dyn(semver('1.0.0')) == semver('1.0.0+build')", True),
    ("dyn('1.0.0') == semver('1.0.0') || dyn(1) == quantity('1')", False),
    ("dyn(semver('1.0.0')) != '1.0.0' && dyn(quantity('1')) != 1 && dyn(ip('1.1.1.1')) != 'x'", True),
    ("dyn(semver('1.0.0')) == null || dyn(quantity('1')) == null", False),
    ("'1.0.0' in [dyn(semver('1.0.0'))] || semver('1.0.0') in [dyn('1.0.0')]", False),
    ("sign(quantity('-3')) == -1 && quantity('2').sign() == 1", True),
    ("isURL('https://a.com/with space?q=a b') && !isURL('https://a b.com/')", True),
    ("url('https://a.com/with space').getEscapedPath()", "/with%20space"),
    # Integers are rounded to doubles before they are compared.
    ("9223372036854775807 < 9223372036854775808.0 || 9223372036854775807 > 9223372036854775806.0", False),
    ("dyn(9223372036854775807) == 9223372036854775808.0 && dyn(18446744073709551615u) == 18446744073709551616.0", True),
    ("'abc'.contains('b') && 'abc'.startsWith('ab') && 'abc'.endsWith('bc')", True),
    ("'abc'.matches('^[a-c]+$') && matches('x', 'x|y')", True),
    # Lists and sets
    ("[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sort() == ['a', 'b']", True),
    ("['ccc', 'a', 'bb'].sortBy(e, size(e))", ["a", "bb", "ccc"]),
    ("[1, 2, 3, 4].slice(1, 3)", [2, 3]),
    ("[[1], [2, 3]].flatten()", [1, 2, 3]),
    ("[[[1]], [[2]]].flatten(2)", [1, 2]),
    ("lists.range(4)", [0, 1, 2, 3]),
    ("[1, 2].reverse()", [2, 1]),
    ("[1, 2, 1].distinct()", [1, 2]),
    ("[1, 2].isSorted() && ![2, 1].isSorted()", True),
    ("[1, 2].sum() + [1, 2].min() + [1, 2].max()", 6),
    ("[1.5, 2.0].sum()", 3.5),
    ("[1, 2, 1].indexOf(1) * 10 + [1, 2, 1].lastIndexOf(1)", 2),
    ("sets.contains([1, 2], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 1], [1])", True),
    # Regular expressions
    ("'abc 123'.find('[0-9]+')", "123"),
    ("'a1b22'.findAll('[0-9]+')", ["1", "22"]),
    ("'123'.findAll('[0-9]', 2)", ["1", "2"]),
    ("'x'.find('y')", ""),
    # Quantities and versions
    ("quantity('1.5Gi')", Quantity.parse("1536Mi")),
    ("isQuantity('1Gi') && !isQuantity('1GG')", True),
    ("quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1').isLessThan(quantity('2'))", True),
    ("quantity('1k').compareTo(quantity('1000')) + quantity('-1').sign()", -1),
    ("quantity('50k').asInteger() + quantity('1').add(2).sub(quantity('1')).asInteger()", 50002),
    ("quantity('50.7').asApproximateFloat()", 50.7),
    ("quantity('50.7').isInteger()", False),
    ("quantity('1Ki') == quantity('1024')", True),
    ("semver('1.2.3')", Semver(1, 2, 3)),
    ("semver('1.2.3').major() * 100 + semver('1.2.3').minor() * 10 + semver('1.2.3').patch()", 123),
    ("semver('1.2.3-rc.1').compareTo(semver('1.2.3'))", -1),
    ("semver('v1.2', true) == semver('1.2.0') && !isSemver('v1.2')", True),
    # Networks, URLs, formats
    ("ip('10.0.0.1').family() == 4 && ip('::1').isLoopback()", True),
    ("isIP('10.0.0.01') || isIP('::ffff:10.0.0.1') || isIP('fe80::1%eth0')", False),
    ("ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1')", True),
    ("string(ip('2001:DB8:0::1'))", "2001:db8::1"),
    ("cidr('10.1.2.3/8').containsIP('10.9.9.9') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", True),
    ("string(cidr('10.1.2.3/8').masked()) + ' ' + string(cidr('10.1.2.3/8').ip())", "10.0.0.0/8 10.1.2.3"),
    ("cidr('10.1.2.3/8').prefixLength()", 8),
    ("isCIDR('10.0.0.0/33') || isCIDR('10.0.0.0')", False),
    ("url('https://example.com:80/p%20q?k=v').getHost()", "example.com:80"),
    ("url('https://[::1]:80/').getHostname() + url('https://a:81/x').getPort()", "::181"),
    ("url('https://example.com/p%20q').getEscapedPath()", "/p%20q"),
    ("url('/path?k=a&k=b').getQuery()", {"k": ["a", "b"]}),
    ("isURL('https://example.com') && !isURL('example.com') && !isURL('../x')", True),
    ("format.named('dns1123Label').value().validate('ok').hasValue()", False),
    ("format.dns1035Label().validate('1a').value().size()", 1),
    ("format.named('none').hasValue()", False),
]

ERRORS: list[tuple[str, str]] = [
    ("9223372036854775807 + 1", "integer overflow"),
    ("-9223372036854775808 - 1", "integer overflow"),
    ("9223372036854775807 * 2", "integer overflow"),
    ("-(-9223372036854775808)", "integer overflow"),
    ("-9223372036854775808 / -1", "integer overflow"),
    ("0u - 1u", "unsigned integer overflow"),
    ("1 / 0", "division by zero"),
    ("1 % 0", "modulus by zero"),
    ("m.z", "no such key: z"),
    ("m['z']", "no such key: z"),
    ("l[3]", "index out of bounds: 3"),
    ("l[-1]", "index out of bounds: -1"),
    ("x + 'a'", "no such overload"),
    ("x.a", "no such overload"),
    ("x && true", "no such overload"),
    ("x.all(e, true)", "got 'types.Int', expected iterable type"),
    ("{'a': 1, 'a': 2}", "insert failed: key a already exists"),
    ("{1.5: 1}", "unsupported key type: double"),
    ("int('x' + '')", "type conversion error from 'string' to 'int'"),
    ("int(1e30 + 0.0)", "integer overflow"),
    ("uint(0 - 1)", "unsigned integer overflow"),
    ("string(b'\\xff' + b'')", "invalid UTF-8 in bytes, cannot convert to string"),
    ("duration('x' + '')", "type conversion error from 'string' to 'google.protobuf.Duration'"),
    ("timestamp('2023-02-30' + 'T00:00:00Z')", "type conversion error from 'string' to 'google.protobuf.Timestamp'"),
    ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "range error: timestamp overflow"),
    ("timestamp(0).getHours('Nowhere/Land')", "unknown time zone Nowhere/Land"),
    ("optional.none().value()", "optional.none() dereference"),
    ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
    ("'abc'.charAt(4)", "index out of range: 4"),
    ("dyn(semver('1.0.0')) == '1.0.0'", "no such overload"),
    ("!(dyn(quantity('1')) == 1)", "no such overload"),
    ("dyn(ip('1.1.1.1')) == '1.1.1.1'", "no such overload"),
    ("'a'.indexOf('a', -1) == 0", "index out of range: -1"),
    (
        "('%' + 'f').format([1])",
        "error during formatting: fixed-point clause can only be used on doubles, was given int",
    ),
    ("'%s'.format([[optional.of(1)]] + [])", "error during formatting: no formatting function for optional_type"),
    (
        "('%' + 'd').format(['a'])",
        "error during formatting: decimal clause can only be used on integers, was given string",
    ),
    ("('%' + 's').format([])", "index 0 out of range"),
    ("('%' + 'z').format([1])", 'could not parse formatting clause: unrecognized formatting clause "z"'),
    ("'a'.matches('[' + '')", "error parsing regexp"),
    ("l.filter(e, false).min()", "min called on empty list"),
    ("quantity('1GG')", "unable to parse quantity's suffix"),
    ("quantity('1.5').asInteger()", "cannot convert value to integer"),
    ("semver('1.2')", "No Major.Minor.Patch elements found"),
    ("ip('1.2.3')", 'IP Address "1.2.3" parse error during conversion from string'),
    ("url('foo')", 'URL parse error during conversion from string: parse "foo": invalid URI for request'),
    ("[1].slice(0, 2)", "cannot slice(0, 2), list is length 1"),
]

REFUSED: list[tuple[str, str]] = [
    # Literals that can never work.
    ("'a'.matches('[')", "ERROR: <input>:1:13: invalid matches argument"),
    ("duration('1d') > duration('1s')", "ERROR: <input>:1:10: invalid duration argument"),
    ("timestamp('2023-02-30T00:00:00Z')", "ERROR: <input>:1:11: invalid timestamp argument"),
    ("true || int('abc') == 1", "program instantiation failed: type conversion error from 'string' to 'int'"),
    ("uint(-1) == 0u", "program instantiation failed: unsigned integer overflow"),
    ("int(string('x'))", "program instantiation failed: type conversion error from 'string' to 'int'"),
    ("s.find('[') == ''", "program instantiation failed: error parsing regexp"),
    (
        "'%d'.format(['a'])",
        "ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given string",
    ),
    ("'%s'.format([])", "ERROR: <input>:1:12: index 0 out of range"),
    ("'a'.format([1, 2])", "too many arguments supplied to string.format (expected 0, got 2)"),
    ("'%s'.format([[1, [optional.of(1)]]])", "and timestamps, was given optional_type"),
    ("'%z'.format([1])", 'could not parse formatting clause: unrecognized formatting clause "z"'),
    ("'%.f'.format([1]) + '%.'.format([1])", "could not find end of precision specifier"),
    ("y", "1:1: undeclared reference to 'y' (in container '')"),
    ("1 == 'a'", "1:3: found no matching overload for '_==_' applied to '(int, string)'"),
    ("1 + 1.0", "1:3: found no matching overload for '_+_' applied to '(int, double)'"),
    ("s.nope()", "1:7: undeclared reference to 'nope' (in container '')"),
    ("s.size(1)", "1:7: found no matching overload for 'size' applied to 'string.(int)'"),
    ("s.x", "1:2: type 'string' does not support field selection"),
    ("[1, 'a']", "1:5: expected type 'int' but found 'string'"),
    ("{'a': 1, 'b': 'c'}", "1:15: expected type 'int' but found 'string'"),
    (
        "s.all(e, true)",
        "1:1: expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)",
    ),
    ("l.all(e, e)", "1:6: found no matching overload for '_&&_' applied to '(bool, int)'"),
    ("1 ? 2 : 3", "1:3: found no matching overload for '_?_:_' applied to '(int, int, int)'"),
    ("true ? 1 : 'a'", "1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
    ("1 && true", "1:3: found no matching overload for '_&&_' applied to '(int, bool)'"),
    ("l.all(1, true)", "1:7: argument must be a simple name"),
    ("has(s)", "1:5: invalid argument to has() macro"),
    ("if", "1:1: reserved identifier: if"),
    ("9223372036854775808", "1:1: invalid int literal"),
    ("18446744073709551616u", "1:1: invalid uint literal"),
    ("1e999", "1:1: invalid double literal"),
    ("Message{field: 1}", "undeclared reference to 'Message' (in container '')"),
    ("1 +", "1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '('"),
    ("1 2", "1:3: Syntax error: extraneous input '2' expecting <EOF>"),
    ("(1", "1:3: Syntax error: missing ')' at '<EOF>'"),
    ("[1 2]", "1:4: Syntax error: extraneous input '2' expecting {']', ','}"),
    ("1 $ 2", "1:3: Syntax error: token recognition error at: '$'"),
    ("x.", "1:3: Syntax error: no viable alternative at input '.'"),
    ("x ? 1", "1:6: Syntax error: mismatched input '<EOF>' expecting ':'"),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES)
def test_value(expression: str, expected: Any) -> None:
    result = cel.compile_program(expression, VARIABLES).evaluate(DATA)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(("expression", "message"), ERRORS)
def test_run_time_error(expression: str, message: str) -> None:
    program = cel.compile_program(expression, VARIABLES)
    with pytest.raises(CELRuntimeError) as failed:
        program.evaluate(DATA)
    assert message in str(failed.value)


@pytest.mark.parametrize(("expression", "message"), REFUSED)
def test_rejected(expression: str, message: str) -> None:
    with pytest.raises(CELError) as refused:
        cel.compile_program(expression, VARIABLES)
    assert message in str(refused.value)


def test_format_verbs() -> None:
    expression = "'%s %d %.1f %e %b %x %X %o %%'.format(['a', 5, 2.25, 12.0, 5, 255, 'hi', 8])"
    assert cel.compile_program(expression).evaluate({}) == "a 5 2.2 1.200000\u202f\u00d7\u202f10⁰¹ 101 ff 6869 10 %"


def test_every_issue_is_reported_in_source_order() -> None:
    with pytest.raises(CELError) as refused:
        cel.compile_program("y == z")
    assert str(refused.value) == (
        "ERROR: <input>:1:1: undeclared reference to 'y' (in container '')\n | y == z\n | ^\n"
        "ERROR: <input>:1:6: undeclared reference to 'z' (in container '')\n | y == z\n | .....^"
    )


def test_the_caret_stands_under_wide_characters() -> None:
    with pytest.raises(CELError) as refused:
        cel.compile_program("true &&\n\t'é' == 1")
    assert str(refused.value) == (
        "ERROR: <input>:2:6: found no matching overload for '_==_' applied to '(string, int)'\n"
        " |  'é' == 1\n | ..\uff0e..^"
    )
