"""Which compiled form computes which model, by device: names of classes, imported when a model of that class is there.

A form is made from a finished model, `Form(model)`, and has its `forward` and `compute_logits`; with `supports`, a
class method, it says which models of the class it computes. Forms for a device of torch's take more: see
`compilation/cuda_fused.py`. The entry points of the group `mini_vllm.compiled_forms` add to the table: docs/plugins.md.

Upstream has no twin: there one compiler serves every model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from mini_vllm.logger import init_logger
from mini_vllm.plugins import COMPILED_FORMS_GROUP, call_plugin, load_plugins_by_group
from mini_vllm.utils.checks import shown
from mini_vllm.utils.import_utils import resolve_obj_by_qualname

logger = init_logger(__name__)

Form = str | Callable[..., Any]
"""A class, or "package.module.Class"."""
_MODELS, _FORMS = "mini_vllm.models", "mini_vllm.compilation"
_COMPILED_FORMS: dict[str, dict[str, Form]] = {
    "cpu": {
        f"{_MODELS}.llama.LlamaForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.llama.MistralForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.qwen2.Qwen2ForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.qwen3.Qwen3ForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.mixtral.MixtralForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.qwen3_moe.Qwen3MoeForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.phi3.Phi3ForCausalLM": f"{_FORMS}.cpu_models.FusedLlama",
        f"{_MODELS}.opt.OPTForCausalLM": f"{_FORMS}.cpu_models.FusedOPT",
        f"{_MODELS}.llama_eagle.EagleLlamaForCausalLM": f"{_FORMS}.cpu_models.FusedEagle",
        f"{_MODELS}.llava.LlavaForConditionalGeneration": f"{_FORMS}.cpu_models.FusedLanguageModel",
        f"{_MODELS}.granite.GraniteForCausalLM": f"{_FORMS}.cpu_decoders.FusedGranite",
        f"{_MODELS}.olmo2.Olmo2ForCausalLM": f"{_FORMS}.cpu_decoders.FusedPostNorm",
        f"{_MODELS}.gemma2.Gemma2ForCausalLM": f"{_FORMS}.cpu_decoders.FusedPostNorm",
        f"{_MODELS}.gemma3.Gemma3ForCausalLM": f"{_FORMS}.cpu_decoders.FusedPostNorm",
    },
}
"""Device -> class of the model -> its form. A subclass of a model is another model: nobody knows what it changes."""


def register_compiled_form(model_class: type | str, form: Form, device: str = "cpu") -> None:
    """Add a form, or replace one, which is a warning.

    Args:
        model_class, form: classes, or "package.module.Class".
        device: name of the platform that asks for it.

    Raises:
        TypeError, ValueError: what is no class and names none.
    """
    name = model_class if isinstance(model_class, str) else _name_of(model_class)
    for argument, value in (("model_class", name), ("form", form), ("device", device)):
        if not isinstance(value, str) and not (argument == "form" and callable(value)):
            raise TypeError(f"{argument} must be {_kinds(argument)}, got {shown(value)}")
        if isinstance(value, str) and argument != "device" and "." not in value:
            raise ValueError(f"{argument} must be {_kinds(argument)}, got {shown(value)}")
    forms = _COMPILED_FORMS.setdefault(device, {})
    if forms.get(name, form) != form:
        logger.warning("The compiled form of %s for device %s, %s, is replaced by %s", name, device, forms[name], form)
    forms[name] = form


def compiled_form_class(model: Any, device: str) -> Any | None:
    """The class that computes this model on that device; None where there is none.

    Raises:
        ValueError: a name in the table cannot be imported. TypeError: see `register_compiled_form`.
    """
    _load_plugins()
    form = _COMPILED_FORMS.get(device, {}).get(_name_of(type(model)))
    if form is None:
        return None
    found: Any = resolve_obj_by_qualname(form) if isinstance(form, str) else form
    supports = getattr(found, "supports", None)
    return found if supports is None or supports(model) else None


def compiled_form(model: Any, device: str = "cpu") -> Any | None:
    """The compiled form of a model; None where there is none: the toy model, one from outside, one's own subclass.

    Upstream: upstream/vllm/compilation/decorators.py:331 — `_support_torch_compile` — wraps a class, by decorator.
    """
    form = compiled_form_class(model, device)
    return None if form is None else form(model)


@cache
def _load_plugins() -> None:
    for plugin, func in load_plugins_by_group(COMPILED_FORMS_GROUP).items():
        table = call_plugin(plugin, func)
        if not (isinstance(table, Mapping) and all(isinstance(forms, Mapping) for forms in table.values())):
            raise TypeError(
                f"plugin {plugin!r} of {COMPILED_FORMS_GROUP} must return {{device: {{model: form}}}}, with names "
                f"package.module.Class, got {shown(table)}"
            )
        for device, forms in table.items():
            for model_class, form in forms.items():
                try:
                    register_compiled_form(model_class, form, device)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"plugin {plugin!r} of {COMPILED_FORMS_GROUP}: {error}") from None


def _name_of(model_class: Any) -> Any:
    """ "package.module.Class" of a class; what is none comes back."""
    return f"{model_class.__module__}.{model_class.__qualname__}" if isinstance(model_class, type) else model_class


def _kinds(argument: str) -> str:
    return "the name of a platform" if argument == "device" else 'a class, or "package.module.Class"'
