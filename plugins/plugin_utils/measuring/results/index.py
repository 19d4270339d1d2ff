# SPDX-License-Identifier: Apache-2.0
"""Keep an index of all runs in SQLite, for questions over many of them.

The index is made from the runs' own files and can be deleted at any time: it is brought up to date when it is opened,
and rebuilt if it is damaged or of another release of this toolkit.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ..measurement.rows import cell_name, has_success, load_of, shape_of
from .runs_on_disk import ROWS, SUMMARY, read_run, run_names

FILE = "index.sqlite"
SCHEMA = 1
_TABLES = """
CREATE TABLE runs (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, started TEXT NOT NULL);
CREATE TABLE rows (
  run TEXT NOT NULL REFERENCES runs (name) ON DELETE CASCADE,
  deployment TEXT NOT NULL, host TEXT NOT NULL,
  config TEXT NOT NULL, shape TEXT NOT NULL, load TEXT NOT NULL, good INTEGER NOT NULL,
  row TEXT NOT NULL,
  PRIMARY KEY (run, config, shape, load)
);
CREATE INDEX rows_deployment ON rows (deployment);
"""
# A row without a request that succeeded never replaces one with some.
_INSERT = """
INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET good = excluded.good, row = excluded.row WHERE excluded.good >= rows.good
"""


class ResultsIndex:
    """The runs of a results directory."""

    def __init__(self, results_dir: Path) -> None:
        self.results_dir = results_dir
        self.path = results_dir / FILE

    def update(self) -> int:
        """Bring the index up to date; return how many runs were read.

        Raise FleetError for runs that are unreadable, and if the index cannot be written.
        """
        try:
            try:
                return self._update()
            except sqlite3.DatabaseError:
                self.path.unlink(missing_ok=True)
                return self._update()
        except (sqlite3.DatabaseError, OSError) as error:
            what = f"{self.path}: the index of the results cannot be written: {error}."
            fix = "Make the directory writable, and delete the file; it is made again from the runs."
            raise FleetError([Problem((), what, fix)]) from None

    def deployments(self) -> list[str]:
        """Return the names of all deployments that were measured."""
        with closing(self._connect()) as database:
            return [name for (name,) in database.execute("SELECT DISTINCT deployment FROM rows ORDER BY 1")]

    def rows(self, deployment: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (run, row) of a deployment, runs in the order in which they were measured."""
        query = """
            SELECT run, row FROM rows JOIN runs ON name = run WHERE deployment = ? ORDER BY started, run, rows.rowid
        """
        with closing(self._connect()) as database:
            for run, row in database.execute(query, (deployment,)):
                yield run, json.loads(row)

    def runs(self, deployment: str) -> list[str]:
        """Return the runs that measured a deployment, the last first."""
        query = """
            SELECT DISTINCT name, started FROM runs JOIN rows ON run = name WHERE deployment = ?
            ORDER BY started DESC, name DESC
        """
        with closing(self._connect()) as database:
            return [name for name, _started in database.execute(query, (deployment,))]

    def before(self, run: str) -> list[str]:
        """Return the runs that were measured before one and share a deployment on a host with it, the last first."""
        query = """
            SELECT DISTINCT name, started FROM runs JOIN rows ON run = name
            WHERE started < (SELECT started FROM runs WHERE name = :run) AND (deployment, host) IN
                  (SELECT deployment, host FROM rows WHERE run = :run)
            ORDER BY started DESC, name DESC
        """
        with closing(self._connect()) as database:
            return [name for name, _started in database.execute(query, {"run": run})]

    def earlier(self, started: str, places: Collection[tuple[str, str]]) -> list[str]:
        """Return the runs that started before a time and have one of the (deployment, host), the last first."""
        query = """
            SELECT DISTINCT name, deployment, host FROM runs JOIN rows ON run = name WHERE started < ?
            ORDER BY started DESC, name DESC
        """
        with closing(self._connect()) as database:
            found = [name for name, *place in database.execute(query, (started,)) if tuple(place) in places]
        return list(dict.fromkeys(found))

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=60)
        database.execute("PRAGMA foreign_keys = ON")
        return database

    def _update(self) -> int:
        names = run_names(self.results_dir)
        database = self._connect()
        with closing(database), database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA:
                database.executescript("DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS runs;" + _TABLES)
                database.execute(f"PRAGMA user_version = {SCHEMA}")
            known = dict(database.execute("SELECT name, stamp FROM runs"))
            for name in set(known) - set(names):
                database.execute("DELETE FROM runs WHERE name = ?", (name,))
            stamps = {name: _stamp(self.results_dir / name) for name in names}
            changed = [name for name in names if known.get(name) != stamps[name]]
            for name in changed:
                self._read(database, name, stamps[name])
        return len(changed)

    def _read(self, database: sqlite3.Connection, name: str, stamp: str) -> None:
        run = read_run(self.results_dir, name)
        database.execute("DELETE FROM runs WHERE name = ?", (name,))
        database.execute("INSERT INTO runs VALUES (?, ?, ?)", (name, stamp, run.started))
        for row in run.rows:
            names = name, row["deployment"], row["host"]
            database.execute(_INSERT, (*names, *_natural_key(row), int(has_success(row)), json.dumps(row)))


def _natural_key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return config, shape and load: rows of a run that are equal in them measured the same thing once."""
    names = ("deployment", "host", "instance", "kind", "spec_hash", "suite", "block")
    config = [row.get(name) for name in names]
    shape, load = shape_of(row), load_of(row)
    return json.dumps(config), json.dumps([cell_name(row), shape.input, shape.output]), load.text


def _stamp(directory: Path) -> str:
    """Return what changes with the files of a run."""
    found = []
    for name in (ROWS, SUMMARY):
        path = directory / name
        if path.is_file():
            status = path.stat()
            found.append(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    return ", ".join(found)
