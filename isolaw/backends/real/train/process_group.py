"""The process group of a run: data over gloo, tensors over NCCL, with a long time limit.

On one machine the processes find each other by a file, and connect by loopback alone. On several they find
each other by a store at the first machine's address, and connect by the interfaces that lead there. Neither
authenticates peers, so processes exchange data as JSON or safetensors: an intruder can send wrong numbers,
but no code. torch's own collectives of objects are pickles; of those that libraries send, isolaw reads only
plain data (`let_libraries_unpickle`).
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
from isolaw.engine_connection import GROUP
from isolaw.errors import RunError

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR, of Linux
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and their containers; refuses whatever names a class or a function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a process of the run sent a pickle that names {module}.{name}")


def start(timeout_hours: float = 4.0, backend: str = "") -> None:
    """Start the default group, once per process; by default it has one process.

    Ranks wait for each other while one of them generates, scores, or writes the state, which takes longer
    than NCCL's 10 minutes and gloo's 30. DeepSpeed and vLLM create further groups with torch's default
    timeouts, so these change too.
    """
    alone = "RANK" not in os.environ
    if alone:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    if dist.is_initialized():  # by the previous run
        return
    timeout = timedelta(hours=timeout_hours)
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout
    distributed_c10d._unpickler = _Plain
    backend = backend or ("cpu:gloo,cuda:nccl" if environment.gpus() else "gloo")
    meeting = json.loads(os.environ.get(GROUP, "{}"))
    choose_interface(meeting.get("address"))
    if alone:  # a group of this process: no port, nothing in the environment of its children
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
    elif not meeting:  # started by another launcher
        dist.init_process_group(backend, timeout=timeout)
    else:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = _store(meeting, rank, world, timeout)
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world)


def let_libraries_unpickle() -> None:
    """Let torch's collectives read any object from here on, as vLLM needs where processes share a sampler."""
    distributed_c10d._unpickler = pickle.Unpickler


def exchange(value: Any) -> list[Any]:
    """Return every process's value, by rank, at the same call in each; values are data for JSON.

    A tuple arrives as a list, also in the process itself. Raises `RunError` if a process sends anything but
    JSON.
    """
    return _read("JSON", json.loads, json.dumps(value).encode())


def exchange_tensors(tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return every process's tensors by name, by rank, at the same call in each, as safetensors.

    Raises `RunError` if a process sends anything else.
    """
    return _read("safetensors", load, save(tensors))


def _read(kind: str, read: Callable[[bytes], Any], own: bytes) -> list[Any]:
    """Return what ``read`` makes of every process's bytes, by rank."""
    text = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(text)]))
    longest = max(map(int, sizes))
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))))
    out = []
    for rank, (size, told) in enumerate(zip(map(int, sizes), texts, strict=True)):
        try:
            out.append(read(told[:size].numpy().tobytes()))
        except (ValueError, RecursionError, SafetensorError):
            raise RunError(f"process {rank} of the run sent {size} bytes that are not {kind}") from None
    return out


def choose_interface(address: str | None) -> None:
    """Make libraries listen on loopback alone or, on several machines, on the interface towards ``address``.

    The user's own settings for several machines stay.
    """
    if address is None:
        os.environ.update(dict.fromkeys(_INTERFACES, _interface("127.0.0.1") or _LOOPBACK))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # which sends nothing
        own = probe.getsockname()[0]
    if name := _interface(own):
        for variable in _INTERFACES:
            os.environ.setdefault(variable, name)


def _interface(address: str) -> str:
    """Return the name of the interface with an address; empty if none has it."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            try:
                found = fcntl.ioctl(any_socket, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:  # without an address
                continue
        if socket.inet_ntoa(found[20:24]) == address:
            return name
    return ""


def _store(meeting: dict[str, Any], rank: int, world: int, timeout: timedelta) -> dist.Store:
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
