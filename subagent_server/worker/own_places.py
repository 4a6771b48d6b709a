"""The places of this installation in the working directory, which a box keeps read-only.

Programs in them run outside of every box, so a run that could write there could leave its box.
"""

import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def own_places(cwd: Path) -> list[Path]:
    """Return the places of this installation below `cwd`, such as a `.venv`; links are resolved.

    The end of a run, its servers for children and the next run start what is in them. If `cwd` itself is such
    a place, none is returned for it: an agent could not work there.
    """
    places = (Path(sys.prefix), _PACKAGE)
    real = dict.fromkeys(Path(os.path.realpath(path)) for path in places)
    return [path for path in real if path.is_relative_to(cwd) and path != cwd]
