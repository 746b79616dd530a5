"""What an experiment shows: measures of a finished run, counts with intervals, and whether variants differ.

Handles: k of n with a Wilson interval, an exact test for each pair of variants, how many runs would be enough. Does not
handle: a measure that was chosen because it came out well.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable

from scipy import stats

LEVEL, POWER = 0.05, 0.8  # a difference is claimed at this level; runs are counted so that most tries would show it

Rate = Callable[[dict], bool | None]  # a record -> yes, no, or None where the question does not arise


def path_of_task_first(record: dict) -> bool:
    """Whether the first call is about a path that stands in the task."""
    words = {word.strip(".,:;!?\"'`()") for word in record["task"].split()}
    return bool(record["calls"]) and record["calls"][0]["input"].get("path") in words


def changed_after_error(record: dict) -> bool | None:
    """Whether each call after a failed one is another call; None where no call follows a failed one."""
    after = [(a, b) for a, b in itertools.pairwise(record["calls"]) if a["error"]]
    return all((a["name"], a["input"]) != (b["name"], b["input"]) for a, b in after) if after else None


def read_before_write(record: dict) -> bool | None:
    """Whether each file that was written had been read in the run; None where nothing was written."""
    read, written = set(), []
    for call in record["calls"]:
        if call["name"] == "write_file" and not call["error"]:
            written.append(call["input"]["path"] in read)
        elif call["name"] == "read_file" and not call["error"]:
            read.add(call["input"]["path"])
    return all(written) if written else None


RATES = {
    "no call at all": lambda record: not record["calls"],
    "first call on the task's path": path_of_task_first,
    "some call failed": lambda record: any(call["error"] for call in record["calls"]),
    "another call after a failed one": changed_after_error,
    "read before it was written": read_before_write,
    "ended in an answer": lambda record: record["stopped"] == "end_turn",
}
Figure = Callable[[dict], float | None]
MEANS = ("turns", "input_tokens", "output_tokens")


def rates(records: list[dict]) -> dict[str, Rate]:
    """All measures that are True or False: RATES, each tool of these records as the first call, and the grades."""
    first = {
        f"{tool} first": lambda record, tool=tool: [c["name"] for c in record["calls"][:1]] == [tool]
        for tool in offered(records)
    }
    grades = dict.fromkeys(name for record in records for name in record.get("grades", {}))
    return first | RATES | {name: lambda record, name=name: record["grades"][name] for name in grades}


def figures(records: list[dict]) -> dict[str, Figure]:
    """All measures that are numbers: the calls of each tool and the turn of its first one, and MEANS."""
    found = {f"calls of {tool}, a run": lambda record, t=tool: len(turns_of(record, t)) for tool in offered(records)}
    if any(record.get("turns", 0) > 1 for record in records):
        found |= {
            f"first {tool} at turn": lambda record, t=tool: min(turns_of(record, t), default=None)
            for tool in offered(records)
        }
    return found | {f"{key.replace('_', ' ')}, a run": lambda record, key=key: record[key] for key in MEANS}


def offered(records: list[dict]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record["tools"]))


def count(records: list[dict], variant: str, measure: Rate) -> tuple[int, int]:
    """(k, n): in how many of the runs of a variant the measure is True, of those where its question arises."""
    values = [measure(record) for record in records if record["variant"] == variant and "not_run" not in record]
    asked = [value for value in values if value is not None]
    return sum(asked), len(asked)


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95% Wilson interval of a rate that was seen k times in n."""
    return tuple(stats.binomtest(k, n).proportion_ci(method="wilson")) if n else (0.0, 1.0)


