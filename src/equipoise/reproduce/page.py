"""The results of a paper's tables as a page of Markdown: a function of the tables and the record, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from equipoise import files
from equipoise.reproduce.picture import draw
from equipoise.reproduce.record import Entry, Record
from equipoise.reproduce.tables import Table
from equipoise.reproduce.verdicts import Found, Held, found, held

_WIDE = 3  # columns of the paper's side by side
MARKS = {"agrees": " ≈", "undecided": " ?", "higher": " ↑", "lower": " ↓"}
OVERVIEW = ("table", "cells", "of the rounds", "seeds", "holds", "so far", "in part", "does not hold", "open")
_PICTURE = "![Published accuracies against ours, a panel for each paper](published.svg)"
_LEGEND = (
    "Every cell: published, then ours (mean ± sample deviation over seeds). ≈ agrees with the published number, to the "
    "tolerance given with the table; ? farther away, and within two standard errors: so few seeds do not tell; ↑ ours "
    "is higher; ↓ ours is lower; – not given, or not measured; in 2 of 3: the other runs gave no such number. A claim "
    "compares two rows over the seeds that both have, or over all of each where they share none, after equally many "
    "rounds. Beside it stand how many seeds that were, and after what share of the paper's rounds; seed by seed, in "
    "how many columns and seeds it holds of all rows at once; and where it does not hold, the two means, the second "
    "moved by the claim's margin."
)


def write(tables: Sequence[Table], out: Path, path: Path, about: str = "") -> Path:
    """The page of one paper's tables, from what was measured under `out`."""
    parts = [about.strip() or f"# {tables[0].name.split('/')[0]}: published tables, run again", _LEGEND]
    parts += [section(table, Record(table, out)) for table in tables]
    return _written(path, parts)


def overview(tables: Sequence[Table], out: Path, path: Path, about: str = "") -> Path:
    """A page about all papers: what was measured of every table, and how its claims fared; beside it, a picture."""
    rows = markdown(OVERVIEW, [glance(table, out) for table in tables])
    made = _written(path, [about.strip() or "# Published tables, run again", _PICTURE, rows])
    files.write_atomic(path.parent / "published.svg", draw(tables, out).encode())
    return made


def _written(path: Path, parts: Sequence[str]) -> Path:
    files.make_folder(path.parent)
    files.write_atomic(path, ("\n\n".join(parts) + "\n").encode())
    return path


def glance(table: Table, out: Path) -> list[str]:
    """One table in a line, see `OVERVIEW`."""
    ours = found(table, Record(table, out))
    cells = [cell for key, cell in ours.items() if key[2] == table.head.measures[0]]
    measured = [cell for cell in cells if cell.entries]
    shares = [e["scale"] for cell in measured for e in cell.entries]
    verdicts = Counter(h.verdict for h in held(table, ours))
    counts = [verdicts.pop(v, 0) for v in ("holds", "holds so far", "holds in part", "does not hold")]
    return [
        f"[{table.name}]({table.name.split('/')[0]}.md)",
        f"{len(measured)} of {len(cells)}",
        _span([100 * share for share in shares], "%"),
        _span([len(cell.entries) for cell in measured]),
        *(str(n or "–") for n in (*counts, sum(verdicts.values()))),
    ]


def _span(values: Sequence[float], unit: str = "") -> str:
    """The least to the most of them."""
    ends = dict.fromkeys(f"{f(values):g}{unit}" for f in (min, max)) if values else ["–"]
    return " to ".join(ends)


def section(table: Table, record: Record) -> str:
    """One table: where it comes from, ours and theirs, claims, what was chosen, remarks."""
    ours = found(table, record)
    entries = [e for key, cell in ours.items() if key[2] == table.head.measures[0] for e in cell.entries]
    lines = [f"## {table.head.title}", f"{table.head.source}. {_how(table, entries)}"]
    lines += [markdown(headings, rows) for headings, rows in grids(table, ours)]
    if table.head.claims:
        rows = [(h.claim.says, h.verdict, _basis(h), h.why or "–") for h in held(table, ours)]
        lines.append(markdown(("claim", "verdict", "seeds, rounds", "where not, and what was not compared"), rows))
    lines += [f"- {text}" for text in [*_chosen(table, ours), *table.head.remarks]]
    return "\n\n".join(lines).replace("\n\n- ", "\n- ").replace("|\n- ", "|\n\n- ")


def _basis(held: Held) -> str:
    """How many seeds a verdict rests on, after what share of the rounds, in how many columns and seeds it holds, and
    where rows have no seed in common."""
    seeds, shares = _span([pair.seeds for pair in held.pairs]), _span([100 * pair.share for pair in held.pairs], "%")
    apart = sum(pair.apart for pair in held.pairs)
    unlike = f"; {apart} of {len(held.pairs)} pairs share no seed" if apart else ""
    each = f"; {held.seed_by_seed}" if held.seed_by_seed else ""
    return f"{seeds}, {shares}{each}{unlike}" if held.pairs else "–"


