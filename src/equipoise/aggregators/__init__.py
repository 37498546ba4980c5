"""Robust server rules and filters, one file each."""

from equipoise.aggregators.arc import ARC
from equipoise.aggregators.bucketing import Bucketing
from equipoise.aggregators.bulyan import Bulyan
from equipoise.aggregators.centred_clipping import CentredClipping
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.dnc import DnC
from equipoise.aggregators.flame import FLAME
from equipoise.aggregators.fltrust import FLTrust
from equipoise.aggregators.fools_gold import FoolsGold
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.k_loss import KLoss
from equipoise.aggregators.k_norm import KNorm
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.aggregators.nnm import NNM
from equipoise.aggregators.norm_bounding import NormBounding
from equipoise.aggregators.sign_guard import SignGuard
from equipoise.aggregators.sign_sgd import SignSGD
from equipoise.aggregators.trimmed_mean import TrimmedMean

__all__ = [
    "ARC",
    "FLAME",
    "NNM",
    "Bucketing",
    "Bulyan",
    "CentredClipping",
    "Clip",
    "CoordinateMedian",
    "DnC",
    "FLTrust",
    "FoolsGold",
    "GeometricMedian",
    "KLoss",
    "KNorm",
    "Krum",
    "MultiKrum",
    "NormBounding",
    "SignGuard",
    "SignSGD",
    "TrimmedMean",
]
