"""Malicious clients claim to hold more training samples than everyone else together, and so outweigh everyone else.

Portnoy, Tirosh, Hendler, "Towards federated learning with Byzantine-robust client weighting", Applied Sciences 12
(17), 2022: sample counts that clients report are theirs to invent.

    n_k <- 2^53 ("huge"), 0 ("zero"), or claim * n_k

2^53 is about 1e16; up to there, sums of sizes in float64 are exact.

Departures: the paper names no number. The clients train honestly otherwise, or, with label_noise = true, on labels that
mean nothing, so that what outweighs the others is worth nothing.
"""

from dataclasses import dataclass, replace

from equipoise.attacks._lying import Claim, check_claim, told
from equipoise.attacks.label_noise import LabelNoise
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Samples

_HUGE = 2.0**53


@dataclass(frozen=True, kw_only=True)
class LieSize(Attack):
    """claim: what is said of the size; as a factor 0 or more, 1 is honest (admission refuses sizes below 0)."""

    claim: Claim = "huge"
    label_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_claim("lie-size", self.claim, least=0.0)

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        return LabelNoise(count=0).poison(samples, stream) if self.label_noise else samples

    def lie(self, claims: Claims, stream: Stream) -> Claims:
        return replace(claims, sizes=told(claims.sizes, self.claim, _HUGE))
