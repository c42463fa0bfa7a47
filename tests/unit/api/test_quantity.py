import pytest

from dray.api.quantity import Format, Quantity, QuantityError, is_quantity

FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SUFFIX = "unable to parse quantity's suffix"
NUMERIC = "unable to parse numeric part of quantity"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("100m", "100m"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("0.1", "100m"),
        (".5", "500m"),
        ("1.", "1"),
        ("1024Mi", "1Gi"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1023Ki", "1023Ki"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("0.5Mi", "512Ki"),
        ("-1.5Gi", "-1536Mi"),
        ("+5", "5"),
        ("+", "0"),
        ("0.0000000001", "1n"),
        ("-0.0000000001", "-1n"),
        ("1.00000000000001", "1000000001n"),
        ("12e6", "12e6"),
        ("1e-3", "1e-3"),
        ("10e4", "100e3"),
        ("1e0", "1"),
        ("0.1Ki", "102400m"),
        ("100Ei", "9223372036854775807"),
        ("1E", "1E"),
        ("1000E", "1000E"),
        ("1e-2000", "1e-9"),
        ("00012", "12"),
        ("123456789012345678901234567890", "123456789012345678901234567890".removesuffix("0") + "0"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical
    assert Quantity.parse(str(Quantity.parse(text))) == Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FORMAT),
        ("1.2.3", FORMAT),
        ("1 Gi", FORMAT),
        ("\u0661", FORMAT),
        ("1Gi5x", FORMAT),
        ("1" * 2000, FORMAT),
        ("1iG", SUFFIX),
        ("1ki", SUFFIX),
        ("1K", SUFFIX),
        ("1e", SUFFIX),
        ("1e2147483646", SUFFIX),
        ("1Gi5", SUFFIX),
        ("Gi", NUMERIC),
        (".", NUMERIC),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert str(caught.value) == error
    assert not is_quantity(text)


def test_numbers_are_accepted() -> None:
    assert Quantity.parse(3) == Quantity.parse("3")
    assert Quantity.parse(0.5) == Quantity.parse("500m")
    assert Quantity.parse(1e16) == Quantity.parse("10P")
    with pytest.raises(QuantityError):
        Quantity.parse(float("nan"))
    with pytest.raises(QuantityError):
        Quantity.parse(True)


def test_equal_amounts_are_equal_and_have_equal_hashes() -> None:
    assert Quantity.parse("1Ki") == Quantity.parse("1024") == Quantity.parse("1.024e3")
    assert len({Quantity.parse("1Ki"), Quantity.parse("1024")}) == 1
    assert Quantity.parse("1Gi") > Quantity.parse("1G")
    assert Quantity.parse("-1") < Quantity.parse("0")


def test_arithmetic_keeps_the_format_of_the_left() -> None:
    assert str(Quantity.parse("1Gi") + Quantity.parse("1Mi")) == "1025Mi"
    assert str(Quantity.parse("1Gi") - Quantity.parse("2Gi")) == "-1Gi"
    assert str(Quantity.parse("0") + Quantity.parse("1Gi")) == "1Gi"
    assert str(-Quantity.parse("1Gi")) == "-1Gi"
    assert (Quantity.parse("0") + Quantity.parse("1Gi")).format is Format.BINARY_SI


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [("1.5", 2, 1500), ("-1.5", -2, -1500), ("100m", 1, 100), ("1u", 1, 1), ("2Ki", 2048, 2048000), ("0", 0, 0)],
)
def test_rounded_values(text: str, value: int, milli: int) -> None:
    assert Quantity.parse(text).value() == value
    assert Quantity.parse(text).milli_value() == milli


def test_integers() -> None:
    assert Quantity.parse("50k").as_integer() == 50_000
    assert not Quantity.parse("50m").is_integer()
    assert Quantity.parse("9223372036854775807").is_integer()
    with pytest.raises(QuantityError, match="cannot convert value to integer"):
        Quantity.parse("9223372036854775808").as_integer()
    assert Quantity.parse("50.5").as_float() == 50.5
    assert [Quantity.parse(text).sign for text in ("-1", "0", "1n")] == [-1, 0, 1]
    assert not Quantity.parse("0")
