"""Rows and events of what was decided, set by set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.tasks.model.rows import TABLE, Content, Leased, Ref, Said, State, Task
from quarterdeck.domain.tasks.operations import costs, dependency_reads, logs
from quarterdeck.domain.tasks.queries import COORDINATING, Q
from quarterdeck.domain.tasks.rules.batch_input import Told
from quarterdeck.domain.tasks.rules.decider import Board
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.secrets.rotation import Shelf
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import Bound, pieces

Batch = list[tuple[object, ...]]
UNSAID = Said()
Contents = dict[Ref, tuple[Content, tuple[str, ...]]]
"""What tasks say, and what they depend on."""
_names = msgspec.json.Decoder(tuple[str, ...]).decode


async def write(tx: Tx, board: Board, given: Sequence[Leased]) -> Contents:
    """Everything that a batch has moved; and what those say that it has given out."""
    _insert(tx, board)
    _depend(tx, board)
    if shares := board.shares():
        tx.write(Q.task_shares_set(batch=[(*who, turn) for who, turn in sorted(shares.items())]))
    contents = await _move(tx, board, given)
    if board.held or board.heard:
        await agents.hold(tx, board.held, board.heard)
    if board.revived:
        await agents.revive(tx, board.revived)
    if board.costs:
        await costs.write(tx, board.costs, tx.now)
    if board.bindings:
        tx.write(idempotency.store(board.bindings, tx.now))
    if board.stack_traces:
        logs.failed(tx, board.stack_traces)
    for told in board.told:
        tx.emit(event(told))
    return contents


def _insert(tx: Tx, board: Board) -> None:
    if not board.created:
        return
    rows: Batch = [
        (*msgspec.structs.astuple(board.row(ref)), *msgspec.structs.astuple(content))
        for ref, content in board.created.items()
    ]
    for piece in pieces(rows):
        tx.write(Q.tasks_insert(batch=piece))
    kinds: Batch = [
        (*kind, board.row(ref).task_type, board.created[ref].required_capabilities, tx.now)
        for kind, ref in sorted(board.kinds.items())
    ]
    tx.write(Q.task_classes_note(batch=kinds))


def _depend(tx: Tx, board: Board) -> None:
    """Dependencies and tags, of those that were made or are written anew."""
    anew: Batch = [*sorted(ref for ref in board.depends if ref not in board.created)]
    if anew:
        tx.write(Q.task_dependencies_remove(batch=anew))
    edges: Batch = [
        (*ref, ahead, int((ref, ahead) in board.met))
        for ref, depends_on in board.depends.items()
        for ahead in depends_on
    ]
    for piece in pieces(edges):
        tx.write(Q.task_dependencies_insert(batch=piece))
    settled: Batch = [(*ref, ahead, 1) for ref, ahead in board.met if ref not in board.depends]
    settled += [(*ref, ahead, 0) for ref, ahead in board.reopened]
    for piece in pieces(sorted(settled)):
        tx.write(Q.task_dependencies_settle(batch=piece))
    if dropped := sorted(board.untagged):
        tx.write(Q.task_tags_remove(batch=[(zone_id, tag, task_id) for zone_id, tag, task_id in dropped]))
    tags: Batch = sorted((zone_id, tag, task_id) for (zone_id, task_id), of in board.tags.items() for tag in of)
    for piece in pieces(tags):
        tx.write(Q.task_tags_insert(batch=piece))


async def _move(tx: Tx, board: Board, given: Sequence[Leased]) -> Contents:
    """Whatever did not move was read without the zone's lock: nothing of it may be told."""
    moves = _moves(board)
    refs = [(each.task.zone_id, each.task.id) for each in given]
    unread = sorted({ref for ref in refs if ref not in board.created})
    reads: list[Bound] = [Q.tasks_contents(batch=[*unread])] if unread else []
    reads += dependency_reads.ahead(board.rows(unread), dict.fromkeys(unread, dependency_reads.LISTED_MAX))
    if not moves and not reads:
        return _made(board, refs)
    answers = await tx.read(*moves, *reads)
    moved = sum(len(answer) for answer in answers[: len(moves)])
    if moved != len(board.changed):
        raise RuntimeError("tasks moved under the zone's lock")
    said, *depends = answers[len(moves) :] if reads else [[]]
    ahead = dependency_reads.gathered(row for rows in depends for row in rows)
    contents = decode([row[2:] for row in said], Content)
    found: Contents = _made(board, refs)
    for row, content in zip(said, contents, strict=True):
        ref = (str(row[0]), str(row[1]))
        found[ref] = (content, ahead.get(ref, ()))
    return found


