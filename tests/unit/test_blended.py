"""mnist-blended: clear and blended digits, each used once, more blended ones from client to client."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.blended import blended
from equipoise.data.datasets import load
from equipoise.data.partition import partition
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

Array = np.ndarray[Any, Any]


def digits(n: int, classes: int = 10) -> tuple[Array, Array]:
    """One-pixel images that tell which they are: image i has the value i."""
    return np.arange(n, dtype=np.float64)[:, None, None, None], np.arange(n) % classes


def make(n: int = 400, clients: int = 5, samples: int = 20, least: float = 0.2, seed: int = 0) -> Any:
    return blended(*digits(n), Stream(seed), clients=clients, samples=samples, least=least)


@pytest.mark.parametrize(("clients", "samples"), [(2, 10), (5, 20), (4, 10), (3, 1)])
def test_every_site_has_its_samples_and_its_share_of_ambiguous_ones(clients: int, samples: int) -> None:
    _, _, columns = make(clients=clients, samples=samples)
    for site in range(clients):
        own = columns["ambiguous"][columns["site"] == site]
        assert len(own) == samples
        assert abs(own.sum() - samples * site / (clients - 1)) <= 0.5


def test_clear_images_keep_their_labels_and_none_is_used_twice() -> None:
    x, y, columns = make()
    clear = x[columns["ambiguous"] == 0].ravel().astype(int)
    assert len(set(clear)) == len(clear) == 50
    assert (y[columns["ambiguous"] == 0] == clear % 10).all()


def test_a_blend_lies_between_two_unused_images_of_different_classes_and_has_the_label_of_one() -> None:
    x = np.eye(200)[:, None]  # image i has a single light pixel, at i: a blend shows what it is made of
    y = np.arange(200) % 10
    pixels, labels, columns = blended(1000 * x, y, Stream(1), clients=3, samples=20, least=0.3)
    marked = columns["ambiguous"] == 1
    used = [np.flatnonzero(image) for image in pixels.reshape(len(pixels), -1)]
    together = np.concatenate(used)
    assert len(set(together)) == len(together)
    for light, label, image in zip(
        [used[i] for i in np.flatnonzero(marked)], labels[marked], pixels[marked], strict=True
    ):
        assert len(light) == 2
        assert y[light[0]] != y[light[1]]
        assert label in y[light]
        share = image.ravel()[light] / 1000
        assert share.sum() == pytest.approx(1)
        assert share.min() >= 0.3 - 1e-9


def test_labels_are_drawn_as_often_as_their_digit_is_light() -> None:
    n = 30_000
    x, y = np.repeat([0.0, 1000.0], n)[:, None], np.repeat([0, 1], n)
    pixels, labels, columns = blended(x, y, Stream(1), clients=2, samples=10_000, least=0.2)
    marked = columns["ambiguous"] == 1
    light, is_one = pixels[marked, 0] / 1000, labels[marked] == 1
    for low in (0.2, 0.35, 0.5, 0.65):
        some = (light >= low) & (light < low + 0.15)
        assert is_one[some].mean() == pytest.approx(light[some].mean(), abs=0.03)  # three deviations


def test_soft_labels_are_the_shares_of_the_two_digits() -> None:
    x, y = np.eye(200)[:, None], np.arange(200) % 10
    drawn, soft = (blended(1000 * x, y, Stream(1), clients=3, samples=20, least=0.3, soft=soft) for soft in (0, 10))
    assert np.array_equal(drawn[0], soft[0])
    marked = soft[2]["ambiguous"] == 1
    assert np.array_equal(soft[1][~marked], np.eye(10)[drawn[1][~marked]])
    for image, label, one in zip(soft[0][marked], soft[1][marked], drawn[1][marked], strict=True):
        light = np.flatnonzero(image)
        wanted = np.zeros(10)
        wanted[y[light]] = image.ravel()[light] / 1000
        assert label == pytest.approx(wanted, abs=1e-3) and label[one] > 0


def test_the_seed_decides_everything() -> None:
    (a, p, _), (b, q, _), (c, _, _) = make(seed=3), make(seed=3), make(seed=4)
    assert np.array_equal(a, b)
    assert np.array_equal(p, q)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"clients": 1}, "clients"),
        ({"samples": 0}, "samples"),
        ({"least": 0.0}, "least"),
        ({"least": 0.6}, "least"),
        ({"samples": 60}, "pairs of classes are left"),
        ({"samples": 500}, "pairs of classes are left"),
    ],
)
def test_what_cannot_be_made_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(EquipoiseError, match=told):
        make(**settings)


def write_idx(path: Path, array: Array) -> None:
    path.write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_it_is_made_from_the_files_of_mnist_and_dealt_by_site(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("train", 120), ("t10k", 40)):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", rng.integers(0, 256, (n, 4, 4), dtype=np.uint8))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", rng.integers(0, 10, n, dtype=np.uint8))
    data = load("mnist-blended", folder=tmp_path, clients=3, samples=20)
    assert (data.name, len(data), data.classes, data.x.dtype) == ("mnist-blended", 60, 10, torch.uint8)
    fed = partition(data, "attribute", column="site", test=0.2, validation=0.2)
    shares = [data.attributes["ambiguous"][fed.splits["train"].of_client(k)].double().mean() for k in range(3)]
    assert fed.sizes.tolist() == [12, 12, 12]
    assert (shares[0], shares[2]) == (0, 1)
    assert 0 < shares[1] < 1
    soft = load("mnist-blended", folder=tmp_path, clients=3, samples=20, soft=True)
    assert soft.y.shape == (60, 10) and soft.classes == 10 and soft.y.is_floating_point()
    again = partition(soft, "attribute", column="site", test=0.2, validation=0.2)
    assert torch.equal(again.splits["test"].index, fed.splits["test"].index)
