"""Small federations that are drawn instead of loaded: the toy problems of the papers, each client with data of its own.

Every function takes a seed and returns a Federation; SYNTHETIC lists them by name. Where a problem has true parameters
that a test or a plot needs, a function `..._truth` of the same arguments gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.partition import split_clients
from equipoise.errors import require
from equipoise.streams import Stream


def _blocks(sizes: Sequence[int]) -> list[Tensor]:
    """The numbers 0, 1, ... in consecutive blocks, one per client."""
    return list(torch.tensor_split(torch.arange(sum(sizes)), torch.tensor(sizes).cumsum(0)[:-1].tolist()))


def _fixed(data: Dataset, clients: int, train: int, how: str) -> Federation:
    """Clients hold equal consecutive blocks, of which the first `train` samples are for training, the rest for test."""
    blocks = torch.arange(len(data)).view(clients, -1)
    none = Split.of([torch.empty(0, dtype=torch.int64)] * clients)
    splits = {"train": Split.of(list(blocks[:, :train])), "validation": none, "test": Split.of(list(blocks[:, train:]))}
    return Federation(data, splits, how)


def eagle_synthetic(*, samples: int = 100, test: float = 0.2, validation: float = 0.2, seed: int = 0) -> Federation:
    """Three clients whose two classes are easy, harder and hard to separate; the last client's data are rotated.

    Erraji, Perrot and Bellet, "Loss gap parity for fairness in heterogeneous federated learning" (EAGLE), 2026, section
    4, "Synthetic data". Client k draws `samples` points in the plane, half of each class:

        x | y = 1 ~ N((m_k, m_k), I),  x | y = 0 ~ N((-m_k, -m_k), I),  m = (2, 1, 0.5)

    and client 2's points are turned by 45 degrees around the origin. The model is logistic regression.

    samples: how many points a client has, 2 or more.

    Departures: classes are 0 and 1 instead of -1 and 1. The paper gives neither the share of the classes (here: equal,
    the odd sample goes to class 0), nor the direction of the turn (here: anticlockwise), nor the sizes of the splits of
    the 100 points (here: 60 train, 20 validation, 20 test, at random). The caption of its figure 5 says that clients 1
    and 2 share a separator; by the text, which is followed here, clients 0 and 1 do.
    """
    require(samples >= 2, "eagle-synthetic: samples", samples, "2 or more per client")
    stream = Stream(seed).child("data", "eagle-synthetic")
    client, sample = torch.arange(3)[:, None], torch.arange(samples)[None, :]
    y = (sample >= samples - samples // 2).to(torch.int64).expand(3, -1)
    centre = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)[client] * (2 * y - 1)
    x = centre[..., None] + stream.child("x").normal(client[..., None], sample[..., None], torch.arange(2))
    half = 0.5**0.5
    x[2] = x[2] @ torch.tensor([[half, half], [-half, half]], dtype=torch.float64)
    data = Dataset("eagle-synthetic", x.view(-1, 2).to(torch.float32), y.reshape(-1), 2)
    how = f"eagle-synthetic(samples={samples}, test={test:g}, validation={validation:g}, seed={seed})"
    split = stream.child("split")
    return split_clients(data, _blocks([samples] * 3), test=test, validation=validation, stream=split, how=how)


_TOY_CENTRES = {  # problem: client: group: (x, y)
    1: (((0.5, 2.0), (2.5, 1.0)), ((1.0, 2.2), (2.2, 0.8))),
    2: (((0.5, 2.0), (2.0, 1.0)), ((0.5, 2.0), (2.5, 1.8))),
    3: (((1.0, 2.0), (2.5, 1.0)), ((1.0, 2.0), (2.5, 1.0))),
}
_TOY_DEVIATIONS = {1: (0.5, 0.5), 2: (0.35, 0.25), 3: (1.0, 0.3)}
_TOY_SIZES = {1: ((100, 20), (100, 20)), 2: ((150, 30), (50, 10)), 3: ((150, 30), (50, 10))}  # group: (train, test)


def fedtilt_toy(problem: int = 1, *, seed: int = 0) -> Federation:
    """Two clients, two Gaussian groups each in the plane: classes that are alike (1), unequal (2), or noisy (3).

    Zhang, Mares De La Cruz and Wang, "FedTilt: towards multi-level fairness-preserving and robust federated learning",
    2025, section IV-A and Table IV. Group g of client n is N(centre_ng, sigma_g^2 I), and its class is g. Problem 1:
    100 points of each group to train on, 20 to test; problems 2 and 3: 150 and 50, tested on 30 and 10. In problem 3,
    N(0, 0.15^2) noise is added to 10% of the first group's training points; column "outlier" marks them.
    The model is logistic regression.

    problem: which of the three problems, 1 to 3.

    Departures: the paper's "100 data points from the both classes" is read as 100 of each, which gives all problems 200
    training points per client. Outliers are made in the training part only, so that tests measure the clean problem.
    """
    require(problem in _TOY_CENTRES, "fedtilt-toy: problem", problem, "1, 2 or 3")
    stream = Stream(seed).child("data", "fedtilt-toy", problem)
    (train0, test0), (train1, test1) = _TOY_SIZES[problem]
    y = torch.cat([torch.full((n,), g) for n, g in ((train0, 0), (train1, 1), (test0, 0), (test1, 1))])
    client, sample, axis = torch.arange(2)[:, None, None], torch.arange(len(y))[:, None], torch.arange(2)
    centre = torch.tensor(_TOY_CENTRES[problem], dtype=torch.float64)[:, y]
    deviation = torch.tensor(_TOY_DEVIATIONS[problem], dtype=torch.float64)[y, None]
    outlier = torch.arange(len(y)) < (train0 // 10 if problem == 3 else 0)
    noise = 0.15 * outlier[:, None] * stream.child("noise").normal(client, sample, axis)
    x = centre + deviation * stream.child("x").normal(client, sample, axis) + noise
    marks = {"outlier": outlier.to(torch.int64).repeat(2)}
    data = Dataset("fedtilt-toy", x.view(-1, 2).to(torch.float32), y.repeat(2), 2, attributes=marks)
    return _fixed(data, 2, train0 + train1, f"fedtilt-toy(problem={problem}, seed={seed})")


def _models(name: str, clients: int, dim: int, theta: float, tau: float, bad: int, tau_a: float, seed: int) -> Tensor:
    """[K, dim]: the clients' true models, N(theta, tau^2) for the benign, N(theta, tau_a^2) for the last `bad`."""
    require(clients >= 1, f"{name}: clients", clients, "1 or more")
    require(dim >= 1, f"{name}: the number of dimensions", dim, "1 or more")
    require(0 <= bad <= clients, f"{name}: malicious", bad, f"from 0 to all {clients} clients")
    require(tau >= 0 and tau_a >= 0, f"{name}: (tau, tau_a)", (tau, tau_a), "standard deviations, 0 or more")
    client = torch.arange(clients)[:, None]
    spread = torch.where(client < clients - bad, tau, tau_a)
    return theta + spread * Stream(seed).child("data", name, "models").normal(client, torch.arange(dim))


