"""Events of streams that name them, and what a client makes of them."""

import json


def events(text):
    """The events of a stream, each the object of its data; the name before it is the object's type."""
    found = []
    for event in text.split("\n\n")[:-1]:
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        if lines in ([], ["data: [DONE]"]):
            continue
        name, data = lines
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def response_of(found):
    """The response that the events of a stream tell, which are numbered without a gap: every item is added before its
    parts, its deltas add up to its end, and the last event has all of them."""
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert [each["type"] for each in found[:2]] == ["response.created", "response.in_progress"]
    items, added, texts = [], None, None
    for each in found[2:-1]:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert added is None
            added, texts = each["item"], ""
            assert (each["output_index"], added["status"]) == (len(items), "in_progress")
            continue
        assert each["output_index"] == len(items)
        if kind == "output_item.done":
            assert {name: each["item"][name] for name in ("id", "type")} == {
                name: added[name] for name in ("id", "type")
            }
            parts = each["item"].get("content")
            assert texts == (each["item"]["arguments"] if parts is None else parts[0]["text"])
            items.append(each["item"])
            added = None
            continue
        assert each["item_id"] == added["id"]
        if kind.endswith(".delta"):
            texts += each["delta"]
        elif kind.endswith("content_part.done"):
            assert each["part"]["text"] == texts
        elif kind.endswith(".done"):
            assert each.get("text", each.get("arguments")) == texts
        else:
            assert (kind, each["part"]["text"]) == ("content_part.added", "")
    assert added is None
    told = found[-1]["response"]
    assert found[-1]["type"] == f"response.{told['status']}"
    assert told["output"] == items
    return told
