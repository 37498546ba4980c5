"""Methods, one file each: a client rule, a server rule, and a recipe of the file's name that puts them together."""

from equipoise.methods.cgsv import cgsv
from equipoise.methods.ditto import ditto
from equipoise.methods.eagle import eagle
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedlf import fedlf
from equipoise.methods.fedprox import fedprox
from equipoise.methods.fedtilt import fedtilt
from equipoise.methods.local import local
from equipoise.methods.rffl import rffl

__all__ = ["cgsv", "ditto", "eagle", "fedavg", "fedlf", "fedprox", "fedtilt", "local", "rffl"]
