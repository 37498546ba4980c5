"""Images shown pixel by pixel to models with convolutions, plainly and on a CPU: the same answers, only sooner."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise import models
from equipoise.core import Method
from equipoise.engine.net import Net
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods import fedcka
from equipoise.streams import Stream
from tests.small import Of, federation, relative, simulation

CPU = torch.device("cpu")


def made(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Net:
    net = Net(module, 5, "cross-entropy", CPU, dtype)
    net.show(torch.Size(shape))
    return net


def heads(planes: int) -> dict[str, nn.Module]:
    return {"conv": nn.Conv2d(planes, 4, 3, padding=1), "pool": nn.MaxPool2d(2), "head": nn.Linear(4 * 16, 5)}


def by_hand(m: Any, x: Tensor) -> Tensor:
    """A view that one image alone allows."""
    f = m.pool(m.conv(x))
    return m.head(f.view(f.shape[0] * f.shape[1], -1).reshape(len(x), -1))  # type: ignore[no-any-return]


def in_training(m: Any, x: Tensor) -> Tensor:
    f = m.pool(m.conv(x))
    return m.head(f.view(len(x), -1) if m.training else f.flatten(1))  # type: ignore[no-any-return]


def minding(m: Any, x: Tensor) -> Tensor:
    if not x.is_contiguous():
        raise ValueError("images as they were, please")
    return m.head(m.pool(m.conv(x)).flatten(1))  # type: ignore[no-any-return]


def as_it_lies(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.as_strided(m.pool(m.conv(x)), (len(x), 64), (64, 1)))  # type: ignore[no-any-return]


MODULES: dict[str, Callable[[int], nn.Module]] = {
    "reshape": lambda planes: Of(lambda m, x: m.head(m.pool(m.conv(x)).reshape(len(x), -1)), **heads(planes)),
    "view": lambda planes: Of(lambda m, x: m.head(m.pool(m.conv(x)).view(len(x), -1)), **heads(planes)),
    "view by hand": lambda planes: Of(by_hand, **heads(planes)),
    "view in training": lambda planes: Of(in_training, **heads(planes)),
    "as it lies": lambda planes: Of(as_it_lies, **heads(planes)),
    "as it lies, silent at first": lambda planes: silent(Of(as_it_lies, **heads(planes))),
}


def silent(module: Of) -> Of:
    """All answers are 0 until it has learnt something."""
    nn.init.zeros_(module.head.weight)
    nn.init.zeros_(module.head.bias)
    return module


def answers(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    rows = net.initial()[None].clone().requires_grad_()
    (out,) = net.call(
        net.layout.tensors(rows), x[None], torch.zeros(1, dtype=torch.int64), vectorised=False, train=True
    )
    return out[0].detach(), torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape)).sum(), rows)[0]


@pytest.mark.parametrize("kind", [k for k in models.MODELS if k.startswith("cnn") or k == "resnet"])
@pytest.mark.parametrize("planes", [1, 3])
def test_our_models_take_pixels_and_answer_the_same(kind: str, planes: int) -> None:
    net = made(models.build(kind, (planes, 32, 32), 5, Stream(1)), (planes, 32, 32))
    assert net.pixels
    x = torch.rand((3, planes, 32, 32), generator=Stream(2).torch())
    (out, grad), net.pixels = answers(net, x), False
    plain, before = answers(net, x)
    assert relative(out, plain) < 1e-5 and relative(grad, before) < 1e-4
    assert out.stride() == plain.stride()


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("name", MODULES)
def test_a_model_that_minds_is_shown_images_as_they_are(name: str, planes: int) -> None:
    net = made(MODULES[name](planes), (planes, 8, 8))
    assert net.pixels == (name == "reshape")
    answers(net, torch.rand(2, planes, 8, 8))


def test_a_model_may_have_words_of_its_own_for_what_it_minds() -> None:
    assert not made(Of(minding, **heads(2)), (2, 8, 8)).pixels


def test_a_frozen_part_is_no_hindrance() -> None:
    module = MODULES["reshape"](2)
    module.conv.requires_grad_(False)
    assert made(module, (2, 8, 8)).pixels


def test_who_looks_at_features_sees_them_as_they_always_lay() -> None:
    method = Method(client=fedcka().client)
    fed = federation((7, 9), shape=(2, 8, 8), classes=5)
    assert (
        method.client.features
        and not simulation(method, fed, model=MODULES["reshape"](2), run=Run()).simulator.net.pixels
    )


def test_of_one_channel_they_lie_pixel_by_pixel_too() -> None:
    seen: list[tuple[int, ...]] = []
    net = made(
        Of(lambda m, x: (seen.append(x.stride()), m.head(m.pool(m.conv(x)).flatten(1)))[1], **heads(1)), (1, 8, 8)
    )
    answers(net, torch.rand(2, 1, 8, 8))
    assert seen[-1][1] == 1


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (1, 8, 8)), ("linear", (6,)), ("cnn", (1, 8, 8))])
def test_others_are_shown_what_there_is(kind: str, shape: tuple[int, ...]) -> None:
    module = models.build(kind, shape, 5, Stream(1))
    dtype = torch.float64 if kind == "cnn" else torch.float32
    assert not made(module, shape, dtype).pixels


@pytest.mark.parametrize("name", ["reshape", "view"])
@pytest.mark.parametrize("replay", ["on", "off"])
def test_runs_come_to_the_same(name: str, replay: str) -> None:
    fed, module = federation((7, 25, 9), shape=(2, 8, 8), classes=5), MODULES[name](2)

    def ran(pixels: bool) -> Simulation:
        run = Run(executor="loop", replay=replay)  # type: ignore[arg-type]
        sim = simulation(fed=fed, model=module, run=run, train=Train(rounds=3, batch=5, lr=0.05))
        assert sim.simulator.net.pixels == (name == "reshape")
        sim.simulator.net.pixels &= pixels
        for _ in range(3):
            sim.step()
        assert not sim.remarks
        return sim

    one, other = ran(True), ran(False)
    assert relative(one.server.w, other.server.w) < 1e-5
    losses = [sim.evaluate("test")["global"].loss for sim in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
