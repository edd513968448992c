"""The OpenAPI 3.1 document, generated from the routes only.

| module      | holds                                                                                     |
|-------------|-------------------------------------------------------------------------------------------|
| document    | the document: paths, operations, parameters, security                                     |
| responses   | the responses of a route: success and errors                                              |
| schemas     | JSON Schemas for the types that the routes use, and the named components                  |
| error_codes | the meaning and the problem type of every error code that HTTP clients can see            |
| examples    | a plausible value for a schema, generated so that examples cannot become outdated         |

`describe` is a pure function: the same routes give the same document, byte for byte. Tests compare the document with
the server: every example decodes into its type, and every code belongs to the problem type it is raised with.

How it fails. A type without a JSON Schema raises a `TypeError` that names the type when the document is first built. A
code that `error_codes` does not list appears without a meaning, and a test reports it. Neither stops the server.
"""

from quarterdeck.http.openapi.document import describe

__all__ = ["describe"]
