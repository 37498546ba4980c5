"""The papers' tables, run again: ours beside theirs, and whether what they claim holds.

tables    a published table as a TOML file -> cells, one run each
measures  what a table may ask of a finished run
runner    carries cells out, grids first, and goes on where it was stopped
together  rows and columns that one run measures
shared    runs that several tables of a paper have
record    what was measured, kept beside the tables
verdicts  ours against theirs, cell by cell and claim by claim
page      the results as a page of Markdown
"""

from equipoise.reproduce.record import Record
from equipoise.reproduce.runner import run
from equipoise.reproduce.tables import Table, home, load, matching, names

__all__ = ["Record", "Table", "home", "load", "matching", "names", "run"]
