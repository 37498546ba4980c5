"""Standard normal noise is added to some training samples, others in every round.

Zhang, Mares De La Cruz, Wang, "FedTilt: towards multi-level fairness-preserving and robust federated learning", 2025,
section IV-B2 and appendix G ("persistent Gaussian noises").

    x_i <- min(max(x_i + N(0, I), 0), 1)      for a sample i, which is chosen with probability `share`

Departures: the paper gives neither the share of noisy samples (here 30%, as for its random corruptions) nor whether
pixels are kept in their range (here they are; clip = false adds the noise and nothing else, as inputs that are not
images need). Noise depends on (round, client, sample), so it stays the same over the epochs of a round. The paper
injects outliers everywhere (fraction = 1); here it is the run that says where.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.attacks._outliers import Outliers
from equipoise.streams import Stream
from equipoise.threat import Samples


@dataclass(frozen=True, kw_only=True)
class GaussianOutliers(Outliers):
    """clip: whether noisy pixels are kept in [0, 1]."""

    clip: bool = True

    def disturbed(self, samples: Samples, stream: Stream) -> Tensor:
        flat = samples.x.flatten(1)
        place = torch.arange(flat.shape[1], device=flat.device)
        noise = stream.child("noise").normal(samples.client[:, None], samples.index[:, None], place)
        noisy = (flat + noise).view_as(samples.x)
        return noisy.clamp(0.0, 1.0) if self.clip else noisy
