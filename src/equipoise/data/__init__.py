"""Datasets, how they are split among clients, and federations made from them."""

from equipoise.data.datasets import load
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.own import from_arrays, from_folder
from equipoise.data.partition import partition

__all__ = ["Dataset", "Federation", "Split", "from_arrays", "from_folder", "load", "partition"]
