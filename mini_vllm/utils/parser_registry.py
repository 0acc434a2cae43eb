"""Names of classes that are imported when they are first asked for, and files of users with more of them.

Upstream writes this out three times: for tool parsers, for reasoning parsers, and for both in one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from mini_vllm.utils.checks import shown


class ParserRegistry:
    """What a manager of parsers is made of; a subclass sets `base`, `kind` and two dicts of its own."""

    base: ClassVar[type]
    kind: ClassVar[str]
    parsers: ClassVar[dict[str, type]]
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]]
    """Name to (module, class): not imported yet."""

    @classmethod
    def lookup(cls, name: str) -> Any:
        """The class called `name`, imported and remembered. Raises KeyError with the names there are."""
        if name not in cls.parsers:
            if name not in cls.lazy_parsers:
                raise KeyError(
                    f"{cls.kind} parser {shown(name)} not found. There are: {', '.join(cls.list_registered())}"
                )
            module_path, class_name = cls.lazy_parsers[name]
            found = getattr(importlib.import_module(module_path), class_name)
            cls._check(found)
            cls.parsers[name] = found
        return cls.parsers[name]

    @classmethod
    def list_registered(cls) -> list[str]:
        """All names, imported or not."""
        return sorted({*cls.parsers, *cls.lazy_parsers})

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """Remember where `name` stands, without importing it."""
        cls.lazy_parsers[name] = (module_path, class_name)

    @classmethod
    def register_module(
        cls, name: str | list[str] | None = None, force: bool = True, module: type | None = None
    ) -> Any:
        """Register a class: `register_module("name")` above it, or `register_module("name", module=Class)`.

        Without a name it is the class's own. `force=False` refuses a name that is taken (KeyError).
        """
        if not isinstance(force, bool):
            raise TypeError(f"force must be a boolean, got {shown(force)}")
        if name is not None and not isinstance(name, str) and not all(isinstance(each, str) for each in name):
            raise TypeError(f"name must be a string, a list of strings or None, got {shown(name)}")
        if module is None:
            return cls._decorator(name)
        cls._check(module)
        for each in cls._names(name, module):
            if not force and each in cls.parsers:
                raise KeyError(f"{each} is already registered at {cls.parsers[each].__module__}")
            cls.parsers[each] = module
        return module

    @classmethod
    def _decorator(cls, name: str | list[str] | None) -> Callable[[type], type]:
        def register(found: type) -> type:
            for each in cls._names(name, found):
                cls.lazy_parsers[each] = (found.__module__, found.__name__)
            return found

        return register

    @staticmethod
    def _names(name: str | list[str] | None, module: type) -> list[str]:
        return [module.__name__] if name is None else [name] if isinstance(name, str) else list(name)

    @classmethod
    def _check(cls, found: Any) -> None:
        if not (isinstance(found, type) and issubclass(found, cls.base)):
            raise TypeError(f"a {cls.kind} parser must be a subclass of {cls.base.__name__}, got {shown(found)}")

    @classmethod
    def import_plugin(cls, plugin_path: str) -> None:
        """Run a file of the user's, which registers its parsers. Raises ValueError where it cannot be run.

        Upstream logs the failure and goes on, so that a misspelt path shows as a name that is not registered.
        """
        path = Path(plugin_path)
        name = f"_parser_plugin_{path.stem}"  # a file called json.py must not become Python's
        spec = importlib.util.spec_from_file_location(name, path)
        try:
            if spec is None or spec.loader is None:
                raise ImportError("not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        except Exception as error:
            sys.modules.pop(name, None)
            raise ValueError(f"the {cls.kind} parser plugin {plugin_path!r} cannot be loaded: {error!r}") from error
