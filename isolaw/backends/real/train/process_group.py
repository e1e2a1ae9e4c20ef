"""Start the process group of a run, and exchange data between its processes.

The group uses gloo in host memory and NCCL on GPUs, with a long time limit. On one machine, the processes
find each other through a file and connect only over the loopback interface. On several machines, they find
each other through a store at the first machine's address, and connect over the network interfaces that reach
it. Neither method authenticates peers, so processes exchange data only as JSON or safetensors. An intruder
could then send wrong numbers but no code. torch's collectives of objects use pickles. If libraries send such
pickles, isolaw reads only plain data from them.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import socket
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.distributed import distributed_c10d

from isolaw.backends.real import environment
from isolaw.children import GROUP
from isolaw.errors import RunError

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for numbers, texts and their containers; it rejects all classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a process of the run sent a pickle that names {module}.{name}")


def start(timeout_hours: float = 4.0, backend: str = "") -> None:
    """Start the default process group unless it exists; without ``RANK`` it has one process.

    Ranks wait for each other while one rank generates, scores, or writes the state. These steps can take
    longer than the default timeouts of NCCL (10 minutes) and gloo (30 minutes). The function also changes
    torch's default timeouts, because DeepSpeed and vLLM create other groups with them.
    """
    is_alone = "RANK" not in os.environ
    if is_alone:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    if dist.is_initialized():  # the previous run has started the group
        return
    timeout = timedelta(hours=timeout_hours)
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout
    distributed_c10d._unpickler = _PlainUnpickler
    backend = backend or ("cpu:gloo,cuda:nccl" if environment.gpus() else "gloo")
    meeting = json.loads(os.environ.get(GROUP, "{}"))
    _choose_interface(meeting.get("address"))
    if is_alone:  # one process, which opens no port and does not change the environment of children
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
    elif not meeting:  # started by another launcher
        dist.init_process_group(backend, timeout=timeout)
    else:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = _open_store(meeting, rank, world, timeout)
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world)


def exchange(value: Any) -> list[Any]:
    """Return every process's value, by rank; all processes must make the same call.

    Values must be JSON-compatible. Tuples become lists, including the process's own value. Raise `RunError`
    if a process sends anything except JSON.
    """
    return _exchange_bytes("JSON", json.loads, json.dumps(value).encode())


def exchange_tensors(tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return every process's named tensors, by rank; all processes must make the same call.

    Raise `RunError` if a process sends anything except safetensors.
    """
    return _exchange_bytes("safetensors", load, save(tensors))


def _exchange_bytes(name: str, parse: Callable[[bytes], Any], content: bytes) -> list[Any]:
    """Exchange bytes, and return the result of ``parse`` for every process's bytes, by rank."""
    local_bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(local_bytes)]))
    longest = max(map(int, sizes))
    rank_bytes = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(rank_bytes, torch.nn.functional.pad(local_bytes, (0, longest - len(local_bytes))))
    out = []
    for rank, (size, received) in enumerate(zip(map(int, sizes), rank_bytes, strict=True)):
        try:
            out.append(parse(received[:size].numpy().tobytes()))
        except (ValueError, RecursionError, SafetensorError):
            raise RunError(f"process {rank} of the run sent {size} bytes that are not {name}") from None
    return out


def _choose_interface(address: str | None) -> None:
    """Make libraries listen only on loopback or, on several machines, on the interface towards ``address``.

    For several machines, variables that the user has set remain unchanged.
    """
    if address is None:
        os.environ.update(dict.fromkeys(_INTERFACES, _interface("127.0.0.1") or _LOOPBACK))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing (UDP)
        own_address = probe.getsockname()[0]
    if name := _interface(own_address):
        for variable in _INTERFACES:
            os.environ.setdefault(variable, name)


def _interface(address: str) -> str:
    """Return the name of the interface with this address, or an empty string."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                reply = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no address
                continue
        if socket.inet_ntoa(reply[20:24]) == address:
            return name
    return ""


def _open_store(meeting: dict[str, Any], rank: int, world: int, timeout: timedelta) -> dist.Store:
    if "file" in meeting:
        return dist.FileStore(meeting["file"], world)
    return dist.TCPStore(
        meeting["address"],
        meeting["port"],
        world,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=meeting.get("socket"),
    )
