"""A SLURM cluster of this test session's own on one machine: munged, MariaDB, slurmdbd, slurmctld, two slurmd.

Folders, ports and keys are its own, so that it meets no other cluster of the machine. Jobs in the partition `low` give
way to jobs in `main`: they are told by their signal, and requeued.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemons import Daemons, daemons, marked

NODES = ("n0", "n1")
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch", "srun")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
MARIADB = (
    *("--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M", "--innodb-flush-method=nosync"),
    *("--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"),
)
USER = pwd.getpwuid(os.geteuid()).pw_name
HOST = socket.gethostname().partition(".")[0]
GONE_S = 60

SLURM = """\
ClusterName=clawexp
SlurmctldHost={HOST}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={USER}
SlurmdUser={USER}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounts}
AccountingStoragePass={folder}/munge/sock
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=200
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
InactiveLimit=0
KillWait=60
MinJobAge=600
Waittime=0
DebugFlags=NO_CONF_HASH
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 MaxTime=INFINITE State=UP
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=120 MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={port} CPUs=4 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN\n"
)
ACCOUNTS = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
DbdHost={HOST}
DbdAddr=127.0.0.1
DbdPort={accounts}
SlurmUser={USER}
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
CommitDelay=0
"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A live one."""

    folder: Path
    daemons: Daemons

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {"SLURM_CONF": f"{self.folder}/slurm.conf"}

    def run(self, *argv: str) -> str:
        """A client, to its end; what it printed."""
        return self.daemons.run(*argv)

    def processes(self) -> list[int]:
        """Of its jobs and clients."""
        return sorted(set(marked(f"SLURM_CONF={self.folder}/slurm.conf")) - set(self.daemons.pids))


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Boot one. When the context ends, its jobs, daemons and folder are gone. Raises RuntimeError where it cannot."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        raise RuntimeError(f"these tests need SLURM and MariaDB, and {', '.join(missing)} is not here; see .ci/run")
    # Sockets lie in it, so its path must be short.
    with tempfile.TemporaryDirectory(prefix="cx-slurm-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ports = _free_ports()
        _write_configuration(folder, ports)
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": f"{name}/slurm.conf"}
        with daemons(folder, environment) as started:
            _start_munge(started)
            _start_accounts(started, ports)
            _start_slurm(started)
            made = Cluster(folder=folder, daemons=started)
            try:
                yield made
            finally:
                _end_jobs(made)


def _free_ports() -> dict[str, int]:
    names = ("controller", "accounts", "database", *NODES)
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(closing(socket.socket())) for name in names}
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in sockets.items()}


def _write_configuration(folder: Path, ports: dict[str, int]) -> None:
    for name in ("state", "db", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    values = {"folder": folder, "USER": USER, "HOST": HOST, "password": secrets.token_hex(8), **ports}
    nodes = "".join(NODE.format(HOST=HOST, name=node, port=ports[node]) for node in NODES)
    # slurmctld reads nodes before the partitions that name them.
    text, partitions = SLURM.format(**values).split("PartitionName", 1)
    (folder / "slurm.conf").write_text(f"{text}{nodes}PartitionName{partitions}")
    accounts = folder / "slurmdbd.conf"
    accounts.touch(mode=0o600)
    accounts.write_text(ACCOUNTS.format(**values))
    # An init file takes one statement a line.
    (folder / "init.sql").write_text(
        "CREATE DATABASE slurm_acct_db;\n"
        f"CREATE USER 'slurm'@'%' IDENTIFIED BY '{values['password']}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'%';\n"
    )


def _start_munge(started: Daemons) -> None:
    folder = started.folder / "munge"
    folder.mkdir(mode=0o711)
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    started.start(
        "munged",
        *("munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}", f"--socket={folder}/sock"),
        *(f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={started.log}/munged.log"),
    )
    started.until("munged", lambda: started.run("munge", "-n", "-S", f"{folder}/sock"))


def _start_accounts(started: Daemons, ports: dict[str, int]) -> None:
    folder = started.folder
    common = ("--no-defaults", f"--datadir={folder}/db", f"--user={USER}", *MARIADB)
    started.run("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
    started.start(
        "mariadbd",
        *("mariadbd", *common, "--bind-address=127.0.0.1", f"--port={ports['database']}", f"--socket={folder}/db.sock"),
        *(f"--pid-file={folder}/db.pid", f"--init-file={folder}/init.sql", "--skip-log-bin", "--skip-name-resolve"),
    )
    started.until("mariadbd", lambda: _listens(ports["database"]))
    started.start("slurmdbd", "slurmdbd", "-D")
    started.until("slurmdbd", lambda: _listens(ports["accounts"]))


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


def _start_slurm(started: Daemons) -> None:
    configuration = f"{started.folder}/slurm.conf"
    started.start("slurmctld", "slurmctld", "-D", "-c", "-f", configuration)
    for node in NODES:
        started.start(f"slurmd.{node}", "slurmd", "-D", "-N", node, "-f", configuration)
    idle = ["idle"] * len(NODES)
    started.until("idle nodes", lambda: started.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split() == idle)


def _end_jobs(made: Cluster) -> None:
    """A test that failed may have left some."""
    with contextlib.suppress(subprocess.SubprocessError):
        made.run("scancel", "--me", "--full", "--signal=KILL")
        made.run("scancel", "--me")
    deadline = time.monotonic() + GONE_S
    while (left := made.processes()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
