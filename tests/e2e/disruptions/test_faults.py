"""Parts of the faults: the connection table, the faulty metrics page, the redirect to it."""

import asyncio
import subprocess
import sys

import pytest

from e2e.disruptions import metrics_page
from e2e.disruptions.faulty_page import redirect
from e2e.disruptions.load import Connections, parse_connections
from tools.localcluster import machine
from tools.localcluster.commands import output
from tools.localcluster.programs import packages

ENTRIES = """\
ipv4     2 tcp      6 431998 ESTABLISHED src=10.244.0.9 dst=10.96.1.2 sport=41000 dport=80 src=10.244.0.4 \
dst=10.244.0.9 sport=8000 dport=41000 [ASSURED] mark=0 zone=0 use=2
ipv4     2 tcp      6 9 CLOSE src=10.244.0.9 dst=10.96.1.2 sport=41002 dport=80 src=10.244.0.5 dst=10.244.0.9 \
sport=8000 dport=41002 mark=0 zone=0 use=2
ipv4     2 tcp      6 75 SYN_SENT src=10.244.0.9 dst=10.96.1.2 sport=41004 dport=80 [UNREPLIED] src=10.244.0.5 \
dst=10.244.0.9 sport=8000 dport=41004 mark=0 zone=0 use=2
ipv4     2 tcp      6 75 TIME_WAIT src=10.244.0.1 dst=10.244.0.9 sport=58694 dport=8080 src=10.244.0.9 \
dst=10.244.0.1 sport=8080 dport=58694 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 20 src=10.244.0.9 dst=10.96.0.10 sport=41006 dport=53 src=10.244.0.2 dst=10.244.0.9 \
sport=53 dport=41006 mark=0 zone=0 use=2
"""


def test_each_connection_of_the_client_has_the_pod_that_answers_it():
    assert parse_connections(ENTRIES, "10.244.0.9") == {41000: "10.244.0.4", 41002: "10.244.0.5", 41004: "10.244.0.5"}
    assert parse_connections("", "10.244.0.9") == {}


def test_a_port_that_is_given_again_leaves_the_earlier_connection_its_pod():
    seen = Connections()
    for at, pod in ((10.0, "10.244.0.4"), (11.0, "10.244.0.4"), (12.5, "10.244.0.5"), (14.0, "10.244.0.4")):
        seen.take(at, {41000: pod})
    assert [seen.pod(41000, ended) for ended in (10.0, 11.5, 12.2, 13.0, 20.0)] == [
        "10.244.0.4", "10.244.0.4", "10.244.0.5", "10.244.0.5", "10.244.0.4"
    ]  # fmt: skip
    assert seen.pod(41000, 9.0) is None
    assert seen.pod(41001, 12.0) is None


async def engine(reader, writer):
    """Stands for an engine: answers with the request's first line, and keeps the connection unless told to close it."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        line = head.splitlines(keepends=True)[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(line) + line)
        if b"Connection: close" in head:
            writer.close()
            return


async def request(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: engine\r\n\r\n".encode())
    return reader, writer


@pytest.fixture
async def responder(request):
    behind = await asyncio.start_server(engine, "127.0.0.1", 0)
    in_front = await metrics_page.serve(request.param, behind.sockets[0].getsockname()[1], 0)
    yield in_front.sockets[0].getsockname()[1]
    for server in (in_front, behind):
        server.close()


@pytest.mark.parametrize("responder", ["huge"], indirect=True)
async def test_a_huge_page_is_100_mb_and_other_paths_are_the_engines(responder):
    reader, _writer = await request(responder, "/v1/runtime_config")
    assert (await reader.read()).endswith(b"GET /v1/runtime_config HTTP/1.1\r\n")
    reader, _writer = await request(responder, "/metrics?name[]=x")
    head = await reader.readuntil(b"\r\n\r\n")
    read = 0
    while data := await reader.read(2**20):
        read += len(data)
    assert read == 100 * 2**20
    assert f"Content-Length: {read}".encode() in head


@pytest.mark.parametrize("responder", ["hang"], indirect=True)
async def test_a_page_that_hangs_says_nothing(responder):
    reader, _writer = await request(responder, "/metrics")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.5)


@pytest.mark.skipif(not machine.is_root() or not packages.find("nft"), reason="needs root and nftables")
def test_the_redirect_is_taken_by_nftables():
    if machine.namespace_problem():
        pytest.skip("this machine cannot make namespaces")
    nft = [packages.require("nft"), "-f", "-"]
    output(["unshare", "--net", *nft], text=redirect("try", ["10.244.0.3", "10.244.0.7"], "10.244.0.4"))


def test_phases_of_the_gateway_run_only_with_the_flag():
    from e2e.disruptions.__main__ import chosen, parser
    from e2e.disruptions.phases import PHASES

    plain, behind = (chosen(parser().parse_args(flags)) for flags in ([], ["--gateway"]))
    assert behind == tuple(PHASES)
    assert set(behind) - set(plain) == {
        name for name in PHASES if name.startswith(("gateway-", "picker-", "owner-", "handed-", "prefill-"))
    }
    assert chosen(parser().parse_args(["--phases", "gateway-killed,steady"])) == ("gateway-killed", "steady")


def test_what_the_gateway_counted_is_read_for_one_service():
    from inflight_base.manifest.keys import ServiceKey
    from inflight_gateway.telemetry.metrics import Metrics
    from inflight_gateway.types import Finished
    from tools.testbed.numbers import CONTINUATIONS, counted
    from tools.testbed.service import Service

    metrics = Metrics()
    for namespace, continuations in (("a", 3), ("a", 2), ("b", 7)):
        metrics.finished(Finished("1", ServiceKey(namespace, "chat"), 200, True, continuations=continuations))
    page = metrics.page().decode()
    assert counted(page, CONTINUATIONS, Service("chat", "a")) == 5
    assert counted(page, CONTINUATIONS, Service("other", "a")) == 0
    assert counted("", CONTINUATIONS, Service("chat", "a")) == 0


def test_a_process_is_found_by_an_argument_of_its_command_line(monkeypatch):
    from e2e.disruptions import processes

    program = "import sys; print('there', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, "picker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        monkeypatch.setattr(processes, "of_containers", lambda uid: [process.pid, 2**22 + 1])
        assert processes.with_argument("uid", "picker") == [process.pid]
        assert processes.with_argument("uid", "relay") == []


def test_help_names_every_phase():
    from e2e.disruptions.phases import IN_MAKE_TEST, IN_MAKE_TEST_WITH_GATEWAY, PHASES

    shown = subprocess.run(
        [sys.executable, "-m", "e2e.disruptions", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(f"{name} " in shown and phase.about in shown for name, phase in PHASES.items())
    assert {*IN_MAKE_TEST, *IN_MAKE_TEST_WITH_GATEWAY} <= set(PHASES)
    refused = subprocess.run(
        [sys.executable, "-m", "e2e.disruptions", "--phases", "nonesuch"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "no phase nonesuch" in refused.stderr
