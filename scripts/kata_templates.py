"""The 24 templates behind `pipelines/tasks/katas`: an instruction, a right body, three plausible wrong ones, and inputs.

A template is text with parameters; `draw_kata` fills them from a random generator. Whoever writes task folders
(`make_katas.py`) and whoever writes demonstrations (`demonstrations.py`) draws here, so the two speak of the same work. Wrong
bodies are mistakes one could make reading the instruction (a swapped sign, the wrong end of a list), so that some cases still
pass: partial credit is what a small policy learns from.
"""

# ruff: noqa: E501  (the table of templates reads best one to a line)

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = "abcdeorstu"
WORDS = ("tea", "boat", "cedar", "stereo", "tot", "road", "sauce", "rust", "abacus", "odd", "restore", "bee")


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """One family of katas. `{a}`, `{b}` are numbers from 2 to 9, `{c}`, `{d}` different letters."""

    family: str
    """Name of the family, unique."""
    signature: str
    """Parameters of `solve`, e.g. `x, y`; they also tell what inputs to draw."""
    says: str
    """Instruction after `solve(…): `."""
    right: str
    """Expression that solves it."""
    wrong: tuple[str, str, str]
    """Plausible mistakes."""


TEMPLATES: tuple[Template, ...] = tuple(
    Template(family=family, signature=signature, says=says, right=right, wrong=wrong)
    for family, signature, says, right, wrong in (
        ("times_plus", "x", "x times {a} plus {b}", "x * {a} + {b}", ("x * {a} - {b}", "x + {a} + {b}", "x * {b} + {a}")),
        ("minus_times", "x", "x minus {a} then times {b}", "(x - {a}) * {b}", ("x - {a} * {b}", "(x + {a}) * {b}", "(x - {b}) * {a}")),
        ("square_plus", "x", "square of x plus {a}", "x * x + {a}", ("x * 2 + {a}", "x * x - {a}", "(x + {a}) * (x + {a})")),
        ("remainder", "x", "remainder of x divided by {a}, plus {b}", "x % {a} + {b}", ("x // {a} + {b}", "x % {a} - {b}", "(x + {b}) % {a}")),
        ("divide", "x", "x divided by {a} rounded down, minus {b}", "x // {a} - {b}", ("x % {a} - {b}", "x // {a} + {b}", "(x - {b}) // {a}")),
        ("at_least", "x", "x but at least {a}", "max(x, {a})", ("min(x, {a})", "x + {a}", "max(x, {a}) + 1")),
        ("at_most", "x", "x but at most {a}", "min(x, {a})", ("max(x, {a})", "x - {a}", "min(x, {a}) - 1")),
        ("larger", "x, y", "larger of x and y plus {a}", "max(x, y) + {a}", ("min(x, y) + {a}", "max(x, y + {a})", "max(x, y) - {a}")),
        ("smaller", "x, y", "smaller of x and y minus {a}", "min(x, y) - {a}", ("max(x, y) - {a}", "min(x, y - {a})", "min(x, y) + {a}")),
        ("distance", "x, y", "distance of x and y times {a}", "abs(x - y) * {a}", ("(x - y) * {a}", "abs(x + y) * {a}", "abs(x - y) + {a}")),
        ("sum_times", "x, y", "sum of x and y times {a}", "(x + y) * {a}", ("x + y * {a}", "(x - y) * {a}", "x * y * {a}")),
        ("reverse_append", "s", "s reversed then '{c}'", "s[::-1] + '{c}'", ("s + '{c}'", "'{c}' + s[::-1]", "(s + '{c}')[::-1]")),
        ("repeat", "s", "s repeated {a} times then '{c}'", "s * {a} + '{c}'", ("s + '{c}' * {a}", "(s + '{c}') * {a}", "'{c}' + s * {a}")),
        ("first_letters", "s", "first {a} letters of s", "s[:{a}]", ("s[{a}:]", "s[-{a}:]", "s[:{a} - 1]")),
        ("last_letters", "s", "last {a} letters of s", "s[-{a}:]", ("s[:-{a}]", "s[:{a}]", "s[{a}:]")),
        ("upper", "s", "'{c}' then s in upper case", "'{c}' + s.upper()", ("('{c}' + s).upper()", "s.upper() + '{c}'", "'{c}' + s.lower()")),
        ("count_letter", "s", "how many '{c}' in s plus {a}", "s.count('{c}') + {a}", ("s.count('{c}') - {a}", "s.find('{c}') + {a}", "len(s) + {a}")),
        ("replace", "s", "s with '{c}' replaced by '{d}'", "s.replace('{c}', '{d}')", ("s.replace('{d}', '{c}')", "s.replace('{c}', '')", "s.strip('{c}') + '{d}'")),
        ("length_times", "s", "length of s times {a} plus {b}", "len(s) * {a} + {b}", ("len(s) * {a} - {b}", "len(s) + {a} + {b}", "len(s) * {b} + {a}")),
        ("total_plus", "v", "sum of v plus {a}", "sum(v) + {a}", ("sum(v) - {a}", "max(v) + {a}", "len(v) + {a}")),
        ("largest_minus", "v", "largest of v minus {a}", "max(v) - {a}", ("min(v) - {a}", "max(v) + {a}", "sum(v) - {a}")),
        ("sorted_tail", "v", "v sorted without the first {a}", "sorted(v)[{a}:]", ("sorted(v)[:{a}]", "v[{a}:]", "sorted(v)[:-{a}]")),
        ("count_above", "v", "how many of v are above {a}", "sum(i > {a} for i in v)", ("sum(i < {a} for i in v)", "sum(i >= {a} for i in v)", "sum(i for i in v)")),
        ("add_each", "v", "v with {a} added to each", "[i + {a} for i in v]", ("[i - {a} for i in v]", "v + [{a}]", "[i * {a} for i in v]")),
    )
)  # fmt: skip