def grids(table: Table, ours: dict[tuple[str, str, str], Found]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Headings and rows, two columns for every column of the paper's; a wide table in several."""
    head = table.head
    columns = [c for c in head.columns if any(key[1] == c for key in ours)]
    for first in range(0, len(columns), _WIDE):
        some = columns[first : first + _WIDE]
        headings = ["", *(f"{head.columns[c].title}, {who}" for c in some for who in ("published", "ours")), "runs"]
        rows = []
        for name, row in head.rows.items():
            cells = [[ours.get((name, c, m)) for m in head.measures] for c in some]
            if any(cell for group in cells for cell in group):
                texts = [text for group in cells for text in (_all(group, _theirs), _all(group, _own))]
                rows.append([row.title, *texts, _runs([group[0] for group in cells])])
        yield headings, rows


def _all(group: Sequence[Found | None], text: Callable[[Found], str]) -> str:
    """Several measures as "first (second, third)"; a dash for none."""
    told = ["–" if cell is None else text(cell) for cell in group]
    if all(t == "–" for t in told):
        return "–"
    return told[0] + (f" ({', '.join(told[1:])})" if told[1:] else "")


def _theirs(cell: Found) -> str:
    return "–" if cell.published is None else number(cell.published)


def _own(cell: Found) -> str:
    if not cell.values:
        return "–"
    spread = "" if cell.deviation != cell.deviation else f" ± {number(cell.deviation)}"
    some = f" in {len(cell.values)} of {len(cell.entries)}" if len(cell.values) < len(cell.entries) else ""
    return number(cell.mean) + spread + some + MARKS.get(cell.verdict, "")


def number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"


def _runs(cells: Sequence[Found | None]) -> str:
    """How many seeds in each column, and of how many rounds if fewer than the paper's."""
    told = []
    for cell in cells:
        few, entries = "", cell.entries if cell is not None else ()
        if entries and entries[0]["scale"] != 1:
            few = f" × {entries[0]['rounds']} rounds"
        told.append(f"{len(entries)}{few}" if entries else "–")
    return told[0] if len(set(told)) == 1 else ", ".join(told)


def _how(table: Table, entries: Sequence[Entry]) -> str:
    if not entries:
        return f"Not measured yet: `equipoise reproduce {table.name}`."
    names = ("commit", "device", "day")
    commits, devices, days = (sorted({str(e.get(n)) for e in entries if e.get(n)}) for n in names)
    within = ", ".join(f"{m} to {v:g}" for m, v in table.head.within.items())
    many = len({e["seed"] for e in entries})
    seeds = "one seed" if many == 1 else f"{many} seeds at most"
    told = [f"`equipoise reproduce {table.name}`", f"measures {', '.join(table.head.measures)}", seeds]
    if within:
        told.append(f"agreement means {within}")
    told += [f"{what} {', '.join(values)}" for what, values in (("commit", commits), ("on", devices)) if values]
    told += [f"{n} of {len(entries)} runs with {change}" for change, n in _rougher(entries).items()]
    return "; ".join([*told, ", ".join(days)]) + "."


def _rougher(entries: Sequence[Entry]) -> dict[str, int]:
    """How many runs had another exactness than the tables say, by what was set."""
    sets = [change for e in entries for change in e.get("set", []) if change.startswith(("run.precision", "run.dtype"))]
    return dict(sorted(Counter(sets).items()))


def _chosen(table: Table, ours: dict[tuple[str, str, str], Found]) -> list[str]:
    """What every row's grid came to, column by column."""
    lines = []
    for name, row in table.head.rows.items():
        told = []
        for column in table.head.columns:
            cell = ours.get((name, column, table.head.measures[0]))
            values = cell.entries[0].get("chosen") if cell and cell.entries else None
            if values:
                told.append("/".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in values.values()))
        if told:
            keys = "/".join(k.split(".")[-1] for k in {**table.head.grid, **row.grid})
            lines.append(f"{row.title} {keys} {', '.join(told)}")
    choose, scales = table.head.choose, {e["scale"] for cell in ours.values() for e in cell.entries if e.get("chosen")}
    lengths = sorted({max(1, round(choose.rounds * scale)) for scale in scales}) if choose.rounds else []
    rounds = f", {' or '.join(map(str, lengths))} rounds" if lengths else ""
    how = f"Chosen on validation data ({choose.validation:g} of the training samples, seed {choose.seed}{rounds})"
    return [f"{how}: {'; '.join(lines)}."] if lines else []


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
