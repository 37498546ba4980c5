"""Attacks, one file each. What malicious clients do; no method can see any of it."""

from equipoise.attacks.alie import ALIE
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.free_rider import FreeRider
from equipoise.attacks.gaussian_outliers import GaussianOutliers
from equipoise.attacks.ipm import IPM
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.lie_loss import LieLoss
from equipoise.attacks.lie_size import LieSize
from equipoise.attacks.mimic import Mimic
from equipoise.attacks.min_max import MinMax
from equipoise.attacks.min_sum import MinSum
from equipoise.attacks.model_replacement import ModelReplacement
from equipoise.attacks.pixel_corruption import PixelCorruption
from equipoise.attacks.random_signs import RandomSigns
from equipoise.attacks.random_update import RandomUpdate
from equipoise.attacks.rescale import Rescale
from equipoise.attacks.send_nan import SendNaN
from equipoise.attacks.sign_flip import SignFlip
from equipoise.attacks.value_invert import ValueInvert
from equipoise.attacks.wrong_shape import WrongShape

__all__ = [
    "ALIE",
    "IPM",
    "Backdoor",
    "FreeRider",
    "GaussianOutliers",
    "LabelFlip",
    "LabelNoise",
    "LieLoss",
    "LieSize",
    "Mimic",
    "MinMax",
    "MinSum",
    "ModelReplacement",
    "PixelCorruption",
    "RandomSigns",
    "RandomUpdate",
    "Rescale",
    "SendNaN",
    "SignFlip",
    "ValueInvert",
    "WrongShape",
]
