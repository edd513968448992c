"""A key's life on real servers: it seals, another takes its place beside everything else, and it may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from quarterdeck.engine.secrets.field_encryption import key_ids_in
from quarterdeck.engine.secrets.keyring import generate_key
from tests.cli.cli_support import Qd
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers

SAID = {"password": "hunter2!", "login": {"$secret": "me"}, "n": 1}


async def made(client: httpx.AsyncClient) -> str:
    asked = {"title": "t", "taskType": "ops", "inputContext": SAID}
    answer = await client.post("/api/v1/agent-tasks", json=asked)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def claimed(client: httpx.AsyncClient) -> dict[str, Any]:
    await client.put("/api/v1/agents/w", json={"name": "w", "maxConcurrentTasks": 5})
    answer = await client.post("/api/v1/agents/w/claim", json={"max": 1})
    assert answer.status_code == 200, answer.text
    [task] = answer.json()["tasks"]
    assert isinstance(task, dict)
    return task


async def test_a_key_is_replaced_without_losing_a_secret_and_may_then_go(servers: Servers, tmp_path: Path) -> None:
    old, new = generate_key(), generate_key()
    launch = Launch(tmp_path / "data")
    qd, side = Qd(launch.data), DirectDatabase(launch.database_url)
    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=old.to_text()))
    async with server.client() as client:
        task_id = await made(client)
    await server.stop()
    refused = await servers.start_expecting_failure(launch.with_environment(QD_SECRET_KEYS=new.to_text()))
    assert f"the key {old.id!r}, which this server lacks" in refused.log_text
    assert "Traceback" not in refused.log_text

    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=f"{new.to_text()},{old.to_text()}"))
    assert qd.run_json("secrets", "status")["counts"] == {old.id: 2}
    told = qd.run_json("secrets", "rotate")
    assert told == {"resealed": 2, "unopened": 0, "moved": 0, "left": 0, "forgotten": [old.id]}
    assert key_ids_in(str(side.scalar("select input_context from agent_tasks"))) == [new.id, new.id]
    await server.stop()

    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=new.to_text()))
    async with server.client() as client:
        task = await claimed(client)
        assert (task["id"], task["inputContext"]) == (task_id, SAID)
    assert new.to_text() not in server.log_text


async def test_a_row_that_was_tampered_with_costs_its_own_secret_and_no_claim(servers: Servers, tmp_path: Path) -> None:
    launch = Launch(tmp_path / "data")
    server = await servers.start(launch)
    side = DirectDatabase(launch.database_url)
    async with server.client() as client:
        first, second = await made(client), await made(client)
        # What the second was given is put into the first: sealed well, but for another row.
        side.execute(
            "update agent_tasks set input_context = (select input_context from agent_tasks where id = ?) where id = ?",
            second,
            first,
        )
        swapped, whole = await claimed(client), await claimed(client)
        assert (swapped["id"], swapped["inputContext"]["password"]) == (first, "***")
        assert (whole["id"], whole["inputContext"]) == (second, SAID)
        figures = (await client.get("/metrics")).text
    assert "quarterdeck_secrets_unopened_total{" in figures
    assert server.log_text.count("does not open") == 1
    assert "hunter2!" not in server.log_text


async def test_a_replica_with_a_key_of_its_own_does_not_start(
    servers: Servers, postgres_url: str, tmp_path: Path
) -> None:
    first = await servers.start(Launch(tmp_path / "one", postgres_url))
    assert "every other server of this database must have the same" in first.log_text
    refused = await servers.start_expecting_failure(Launch(tmp_path / "two", postgres_url))
    assert refused.exit_code == 1
    assert "QD_SECRET_KEYS, as every server of the database must" in refused.log_text
