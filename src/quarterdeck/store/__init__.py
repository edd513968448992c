"""PostgreSQL and SQLite behind one small interface.

`sqlite.py` and `postgres.py` both implement `Store` (`interface.py`): `transact(work)` runs a function in one durable
transaction, `read(work)` runs a function that only reads. The function gets a transaction with two methods:

- `await tx.read(a, b, c)` sends the queued statements and `a`, `b` and `c` in **one round trip** and returns the rows
  of `a`, `b` and `c`. PostgreSQL uses libpq's pipeline mode; SQLite runs the statements one after another.
- `tx.write(a)` queues a statement; SQLite runs it immediately. Statements that are queued when the function returns are
  sent together with COMMIT, so an operation that loads, decides and writes costs two round trips, however many
  statements it has.

Statements are in `.sql` files beside the code that uses them (`sql.py` loads them), one text for both engines. A batch
is one JSON parameter that `rows(:batch as b, …)` expands to a table.

Failures are classified by code, never by text (`interface.py`). A failure of any other kind than these three is a plain
`StoreError`:

| type            | meaning                                                        | handled by                       |
|-----------------|----------------------------------------------------------------|----------------------------------|
| ContentError    | a value was refused; the same batch fails again                | the lane bisects the batch       |
| TransientError  | connection lost, lock or statement timed out, disk busy        | the lane retries, then 503       |
| CommitUnknown   | the connection was lost during COMMIT                          | the lane reads the outcome       |

On PostgreSQL a transaction for a caller reads and writes only rows of the zones that the caller was authenticated for.
Row-level security enforces that, even if a statement lacks the condition on the zone. `postgres_roles.py` defines the
roles, `row_security_check.py` keeps a server from starting with a role that bypasses row-level security, and
`migrations/row_security.py` creates the policies. `postgres_notify.py` wakes the other processes on the same database.

`migrate.py` creates and upgrades the schema: one sequence of revisions serves both engines. The server uses only its
checks. Only `upgrade` imports Alembic and SQLAlchemy; it runs in a separate process, so the server never loads them.
"""
