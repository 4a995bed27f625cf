"""Conversations: sent requests, kept messages, and ends of answers, with a stand-in for the engine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from click.testing import CliRunner

from inflight_kubectl.access.resources import Service
from inflight_kubectl.commands.chat import COMMAND, _Screen, _Session
from inflight_kubectl.engines.conversation import Conversation, served_name
from inflight_kubectl.load.answers import Answer, AnswerError, EventReader, refusal
from inflight_kubectl.output import Problem
from tests.kubectl.objects import body


class Forward:
    """Stands in for `PortForward`."""

    headers: ClassVar = {"host": "chat.team"}

    def __init__(self, url="http://127.0.0.1:1", problem=None):
        self.url, self.problem = url, problem

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def events(*pieces, end="stop", usage=True, done=True):
    """Returns an answer as a stream of events."""
    lines = [{"choices": [{"delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    lines.append({"choices": [{"delta": {}, "finish_reason": end}]})
    if usage:
        lines.append({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": len(pieces)}})
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in lines)
    return text + "data: [DONE]\n\n" * done


class Engine:
    """Stands in for an engine: gives the prepared answers in turn, of text or (status, text)."""

    def __init__(self, *answers):
        self.answers, self.bodies, self.headers = list(answers), [], []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                engine.headers.append(self.headers)
                engine.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = engine.answers.pop(0)
                status, text = (200, answer) if isinstance(answer, str) else answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_): ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.forward = Forward(f"http://127.0.0.1:{server.server_port}")


def asked(conversation, engine, question, show=lambda piece, aside: None):
    return conversation.ask(engine.forward, question, show)


def test_an_answer_is_shown_as_it_comes_and_the_next_question_has_it():
    engine, shown = Engine(events("Blue", "."), events("Yes")), []
    conversation = Conversation({"model": "chat"}, {"authorization": "Bearer ifk_1"}, "Be brief.")
    answer, whole = asked(conversation, engine, "A colour?", lambda piece, _: shown.append(piece))
    assert (answer.text, whole, [piece for piece in shown if piece]) == ("Blue.", True, ["Blue", "."])
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (12, 2, "stop")
    asked(conversation, engine, "Sure?")
    assert (engine.headers[1]["host"], engine.headers[1]["authorization"]) == ("chat.team", "Bearer ifk_1")
    assert engine.bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A colour?"},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Sure?"},
    ]
    conversation.reset()
    assert (conversation.messages, conversation.system) == ([], "Be brief.")


def test_ctrl_c_ends_the_answer_and_keeps_what_came():
    def interrupt(piece, aside):
        raise KeyboardInterrupt

    conversation = Conversation({})
    answer, whole = asked(conversation, Engine(events("Blue", ".")), "A colour?", interrupt)
    assert (answer.text, whole) == ("Blue", False)
    assert conversation.messages[-1] == {"role": "assistant", "content": "Blue"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (events("Blue", done=False), "ended in the middle"),
        ('data: {"error": {"message": "the engine restarts"}}\n\n', "the engine restarts"),
        ((503, '{"error": {"message": "draining"}}'), "503: draining. No engine takes requests now"),
        ("data: nonsense\n\n", "no JSON"),
    ],
    ids=["cut", "error event", "refused", "no event"],
)
def test_a_question_that_is_not_answered_is_not_remembered(answer, said):
    conversation = Conversation({})
    with pytest.raises(AnswerError, match=said):
        asked(conversation, Engine(answer), "A colour?")
    assert conversation.messages == []


def test_times_are_of_the_first_and_of_later_tokens():
    answer = Answer(began=10.0)
    for number, data in enumerate(EventReader().feed(events("a", "b", "c").encode())):
        answer.take(data, 10.5 + number * 0.1)
    assert answer.ttft == pytest.approx(0.5)
    assert answer.tpot == pytest.approx(0.15)  # the event that ends the answer counts as its last token
    assert Answer(0.0).tokens_per_s is None


def test_a_refusal_without_json_is_shown_as_it_is():
    assert refusal(404, b"<html>not here</html>").what == "the service answers 404: <html>not here</html>"


def test_requests_name_the_model_as_the_service_serves_it():
    assert served_name(Service.of(body(spec={"model": {"source": "hf://a/b"}}))) == "chat"
    assert served_name(Service.of(body(spec={"model": {"source": "hf://a/b", "servedName": "b"}}))) == "b"


@pytest.fixture
def run(monkeypatch):
    def run(engine, *flags, stdin=None):
        class Cluster:
            """Stands in for a cluster."""

            def service(self, name):
                return Service.of(body(name))

        monkeypatch.setattr("inflight_kubectl.access.cluster.Target.connect", lambda target: Cluster())
        monkeypatch.setattr("inflight_kubectl.engines.engine_access.forward_to_service", lambda *_: engine.forward)
        return CliRunner().invoke(COMMAND, ["chat", *flags], input=stdin)

    return run


def test_one_question_from_a_flag_or_from_standard_input_prints_the_answer_alone(run):
    assert run(Engine(events("Blue", ".")), "-m", "A colour?").stdout == "Blue.\n"
    engine = Engine(events("Blue"))
    assert run(engine, "--max-tokens", "9", "--class", "batch", stdin="A colour?\n").stdout == "Blue\n"
    sent = engine.bodies[0]
    assert (sent["max_tokens"], sent["class"], sent["messages"][0]["content"]) == (9, "batch", "A colour?")
    assert "temperature" not in sent


def test_one_question_as_json_has_the_answer_and_its_figures(run):
    answer = json.loads(run(Engine(events("Blue", ".")), "-m", "A colour?", "--json").stdout)
    assert (answer["answer"], answer["completionTokens"], answer["finishReason"]) == ("Blue.", 2, "stop")


def test_no_question_at_all_is_an_error(run):
    done = run(Engine(), stdin="  \n")
    assert (done.exit_code, "no question on standard input" in done.output) == (1, True)


def test_a_session_goes_on_after_errors_and_ends_with_ctrl_d(monkeypatch, capsys):
    engine = Engine((503, '{"error": "busy"}'), events("Blue"), events("Hello"))
    lines = iter(["A colour?", "Again", "/system Be kind.", "/stats", "Hi", "/nonsense", "/help", "/reset", ""])

    def typed(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    conversation = Conversation({})
    _Session(conversation, engine.forward, "chat", stats=False).run()
    out, err = capsys.readouterr()
    assert out.split() == ["Blue", "Hello"]
    assert "the service answers 503: busy" in err
    assert "There is no command /nonsense" in err
    assert "finish reason stop" in err
    assert engine.bodies[2]["messages"][0] == {"role": "system", "content": "Be kind."}
    assert conversation.messages == []


def test_problems_of_the_forward_come_before_those_of_the_connection():
    with pytest.raises(Problem, match="no pod is ready"):
        Conversation({}).ask(
            Forward(problem=Problem("no pod is ready to take requests")), "Hi", lambda piece, aside: None
        )
    with pytest.raises(AnswerError, match="the connection to the engine failed: ClientConnectorError"):
        Conversation({}).ask(Forward(), "Hi", lambda piece, aside: None)


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a[2Jb\tc\nd"), (False, "a\x1b[2Jb\tc\nd\x9b")])
def test_what_a_model_writes_does_not_control_the_terminal(monkeypatch, capsys, terminal, shown):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    _Screen().show("a\x1b[2Jb\tc\nd\x9b", "")
    assert capsys.readouterr().out == shown


def test_thinking_and_tool_calls_are_shown_beside_the_answer(run):
    deltas = [
        {"role": "assistant", "content": "", "reasoning": "A ", "reasoning_content": "A "},
        {"reasoning_content": "door."},
        {"content": "Red."},
        {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "paint", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"coats": 2}'}}]},
    ]
    lines = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in lines)
    text += events(end="tool_calls")
    done = run(Engine(text), "-m", "A colour?")
    assert (done.stdout, done.stderr) == ("Red.\n", 'A door.\n\n[paint] {"coats": 2}')
    found = json.loads(run(Engine(text), "-m", "A colour?", "--json").stdout)
    assert (found["answer"], found["thinking"]) == ("Red.", "A door.")
    assert found["toolCalls"] == [{"name": "paint", "arguments": '{"coats": 2}'}]
    answer = Answer(began=1.0)
    answer.take(json.dumps(lines[1]).encode(), 1.5)
    assert (answer.ttft, answer.text) == (0.5, "")
