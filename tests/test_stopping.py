import subprocess
import sys

STOPPABLE = """
import asyncio, signal
from clawexp.stopping import run_until_stopped
async def work():
    try:
        print('working', flush=True)
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)
        print('closed', flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    run_until_stopped(work())
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""


def test_sigterm_closes_what_is_alive_even_where_a_shell_made_the_run_deaf_to_ctrl_c() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPABLE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "working\n"
        process.terminate()
        rest, _ = process.communicate(timeout=60)
    assert rest.split() == ["closed", "interrupted"]
    assert process.returncode == 0
