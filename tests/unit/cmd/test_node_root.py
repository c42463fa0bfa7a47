"""Which directory the node agent of `dray up` uses."""

from __future__ import annotations

from pathlib import Path

from dray.cmd.node_root import OWNER_FILE, node_root, root_notice


def test_root_uses_the_standard_directory_if_it_is_free(tmp_path: Path) -> None:
    standard, data = tmp_path / "kubelet", tmp_path / "data"
    for _ in range(2):
        assert node_root("", data, is_root=True, standard=standard) == standard
        # The same cluster finds its own files there.
        (standard / "pods").mkdir(exist_ok=True)
    assert "where charts of drivers expect it" in root_notice(standard, given="", is_root=True, standard=standard)
    # Another cluster does not share it.
    other = node_root("", tmp_path / "other", is_root=True, standard=standard)
    assert other == tmp_path / "other" / "node"
    assert f"as {standard} is in use" in root_notice(other, given="", is_root=True, standard=standard)


def test_a_kubelets_directory_is_left_alone(tmp_path: Path) -> None:
    standard = tmp_path / "kubelet"
    (standard / "pki").mkdir(parents=True)
    assert node_root("", tmp_path / "data", is_root=True, standard=standard) == tmp_path / "data" / "node"
    assert not (standard / OWNER_FILE).exists()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    standard, data, secret = tmp_path / "kubelet", tmp_path / "data", tmp_path / "secret"
    standard.mkdir()
    secret.write_text(str(data))
    (standard / OWNER_FILE).symlink_to(secret)
    assert node_root("", data, is_root=True, standard=standard) == data / "node"


def test_others_and_earlier_starts_use_the_data_directory(tmp_path: Path) -> None:
    standard, data = tmp_path / "kubelet", tmp_path / "data"
    assert node_root("", data, is_root=False, standard=standard) == data / "node"
    assert not standard.exists()
    (data / "node").mkdir(parents=True)
    assert node_root("", data, is_root=True, standard=standard) == data / "node"
    assert "only root" in root_notice(data / "node", given="", is_root=False, standard=standard)


def test_a_given_directory_is_used(tmp_path: Path) -> None:
    standard, given = tmp_path / "kubelet", str(tmp_path / "given")
    assert node_root(given, tmp_path / "data", is_root=True, standard=standard) == Path(given)
    assert not standard.exists()
    assert root_notice(Path(given), given=given, is_root=True, standard=standard) == ""