def _moves(board: Board) -> list[Bound]:
    begun: Batch = []
    completed: Batch = []
    others: Batch = []
    for ref, before in board.changed.items():
        row, said = board.row(ref), board.said.get(ref, UNSAID)
        if board.is_all(ref, board.begun.get(ref)):
            begun.append(_beginning(before, row))
        elif board.is_all(ref, board.completed.get(ref)):
            completed.append(_completion(before, row, said))
        else:
            others.append(_step(before, row, said))
    return [
        *(Q.tasks_begin(batch=piece) for piece in pieces(begun)),
        *(Q.tasks_complete(batch=piece) for piece in pieces(completed)),
        *(Q.tasks_move(batch=piece) for piece in pieces(others)),
    ]


def _made(board: Board, refs: Iterable[Ref]) -> Contents:
    """What those say that were made and given out in the same batch."""
    return {
        ref: (board.created[ref], board.depends[ref][: dependency_reads.LISTED_MAX])
        for ref in refs
        if ref in board.created
    }


def _beginning(before: Task, row: Task) -> tuple[object, ...]:
    return (
        row.zone_id,
        row.id,
        before.status,
        before.attempt,
        row.agent_id,
        row.session_key,
        row.estimated_completion_at,
        row.timeout_at,
        row.attempt_token,
        row.claim_id,
        row.overdue_at,
        row.updated_at,
    )


def _completion(before: Task, row: Task, said: Said) -> tuple[object, ...]:
    return (row.zone_id, row.id, before.status, before.attempt, row.updated_at, said.output_result, said.summary)


def _step(before: Task, row: Task, said: Said) -> tuple[object, ...]:
    return (
        row.zone_id,
        row.id,
        before.status,
        before.attempt,
        row.status,
        row.priority,
        row.agent_id,
        row.session_key,
        row.progress_percent,
        row.current_step,
        row.estimated_completion_at,
        row.retry_count,
        row.turn,
        row.waits,
        row.depends,
        row.unmet,
        row.available_at,
        row.timeout_at,
        row.attempt,
        row.attempt_token,
        row.claim_id,
        row.final,
        row.reason,
        row.spreads,
        row.warned_at,
        row.progress_at,
        row.overdue_at,
        row.usd_micros,
        row.input_tokens,
        row.output_tokens,
        row.updated_at,
        row.assigned_at,
        row.started_at,
        row.completed_at,
        row.failed_at,
        said.last_error,
        said.output_result,
        said.summary,
        said.checkpoint_data,
        said.metadata_json,
        said.tags,
    )


def event(told: Told) -> NewEvent:
    row = told.row
    data: dict[str, object] = {
        "taskType": row.task_type,
        "agentId": row.agent_id,
        "attempt": row.attempt,
        "priority": row.priority,
    }
    if row.session_key is not None:
        data["sessionKey"] = row.session_key
    if told.type == "task.progressed":
        data |= {"progressPercent": row.progress_percent, "currentStep": row.current_step}
    if row.status in (State.FAILED, State.ABORTED):
        data |= {"retryCount": row.retry_count, "maxRetries": row.max_retries, "final": bool(row.final)}
        if not row.final:
            data["availableAt"] = iso(row.available_at)
    if told.exhausted:
        data["exhausted"] = True
    if told.reason is not None:
        data["reason"] = told.reason
    if told.cycle:
        data["cycle"] = [*told.cycle[:100]]
    encoded = msgspec.json.encode(data).decode()
    return NewEvent(told.type, row.zone_id, row.id, told.actor, told.before, row.status, encoded, told.trace)


TASKS = Shelf(
    TABLE, ("input_context", "output_result", "checkpoint_data"), COORDINATING.tasks_sealed, COORDINATING.tasks_reseal
)
