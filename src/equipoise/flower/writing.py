"""A small Flower app on the disk, that `flwr run` accepts: the run's config, who is who, and where data comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equipoise import config as configs
from equipoise import files
from equipoise.engine.deployment import require_real
from equipoise.flower import parts
from equipoise.flower.proxy import nginx
from equipoise.flower.roster import Roster

_PROJECT = """[project]
name = "federation"
version = "1.0.0"
description = "A federation set up by equipoise"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "equipoise"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
out = {out}
timeout = {timeout}
"""
_APP = """from pathlib import Path

from equipoise.flower.apps import {side}_app
from federation.data import own

app = {side}_app(Path(__file__).with_name("run.toml"), own)
"""
_DATA = '''"""Where a site's data comes from. The same at every site; what differs is in the node's config."""

from equipoise.flower.sites import Own


def load(node):
    """This site's samples: x [n, ...] (floats, or uint8 images) and y [n] (classes 0, 1, ..., or numbers).

    `node` is what the site gave `flower-supernode --node-config`, such as 'data="/srv/study/samples.npz"'. Nothing that
    is loaded here leaves the site.
    """
    import numpy as np

    with np.load(node["data"]) as held:  # arrays only: numpy refuses pickles
        return held["x"], held["y"]


# None: every node takes its part of the dataset in run.toml, for trying out.
# For data of its own at every site, say what one sample looks like, and what there is to tell apart:
#   own = Own(load, shape=(64,), classes=10)
own: Own | None = None
'''


def new(
    folder: Path,
    config: configs.Config,
    out: Path,
    timeout: float,
    roster: Roster | None = None,
    own: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the app; without a roster, nodes.toml is there to be filled in. `own`: see `parts.gathered`."""
    require_real(config.attack, config.participation)
    package = files.make_folder(folder / "federation")
    quoted = '"' + str(out.resolve()).replace("\\", "\\\\").replace('"', '\\"') + '"'
    texts = {
        folder / "pyproject.toml": _PROJECT.format(out=quoted, timeout=float(timeout)),
        folder / "nginx.conf": nginx(),
        package / "__init__.py": "",
        package / "run.toml": configs.dump(config),
        package / "nodes.toml": (roster or Roster()).text(),
        package / "data.py": _DATA,
        package / "server_app.py": _APP.format(side="server"),
        package / "client_app.py": _APP.format(side="client"),
    }
    for path, text in texts.items():
        files.write_atomic(path, text.encode())
    for name, data in (own or {}).items():
        files.write_atomic(files.make_folder(package / parts.FOLDER) / name, data)
    return folder
