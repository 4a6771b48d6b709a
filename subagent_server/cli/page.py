"""`subagent page`: open the page that shows the runs in a browser."""

import webbrowser
from pathlib import Path

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.output import err, json_option, out, out_json
from subagent_server.run.errors import BadArgument, HostError
from subagent_server.verbs.access_tokens import CODE_SECONDS, PageAccess, PageServer

_FORWARDED = "http://127.0.0.1:8101"
_EVERYWHERE = {"http://0.0.0.0:": "http://127.0.0.1:", "http://[::]:": "http://[::1]:"}


@click.command()
@click.option("--no-open", is_flag=True, help="Only print the link, and open no browser.")
@json_option
@pass_session
def page(session: Session, no_open: bool, as_json: bool) -> None:
    """Open the page that shows the runs, and where questions can be answered.

    `subagent serve --http` has to serve it. The link works once, within 5 minutes; then the browser is known
    until that server ends.
    """
    session.check_is_user()
    directory = session.settings.page_directory
    if directory is None:
        raise HostError("HOME names no directory for the codes of the page: set it.")
    access = PageAccess(directory)
    server = _server(access, session.settings.runs_root)
    is_path = server.address.startswith("/")
    address = _FORWARDED if is_path else _reachable(server.address)
    link = f"{address}/#code={access.new_code(server)}"
    if as_json:
        out_json({"link": link, "root": server.root})
        return
    out(link)
    if is_path:
        err(
            f"The server listens on {server.address}, which no browser reaches: forward a port to it, such "
            f"as by `ssh -N -L 8101:{server.address} HOST` where the browser is, and open the link there."
        )
    elif no_open or not webbrowser.open(link):
        err(f"Open this link in a browser; it works once, for {CODE_SECONDS // 60} minutes.")


def _server(access: PageAccess, root: Path) -> PageServer:
    """Return the living server that shows the runs of this root. Raises BadArgument."""
    servers = access.servers()
    for server in servers:
        if server.root == str(root):
            return server
    others = "".join(
        f" One serves the runs of {server.root}: name them with --runs." for server in servers[:1]
    )
    raise BadArgument(f"No server shows the runs of {root}: start one with `subagent serve --http`.{others}")


def _reachable(address: str) -> str:
    for everywhere, here in _EVERYWHERE.items():
        if address.startswith(everywhere):
            return here + address.removeprefix(everywhere)
    return address
