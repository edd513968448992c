"""Routes that explain the state of a task, and show its dependency tree."""

from __future__ import annotations

from dataclasses import dataclass

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, Route
from quarterdeck.domain.tasks.model.explain_types import TaskExplanation, TaskTree, TreeQuery
from quarterdeck.domain.tasks.operations import explain
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.transaction import Engine


@dataclass(frozen=True, slots=True)
class ExplainHandlers:
    engine: Engine

    async def explain(self, call: Call[None, None]) -> TaskExplanation:
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self.engine.read(lambda tx: explain.explain(tx, lookup), zones=call.zones)

    async def get_tree(self, call: Call[None, TreeQuery]) -> TaskTree:
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self.engine.read(lambda tx: explain.read_tree(tx, lookup, call.query.depth), zones=call.zones)


def routes(handlers: ExplainHandlers) -> list[Route]:
    path, errors, tags = "/api/v1/agent-tasks/{id}", ("task_not_found",), ("tasks",)
    return [
        Route(
            "GET", path + "/explain", handlers.explain, "Explain the state of a task", LIFECYCLE, errors=errors,
            tags=tags, permission="tasks.read",
        ),
        Route(
            "GET", path + "/tree", handlers.get_tree, "Get the dependencies and dependents of a task", LIFECYCLE,
            errors=errors, tags=tags, permission="tasks.read",
        ),
    ]  # fmt: skip
