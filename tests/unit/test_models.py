"""Models, losses, and what may and may not be trained for many clients at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.losses import LOSSES, correct, loss_for
from equipoise.models import MODELS, build
from equipoise.modules import KeyedDropout, adapt, check_forward, dropout_keys, weights
from equipoise.streams import Stream

MNIST, CIFAR, TEXT = (1, 28, 28), (3, 32, 32), (20,)
CASES: list[tuple[str, tuple[int, ...], int, dict[str, Any]]] = [
    ("linear", (100,), 2, {"outputs": 1}),
    ("linear", MNIST, 62, {}),
    ("mlp", MNIST, 10, {"dropout": [0.2, 0.5]}),
    ("cnn", MNIST, 10, {"hidden": [32]}),
    ("cnn-ditto", MNIST, 10, {"hidden": [64]}),
    ("cnn-femnist", MNIST, 62, {}),
    ("cnn-fedlf", CIFAR, 10, {}),
    ("cnn-fedtilt", CIFAR, 10, {}),
    ("cnn-rffl", MNIST, 10, {"standardise": [0.1, 0.28]}),
    ("cnn-rffl-cifar", CIFAR, 10, {}),
    ("resnet", MNIST, 10, {}),
    ("resnet", CIFAR, 100, {}),
    ("text-cnn", TEXT, 2, {"vocabulary": 50, "dim": 16, "filters": 8}),
]
NAMES = [f"{kind}-{'x'.join(map(str, shape))}" for kind, shape, *_ in CASES]


def batch(shape: tuple[int, ...], *lead: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = Stream(9).torch()
    if shape == TEXT:
        return torch.randint(0, 50, (*lead, *shape), generator=g)
    return torch.rand(*lead, *shape, generator=g, dtype=dtype)


def size(module: nn.Module) -> int:
    return Layout.of(weights(module)).size


# ------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(("kind", "shape", "classes", "params"), CASES, ids=NAMES)
def test_every_model_gives_one_output_per_class_and_a_gradient_to_every_weight(
    kind: str, shape: tuple[int, ...], classes: int, params: dict[str, Any]
) -> None:
    module = adapt(build(kind, shape, classes, Stream(1), **params))
    out = check_forward(module, batch(shape, 3))
    assert out.shape == (3, params.get("outputs", classes))
    module.train()(batch(shape, 3)).square().sum().backward()
    for name, p in module.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert bool(p.grad.any()), name


@pytest.mark.parametrize(("kind", "shape", "classes", "params"), CASES, ids=NAMES)
def test_models_as_rows_answer_as_they_do_alone(
    kind: str, shape: tuple[int, ...], classes: int, params: dict[str, Any]
) -> None:
    module = adapt(build(kind, shape, classes, Stream(1), **params)).double().train()
    start = Layout.of(weights(module)).vector(weights(module))
    rows = start + 0.01 * torch.randn(3, len(start), generator=Stream(2).torch(), dtype=torch.float64)
    x, key = batch(shape, 3, 2, dtype=torch.float64), torch.tensor([5, -6, 2**62])
    layout, keys = Layout.of(weights(module)), dropout_keys(module)

    def loss(row: Tensor, x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        out = functional_call(module, {**layout.tensors(row), **dict.fromkeys(keys, key)}, (x,))
        return out.square().sum(), out

    gradients, outputs = vmap(grad(loss, has_aux=True))(rows, x, key)
    for k in range(3):
        gradient, output = grad(loss, has_aux=True)(rows[k], x[k], key[k])
        torch.testing.assert_close(outputs[k], output, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients[k], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("linear", MNIST, 784 * 10 + 10),
        ("mlp", MNIST, 199_210),  # FedLF, 784-200-200-10
        ("cnn", MNIST, 1_663_370),  # McMahan et al. 2017
        ("cnn-ditto", MNIST, 832 + 51_264 + 3136 * 1024 + 1024 + 10_250),
        ("cnn-femnist", MNIST, 416 + 12_832 + 1568 * 128 + 128 + 1_290),
        ("cnn-fedlf", CIFAR, 4_864 + 102_464 + 1600 * 384 + 384 + 384 * 192 + 192 + 1_930),
        ("cnn-rffl", MNIST, 640 + 64 * 16 * 49 + 16 + 256 * 200 + 200 + 2_010),
        ("cnn-rffl-cifar", CIFAR, 896 + 18_496 + 36_928 + 1024 * 64 + 64 + 650),  # no pool behind the third
    ],
)
def test_models_have_the_published_sizes(kind: str, shape: tuple[int, ...], expected: int) -> None:
    assert size(build(kind, shape, 10, Stream(0))) == expected


def test_a_standardised_image_is_what_the_first_convolution_sees() -> None:
    plain, standard = (build("cnn-rffl", MNIST, 10, Stream(0), standardise=s) for s in ([], [0.1, 0.5]))
    x = torch.rand(2, *MNIST, generator=Stream(1).torch())
    with_margin = nn.functional.pad(x, (2, 2, 2, 2))
    torch.testing.assert_close(standard(x), plain[1:]((with_margin - 0.1) / 0.5))


def test_fedlfs_cnn_has_the_five_layers_of_its_table() -> None:
    layers = Layout.of(weights(build("cnn-fedlf", CIFAR, 10, Stream(0)))).layers()
    assert list(layers) == ["conv1", "conv2", "dense1", "dense2", "output"]


def test_the_resnet_keeps_the_variance_near_what_it_divides_by() -> None:
    h = torch.randn(32, *CIFAR, generator=Stream(4).torch())
    for name, layer in build("resnet", CIFAR, 10, Stream(3)).named_children():
        h = layer(h)
        if name.startswith("block"):
            assert 0.7 < float(h.detach().var(dim=(0, 2, 3)).mean()) < 1.4, name


def test_the_resnet_divides_by_the_deviation_that_the_blocks_before_have_added_up() -> None:
    module = build("resnet", CIFAR, 10, Stream(3), widths=[64, 8], blocks=3)
    # Each block adds 0.2^2; a shortcut convolution, here that of the second stage's first block, starts from 1 again.
    expected = [1.0, 1.04, 1.08, 1.12, 1.04, 1.08]
    assert [getattr(module, f"block{i}").beta ** 2 for i in range(1, 7)] == pytest.approx(expected)


def test_a_standardised_convolution_survives_constant_filters() -> None:
    stem = build("resnet", CIFAR, 10, Stream(3)).stem
    nn.init.ones_(stem.weight)
    out = stem(batch(CIFAR, 2))
    out.sum().backward()
    assert out.isfinite().all()
    assert stem.weight.grad.isfinite().all()


def test_a_regression_has_as_many_outputs_as_asked_for() -> None:
    assert build("linear", (7,), 0, Stream(0))(torch.zeros(2, 7)).shape == (2, 1)
    assert build("mlp", (7,), 0, Stream(0), outputs=3)(torch.zeros(2, 7)).shape == (2, 3)


def test_build_depends_on_the_stream_alone_and_leaves_torchs_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    one, again, other = (build("mlp", (8,), 3, Stream(s)) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    late = build("mlp", (8,), 3, Stream(1))
    for name, p in one.named_parameters():
        assert torch.equal(p, again.get_parameter(name))
        assert torch.equal(p, late.get_parameter(name))
        assert not torch.equal(p, other.get_parameter(name))


def test_build_draws_what_torch_draws_with_the_same_seed() -> None:
    stream = Stream(1).child("init")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream.torch().initial_seed())
        expected = nn.Linear(8, 3)
    assert torch.equal(build("linear", (8,), 3, stream).get_parameter("output.weight"), expected.weight)


def test_a_tiny_network_learns_something_to_learn() -> None:
    g = Stream(6).torch()
    x = torch.randn(64, 5, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    module = build("mlp", (5,), 2, Stream(7), hidden=[32])
    for _ in range(300):
        gradients = torch.autograd.grad(LOSSES["cross-entropy"](module(x), y).mean(), list(module.parameters()))
        with torch.no_grad():
            for p, d in zip(module.parameters(), gradients, strict=True):
                p -= 0.5 * d
    assert correct(module(x), y).float().mean() > 0.95


@pytest.mark.parametrize(
    ("kind", "shape", "params", "message"),
    [
        ("cnnn", MNIST, {}, "kind is 'cnnn'.*\n.*'cnn'"),
        ("mlp", MNIST, {"hiden": [3]}, "'hiden'.*\n.*'hidden'"),
        ("linear", MNIST, {"hidden": [3]}, "linear: no parameter is called 'hidden'"),
        ("mlp", MNIST, {"hidden": 200}, "hidden is 200.*\n.*list"),
        ("mlp", MNIST, {"hidden": [0]}, "hidden is"),
        ("mlp", MNIST, {"dropout": [1.0]}, "dropout is"),
        ("mlp", MNIST, {"hidden": [], "dropout": [0.1, 0.1]}, "for 1 linear layers"),
        ("cnn", MNIST, {"channels": []}, "channels is"),
        ("cnn", MNIST, {"kernel": [5, 5, 5]}, "kernel is"),
        ("cnn", MNIST, {"kernel": 4}, "odd"),
        ("cnn", MNIST, {"pool": [2, 2, 1]}, "pool is"),
        ("cnn", MNIST, {"standardise": [0.1]}, "standardise is"),
        ("cnn", MNIST, {"standardise": [0.1, 0.0]}, "standardise is"),
        ("cnn", MNIST, {"padding": "full"}, "padding is 'full'"),
        ("cnn", MNIST, {"activation": "gelu"}, "activation is 'gelu'"),
        ("cnn", (784,), {}, "(784,)"),
        ("cnn", (1, 6, 6), {"padding": "valid"}, "6x6 image is 1x1 in front of convolution 2.*5x5 kernel"),
        ("cnn-fedtilt", (3, 4, 32), {}, "4x32 image is 1x8 in front of convolution 3.*2x2 pool"),
        ("resnet", (1, 5, 28), {}, "5x28.*\n.*8x8"),
        ("text-cnn", TEXT, {}, "vocabulary is not given"),
        ("text-cnn", (4,), {"vocabulary": 5}, "widths"),
        ("text-cnn", MNIST, {"vocabulary": 5}, "1, 28, 28"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_values_found(
    kind: str, shape: tuple[int, ...], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(EquipoiseError, match=message):
        build(kind, shape, 10, Stream(0), **params)


def test_every_parameter_of_every_model_is_checked() -> None:
    for kind, shape in {k: s for k, s, *_ in CASES}.items():
        for name in list(inspect.signature(MODELS[kind]).parameters)[2:]:
            with pytest.raises(EquipoiseError, match=f"{kind}: {name} is 'nonsense'"):
                build(kind, shape, 10, Stream(0), **{name: "nonsense"})
    assert {k for k, *_ in CASES} == set(MODELS)


def test_models_are_made_on_the_cpu_whatever_torchs_default_device_is() -> None:
    with torch.device("meta"):
        module = build("linear", (8,), 3, Stream(1))
    assert torch.equal(module.get_parameter("output.bias"), build("linear", (8,), 3, Stream(1)).output.bias)


# ------------------------------------------------------------------------------------------------- dropout


def mask(module: KeyedDropout, key: int, *shape: int) -> Tensor:
    return functional_call(module.train(), {"key": torch.tensor(key)}, (torch.ones(*shape),)) != 0


def test_a_dropout_mask_is_a_function_of_key_salt_and_position() -> None:
    drop, other = KeyedDropout(0.5, salt=1), KeyedDropout(0.5, salt=2)
    assert torch.equal(mask(drop, 3, 8, 50), mask(drop, 3, 8, 50))
    assert torch.equal(mask(drop, 3, 8, 50), mask(drop, 3, 20, 50)[:8])  # padding a batch changes no real sample
    for different in (mask(drop, 4, 8, 50), mask(other, 3, 8, 50)):
        agreement = (mask(drop, 3, 8, 50) == different).float().mean()
        assert 0.4 < agreement < 0.6


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_the_share_asked_for_and_keeps_the_mean(p: float) -> None:
    out = KeyedDropout(p).train()(torch.ones(1000, 100))
    assert float((out == 0).double().mean()) == pytest.approx(p, abs=0.01)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.05)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])


def test_dropout_at_its_limits_and_out_of_training_is_plain() -> None:
    x = torch.rand(4, 5, generator=Stream(0).torch())
    assert KeyedDropout(0.9).eval()(x) is x
    assert KeyedDropout(0.0).train()(x) is x
    assert not KeyedDropout(1.0).train()(x).any()


def test_feature_dropout_drops_whole_channels() -> None:
    module = adapt(nn.Sequential(nn.Conv2d(1, 64, 1), nn.Dropout2d(0.5))).train()
    out = module[1](torch.ones(3, 64, 4, 4)) != 0
    assert torch.equal(out.all((2, 3)), out.any((2, 3)))
    assert 0.3 < out[..., 0, 0].float().mean() < 0.7
    assert not torch.equal(out[0], out[1])
    for dims, kind in ((1, nn.Dropout1d), (3, nn.Dropout3d)):
        keyed = adapt(nn.Sequential(nn.Linear(1, 1), kind(0.5)))[1]
        assert (keyed.p, keyed.trailing) == (0.5, dims)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_masks_are_the_same_on_the_gpu() -> None:
    x, drop = torch.ones(64, 100), KeyedDropout(0.3, salt=7).train()
    drop.key.fill_(-123456789)
    assert torch.equal(drop(x), drop.cuda()(x.cuda()).cpu())


# ------------------------------------------------------------------------------------------------- any module


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 2))


def test_adapt_replaces_every_dropout_by_one_with_a_mask_of_its_own_and_leaves_the_original_alone() -> None:
    original = net(nn.Dropout(0.5), nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))
    fit = adapt(original)
    assert dropout_keys(fit) == ("1.key", "2.1.key")
    assert type(original[1]) is nn.Dropout
    assert fit[0].weight is not original[0].weight
    assert not torch.equal(mask(fit[1], 3, 8, 50), mask(fit[2][1], 3, 8, 50))
    assert adapt(fit)[1].salt == fit[1].salt  # twice is once
    x = torch.rand(5, 4, generator=Stream(0).torch())
    assert torch.equal(fit.eval()(x), original.eval()(x))


def test_keys_stay_out_of_what_is_saved() -> None:
    assert set(adapt(net(nn.Dropout(0.5))).state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.BatchNorm1d(6), "1.0 is a BatchNorm1d.*\n.*GroupNorm"),
        (lambda: nn.BatchNorm2d(6, track_running_stats=False), "1.0 is a BatchNorm2d"),
        (lambda: nn.SyncBatchNorm(6), "1.0 is a SyncBatchNorm"),
        (lambda: nn.InstanceNorm1d(6, track_running_stats=True), "1.0 is a InstanceNorm1d"),
        (lambda: nn.AlphaDropout(0.5), "1.0 is a AlphaDropout.*\n.*use Dropout"),
        (lambda: nn.FeatureAlphaDropout(0.5), "1.0 is a FeatureAlphaDropout"),
        (lambda: nn.LazyLinear(6), "1.0.weight is not initialised"),
        (lambda: nn.LazyBatchNorm1d(), "not initialised"),
        (lambda: nn.Linear(6, 6).double(), "0.weight is torch.float32 and 1.0.weight is torch.float64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_trained_for_many_clients_is_refused_by_its_path(
    layer: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(EquipoiseError, match=message):
        adapt(net(nn.Sequential(layer())))


def test_modules_without_anything_to_train_are_refused() -> None:
    frozen = net().requires_grad_(False)
    for module in (nn.ReLU(), nn.Dropout(0.5), frozen):
        with pytest.raises(EquipoiseError, match="no parameter to train"):
            adapt(module)


def test_norms_without_batch_statistics_are_welcome() -> None:
    check_forward(adapt(net(nn.GroupNorm(2, 6), nn.LayerNorm(6))), torch.zeros(2, 4))
    adapt(nn.Sequential(nn.Conv1d(1, 6, 1), nn.InstanceNorm1d(6)))


def test_constant_parameters_are_kept_but_are_no_weights() -> None:
    module = net()
    module[0].requires_grad_(False)
    assert list(weights(adapt(module))) == ["1.weight", "1.bias"]
    assert torch.equal(adapt(module)[0].weight, module[0].weight)


class Tied(nn.Module):
    """An encoder and a decoder that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def test_shared_parameters_are_one_weight_and_stay_shared_as_rows() -> None:
    module = adapt(Tied()).double()
    layout = Layout.of(weights(module))
    assert [s.name for s in layout.slots] == ["inner.weight", "outer.bias"]
    rows, x = torch.rand(3, layout.size, generator=Stream(1).torch()).double(), batch((4,), 3, 2, dtype=torch.float64)
    outputs = vmap(lambda row, x: functional_call(module, layout.tensors(row), (x,)))(rows, x)
    for k in range(3):
        w, b = rows[k, :16].view(4, 4), rows[k, 16:]
        torch.testing.assert_close(outputs[k], torch.tanh(x[k] @ w.T) @ w.T + b, rtol=0, atol=1e-12)