def ditto_point_truth(
    clients: int = 100,
    *,
    dim: int = 1,
    theta: float = 0.0,
    tau: float = 1.0,
    malicious: int = 0,
    tau_a: float = 10.0,
    seed: int = 0,
) -> Tensor:
    """[K, dim]: the points that the clients of `ditto_point` observe."""
    return _models("ditto-point", clients, dim, theta, tau, malicious, tau_a, seed)


def ditto_point(
    clients: int = 100,
    samples: int = 10,
    *,
    sigma: float = 1.0,
    tau: float = 1.0,
    malicious: int = 0,
    tau_a: float = 10.0,
    theta: float = 0.0,
    dim: int = 1,
    test: int = 10,
    seed: int = 0,
) -> Federation:
    """Every client sees noisy observations of a point of its own; the points of all clients lie around a common one.

    Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021, section 3.3. Client k's
    `samples` (n) observations are

        x_ki = v_k + z_ki,  z_ki ~ N(0, sigma^2),  v_k ~ N(theta, tau^2), or N(theta, tau_a^2) for the malicious

    The last `malicious` (K_a) client ids are the malicious ones. Its local loss is (1/2)(v - mean_i x_ki)^2. As a
    regression: inputs are all 1 and the observations are the labels [n, dim], so a linear model without bias and with
    half the squared error has that loss up to a constant, and its weight is v. `test` further observations of the same
    point are each client's test split.

    samples: how many observations a client trains on, 1 or more. test: how many observations it is tested on, 0 or
    more. dim: how many numbers a point has, 1 or more.

    Departures: theta, which has a flat prior in the paper, is given; points may have `dim` > 1 dimensions, independent
    of each other. The paper's figures do not state their numbers; the defaults are ours.
    """
    require(samples >= 1, "ditto-point: samples", samples, "1 or more per client")
    require(sigma >= 0 and test >= 0, "ditto-point: (sigma, test)", (sigma, test), "0 or more")
    models = ditto_point_truth(clients, dim=dim, theta=theta, tau=tau, malicious=malicious, tau_a=tau_a, seed=seed)
    client, sample = torch.arange(clients)[:, None, None], torch.arange(samples + test)[:, None]
    noise = Stream(seed).child("data", "ditto-point", "noise").normal(client, sample, torch.arange(dim))
    y = (models[:, None] + sigma * noise).view(-1, dim).to(torch.float32)
    data = Dataset("ditto-point", torch.ones(len(y), 1), y, 0)
    how = f"ditto-point(clients={clients}, samples={samples}, sigma={sigma:g}, tau={tau:g}, malicious={malicious}"
    return _fixed(data, clients, samples, f"{how}, tau_a={tau_a:g}, theta={theta:g}, dim={dim}, seed={seed})")


