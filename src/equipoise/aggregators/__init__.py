"""Robust server rules and filters, one file each."""

from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum

__all__ = ["Clip", "CoordinateMedian", "Krum", "MultiKrum"]
