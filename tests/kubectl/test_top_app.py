"""The live view with Textual's pilot, on a stand-in for the cluster."""

import pytest

from inflight_kubectl.output import Problem
from inflight_kubectl.top.app import TopApp
from inflight_kubectl.top.service_screen import ServiceScreen
from inflight_kubectl.top.services_screen import ServicesScreen
from inflight_kubectl.top.widgets import Grid
from tests.kubectl.objects import condition, decision, pod, service
from tests.kubectl.standin import Source, fleet

SIZE = (80, 24)


def lines(app):
    """Returns the text that the terminal shows."""
    return ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]


def text(app):
    return "\n".join(lines(app))


class Running:
    """A running view, with the actions of a test."""

    def __init__(self, source, size=SIZE):
        self.source, self.app = source, TopApp(source, interval=0.2)
        self._context = self.app.run_test(size=size)

    async def __aenter__(self):
        self.pilot = await self._context.__aenter__()
        await self.settle()
        return self

    async def __aexit__(self, *error):
        return await self._context.__aexit__(*error)

    async def settle(self):
        await self.pilot.pause()
        await self.pilot.pause(0.05)

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.settle()

    async def sees(self, *parts):
        """Waits until the screen has all parts."""
        for _ in range(100):
            shown = text(self.app)
            if all(part in shown for part in parts):
                return shown
            await self.pilot.pause(0.05)
        raise AssertionError(f"{parts} not in\n{text(self.app)}")


async def test_80x24_shows_each_figure_of_a_service_without_cutting_a_heading():
    async with Running(Source([service("chat")])) as top:
        shown = await top.sees("default", "1 service: 1 ready")
        heading, row = lines(top.app)[1], lines(top.app)[2]
        assert heading.split() == "NAME STATE READY QUEUE RUN KV TTFT TPOT LIMITS LAST".split()
        assert row.split()[:9] == ["chat", "Ready", "2/2", "3", "12", "42%", "420ms", "68ms!", "169/1342"]
        assert "replicas 1 -> 2: 1.8 requests/s" in shown
        assert all(len(line) <= 80 for line in lines(top.app))
        assert "q Quit" in lines(top.app)[-1]


async def test_a_wide_terminal_shows_targets_and_the_reason_of_the_last_decision():
    async with Running(Source([service("chat")]), size=(160, 30)) as top:
        await top.sees("420ms/1s", "68ms!/60ms", "DECISION", "replicas 1 -> 2: 1.8 requests/s need 0.2")


async def test_namespaces_have_a_column_when_all_are_shown():
    async with Running(Source([service("chat", "team-a")], scope=None)) as top:
        await top.sees("NAMESPACE", "team-a", "all namespaces")


async def test_enter_opens_a_service_and_escape_goes_back():
    source = Source([service("chat"), service("code")])
    source.pods_are([pod("code-1"), pod("code-2", ready=False)])
    async with Running(source) as top:
        await top.press("down", "enter")
        await top.sees("default/code", "POD", "300ms", "120", "Starting", "replicas 1 -> 2")
        await top.press("escape")
        assert isinstance(top.app.screen, ServicesScreen)
    assert source.closed


async def test_filter_keeps_services_with_all_words_and_escape_clears_it():
    async with Running(Source(fleet(12))) as top:
        await top.press("slash", *"svc 11", "enter")
        assert top.app.screen.query_one(Grid).keys == ["default/svc-011"]
        await top.press("escape")
        assert len(top.app.screen.query_one(Grid).keys) == 12


async def test_a_filter_that_matches_nothing_says_so():
    async with Running(Source(fleet(2))) as top:
        await top.press("slash", *"nothing")
        await top.sees("No service matches the filter")


async def test_sort_puts_what_fails_first_and_reverse_turns_it_round():
    failing = service("zeta", conditions=[condition("Ready", "False", "Unschedulable", "no node")])
    async with Running(Source([service("alpha"), failing])) as top:
        grid = top.app.screen.query_one(Grid)
        assert grid.keys == ["default/alpha", "default/zeta"]
        await top.press("s")
        assert grid.keys == ["default/zeta", "default/alpha"]
        await top.sees("by state")
        await top.press("r")
        assert grid.keys == ["default/alpha", "default/zeta"]


async def test_help_lists_the_keys_and_fits_80x24():
    async with Running(Source([service("chat")])) as top:
        await top.press("question_mark")
        await top.sees("Keys", "filter:", "Columns", "Pods are read from the engines")
        await top.press("escape")
        assert isinstance(top.app.screen, ServicesScreen)


async def test_w_explains_the_service_under_the_cursor():
    async with Running(Source([service("chat")])) as top:
        await top.press("w")
        await top.sees("CONDITIONS", "takes requests (Serving)")
        await top.press("escape")
        assert isinstance(top.app.screen, ServicesScreen)


async def test_q_quits():
    async with Running(Source([service("chat")])) as top:
        await top.press("q")
    assert top.app.return_code == 0


async def test_the_last_view_stays_while_the_api_server_is_away():
    source = Source([service("chat")])
    async with Running(source) as top:
        source.away()
        await top.sees("does not answer: connection refused", "Shown as of", "chat", "420ms")
        await top.press("ctrl+r")
        assert source.retries == 1
        source.show(service("chat", observed=None))
        await top.settle()
        assert "does not answer" not in text(top.app)


async def test_a_service_that_is_deleted_while_open_stays_as_last_seen():
    source = Source([service("chat")])
    source.pods_are([pod("chat-1")])
    async with Running(source) as top:
        await top.press("enter")
        await top.sees("300ms")
        source.show()
        await top.sees("chat was deleted at", "Esc goes back", "replicas 1 -> 2")
        await top.press("escape")
        await top.sees("There are no InferenceServices in namespace default")


async def test_a_new_decision_shows_up_in_an_open_service():
    source = Source([service("chat")])
    async with Running(source) as top:
        await top.press("enter")
        source.show(service("chat", decisions=[decision(), decision(1, 169, 82, "max_num_seqs", "a step takes 1s")]))
        await top.sees("max_num_seqs 169 -> 82", "a step takes 1s")


async def test_pods_that_cannot_be_listed_are_reported_and_the_service_stays():
    source = Source([service("chat")])
    source.pods_are(Problem("forbidden: cannot list pods"))
    async with Running(source) as top:
        await top.press("enter")
        await top.sees("forbidden: cannot list pods", "420ms")
        assert isinstance(top.app.screen, ServiceScreen)


async def test_no_service_at_all_says_what_to_do():
    async with Running(Source(scope=None)) as top:
        await top.sees("no InferenceServices in this cluster", "kubectl apply")
        await top.press("enter", "w", "s")
        assert isinstance(top.app.screen, ServicesScreen)


async def test_500_services_scroll_and_the_cursor_stays_on_its_service():
    source = Source(fleet(500))
    async with Running(source) as top:
        await top.press("G")
        grid = top.app.screen.query_one(Grid)
        assert grid.current == "default/svc-499"
        await top.sees("svc-499", "500 services")
        source.show(*fleet(500)[100:])
        await top.sees("400 services")
        assert grid.current == "default/svc-499"
        await top.sees("svc-499")


@pytest.mark.parametrize("size", [(40, 10), (60, 15), (80, 24), (109, 30), (110, 30), (240, 60)])
async def test_every_size_is_drawn(size):
    source = Source([service("chat")], scope=None)
    source.pods_are([pod("chat-1")])
    async with Running(source, size=size) as top:
        await top.sees("chat")
        await top.press("enter")
        assert all(len(line) <= size[0] for line in lines(top.app))
