"""Azurite, Microsoft's implementation of Azure's Blob Storage for tests, from npm."""

import base64
import hmac
import secrets
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager

import obstore
import pytest
from obstore.store import AzureStore

from tools.localcluster import layout
from tools.localcluster.files import remove_tree
from tools.localcluster.locking import exclusive
from tools.localcluster.progress import to_stdout
from tools.measure.served import free_port, process, wait_ready

VERSION = "3.35.0"
BEFORE = "2026-11-01"
"""Day whose versions of Azurite's own dependencies are taken."""


def installed():
    """Returns the program, which is installed into the cache; skips the test where npm is not on PATH."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Azurite is installed by npm, which is not on PATH")
    cache = layout.current()
    target = cache.bin / f"azurite-{VERSION}-{BEFORE}"
    with exclusive(cache.locks / "azurite", "installing Azurite", to_stdout()):
        if not target.is_dir():
            partial = target.with_name(f"{target.name}.partial")
            remove_tree(partial)
            partial.mkdir(parents=True)
            flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--before", BEFORE)
            command = [npm, "install", "--prefix", str(partial), *flags, f"azurite@{VERSION}"]
            subprocess.run(command, cwd=partial, check=True)
            partial.rename(target)
    return target / "node_modules" / ".bin" / "azurite-blob"


class Account:
    """An account of the server, with the key and signatures of it."""

    name = "account"

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/{self.name}"
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()

    def signature(self, may):
        """Returns a shared access signature. Args: may: letters of what it allows, such as `rl` to read and to list."""
        fields = {"sp": may, "ss": "b", "srt": "sco", "se": "2099-01-01T00:00:00Z", "sv": "2020-08-04"}
        text = "\n".join((self.name, may, "b", "sco", "", fields["se"], "", "", fields["sv"], ""))
        signed = hmac.digest(base64.b64decode(self.key), text.encode(), "sha256")
        return urllib.parse.urlencode(fields | {"sig": base64.b64encode(signed).decode()})

    def make_container(self, name):
        url = f"{self.url}/{name}?restype=container&{self.signature('c')}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()

    def put(self, container, path, content):
        flags = {"account_name": self.name, "account_key": self.key, "client_options": {"allow_http": True}}
        obstore.put(AzureStore(container, endpoint=self.url, **flags), path, content)


@contextmanager
def azurite(log):
    """Runs the server; yields its only account."""
    program, port = installed(), free_port()
    account = Account(port)
    flags = ("--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck")
    command = [str(program), *flags, "--blobPort", str(port), "--extentMemoryLimit", "256"]
    with process(log, command, {"AZURITE_ACCOUNTS": f"{account.name}:{account.key}"}) as running:
        wait_ready(f"{account.url}/?comp=list&{account.signature('l')}", {"Azurite": (running, log)})
        yield account
