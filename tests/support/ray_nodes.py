"""A Ray cluster of several nodes on this machine, each with a store folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forecast_autotune.processes.serving import children_of


@dataclass(frozen=True, slots=True)
class RayNodes:
    """A cluster's address, and the process that each node is."""

    address: str
    raylets: list[int]

    def kill(self, number: int) -> None:
        """End a node with all that runs on it, at once, as a power cut does."""
        for pid in [self.raylets[number], *_descendants(self.raylets[number])]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found = []
    for child in children_of(pid) or ():
        found += [child, *_descendants(child)]
    return found


@contextmanager
def ray_nodes(folders: Sequence[Path], environment: Mapping[str, str] | None = None) -> Iterator[RayNodes]:
    """A cluster with a node for each folder, which is its `FORECAST_AUTOTUNE_DIR`."""
    command = [sys.executable, "-W", "ignore", __file__, *map(str, folders)]
    environment = {**os.environ, **(environment or {}), "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while not (line := process.stdout.readline()).startswith("{"):
                assert line, "the cluster did not start"
            yield RayNodes(**json.loads(line))
        finally:
            process.stdin.close()


def main() -> None:
    """Start the nodes, say where they are, and end them with stdin."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = []
    for folder in sys.argv[1:]:
        given = {} if nodes else {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
        nodes.append(cluster.add_node(num_cpus=1, num_gpus=0, env_vars={"FORECAST_AUTOTUNE_DIR": folder}, **given))
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
