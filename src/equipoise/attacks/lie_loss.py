"""Malicious clients claim that the model serves them badly, so that methods which help the worst-off listen to them.

The hole is in what is reweighted by reported losses: Li, Sanjabi, Beirami, Smith, "Fair resource allocation in
federated learning" (q-FFL), ICLR 2020, Algorithm 2; Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019.
No paper names this attack.

    F_k <- 1e30 ("huge"), 0 ("zero"), or claim * F_k;      so do the reported signals that are named

A claim of 0 is that of a client that wants to be left alone, or to look converged.

Departures: there is nothing to depart from. The clients train honestly otherwise, or, with label_noise = true, on
labels that mean nothing, so that what they are listened to for is worth nothing.
"""

from dataclasses import dataclass, replace

from equipoise.attacks._lying import Claim, check_claim, told
from equipoise.attacks.label_noise import LabelNoise
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Samples

_HUGE = 1e30  # float32 can hold it, but not its square


@dataclass(frozen=True, kw_only=True)
class LieLoss(Attack):
    """claim: what is said of the loss; as a factor any finite number, 1 is honest. signals: what else is lied about in
    the same way, where the method has clients report it ("gap" is EAGLE's)."""

    claim: Claim = "huge"
    signals: tuple[str, ...] = ("gap",)
    label_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_claim("lie-loss", self.claim, least=float("-inf"))

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        return LabelNoise(count=0).poison(samples, stream) if self.label_noise else samples

    def lie(self, claims: Claims, stream: Stream) -> Claims:
        losses = None if claims.losses is None else told(claims.losses, self.claim, _HUGE)
        signals = {n: told(s, self.claim, _HUGE) if n in self.signals else s for n, s in claims.signals.items()}
        return replace(claims, losses=losses, signals=signals)
