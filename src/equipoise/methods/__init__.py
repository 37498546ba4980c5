"""Methods, one file each: a client rule, a server rule, and a recipe of the file's name that puts them together."""

from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import fedprox
from equipoise.methods.local import local

__all__ = ["fedavg", "fedprox", "local"]
