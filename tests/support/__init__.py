"""Helpers that tests share: PostgreSQL and Redis servers, server processes, harnesses, builders, the bounded wait.

Nothing here decides anything about Quarterdeck. Every process that is started here is stopped here, by its process id,
also when the tests are interrupted. On Linux, the kernel signals every child when its parent dies. A SIGTERM to the
test run unwinds the fixtures like an interrupt.
"""
