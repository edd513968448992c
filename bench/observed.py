"""What a server says of itself at /metrics: which answers it gave, and how many commands shared a commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.plan import BenchError
from bench.stage import Target

CREATED, CUT_OFF = "201", "499"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What of it is looked at."""

    route: str
    lane: str


SPAWNS = Traffic("POST /zones/{zone}/agents", "spawn")


@dataclass(frozen=True, slots=True)
class Observed:
    answers: dict[str, int]
    """Of one route, by status."""
    batches: int
    commands: int

    def since(self, before: Observed) -> Observed:
        answers = {status: count - before.answers.get(status, 0) for status, count in self.answers.items()}
        return Observed(answers, self.batches - before.batches, self.commands - before.commands)

    def beside(self, other: Observed) -> Observed:
        """What two servers saw together."""
        answers = {
            status: self.answers.get(status, 0) + other.answers.get(status, 0)
            for status in {*self.answers, *other.answers}
        }
        return Observed(answers, self.batches + other.batches, self.commands + other.commands)


def observe(target: Target, of: Traffic = SPAWNS) -> Observed:
    answers: dict[str, int] = {}
    lane = {"count": 0, "sum": 0}
    for name, labels, value in samples(target):
        if name == "quarterdeck_http_requests_total" and labels.get("route") == of.route:
            answers[labels["status"]] = int(value)
        elif name.startswith("quarterdeck_lane_batch_size_") and labels.get("lane") == of.lane:
            lane[name.rpartition("_")[2]] = int(value)
    return Observed(answers, lane["count"], lane["sum"])


def check(new: Observed, acknowledged: int, under_way: int) -> None:
    """Every answer was 201, but for those whose caller was gone; and there were as many as were acknowledged."""
    created = new.answers.get(CREATED, 0)
    others = {s: count for s, count in new.answers.items() if count and s not in (CREATED, CUT_OFF)}
    if others or not acknowledged <= created <= acknowledged + under_way:
        raise BenchError(
            f"{acknowledged} answers were counted and up to {under_way} were under way; the server gave {new.answers}."
        )


def samples(target: Target) -> Iterator[tuple[str, dict[str, str], float]]:
    """Every figure there is: its name, its labels, its value."""
    with target.client() as client:
        text = client.get("/metrics").raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