class Odd(nn.Module):
    """Does one of the things that a model may not do."""

    seen: Tensor

    def __init__(self, sin: str) -> None:
        super().__init__()
        self.sin, self.layer, self.drop = sin, nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        h = self.drop(self.layer(x))
        if self.sin == "remembers":
            self.seen += 1
        sins = {"drops twice": self.drop, "draws": F.dropout, "flat": lambda h: h.sum(-1), "pair": lambda h: (h, h)}
        return sins.get(self.sin, nn.Identity())(h)


@pytest.mark.parametrize(
    ("sin", "message"),
    [
        ("remembers", "buffer seen changes"),
        ("drops twice", "drop is called 2 times"),
        ("draws", "random numbers of its own"),
        ("flat", r"a batch of 3 gives \(3,\)"),
        ("pair", "a batch of 3 gives tuple"),
    ],
)
def test_check_forward_names_what_a_model_may_not_do_and_changes_nothing(sin: str, message: str) -> None:
    module, state = adapt(Odd(sin)).eval(), torch.get_rng_state()
    with pytest.raises(EquipoiseError, match=message):
        check_forward(module, torch.ones(3, 4))
    assert float(module.seen) == 0.0
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)
    check_forward(adapt(Odd("none")), torch.ones(3, 4))


def test_check_forward_turns_a_failing_model_into_an_error_with_the_shapes() -> None:
    with pytest.raises(EquipoiseError, match=r"fails on a batch \(3, 5\) torch.float32"):
        check_forward(adapt(net()), torch.ones(3, 5))


