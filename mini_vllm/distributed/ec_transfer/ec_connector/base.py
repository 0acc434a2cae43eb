"""What brings encoder outputs in from another engine, and carries them out: the interface of every EC connector.

An engine E encodes pictures and answers with nothing; others find the embeddings under the item's identifier, and do
not encode it. As with keys and values, a connector has two halves, two objects of one class: the scheduler's asks
whether an item is there and describes a step's loads, the worker's loads and saves.

Upstream twin: `vllm/distributed/ec_transfer/ec_connector/base.py`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm.config.ec_transfer import ECTransferConfig
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array


class ECConnectorRole(enum.Enum):
    """Which half an object is. Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/base.py:42 —
    `ECConnectorRole`."""

    SCHEDULER = 0
    WORKER = 1


class ECConnectorMetadata(ABC):  # noqa: B024
    """What a step loads, in the words of the connector: from its scheduler's half to its worker's half.

    Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/base.py:50 — `ECConnectorMetadata`.
    """


class ECConnectorBase(ABC):
    """Either half of a connector; a subclass fills in the methods of both.

    Args:
        ec_transfer_config: the engine argument.
        role: which half this object is.

    Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/base.py:59 — `ECConnectorBase`, which takes all of the
    engine's settings. Its ends of background transfers (`get_finished`, `request_finished`) are asked by nobody in the
    release; here they are left out.
    """

    def __init__(self, ec_transfer_config: ECTransferConfig, role: ECConnectorRole) -> None:
        self._ec_transfer_config, self._role = ec_transfer_config, role
        self._connector_metadata: ECConnectorMetadata | None = None

    @property
    def role(self) -> ECConnectorRole:
        """Which half this is."""
        return self._role

    @property
    def is_producer(self) -> bool:
        """Whether encoder outputs go out."""
        return self._ec_transfer_config.is_ec_producer

    @property
    def is_consumer(self) -> bool:
        """Whether encoder outputs come in."""
        return self._ec_transfer_config.is_ec_consumer

    # The worker's half

    def bind_connector_metadata(self, connector_metadata: ECConnectorMetadata) -> None:
        """A step begins; these are its loads."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """The step is over."""
        self._connector_metadata = None

    def _get_connector_metadata(self) -> ECConnectorMetadata:
        assert self._connector_metadata is not None, "no step is on: bind_connector_metadata comes first"
        return self._connector_metadata

    @abstractmethod
    def start_load_caches(self, encoder_cache: dict[str, Array], **kwargs: Any) -> None:
        """Load what the step's metadata names into the runner's cache: identifier -> [embeddings, H]. What cannot be
        loaded is left out, and encoded here."""

    @abstractmethod
    def save_caches(self, encoder_cache: dict[str, Array], mm_hash: str, **kwargs: Any) -> None:
        """Carry out the embeddings of one identifier, which have just been computed."""

    # The scheduler's half

    @abstractmethod
    def has_cache_item(self, identifier: str) -> bool:
        """Whether the embeddings of an item can be loaded."""

    @abstractmethod
    def update_state_after_alloc(self, request: Request, index: int) -> None:
        """An item of a request, by its place, has room in the encoder cache: it is encoded or loaded in this step."""

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ECConnectorMetadata:
        """What the worker's half loads in this step. Called once a step, with the finished plan, which it must not
        change; what was noted for the step is forgotten."""
