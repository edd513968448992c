"""What tests share: a PostgreSQL of their own, server processes, rounds, and the one bounded wait.

Nothing here decides anything about Quarterdeck. Whatever is started here is stopped here, by its process id, also when
the tests are interrupted: every child asks the kernel to be ended with its parent where the kernel offers that, and a
terminated test run unwinds its fixtures like an interrupted one.
"""