def test_one_dropout_under_two_names_is_found() -> None:
    drop = nn.Dropout(0.5)
    with pytest.raises(EquipoiseError, match="1 is called 2 times"):
        check_forward(adapt(net(drop, nn.Linear(6, 6), drop)), torch.ones(3, 4))


# ------------------------------------------------------------------------------------------------- losses


def test_cross_entropy_is_torchs_for_hard_and_soft_labels_at_any_depth() -> None:
    g = Stream(3).torch()
    outputs, y = torch.randn(3, 5, 7, generator=g).double(), torch.randint(0, 7, (3, 5), generator=g)
    soft = torch.rand(3, 5, 7, generator=g).double().softmax(-1)
    loss = LOSSES["cross-entropy"]
    for k in range(3):
        expected = F.cross_entropy(outputs[k], y[k], reduction="none")
        torch.testing.assert_close(loss(outputs[k], y[k]), expected, rtol=0, atol=1e-12)
        expected = F.cross_entropy(outputs[k], soft[k], reduction="none")
        torch.testing.assert_close(loss(outputs[k], soft[k]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "outputs", "labels"),
    [
        *(("cross-entropy", 7, labels) for labels in ("class", "soft")),
        *(("squared", 7, labels) for labels in ("class", "soft")),
        *(("squared", 1, "flat"), ("hinge", 1, "binary")),
    ],
)
def test_losses_of_rows_are_the_rows_losses(name: str, outputs: int, labels: str) -> None:
    g = Stream(4).torch()
    out = torch.randn(3, 5, outputs, generator=g).double()
    y = {
        "class": torch.randint(0, 7, (3, 5), generator=g),
        "binary": torch.randint(0, 2, (3, 5), generator=g),
        "soft": torch.rand(3, 5, 7, generator=g).double(),
        "flat": torch.rand(3, 5, generator=g).double(),
    }[labels]
    loss = LOSSES[name]
    assert loss(out, y).shape == (3, 5)
    alone = torch.stack([loss(out[k], y[k]) for k in range(3)])
    torch.testing.assert_close(loss(out, y), alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(vmap(loss)(out, y), alone, rtol=0, atol=1e-12)
    gradients = vmap(grad(lambda o, y: loss(o, y).sum()))(out, y)
    gradient = grad(lambda o: loss(o, y).sum())(out)
    torch.testing.assert_close(gradients, gradient, rtol=0, atol=1e-12)


def test_squared_is_half_the_squared_distance_and_a_class_is_its_unit_vector() -> None:
    squared = LOSSES["squared"]
    assert squared(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).tolist() == [12.5]
    assert squared(torch.tensor([[3.0]]), torch.tensor([1.0])).tolist() == [2.0]
    assert squared(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])).tolist() == [0.0, 1.0]
    with pytest.raises(EquipoiseError, match="2 outputs for 1 targets"):
        squared(torch.zeros(3, 2), torch.zeros(3))


