"""Some pixels of some training samples are replaced by random ones, others in every round.

Zhang, Mares De La Cruz, Wang, "FedTilt: towards multi-level fairness-preserving and robust federated learning", 2025,
section IV-B2 ("persistent random corruptions": 30% of the pixels of 30% of the training samples).

    x_ip <- U[0, 1]      for `pixels` of the pixels p of a sample i, which is chosen with probability `share`

All channels of a pixel are replaced, each by a number of its own. Where inputs are not images, a feature is a pixel.

Departures: every sample is an outlier by a coin of its own, so that 30% of them are on average; which ones, which
pixels and which numbers depend on (round, client, sample) and so stay the same over the epochs of a round. The number
of pixels is exact. The paper injects outliers everywhere (fraction = 1); here it is the run that says where.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.attacks._outliers import Outliers
from equipoise.streams import Stream
from equipoise.threat import Samples


@dataclass(frozen=True, kw_only=True)
class PixelCorruption(Outliers):
    """pixels: the share of an outlier's pixels that are replaced, from 0 to 1, rounded to the nearest number."""

    pixels: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_share("pixels", self.pixels)

    def disturbed(self, samples: Samples, stream: Stream) -> Tensor:
        x = samples.x.flatten(2) if samples.x.ndim > 3 else samples.x.flatten(1)[:, None]
        channel, place = torch.arange(x.shape[1], device=x.device), torch.arange(x.shape[2], device=x.device)
        count = round(self.pixels * len(place))
        if count == 0:
            return samples.x
        client, index = samples.client[:, None], samples.index[:, None]
        draw = stream.child("pixels").uniform(client, index, place)
        hit = draw <= draw.kthvalue(count, dim=1, keepdim=True).values
        value = stream.child("values").uniform(client[..., None], index[..., None], channel[:, None], place)
        return torch.where(hit[:, None], value.to(x.dtype), x).view_as(samples.x)
