"""`qd db init` on a missing, current, newer, foreign and empty database."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.cli_support import Qd


def test_db_init_depends_on_the_state_of_the_database(tmp_path: Path) -> None:
    qd = Qd(tmp_path / "data")
    file = qd.data / "quarterdeck.db"
    assert re.fullmatch(r"created sqlite:///.* at revision \d+", qd.run("db", "init"))
    assert re.fullmatch(r"already at head \(\d+\)", qd.run("db", "init"))
    reply = qd.run_json("db", "init")
    assert (reply["done"], reply["before"]) == ("already at head", reply["revision"])
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("update alembic_version set version_num = '9999'")
    ahead = qd("db", "init")
    assert (ahead.returncode, "ahead of this release" in ahead.stderr) == (1, True)
    file.unlink()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("create table customers (id integer)")
    foreign = qd("db", "init")
    assert (foreign.returncode, "tables but no revision" in foreign.stderr) == (1, True)
    file.unlink()
    file.touch()
    assert qd.run_json("db", "init")["done"] == "created", "an empty file counts as no database"
