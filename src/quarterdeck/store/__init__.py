"""Two engines behind one small interface.

`sqlite.py` and `postgres.py` both offer a `Store` (see `port.py`): `transact(work)` runs one piece of work in one
durable transaction, `read(work)` runs one on a snapshot. Inside, a transaction knows two verbs:

- `await tx.read(a, b, c)` sends what was queued, then the statements named, in **one round trip**, and gives the
  rows of each. On PostgreSQL this is libpq's pipeline mode; on SQLite the statements simply run one after another.
- `tx.write(a)` queues a statement. What is queued when the work returns goes out together with COMMIT, so a
  load–decide–write operation costs two round trips, however many statements it has.

Statements live in `.sql` files beside the code that owns them (`sql.py` loads them), one text for both engines.
A batch travels as one JSON parameter that `rows(:batch as b, …)` expands to a table.

Failures are sorted here, by code and never by text, into three kinds (`port.py`):

| kind            | what it means                                                  | who deals with it              |
|-----------------|----------------------------------------------------------------|--------------------------------|
| ContentError    | a value was refused; the same batch will fail the same way      | the lane bisects               |
| TransientError  | connection lost, lock or statement timed out, disk busy         | the lane retries, then 503     |
| CommitUnknown   | the connection died while COMMIT was under way                  | the lane asks, never guesses   |

On PostgreSQL a transaction sees and changes the rows of the zones its callers were authenticated for, and no others:
row-level security says so, whatever a statement forgets (`roles.py` says who is held by it, `wall.py` refuses to start
as anybody who is not, `migrations/wall.py` builds it). `notify.py` wakes the other processes on the same database.

`migrate.py` has one tree of revisions for both engines. The server imports its checks; only its `upgrade` loads Alembic
and SQLAlchemy, in a process of its own, so a serving process never does.
"""
