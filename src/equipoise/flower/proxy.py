"""The door to the outside: an nginx configuration that lets nodes through, and nobody else.

A SuperLink answers everything on one port: nodes, but also whoever wants to register a key, start a run or take over a
task, and it asks those for no credentials. So it listens on loopback only, and this stands before it: the calls that a
node with a registered key makes pass, everything else is refused, and no call may be larger than `cap`.
"""

from __future__ import annotations

from pathlib import Path

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What a node asks of a SuperLink under /v1/fleet/, except to register itself."""

_TEXT = """# Nodes reach the SuperLink through this, and nothing else does: nginx -c THIS_FILE -g 'daemon off;'
# The SuperLink behind it listens on loopback: flower-superlink --host 127.0.0.1
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;

events {{ }}

http {{
    access_log {folder}/nginx-access.log;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;

    limit_conn_zone $binary_remote_addr zone=site:1m;

    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        server_tokens off;
        merge_slashes off;

        client_max_body_size {cap}m;
        limit_conn site 32;
        proxy_read_timeout 120s;

        location ~ ^/v1/fleet/({calls})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{superlink};
            proxy_ssl_trusted_certificate {authority};
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}

        location / {{
            return 403;
        }}
    }}
}}
"""


def nginx(
    *,
    listen: str = "443",
    superlink: str = "127.0.0.1:8000",
    certificate: Path = Path("/etc/equipoise/server.pem"),
    key: Path = Path("/etc/equipoise/server.key"),
    authority: Path = Path("/etc/equipoise/ca.pem"),
    folder: Path = Path("/var/tmp"),
    cap: int = 64,
) -> str:
    """The configuration; `cap` in MiB, for one call. Flower cuts large arrays into several."""
    places = {"certificate": certificate, "key": key, "authority": authority, "folder": folder}
    return _TEXT.format(listen=listen, superlink=superlink, cap=cap, calls="|".join(CALLS), **places)
