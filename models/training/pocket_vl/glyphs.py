"""Digits and capital letters as dots, 5 wide and 7 high, so that no font of the machine is needed."""

from __future__ import annotations

import functools

import numpy as np

WIDTH, HEIGHT = 5, 7
_ROWS = {  # one hexadecimal pair a row, from the top; bit 4 is the left dot
    "0": "0E 11 13 15 19 11 0E", "1": "04 0C 04 04 04 04 0E", "2": "0E 11 01 02 04 08 1F",
    "3": "1F 02 04 02 01 11 0E", "4": "02 06 0A 12 1F 02 02", "5": "1F 10 1E 01 01 11 0E",
    "6": "06 08 10 1E 11 11 0E", "7": "1F 01 02 04 08 08 08", "8": "0E 11 11 0E 11 11 0E",
    "9": "0E 11 11 0F 01 02 0C", "A": "0E 11 11 1F 11 11 11", "B": "1E 11 11 1E 11 11 1E",
    "C": "0E 11 10 10 10 11 0E", "D": "1C 12 11 11 11 12 1C", "E": "1F 10 10 1E 10 10 1F",
    "F": "1F 10 10 1E 10 10 10", "G": "0E 11 10 17 11 11 0F", "H": "11 11 11 1F 11 11 11",
    "I": "0E 04 04 04 04 04 0E", "J": "07 02 02 02 02 12 0C", "K": "11 12 14 18 14 12 11",
    "L": "10 10 10 10 10 10 1F", "M": "11 1B 15 15 11 11 11", "N": "11 11 19 15 13 11 11",
    "O": "0E 11 11 11 11 11 0E", "P": "1E 11 11 1E 10 10 10", "Q": "0E 11 11 11 15 12 0D",
    "R": "1E 11 11 1E 14 12 11", "S": "0F 10 10 0E 01 01 1E", "T": "1F 04 04 04 04 04 04",
    "U": "11 11 11 11 11 11 0E", "V": "11 11 11 11 11 0A 04", "W": "11 11 11 15 15 15 0A",
    "X": "11 11 0A 04 0A 11 11", "Y": "11 11 11 0A 04 04 04", "Z": "1F 01 02 04 08 10 1F",
}  # fmt: skip


@functools.cache
def glyph(character: str) -> np.ndarray:
    """Dots of one character, bool [7, 5]."""
    rows = np.array([int(row, 16) for row in _ROWS[character].split()])
    return (rows[:, None] >> np.arange(WIDTH - 1, -1, -1) & 1).astype(bool)


def text_mask(text: str, scale: int) -> np.ndarray:
    """A line of text, bool [7·scale, (6·len − 1)·scale]: each dot is a square, one column between characters."""
    gap = np.zeros((HEIGHT, 1), bool)
    parts = [part for character in text for part in (glyph(character), gap)][:-1]
    return np.repeat(np.repeat(np.concatenate(parts, axis=1), scale, axis=0), scale, axis=1)
