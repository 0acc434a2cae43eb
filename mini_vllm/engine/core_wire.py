"""The wires of a core in a process of its own: two sockets to each front end. Upstream has them in
upstream/vllm/v1/engine/core.py:1400 — `process_input_sockets`, and :1495 — `process_output_sockets`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mini_vllm.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from mini_vllm.engine.utils import EngineZmqAddresses
from mini_vllm.serial_utils import MsgpackEncoder, require_library

LINGER_MS = 4000  # for the last words of a core that ends


class Wire:
    """The core's sockets, one pair a front end, and the encoders for them. Each socket belongs to one thread.

    Attributes:
        num_clients: front ends. With more than one, ids are `"CLIENT:ID"` within the core, so that two of them may
            use the same id, and an output finds its way back. Upstream writes the number into the request:
            upstream/vllm/v1/engine/__init__.py:106 — `client_index`.
        num_inputs: messages handled, of each of them.
    """

    def __init__(self, addresses: EngineZmqAddresses) -> None:
        self.zmq = zmq = require_library("zmq")
        self.identity = addresses.identity
        self.num_clients = len(addresses.inputs)
        self.num_inputs = [0] * self.num_clients
        self._output_addresses = addresses.outputs
        self.context = zmq.Context()
        self.inputs = [self._new_input(address) for address in addresses.inputs]
        self.outputs = self.new_outputs()
        self.encoder, self.outputs_encoder = MsgpackEncoder(), MsgpackEncoder(EngineCoreOutputs)

    def _new_input(self, address: str) -> Any:
        socket = self.context.socket(self.zmq.DEALER)
        socket.setsockopt(self.zmq.IDENTITY, self.identity)
        socket.setsockopt(self.zmq.RCVHWM, 0)
        socket.connect(address)
        return socket

    def new_outputs(self) -> list[Any]:
        """A socket to each front end's output address."""
        found = [self.context.socket(self.zmq.PUSH) for _ in self._output_addresses]
        for socket, address in zip(found, self._output_addresses, strict=True):
            socket.setsockopt(self.zmq.SNDHWM, 0)
            socket.connect(address)
        return found

    def receive(self) -> Iterator[tuple[int, list[bytes]]]:
        """Messages of all front ends, each with the number of its sender, until the context ends."""
        if self.num_clients == 1:
            while True:
                yield 0, self.inputs[0].recv_multipart()
        poller = self.zmq.Poller()
        for socket in self.inputs:
            poller.register(socket, self.zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            for client, socket in enumerate(self.inputs):
                if socket in ready:
                    yield client, socket.recv_multipart()

    def send(self, outputs: EngineCoreOutputs, client: int, sockets: list[Any] | None = None) -> None:
        """Send one message; the identity in front proves who sends."""
        payload = self.outputs_encoder.encode(outputs)
        (sockets or self.outputs)[client].send_multipart((self.identity, payload))

    def send_step(self, outputs: list[EngineCoreOutput], timestamp: float) -> None:
        """To each front end what a step gave for its own requests.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1573 — "client_index: EngineCoreOutputs(outputs=outs)".
        """
        if self.num_clients == 1:
            return self.send(EngineCoreOutputs(outputs, timestamp, num_inputs=self.num_inputs[0]), 0)
        per_client: dict[int, list[EngineCoreOutput]] = {}
        for output in outputs:
            client, _, output.request_id = output.request_id.partition(":")
            per_client.setdefault(int(client), []).append(output)
        for number, mine in per_client.items():
            self.send(EngineCoreOutputs(mine, timestamp, num_inputs=self.num_inputs[number]), number)

    def own_ids(self, client: int, request_ids: list[str]) -> list[str]:
        """The ids that the core has for these of a front end."""
        return request_ids if self.num_clients == 1 else [f"{client}:{each}" for each in request_ids]

    def own(self, client: int, requests: list[EngineCoreRequest]) -> list[EngineCoreRequest]:
        """Requests of a front end, with the core's ids."""
        for request in requests:
            (request.request_id,) = self.own_ids(client, [request.request_id])
        return requests

    def send_start(self, status: bytes, *parts: Any) -> None:
        """Ready, or not: to all."""
        for socket in self.inputs:
            socket.send_multipart((status, self.encoder.encode(list(parts))))

    def send_last(self, kind: bytes, payload: bytes) -> None:
        """The last words, to all."""
        for socket in self.outputs:
            socket.send_multipart((self.identity, kind, payload))

    def close_inputs(self, linger_ms: int = 0) -> None:
        """Close them, in the thread that reads from them."""
        for socket in self.inputs:
            with contextlib.suppress(self.zmq.ZMQError):
                socket.close(linger_ms)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Flush for so long, and close; ends the input thread, whose sockets close with the context."""
        for socket in self.outputs:
            socket.close(linger_ms)
        self.context.term()
