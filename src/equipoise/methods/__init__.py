"""Methods, one file each: a client rule, a server rule, and a recipe of the file's name that puts them together."""

from equipoise.methods.afl import afl
from equipoise.methods.apfl import apfl
from equipoise.methods.cgsv import cgsv
from equipoise.methods.ditto import ditto
from equipoise.methods.drfl import drfl
from equipoise.methods.eagle import eagle
from equipoise.methods.ewc import ewc
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedcka import fedcka
from equipoise.methods.fedfa import fedfa
from equipoise.methods.fedfv import fedfv
from equipoise.methods.fedgini import fedgini
from equipoise.methods.fedlf import fedlf
from equipoise.methods.fedmdfg import fedmdfg
from equipoise.methods.fedmgda import fedmgda
from equipoise.methods.fedprox import fedprox
from equipoise.methods.fedsgd import fedsgd
from equipoise.methods.fedtilt import fedtilt
from equipoise.methods.finetuning import finetuning
from equipoise.methods.l2sgd import l2sgd
from equipoise.methods.local import local
from equipoise.methods.mapper import mapper
from equipoise.methods.mocha import mocha
from equipoise.methods.perfedavg import perfedavg
from equipoise.methods.qffl import qffl
from equipoise.methods.rffl import rffl
from equipoise.methods.skl import skl
from equipoise.methods.term import term

__all__ = [
    "afl",
    "apfl",
    "cgsv",
    "ditto",
    "drfl",
    "eagle",
    "ewc",
    "fedavg",
    "fedcka",
    "fedfa",
    "fedfv",
    "fedgini",
    "fedlf",
    "fedmdfg",
    "fedmgda",
    "fedprox",
    "fedsgd",
    "fedtilt",
    "finetuning",
    "l2sgd",
    "local",
    "mapper",
    "mocha",
    "perfedavg",
    "qffl",
    "rffl",
    "skl",
    "term",
]
