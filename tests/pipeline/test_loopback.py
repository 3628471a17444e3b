"""Sockets of this process, and whom they listen to."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from memtrade.pipeline.measure import loopback

ALONE = """
import socket, sys
from memtrade.pipeline.measure import loopback
held = [socket.create_server(("", 0)), socket.create_server(("::", 0), family=socket.AF_INET6)]
client = socket.socket()
print(loopback.confine_listeners())
for each in (*held, client):
    print(each.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\\0").decode())
socket.create_connection(("127.0.0.1", held[0].getsockname()[1]), timeout=5)
held[0].accept()
print("reached")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds sockets to devices")
def test_listeners_are_kept_to_this_machine_and_others_left_alone() -> None:
    """In a process of its own: this one's sockets are the tests'."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n") == ["True", "lo", "lo", "", "reached", ""]


def test_where_it_cannot_be_done_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_BINDTODEVICE", raising=False)
    assert not loopback.confine_listeners()


def test_nothing_that_listens_is_nothing_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_listeners", lambda: iter(()))
    assert not loopback.confine_listeners()
