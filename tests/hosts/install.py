"""`python -m tests.hosts.install FOLDER UV [NAME...]`: each host in a folder or an environment of its own."""

import subprocess
import sys
from pathlib import Path

from tests.hosts.table import HOSTS, Host


def main(folder: Path, uv: str, names: list[str]) -> None:
    """Install the hosts that are not there yet, or not as the table has them."""
    for host in HOSTS:
        if not names or host.name in names:
            _install(folder / host.name, uv, host)


def _install(place: Path, uv: str, host: Host) -> None:
    mark, wanted = place / ".installed", "\n".join(host.packages)
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return
    place.mkdir(parents=True, exist_ok=True)
    if host.is_npm:
        (place / "package.json").write_text('{"private": true, "type": "module"}\n', encoding="utf-8")
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            ["npm", "install", "--save-exact", *flags, *host.packages], cwd=place, check=False
        )
    else:
        subprocess.run(
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, place], check=True
        )
        words: list[str | Path] = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            place / "bin" / "python",
            *host.packages,
        ]
        done = subprocess.run(words, check=False)
    if done.returncode == 0:
        mark.write_text(wanted, encoding="utf-8")
    else:
        print(f"{host.name} cannot be installed", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:])
