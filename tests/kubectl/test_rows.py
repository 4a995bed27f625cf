import pytest

from inflight_kubectl.engines.engine_metrics import Figures
from inflight_kubectl.top.rows import (
    SORTS,
    against,
    arranged,
    columns,
    cut,
    pair,
    pod_cells,
    pod_columns,
    replicas,
    service_cells,
    share,
    short,
)
from inflight_kubectl.top.service_screen import head
from tests.kubectl.objects import NOW, pod, service


@pytest.mark.parametrize("width", range(24, 200, 7))
@pytest.mark.parametrize("namespaces", [True, False])
def test_columns_fill_the_width_and_never_pass_it(width, namespaces):
    shown = columns(width, namespaces=namespaces)
    assert sum(one.width for one in shown) + len(shown) - 1 == max(width, 36)


def test_cells_fit_their_columns():
    shown = columns(79, namespaces=False)
    cells = service_cells(service("a-name-that-is-far-too-long-for-its-column"), shown, NOW, wide=False)
    assert all(len(cell.text) <= column.width for cell, column in zip(cells, shown, strict=True))


def test_a_service_that_was_never_measured_shows_dashes():
    shown = columns(79, namespaces=False)
    cells = service_cells(service("new", observed=None, queue=None, limits=None, decisions=[]), shown, NOW, wide=False)
    assert [cell.text for cell in cells][3:] == ["-"] * 7


def test_engines_that_do_not_report_their_kv_cache_have_a_dash_for_it():
    columns_of_services, columns_of_pods = columns(120, namespaces=False), pod_columns(120)
    found = service("chat", observed={"running": 3, "preemptionsPerMinute": 0.0})
    for shown, cells in (
        (columns_of_services, service_cells(found, columns_of_services, NOW, wide=True)),
        (columns_of_pods, pod_cells(found, pod("chat-1"), Figures(running=3, waiting=0), columns_of_pods, NOW)),
    ):
        texts = dict(zip((one.name for one in shown), (cell.text for cell in cells), strict=True))
        assert (texts["RUN"], texts["KV"]) == ("3", "-")
    assert "KV -" in head(found, {"chat-1": Figures(running=3, waiting=0)}, NOW).plain
    assert arranged([found, service("a")], "kv", reverse=False, text="")[0].name == "a"


def test_blocked_replicas_are_counted_and_alarming():
    cell = replicas(service("chat", readyReplicas=1, desiredReplicas=3, blockedReplicas=2))
    assert (cell.text, cell.tone) == ("1/3 !2", "bad")


def test_a_latency_over_its_target_is_marked_without_colour_too():
    assert against(1.2, 1.0, wide=False).text == "1.2s!"
    assert against(1.2, 1.0, wide=True).text == "1.2s!/1s"
    assert against(0.5, 1.0, wide=False).tone == "good"
    assert against(0.95, 1.0, wide=False).tone == "warn"
    assert against(None, 1.0, wide=True).text == "-/1s"


def test_counts_have_at_most_four_characters():
    assert [short(n) for n in (0, 999, 1000, 1234, 9999, 12_345, 999_999, 1_500_000)] == [
        "0", "999", "1k", "1.2k", "9k", "12k", "999k", "1.5M",
    ]  # fmt: skip


def test_limits_fit_nine_characters():
    assert pair(256, 8192) == "256/8192"
    assert len(pair(65_536, 1_048_576)) <= 9


def test_a_full_cache_is_alarming():
    assert (share(0.97).text, share(0.97).tone) == ("97%", "bad")


def test_figures_of_a_pod_that_does_not_answer_are_dimmed():
    shown = pod_columns(79)
    figures = Figures(running=6, kv=0.99, problem="no answer")
    cells = dict(
        zip((one.name for one in shown), pod_cells(service(), pod("chat-1"), figures, shown, NOW), strict=True)
    )
    assert (cells["KV"].text, cells["KV"].tone) == ("99%", "dim")
    assert cells["STATE"].tone == "good"


def test_a_pod_that_loads_its_model_shows_how_much_it_has_read():
    loading = [{"pod": "chat-1", "bytes": 4, "totalBytes": 16, "summary": "4 GB of 16 GB"}]
    shown = pod_columns(79)

    def state(one):
        cells = pod_cells(service(loading=loading), one, None, shown, NOW)
        return cells[[column.name for column in shown].index("STATE")].text

    assert state(pod("chat-1", ready=False)) == "Loading 25%"
    assert state(pod("chat-2", ready=False)) == "Starting"
    assert state(pod("chat-1")) == "Running"


def test_cut_leaves_an_ellipsis():
    from inflight_kubectl.top.rows import Cell

    assert cut(Cell("abcdef"), 4).text == "abc…"


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_works_on_services_without_figures(sort):
    found = [service("b", observed=None, decisions=[]), service("a")]
    assert {one.name for one in arranged(found, sort, reverse=False, text="")} == {"a", "b"}


def test_filter_looks_at_namespace_name_state_and_model():
    found = [service("chat", "team-a"), service("code", "team-b")]
    for words, names in (("team-a", ["chat"]), ("smollm", ["chat", "code"]), ("READY co", ["code"]), ("x", [])):
        assert [one.name for one in arranged(found, "name", reverse=False, text=words)] == names


def test_a_latency_and_its_target_fit_their_column_on_a_wide_terminal():
    width = next(one.width for one in columns(120, namespaces=False) if one.name == "TPOT")
    assert len(against(0.999, 0.998, wide=True).text) <= width
