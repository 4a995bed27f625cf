"""Commands in a pod's container, through the API server's exec: no access to the pod's network is needed.

One program is one websocket to `pods/NAME/exec`; its protocol is `v4.channel.k8s.io`: the first byte of a message is a
channel, 1 for standard output, 2 for standard error, 3 for the exit status, a v1 Status.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from inflight_base.kube.kinds import object_path
from inflight_kubectl.output import Problem

if TYPE_CHECKING:
    from inflight_kubectl.access.connection import Connection

PROTOCOL = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_MOST_COMPLAINT = 2000


def output_of(connection: Connection, namespace: str, pod: str, container: str, *command: str) -> Iterator[bytes]:
    """Streams the standard output of a program.

    Raises:
        Problem: forbidden, no such program, or it ended with another code than 0.
    """
    from websocket import ABNF, WebSocketException

    query = urlencode(
        [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", one) for one in command)]
    )
    socket = connection.websocket(f"{object_path('Pod', namespace, pod, 'exec')}?{query}", PROTOCOL)
    complaint, status = b"", b""
    try:
        while True:
            code, message = socket.recv_data()
            if code == ABNF.OPCODE_CLOSE:
                break
            if not message:
                continue
            channel, content = message[0], bytes(message[1:])
            if channel == _STDOUT and content:
                yield content
            elif channel == _STDERR:
                complaint = (complaint + content)[-_MOST_COMPLAINT:]
            elif channel == _STATUS:
                status += content
    except (OSError, WebSocketException) as error:
        raise Problem(f"the connection to {pod} broke off: {str(error) or type(error).__name__}") from error
    finally:
        socket.close()
    _check(pod, command[0], complaint, status)


def _check(pod: str, program: str, complaint: bytes, status: bytes) -> None:
    if not status:
        raise Problem(f"the connection to {pod} broke off before {program} ended")
    ended = json.loads(status)
    if ended.get("status") == "Success":
        return
    said = complaint.decode(errors="replace").strip() or ended.get("message", "")
    raise Problem(f"{program} in {pod} failed: {' '.join(said.split())}")