def ditto_linear_truth(
    clients: int = 100,
    *,
    features: int = 5,
    theta: float = 0.0,
    tau: float = 1.0,
    malicious: int = 0,
    tau_a: float = 10.0,
    seed: int = 0,
) -> Tensor:
    """[K, features]: the true weights of the clients of `ditto_linear`."""
    return _models("ditto-linear", clients, features, theta, tau, malicious, tau_a, seed)


def ditto_linear(
    clients: int = 100,
    samples: int = 20,
    *,
    features: int = 5,
    b: float = 1.0,
    sigma: float = 1.0,
    tau: float = 1.0,
    malicious: int = 0,
    tau_a: float = 10.0,
    theta: float = 0.0,
    test: int = 20,
    seed: int = 0,
) -> Federation:
    """Every client has a linear regression of its own, with features that are exactly orthogonal.

    Li et al. (see `ditto_point`), section 3.3 and its appendix A.2. With n = `samples`:

        y_k = X_k v_k + z_k,  X_k' X_k = n b I,  z_k ~ N(0, sigma^2 I),  v_k ~ N(theta, tau^2 I) or N(theta, tau_a^2 I)

    The last `malicious` client ids are the malicious ones. Orthogonality makes this the point estimation of v_k from
    its least-squares estimate, with noise sigma^2 / (n b). Inputs are kept in float64: there it holds to rounding.

    samples: how many samples a client trains on, at least as many as features. test: how many samples it is tested on,
    0 or more. b: the mean square of a feature, above 0.

    Departures: theta is given, one number for all weights. Test inputs are N(0, b I), not orthogonalised: only their
    expected covariance is b I. The defaults are ours.
    """
    require(samples >= features, "ditto-linear: samples", samples, f"at least features = {features}: X'X has full rank")
    require(b > 0, "ditto-linear: b", b, "above 0")
    require(sigma >= 0 and test >= 0, "ditto-linear: (sigma, test)", (sigma, test), "0 or more")
    models = ditto_linear_truth(
        clients, features=features, theta=theta, tau=tau, malicious=malicious, tau_a=tau_a, seed=seed
    )
    stream = Stream(seed).child("data", "ditto-linear")
    client, sample = torch.arange(clients)[:, None, None], torch.arange(samples + test)[:, None]
    drawn = stream.child("x").normal(client, sample, torch.arange(features))
    orthogonal = torch.linalg.qr(drawn[:, :samples]).Q * samples**0.5
    x = b**0.5 * torch.cat([orthogonal, drawn[:, samples:]], 1)
    y = x @ models[:, :, None] + sigma * stream.child("noise").normal(client, sample)
    data = Dataset("ditto-linear", x.view(-1, features), y.view(-1, 1).to(torch.float32), 0)
    how = f"ditto-linear(clients={clients}, samples={samples}, features={features}, b={b:g}, sigma={sigma:g}"
    how += f", tau={tau:g}, malicious={malicious}, tau_a={tau_a:g}, theta={theta:g}, seed={seed})"
    return _fixed(data, clients, samples, how)


