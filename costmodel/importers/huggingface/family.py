"""A family of published models as a declaration, and how a configuration is read by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from costmodel.architectures.base import Architecture
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SpecError, shown
from costmodel.importers.huggingface.fields import (
    FIELDS,
    FIXED,
    IDLE,
    PRECISION,
    UNWRITTEN_ACTIVATIONS,
    WRITTEN_ACTIVATIONS,
    Meaning,
    checker,
    one_of_all,
)

NEAR = 0.85
"""A name this near to a known one that is left out is that one misspelt (ratio of difflib)."""

MOST_FIELDS = 1000
"""More fields than these no configuration has; each is compared with the names that are known."""


@dataclass(frozen=True)
class Config:
    """A configuration as rules see it.

    values: every field of the family, as given or by default. end: words for what the architecture ends in: "tokens"
    (a head over the vocabulary), "classes", "pooler", or none of them. name: of the architecture.
    """

    values: dict[str, Any]
    end: frozenset[str]
    name: str

    def __getitem__(self, name: str) -> Any:
        """A field's value."""
        return self.values[name]


FieldRule = Callable[[Config, dict[str, Any]], None]
"""What is more than a name: works on the fields of our model that are made so far. Raises SpecError."""


CLASSES: dict[str, Any] = {"id2label": None, "num_labels": None, "classifier_dropout": None, "hidden_dropout": None}
"""Fields that are read of an architecture that ends in classes, with their defaults."""

TASKS = {"SequenceClassification": "last", "TokenClassification": "each", "QuestionAnswering": "spans"}
"""What a decoder may be trained for beside the next token, and which tokens tell it."""


def tokens_of(config: Config) -> str | None:
    """Which tokens tell what an architecture ends in, of `TASKS`; None: it ends in none of these."""
    return next((tokens for tokens in TASKS.values() if tokens in config.end), None)


def headless(made: Mapping[str, Any]) -> dict[str, Any]:
    """Fields without what only a head over the vocabulary has."""
    return {name: value for name, value in made.items() if not name.startswith("head.")} | {"head": False}


def labels(config: Config) -> int:
    """Classes of a classifier: as many as are named, two if none are. Raises SpecError for two numbers of them."""
    named, told = len(config["id2label"] or ()), config["num_labels"]
    if named and told not in (None, named):
        raise SpecError(f"num_labels {told} is not the {named} of id2label: keep one", ("num_labels",))
    return named or told or 2


def scored(config: Config) -> dict[str, Any]:
    """Classes by the scores of every token."""
    told_by = tokens_of(config)
    if told_by != "each":  # a span has a start and an end
        return {"classes": 2 if told_by == "spans" else labels(config), "classes.told_by": told_by} | (
            {"classes.bias": False} if told_by == "last" else {}
        )
    rates = (config["classifier_dropout"], config.values.get("hidden_dropout"), 0.1)
    dropout = next(rate for rate in rates if rate is not None)
    return {"classes": labels(config), "classes.told_by": told_by, "classes.dropout": dropout}


