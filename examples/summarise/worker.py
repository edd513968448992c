"""A worker that serves two methods of the application `summariser` until Ctrl-C.

Start as many as you like, on any machine: they share the work.
"""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from quarterdeck.sdk import Context, Fatal, Quarterdeck, Worker


class Text(msgspec.Struct):
    """The params of the methods. The worker rejects calls whose params do not match."""

    text: str
    sentences: int = 1


class Summary(msgspec.Struct):
    summary: str
    words: int


# Connects when the worker starts, not here.
worker = Worker(Quarterdeck.connect(), "summariser", concurrency=8)


@worker.method()
async def summarise(params: Text, context: Context) -> Summary:
    """Return the first sentences. A model would do better."""
    if not params.text.strip():
        # `Fatal`: a retry would fail too.
        raise Fatal("the text is empty")
    context.check()  # raises if the call was canceled; long methods should call it regularly
    sentences = [sentence.strip() for sentence in params.text.split(".") if sentence.strip()]
    summary = ". ".join(sentences[: params.sentences]) + "."
    return Summary(summary, len(params.text.split()))


@worker.method()
def keywords(params: Text) -> list[str]:
    """Return the three most frequent words; among equals, the longest first. A plain function runs in a thread."""
    words = Counter(word.strip(".,;").lower() for word in params.text.split())
    return sorted(words, key=lambda word: (-words[word], -len(word), word))[:3]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    worker.main()
