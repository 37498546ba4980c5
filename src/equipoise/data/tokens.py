"""Sentences as numbers: words by their rank in the training part; 0 is padding, 1 an unknown word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError

_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """Lower-case words, apostrophes within them kept, and every other mark on its own."""
    return _WORD.findall(text.lower())


def vocabulary_of(texts: Iterable[str], size: int) -> dict[str, int]:
    """The most frequent words (ties in alphabetical order), numbered from 2, so that all numbers are below `size`."""
    if size < 3:
        raise EquipoiseError(f"vocabulary is {size}", "3 or more: padding, the unknown word, and at least one word")
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], 2)}


def encode(texts: Sequence[str], vocabulary: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """[n, length]: longer texts are cut, shorter ones padded at the end."""
    if length < 1:
        raise EquipoiseError(f"length is {length}", "1 or more words")
    rows = np.zeros((len(texts), length), np.int64)
    for row, text in zip(rows, texts, strict=True):
        known = [vocabulary.get(word, 1) for word in words(text)[:length]]
        row[: len(known)] = known
    return rows
