"""PostgreSQL and SQLite behind one small interface.

`sqlite.py` and `postgres.py` both implement `Store` (`interface.py`): `transact(work)` runs a function in one durable
transaction, `read(work)` runs one on a snapshot. The function gets a transaction with two methods:

- `await tx.read(a, b, c)` sends the queued statements and these in **one round trip** and returns the rows of each of
  these. PostgreSQL uses libpq's pipeline mode; SQLite runs the statements one after another.
- `tx.write(a)` queues a statement. Statements that are queued when the function returns are sent together with COMMIT,
  so an operation that loads, decides and writes costs two round trips, however many statements it has.

Statements are in `.sql` files beside the code that uses them (`sql.py` loads them), one text for both engines. A batch
is one JSON parameter that `rows(:batch as b, …)` expands to a table.

Failures are classified by code, never by text, into three types (`interface.py`):

| type            | meaning                                                        | handled by                       |
|-----------------|----------------------------------------------------------------|----------------------------------|
| ContentError    | a value was refused; the same batch fails again                | the lane bisects the batch       |
| TransientError  | connection lost, lock or statement timed out, disk busy        | the lane retries, then 503       |
| CommitUnknown   | the connection was lost during COMMIT                          | the lane reads the outcome       |

On PostgreSQL a transaction reads and writes only rows of the zones its callers were authenticated for. Row-level
security enforces that, even if a statement lacks the condition. `postgres_roles.py` defines the roles,
`row_security_check.py` refuses to start with a role that bypasses it, and `migrations/row_security.py` creates the
policies. `postgres_notify.py` wakes the other processes on the same database.

`migrate.py` has one tree of revisions for both engines. The server imports its checks. Only `upgrade` loads Alembic and
SQLAlchemy; it runs in a separate process, so a serving process never loads them.
"""
