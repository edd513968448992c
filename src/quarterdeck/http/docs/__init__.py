"""The API documentation as one HTML page that loads no scripts, fonts or other resources.

| module        | holds                                                                                       |
|---------------|---------------------------------------------------------------------------------------------|
| openapi_types | the part of an OpenAPI document that the page uses, as types                                |
| markup        | HTML elements; all text is escaped when it enters an element                                |
| schema_html   | JSON, types, limits and defaults as HTML                                                    |
| introduction  | the text at the top: first session, credentials, conventions, errors                        |
| route_html    | one route: its fields, an example request and response, its errors                          |
| page          | the page: table of contents, introduction, routes by group, types                           |
| page.css      | the style, for light and dark mode and for narrow screens                                   |

`render` is a pure function of the OpenAPI document. The page works under a Content-Security-Policy of `default-src
'none'` with inline styles allowed (and `img-src data:` for its icon).

How it fails. A document that is not OpenAPI raises a `msgspec.ValidationError` that names the field. Parts of OpenAPI
that Quarterdeck does not use are ignored.
"""

from quarterdeck.http.docs.page import render

__all__ = ["render"]