SMALL_NUMBER = frozenset({"repeat", "first_letters", "last_letters", "sorted_tail"})
"""Families whose `{a}` stays from 2 to 4, below the length of words and lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kata:
    """One template with its parameters filled in."""

    family: str
    signature: str
    instruction: str
    right: str
    wrong: tuple[str, ...]

    def source(self, expression: str) -> str:
        """The file `solution.py` that returns `expression`."""
        return f"def solve({self.signature}):\n    return {expression}\n"


def draw_kata(template: Template, rng: random.Random) -> Kata:
    """Fill the template's parameters; a kata that makes two of its own bodies equal is drawn again."""
    while True:
        fill = {"a": rng.randint(2, 9), "b": rng.randint(2, 9)} | dict(zip("cd", rng.sample(LETTERS, 2), strict=True))
        if template.family in SMALL_NUMBER:
            fill["a"] = rng.randint(2, 4)
        bodies = [text.format(**fill) for text in (template.right, *template.wrong)]
        if fill["a"] != fill["b"] and len(set(bodies)) == len(bodies):
            instruction = f"solve({template.signature}): {template.says.format(**fill)}"
            return Kata(
                family=template.family,
                signature=template.signature,
                instruction=instruction,
                right=bodies[0],
                wrong=tuple(bodies[1:]),
            )


def _draw_number(rng: random.Random) -> int:
    return rng.randint(-5, 20)


def _draw_word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _draw_list(rng: random.Random) -> list[int]:
    return [rng.randint(0, 12) for _ in range(rng.randint(3, 7))]


INPUTS: dict[str, Callable[[random.Random], object]] = {
    "x": _draw_number,
    "y": _draw_number,
    "s": _draw_word,
    "v": _draw_list,
}
"""What each parameter name stands for: x, y numbers, s a word, v a list of numbers."""


def evaluate(kata: Kata, expression: str, arguments: tuple[object, ...]) -> str:
    """`repr` of what `expression` gives, or the name of what it raises."""
    scope = dict(zip(kata.signature.split(", "), arguments, strict=True))
    try:
        return repr(eval(expression, scope))
    except Exception as error:
        return type(error).__name__


def draw_cases(kata: Kata, count: int, rng: random.Random) -> list[tuple[tuple[object, ...], str]]:
    """Distinct inputs with the `repr` of the right answer; every wrong body fails at least one of them."""
    names = kata.signature.split(", ")
    for _ in range(1000):
        cases: dict[str, tuple[tuple[object, ...], str]] = {}
        while len(cases) < count:
            arguments = tuple(INPUTS[name](rng) for name in names)
            cases[repr(arguments)] = (arguments, evaluate(kata, kata.right, arguments))
        chosen = list(cases.values())
        if all(any(evaluate(kata, body, a) != want for a, want in chosen) for body in kata.wrong):
            return chosen
    raise ValueError(f"kata {kata.instruction!r}: no {count} cases tell its right body from its wrong ones")
