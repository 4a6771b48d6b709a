"""The environment of programs in a box: an allow-list, so that no key or token of the run is in it."""

import os
from collections.abc import Mapping
from pathlib import Path

_KEPT = frozenset(
    (
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "EDITOR", "NO_COLOR", "FORCE_COLOR"),
        *("CI", "SOURCE_DATE_EPOCH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "NODE_ENV"),
        *("TRACEPARENT", "TRACESTATE"),
    )
)
_PROXIES = frozenset(("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"))
CERTIFICATES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
)
"""Variables that name files of certificates, which a box shows too: a company's own authority is one."""
TOOL_CHAINS = ("JAVA_HOME", "GOROOT", "PYENV_ROOT", "NVM_DIR", "RUSTUP_HOME", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that name the directory of a tool chain, which a box shows too."""


def box_environment(
    environment: Mapping[str, str], own: Mapping[str, str], home: Path, *, network: bool
) -> dict[str, str]:
    """Return the variables in a box: those of `environment` on the list, and all of the agent's `own`.

    A proxy's address may hold a password, so it is there only if there is a network to use it for.
    """
    names = {*_KEPT, *CERTIFICATES, *TOOL_CHAINS}
    kept = {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith("LC_") or (network and name.lower() in _PROXIES)
    }
    fixed = {"HOME": str(home), "TMPDIR": "/tmp", "TERM": "dumb"}
    return {"PATH": os.defpath, "LANG": "C.UTF-8"} | kept | fixed | dict(own)
