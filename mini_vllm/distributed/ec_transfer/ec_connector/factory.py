"""Which connector a name means. Upstream twin: `vllm/distributed/ec_transfer/ec_connector/factory.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from mini_vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole
from mini_vllm.utils.checks import did_you_mean, shown

if TYPE_CHECKING:
    from mini_vllm.config.ec_transfer import ECTransferConfig


class ECConnectorFactory:
    """Names and the classes they mean; a class's file is read when it is first asked for.

    Upstream: upstream/vllm/distributed/ec_transfer/ec_connector/factory.py:20 — `ECConnectorFactory`.
    """

    _registry: ClassVar[dict[str, Callable[[], type[ECConnectorBase]]]] = {}

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Make a class known under a name. Raises ValueError where the name is taken."""
        if name in cls._registry:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_connector(cls, config: ECTransferConfig, role: ECConnectorRole) -> ECConnectorBase:
        """One half of the connector that the settings name. Raises as `get_connector_class`."""
        return cls.get_connector_class(config)(config, role)

    @classmethod
    def get_connector_class(cls, config: ECTransferConfig) -> type[ECConnectorBase]:
        """The class that the settings name: a registered one, or one of the module ec_connector_module_path.

        Raises:
            ValueError: unknown. AttributeError, ImportError: the module has no such class, or is not there.
        """
        name, path = config.ec_connector, config.ec_connector_module_path
        if name in cls._registry:
            return cls._registry[name]()
        if name is None or path is None:
            hint = did_you_mean(str(name), cls._registry) or "."
            raise ValueError(
                f"Unsupported connector type: ec_connector={shown(name)}{hint} "
                f"Registered: {', '.join(sorted(cls._registry))}; a class of one's own needs ec_connector_module_path"
            )
        found = getattr(importlib.import_module(path), name)
        if not (isinstance(found, type) and issubclass(found, ECConnectorBase)):
            raise ValueError(f"ec_connector must name a subclass of ECConnectorBase, got {found!r}")
        return found


ECConnectorFactory.register_connector(
    "ECExampleConnector", "mini_vllm.distributed.ec_transfer.ec_connector.example_connector", "ECExampleConnector"
)
