"""`qd db init`: what it does to a database depends on what that is."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.cli_support import Qd


def test_a_database_is_initialized_by_what_it_is(tmp_path: Path) -> None:
    own = Qd(tmp_path / "data")
    file = own.data / "quarterdeck.db"
    assert re.fullmatch(r"created sqlite:///.* at revision \d+", own.run("db", "init"))
    assert re.fullmatch(r"already at head \(\d+\)", own.run("db", "init"))
    told = own.run_json("db", "init")
    assert (told["done"], told["before"]) == ("already at head", told["revision"])
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("update alembic_version set version_num = '9999'")
    ahead = own("db", "init")
    assert (ahead.returncode, "ahead of this release" in ahead.stderr) == (1, True)
    file.unlink()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("create table customers (id integer)")
    strange = own("db", "init")
    assert (strange.returncode, "tables and no revision" in strange.stderr) == (1, True)
    file.unlink()
    file.touch()
    assert own.run_json("db", "init")["done"] == "created", "an empty file is as good as none"
