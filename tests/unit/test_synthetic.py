"""Synthetic federations: the numbers of the papers, and ground truth that the data agree with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.data.federation import SPLITS, Federation
from equipoise.data.synthetic import (
    SYNTHETIC,
    ditto_linear,
    ditto_linear_truth,
    ditto_point,
    ditto_point_truth,
    eagle_synthetic,
    fedtilt_toy,
    leaf_synthetic,
)
from equipoise.errors import EquipoiseError

torch.set_num_threads(1)


def xy(fed: Federation, client: int, split: str = "train") -> tuple[Tensor, Tensor]:
    index = fed.splits[split].of_client(client)
    return fed.data.x[index].double(), fed.data.y[index]


@pytest.mark.parametrize("name", list(SYNTHETIC))
def test_the_seed_decides_everything(name: str) -> None:
    few = {"clients": 5} if name in ("leaf-synthetic", "ditto-point", "ditto-linear") else {}
    first, again, other = (SYNTHETIC[name](seed=seed, **few) for seed in (5, 5, 6))
    assert torch.equal(first.data.x, again.data.x)
    assert torch.equal(first.data.y, again.data.y)
    assert all(torch.equal(first.splits[s].index, again.splits[s].index) for s in SPLITS)
    pairs = [torch.cat([f.data.x, f.data.y.view(len(f.data), -1)], 1) for f in (first, other)]
    assert pairs[0].shape != pairs[1].shape or not torch.equal(*pairs)
    assert first.partition == again.partition != other.partition


@pytest.mark.parametrize("name", list(SYNTHETIC))
def test_every_sample_has_one_owner_and_one_use(name: str) -> None:
    fed = SYNTHETIC[name]()
    held = torch.cat([fed.splits[s].of_client(k) for s in SPLITS for k in range(fed.n_clients)])
    assert held.sort().values.tolist() == list(range(len(fed.data)))


def test_eagle_has_three_clients_of_a_hundred_points() -> None:
    fed = eagle_synthetic()
    assert fed.n_clients == 3
    for split, size in (("train", 60), ("validation", 20), ("test", 20)):
        assert fed.splits[split].size.tolist() == [size] * 3
    counts = sum(fed.class_counts(s) for s in SPLITS)
    assert isinstance(counts, Tensor)
    assert counts.tolist() == [[50, 50]] * 3


def test_eagle_classes_lie_where_the_paper_says_with_client_2_turned() -> None:
    fed = eagle_synthetic(samples=10_000, test=0.0, validation=0.0)
    for client, centre in enumerate([(2.0, 2.0), (1.0, 1.0), (0.0, 0.5 * 2**0.5)]):
        x, y = xy(fed, client)
        for label, sign in ((1, 1.0), (0, -1.0)):
            points = x[y == label]
            torch.testing.assert_close(points.mean(0), sign * torch.tensor(centre).double(), atol=0.05, rtol=0)
            torch.testing.assert_close(points.T.cov(), torch.eye(2).double(), atol=0.08, rtol=0)


TABLE_IV = {
    (1, 0, 0): (0.5, 2.0, 0.5),
    (1, 0, 1): (2.5, 1.0, 0.5),
    (1, 1, 0): (1.0, 2.2, 0.5),
    (1, 1, 1): (2.2, 0.8, 0.5),
    (2, 0, 0): (0.5, 2.0, 0.35),
    (2, 0, 1): (2.0, 1.0, 0.25),
    (2, 1, 0): (0.5, 2.0, 0.35),
    (2, 1, 1): (2.5, 1.8, 0.25),
    (3, 0, 0): (1.0, 2.0, 1.0),
    (3, 0, 1): (2.5, 1.0, 0.3),
    (3, 1, 0): (1.0, 2.0, 1.0),
    (3, 1, 1): (2.5, 1.0, 0.3),
}


@pytest.mark.parametrize("problem", [1, 2, 3])
def test_fedtilt_groups_are_those_of_table_iv(problem: int) -> None:
    runs = [fedtilt_toy(problem, seed=seed) for seed in range(40)]
    for client in (0, 1):
        for group in (0, 1):
            *centre, deviation = TABLE_IV[problem, client, group]
            drawn = [xy(fed, client, "test") for fed in runs]
            points = torch.cat([x[y == group] for x, y in drawn])
            error = 4 * deviation / len(points) ** 0.5
            torch.testing.assert_close(points.mean(0), torch.tensor(centre).double(), atol=error, rtol=0)
            assert float(points.std(0).mean()) == pytest.approx(deviation, rel=0.1)


def test_fedtilt_sizes_are_those_of_the_text() -> None:
    for problem, train, test in ((1, [100, 100], [20, 20]), (2, [150, 50], [30, 10]), (3, [150, 50], [30, 10])):
        fed = fedtilt_toy(problem)
        assert fed.class_counts("train").tolist() == [train] * 2
        assert fed.class_counts("test").tolist() == [test] * 2


def test_fedtilt_outliers_are_noisier_training_points_of_the_first_group() -> None:
    assert int(fedtilt_toy(2).data.attributes["outlier"].sum()) == 0
    spread: list[Tensor] = []
    for seed in range(400):
        fed = fedtilt_toy(3, seed=seed)
        outlier = fed.data.attributes["outlier"] == 1
        spread.append(fed.data.x[outlier].double() - torch.tensor([1.0, 2.0]))
    for client in (0, 1):
        train = fed.splits["train"].of_client(client)
        assert int(outlier[train].sum()) == 15
        assert (fed.data.y[train[outlier[train]]] == 0).all()
    assert int(outlier.sum()) == 30
    # 1 without the noise; 24,000 numbers put the standard error at 0.009
    assert float(torch.cat(spread).square().mean()) == pytest.approx(1 + 0.15**2, abs=0.011)


def test_fedtilt_has_three_problems() -> None:
    with pytest.raises(EquipoiseError, match="problem is 4"):
        fedtilt_toy(4)


def test_ditto_observations_lie_around_the_true_points() -> None:
    setting: dict[str, Any] = {"tau": 2.0, "malicious": 300, "tau_a": 7.0, "theta": 3.0, "dim": 2, "seed": 1}
    truth = ditto_point_truth(1000, **setting)
    fed = ditto_point(1000, 8, sigma=0.5, test=4, **setting)
    assert (fed.data.x == 1).all()
    assert fed.data.y.shape == (12_000, 2)
    assert fed.splits["train"].size.tolist() == [8] * 1000
    assert fed.splits["test"].size.tolist() == [4] * 1000
    noise = fed.data.y.view(1000, 12, 2) - truth[:, None]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(truth[:700].mean()) == pytest.approx(3.0, abs=0.2)
    assert float(truth[:700].std()) == pytest.approx(2.0, rel=0.06)
    assert float(truth[700:].std()) == pytest.approx(7.0, rel=0.1)


def test_without_noise_every_observation_is_the_point() -> None:
    fed = ditto_point(6, 3, sigma=0.0, test=1, seed=2)
    truth = ditto_point_truth(6, seed=2).float()
    assert torch.equal(fed.data.y.view(6, 4, 1), truth[:, None].expand(6, 4, 1))


@pytest.mark.parametrize("malicious", [0, 4])
def test_dittos_best_lam_is_best_on_point_estimation(malicious: int) -> None:
    clients, n, sigma, tau, tau_a = 20, 5, 1.0, 0.6, 2.0
    setting: dict[str, Any] = {"tau": tau, "malicious": malicious, "tau_a": tau_a, "dim": 4000, "seed": 3}
    truth = ditto_point_truth(clients, **setting)
    local = ditto_point(clients, n, sigma=sigma, test=0, **setting).data.y.view(clients, n, -1).mean(1)
    benign = clients - malicious

    def error(lam: float) -> float:
        personal = (local + lam * local.mean(0)) / (1 + lam)
        return float((personal - truth)[:benign].square().mean())

    best = sigma**2 / n * clients / (clients * tau**2 + malicious / (clients - 1) * (tau_a**2 - tau**2))
    assert error(best) < min(error(0.6 * best), error(1.6 * best), error(0.0), error(1e9))


def test_ditto_regression_features_are_orthogonal_to_rounding() -> None:
    fed = ditto_linear(7, 12, features=5, b=2.5, test=3)
    for client in range(7):
        x, _ = xy(fed, client)
        torch.testing.assert_close(x.T @ x, 12 * 2.5 * torch.eye(5).double(), atol=1e-12, rtol=0)
    test = torch.cat([xy(ditto_linear(7, 12, b=2.5, test=2000), k, "test")[0] for k in range(7)])
    torch.testing.assert_close(test.T.cov(), 2.5 * torch.eye(5).double(), atol=0.15, rtol=0)


def test_ditto_regression_labels_come_from_the_true_weights() -> None:
    truth = ditto_linear_truth(300, seed=4, malicious=30, tau_a=5.0, theta=-1.0)
    exact = ditto_linear(300, 10, sigma=0.0, test=2, seed=4, malicious=30, tau_a=5.0, theta=-1.0)
    expected = exact.data.x.view(300, 12, 5) @ truth[:, :, None]
    torch.testing.assert_close(exact.data.y.view(300, 12, 1).double(), expected, atol=1e-5, rtol=1e-5)
    assert float(truth[:270].mean()) == pytest.approx(-1.0, abs=0.1)
    assert float(truth[270:].std()) == pytest.approx(5.0, rel=0.2)


def test_ditto_least_squares_estimates_have_the_noise_of_point_estimation() -> None:
    n, b, sigma = 10, 4.0, 2.0
    fed, truth = ditto_linear(500, n, b=b, sigma=sigma, test=0), ditto_linear_truth(500)
    x, y = fed.data.x.view(500, n, 5), fed.data.y.view(500, n, 1).double()
    estimate = (x.mT @ y)[..., 0] / (n * b)
    assert float((estimate - truth).square().mean()) == pytest.approx(sigma**2 / (n * b), rel=0.1)


def test_a_regression_needs_as_many_samples_as_features() -> None:
    with pytest.raises(EquipoiseError, match=r"samples is 4\n.*features = 5"):
        ditto_linear(3, 4, features=5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ditto_point(0),
        lambda: ditto_point(3, 0),
        lambda: ditto_point(3, malicious=4),
        lambda: ditto_point(3, tau=-1.0),
        lambda: ditto_point(3, sigma=-1.0),
        lambda: ditto_linear(3, b=0.0),
        lambda: leaf_synthetic(-1.0),
        lambda: leaf_synthetic(classes=1),
        lambda: leaf_synthetic(clients=0),
        lambda: eagle_synthetic(samples=1),
        lambda: eagle_synthetic(test=0.5, validation=0.5),
    ],
)
def test_impossible_settings_are_refused(call: Any) -> None:
    with pytest.raises(EquipoiseError):
        call()


def test_leaf_has_heavy_tailed_sizes_and_decaying_features() -> None:
    fed = leaf_synthetic(0.0, 0.0, clients=60, test=0.0)
    sizes = fed.sizes.double()
    assert sizes.min() >= 50
    assert float((sizes - 50).clamp(min=0.5).log().mean()) == pytest.approx(4.0, abs=0.8)
    assert sizes.max() > 10 * sizes.median()
    largest = int(sizes.argmax())
    variance = xy(fed, largest)[0].var(0)
    torch.testing.assert_close(variance, torch.arange(1, 61).double() ** -1.2, rtol=0.2, atol=0.0)


def test_leaf_inputs_differ_between_clients_by_beta() -> None:
    def centres(beta: float) -> Tensor:
        fed = leaf_synthetic(0.0, beta, clients=60, test=0.0)
        return torch.stack([xy(fed, k)[0].mean() for k in range(60)])  # averages v_k over features: B_k, nearly

    assert float(centres(0.0).std()) < 0.3  # 60 features of N(0, 1): 0.13, and the noise of small clients
    assert float(centres(5.0).std()) == pytest.approx(5.0, rel=0.3)


def test_leaf_labels_do_not_depend_on_alpha_by_its_definition() -> None:
    assert torch.equal(leaf_synthetic(0.0, clients=5).data.y, leaf_synthetic(3.0, clients=5).data.y)


def test_leaf_iid_clients_share_inputs_and_model() -> None:
    fed = leaf_synthetic(iid=True, clients=12, features=20, classes=5, test=0.0)
    means = torch.stack([xy(fed, k)[0].mean(0)[0] * fed.sizes[k] ** 0.5 for k in range(12)])
    assert float(means.abs().max()) < 4.0  # every client's first feature is N(0, 1)
    assert _agreement(fed) > 0.8
    assert _agreement(leaf_synthetic(1.0, 1.0, clients=12, features=20, classes=5, test=0.0)) < 0.6


def _agreement(fed: Federation) -> float:
    """How well a linear model of the even clients does on the odd ones."""
    even = torch.cat([fed.splits["train"].of_client(k) for k in range(0, fed.n_clients, 2)])
    odd = torch.cat([fed.splits["train"].of_client(k) for k in range(1, fed.n_clients, 2)])
    x = torch.cat([fed.data.x.double(), torch.ones(len(fed.data), 1)], 1)
    weights = torch.zeros(x.shape[1], fed.data.classes, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=60)

    def loss() -> Tensor:
        solver.zero_grad()
        value = torch.nn.functional.cross_entropy(x[even] @ weights, fed.data.y[even])
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return float(((x[odd] @ weights).argmax(1) == fed.data.y[odd]).double().mean())
