"""`subagent script`: print a run that has ended as a script for `subagent run --script`."""

from typing import Any

import click
import yaml

from subagent_server.cli.console.app import Session, complete_runs, pass_session
from subagent_server.cli.console.output import EarlyExit, ExitCode, json_option, out, out_json
from subagent_server.extensions.simulator import ScriptError, load_script
from subagent_server.extensions.simulator.script_of_run import script_of_run
from subagent_server.run.errors import visible


@click.command()
@click.argument("run", shell_complete=complete_runs)
@json_option
@pass_session
def script(session: Session, run: str, as_json: bool) -> None:
    """Print a run that has ended as a script that plays its model again.

    `subagent script RUN > again.yaml`, then `subagent run AGENT PROMPT --script again.yaml` gives the same
    turns with the same calls of tools; the tools really run again. Runs that it started are in it too. With
    --json the same as JSON.
    """
    run_id = session.run_id(run)
    made = script_of_run(session.service, run_id, session.caller)
    try:
        load_script(made)
    except ScriptError as error:
        raise EarlyExit(
            ExitCode.FAILED, f"run {run_id} has turns that no script can play: {error.sentence}"
        ) from error
    if as_json:
        out_json(made)
        return
    out(f"# The turns of run {run_id}. Play them: subagent run AGENT PROMPT --script FILE")
    out(_yaml(made).rstrip("\n"))


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and the same value twice without an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(made: dict[str, Any]) -> str:
    """Return YAML that is safe on a terminal: a character that does not print is an escape, as all others."""
    text = _dumped(made, allow_unicode=True)
    return text if visible(text, "\n") == text else _dumped(made, allow_unicode=False)


def _dumped(made: dict[str, Any], *, allow_unicode: bool) -> str:
    text: str = yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=110)
    return text
