import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clawexp.errors import ConfigError
from clawexp.logger.wandb import Wandb
from clawexp.outcome import Outcome
from clawexp.records import Rollout

FIELDS: dict[str, Any] = {
    "mode": "offline",
    "project": "clawexp",
    "name": None,
    "group": None,
    "tags": ("a", "b"),
    "table_every": 2,
    "table_rows": 3,
}
LOGGER = Wandb(**FIELDS)

DRIVER = f"""
import asyncio, sys, time
from pathlib import Path
from clawexp.logger.wandb import Wandb

async def main():
    async with Wandb(**{FIELDS!r}).open(Path(sys.argv[1]), {{"seed": 1}}, resume=False) as sink:
        for step in range(3):
            sink.log(step, {{"reward/mean": step / 2}})
        Path(sys.argv[1], "ready").touch()
        time.sleep(float(sys.argv[2]))

asyncio.run(main())
"""


def inspect(folder: Path) -> list[dict[str, Any]]:
    """What W&B itself reads back."""
    wandb = Path(sys.executable).with_name("wandb")
    done = subprocess.run([wandb, "leet", "inspect", "--json", folder], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def folders(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*"))


async def test_metrics_config_and_rollouts_can_be_read_back(
    tmp_path: Path, rollout: Callable[..., Rollout], capfd: pytest.CaptureFixture[str]
) -> None:
    gathered = [*(rollout(number) for number in range(4)), rollout(9, Outcome.HARNESS_FAULT, "x" * 300 + "no node")]
    async with LOGGER.open(tmp_path, {"algo": {"lr": 0.25}, "engine": {"api_key": "hush"}}, resume=False) as sink:
        for step in range(3):
            sink.log(step, {"reward/mean": step / 2, "learner/loss": float("nan")})
            sink.rollouts(step, gathered)
        sink.summary({"eval/score": 0.875})
    assert capfd.readouterr() == ("", "")

    (folder,) = folders(tmp_path)
    records = inspect(folder)
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert run["run_id"] == (tmp_path / "wandb" / "run_id").read_text()
    assert run["display_name"] == tmp_path.name
    assert run["config"]["update"]["algo"] == {"lr": 0.25}
    assert "hush" not in json.dumps(records)
    rows = history(records)
    assert [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row] == [(0, 0), (1, 0.5), (2, 1)]
    assert [row["step"] for row in rows if "rollouts._type" in row] == [0, 2]
    assert any(record.get("summary", {}).get("update", {}).get("eval/score") == 0.875 for record in records)

    tables = [json.loads(path.read_text()) for path in folder.rglob("*.table.json")]
    assert tables
    assert len(tables[0]["data"]) == 3
    worst = dict(zip(tables[0]["columns"], tables[0]["data"][0], strict=True))
    assert worst.pop("reason") == "x" * 193 + "no node"
    assert worst == {
        "task": "lookup-train-0-0-9",
        "harness": "builtin",
        "reward": None,
        "outcome": "harness_fault",
        "calls": 2,
        "tokens": 6,
        "seconds": 1.75,
    }


async def test_a_resumed_run_is_the_same_wandb_run(tmp_path: Path) -> None:
    for resume in (False, True):
        async with LOGGER.open(tmp_path, {}, resume=resume) as sink:
            sink.rewind(1)
            sink.log(int(resume), {"reward/mean": 0.5})
    found = [inspect(folder) for folder in folders(tmp_path)]
    assert len(found) == 2
    assert len({record["run"]["run_id"] for records in found for record in records if record["type"] == "run"}) == 1
    assert [row["step"] for records in found for row in history(records)] == [0, 1]


async def test_everything_lies_in_the_folder_of_the_run_and_the_environment_is_as_it_was(tmp_path: Path) -> None:
    before = dict(os.environ)
    async with LOGGER.open(tmp_path, {}, resume=False) as sink:
        sink.log(0, {"x": 1})
        assert os.environ["WANDB_DATA_DIR"].startswith(str(tmp_path))
    assert dict(os.environ) == before
    assert {path.name for path in tmp_path.iterdir()} == {"wandb"}


async def test_a_run_that_fails_is_marked_as_failed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        async with LOGGER.open(tmp_path, {}, resume=False):
            raise RuntimeError("on purpose")
    (folder,) = folders(tmp_path)
    assert [record["exit"]["exit_code"] for record in inspect(folder) if record["type"] == "exit"] == [1]


async def test_online_without_a_login_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode=offline"):
        async with Wandb(**{**FIELDS, "mode": "online"}).open(tmp_path, {}, resume=False):
            pass


def test_a_driver_that_ends_says_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER, tmp_path, "0"], capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_killed_driver_leaves_no_process_and_its_rows(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, tmp_path, "600"])
    try:
        wait_until(lambda: (tmp_path / "ready").exists())
        children = descendants(driver.pid)
        assert children
        # The transaction log is written every second.
        wait_until(lambda: len(history(inspect(folders(tmp_path)[0]))) == 3)
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(alive(pid) for pid in children))
    assert [row["reward/mean"] for row in history(inspect(folders(tmp_path)[0]))] == [0, 0.5, 1]


def wait_until(holds: Callable[[], bool], limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """Process ids below one, at any depth."""
    parents = {int(path.name): status(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [pid]
    for parent in found:
        found += [child for child, (_, above) in parents.items() if above == parent]
    return found[1:]


def alive(pid: int) -> bool:
    return status(Path("/proc") / str(pid))[0] not in ("", "Z", "X")


def status(process: Path) -> tuple[str, int]:
    """State and parent of a process; none of a process that is gone."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[1])
