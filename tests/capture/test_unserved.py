import asyncio
import resource

import pytest
from mitmproxy import connection

from clawexp.capture import unserved
from clawexp.capture.unserved import MOST, Unserved, widen


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the clients whose connections were closed."""
    gone: list[str] = []
    monkeypatch.setattr(unserved, "hang_up", lambda client: gone.append(client.id))
    return gone


def client(name: str) -> connection.Client:
    made = connection.Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0.0)
    made.id = name
    return made


async def test_who_takes_longer_than_his_time_is_cut_off_and_who_is_served_is_not(cut_off: list[str]):
    waiting = Unserved()
    for name in ("slow", "served", "told anew"):
        waiting.expect(client(name), 0.01)
    waiting.forget(client("served"))
    waiting.expect(client("told anew"), 60)
    await asyncio.sleep(0.05)
    assert cut_off == ["slow"]


async def test_where_there_is_no_room_the_longest_wait_ends(cut_off: list[str]):
    waiting = Unserved()
    room = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    for number in range(room):
        waiting.expect(client(str(number)), 60)
    waiting.expect(client("0"), 60)  # has been heard of since
    assert cut_off == []
    waiting.expect(client("one more"), 60)
    assert cut_off == ["1"]


def test_a_process_takes_all_the_descriptors_that_it_may_have():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        widen()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
