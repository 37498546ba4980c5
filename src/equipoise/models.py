"""Models by name.

A model is a plain `nn.Module` that maps a batch [B, *shape] to outputs [B, C] (C classes, or the targets of a
regression). `build` makes one by name, with PyTorch's usual initial weights drawn from a stream; `modules.adapt` makes
it, or any other module, fit the engine.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.errors import EquipoiseError, nearest
from equipoise.streams import Stream

Shape = tuple[int, ...]
Wholes = Sequence[int]
Chances = Sequence[float]
Padding = Literal["same", "valid"]
Activation = Literal["relu", "tanh"]

_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def _image(kind: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise EquipoiseError(f"model {kind}: a sample has shape {shape}", "it needs images: (channels, height, width)")
    return shape[0], shape[1], shape[2]


def _dense(sizes: Wholes, dropout: Chances, activation: Activation = "relu", bias: bool = True) -> dict[str, nn.Module]:
    """Linear layers between `sizes`, with dropout[i] in front of the i-th and an activation behind all but the last."""
    if len(dropout) >= len(sizes):
        hint = "at most one for each linear layer, on what goes into it"
        raise EquipoiseError(f"model: dropout is {tuple(dropout)} for {len(sizes) - 1} linear layers", hint)
    layers: dict[str, nn.Module] = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        if i <= len(dropout) and dropout[i - 1] > 0:
            layers[f"drop{i}"] = nn.Dropout(dropout[i - 1])
        if i < len(sizes) - 1:
            layers |= {f"dense{i}": nn.Linear(inputs, outputs, bias), f"dense{i}_act": _ACTIVATIONS[activation]()}
        else:
            layers["output"] = nn.Linear(inputs, outputs, bias)
    return layers


def linear(shape: Shape, classes: int, *, outputs: int | None = None, bias: bool = True) -> nn.Module:
    """One linear layer: logistic or linear regression, or an SVM, by the loss it is trained with."""
    layers = _dense((math.prod(shape), outputs or max(1, classes)), (), bias=bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **layers))


def mlp(
    shape: Shape, classes: int, *, outputs: int | None = None, hidden: Wholes = (200, 200), dropout: Chances = ()
) -> nn.Module:
    """Hidden layers of the given sizes. The default on 28x28 images is the MLP of FedTilt and FedLF (199,210)."""
    layers = _dense((math.prod(shape), *hidden, outputs or max(1, classes)), dropout)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **layers))


class Standardise(nn.Module):
    """x less a mean, divided by a deviation."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def extra_repr(self) -> str:
        return f"{self.mean}, {self.deviation}"


