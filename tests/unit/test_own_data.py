"""The user's own data: every sample goes to its client, and bad arrays are refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.federation import SPLITS, Federation
from equipoise.data.own import from_arrays, from_folder
from equipoise.errors import EquipoiseError


def held(federation: Federation, client: int) -> set[int]:
    """The samples of a client, in whatever split."""
    parts = [federation.splits[name].of_client(client).tolist() for name in SPLITS]
    assert sum(map(len, parts)) == len(set().union(*parts)), "a sample is in two splits"
    return set().union(*parts)


@given(
    ids=st.lists(st.text(max_size=2), min_size=1, max_size=40) | st.lists(st.integers(-9, 9), min_size=1, max_size=40),
    test=st.floats(0, 0.6),
    validation=st.floats(0, 0.3),
    seed=st.integers(0, 5),
)
@settings(max_examples=60)
def test_every_sample_goes_to_its_client_in_sorted_order(ids, test, validation, seed):
    x, y = np.arange(len(ids), dtype=np.float32)[:, None], np.zeros(len(ids), int)
    made = from_arrays(x, y, ids, classes=2, test=test, validation=validation, seed=seed)
    names = sorted(set(ids))
    assert made.n_clients == len(names)
    for number, name in enumerate(names):
        assert held(made, number) == {i for i, one in enumerate(ids) if one == name}
    assert bool((made.sizes > 0).all())
    assert made.data.attributes["client"].tolist() == [names.index(one) for one in ids]


def test_the_split_depends_on_the_seed_and_on_nothing_else():
    x, y, client = np.zeros((60, 2)), np.arange(60) % 2, np.arange(60) % 3
    first, again, other = (from_arrays(x, y, client, seed=seed).splits["test"].index.tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(first) == 12


def test_the_record_says_which_client_is_whom():
    x, y = np.zeros((3, 2)), [0, 1, 0]
    assert from_arrays(x, y, ["zoe", "anna", "anna"]).partition == "own: 2 clients, in order: anna, zoe"
    assert from_arrays(x, y, [1, 0, 1]).partition == "own: 2 clients by id"
    assert from_arrays(x, y, torch.tensor([7, 5, 5])).partition == "own: 2 clients, in order: 5, 7"


@pytest.mark.parametrize(
    ("x", "dtype", "scale"),
    [
        (np.zeros((4, 3, 2, 2), np.uint8), torch.uint8, 1 / 255),
        (np.zeros((4, 5), np.float32), torch.float32, 1.0),
        (np.zeros((4, 5), np.float16), torch.float32, 1.0),
        (np.zeros((4, 5), ">f8"), torch.float64, 1.0),
        (torch.zeros((4, 2, 3), requires_grad=True), torch.float32, 1.0),
        (np.zeros((4, 5), np.int32), torch.int64, 1.0),
        ([[0.5, 1.0]] * 4, torch.float64, 1.0),
    ],
)
def test_samples_keep_the_form_of_a_dataset(x, dtype, scale):
    data = from_arrays(x, [0, 1, 2, 1], "aabb").data
    assert data.x.dtype == dtype
    assert data.scale == scale
    assert data.classes == 3


def test_the_users_array_is_copied():
    x = np.zeros((2, 1), np.float32)
    data = from_arrays(x, [0, 1], "ab").data
    x[:] = 9
    assert data.x.tolist() == [[0], [0]]


def test_labels_may_be_classes_targets_or_probabilities():
    x = np.zeros((4, 2))
    assert from_arrays(x, [0, 1, 0, 1], "aabb", classes=10).data.classes == 10
    assert from_arrays(x, np.array([True, False] * 2), "aabb").data.y.tolist() == [1, 0, 1, 0]
    target = from_arrays(x, [0.5, 1.0, 2.0, 3.0], "aabb").data
    assert (target.classes, target.y.dtype) == (0, torch.float64)
    soft = from_arrays(x, np.full((4, 3), 1 / 3, np.float32), "aabb", classes=3).data
    assert (soft.classes, soft.y.shape) == (3, (4, 3))


X, Y = np.zeros((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "client", "options", "word"),
    [
        (X, Y[:3], "aabb", {}, r"\(4, 2\)"),
        (X, Y, "aab", {}, "4 samples but 3 client ids"),
        (X[:0], Y[:0], "", {}, r"there are no samples: x has shape \(0, 2\)"),
        ([], [], "", {}, "there are no samples"),
        (X[:, :0], Y, "aabb", {}, r"there are no samples: x has shape \(4, 0\)"),
        (np.float64(3), Y, "aabb", {}, "shape"),
        (np.zeros(4), Y, "aabb", {}, r"float64 of shape \(4,\)"),
        (np.zeros((4, 2, 2), np.uint8), Y, "aabb", {}, "uint8"),
        (np.array([None] * 4), Y, "aabb", {}, "object"),
        ([["a"]] * 4, Y, "aabb", {}, "<U1"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0]], Y, "aabb", {}, "x is not an array"),
        (torch.zeros(4, 2, dtype=torch.bfloat16), Y, "aabb", {}, "x is not an array"),
        ([[0.0], [1.0], [np.nan], [np.inf]], Y, "aabb", {}, "x is NaN.* in 2 of 4 samples, first in sample 2 "),
        ([[0.0], [-1e300], [1.0], [1.0]], Y, "aabb", {}, "beyond float32 in 1 of 4 samples, first in sample 1 "),
        (np.ma.masked_less(X - [0, 1], 0), Y, "aabb", {}, "x is a masked array with 4 values missing"),
        (X, np.ma.masked_equal(Y, 1), "aabb", {}, "y is a masked array with 2 values missing"),
        (X, Y - 1, "aabb", {}, "from -1 to 0; .*in 2 of 4 samples, first in sample 0 .*\n.*return_inverse"),
        (X, Y + 1, "aabb", {"classes": 2}, "from 1 to 2; .* sample 1 .*\n.*from 0 to 1"),
        (X, Y * 0, "aabb", {}, "all labels are 0\n.*classes="),
        (X, Y * 50_000, "aabb", {}, "2 different labels run up to 50000.*\n.*return_inverse.*classes=50001"),
        (X, Y * 10**12, "aabb", {}, "1000000000001 classes"),
        *((X, Y, "aabb", {"classes": n}, f"classes is {n}") for n in (-1, 0, 1, 3.5)),
        (X, Y, "aabb", {"classes": "2"}, "classes is '2'"),
        (X, [[0.5, 0.5], [0.4, 0.4]] * 2, "aabb", {"classes": 2}, "no row of probabilities in 2 .* sample 1 "),
        (X, [[0.5, 0.5], [0.5, 0.5], [1.5, -0.5], [1, 0]], "aabb", {"classes": 2}, "no row of .* sample 2 "),
        (X, Y[:, None], "aabb", {}, r"\(4, 1\)"),
        (X, Y * 1.0, "aabb", {"classes": 2}, "must be integers"),
        (X, Y + np.inf, "aabb", {}, "infinity"),
        (X, list("abab"), "aabb", {}, "<U1.*\n.*return_inverse"),
        (X, np.array(list("abab"), object), "aabb", {}, "object.*\n.*return_inverse"),
        (X, Y, ["a", 1, 2, 3], {}, "cannot be sorted"),
        (X, Y, [[1], [1], [2], [2]], {}, "cannot be sorted"),
        (X, Y, [1.0, np.nan, 2.0, 2.0], {}, "NaN"),
        (X, Y, "aabb", {"test": 1.0}, "test"),
        (X, Y, "aabb", {"test": "0.2"}, "test is '0.2'"),
        (X, Y, "aabb", {"validation": None}, "validation is None"),
        (X, Y, "aabb", {"test": 0.5, "validation": 0.5}, "validation"),
    ],
)
def test_bad_arrays_are_refused_with_the_value_found(x, y, client, options, word):
    with pytest.raises(EquipoiseError, match=word):
        from_arrays(x, y, list(client), **options)


def test_clients_that_are_no_list_are_refused():
    with pytest.raises(EquipoiseError, match="client is None"):
        from_arrays(X, Y, None)


def test_arrays_may_be_views_that_run_backwards():
    x, y = np.arange(8.0).reshape(4, 2), np.array([2, 0, 1, 1])
    data = from_arrays(x[:, ::-1], y[::-1], "aabb").data
    assert data.x.tolist() == [[1, 0], [3, 2], [5, 4], [7, 6]]
    assert data.y.tolist() == [1, 1, 0, 2]


def test_a_masked_array_without_gaps_is_an_array():
    assert from_arrays(np.ma.masked_less(X + 1, 0), Y, "aabb").data.x.tolist() == [[1, 1]] * 4


@pytest.mark.parametrize("labels", [[0, 61], [3, 999], list(range(0, 5000, 10))])
def test_sparse_labels_are_classes_still(labels):
    made = from_arrays(np.zeros((len(labels), 1)), labels, [0] * len(labels))
    assert made.data.classes == max(labels) + 1


def test_any_labels_are_classes_where_it_is_said_how_many_there_are():
    assert from_arrays(X, Y * 50_000, "aabb", classes=50_001).data.classes == 50_001
    assert from_arrays(X, Y * 0, "aabb", classes=np.int64(2)).data.classes == 2


# ------------------------------------------------------------------------------------------------------- folders


def save(folder, name, n, *, tests=0, x=None, y=None):
    arrays = {"x": np.zeros((n, 2), np.float32) if x is None else x, "y": np.zeros(n, int) if y is None else y}
    if tests:
        arrays |= {"x_test": np.ones((tests, 2), np.float32), "y_test": np.ones(tests, int)}
    np.savez(folder / f"{name}.npz", **arrays)


def test_a_folder_is_one_client_per_file_in_the_order_of_names(tmp_path):
    for name, n in (("b", 4), ("a", 6), ("c", 2)):
        save(tmp_path, name, n)
    made = from_folder(tmp_path, classes=2, test=0.5, seed=3)
    assert made.n_clients == 3
    assert [held(made, k) for k in range(3)] == [set(range(6)), set(range(6, 10)), {10, 11}]
    assert made.splits["test"].size.tolist() == [3, 2, 1]
    assert made.partition == "own: 3 clients, in order: a, b, c"
    assert made.data.name == tmp_path.name
    assert made.data.attributes["client"].bincount().tolist() == [6, 4, 2]


def test_given_test_arrays_are_the_test_split_and_training_data_stays_whole(tmp_path):
    save(tmp_path, "a", 6, tests=1)
    save(tmp_path, "b", 4, tests=3)
    made = from_folder(tmp_path, test=0.9, validation=0.25)
    assert made.splits["test"].size.tolist() == [1, 3]
    assert (made.sizes + made.splits["validation"].size).tolist() == [6, 4]
    for k in range(2):
        assert made.data.y[made.splits["test"].of_client(k)].eq(1).all()
        assert made.data.y[made.splits["train"].of_client(k)].eq(0).all()
        assert made.data.attributes["client"][torch.tensor(sorted(held(made, k)))].eq(k).all()


def test_a_client_without_samples_is_a_client_still(tmp_path):
    save(tmp_path, "a", 0)
    save(tmp_path, "b", 3)
    assert from_folder(tmp_path, classes=2, test=0.0).sizes.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x": X}, "has no array 'y'; it holds x"),
        ({}, "it holds nothing"),
        ({"x": X, "y": Y[:2]}, "y has shape"),
        ({"x": np.float32(1), "y": Y}, "x has shape"),
        ({"x": X, "y": np.array(list("abab"), object)}, "'y' holds Python objects\n.*number texts from 0"),
        ({"x": np.zeros((4, 3)), "y": Y}, r"shape \[3\] per sample, but a\.npz has float64 of shape \[2\]"),
        ({"x": X.astype(np.float32), "y": Y}, "float32"),
        ({"x": X, "y": Y * 1.0}, "y is float64"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y}, r"a\.npz: has no x_test"),
        ({"x": X, "y": Y, "x_test": X}, r"b\.npz: has x_test but no y_test"),
        ({"x": X, "y": Y, "y_test": Y}, r"b\.npz: has y_test but no x_test"),
        ({"x": X + np.nan, "y": Y}, r"b\.npz: x is NaN.* in 4 of 4 samples, first in sample 0 "),
        ({"x": X, "y": Y - 1}, r"b\.npz: y runs from -1 to 0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, arrays, word):
    save(tmp_path, "a", 4, x=X, y=Y)
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(EquipoiseError, match=word) as caught:
        from_folder(tmp_path)
    assert "b.npz" in str(caught.value)


def test_a_folder_without_samples_is_refused(tmp_path):
    save(tmp_path, "a", 0)
    with pytest.raises(EquipoiseError, match="there are no samples"):
        from_folder(tmp_path)


def test_x_test_without_y_test_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X)
    with pytest.raises(EquipoiseError, match=r"has x_test but no y_test\n.*save both"):
        from_folder(tmp_path)


@pytest.mark.parametrize(("x", "y", "word"), [(X + np.inf, Y, "x_test is NaN"), (X, Y + 1, "y_test runs from 1 to 2")])
def test_what_is_wrong_with_test_arrays_is_told_with_the_file(tmp_path, x, y, word):
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X, y_test=Y)
    np.savez(tmp_path / "b.npz", x=X, y=Y, x_test=x, y_test=y)
    with pytest.raises(EquipoiseError, match=rf"b\.npz: {word}"):
        from_folder(tmp_path, classes=2)


def test_a_folder_without_clients_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(EquipoiseError, match=r"no \.npz files"):
            from_folder(path)
