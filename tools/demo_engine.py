"""`make demo-engine`: the engine alone on this machine's CPU, asked one question with curl.

In a terminal it goes on serving until Ctrl-C, so that more can be asked; elsewhere it ends after the answer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time

from tools.measure.served import ENGINE, MODEL, free_port, process, wait_ready

BODY = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    "max_tokens": 80,
    "temperature": 0,
}


def ask(port: int) -> None:
    """Show the curl command, run it, show the answer.

    Raises:
        RuntimeError: curl failed; the message has its complaint and the engine's.
    """
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    body = json.dumps(BODY)
    print(f"\n$ curl {url} -H 'Content-Type: application/json' -d '{body}'\n", flush=True)
    command = ["curl", "-sS", "--fail-with-body", url, "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{done.stderr.strip()}; {done.stdout.strip() or 'no answer'}")
    answer = json.loads(done.stdout)
    print(answer["choices"][0]["message"]["content"], f"\n\n{json.dumps(answer['usage'])}\n", flush=True)


def main() -> int:
    """Exit 0 after an answer, 1 without one."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_engine", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port to serve on; another one if it is taken")
    port = free_port(parser.parse_args().port)
    if not shutil.which("curl"):
        print("error: curl, which asks the question, is missing; on Debian: apt-get install curl", file=sys.stderr)
        return 1
    command = [str(ENGINE), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    print(f"$ {' '.join(('inflight-engine', *command[1:]))}", flush=True)
    started = time.monotonic()
    try:
        # In its own process group: Ctrl-C comes to us, and we let the engine drain.
        with process(None, command) as engine:
            wait_ready(f"http://127.0.0.1:{port}/ready", {"the engine": (engine, None)})
            print(f"ready after {time.monotonic() - started:.1f} s")
            ask(port)
            if sys.stdout.isatty():
                print(f"It serves on http://127.0.0.1:{port} until Ctrl-C; its metrics are on /metrics.", flush=True)
                engine.wait()
    except KeyboardInterrupt:
        print()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