def cnn(
    shape: Shape,
    classes: int,
    *,
    outputs: int | None = None,
    channels: Wholes = (32, 64),
    kernel: int | Wholes = 5,
    padding: Padding = "same",
    pool: int | Wholes = 2,
    hidden: Wholes = (512,),
    dropout: Chances = (),
    activation: Activation = "relu",
    margin: int = 0,
    standardise: Sequence[float] = (),
) -> nn.Module:
    """Convolutions, each with an activation and a max-pool behind it, then linear layers.

    `kernel` and `pool` are one size or one per convolution, a pool of 1 being none; `dropout[i]` is the chance that an
    input of the i-th linear layer is dropped; `margin` zeros are put around the image first, and then it is
    standardised, by a mean and a deviation if they are given. The default on 28x28 images is McMahan et al.'s CNN
    ("Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; 1,663,370).
    """
    planes, *sides = _image("cnn", shape)
    kernels, same = [kernel] * len(channels) if isinstance(kernel, int) else kernel, padding == "same"
    if len(kernels) != len(channels) or (same and not all(k % 2 for k in kernels)):
        hint = 'one size, or one for each number of channels; odd ones with padding "same"'
        raise EquipoiseError(f"model cnn: kernel is {kernel}, channels are {channels}, padding is {padding!r}", hint)
    pools = [pool] * len(channels) if isinstance(pool, int) else pool
    if len(pools) != len(channels):
        raise EquipoiseError(f"model cnn: pool is {pool}, channels are {channels}", "one size, or one for each of them")
    layers: dict[str, nn.Module] = {"margin": nn.ZeroPad2d(margin)} if margin else {}
    if standardise:
        layers["standardise"] = Standardise(*standardise)
    sides = [side + 2 * margin for side in sides]
    for i, (size, width, by) in enumerate(zip(kernels, channels, pools, strict=True), 1):
        before, sides = sides, [(side if same else side - size + 1) // by for side in sides]
        if min(sides) < 1:
            raise EquipoiseError(
                f"model cnn: a {shape[1]}x{shape[2]} image is {before[0]}x{before[1]} in front of convolution {i}, "
                f"too small for a {size}x{size} kernel (padding {padding!r}) and a {by}x{by} pool",
                "use fewer channels, a smaller kernel or pool, or larger images",
            )
        layers[f"conv{i}"] = nn.Conv2d(planes, width, size, padding=size // 2 if same else 0)
        layers |= {f"conv{i}_act": _ACTIVATIONS[activation]()} | ({f"pool{i}": nn.MaxPool2d(by)} if by > 1 else {})
        planes = width
    head = _dense((planes * math.prod(sides), *hidden, outputs or max(1, classes)), dropout, activation)
    return nn.Sequential(OrderedDict(**layers, flatten=nn.Flatten(), **head))


class StandardisedConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 / inputs, times a learnt gain for each."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        fan_in = self.weight[0].numel()
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        scale = self.gain * (variance * fan_in).clamp(min=1e-4).rsqrt()
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, self.stride, self.padding)


class ScaledReLU(nn.Module):
    """ReLU times the factor that keeps a standard normal's variance at 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * math.sqrt(2.0 / (1.0 - 1.0 / math.pi))


class Residual(nn.Module):
    """x + alpha * f(x / beta), beta the deviation that x has at the start of training; a shortcut if shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.conv1 = StandardisedConv(inputs, outputs, 3, stride)
        self.conv2 = StandardisedConv(outputs, outputs, 3)
        changes = stride != 1 or inputs != outputs
        self.shortcut = StandardisedConv(inputs, outputs, 1, stride) if changes else None
        self.act, self.alpha, self.beta = ScaledReLU(), alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(x / self.beta)
        branch: Tensor = self.conv2(self.act(self.conv1(h)))
        return (x if self.shortcut is None else self.shortcut(h)) + self.alpha * branch


def resnet(
    shape: Shape, classes: int, *, outputs: int | None = None, widths: Wholes = (16, 32, 64), blocks: int = 2
) -> nn.Module:
    """A small residual network without batch statistics, in the sizes that FedLF's released code has for CIFAR-100.

    Brock, De and Smith, "Characterizing signal propagation to close the performance gap in unnormalized ResNets",
    ICLR 2021: standardised weights, and residual branches scaled by alpha / beta so that the variance is known at
    every depth. Departures: 3x3 convolutions in the stem, three stages, neither squeeze-excite nor stochastic depth.
    """
    (planes, height, width), least = _image("resnet", shape), 2 ** len(widths)
    if min(height, width) < least:
        hint = f"{len(widths)} stages need {least}x{least} or more"
        raise EquipoiseError(f"model resnet: images are {height}x{width}, widths are {widths}", hint)
    inputs, alpha, variance = 64, 0.2, 1.0
    layers: dict[str, nn.Module] = {"stem": StandardisedConv(planes, inputs, 3), "pool": nn.MaxPool2d(3, 2, padding=1)}
    for stage, block in product(range(len(widths)), range(blocks)):
        stride = 2 if stage > 0 and block == 0 else 1
        part = Residual(inputs, widths[stage], stride, alpha, math.sqrt(variance))
        # A shortcut convolution sees x / beta, so the variance starts at 1 again behind it.
        variance = (1.0 if part.shortcut is not None else variance) + alpha**2
        layers[f"block{len(layers) - 1}"], inputs = part, widths[stage]
    tail = {"act": ScaledReLU(), "mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(**layers, **tail, output=nn.Linear(inputs, outputs or max(1, classes))))


class TextCNN(nn.Module):
    """See `text_cnn`."""

    def __init__(self, words: nn.Embedding, convs: Iterable[nn.Conv1d], head: nn.Module) -> None:
        super().__init__()
        self.words, self.convs, self.head = words, nn.ModuleList(convs), head

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x).transpose(-2, -1)
        best = torch.cat([F.relu(conv(words)).amax(-1) for conv in self.convs], dim=-1)
        return self.head(best)  # type: ignore[no-any-return]


def text_cnn(
    shape: Shape,
    classes: int,
    *,
    vocabulary: int,
    outputs: int | None = None,
    dim: int = 300,
    filters: int = 100,
    widths: Wholes = (3, 4, 5),
    dropout: Chances = (0.5,),
) -> nn.Module:
    """Filters of several widths over words that are learnt with it, the maximum over time, then a linear layer.

    Kim, "Convolutional neural networks for sentence classification", EMNLP 2014 (its CNN-rand). Samples are rows of
    word numbers below `vocabulary`.
    Departures: no bound on the norm of the output weights; the embedding of padding is learnt like any other.
    """
    if len(shape) != 1 or shape[0] < max(widths):
        hint = "samples are rows of word numbers, at least as long as the widest filter"
        raise EquipoiseError(f"model text-cnn: a sample has shape {shape}, filters have widths {widths}", hint)
    words, convs = nn.Embedding(vocabulary, dim), [nn.Conv1d(dim, filters, width) for width in widths]
    head = _dense((filters * len(widths), outputs or max(1, classes)), dropout)
    return TextCNN(words, convs, nn.Sequential(OrderedDict(head)))


def _preset(words: str, **sizes: object) -> Callable[..., nn.Module]:
    """A CNN in the sizes of a paper, with its own first words."""
    made = partial(cnn, **sizes)  # type: ignore[arg-type]
    made.__doc__ = f"{words}\n\n{inspect.getdoc(cnn)}"
    return made


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "cnn-ditto": _preset(
        "Ditto's CNN for Fashion-MNIST. The paper names no sizes; these and the padding are its released code's.",
        channels=(32, 64),
        hidden=(1024,),
    ),
    "cnn-femnist": _preset(
        "Ditto's CNN for FEMNIST, from its released code, whose dropout is on at test time too: here it is not.",
        channels=(16, 32),
        hidden=(128,),
        dropout=(0.25, 0.5),
    ),
    "cnn-fedlf": _preset(
        "FedLF's CNN for CIFAR-10 (FedFV's), with its released code's sizes. Five layers: the paper's LC_1 to LC_5.",
        channels=(64, 64),
        padding="valid",
        hidden=(384, 192),
        dropout=(0.0, 0.2, 0.5),
    ),
    "cnn-fedtilt": _preset(
        'FedTilt\'s CNN for CIFAR-10: "3 convolutional blocks and a fully connected layer"; the sizes are ours.',
        channels=(32, 64, 128),
        kernel=3,
        hidden=(),
    ),
    "cnn-rffl": _preset(
        "RFFL's CNN for MNIST, \"a standard 2-layer CNN\"; sizes, tanh and 32x32 images are its released code's.",
        channels=(64, 16),
        kernel=(3, 7),
        padding="valid",
        hidden=(200,),
        activation="tanh",
        margin=2,
    ),
    "cnn-rffl-cifar": _preset(
        "RFFL's CNN for CIFAR-10, \"a standard 3-layer CNN\"; sizes, and no third pool, are its released code's.",
        channels=(32, 64, 64),
        kernel=3,
        padding="valid",
        pool=(2, 2, 1),
        hidden=(64,),
    ),
    "resnet": resnet,
    "text-cnn": text_cnn,
}


