"""`subagent page`: open the page that shows the runs in a browser."""

import os
import webbrowser
from pathlib import Path

import click

from subagent_server.cli.console.app import Session, json_session
from subagent_server.cli.console.terminal import err, out, out_json
from subagent_server.cli.serve import serve_page
from subagent_server.run.errors import BadArgument
from subagent_server.run.host_programs import path_out_of_reach
from subagent_server.verbs.access_tokens import CODE_SECONDS, PageAccess, PageServer
from subagent_server.verbs.live_runs import written_directories

_FORWARDED = "http://127.0.0.1:8101"


@click.command()
@click.option("--no-open", is_flag=True, help="Only print the link, and open no browser.")
@json_session
def page(session: Session, no_open: bool) -> None:
    """Open the page that shows the runs, and where questions can be answered.

    If no `subagent serve --http` shows these runs, this command serves the page itself until Ctrl-C, which
    ends no run. With --json such a server has to be there. The link works once, within 5 minutes; then the
    browser is known until the server ends.
    """
    session.check_is_user()
    access, root = PageAccess(session.settings.page_directory), session.settings.runs_root
    server = _server(access, root)
    if server is not None:
        _show(session, access, server, no_open=no_open)
    elif session.as_json:
        raise BadArgument(f"No server shows the runs of {root}: start one with `subagent serve --http`.")
    else:
        serve_page(session, lambda: _show(session, access, _server(access, root), no_open=no_open))


def _server(access: PageAccess, root: Path) -> PageServer | None:
    """Return the living server that shows the runs of this root, or None."""
    return next((server for server in access.servers() if server.root == str(root)), None)


def _show(session: Session, access: PageAccess, server: PageServer | None, *, no_open: bool) -> None:
    """Print a link to a server, and open it in a browser."""
    assert server is not None  # a server has announced itself before this is called
    is_path = server.address.startswith("/")
    address = _FORWARDED if is_path else server.address
    link = f"{address}/#code={access.new_code(server)}"
    if session.as_json:
        out_json({"link": link, "root": server.root})
        return
    out(link)
    if is_path:
        err(
            f"The server listens on {server.address}, which no browser reaches: forward a port to it, such "
            f"as by `ssh -N -L 8101:{server.address} HOST` where the browser is, and open the link there."
        )
    elif no_open or not _open(session, link):
        err(f"Open this link in a browser; it works once, for {CODE_SECONDS // 60} minutes.")


def _open(session: Session, link: str) -> bool:
    """Open a link. `webbrowser`, and `xdg-open` after it, look in PATH, where runs may have written."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = path_out_of_reach(path, written_directories(session.settings))
    try:
        return webbrowser.open(link)
    except (webbrowser.Error, ValueError):  # what BROWSER names cannot be read
        return False
    finally:
        os.environ["PATH"] = path
