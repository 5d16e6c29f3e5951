"""Arithmetic problems with worked steps: the language of the tinymath models.

Every problem is a prompt, a worked response and an integer answer. A response
is a few lines, each computable from the lines just before it (column digits
with explicit carries, or a running state that every step restates), and a
closing line with the answer. Digits of a step are determined; its wording is
drawn at random, so a model of these texts has honest entropy to sample from.

Standard library alone; everything is a function of the random.Random passed in.
"""

import hashlib
import json
import random
import re
from dataclasses import dataclass

COLUMNS = ("ones", "tens", "hundreds", "thousands", "ten thousands")

# One problem in HOLDOUT is kept from training; the hash of its key decides.
HOLDOUT = 16

ANSWER = re.compile(r"(?:Answer:|Result:|answer is|That gives) (-?\d+)\.?\s*\Z")

# Collatz starts whose path climbs past this are not posed: four digits suffice.
COLLATZ_PEAK = 9999

OPENINGS = ("", "", "", "Step by step.\n", "Let us see.\n", "We go slowly.\n")


@dataclass(frozen=True)
class Problem:
    kind: str
    key: str  # the problem without its wording; decides the split
    prompt: str
    response: str
    answer: str


def is_held_out(key):
    return hashlib.sha256(key.encode()).digest()[0] % HOLDOUT == 0


def is_solved(problem_answer, text):
    """True if the last line of text states problem_answer as its result."""
    match = ANSWER.search(text.removesuffix("<|endoftext|>"))
    return match is not None and match.group(1) == problem_answer


def closing(rng, answer):
    return rng.choices(
        (f"Answer: {answer}", f"So the answer is {answer}.", f"Result: {answer}", f"That gives {answer}."),
        (5, 3, 2, 2),
    )[0]


def heavy_tailed(rng, low, high, alpha=1.0):
    """An integer of [low, high] with a Pareto tail of index alpha."""
    while True:
        n = int(low * rng.paretovariate(alpha))
        if n <= high:
            return n


def digits_of(n):
    """The digits of n, ones first."""
    return [int(c) for c in reversed(str(n))]


def number_of_digits(rng, n):
    """An integer of n digits."""
    return rng.randint(10 ** (n - 1), 10**n - 1)


def carry_phrase(rng, word, amount):
    return rng.choice((f", {word} {amount}", f" so {word} {amount}", f" and {word} {amount}"))


def column_name(rng, i):
    return rng.choices((f"{COLUMNS[i]}: ", f"the {COLUMNS[i]}: ", f"{COLUMNS[i]} now "), (4, 1, 1))[0]


def add_columns(rng, a, b):
    """The lines of a + b by columns."""
    x, y = digits_of(a), digits_of(b)
    width = max(len(x), len(y))
    lines, carry = [], 0
    for i in range(width):
        terms = [str(d[i]) for d in (x, y) if i < len(d)]
        total = sum(map(int, terms)) + carry
        if carry:
            terms.append(str(carry))
        carry = total // 10
        line = f"{column_name(rng, i)}{'+'.join(terms)}={total}"
        if carry and i + 1 < width:
            line += carry_phrase(rng, "carry", carry)
        lines.append(line)
    return lines


def subtract_columns(rng, a, b):
    """The lines of a - b by columns, for a >= b."""
    x, y = digits_of(a), digits_of(b)
    lines, borrow = [], 0
    for i, digit in enumerate(x):
        taken = ([y[i]] if i < len(y) else []) + ([1] if borrow else [])
        borrow = digit < sum(taken)
        if borrow:
            digit += 10
        line = column_name(rng, i) + "-".join(map(str, [digit] + taken)) + f"={digit - sum(taken)}"
        if borrow:
            line += carry_phrase(rng, "borrow", 1)
        lines.append(line)
    return lines


def multiply_columns(rng, a, digit):
    """The lines of a * digit by columns."""
    x = digits_of(a)
    lines, carry = [], 0
    for i, d in enumerate(x):
        total = d * digit + carry
        line = f"{column_name(rng, i)}{d}x{digit}{f'+{carry}' if carry else ''}={total}"
        carry = total // 10
        if carry and i + 1 < len(x):
            line += carry_phrase(rng, "carry", carry)
        lines.append(line)
    return lines


