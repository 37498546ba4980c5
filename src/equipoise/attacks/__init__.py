"""Attacks, one file each. What malicious clients do; no method can see any of it."""

from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.sign_flip import SignFlip

__all__ = ["LabelNoise", "SignFlip"]
