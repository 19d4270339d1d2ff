# SPDX-License-Identifier: Apache-2.0
"""Write catalog/accuracy/sanity.jsonl: 300 small items of our own making, always the same.

    .venv/bin/python -m catalog.tools.sanity > catalog/accuracy/sanity.jsonl

An item has id, category, prompt and the accepted answers; plugin_utils/measuring/accuracy/scoring.py has the rule of
each category. Two examples lead a model to the form of the answer, so that base models can be asked, too.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator

SEED = 13
Made = tuple[str, list[str]]
"""A question and its accepted answers."""

_WORDS = (
    "apple bridge candle desert engine forest garden hammer island jacket kettle ladder marble needle orange pencil "
    "quartz ribbon silver tunnel umbrella valley window yellow zebra anchor basket copper dragon feather"
)
WORDS = _WORDS.split()
TRANSLATIONS = {
    "German": {
        "water": "Wasser", "house": "Haus", "bread": "Brot", "tree": "Baum", "night": "Nacht", "milk": "Milch",
        "book": "Buch", "hand": "Hand", "fire": "Feuer", "winter": "Winter", "green": "grün", "seven": "sieben",
        "dog": "Hund", "mother": "Mutter", "white": "weiß", "gold": "Gold",
    },
    "French": {
        "water": "eau", "house": "maison", "bread": "pain", "tree": "arbre", "night": "nuit", "milk": "lait",
        "book": "livre", "hand": "main", "fire": "feu", "winter": "hiver", "green": "vert", "seven": "sept",
        "dog": "chien", "mother": "mère", "white": "blanc", "gold": "or",
    },
    "Spanish": {
        "water": "agua", "house": "casa", "bread": "pan", "tree": "árbol", "night": "noche", "milk": "leche",
        "book": "libro", "hand": "mano", "fire": "fuego", "winter": "invierno", "green": "verde", "seven": "siete",
        "dog": "perro", "mother": "madre", "white": "blanco", "gold": "oro",
    },
}  # fmt: skip
_MONTHS = "January February March April May June July August September October November December"
MONTHS = _MONTHS.split()


def addition(rng: random.Random) -> Made:
    one, two = rng.randint(12, 899), rng.randint(12, 99)
    return f"What is {one} + {two}?", [str(one + two)]


def subtraction(rng: random.Random) -> Made:
    one, two = rng.randint(100, 999), rng.randint(11, 99)
    return f"What is {one} - {two}?", [str(one - two)]


def multiplication(rng: random.Random) -> Made:
    one, two = rng.randint(3, 19), rng.randint(3, 12)
    return f"What is {one} * {two}?", [str(one * two)]


def copying(rng: random.Random) -> Made:
    text = (
        " ".join(rng.sample(WORDS, 4))
        if rng.random() < 0.5
        else "".join(rng.choices("abcdefghkmnpqrstuvwxyz", k=8))
    )
    return f"Repeat exactly: {text}", [text]


def counting(rng: random.Random) -> Made:
    count = rng.randint(2, 9)
    return f"How many words are in this list: {', '.join(rng.sample(WORDS, count))}?", [str(count)]


def sorting_numbers(rng: random.Random) -> Made:
    numbers = rng.sample(range(1, 100), 5)
    return (
        f"Sort from smallest to largest: {', '.join(map(str, numbers))}",
        [", ".join(map(str, sorted(numbers)))],
    )


def sorting_words(rng: random.Random) -> Made:
    words = rng.sample(WORDS, 4)
    return f"Sort alphabetically: {', '.join(words)}", [", ".join(sorted(words))]


def reversal(rng: random.Random) -> Made:
    words = rng.sample(WORDS, 4)
    return f"Write the list backwards: {', '.join(words)}", [", ".join(reversed(words))]


def comparison(rng: random.Random) -> Made:
    one, two = rng.sample(range(100, 10000), 2)
    return f"Which is larger, {one} or {two}?", [str(max(one, two))]


def sequence(rng: random.Random) -> Made:
    first, step = rng.randint(1, 40), rng.randint(2, 12)
    shown = [first + step * number for number in range(5)]
    return f"Continue the sequence: {', '.join(map(str, shown))},", [str(first + step * 5)]


def translation(rng: random.Random) -> Made:
    language = rng.choice(sorted(TRANSLATIONS))
    word = rng.choice(sorted(TRANSLATIONS[language]))
    return f"Translate to {language}, one word only: {word}", [TRANSLATIONS[language][word]]


def lookup(rng: random.Random) -> Made:
    names, prices = rng.sample(WORDS, 4), rng.sample(range(2, 99), 4)
    wanted = rng.randrange(4)
    table = ", ".join(f"{name} {price}" for name, price in zip(names, prices, strict=True))
    return f"Prices: {table}. What is the price of {names[wanted]}?", [str(prices[wanted])]


def uppercase(rng: random.Random) -> Made:
    word = rng.choice(WORDS)
    return f"Write in capital letters: {word}", [word.upper()]


def as_json(rng: random.Random) -> Made:
    key, value = rng.choice(WORDS), rng.randint(1, 99)
    pattern = rf'\{{\s*"{key}"\s*:\s*{value}\s*\}}'
    return f"Write a JSON object with the key {key} and the number {value}, in one line.", [pattern]


def date(rng: random.Random) -> Made:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1950, 2030)
    return f"Write as YYYY-MM-DD: {MONTHS[month - 1]} {day}, {year}", [f"{year}-{month:02}-{day:02}"]


COUNTS: dict[Callable[[random.Random], Made], int] = {
    addition: 30, subtraction: 24, multiplication: 24, copying: 24, counting: 20, sorting_numbers: 22,
    sorting_words: 18, reversal: 18, comparison: 18, sequence: 20, translation: 30, lookup: 20, uppercase: 10,
    as_json: 12, date: 10,
}  # fmt: skip


def items() -> Iterator[dict[str, object]]:
    """Yield the items, each question once."""
    for make, count in COUNTS.items():
        category = make.__name__
        rng = random.Random(f"{SEED} {category}")
        examples = [_distinct(make, rng, set()) for _example in range(2)]
        asked = {question for question, _answers in examples}
        start = "".join(f"Q: {question}\nA: {_shown(category, answers)}\n" for question, answers in examples)
        for number in range(count):
            question, accepted = _distinct(make, rng, asked)
            asked.add(question)
            yield {
                "id": f"{category}-{number:02}",
                "category": category,
                "prompt": f"{start}Q: {question}\nA:",
                "accepted": accepted,
            }


def _distinct(make: Callable[[random.Random], Made], rng: random.Random, asked: set[str]) -> Made:
    while True:
        made = make(rng)
        if made[0] not in asked:
            return made


def _shown(category: str, answers: list[str]) -> str:
    """Return the answer of an example: of a pattern, the text that it stands for."""
    if category != "as_json":
        return answers[0]
    return answers[0].replace(r"\{\s*", "{").replace(r"\s*\}", "}").replace(r"\s*:\s*", ": ")


if __name__ == "__main__":
    for item in items():
        sys.stdout.write(json.dumps(item, ensure_ascii=False) + "\n")
