"""How verbs show the settings that they take: their signatures and documentation, from the declarations."""

from collections.abc import Callable
from inspect import Parameter, cleandoc, signature
from typing import Any, TypeVar

from costmodel.documents.arguments import called
from costmodel.training.setting import several_of
from costmodel.training.settings import SETTINGS
from costmodel.training.values import Over

Verb = TypeVar("Verb", bound=Callable[..., Any])


def takes_settings(
    *, several: bool = False, and_fields: bool = False, without: str = "", **defaults: Any
) -> Callable[[Verb], Verb]:
    """Show the settings that a function takes as ``**settings`` in its signature and in its documentation.

    several: whether it takes several values of one. and_fields: whether it takes fields of the model too. without: a
    setting that it does not take. defaults: those that are not as in `Settings`; ... where the function says which.
    """
    settings = [
        setting._replace(default=defaults.get(name, setting.default))
        for name, setting in SETTINGS.items()
        if name != without
    ]
    parameters = [
        Parameter(
            setting.name,
            Parameter.KEYWORD_ONLY,
            default=setting.default,
            annotation=several_of(setting.takes) if several else setting.takes,
        )
        for setting in settings
    ]
    parameters.append(Parameter("over", Parameter.KEYWORD_ONLY, default=None, annotation=Over))
    if and_fields:
        parameters.append(Parameter("fields", Parameter.VAR_KEYWORD, annotation=Any))
    lines = [
        f"    {setting.name}: {str(setting)[:-1]}, as in {setting.name}={setting.example!r}." for setting in settings
    ]
    lines.append('    over: Other values for fields of the model, as in over={"layers": 24}.')

    def documented(verb: Verb) -> Verb:
        own = signature(verb)
        verb = verb if hasattr(verb, "__wrapped__") else called(verb)
        *first, _ = own.parameters.values()
        vars(verb)["__signature__"] = own.replace(parameters=[*first, *parameters])
        if verb.__doc__:  # python -OO leaves none
            verb.__doc__ = "\n".join([cleandoc(verb.__doc__), "", "Settings:", *lines])
        return verb

    return documented
