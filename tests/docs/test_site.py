"""The site builds without a warning, loads nothing from other servers, and its generated pages are up to date."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.generate.__main__ import texts
from docs.generate.metrics import engine_families
from tests.docs.blocks import PAGES, PROJECT
from tests.engine.server.test_measurements import MEASURED, OWN, VLLM
from tools import generated

LINK = re.compile(r"""(?:\]\(|\b(?:href|src)=")(?!https?:)([^)"#\s]*)(?:#([^)"\s]+))?[)"]""")
"""A link or a picture, in Markdown or HTML: its file and its heading."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly: a broken link, an unknown anchor or a page outside the navigation raises."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(PROJECT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_the_site_builds_strictly_and_every_page_is_in_it(site):
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    pages = [page for page in (PROJECT / "docs").rglob("*.md") if page.name != "README.md"]
    sources = {str(page.relative_to(PROJECT / "docs").with_suffix("")) for page in pages}
    assert sources <= built


def test_the_site_loads_nothing_from_other_servers(site):
    loading = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?(https?:[^"'> ]+)""")
    loaded = {url for page in site.rglob("*.html") for url in loading.findall(page.read_text())}
    assert loaded == set()


def slug(heading):
    """Anchor of a heading, like that of GitHub and MkDocs."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_to_files_and_headings_of_the_repository(page):
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "code", page.read_text())):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"


def test_links_in_markdown_and_html_are_found():
    text = '[a](b.md#c) ![p](q.png) <a href="d.md#e"><img src="f.png"></a> [w](https://x/y) <a href="https://x">z</a>'
    assert LINK.findall(text) == [("b.md", "c"), ("q.png", ""), ("d.md", "e"), ("f.png", "")]


def test_paths_of_the_documentation_in_the_code_exist():
    folders = ("engine_image", "operator", "simulator", "common", "helm", "deploy", "e2e", "tools", "tests")
    suffixes = {".py", ".yaml", ".txt", ".tpl", ".json", ".cpp", ".h"}
    named = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md")
    files = [path for folder in folders for path in (PROJECT / folder).rglob("*") if path.suffix in suffixes]
    found = {name for path in files for name in named.findall(path.read_text(errors="replace"))}
    assert {name for name in found if not (PROJECT / name).exists()} == set()


def test_generated_pages_are_up_to_date():
    assert generated.run("docs.generate", None, texts(), ["--check"]) == 0


def test_the_reference_of_metrics_has_every_metric_of_an_engine():
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in engine_families()}
    assert names >= set(VLLM) | set(OWN) | MEASURED


def test_every_picture_of_the_documentation_is_shown():
    pictures = {path.name for path in (PROJECT / "docs" / "img").iterdir() if path.suffix != ".md"}
    shown = {Path(name).name for page in PAGES for name, _ in LINK.findall(page.read_text())}
    assert pictures - shown == set()
