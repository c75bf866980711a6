"""Numbers as people write them."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Reads a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """Like `positive`, or 0."""
    return _at_least(0, text)


def percentage(text: str) -> float:
    """Reads a number from 0 to 100.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100")
    return number


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)