def differences(records: list[dict], measure: str) -> list[dict]:
    """Every pair of variants under one measure: `{"pair", "counts", "p", "corrected", "needed"}`.

    p: Fisher's exact test, two-sided. corrected: by Holm, for the number of pairs. needed: how many runs of each it
    would take to show the difference that was seen, None where there is none. Choose the measure before you look: a
    correction counts the pairs, not the measures that you tried.
    """
    rate, found = rates(records)[measure], []
    counted = {name: count(records, name, rate) for name in dict.fromkeys(record["variant"] for record in records)}
    pairs = list(itertools.combinations(counted, 2))
    for pair in pairs:
        (a, m), (b, n) = counts = [counted[name] for name in pair]
        p = fisher(*counts)
        found.append(
            {"pair": pair, "counts": counts, "p": p, "needed": needed(a / m, b / n, len(pairs)) if m and n else None}
        )
    corrected = 0.0
    for i, one in enumerate(sorted(found, key=lambda one: one["p"])):
        corrected = max(corrected, min(1.0, one["p"] * (len(found) - i)))
        one["corrected"] = corrected
    return found


def needed(p: float, q: float, comparisons: int = 1) -> int | None:
    """How many runs of each it takes, at least, to show the difference between two rates in most tries.

    By the arcsine of the roots (Cohen, Statistical Power Analysis, chapter 6), for LEVEL and POWER. That is too low
    near 0 and 1, so it is never fewer than at which these very rates pass the test. None where the rates are equal.
    """
    h = abs(2 * math.asin(math.sqrt(p)) - 2 * math.asin(math.sqrt(q)))
    if not h:
        return None
    z = stats.norm.isf(LEVEL / 2 / comparisons) + stats.norm.isf(1 - POWER)
    n = math.ceil(2 * (z / h) ** 2)
    while fisher((round(p * n), n), (round(q * n), n)) >= LEVEL / comparisons:
        n += 1 + n // 20
    return n


def fisher(one: tuple[int, int], other: tuple[int, int]) -> float:
    """p of Fisher's exact test, two-sided, for k of n against k of n."""
    return float(stats.fisher_exact([[k, n - k] for k, n in (one, other)]).pvalue)


def table(records: list[dict]) -> str:
    """The counts of every measure, a column for each variant, with 95% intervals; means below them.

    A question that arose in no run has no row.
    """
    names = list(dict.fromkeys(record["variant"] for record in records))
    ran = {v: [r for r in records if r["variant"] == v and "not_run" not in r] for v in names}
    rows = [["", *names], ["runs", *(str(len(ran[v])) for v in names)]]
    if any("not_run" in record for record in records):
        rows.append(["not run", *(str(sum(r["variant"] == v for r in records) - len(ran[v])) for v in names)])
    rows += [[name, *(share(*count(records, v, rate)) for v in names)] for name, rate in rates(records).items()]
    rows += [[name, *(mean(ran[v], figure) for v in names)] for name, figure in figures(records).items()]
    rows = [row for row in rows if set(row[1:]) != {"-"}]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names) + 1)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    why = Counter(record["not_run"] for record in records if "not_run" in record)
    return "\n".join([*lines, *(f"not run, {n} times: {reason}" for reason, n in why.items())])


def turns_of(record: dict, tool: str) -> list[int]:
    return [call["turn"] for call in record["calls"] if call["name"] == tool]


def mean(records: list[dict], figure: Figure) -> str:
    figures = [value for value in map(figure, records) if value is not None]
    return f"{statistics.fmean(figures):.1f}" if figures else "-"


def share(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{k} of {n} ({low:.0%} to {high:.0%})" if n else "-"


def verdict(records: list[dict], measure: str) -> str:
    """Whether the variants differ in one measure, a line for each pair."""
    found = differences(records, measure)
    if not found:
        return f"{measure}: one variant, so nothing to compare."
    corrected = f", corrected for {len(found)} pairs" if len(found) > 1 else ""
    lines = [f"{measure} (p by Fisher's exact test{corrected})"]
    for one in found:
        (a, m), (b, n) = one["counts"]
        shown = "a difference" if one["corrected"] < LEVEL else "no difference shown"
        if one["corrected"] >= LEVEL and one["needed"]:
            shown += f" (to show it: {one['needed']:,} runs of each or more)"
        lines.append(f"  {one['pair'][0]} {a} of {m}, {one['pair'][1]} {b} of {n}: p = {one['corrected']:.2g}, {shown}")
    return "\n".join(lines)