def leaf_synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    clients: int = 30,
    iid: bool = False,
    features: int = 60,
    classes: int = 10,
    test: float = 0.1,
    validation: float = 0.0,
    seed: int = 0,
) -> Federation:
    """Every client labels Gaussian inputs with a linear model of its own; beta says how far apart the inputs lie.

    synthetic(alpha, beta) of Li et al., "Federated optimization in heterogeneous networks" (FedProx), MLSys 2020,
    section 5.1. Client k has int(lognormal(4, 2)) + 50 samples

        y = argmax(W_k x + b_k),  W_k, b_k ~ N(u_k, 1),  u_k ~ N(0, alpha),
        x ~ N(v_k, Sigma),  Sigma_jj = j^-1.2,  v_kj ~ N(B_k, 1),  B_k ~ N(0, beta)

    With `iid`, all clients share one W, b ~ N(0, 1) and v_k = 0, and alpha and beta play no part. Without, u_k adds the
    same number to the score of every class: by its definition alpha changes no label, and models differ between clients
    because each draws its own.

    alpha: standard deviation of what is added to all of a client's model, 0 or more; it changes no label. beta:
    standard deviation of where the clients' inputs lie, 0 or more. iid: whether all clients share one model and one
    distribution of inputs. classes: how many classes there are, 2 or more.

    Departures: alpha and beta are standard deviations, as in the authors' program (the paper does not say; at 0 and 1
    it makes no difference). One sample in ten is for test, as there; which ones is drawn at random.
    """
    name = "leaf-synthetic"
    require(alpha >= 0 and beta >= 0, f"{name}: (alpha, beta)", (alpha, beta), "0 or more")
    require(clients >= 1 and features >= 1, f"{name}: (clients, features)", (clients, features), "1 or more")
    require(classes >= 2, f"{name}: classes", classes, "2 or more")
    stream, client = Stream(seed).child("data", name), torch.arange(clients)
    sizes = (4.0 + 2.0 * stream.child("size").normal(client)).exp().to(torch.int64) + 50
    owner = torch.repeat_interleave(client, sizes)
    feature, column = torch.arange(features), torch.arange(classes)
    shift = (0.0 if iid else alpha) * stream.child("u").normal(client)[:, None]
    model = torch.zeros_like(client) if iid else client  # with iid all clients read the same draw
    weights = shift[..., None] + stream.child("W").normal(model[:, None, None], feature[:, None], column)
    bias = shift + stream.child("b").normal(model[:, None], column)
    centre = beta * stream.child("B").normal(client)[:, None] + stream.child("v").normal(client[:, None], feature)
    centre = torch.zeros_like(centre) if iid else centre
    spread = (feature + 1.0).to(torch.float64) ** -0.6
    noise = stream.child("x").normal(torch.arange(len(owner))[:, None], feature)
    x = (centre[owner] + spread * noise).to(torch.float32)
    parts = _blocks(sizes.tolist())
    y = torch.cat([(x[p].double() @ weights[k] + bias[k]).argmax(1) for k, p in enumerate(parts)])
    how = f"{name}(alpha={alpha:g}, beta={beta:g}, clients={clients}, iid={iid}, features={features}"
    how += f", classes={classes}, test={test:g}, validation={validation:g}, seed={seed})"
    data, split = Dataset(name, x, y, classes), stream.child("split")
    return split_clients(data, parts, test=test, validation=validation, stream=split, how=how)


SYNTHETIC: dict[str, Callable[..., Federation]] = {
    "eagle-synthetic": eagle_synthetic,
    "fedtilt-toy": fedtilt_toy,
    "ditto-point": ditto_point,
    "ditto-linear": ditto_linear,
    "leaf-synthetic": leaf_synthetic,
}
