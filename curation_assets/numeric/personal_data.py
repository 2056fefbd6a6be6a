"""Personal data in a text, by pattern: e-mail and IP addresses, telephone, card and bank account numbers."""

import re
from collections.abc import Mapping

PATTERNS: Mapping[str, str] = {
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "ip_address": r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])",
    "card_number": r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])",
    "iban": r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)",
    # with a country code, or as areas write theirs: (030) 123 456, 555-123-4567
    "phone_number": r"(?<![\w+.-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){5,12}"
    r"|\(\d{2,5}\) ?\d(?:[ -]?\d){4,9}|\d{3}[.-]\d{3}[.-]\d{4})(?![\w-])",
}


def personal_data(text: str, further: Mapping[str, str] | None = None) -> list[str]:
    """Kinds of personal data that stand in a text, each once, in the order of PATTERNS and then of `further`.

    Card numbers must pass Luhn's check and IBANs ISO 13616's (mod 97), so that most other long numbers do not count.
    Only kinds are returned, never the data. `further`: kind → regular expression.
    """
    kinds = []
    for kind, pattern in {**PATTERNS, **(further or {})}.items():
        check = _CHECKS.get(kind, lambda _: True)
        if any(check(match[0]) for match in re.finditer(pattern, text)):
            kinds.append(kind)
    return kinds


def passes_luhn(number: str) -> bool:
    """Whether a card number's last digit fits the others. Blanks and hyphens are skipped."""
    digits = [int(character) for character in number if character.isdigit()][::-1]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return len(digits) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def passes_iban(text: str) -> bool:
    """Whether the check digits of an IBAN fit: letters as 10 … 35, the first four characters last, mod 97 is 1."""
    compact = text.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1


_CHECKS = {"card_number": passes_luhn, "iban": passes_iban}
