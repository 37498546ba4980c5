"""Who is who: the app's nodes.toml names every node by the fingerprint of its key, and says which client it is.

A node proves its key to the SuperLink with every call. What a message says of its sender plays no part in this.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from equipoise import files
from equipoise.errors import EquipoiseError, require

_PRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_HINT = 'the line is "SHA256:..." = 0, with what ssh-keygen -lf KEY.pub prints, and the client\'s number'
_TEXT = """# Which node is which client: the fingerprint of its public key, as `ssh-keygen -lf KEY.pub` prints it, and
# the client's number, from 0 on. Nodes that are not here are not written to.
#
# claims = true takes every node for the client that it says it is: for trying out on one machine, never for a network.
claims = {claims}

[nodes]
"""


@dataclass(frozen=True)
class Roster:
    """The client of every known key; with `claims`, nodes are asked instead."""

    clients: Mapping[str, int] = field(default_factory=dict)
    claims: bool = False

    def text(self) -> str:
        lines = [f'"{key}" = {client}\n' for key, client in sorted(self.clients.items(), key=lambda item: item[1])]
        example = [] if lines else ['# "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU" = 0\n']
        return _TEXT.format(claims=str(self.claims).lower()) + "".join(lines or example)


def read(path: Path, n_clients: int) -> Roster:
    """The roster in a file; whatever could let one node speak for another's client is an error."""
    try:
        told = tomllib.loads(files.read_bytes(path).decode())
    except ValueError as problem:
        raise EquipoiseError(f"{path}: {problem}", _HINT) from None
    nodes, claims = told.pop("nodes", {}), told.pop("claims", False)
    require(not told, f"{path}", sorted(told), "it has claims and [nodes], nothing else")
    require(type(claims) is bool, f"{path}: claims", claims, "true or false")
    for key, client in nodes.items():
        require(bool(_PRINT.fullmatch(key)), f"{path}: the key", key, _HINT)
        require(type(client) is int and 0 <= client < n_clients, f"{path}: {key}", client, f"0 to {n_clients - 1}")
    require(len(set(nodes.values())) == len(nodes), f"{path}: clients", sorted(nodes.values()), "one key for each")
    require(claims != bool(nodes), f"{path}: nodes", len(nodes), "name the nodes, or set claims = true to try out")
    return Roster(nodes, claims)


def fingerprint(key: bytes) -> str:
    """Of a public key as Flower keeps it (PEM) or as ssh-keygen writes it; "" if it is none."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
        load_ssh_public_key,
    )

    try:
        read = load_pem_public_key if key.startswith(b"-----") else load_ssh_public_key
        line = read(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, TypeError):
        return ""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
