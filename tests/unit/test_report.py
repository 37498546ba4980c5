"""The report says what the audit found, says it the same way every time, and lets nobody's text in as code."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.audit.data import MEASURES, AuditData, Card
from equipoise.errors import EquipoiseError
from equipoise.report import (
    charts,
    figures,
    labels,
    scales,
    sheets,
    tables,
    theme,
    words,
    write_figures,
    write_report,
    write_tables,
)
from equipoise.report.findings import NOTIONS, Findings, find
from equipoise.report.page import client_rows, embedded, page
from equipoise.report.pictures import pictures
from equipoise.report.readings import heat
from equipoise.results import Table
from tests.audits import Effect, make_audit

NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a|b & c_d*e`f", "</script><b>x")


class Page(HTMLParser):
    """What is on a page: tags with attributes in order, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.words: list[str] = []
        self._in: str | None = None
        self._cells: list[str] | None = None
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self._table = ""
        self.feed(re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "<script></script>", text, flags=re.S))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "script":
            self._in = str(found.get("id"))
        if tag == "table":
            self._table = str(found["id"])
            self.tables[self._table] = []
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append(("", found.get("data-value")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in = None
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self._in is not None:
            self.text[self._in] = self.text.get(self._in, "") + data
        else:
            self.words.append(data)
            if self._table and self.tables[self._table] and self.tables[self._table][-1]:
                text, value = self.tables[self._table][-1][-1]
                self.tables[self._table][-1][-1] = (text + data, value)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [found for tag, found in self.tags if tag == name]

    @property
    def data(self) -> Any:
        return json.loads(self.text["data"])


@pytest.fixture(scope="module")
def audit() -> AuditData:
    effect = {"ditto": Effect(0.05, 0.6), "rffl": Effect(-0.02, harm=0.2)}
    return make_audit(effect=effect, seeds=3, clients=12)


@pytest.fixture(scope="module")
def found(audit: AuditData) -> Findings:
    return find(audit)


@pytest.fixture(scope="module")
def text(audit: AuditData) -> str:
    return page(audit)


@pytest.fixture(scope="module")
def parsed(text: str) -> Page:
    return Page(text)


# ------------------------------------------------------------------------------------------ the page


def test_the_page_asks_nothing_of_a_network(parsed: Page) -> None:
    for tag, found in parsed.tags:
        assert tag not in ("link", "iframe", "img", "object", "base", "form"), tag
        assert "src" not in found and "srcset" not in found
        assert (found.get("href") or "#").startswith("#")
    policy = next(f["content"] for f in parsed.all("meta") if f.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "http" not in policy


def test_the_page_has_a_landmark_and_headings_in_order(parsed: Page) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(parsed.all("main")) == len(parsed.all("nav")) == 1
    assert next(f for t, f in parsed.tags if t == "a")["href"] == "#main"
    assert parsed.all("html")[0]["lang"] == "en"


def test_ids_are_unique_and_every_link_leads_somewhere(parsed: Page) -> None:
    ids = [found["id"] for _, found in parsed.tags if "id" in found]
    assert len(ids) == len(set(ids))
    assert {(found["href"] or "")[1:] for found in parsed.all("a")} <= set(ids)


def test_every_header_cell_says_what_it_heads(parsed: Page) -> None:
    heads = parsed.all("th")
    assert heads and all(found.get("scope") in ("col", "row") for found in heads)
    assert len(parsed.all("caption")) == len(parsed.all("table"))


def test_every_chart_has_data_a_label_and_a_reading(parsed: Page, text: str) -> None:
    divs = [found for found in parsed.all("div") if found.get("class") == "chart"]
    assert {found["id"] for found in divs} == set(parsed.data["figures"])
    assert all(found["role"] == "img" and len(found["aria-label"] or "") > 40 for found in divs)
    readings = re.findall(r"<figcaption>(.+?)</figcaption>", text)
    assert len(readings) == len(divs) and all(len(r) > 20 and r.endswith(".") for r in readings)
    assert len(set(readings)) == len(readings)


def test_every_picture_of_the_issue_is_there(parsed: Page) -> None:
    names = ["fronts", "served", "gaps", "heat", "learning", "ledger", "partition"]
    shown = [found["id"] for found in parsed.all("article") if found.get("class") == "picture"]
    assert shown == [f"p-{name}" for name in names]


def test_the_first_screen_has_the_headline_and_the_run_in_words(found: Findings, parsed: Page) -> None:
    said = " ".join(" ".join(parsed.words).split())
    assert all(" ".join(sentence.split()) in said for sentence in found.headline)
    assert "12 clients trained together on made up for 5 rounds with 3 methods" in said


def test_nothing_is_called_fair(text: str) -> None:
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S)
    assert not re.search(r"\b(un)?fair", shown, re.I)


def test_the_same_audit_gives_the_same_bytes(audit: AuditData, text: str, tmp_path: Path) -> None:
    first = write_report(audit, tmp_path / "new" / "a.html")
    assert first.read_bytes() == text.encode()


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(text: str) -> None:
    code = (
        "import hashlib; from equipoise.report.page import page; from tests.audits import Effect, make_audit;"
        "e = {'ditto': Effect(0.05, 0.6), 'rffl': Effect(-0.02, harm=0.2)};"
        "print(hashlib.sha256(page(make_audit(effect=e, seeds=3, clients=12)).encode()).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=root, check=True)
    assert done.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_text_from_users_is_never_code(audit: AuditData) -> None:
    data = make_audit(NASTY[:3], ("none", NASTY[3]), seeds=1, clients=4)
    card = replace(data.methods[0], summary=NASTY[1], equation=NASTY[3], reference=NASTY[0], parameters={NASTY[0]: 1})
    data = replace(
        data,
        title=NASTY[3],
        config=NASTY[0],
        environment={NASTY[1]: {"a": NASTY[0]}},
        scenario={"dataset": NASTY[1]},
        methods=(card, *data.methods[1:]),
    )
    hostile, plain = Page(page(data)), Page(page(audit))
    assert not hostile.all("img") and len(hostile.all("script")) == len(plain.all("script"))
    assert not [f for _, f in hostile.tags if any(name.startswith("on") for name in f)]
    shown = " ".join(hostile.words)
    assert all(bad in shown for bad in NASTY)
    names = [t["name"] for figure in hostile.data["figures"].values() for t in figure["data"]]
    assert names and not [n for n in names if "<" in n]


@given(st.lists(st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.just(NASTY[3]), max_size=5))
def test_embedded_json_cannot_end_its_script(value: list[Any]) -> None:
    made = embedded(value)
    assert not set("<>&") & set(made) and json.loads(made) == value


# ------------------------------------------------------------------------------------------ odd audits


def _without(data: AuditData, **changes: Any) -> AuditData:
    return replace(data, **changes)


ODD = {
    "one method": lambda: make_audit(("fedavg",), seeds=2, clients=5),
    "one attack, no ledger": lambda: make_audit(("fedavg", "ditto"), ("none",), seeds=2, clients=5),
    "no clean run": lambda: make_audit(("fedavg", "rffl"), ("sign_flip",), seeds=1, clients=5),
    "one seed": lambda: make_audit(seeds=1, clients=5),
    "a failed cell": lambda: make_audit(seeds=2, clients=5, failed=[("ditto", "sign_flip", 0)]),
    "a method that always failed": lambda: make_audit(
        seeds=2, clients=5, failed=[("ditto", a, s) for a in ("none", "sign_flip") for s in (0, 1)]
    ),
    "no optima": lambda: make_audit(seeds=2, clients=5, alone=False),
    "one client": lambda: make_audit(seeds=2, clients=1, share=0.0),
    "nothing finished": lambda: make_audit(
        ("fedavg", "rffl"),
        seeds=1,
        clients=3,
        failed=[(m, a, 0) for m in ("fedavg", "rffl") for a in ("none", "sign_flip")],
    ),
    "empty tables": lambda: _without(
        make_audit(seeds=1, clients=3),
        clients=Table({}),
        curves=Table({}),
        ledger=Table({}),
        partition=np.empty((0, 0)),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_audit_has_a_whole_report(name: str) -> None:
    data = ODD[name]()
    made = page(data)
    parsed = Page(made)
    shown = re.sub(r"<script.*?</script>", "", made, flags=re.S)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", shown)
    assert len(parsed.tables["t-headline"]) == 1 + len(data.methods)
    ledgers = [n for n in parsed.data["figures"] if n.startswith("ledger")]
    assert bool(ledgers) == (len(data.ledger) > 0)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_audit_has_whole_tables(name: str) -> None:
    for sheet in tables.all_sheets(find(ODD[name]())):
        for render in (tables.markdown, tables.latex, tables.comma_separated):
            assert not re.search(r"\bnan\b|\binf\b|\bNone\b", render(sheet)), sheet.name


def test_failed_cells_are_named_with_their_reason() -> None:
    data = make_audit(seeds=2, clients=5, failed=[("ditto", "sign_flip", 1)])
    rows = Page(page(data)).tables["t-failures"]
    assert [text.strip() for text, _ in rows[1]] == ["ditto", "sign_flip", "1", "the model diverged in round 3"]


def test_a_situation_without_benign_clients_is_told_beside_the_numbers() -> None:
    data = make_audit(seeds=2, clients=5)
    bad = data.clients["malicious"] | (data.clients["attack"] == "sign_flip")
    data = replace(data, clients=Table({**{name: data.clients[name] for name in data.clients}, "malicious": bad}))
    told = "Under sign_flip there are no numbers: all clients are malicious, and measures are of benign ones."
    found = find(data)
    for sheet in (sheets.headline(found), *sheets.notions(found)):
        assert sheet.words.endswith(told), sheet.name
    assert told in page(data)
    assert "there are no numbers" not in page(make_audit(seeds=2, clients=5))


def test_a_diverged_run_is_shown_as_missing_and_not_as_best() -> None:
    data = make_audit(("fedavg", "ditto"), ("none",), seeds=1, clients=5)
    cells = {name: data.cells[name].copy() for name in data.cells.columns}
    cells["gap_variance"][0], cells["loss_mean"][0] = np.nan, np.inf
    sheet = sheets.headline(find(replace(data, cells=Table(cells))))
    column = [c.name for c in sheet.columns].index("gap_variance")
    assert sheet.rows[0][column].text == words.MISSING and not sheet.rows[0][column].best


def test_a_large_audit_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.report.page.MOST_ROWS", 1500)
    data = make_audit(("fedavg", "rffl"), seeds=2, clients=400, rounds=30)
    rows = client_rows(data)["columns"]
    assert len(data.clients) == 3200 and {len(column) for column in rows.values()} == {1500}
    assert set(rows["seed"]) == {0} and set(rows["method"]) == {0, 1}
    made = page(data)
    assert "the first 1,500 of 3,200 rows" in made
    assert f"The first {charts.MOST_POINTS} of 400 clients are drawn." in made
    assert "60 of 400 clients are drawn, attackers and the removed first." in made
    for name, figure in Page(made).data["figures"].items():
        assert len(json.dumps(figure)) < 150_000, name


# ------------------------------------------------------------------------------------------ numbers


def _plain_measures(data: AuditData, method: str, attack: str) -> dict[str, float]:
    """The headline measures of one method in one situation, from the raw table of clients, seed by seed."""
    rows: dict[str, list[float]] = {}
    for seed in data.seeds:
        frame = data.clients.to_pandas()
        frame = frame[(frame.method == method) & (frame.seed == seed) & ~frame.malicious & (frame.n > 0)]
        here, clean = frame[frame.attack == attack], frame[frame.attack == "none"]
        worst = np.sort(here.accuracy)[: int(np.ceil(len(here) / 10))]
        for name, value in {
            "accuracy_mean": here.accuracy.mean(),
            "accuracy_std": here.accuracy.std(ddof=0),
            "worst_10": worst.mean(),
            "gap_variance": here.gap.var(ddof=1),
            "pearson": np.corrcoef(here.standalone, here.accuracy)[0, 1],
            "drop": clean[clean.client.isin(here.client)].accuracy.mean() - here.accuracy.mean(),
        }.items():
            rows.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in rows.items()}


def test_the_headline_table_equals_a_plain_recomputation(audit: AuditData, parsed: Page) -> None:
    head, *rows = parsed.tables["t-headline"]
    assert len(head) == 1 + len(sheets.HEADLINE)
    for card, row in zip(audit.methods, rows, strict=True):
        expected = _plain_measures(audit, card.name, "none")
        expected["drop"] = _plain_measures(audit, card.name, "sign_flip")["drop"]
        assert row[0][0] == card.name
        for name, (text, value) in zip(sheets.HEADLINE, row[1:], strict=True):
            assert float(value or "nan") == pytest.approx(expected[name], abs=1e-9)
            assert text.startswith(words.number(expected[name], name))


def test_every_situation_is_in_the_full_tables(audit: AuditData, found: Findings) -> None:
    for sheet in sheets.notions(found):
        pairs = [(a.name, m.name) for a in audit.attacks for m in audit.methods]
        assert [(row[0].value, row[1].value) for row in sheet.rows] == pairs
        for row in sheet.rows:
            done = audit.cells.filter(method=row[1].value, attack=row[0].value, status="done")
            for column, cell in zip(sheet.columns[2:], row[2:], strict=True):
                values = done[column.name][np.isfinite(done[column.name])]
                assert cell.value == pytest.approx(values.mean() if len(values) else np.nan, nan_ok=True)


def test_the_best_of_a_column_is_bold_and_only_it(found: Findings) -> None:
    sheet = sheets.headline(found)
    for i, column in enumerate(sheet.columns[1:], 1):
        values = [float(row[i].value) for row in sheet.rows]  # type: ignore[arg-type]
        best = (max if MEASURES[column.name].better == "high" else min)(values)
        shown = words.number(best, column.name)
        assert [row[i].best for row in sheet.rows] == [words.number(v, column.name) == shown for v in values]


def test_a_rough_interval_is_called_one(found: Findings) -> None:
    assert "95% interval (3 seeds: a rough interval)" in sheets.headline(found).words


def test_where_all_are_equal_none_is_best() -> None:
    data = make_audit(("fedavg", "ditto"), ("none",), seeds=1, clients=4)
    robustness = next(s for s in sheets.notions(find(data)) if s.name == "robustness")
    drop = [c.name for c in robustness.columns].index("drop")
    assert [row[drop].text for row in robustness.rows] == ["0.0", "0.0"]
    assert not any(row[drop].best for row in robustness.rows)


def test_verdicts_are_in_words_from_five_seeds_on() -> None:
    few, enough = (make_audit(("fedavg", "ditto"), ("none",), s, 10, 0.1, luck=0.001) for s in (4, 5))
    sheet = sheets.compared(find(few))
    assert sheet is not None and "too few seeds to tell" in sheet.words
    sheet = sheets.compared(find(enough))
    assert sheet is not None and "too few" not in sheet.words
    assert {c.name: cell.small for c, cell in zip(sheet.columns, sheet.rows[0], strict=True)}[
        "accuracy_mean"
    ] == "better"


def test_csv_keeps_every_digit(audit: AuditData, tmp_path: Path) -> None:
    paths = {path.stem: path for path in write_tables(audit, tmp_path, "csv")}
    rows = list(csv.DictReader(io.StringIO(paths["accuracy"].read_text())))
    for row in rows:
        cells = audit.cells.filter(method=row["method"], attack=row["attack"])
        assert float(row["accuracy_mean"]) == float(np.mean(cells["accuracy_mean"]))
        assert float(row["accuracy_mean_low"]) <= float(row["accuracy_mean"]) <= float(row["accuracy_mean_high"])
    clients = list(csv.DictReader(io.StringIO(paths["clients"].read_text())))
    assert np.array_equal([float(r["accuracy"]) for r in clients], audit.clients["accuracy"])


def test_the_tables_have_the_same_names_and_rows_in_every_format(audit: AuditData, tmp_path: Path) -> None:
    names = [{p.stem for p in write_tables(audit, tmp_path / f, f)} for f in ("markdown", "latex", "csv")]  # type: ignore[arg-type]
    assert names[0] == names[1] == names[2] >= {"headline", "compared", "tests", "parity", "clients", "levelling_down"}
    for name in names[0]:
        rows = len((tmp_path / "csv" / f"{name}.csv").read_text().splitlines()) - 1
        assert (tmp_path / "markdown" / f"{name}.md").read_text().count("\n| ") == rows + 2
        assert (tmp_path / "latex" / f"{name}.tex").read_text().count(r" \\") == rows + 1


def test_names_do_not_break_files(tmp_path: Path) -> None:
    data = make_audit(("a|b & c_d", "=1+1", "x\ny{}\\"), ("none",), seeds=1, clients=3)
    write_tables(data, tmp_path, "markdown")
    write_tables(data, tmp_path, "latex")
    write_tables(data, tmp_path, "csv")
    table = [line for line in (tmp_path / "headline.md").read_text().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(sheets.HEADLINE) + 1}
    body = (tmp_path / "headline.tex").read_text()
    assert r"a|b \& c\_d" in body and r"\{\}\textbackslash{}" in body
    names = [r["method"] for r in csv.DictReader(io.StringIO((tmp_path / "headline.csv").read_text()))]
    assert names == ["a|b & c_d", "'=1+1", "x\ny{}\\"]


def test_an_unknown_format_is_refused_by_name(audit: AuditData, tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="markdow"):
        write_tables(audit, tmp_path, "markdow")  # type: ignore[arg-type]
    with pytest.raises(EquipoiseError, match="png"):
        write_figures(audit, tmp_path, "png")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ figures


def test_every_figure_is_valid_in_plotlys_own_terms(found: Findings) -> None:
    panels = [panel for picture in pictures(found) for panel in picture.panels]
    for panel in panels:
        drawn = go.Figure(figures.printable(panel))
        assert len(drawn.data) >= 1
        assert '"@' not in json.dumps(figures.printable(panel))
    assert len({p.name for p in panels}) == len(panels)


def test_fronts_grey_the_dominated_and_only_them(found: Findings) -> None:
    for notion in NOTIONS:
        for attack in found.attacks:
            figure = charts.front(found, notion, attack)
            assert figure is not None
            table = found.fronts[notion].filter(attack=attack)
            beaten = dict(zip(table["method"], table["dominated"].astype(bool), strict=True))
            marks = {t["name"]: t["marker"]["color"] == "@muted" for t in figure["data"] if t["name"] != "front"}
            assert marks == beaten
            low = MEASURES[notion].better == "low"
            start, end = figure["layout"]["yaxis"]["range"]
            assert (start > end) == low


def test_the_served_curve_is_the_mean_of_sorted_clients(audit: AuditData, found: Findings) -> None:
    figure = charts.served(found, "sign_flip")
    assert figure is not None and [t["name"] for t in figure["data"]] == ["fedavg", "ditto", "rffl"]
    frame = audit.clients.to_pandas()
    frame = frame[(frame.method == "ditto") & (frame.attack == "sign_flip") & ~frame.malicious]
    expected = np.mean([np.sort(group.accuracy) for _, group in frame.groupby("seed")], axis=0)
    assert figure["data"][1]["y"] == pytest.approx((100 * expected).tolist(), rel=1e-4)


def test_gap_boxes_are_the_quartiles_of_honest_clients(audit: AuditData, found: Findings) -> None:
    figure = charts.gaps(found, "sign_flip")
    assert figure is not None and len(figure["data"]) == 3
    frame = audit.clients.to_pandas()
    gap = frame[(frame.method == "rffl") & (frame.attack == "sign_flip") & ~frame.malicious].gap
    box = figure["data"][2]
    expected = gap.quantile([0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
    drawn = [box[k][0] for k in ("lowerfence", "q1", "median", "q3", "upperfence")]
    assert drawn == pytest.approx(expected, rel=1e-4)
    assert box["x"][0] == pytest.approx(sorted(gap), rel=1e-4)


def test_a_method_that_an_attack_broke_is_not_the_steadiest() -> None:
    failed = [("ditto", "b", seed) for seed in range(3)]
    data = make_audit(("fedavg", "ditto"), ("none", "a", "b"), effect={"ditto": 0.1}, failed=failed)
    found = find(data)
    assert "whatever the attack, fedavg keeps at least" in heat(found, "accuracy_mean")
    assert found.worst_attack("ditto") is None and found.worst_attack("fedavg") in ("a", "b")


def test_the_heat_map_has_every_cell(audit: AuditData, found: Findings) -> None:
    figure = charts.heat(found, "accuracy_mean")
    assert figure is not None
    pairs = [(m.name, a.name) for m in audit.methods for a in audit.attacks]
    expected = [100 * _plain_measures(audit, *pair)["accuracy_mean"] for pair in pairs]
    assert np.ravel(figure["data"][0]["z"]) == pytest.approx(expected, rel=1e-4)


def test_learning_bands_hold_every_seed(audit: AuditData, found: Findings) -> None:
    figure = charts.learning(found, "worst_10", "none")
    assert figure is not None and len(figure["data"]) == 6
    rows = audit.curves.to_pandas()
    rows = rows[(rows.method == "fedavg") & (rows.attack == "none")].groupby("round").worst_10
    band, line = figure["data"][0], figure["data"][3]
    assert line["y"] == pytest.approx((100 * rows.mean()).tolist(), rel=1e-4)
    assert band["y"] == pytest.approx([*(100 * rows.min()), *(100 * rows.max())[::-1]], rel=1e-4)


def test_the_ledger_marks_who_was_removed_and_when(found: Findings) -> None:
    panels = {p.name: p for picture in pictures(found) if picture.name == "ledger" for p in picture.panels}
    panel = panels["ledger-reputation-2-1"]
    honest, attackers, removed = panel.figure["data"]
    assert [t["name"] for t in panel.figure["data"]] == ["honest clients", "attackers", "removed"]
    assert removed["x"] == [3, 3] and set(attackers["text"]) == {10, 11} and set(honest["text"]) == set(range(10))
    assert "removed 2 of 2 attackers and 0 of 10 honest clients, the first in round 3" in panel.reading
    assert "removed nobody" in panels["ledger-reputation-2-0"].reading


def test_the_partition_reading_counts_classes_and_samples(audit: AuditData, found: Findings) -> None:
    panel = next(p.panels[0] for p in pictures(found) if p.name == "partition")
    assert np.array_equal(np.array(panel.figure["data"][0]["z"]).T, audit.partition)
    sizes = audit.partition.sum(axis=1)
    assert f"{sizes.min():,} to {sizes.max():,} training samples" in panel.reading


def test_a_missing_drawing_program_is_explained(
    audit: AuditData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> list[bytes]:
        raise RuntimeError("Chrome not found\nat all")

    monkeypatch.setattr(figures, "_render", fails)
    with pytest.raises(EquipoiseError, match=r"no browser could draw them.*Chrome not found") as caught:
        write_figures(audit, tmp_path / "out")
    assert "chromium" in caught.value.hint and not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(EquipoiseError, match="kaleido is not installed"):
        write_figures(audit, tmp_path / "out")


# ------------------------------------------------------------------------------------------ looks


def _luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted([_luminance(a), _luminance(b)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_colours_stand_out(colours: dict[str, str]) -> None:
    for i in range(7):
        assert contrast(colours[f"c{i}"], colours["paper"]) >= 3.0
    for name in ("ink", "muted", "bad"):
        assert contrast(colours[name], colours["paper"]) >= (4.0 if name == "muted" else 4.5)
    assert len({colours[f"c{i}"] for i in range(7)}) == 7


def test_no_two_of_forty_methods_look_the_same() -> None:
    assert len({(theme.colour(i), theme.dash(i)) for i in range(40)}) == 40
    assert len({(theme.colour(i), theme.symbol(i)) for i in range(40)}) == 40


@given(st.lists(st.floats(0, 100), min_size=1, max_size=25))
def test_labels_keep_their_distance_and_their_order(values: list[float]) -> None:
    placed = labels.spread(values, 4.0, 0.0, 100.0)
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(placed)[order]) >= 4.0 - 1e-9).all()
    assert min(placed) >= -1e-9 and max(placed) <= 100.0 + 1e-9


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert labels.spread([10.0, 50.0, 30.0], 4.0, 0.0, 100.0) == [10.0, 50.0, 30.0]


def test_names_beside_marks_do_not_cover_each_other() -> None:
    points = [(0.5, 0.5), (0.52, 0.5), (0.5, 0.53)]
    sizes = [(265.0, 260.0), (430.0, 260.0)]
    names = ["fedavg", "ditto", "rffl"]
    moved = labels.places(points, names, sizes)
    for w, h in sizes:
        spots = [(x * w + dx, y * h + dy) for (x, y), (dx, dy) in zip(points, moved, strict=True)]
        for (i, a), (j, b) in itertools.combinations(enumerate(spots), 2):
            half = 7.0 * (len(names[i]) + len(names[j])) / 2
            assert abs(a[0] - b[0]) >= half - 1e-9 or abs(a[1] - b[1]) >= 15 - 1e-9


@given(st.floats(-1e5, 1e5))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    shown = words.digits(value).replace("−", "-")
    assert float(shown) == pytest.approx(value, rel=0.0051, abs=1e-300)


@pytest.mark.parametrize(
    ("value", "measure", "shown"),
    [
        (0.8749, "accuracy_mean", "87.5"),
        (-0.031, "drop", "−3.1"),
        (-0.0001, "drop", "0.0"),
        (float("nan"), "drop", "–"),
        (float("inf"), "loss_mean", "∞"),
        (0.0012345, "gap_variance", "0.00123"),
        (1234.5, "seconds", "1234"),
        (0.0, "gap_variance", "0"),
        (1e-9, "gap_variance", "1.00e-09"),
    ],
)
def test_numbers_read_as_people_write_them(value: float, measure: str, shown: str) -> None:
    assert words.number(value, measure) == shown


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda v: abs(v) > 1e-6), min_size=2, max_size=30))
def test_a_stretched_scale_keeps_order_and_signs(values: list[float]) -> None:
    made = scales.scale(values)(values)
    order = np.argsort(values, kind="stable")
    assert (np.diff(made[order]) >= 0).all() and (np.sign(made) == np.sign(values)).all()


def test_one_diverged_run_stretches_the_scale_and_nothing_else_does() -> None:
    calm = np.linspace(-0.2, 0.5, 50)
    assert scales.scale(calm) == scales.Scale() and scales.scale(calm).axis(calm) == {}
    wild = np.append(calm, 2.0e6)
    stretch = scales.scale(wild)
    assert stretch.unit == 0.1
    axis = stretch.axis(wild)
    assert axis["ticktext"] == ["0", "10", "1000", "10<sup>5</sup>"]
    assert np.ptp(stretch(calm)) > 0.15 * np.ptp(stretch(wild))
    assert np.array(axis["tickvals"]) == pytest.approx(sorted(axis["tickvals"]))


def test_long_lists_are_cut_and_say_so() -> None:
    assert words.listed(["a"]) == "a" and words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.listed(list("abcdefg")) == "a, b, c, d and 3 more"


def test_a_card_without_anything_is_a_card(audit: AuditData) -> None:
    made = page(replace(audit, methods=tuple(Card(m.name) for m in audit.methods)))
    assert made.count('<article class="card">') == len(audit.methods) + len(audit.attacks)


def test_html_tables_escape_their_cells() -> None:
    sheet = sheets.plain("t", "<i>", "", Table({"method": np.array(["<b>"], object), "x": np.array([1.5])}))
    made = tables.html(sheet)
    assert "<b>" not in made and "<i>" not in made and 'data-value="1.5"' in made
