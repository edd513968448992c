"""Secret keys on real servers: encryption, rotation to a new key, and removal of the old key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from quarterdeck.engine.secrets.field_encryption import key_ids_in
from quarterdeck.engine.secrets.keyring import generate_key
from tests.cli.cli_support import Qd
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers

INPUT_CONTEXT = {"password": "hunter2!", "login": {"$secret": "me"}, "n": 1}


async def create_task(client: httpx.AsyncClient) -> str:
    body = {"title": "t", "taskType": "ops", "inputContext": INPUT_CONTEXT}
    response = await client.post("/api/v1/agent-tasks", json=body)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def claim_task(client: httpx.AsyncClient) -> dict[str, Any]:
    await client.put("/api/v1/agents/w", json={"name": "w", "maxConcurrentTasks": 5})
    response = await client.post("/api/v1/agents/w/claim", json={"max": 1})
    assert response.status_code == 200, response.text
    [task] = response.json()["tasks"]
    assert isinstance(task, dict)
    return task


async def test_rotation_reencrypts_every_secret_and_the_old_key_can_be_removed(
    servers: Servers, tmp_path: Path
) -> None:
    old, new = generate_key(), generate_key()
    launch = Launch(tmp_path / "data")
    qd, database = Qd(launch.data), DirectDatabase(launch.database_url)
    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=old.to_text()))
    async with server.client() as client:
        task_id = await create_task(client)
    await server.stop()
    refused = await servers.start_expecting_failure(launch.with_environment(QD_SECRET_KEYS=new.to_text()))
    assert f"the key {old.id!r}, which this server lacks" in refused.log_text
    assert "Traceback" not in refused.log_text

    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=f"{new.to_text()},{old.to_text()}"))
    assert qd.run_json("secrets", "status")["counts"] == {old.id: 2}
    result = qd.run_json("secrets", "rotate")
    assert result == {"resealed": 2, "unopened": 0, "moved": 0, "left": 0, "forgotten": [old.id]}
    assert key_ids_in(str(database.scalar("select input_context from agent_tasks"))) == [new.id, new.id]
    await server.stop()

    server = await servers.start(launch.with_environment(QD_SECRET_KEYS=new.to_text()))
    async with server.client() as client:
        task = await claim_task(client)
        assert (task["id"], task["inputContext"]) == (task_id, INPUT_CONTEXT)
    assert new.to_text() not in server.log_text


async def test_swapped_ciphertext_masks_one_secret_and_does_not_fail_the_claim(
    servers: Servers, tmp_path: Path
) -> None:
    launch = Launch(tmp_path / "data")
    server = await servers.start(launch)
    database = DirectDatabase(launch.database_url)
    async with server.client() as client:
        first, second = await create_task(client), await create_task(client)
        # Copy the second task's ciphertext into the first: valid, but bound to another row.
        database.execute(
            "update agent_tasks set input_context = (select input_context from agent_tasks where id = ?) where id = ?",
            second,
            first,
        )
        swapped, intact = await claim_task(client), await claim_task(client)
        assert (swapped["id"], swapped["inputContext"]["password"]) == (first, "***")
        assert (intact["id"], intact["inputContext"]) == (second, INPUT_CONTEXT)
        metrics = (await client.get("/metrics")).text
    assert "quarterdeck_secrets_unopened_total{" in metrics
    assert server.log_text.count("cannot decrypt") == 1
    assert "hunter2!" not in server.log_text


async def test_replica_with_a_different_secret_key_does_not_start(
    servers: Servers, postgres_url: str, tmp_path: Path
) -> None:
    first = await servers.start(Launch(tmp_path / "one", postgres_url))
    assert "every server of this database needs the same keys" in first.log_text
    refused = await servers.start_expecting_failure(Launch(tmp_path / "two", postgres_url))
    assert refused.exit_code == 1
    assert "QD_SECRET_KEYS, as on every server of the database" in refused.log_text
