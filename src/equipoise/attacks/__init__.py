"""Attacks, one file each. What malicious clients do; no method can see any of it."""

from equipoise.attacks.free_rider import FreeRider
from equipoise.attacks.gaussian_outliers import GaussianOutliers
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.model_replacement import ModelReplacement
from equipoise.attacks.pixel_corruption import PixelCorruption
from equipoise.attacks.random_signs import RandomSigns
from equipoise.attacks.random_update import RandomUpdate
from equipoise.attacks.rescale import Rescale
from equipoise.attacks.sign_flip import SignFlip
from equipoise.attacks.value_invert import ValueInvert

__all__ = [
    "FreeRider",
    "GaussianOutliers",
    "LabelFlip",
    "LabelNoise",
    "ModelReplacement",
    "PixelCorruption",
    "RandomSigns",
    "RandomUpdate",
    "Rescale",
    "SignFlip",
    "ValueInvert",
]
