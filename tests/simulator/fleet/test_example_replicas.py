"""The example files are what their README says."""

import re
from pathlib import Path

import pytest

from inflight_simulator.cost import LLAMA_8B_H100
from inflight_simulator.fleet.commands.replica_file import read_replica

FOLDER = Path(__file__).parents[3] / "simulator" / "examples" / "replicas"
PARAMETERS, KV_BYTES, OPERATIONS_PER_PAIR = 8.03e9, 131_072, 4 * 32 * 4096
ROW = re.compile(r"\| (\S+\.json)[^|]*\| (\S+) \| (\S+) \| (\S+) \| (\S+) \|")
DATA_SHEETS = {name: tuple(map(float, numbers)) for name, *numbers in ROW.findall((FOLDER / "README.md").read_text())}


def two_digits(value):
    return float(f"{value:.2g}")


def test_each_file_has_a_data_sheet():
    assert {path.name for path in FOLDER.glob("*.json")} == DATA_SHEETS.keys()


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_a_file_is_arithmetic_on_its_data_sheet(name):
    tflops, bandwidth, memory, link = DATA_SHEETS[name]
    half = 0.5e12 * tflops
    replica = read_replica(FOLDER / name)
    cost = replica.cost
    assert cost.base_s == two_digits(2 * PARAMETERS / (1e12 * bandwidth))
    assert cost.decode_seq_s == cost.prefill_token_s == two_digits(2 * PARAMETERS / half)
    assert cost.decode_kv_token_s == two_digits(KV_BYTES / (1e12 * bandwidth))
    assert cost.prefill_context_token_s == two_digits(OPERATIONS_PER_PAIR / half)
    assert cost.copied_token_s == two_digits(KV_BYTES / (1e9 * link))
    left = (0.9e9 * memory - 2 * PARAMETERS) / KV_BYTES
    assert replica.kv_tokens == left // 1000 * 1000
    assert replica.kv_bytes_per_token == KV_BYTES
    assert replica.price is None


def test_the_h100_is_the_default_of_the_other_commands():
    assert read_replica(FOLDER / "llama-3-8b-h100.json").cost == LLAMA_8B_H100