def transformer(config: Config, made: dict[str, Any]) -> Architecture:
    """The transformer with these fields, without what only a head over the vocabulary has where there is none."""
    if "tokens" not in config.end:
        made = headless(made) | {"tied": False}
    if "classes" in config.end and "classes" not in made:
        made |= scored(config)
    return Transformer.of(made)


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One family, as data. Tables are merged with those of `like`; a rule that is None takes that rule away.

    fields: every field with the default that the published configuration class gives it; FIELDS says what they are.
    means: where a field is something else in this family than FIELDS says: which fields of ours it is, or for each
    value the fields that it sets, or a Meaning, kind and all.
    sets: fields of ours that are the same for every model of the family.
    fixed: fields that would change the cost, and the values at which they do not. idle: those that never do, of the
    ones that the published class knows; it reads no others, and neither does this.
    remote: whether that class is not the package's, but comes with the files: then any other field is refused.
    aliases: other names of its fields: of one line in FIELDS, or as "name=field".
    ends: for each name in `architectures`, what that ends in; the first is what a configuration without one is.
    nested: fields whose values are mappings, the fields in which are called "field.name".
    written: how the package's own class is written, as fields of `Composition`; None: not known. It is not inherited.
    note: a sentence for the notes of every model of the family.
    """

    model_type: str = ""
    source: str = ""
    like: Family | None = None
    ends: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    means: Mapping[str, str | dict[Any, dict[str, Any]] | Meaning] = field(default_factory=dict)
    sets: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, FieldRule | None] = field(default_factory=dict)
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    idle: str = ""
    aliases: str = ""
    without: str = ""
    nested: str = ""
    written: Mapping[str, Any] | None = None
    note: str = ""
    remote: bool = False
    builds: Callable[[Config, dict[str, Any]], Architecture] = transformer

    def __post_init__(self) -> None:
        if (base := self.like) is None:
            return
        for table in ("fields", "means", "sets", "rules", "fixed"):
            gone = self.without.split() if table in ("fields", "means") else ()
            merged = {name: value for name, value in getattr(base, table).items() if name not in gone}
            object.__setattr__(self, table, merged | getattr(self, table))
        object.__setattr__(self, "idle", f"{base.idle} {self.idle}")
        if self.builds is transformer:
            object.__setattr__(self, "builds", base.builds)

    @property
    def headed(self) -> tuple[str, ...]:
        """Architectures with a head: over the vocabulary, or if the family has none such, over classes."""
        first = {"tokens", "classes"} & set(next(iter(self.ends.values())).split())
        return tuple(name for name, end in self.ends.items() if first & set(end.split()))

    @property
    def headless(self) -> tuple[str, ...]:
        """Architectures without such a head."""
        return tuple(name for name in self.ends if name not in self.headed)

    @cached_property
    def other_names(self) -> dict[str, str]:
        """The family's own name of a field, by another name of it."""
        named = {}
        for word in self.aliases.split():
            alias, _, own = word.partition("=")
            named[alias] = own or next(name for name in self.fields if FIELDS.get(name) is FIELDS[alias])
        return named

    def meaning(self, name: str) -> Meaning | dict[Any, dict[str, Any]]:
        """What one of the family's fields is; by its value, where different values set different fields."""
        special = self.means.get(name)
        if isinstance(special, str):
            return FIELDS[name]._replace(ours=special)
        return FIELDS[name] if special is None else special

    def kind(self, name: str) -> str:
        """The kind of a field's values."""
        meaning = self.meaning(name)
        kind = (FIELDS[name] if isinstance(meaning, dict) else meaning).kind
        return kind if kind.endswith("?") or self.fields.get(name) is not None else f"{kind}?"

    def read(self, data: dict[str, Any], said: str = "") -> Architecture:
        """The model that a configuration describes; `said` goes to its notes. Raises SpecError."""
        try:
            given, twice = self._renamed(self._flat(data))
            end, name = self._end(given.get("architectures"))
            fields = (CLASSES if "classes" in end else {}) | self.fields
            values = {name: self._checked(name, given.get(name, default)) for name, default in fields.items()}
            others = {name: value for name, value in given.items() if name not in fields}
            unknown = self._check_others(others, {*self.fields, *self.fixed} - given.keys())
            config = Config(values, end, name)
            made: dict[str, Any] = dict(self.sets)
            for name in self.fields:
                made |= self._ours(name, values[name])
            for rule in self.rules.values():
                if rule is not None:
                    rule(config, made)
            made |= self._written(given)
        except SpecError as error:
            raise SpecError(f"{self.model_type}: {error}", error.path) from None
        notes = _note(self.model_type, others.keys() - unknown, unknown, twice) + said + f" {self.note}".rstrip()
        notes = notes if len(notes) <= 4000 else notes[:3997] + "..."
        made |= {"name": _title(given) or self.model_type, "notes": notes}
        try:
            return self.builds(config, made)
        except SpecError as error:
            raise SpecError(f"{self.model_type} config, as a model: {error}") from None

    def _flat(self, data: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the fields of nested mappings among its own. Raises SpecError for too many."""
        flat: dict[str, Any] = {}
        for name, value in data.items():
            if name not in self.nested.split():
                flat[name] = value
            elif isinstance(value, dict):
                flat |= {f"{name}.{inner}": inside for inner, inside in value.items()}
            elif value is not None:
                raise SpecError(f"{name}: {shown(value)} is not a mapping", (name,))
        if len(flat) > MOST_FIELDS:
            raise SpecError(f"{len(flat):,} fields: at most {MOST_FIELDS:,} are read")
        return flat

    def _renamed(self, data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The configuration by the family's own names, and the other names of fields given twice."""
        given: dict[str, Any] = {}
        twice: list[str] = []
        for name, value in sorted(data.items(), key=lambda item: item[0] in self.other_names):
            own = self.other_names.get(name, name)
            if own not in given or given[own] is None:
                given[own] = value
                continue
            if value is not None and not _same(value, given[own]):
                raise SpecError(
                    f"{name} and {own} are the same field, and are {shown(value)} and {shown(given[own])}: keep one",
                    (name,),
                )
            twice.append(name)
        return given, twice

    def _checked(self, name: str, value: Any) -> Any:
        try:
            return checker(self.kind(name)).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            path = (*name.split("."), *first["loc"])
            where = ".".join(map(str, path))
            said = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {shown(first['input'])}"
            own = first.get("ctx", {}).get("error", said)  # of our own checks: a name that is not known
            raise SpecError(f"{where}: {own}", path) from None

    def _check_others(self, others: dict[str, Any], absent: set[str]) -> set[str]:
        """Names among others than the family's fields that the published class does not know, and so does not read.

        Raises SpecError for a name that looks like one of those absent, for a value of a fixed field that would change
        the cost, and for any such name where the class is not the package's: what that reads is not known.
        """
        own = set(self.idle.split())
        fixed = {name: values for name, values in FIXED.items() if name not in own} | self.fixed
        idle = IDLE | own | {"model_type", "architectures", *PRECISION}
        absent |= {alias for alias, own in self.other_names.items() if own in absent}
        unknown: set[str] = set()
        for name, value in others.items():
            outer, _, inner = name.partition(".")
            path = (outer, inner) if outer in self.nested.split() else (name,)
            if name in fixed:
                if not any(_same(one_of_all(value), one) for one in fixed[name]):
                    only = " or ".join(map(shown, fixed[name]))
                    raise SpecError(
                        f"{name}={shown(value)} changes the cost in a way that is not understood: only {only} is", path
                    )
            elif name not in idle and path[-1] not in idle:
                near = get_close_matches(name, absent, n=2, cutoff=NEAR)
                if near or (self.remote and value not in (None, False, 0, "", [], {})):
                    meant = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
                    raise SpecError(
                        f"field {shown(name)} is not understood{meant} and may change the cost: leave it out if it "
                        "does not",
                        path,
                    )
                unknown.add(name)
        return unknown

    def _end(self, architectures: Any) -> tuple[frozenset[str], str]:
        """What the configuration's architecture ends in, and its name: the first, if none is named."""
        try:
            named = checker("texts?").validate_python(architectures) or [next(iter(self.ends))]
        except ValidationError as error:
            raise SpecError(f"architectures: {shown(error.errors()[0]['input'])}: give a list of names") from None
        for name in named:
            if name not in self.ends:
                raise SpecError(
                    f"architectures: {shown(name)} is not one of model_type {self.model_type!r}: known are "
                    f"{', '.join(self.ends)}",
                    ("architectures",),
                )
        return frozenset(self.ends[named[0]].split()), named[0]

    def _written(self, given: dict[str, Any]) -> dict[str, Any]:
        """Fields of how the package writes the model, where that is known: by the family, and by its activation."""
        if self.written is None:
            return {}
        acts = [name for name in self.fields if name == "feed_forward_proj" or "activation" in self._names(name)]
        named = [given.get(name) or self.fields[name] for name in acts]
        own = next((WRITTEN_ACTIVATIONS[name] for name in named if name in WRITTEN_ACTIVATIONS), None)
        if any(name in UNWRITTEN_ACTIVATIONS for name in named):
            return {}
        written = dict(self.written) | ({} if own is None else {"activation": own})
        return {"composition": True} | {f"composition.{name}": value for name, value in written.items()}

    def _names(self, name: str) -> list[str]:
        """The fields of ours that have the value of one of the family's."""
        meaning = self.meaning(name)
        return [] if isinstance(meaning, dict) else meaning.ours.split()

    def _ours(self, name: str, value: Any) -> dict[str, Any]:
        meaning = self.meaning(name)
        if isinstance(meaning, dict):
            return meaning[value]
        return dict.fromkeys(meaning.ours.split(), value)


def architectures(headed: str, headless: str = "") -> dict[str, str]:
    """The ends of a family whose architectures, named in two texts, have a head over the vocabulary, or have none.

    A decoder's may end in classes too.
    """
    ends = dict.fromkeys(headed.split(), "tokens") | dict.fromkeys(headless.split(), "")
    first = headed.split()[0]
    stem = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return ends if stem == first else ends | tasks(stem)


def tasks(stem: str) -> dict[str, str]:
    """Architectures whose names begin so, by what tells their classes."""
    return {f"{stem}For{task}": f"classes {told_by}" for task, told_by in TASKS.items()}


def sizes(vocab: int, width: int, hidden: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    """Defaults of the five sizes by the names that most families give them, and of further fields."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, (vocab, width, hidden, layers, heads), strict=True)) | others


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and both or neither a truth value."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _title(given: dict[str, Any]) -> str:
    """What a configuration was saved as, in reports."""
    saved = given.get("_name_or_path")
    return saved.rstrip("/").rpartition("/")[2][:200] if isinstance(saved, str) else ""


def _note(model_type: str, idle: Iterable[str], unknown: Iterable[str], twice: Iterable[str]) -> str:
    """What was read, and which of the fields given have no cost."""
    bookkeeping = {"model_type", "architectures", "gradient_checkpointing", *PRECISION}
    said = {
        "Without effect on the cost": sorted(set(idle) - bookkeeping),
        "Not read by the published class": sorted(unknown),
        "Given by two names": sorted(twice),
        "Left to the setting precision": [name for name in PRECISION if name in idle],
        "Left to the setting checkpoint": [name for name in ("gradient_checkpointing",) if name in idle],
    }
    sentences = [f" {topic}: {', '.join(names)}." for topic, names in said.items() if names]
    return f"Read from a published configuration of model_type {model_type}." + "".join(sentences)
