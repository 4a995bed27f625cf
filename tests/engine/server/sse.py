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


def message_of(found):
    """The message that the events of a stream tell: its blocks begin and end one after the other, and the end is
    told once."""
    assert [each["type"] for each in (found[0], *found[-2:])] == ["message_start", "message_delta", "message_stop"]
    told, block = found[0]["message"], None
    assert (told["content"], told["stop_reason"]) == ([], None)
    for each in found[1:-2]:
        if each["type"] == "content_block_start":
            assert block is None
            block, arguments = dict(each["content_block"]), ""
        elif each["type"] == "content_block_delta":
            name = each["delta"].pop("type").removesuffix("_delta")
            ((field, text),) = each["delta"].items()
            assert field == {"input_json": "partial_json"}.get(name, name)
            if name == "input_json":
                arguments += text
            else:
                block[field] += text
        else:
            assert each["type"] == "content_block_stop"
            if block["type"] == "tool_use" and arguments:
                assert block["input"] == {}
                block["input"] = arguments
            told["content"].append(block)
            block = None
        assert each["index"] == len(told["content"]) - (block is None)
    assert block is None
    end = found[-2]
    return {**told, **end["delta"], "usage": {**told["usage"], **end["usage"]}}
