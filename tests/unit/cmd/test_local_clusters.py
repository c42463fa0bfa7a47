"""Clusters on this machine: found, told apart from other processes, and removed only if they are clusters."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dray.cmd.local_clusters import (
    LocalCluster,
    LocalClusterError,
    check_name,
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
