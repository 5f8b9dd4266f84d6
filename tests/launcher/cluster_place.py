"""A folder to submit jobs from."""

from dataclasses import dataclass

from cluster import Cluster
from test_experiment import Place


@dataclass(frozen=True, kw_only=True)
class ClusterPlace(Place):
    """A folder to submit from."""

    cluster: Cluster

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.cluster.environment}

    def state(self, job: str) -> str:
        """What the accounts say of a job, and how often it was started: `COMPLETED 1`."""
        lines = self.cluster.run("sacct", "-X", "-n", "-P", "-D", f"-j{job}", "-oState").split("\n")
        starts = [line.partition(" ")[0] for line in lines if line]
        return f"{starts[-1]} {len(starts)}" if starts else "none"
