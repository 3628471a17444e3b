"""Keeps other machines away from what this process listens on. No TensorFlow here.

TensorFlow's servers run whatever graph they are sent, ask for no password, and listen on all
interfaces: what a cluster's specification says of the host is where others look for them, and
nothing of the public API changes where they listen. What can be changed is the socket. Bound to the
loopback device, it gets no packets but this machine's own. Linux lets anybody do so from 5.7 on.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_LOOPBACK = b"lo\0"


def confine_listeners() -> bool:
    """Binds every socket that this process listens on to the loopback device.

    Returns whether there was one, and all of them are.
    """
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:  # not Linux
        return False
    bound = []
    for each in _listeners():
        try:
            each.setsockopt(socket.SOL_SOCKET, option, _LOOPBACK)
            bound.append(True)
        except OSError:  # an older kernel
            bound.append(False)
    return bool(bound) and all(bound)


def _listeners() -> Iterator[socket.socket]:
    """This process's sockets that accept connections from a network, as copies."""
    for name in os.listdir(Path("/proc/self/fd")):
        with contextlib.suppress(OSError):  # what is no socket, or has been closed
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                raise
            with found:
                listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and found.family in (socket.AF_INET, socket.AF_INET6):
                    yield found
