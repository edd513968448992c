"""The API for people: one page of HTML that needs no network, no script and no font.

| module   | what it decides                                                                             |
|----------|---------------------------------------------------------------------------------------------|
| reading  | the part of an OpenAPI description this page needs, as types                                |
| markup   | elements; text is escaped where it enters one, so that no text can become an element        |
| values   | how JSON, a type, a bound and a default are shown                                           |
| chapters | the prose at the beginning: a first session, tokens, conventions, refusals                  |
| routes   | one route: what it takes, an example of asking and answering, and how it refuses            |
| page     | the whole: the contents, the chapters, the routes by group, the types at the end            |
| page.css | how it looks, light and dark, on a screen and on a telephone                                |

`render` is a pure function of the description. The page loads nothing: it passes under a Content-Security-Policy of
`default-src 'none'` that allows inline styles (and `img-src data:` for its icon).

How it fails. A description that is not OpenAPI is a `msgspec.ValidationError` that names the place. Parts of OpenAPI
that Quarterdeck does not use are passed over in silence.
"""

from quarterdeck.http.docs.page import render

__all__ = ["render"]
