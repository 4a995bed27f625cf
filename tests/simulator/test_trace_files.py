import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_simulator.arrivals import Arrival, Scaling, prompt_token_ids, scaled
from inflight_simulator.errors import InputError
from inflight_simulator.trace_files import read_arrivals
from tests.simulator.support import DATA

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_arrivals(path)

    return read


def test_a_table_has_its_columns_in_any_order_and_some_may_be_missing(read):
    assert read("tenant,output_tokens,arrival_s,priority,prompt_tokens,class\nacme,7,1.5,2,100,chat\n,8,0,,9,\n") == [
        Arrival(1.5, 100, 7, service_class="chat", tenant="acme", priority=2),
        Arrival(0.0, 9, 8),
    ]


def test_byte_order_mark_carriage_returns_blanks_and_empty_lines_do_no_harm(read):
    assert read("\ufeffarrival_s, prompt_tokens ,output_tokens\r\n\r\n 0 , 5 ,6\r\n\r\n") == [Arrival(0, 5, 6)]


def test_names_and_values_may_be_quoted_and_lines_may_be_blank_before_and_between(read):
    text = '\n \n"arrival_s","prompt_tokens","output_tokens"\n"0","5","6"\n  \n1,5,x\n'
    with pytest.raises(InputError, match="line 6: output_tokens 'x' is not an integer"):
        read(text)
    assert read(text.replace("x", "7")) == [Arrival(0, 5, 6), Arrival(1, 5, 7)]
    assert read('\n{"timestamp": 0, "input_length": 5, "output_length": 1}\n') == [Arrival(0, 5, 1)]


def test_a_prompt_of_no_tokens_is_one_of_one(read):
    assert read(HEADER + "0,0,6\n") == [Arrival(0, 1, 6)]


def test_azure_times_of_day_are_seconds_from_the_first():
    arrivals = read_arrivals(DATA / "azure_llm_2023_conv_50.csv")
    assert len(arrivals) == 50
    assert arrivals[0] == Arrival(0.0, 374, 44)
    assert (arrivals[1].arrival_s, arrivals[1].prompt_tokens) == (pytest.approx(4.314579, abs=1e-5), 396)


def test_azure_times_of_2024_with_a_zone_are_read_too(read):
    rows = "2024-05-10 00:00:00.009930+00:00,10,5\n2024-05-10 00:00:02.5+00:00,1,2"
    arrivals = read(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert [arrival.arrival_s for arrival in arrivals] == [0.0, pytest.approx(2.49007)]


def test_mooncake_has_milliseconds_and_hash_ids():
    arrivals = read_arrivals(DATA / "mooncake_conversation_50.jsonl")
    assert len(arrivals) == 50
    assert (arrivals[0].prompt_tokens, arrivals[0].output_tokens) == (6758, 500)
    assert arrivals[0].hash_ids == tuple(range(14))
    assert arrivals[-1].arrival_s < 1000


def test_equal_hash_ids_are_equal_tokens_block_by_block():
    first, second = (prompt_token_ids(Arrival(0, 1300, 1, hash_ids=ids), 0) for ids in ((0, 7, 9), (0, 7, 8)))
    assert len(first) == len(second) == 1300
    assert first.dtype == np.int32
    assert (first[:1024] == second[:1024]).all()
    assert (first[1024:] != second[1024:]).all()
    assert (prompt_token_ids(Arrival(0, 100, 1), 3) != prompt_token_ids(Arrival(0, 100, 1), 4)).all()


def test_a_prompt_without_ids_shares_nothing_with_one_that_has_them():
    ids = prompt_token_ids(Arrival(0, 512, 1, hash_ids=(5,)), 0)
    assert not np.isin(prompt_token_ids(Arrival(0, 512, 1), 5), ids).any()


def test_a_shared_prefix_stays_shared_when_prompts_are_scaled():
    arrivals = scaled(
        [Arrival(0, 1300, 1, hash_ids=(0, 7, 9)), Arrival(1, 1400, 1, hash_ids=(0, 7, 8))], Scaling(prompt=0.25)
    )
    first, second = (prompt_token_ids(arrival, 0) for arrival in arrivals)
    assert (len(first), len(second)) == (325, 350)
    assert (first[:256] == second[:256]).all()
    assert (first[256:] != second[256:325]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "0,5,6\nx,5,6\n", "line 3: arrival_s 'x' is not a number"),
        (HEADER + "0,5.5,6\n", "line 2: prompt_tokens '5.5' is not an integer"),
        (HEADER + "0,-5,6\n", "line 2: prompt_tokens must be at least 0, not -5"),
        (HEADER + "0,5,0\n", "line 2: output_tokens must be at least 1, not 0"),
        (HEADER + "0,1000000000000,6\n", "line 2: prompt_tokens must be at most 100000000, not 1000000000000"),
        (HEADER + "-1,5,6\n", "line 2: arrival_s must be 0 or more, not -1"),
        (HEADER + "1e17,5,6\n", "line 2: arrival_s must be at most 1e+10 seconds, not 1e+17"),
        (HEADER + "nan,5,6\n", "line 2: arrival_s must be 0 or more, not nan"),
        (HEADER + "0,5,6\n\n0,5\n", "line 4: 2 values for the 3 columns"),
        (HEADER, "there are no requests in it"),
        ("", "line 1: '' is not the start of a known format"),
        ("a,b,c\n1,2,3\n", "line 1: 'a,b,c' is not the start of a known format"),
        ("arrival_s,prompt_tokens\n0,5\n", "line 1: there is no column output_tokens; the columns are arrival_s,"),
        ("arrival_s,prompt_tokens,output_tokens,colour\n", "line 1: column 'colour' is unknown"),
        ("arrival_s,prompt_tokens,output_tokens,arrival_s\n", "line 1: column arrival_s is there twice"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP 'noon' is not a time like 2023"),
        ('{"timestamp": 0, "input_length": 5}\n', "line 1: Object missing required field `output_length`"),
        ('{"timestamp": 0, "input_length": "a", "output_length": 1}\n', "line 1: Expected `int`, got `str`"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\nnonsense\n', "line 2: JSON is malformed"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n',
            "line 1: 1 hash_ids for an input_length of 600",
        ),
        (b"arrival_s,\xff\xfe\n", "not a text file in UTF-8"),
    ],
)
def test_an_error_names_the_file_the_line_and_what_is_wrong(read, tmp_path, text, message):
    with pytest.raises(InputError) as error:
        read(text)
    assert str(error.value).startswith(str(tmp_path / "trace"))
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere: No such file"):
        read_arrivals(tmp_path / "nowhere")


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: (HEADER + text).encode()))
def test_any_bytes_are_requests_or_an_input_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        arrivals = read_arrivals(path)
    except InputError:
        return
    assert all(arrival.prompt_tokens > 0 and arrival.output_tokens > 0 for arrival in arrivals)


def test_scaling_cuts_then_thins_then_scales_in_order_of_arrival():
    arrivals = [Arrival(float(second), 100 + second, 10) for second in (30, 10, 40, 20, 50)]
    assert scaled(arrivals, Scaling(duration_s=35, every=2, prompt=0.1, output=0.01, speed=2)) == [
        Arrival(5.0, 11, 1, shared_block_tokens=pytest.approx(51.2)),
        Arrival(15.0, 13, 1, shared_block_tokens=pytest.approx(51.2)),
    ]
