"""The promises of Quarterdeck, each kept by a test whose name is the sentence.

`rules/` is pure, `store/` and `domain/` run on both engines, `http/`, `cli/` and `sdk/` speak through the faces,
`acceptance/` and `chaos/` start real server processes and mistreat them. What they share is in `support/`, the fixtures
in `conftest.py`.
"""
