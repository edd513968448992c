"""The tasks of one request, so ordered that each comes after those of the same request that it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quarterdeck.domain.tasks.rules.dependency_graph import in_cycles


def arranged(depends_on: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
    """(in order, cycles): names that can be made one after the other, and of each that cannot the cycle it stands in or
    waits for."""
    stuck = in_cycles(depends_on)
    inner = {name: [each for each in of if each in depends_on] for name, of in depends_on.items()}
    order: list[str] = []
    unmet = {name: len(set(of)) for name, of in inner.items() if name not in stuck}
    blocks: dict[str, list[str]] = {}
    for name in unmet:
        for each in set(inner[name]):
            blocks.setdefault(each, []).append(name)
    free = [name for name, number in unmet.items() if number == 0]
    while free:
        # The order of the request is kept where nothing speaks against it.
        following: list[str] = []
        for name in free:
            order.append(name)
            for waiting in blocks.get(name, ()):
                unmet[waiting] -= 1
                if unmet[waiting] == 0:
                    following.append(waiting)
        free = following
    onward = {name: next(each for each in inner[name] if each in stuck) for name in stuck}
    return order, {name: _cycle(name, onward) for name in depends_on if name in stuck}


def _cycle(name: str, onward: Mapping[str, str]) -> list[str]:
    """Whatever is stuck waits for something that is stuck: going on from one to the next, one comes round."""
    way: dict[str, int] = {}
    while name not in way:
        way[name] = len(way)
        name = onward[name]
    return [*[each for each, place in way.items() if place >= way[name]], name]
