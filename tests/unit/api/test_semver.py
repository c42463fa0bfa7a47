from itertools import pairwise

import pytest

from dray.api.semver import Semver, SemverError, is_semver


@pytest.mark.parametrize(
    "text", ["0.0.0", "1.2.3", "1.2.3-alpha.1", "1.2.3+build.5", "1.2.3-rc.1+b-1.002", "18446744073709551615.0.0"]
)
def test_round_trip(text: str) -> None:
    assert str(Semver.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Version string empty"),
        ("1.2", "No Major.Minor.Patch elements found"),
        ("v1.2.3", 'Invalid character(s) found in major number "v1"'),
        ("1.x.3", 'Invalid character(s) found in minor number "x"'),
        ("1.2.3x", 'Invalid character(s) found in patch number "3x"'),
        ("01.2.3", 'Major number must not contain leading zeroes "01"'),
        ("1.02.3", 'Minor number must not contain leading zeroes "02"'),
        ("1.2.03", 'Patch number must not contain leading zeroes "03"'),
        (".2.3", 'strconv.ParseUint: parsing "": invalid syntax'),
        ("18446744073709551616.0.0", 'strconv.ParseUint: parsing "18446744073709551616": value out of range'),
        ("1.2.3-", "Prerelease is empty"),
        ("1.2.3-01", 'Numeric PreRelease version must not contain leading zeroes "01"'),
        ("1.2.3-a_b", 'Invalid character(s) found in prerelease "a_b"'),
        ("1.2.3+", "Build meta data is empty"),
        ("1.2.3+a_b", 'Invalid character(s) found in build meta data "a_b"'),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(SemverError) as caught:
        Semver.parse(text)
    assert str(caught.value) == error
    assert not is_semver(text)


def test_precedence_of_the_specification() -> None:
    ordered = "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 2.0.0"
    versions = [Semver.parse(text) for text in ordered.split()]
    backwards = versions[::-1]
    assert sorted(backwards) == versions
    assert [a.compare(b) for a, b in pairwise(versions)] == [-1] * 8


def test_build_does_not_count() -> None:
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b")
    assert hash(Semver.parse("1.0.0+a")) == hash(Semver.parse("1.0.0"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("v1.2.3", "1.2.3"), ("1", "1.0.0"), ("1.2", "1.2.0"), ("01.02.03", "1.2.3"), ("v0.0.00-rc", "0.0.0-rc")],
)
def test_normalize(text: str, expected: str) -> None:
    assert str(Semver.parse(text, normalize=True)) == expected


def test_normalize_rejects_short_prerelease() -> None:
    assert not is_semver("1.2-rc", normalize=True)
