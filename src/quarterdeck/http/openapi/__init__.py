"""The API described: OpenAPI 3.1, made from the route table and from nothing else.

| module   | what it decides                                                                             |
|----------|---------------------------------------------------------------------------------------------|
| document | the description itself: paths, parameters, security                                         |
| answers  | what a route answers: what success looks like, and what is refused                          |
| schemas  | what the types of the table look like as JSON Schema, and which of them are named           |
| codes    | what each refusal code means, and the kind it belongs to: every code that leaves over HTTP  |
| examples | one believable value for a schema, so that nobody writes examples that then grow stale      |

`describe` is a pure function: the same table gives the same document, byte for byte. Tests hold what it says against
what the server does: every example decodes into the type it stands for, and every code belongs to the kind it is
raised with.

How it fails. A type that has no JSON Schema is a `TypeError` that names it, when the document is first made; a code
that `codes` does not know is listed without a meaning, and a test names it. Neither keeps the server from serving.
"""

from quarterdeck.http.openapi.document import describe

__all__ = ["describe"]
