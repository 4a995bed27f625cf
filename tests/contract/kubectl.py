"""kubectl against a test's API server, as a user would run it."""

import json
import subprocess

from tools.localcluster.programs.kubectl_program import binary


class Kubectl:
    def __init__(self, kubeconfig):
        self.kubeconfig = kubeconfig

    def run(self, *arguments, stdin=None):
        return subprocess.run(
            [binary(), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ok(self, *arguments, stdin=None):
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.ok(*arguments, "-o", "json"))
