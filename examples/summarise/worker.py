"""A worker: it serves two methods of the application `summariser` until it is told to stop (Ctrl-C).

Start as many as you like, here or elsewhere: they share the work.
"""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from quarterdeck.sdk import Context, Fatal, Quarterdeck, Worker


class Text(msgspec.Struct):
    """What the methods are given. What is not of this form never reaches them."""

    text: str
    sentences: int = 1


class Summary(msgspec.Struct):
    summary: str
    words: int


# Nothing is connected yet: the server is looked for when the worker starts.
worker = Worker(Quarterdeck.connect(), "summariser", concurrency=8)


@worker.method()
async def summarise(params: Text, context: Context) -> Summary:
    """The first sentences; a model would do better here."""
    if not params.text.strip():
        # Nobody should try this again: an empty text stays empty.
        raise Fatal("there is nothing to summarise")
    context.check()  # a method that takes long asks now and then whether it is still wanted
    sentences = [sentence.strip() for sentence in params.text.split(".") if sentence.strip()]
    summary = ". ".join(sentences[: params.sentences]) + "."
    return Summary(summary, len(params.text.split()))


@worker.method()
def keywords(params: Text) -> list[str]:
    """The longest of the most frequent words. A plain function: it runs in a thread."""
    words = Counter(word.strip(".,;").lower() for word in params.text.split())
    return sorted(words, key=lambda word: (-words[word], -len(word), word))[:3]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    worker.main()
