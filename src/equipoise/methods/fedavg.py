"""Clients train on their own data, the server averages.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017, Algorithm 1 (FederatedAveraging).

    client:  w_k <- w_k - lr * grad F_k(w_k; b)         for every batch b of E local epochs, from w_k = w
    server:  w   <- w - sum_k n_k u_k / sum_k n_k       with u_k = w - w_k

Departures: none. `server = WeightedMean("uniform")` is the plain mean that several later papers call FedAvg.
"""

from equipoise.core import SGD, Method, ServerRule, WeightedMean


def fedavg(*, server: ServerRule = WeightedMean()) -> Method:
    return Method("fedavg", SGD(), server)