def _whole(value: object) -> bool:
    return type(value) is int and value >= 1


def _chance(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


def _mean_and_deviation(value: object) -> bool:
    if not (isinstance(value, list | tuple) and all(isinstance(v, int | float) and math.isfinite(v) for v in value)):
        return False
    return len(value) == 0 or (len(value) == 2 and value[1] > 0)


def _list_of(check: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(check, value))


_WHOLE = _whole, "a whole number, 1 or more"
_WHOLES = partial(_list_of, _whole), "a list of whole numbers, each 1 or more"
_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("outputs", "vocabulary", "dim", "filters", "blocks"), _WHOLE),
    "hidden": _WHOLES,
    **dict.fromkeys(("channels", "widths"), (lambda v: bool(v) and _list_of(_whole, v), _WHOLES[1] + ", not empty")),
    **dict.fromkeys(
        ("kernel", "pool"),
        (lambda v: _whole(v) or _list_of(_whole, v), "a whole number, or one for each number of channels"),
    ),
    "standardise": (_mean_and_deviation, "nothing, or a mean and a deviation above 0"),
    "margin": (lambda v: _whole(v) or v == 0, "a whole number, 0 or more"),
    "dropout": (partial(_list_of, _chance), "a list of chances, each from 0 up to (not including) 1"),
    "padding": (lambda v: v in get_args(Padding), 'use "same" or "valid"'),
    "activation": (lambda v: v in _ACTIVATIONS, 'use "relu" or "tanh"'),
    "bias": (lambda v: isinstance(v, bool), "true or false"),
}


def build(kind: str, shape: Shape, classes: int, stream: Stream, **params: object) -> nn.Module:
    """The model `kind` for samples of `shape`, in PyTorch's default initialisation drawn from `stream`.

    classes = 0 is a regression, with one output unless `outputs` says more; `outputs = 1` is also what a hinge loss on
    two classes needs.
    """
    if kind not in MODELS:
        raise EquipoiseError(f"model: kind is {kind!r}", nearest(kind, MODELS))
    known = {n: p for n, p in inspect.signature(MODELS[kind]).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for name, value in params.items():
        if name not in known:
            raise EquipoiseError(f"model {kind}: no parameter is called {name!r}", nearest(name, known))
        if not _RULES[name][0](value):
            raise EquipoiseError(f"model {kind}: {name} is {value!r}", _RULES[name][1])
    for name, p in known.items():
        if p.default is p.empty and name not in params:
            raise EquipoiseError(f"model {kind}: {name} is not given", f"{_RULES[name][1]}; it has no default")
    return drawn(MODELS[kind], shape, classes, stream, params)


def drawn(
    make: Callable[..., nn.Module], shape: Shape, classes: int, stream: Stream, params: Mapping[str, object]
) -> nn.Module:
    """What `make` builds, its random numbers drawn from `stream`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed every GPU's generator.
        torch.default_generator.manual_seed(stream.torch().initial_seed())
        return make(tuple(shape), classes, **params)
