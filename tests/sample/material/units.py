"""Unit conversions with the rule that is used. Decimal keeps the results exact."""

# The multiplication signs are meant.
# ruff: noqa: RUF001

from decimal import Decimal

# One of the old unit, its plural, the new unit, the factor, amounts to convert.
# All factors are exact.
BY_FACTOR = [
    ("kilometre", "kilometres", "metres", "1000", ("3.5", "12")),
    ("metre", "metres", "centimetres", "100", ("1.82", "0.4")),
    ("inch", "inches", "centimetres", "2.54", ("10", "27", "55")),
    ("foot", "feet", "metres", "0.3048", ("6", "30")),
    ("mile", "miles", "kilometres", "1.609344", ("5", "26")),
    ("nautical mile", "nautical miles", "kilometres", "1.852", ("40",)),
    ("pound", "pounds", "kilograms", "0.45359237", ("10", "150")),
    ("kilogram", "kilograms", "grams", "1000", ("2.2",)),
    ("tonne", "tonnes", "kilograms", "1000", ("1.3",)),
    ("litre", "litres", "millilitres", "1000", ("0.33", "1.5")),
    ("hour", "hours", "minutes", "60", ("2.5", "7")),
    ("day", "days", "hours", "24", ("3", "14")),
    ("week", "weeks", "days", "7", ("6",)),
    ("hectare", "hectares", "square metres", "10000", ("2.4",)),
    ("metre per second", "metres per second", "kilometres per hour", "3.6", ("5", "12.5")),
    ("byte", "bytes", "bits", "8", ("512",)),
]
CELSIUS = ("-40", "20", "37", "180")
FAHRENHEIT = ("14", "77")

WORDINGS = ("Convert {0} {1} to {2}.", "How many {2} are {0} {1}?", "What is {0} {1} in {2}?")


def plain(number: Decimal) -> str:
    """Write a number without exponent or trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def conversions() -> list[tuple[str, str]]:
    out = []
    for one, old, new, factor, amounts in BY_FACTOR:
        for amount in amounts:
            exact = Decimal(amount) * Decimal(factor)
            assert exact / Decimal(factor) == Decimal(amount)
            shown = round(exact, 2)
            about = "=" if shown == exact else "≈"
            verb = "is" if shown == exact else "is about"
            question = WORDINGS[len(out) % len(WORDINGS)].format(amount, old, new)
            out.append(
                (
                    question,
                    f"One {one} is {factor} {new}, so multiply the number of {old} by {factor}. "
                    f"{amount} × {factor} {about} {plain(shown)}. The answer {verb} "
                    f"{plain(shown)} {new}.",
                )
            )
    for amount in CELSIUS:
        scaled = Decimal(amount) * Decimal("1.8")
        result = scaled + 32
        assert (result - 32) / Decimal("1.8") == Decimal(amount)
        out.append(
            (
                f"Convert {amount} °C to °F.",
                f"Multiply by 1.8 and add 32. {amount} × 1.8 = {plain(scaled)}, and "
                f"{plain(scaled)} + 32 = {plain(result)}. So {amount} °C is {plain(result)} °F.",
            )
        )
    for amount in FAHRENHEIT:
        lowered = Decimal(amount) - 32
        result = lowered / Decimal("1.8")
        assert result * Decimal("1.8") + 32 == Decimal(amount)
        out.append(
            (
                f"Convert {amount} °F to °C.",
                f"Subtract 32 and divide by 1.8. {amount} - 32 = {lowered}, and "
                f"{lowered} ÷ 1.8 = {plain(result)}. So {amount} °F is {plain(result)} °C.",
            )
        )
    return out