def test_hinge_is_zero_beyond_the_margin() -> None:
    outputs, y = torch.tensor([[2.0], [0.5], [-2.0], [0.5]]), torch.tensor([1, 1, 0, 0])
    assert LOSSES["hinge"](outputs, y).tolist() == [0.0, 0.5, 0.0, 1.5]
    with pytest.raises(EquipoiseError, match="2 outputs"):
        LOSSES["hinge"](torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))


def test_loss_for_resolves_auto_and_refuses_what_does_not_fit_the_data() -> None:
    outputs, y = torch.tensor([[0.3, -0.2, 1.0]]), torch.tensor([1])
    assert torch.equal(loss_for("auto", 3)(outputs, y), LOSSES["cross-entropy"](outputs, y))
    assert torch.equal(loss_for("squared", 3)(outputs, y), LOSSES["squared"](outputs, y))
    assert loss_for("auto", 0) is LOSSES["squared"]
    assert loss_for("hinge", 2) is LOSSES["hinge"]
    wrong = [("hing", 2, "'hinge'"), ("hinge", 3, "3 classes"), ("cross-entropy", 0, "squared"), ("auto", 1, "1 class")]
    for name, classes, message in wrong:
        with pytest.raises(EquipoiseError, match=message):
            loss_for(name, classes)


@pytest.mark.parametrize("name", ["cross-entropy", "squared"])
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_a_model_must_have_an_output_for_every_class_and_no_more(name: str, outputs: int) -> None:
    with pytest.raises(EquipoiseError, match=f"model gives {outputs} outputs, the data has 3 classes\n.*outputs to 3"):
        loss_for(name, 3)(torch.zeros(2, outputs), torch.zeros(2, dtype=torch.int64))


def test_correct_is_the_largest_output_the_sign_of_a_single_one_and_never_nan() -> None:
    nan = float("nan")
    outputs = torch.tensor([[[0.1, 0.9], [0.9, 0.1]], [[nan, 0.0], [0.0, nan]]])
    assert correct(outputs, torch.tensor([[1, 1], [0, 1]])).tolist() == [[True, False], [False, False]]
    single = torch.tensor([[2.0], [-1.0], [0.0], [nan]])
    assert correct(single, torch.tensor([1, 1, 0, 0])).tolist() == [True, False, True, False]
    assert correct(outputs[0], torch.tensor([[0.2, 0.8], [0.2, 0.8]])).tolist() == [True, False]
