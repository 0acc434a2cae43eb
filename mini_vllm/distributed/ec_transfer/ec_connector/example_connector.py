"""A connector in a folder: the encoder's outputs as files, for every engine that sees the same folder.

Upstream twin: `vllm/distributed/ec_transfer/ec_connector/example_connector.py`. There a file that is damaged, or that
is being written, ends the engine that reads it; here a file gets its name when it is complete, and what cannot be read
is removed, and encoded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from mini_vllm.logger import init_logger

if TYPE_CHECKING:
    from mini_vllm.config.ec_transfer import ECTransferConfig
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.request import Request
    from mini_vllm.utils.arrays import Array

logger = init_logger(__name__)


@dataclass
class ECExampleConnectorMetadata(ECConnectorMetadata):
    """Identifiers of the items that a step loads, with the number of their embeddings.

    Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/example_connector.py:35 — `ECExampleConnectorMetadata`.
    """

    mm_datas: dict[str, int] = field(default_factory=dict)


class ECExampleConnector(ECConnectorBase):
    """`ec_connector_extra_config={"shared_storage_path": FOLDER}`; by default one in the system's temporary folder.
    A folder is for engines of one model: the weights are no part of an item's name.

    Raises:
        ValueError: the folder's name is no text. OSError: the folder cannot be made.

    Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/example_connector.py:45 — `ECExampleConnector`.
    """

    def __init__(self, ec_transfer_config: ECTransferConfig, role: ECConnectorRole) -> None:
        super().__init__(ec_transfer_config, role)
        default = str(Path(tempfile.gettempdir(), "mini_vllm_ec"))
        path = ec_transfer_config.get_from_extra_config("shared_storage_path", default)
        if not isinstance(path, str) or not path:
            raise ValueError(f"ec_connector_extra_config['shared_storage_path'] must be a folder's name, got {path!r}")
        self._storage_path = Path(path)
        self._storage_path.mkdir(parents=True, exist_ok=True)
        self._need_loads: dict[str, int] = {}

    def _file_of(self, identifier: str) -> Path:
        return self._storage_path / f"{hashlib.sha256(identifier.encode()).hexdigest()}.safetensors"

    # The scheduler's half

    def has_cache_item(self, identifier: str) -> bool:
        """Whether its file is there."""
        return self.is_consumer and self._file_of(identifier).is_file()

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        """Load it, if its file is there."""
        identifier = request.mm_features[index].identifier
        if self.has_cache_item(identifier):
            self._need_loads[identifier] = request.get_num_encoder_embeds(index)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ECExampleConnectorMetadata:
        """What is to be loaded."""
        meta, self._need_loads = ECExampleConnectorMetadata(self._need_loads), {}
        return meta

    # The worker's half

    def start_load_caches(self, encoder_cache: dict[str, Array], **kwargs: Any) -> None:
        """Read the files of this step. One that is not what it should be is removed, with a warning."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, ECExampleConnectorMetadata)
        for identifier, num_embeds in metadata.mm_datas.items():
            if identifier in encoder_cache:
                continue
            try:
                encoder_cache[identifier] = self._read(identifier, num_embeds)
            except (OSError, ValueError, KeyError) as error:
                logger.warning("the embeddings of %s cannot be loaded and are computed again: %s", identifier, error)
                self._file_of(identifier).unlink(missing_ok=True)

    def _read(self, identifier: str, num_embeds: int) -> Array:
        """[num_embeds, H]. Raises CheckpointError, a ValueError, where the file is not what it should be."""
        from mini_vllm.model_loader.safetensors_reader import SafetensorsFile

        file = SafetensorsFile(self._file_of(identifier))
        try:
            values = np.array(file.read("ec_cache"))
        finally:
            file.close()
        if values.ndim != 2 or len(values) != num_embeds or not np.isfinite(values).all():
            raise ValueError(f"{file.path}: expected {num_embeds} embeddings of finite numbers, got {values.shape}")
        return values

    def save_caches(self, encoder_cache: dict[str, Array], mm_hash: str, **kwargs: Any) -> None:
        """Write a file, unless it is there or this engine carries nothing out."""
        from mini_vllm.model_loader.random_checkpoint import write_safetensors

        target = self._file_of(mm_hash)
        if not self.is_producer or target.exists():
            return
        handle, name = tempfile.mkstemp(prefix=".saving-", dir=self._storage_path)
        os.close(handle)
        try:
            write_safetensors(name, {"ec_cache": np.ascontiguousarray(encoder_cache[mm_hash])})
            os.replace(name, target)
        except OSError as error:  # no room, say: others encode it themselves
            logger.warning("the embeddings of %s cannot be saved: %s", mm_hash, error)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