def pose_add(rng):
    a, b = (number_of_digits(rng, rng.choice((1, 2, 2, 3, 3, 4))) for _ in range(2))
    prompt = rng.choice((f"What is {a}+{b}?", f"Add {a} and {b}.", f"Compute {a}+{b}."))
    return tuple(sorted((a, b))), prompt, add_columns(rng, a, b), a + b


def pose_subtract(rng):
    b, a = sorted(number_of_digits(rng, rng.choice((2, 2, 3, 3, 4))) for _ in range(2))
    prompt = rng.choice((f"What is {a}-{b}?", f"Subtract {b} from {a}.", f"Compute {a}-{b}."))
    return (a, b), prompt, subtract_columns(rng, a, b), a - b


def pose_multiply(rng):
    a, b = number_of_digits(rng, rng.choice((2, 3, 3, 4))), rng.randint(2, 9)
    prompt = rng.choice((f"What is {a}x{b}?", f"Multiply {a} by {b}.", f"Compute {a}x{b}."))
    return (a, b), prompt, multiply_columns(rng, a, b), a * b


def pose_long_multiply(rng):
    a, b = number_of_digits(rng, rng.choice((2, 2, 3))), rng.randint(11, 99)
    tens, ones = b // 10, b % 10
    prompt = rng.choice((f"What is {a}x{b}?", f"Multiply {a} by {b}.", f"Compute {a}x{b}."))
    lines = []
    low, high = a * ones, a * tens * 10
    if ones:
        lines += [f"{a}x{ones}"] + multiply_columns(rng, a, ones) + [f"{a}x{ones}={low}"]
    lines += [f"{a}x{tens}"] + multiply_columns(rng, a, tens) + [f"{a}x{tens}0={high}"]
    if ones:
        lines += [f"{low}+{high}"] + add_columns(rng, low, high)
    return (a, b), prompt, lines, a * b


def pose_compare(rng):
    width = rng.choice((2, 3, 3, 4))
    a = b = number_of_digits(rng, width)
    close = rng.random() < 0.5  # a shared leading part, or the first column nearly always decides
    while b == a:
        b = int(str(a)[:-1] + str(rng.randint(0, 9))) if close else number_of_digits(rng, width)
    prompt = rng.choice((f"Which is larger, {a} or {b}?", f"What is the maximum of {a} and {b}?"))
    lines = []
    for i, (x, y) in enumerate(zip(str(a), str(b))):
        sign = "=" if x == y else "<" if x < y else ">"
        lines.append(f"{column_name(rng, width - 1 - i)}{x}{sign}{y}")
        if x != y:
            break
    return tuple(sorted((a, b))), prompt, lines, max(a, b)


def pose_sum(rng):
    terms = [rng.randint(2, 40) for _ in range(heavy_tailed(rng, 3, 10))]
    listing = ", ".join(map(str, terms))
    prompt = rng.choice((f"Find the sum of {listing}.", f"Add up {listing}."))
    lines, total = [], terms[0]
    for term in terms[1:]:
        lines.append(running_sum(rng, total, term))
        total += term
    return tuple(terms), prompt, lines, total


def running_sum(rng, total, term):
    after = total + term
    return rng.choices(
        (f"{total}+{term}={after}", f"plus {term}: {after}", f"add {term} to {total}: {after}"), (5, 2, 1)
    )[0]


def pose_series(rng):
    first = rng.randint(1, 60)
    last = first + heavy_tailed(rng, 3, 70)
    prompt = rng.choice((f"Add all numbers from {first} to {last}.", f"Sum the integers from {first} to {last}."))
    lines, total = [], first
    for term in range(first + 1, last + 1):
        lines.append(running_sum(rng, total, term))
        total += term
    return (first, last), prompt, lines, total


def take_away(rng, a, b):
    return rng.choices((f"{a}-{b}={a - b}", f"take {b} from {a}: {a - b}", f"{a} less {b} is {a - b}"), (5, 2, 1))[0]


