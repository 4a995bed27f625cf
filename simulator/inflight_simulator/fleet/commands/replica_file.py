"""The file that describes a replica: a cost model, its KV cache, limits and price."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits
from inflight_simulator.cost import check_cost
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.config import REFERENCE_CAPACITY, ReplicaModel

FORMAT = """\
A replica's FILE, which `inflight-simulate calibrate --replica` writes, is a JSON object:
  cost                the cost model, as `inflight-simulate calibrate --out` writes it
  kv_tokens           tokens that its KV cache holds
  block_size          tokens in a KV block (default 16)
  host_tokens         tokens that host memory behind the KV cache holds (default 0)
  disk_tokens         tokens that a disk behind that memory holds (default 0)
  disk_read_token_s   seconds in which the disk reads the keys and values of a token; needed with a disk
  disk_write_token_s  seconds in which it writes them; needed with a disk
  kv_bytes_per_token  bytes of a token's keys and values, for `plan --host-memory` and `--disk` (default: unknown)
  kv_headroom         share of the blocks that admission leaves free (default 0.01)
  capacity            largest limits that it takes: {"max_num_seqs": 512, "max_num_batched_tokens": 16384}
  noise               standard deviation of the logarithm of a step's time (default 0.03)
  price               of a replica-hour (default: none)"""


MOST_HOST_TOKENS = 10**9
"""The simulator allocates memory for their blocks."""

MOST_DISK_TOKENS = 10**12


class ReplicaFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The file's fields; see `FORMAT`."""

    cost: CostModel
    kv_tokens: int
    block_size: int = 16
    host_tokens: int = 0
    disk_tokens: int = 0
    disk_read_token_s: float | None = None
    disk_write_token_s: float | None = None
    kv_bytes_per_token: int | None = None
    kv_headroom: float = 0.01
    capacity: Limits = REFERENCE_CAPACITY
    noise: float = 0.03
    price: float | None = None


def read_replica(path: Path) -> ReplicaModel:
    """
    Raises:
        InputError: the file cannot be read, is not such an object, or describes nothing that could run.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=ReplicaFile)
        check_cost(file.cost)
        _check(file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}\n{FORMAT}") from error
    return ReplicaModel(**msgspec.structs.asdict(file))


def write_replica(path: Path, file: ReplicaFile) -> None:
    """
    Raises:
        InputError: it describes nothing that could run.
        OSError: the file cannot be written.
    """
    check_cost(file.cost)
    _check(file)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")


def _check(file: ReplicaFile) -> None:
    for name, value, least, most in (
        ("block_size", file.block_size, 1, 1_000_000),
        ("kv_tokens", file.kv_tokens, file.block_size, 10**10),
        ("host_tokens", file.host_tokens, 0, MOST_HOST_TOKENS),
        ("disk_tokens", file.disk_tokens, 0, MOST_DISK_TOKENS),
        ("disk_read_token_s", 1 if file.disk_read_token_s is None else file.disk_read_token_s, 1e-12, 1),
        ("disk_write_token_s", 1 if file.disk_write_token_s is None else file.disk_write_token_s, 1e-12, 1),
        ("kv_bytes_per_token", 1 if file.kv_bytes_per_token is None else file.kv_bytes_per_token, 1, 10**9),
        ("kv_headroom", file.kv_headroom, 0, 0.9),
        ("capacity.max_num_seqs", file.capacity.max_num_seqs, 1, 100_000),
        ("capacity.max_num_batched_tokens", file.capacity.max_num_batched_tokens, 1, 10**8),
        ("noise", file.noise, 0, 2),
        ("price", file.price or 0, 0, 1e9),
    ):
        if not least <= value <= most:
            raise InputError(f"{name} must be between {least} and {most:g}, not {value}")
    if file.disk_tokens:
        if file.disk_tokens < file.block_size:
            raise InputError("disk_tokens must be 0 or at least block_size")
        if file.host_tokens < file.block_size:
            raise InputError("disk_tokens needs host_tokens of at least block_size: the disk is behind host memory")
        if file.disk_read_token_s is None or file.disk_write_token_s is None:
            raise InputError("disk_tokens needs disk_read_token_s and disk_write_token_s")
