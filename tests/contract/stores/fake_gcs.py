"""Google Cloud Storage as fake-gcs-server implements it, behind a gate that reads the tokens of service accounts.

The server itself takes every request. The gate answers as Google does: 401 without a token that the key of an account
signed, 403 for a bucket that the account may not read.
"""

import base64
import http.client
import json
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tools.localcluster import layout
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import to_stdout
from tools.measure.served import free_port, process, wait_ready


class Account:
    """A service account with a key file, as Google gives it to users. Args: buckets: those that it may read."""

    def __init__(self, name, buckets=()):
        self.email = f"{name}@project.example"
        self.buckets = buckets
        self._key = rsa.generate_private_key(65537, 2048)

    @property
    def key_file(self):
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = self._key.private_bytes(serialization.Encoding.PEM, *form).decode()
        return json.dumps(
            {"type": "service_account", "private_key_id": "1", "private_key": key, "client_email": self.email}
        )

    def signed(self, token):
        """Returns whether the key of this account signed the token, a JWT."""
        text, _, signature = token.rpartition(".")
        try:
            self._key.public_key().verify(_decoded(signature), text.encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return json.loads(_decoded(text.split(".")[1]))["iss"] == self.email


def _decoded(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


class Storage:
    """A running server.

    Attributes:
        url: of the gate: what the engine is given.
        accounts: those that the gate knows.
    """

    def __init__(self, port):
        self._server = f"127.0.0.1:{port}"
        self.accounts = []
        self._ask("/storage/v1/b?project=project", json.dumps({"name": "models"}).encode(), "application/json")

    def put(self, path, content):
        self._ask(f"/upload/storage/v1/b/models/o?uploadType=media&name={path}", content, "application/octet-stream")

    def _ask(self, path, body, content_type):
        asked = urllib.request.Request(f"http://{self._server}{path}", body, {"Content-Type": content_type})
        urllib.request.urlopen(asked).close()

    def status(self, authorization, path):
        """Returns the status with which the gate refuses a request, or None."""
        token = (authorization or "").removeprefix("Bearer ")
        account = next((account for account in self.accounts if account.signed(token)), None)
        if account is None:
            return 401
        return None if path.split("?")[0].split("/")[1] in account.buckets else 403

    @contextmanager
    def gate(self):
        storage = self

        class Gate(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                status = storage.status(self.headers["Authorization"], self.path)
                if status is None:
                    self.pass_on()
                else:
                    self.answer(status, {}, b"<Error><Code>AccessDenied</Code></Error>")

            def pass_on(self):
                server = http.client.HTTPConnection(storage._server)
                wanted = {name: value for name, value in self.headers.items() if name.lower() == "range"}
                server.request("GET", self.path, headers=wanted)
                found = server.getresponse()
                headers = {name: found.headers[name] for name in ("ETag", "Last-Modified", "Content-Range")}
                self.answer(found.status, headers, found.read())
                server.close()

            def answer(self, status, headers, body):
                self.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(body))}).items():
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            yield
            server.shutdown()


@contextmanager
def storage(log):
    """Runs server and gate, with the bucket `models`."""
    program = gobuild.ensure_part(goparts.GCS, layout.current(), to_stdout()) / "fake-gcs-server"
    port = free_port()
    flags = ("-scheme", "http", "-backend", "memory", "-public-host", f"127.0.0.1:{port}")
    command = [str(program), *flags, "-host", "127.0.0.1", "-port", str(port)]
    with process(log, command) as running:
        wait_ready(f"http://127.0.0.1:{port}/_internal/healthcheck", {"fake-gcs-server": (running, log)})
        found = Storage(port)
        with found.gate():
            yield found
