"""Clusters on this machine: found, told apart from other processes, and removed only if they are clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dray.cmd.local_clusters import (
    LocalCluster,
    LocalClusterError,
    check_name,
    end_containers,
    find_cluster,
    find_clusters,
    remove_cluster,
    start_ticks,
    write_record,
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A named cluster that this process runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "dray" / "clusters" / "one"
    (folder / "pki").mkdir(parents=True)
    found = LocalCluster("one", str(folder), os.getpid(), start_ticks(os.getpid()), "https://h", str(folder / "k"))
    write_record(found)
    return found


def test_a_cluster_is_found_by_name_and_in_the_list(cluster: LocalCluster) -> None:
    assert find_cluster("one") == cluster
    assert find_clusters("nowhere") == [cluster]
    assert cluster.is_running
    with pytest.raises(LocalClusterError, match=r"there is no cluster in .*/two; there are one"):
        find_cluster("two")


def test_a_process_with_the_same_pid_is_not_the_cluster(cluster: LocalCluster) -> None:
    assert not replace(cluster, start_ticks=cluster.start_ticks - 1).is_running
    assert start_ticks(2**22 + 1) == 0


def test_only_the_data_directory_of_a_cluster_is_removed(cluster: LocalCluster, tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    with pytest.raises(LocalClusterError, match="is no data directory of a cluster"):
        remove_cluster(replace(cluster, data_dir=str(other)))
    assert other.exists()
    remove_cluster(cluster)
    assert not Path(cluster.data_dir).exists()


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "a" * 51, "-a", "a_b"])
def test_names_that_are_no_folders_and_contexts_are_refused(name: str) -> None:
    with pytest.raises(LocalClusterError):
        check_name(name)


def test_containers_below_the_folder_are_ended_and_no_others(tmp_path: Path) -> None:
    """A container is known by the process that has its file as an argument."""
    mine, other = tmp_path / "node" / "c1", tmp_path / "elsewhere" / "c2"
    with ExitStack() as stack:
        for folder in (mine, other):
            folder.mkdir(parents=True)
            command = [sys.executable, "-c", "input()", str(folder / "job.json")]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            stack.callback(process.kill)
        assert end_containers(tmp_path / "node") == 1
    assert (mine / "control").read_text() == "SIGKILL\n"
    assert not (other / "control").exists()