def pose_gcd(rng):
    a, b = rng.randint(2, 199), rng.randint(2, 199)
    if rng.random() < 0.5:  # a common factor, or the answer is mostly 1
        factor = rng.randint(2, 20)
        a, b = (factor * rng.randint(1, 199 // factor) for _ in range(2))
    prompt = rng.choice((f"What is gcd({a},{b})?", f"Find the greatest common divisor of {a} and {b}."))
    key = tuple(sorted((a, b)))
    lines = []
    while a != b:
        a, b = max(a, b), min(a, b)
        lines.append(take_away(rng, a, b))
        a -= b
    lines.append(f"{a}={b}")
    return key, prompt, lines, a


def pose_remainder(rng):
    b = rng.randint(3, 40)
    a = rng.randint(b, min(999, 40 * b))
    prompt = rng.choice((f"What is the remainder of {a} divided by {b}?", f"Compute {a} mod {b}."))
    key = (a, b)
    lines = []
    while a >= b:
        # Both are right: ten at once where that fits, or one.
        taken = 10 * b if a >= 10 * b and rng.random() < 0.7 else b
        lines.append(take_away(rng, a, taken))
        a -= taken
    lines.append(f"{a}<{b}")
    return key, prompt, lines, a


def collatz_path(n):
    path = [n]
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        path.append(n)
    return path


def pose_collatz(rng):
    while True:
        start = rng.randint(2, 999) if rng.random() < 0.5 else rng.randint(2, 2999)
        path = collatz_path(start)
        if max(path) <= COLLATZ_PEAK:
            break
    prompt = rng.choice((f"How many Collatz steps from {start} to 1?", f"Count the Collatz steps of {start}."))
    lines = []
    for step, (n, after) in enumerate(zip(path, path[1:]), 1):
        if n % 2:
            words = ("odd, ", "odd so ", "triple plus one: ", "up to ")
        else:
            words = ("even, ", "even so ", "half: ", "down to ")
        lines.append(f"{step}: {rng.choices(words, (6, 3, 2, 1))[0]}{after}")
    return (start,), prompt, lines, len(path) - 1


POSE = {
    "add": pose_add,
    "subtract": pose_subtract,
    "multiply": pose_multiply,
    "long_multiply": pose_long_multiply,
    "compare": pose_compare,
    "sum": pose_sum,
    "series": pose_series,
    "gcd": pose_gcd,
    "remainder": pose_remainder,
    "collatz": pose_collatz,
}

# Shares by problems. Long kinds are rare here and still most of the tokens.
TRAIN_MIX = {
    "add": 14, "subtract": 14, "multiply": 12, "long_multiply": 12, "compare": 6,
    "sum": 8, "series": 7, "gcd": 10, "remainder": 10, "collatz": 5,
}
PROMPTS_MIX = {
    "add": 18, "subtract": 16, "multiply": 14, "long_multiply": 8, "compare": 12,
    "sum": 10, "series": 6, "gcd": 6, "remainder": 6, "collatz": 4,
}


def pose(rng, kind):
    args, prompt, lines, answer = POSE[kind](rng)
    response = rng.choice(OPENINGS) + "\n".join(lines + [closing(rng, answer)])
    return Problem(kind, f"{kind}:{args}", prompt + "\n", response, str(answer))


def problems(seed, mix, held_out):
    """An endless stream of problems of one side of the split."""
    rng = random.Random(seed)
    kinds, weights = zip(*mix.items())
    while True:
        problem = pose(rng, rng.choices(kinds, weights)[0])
        if is_held_out(problem.key) == held_out:
            yield problem


def write_prompts(path, count=512, seed=2024):
    """Writes count held-out problems, no key twice, in exact shares of PROMPTS_MIX."""
    rng = random.Random(seed)
    total = sum(PROMPTS_MIX.values())
    wanted = {kind: count * share // total for kind, share in PROMPTS_MIX.items()}
    wanted["add"] += count - sum(wanted.values())
    chosen = []
    for kind, number in wanted.items():
        found = {}
        while len(found) < number:
            problem = pose(rng, kind)
            if is_held_out(problem.key):
                found.setdefault(problem.key, problem)
        chosen += found.values()
    rng.shuffle(chosen)
    with open(path, "w", encoding="utf-8") as out:
        for i, p in enumerate(chosen):
            row = {"id": f"{i:04d}", "prompt": p.prompt, "answer": p.answer, "kind": p.kind}
            out.write(json.dumps(row) + "\n")
