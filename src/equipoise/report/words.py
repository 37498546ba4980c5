"""Numbers and names as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from equipoise.audit.data import MEASURES, AuditData

CLEAN = "none"
MISSING = "–"
PLAIN: Mapping[str, str] = {
    "accuracy_mean": "how often the model is right for the average honest client",
    "accuracy_std": "how unevenly clients are served; 0 is the same for all",
    "worst_10": "accuracy for the worst-served tenth of the clients",
    "gap_variance": "how unequally clients fall short of the best model for their own data",
    "pearson": "whether clients that contribute better data get better models; 1 is in step, 0 is unrelated",
    "drop": "accuracy lost under the attack that hurts this method most",
}
"""What the headline columns mean, for a reader who has never seen them."""


def number(value: float, measure: str) -> str:
    """A measure's value: shares as percentages with one decimal, anything else with three digits."""
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else ("−∞" if value < 0 else "∞")
    return percent(value) if MEASURES[measure].percent else digits(value)


def percent(value: float) -> str:
    return _signed(f"{100 * value:.1f}") if math.isfinite(value) else MISSING


def digits(value: float) -> str:
    """Three significant digits, without an exponent where a reader can do without."""
    if not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-4 or size >= 1e6:
        return _signed(f"{value:.2e}")
    places = max(0, 2 - math.floor(math.log10(size)))
    return _signed(f"{value:.{places}f}")


def _signed(text: str) -> str:
    bare = text.removeprefix("-")
    return bare if bare == text or not bare.strip("0.") else f"−{bare}"


def unit(measure: str) -> str:
    return "%" if MEASURES[measure].percent else ""


def span(low: float, high: float, measure: str) -> str:
    """A 95% interval, or nothing where there is none."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{number(low, measure)} to {number(high, measure)}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and c`; of many, the first few and how many more."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def situation(attack: str) -> str:
    """What to call an attack where a reader chooses one."""
    return "no attack" if attack == CLEAN else attack


def under(attack: str) -> str:
    """The start of a sentence."""
    return "With no attack" if attack == CLEAN else f"Under {attack}"


def short(name: str, most: int = 18) -> str:
    """A name that fits beside a line."""
    return name if len(name) <= most else name[: most - 1] + "…"


def what_was_run(data: AuditData) -> str:
    """One sentence: who learnt what, how, and how often."""
    facts = data.scenario
    attacks = [c.name for c in data.attacks if c.name != CLEAN]
    who = count(int(facts["clients"]), "client") if "clients" in facts else "Clients"
    what = f" on {facts['dataset']}" if "dataset" in facts else ""
    rounds = f" for {count(int(facts['rounds']), 'round')}" if "rounds" in facts else ""
    clean = any(c.name == CLEAN for c in data.attacks)
    against = f"under {listed(attacks)}" if attacks else ""
    where = " and ".join(["without an attack"] * clean + [against] * bool(attacks))
    times = "once each" if len(data.seeds) == 1 else f"{len(data.seeds)} times each with different random numbers"
    return f"{who} trained together{what}{rounds} with {count(len(data.methods), 'method')}, {where}, {times}."
