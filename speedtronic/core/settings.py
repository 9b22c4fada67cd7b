"""The base class of all settings: frozen, strict, and wrong values end in one readable line.

Pydantic does the checking; here its reports become messages with key, rule, value and what to do.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from speedtronic.core.errors import ConfigError, nearest

REDACTED = "***"
SECRET_KEYS = frozenset(
    {
        "token",
        "hf_token",
        "auth_token",
        "access_token",
        "api_token",
        "api_key",
        "apikey",
        "password",
        "secret",
        "secret_key",
        "secret_access_key",
        "aws_secret_access_key",
        "aws_session_token",
        "credentials",
    }
)
_LONGEST_VALUE = 80  # characters of a value shown in a message

# Pydantic's error types and what a value must then be.
_NOUNS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "finite_number": "finite",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "string_too_short": "text of at least {min_length} character",
    "too_short": "a list of at least {min_length} entry",
    "is_instance_of": "a {class} settings object",
    "model_type": "a {class_name} settings object",
}


def _read_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


PathText = Annotated[str, BeforeValidator(_read_path)]
"""A path as text; a ``pathlib.Path`` given in Python becomes text."""


class Settings(BaseModel):
    """Base of every settings class: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    section: ClassVar[str] = ""
    """Where the class stands in the configuration; the first part of every key in messages."""

    def __init__(self, **values: Any) -> None:
        # Overridden because pydantic wraps what a validator raises: the way out is its only door.
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(type(self), error)) from error

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields, checked like any other."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**values, **changes})

    @model_validator(mode="before")
    @classmethod
    def _refuse_written_none(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, str) and value == "None":
                message = f"{join_key(cls.section, name)}: got the text 'None'; write null"
                raise ConfigError(message)
        return values

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show fields with secrets redacted, so that no log of a settings object holds one."""
        for name, value in super().__repr_args__():
            yield name, redact({name: value})[name] if name else value


def join_key(section: str, name: str) -> str:
    """Return the dotted key of a name in a section; the root section has no name."""
    return f"{section}.{name}" if section else name


def is_secret(name: Any) -> bool:
    """Return whether values under this name must not be written anywhere."""
    return isinstance(name, str) and name.lower() in SECRET_KEYS


def redact(tree: Any) -> Any:
    """Return a copy of a tree of mappings and sequences with the values of secret keys hidden."""
    if isinstance(tree, Mapping):
        return {
            key: REDACTED if is_secret(key) and value is not None else redact(value)
            for key, value in tree.items()
        }
    if type(tree) in (list, tuple):
        return type(tree)(redact(item) for item in tree)
    return tree


def show_value(name: str, value: Any) -> str:
    """Return a value as a message shows it: one line, short, and never a secret."""
    if is_secret(name):
        return REDACTED
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(repr(redact(value)).split())
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def unknown_key(section: str, name: str, value: Any, known: Iterable[str]) -> str:
    """Return the line for a key that no settings class has."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        advice = f"did you mean '{join_key(section, close)}'?"
    else:
        advice = f"known keys are {', '.join(known)}"
    return f"{join_key(section, name)}: unknown key, got {show_value(name, value)}; {advice}"


def explain(cls: type[Settings], error: ValidationError) -> str:
    """Turn pydantic's report on one settings class into one line about its first wrong field."""
    by_field: dict[Any, list[ErrorDetails]] = {}
    for details in error.errors():
        by_field.setdefault(details["loc"][0] if details["loc"] else None, []).append(details)
    name, problems = next(iter(by_field.items()))
    line = _explain_field(cls, name, problems)
    others = [join_key(cls.section, str(other)) for other in by_field if other != name]
    return f"{line} (also wrong: {', '.join(others)})" if others else line


def _explain_field(cls: type[Settings], name: Any, problems: list[ErrorDetails]) -> str:
    details = problems[0]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    if details["type"] == "extra_forbidden":
        return unknown_key(cls.section, str(name), details["input"], cls.model_fields)
    if details["type"] == "missing" and len(details["loc"]) == 1:
        return f"{join_key(cls.section, name)}: must be given"
    rule = _rule(cls, name, problems)
    index = details["loc"][1] if len(details["loc"]) > 1 else None
    at = f"[{index}]" if isinstance(index, int) and "items" not in rule else ""
    value = details["input"] if details["type"] != "missing" else tuple(details["input"])
    key = join_key(cls.section, name)
    return f"{key}{at}: {rule}, got {show_value(name, value)}; {_advice(cls, name, details)}"


def _rule(cls: type[Settings], name: Any, problems: list[ErrorDetails]) -> str:
    annotation = cls.model_fields[name].annotation
    if get_origin(annotation) is tuple and problems[0]["type"] in ("missing", "too_long"):
        return f"must have {len(get_args(annotation))} items"
    nouns: list[str] = []
    for details in problems:
        context = details.get("ctx", {})
        if details["type"] in ("value_error", "assertion_error"):
            return str(context.get("error", details["msg"]))
        shown = {key: _plain_value(value) for key, value in context.items()}
        noun = _NOUNS.get(details["type"], details["msg"].lower()).format(**shown)
        nouns += [noun] if noun not in nouns else []
    if _takes_null(cls, name):
        nouns.append("null")
    return f"must be {' or '.join(nouns)}"


def _advice(cls: type[Settings], name: Any, details: ErrorDetails) -> str:
    value = details["input"]
    if (
        isinstance(value, str)
        and value.lower() in ("on", "yes", "no")
        and "bool" in details["type"]
    ):
        return f"write {'false' if value.lower() == 'no' else 'true'}"
    if details["type"] == "literal_error" and isinstance(value, str):
        options = [str(option) for option in _options(cls.model_fields[name].annotation)]
        same = [option for option in options if option.lower() == value.lower()]
        close = same[0] if same else nearest(value, options)
        if close:
            return f"did you mean '{close}'?"
    field = cls.model_fields[name]
    if field.is_required():
        return f"set {join_key(cls.section, name)}"
    default = field.get_default(call_default_factory=False)
    shown = list(default) if isinstance(default, tuple) else default
    return f"the default is {show_value(name, shown)}"


def _plain_value(value: Any) -> Any:
    """Return what a rule names as a configuration writes it."""
    if isinstance(value, str):
        return re.sub(r"\b(True|False)\b", lambda found: found[0].lower(), value)
    return f"{value:g}" if isinstance(value, float) else value


def _takes_null(cls: type[Settings], name: Any) -> bool:
    annotation = cls.model_fields[name].annotation
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return is_union and type(None) in get_args(annotation)


def _options(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for argument in get_args(annotation):
        found += _options(argument) if get_args(argument) else [argument]
    return found
