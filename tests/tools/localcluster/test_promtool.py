"""promtool and prometheus are taken ready made where it can be. Scripts stand in for apt-get and dpkg-deb here."""

import pytest

from tools.localcluster.errors import ClusterError
from tools.localcluster.layout import Layout
from tools.localcluster.programs import promtool_program

APT = """#!/bin/sh
[ "$2" = update ] && { touch "$LISTS"; exit 0; }
[ "$2" = download ] && [ -e "$LISTS" ] && touch "$3_1_amd64.deb"
"""
DPKG = """#!/bin/sh
[ "$1" = -x ] && mkdir -p "$3/usr/bin" && printf '#!/bin/sh\\necho debian' > "$3/usr/bin/promtool" &&
  printf '#!/bin/sh\\necho debian' > "$3/usr/bin/prometheus"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose PATH has these programs beside the shell's own; where its promtool comes from."""

    def ensure(get=promtool_program.ensure, **programs):
        for name, text in programs.items():
            program = tmp_path / "bin" / name.replace("_", "-")
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        found = {name.replace("_", "-") for name in programs}
        real = promtool_program.shutil.which
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("LISTS", str(tmp_path / "lists"))
        monkeypatch.setattr(promtool_program.shutil, "which", lambda name: real(name) if name in found else None)
        monkeypatch.setattr(promtool_program.gobuild, "ensure_part", lambda part, layout, progress: tmp_path / "built")
        monkeypatch.setattr(promtool_program.gobuild, "drop_caches", lambda layout, progress: None)
        return get(Layout(tmp_path / "cache"), lambda line: None).relative_to(tmp_path)

    return ensure


def test_one_on_the_path_is_taken(machine):
    assert str(machine(promtool="", apt_get=APT, dpkg_deb=DPKG)) == "bin/promtool"


def test_debians_is_taken_out_of_its_package_once(machine):
    assert str(machine(apt_get=APT, dpkg_deb=DPKG)) == "cache/bin/promtool-debian/promtool"
    assert str(machine(apt_get="#!/bin/sh\nexit 1", dpkg_deb=DPKG)) == "cache/bin/promtool-debian/promtool"


def test_without_apt_or_its_package_it_is_built(machine):
    assert str(machine()) == "built/promtool"
    assert str(machine(apt_get="#!/bin/sh\nexit 1", dpkg_deb=DPKG)) == "built/promtool"


def test_a_server_on_the_path_is_taken(machine):
    assert str(machine(promtool_program.ensure_server, prometheus="")) == "bin/prometheus"


def test_debians_server_is_taken_out_of_its_package(machine):
    found = machine(promtool_program.ensure_server, apt_get=APT, dpkg_deb=DPKG)
    assert str(found) == "cache/bin/prometheus-debian/prometheus"


def test_without_a_package_the_server_is_an_error_that_names_it(machine):
    with pytest.raises(ClusterError, match="prometheus is missing"):
        machine(promtool_program.ensure_server)
