"""The verbs of ``costmodel``: where each is, what all of them share, and how their help is laid out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import Parameter, signature
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import click

from costmodel.display.answer import Data
from costmodel.display.table import Page, is_terminal, page, printable, written_for
from costmodel.errors import ALIASES, CostModelError, SettingError, nearest, shown


@dataclass(frozen=True, repr=False)
class Reply(Data):
    """An answer as data and as text, for a verb whose result is no object with both. of: what it shows, if that has."""

    data: Any
    text: str
    of: Any = None

    def to_dict(self) -> Any:
        """The data."""
        return self.data

    def rows(self) -> list[dict[str, Any]]:
        """What a table has a row for each of."""
        if isinstance(self.data, list):
            return [row if isinstance(row, dict) else {"": row} for row in self.data]
        return self.of.rows() if self.of is not None else super().rows()

    def __str__(self) -> str:
        return self.text


if TYPE_CHECKING:
    from costmodel.training.setting import Setting


SUBJECTS = ("Settings", "Settings of time", "Settings of training", "Settings of decoding", "Settings of many devices")
"""Headings in helps of what is asked about a model."""


def _subject(setting: Setting) -> str:
    """The heading of a setting."""
    from costmodel.training.settings import LAYOUT_NAMES

    if setting.name in (*LAYOUT_NAMES, "offload"):
        return "Settings of many devices"
    if setting.name in ("on", "stack"):
        return "Settings of time"
    if setting.name in ("checkpoint", "accumulate", "freeze", "lora", "update", "loss_chunks"):
        return "Settings of training"
    return {"training": "Settings of training", "cache": "Settings of decoding"}.get(setting.needs, "Settings")


class SettingOption(click.Option):
    """An option for a setting; help lists these apart, and a verb gets those given, and --over, in one mapping."""


class Verb(click.Command):
    """A command that answers with an object that has ``to_dict()`` and a text, alone or with an exit code."""

    drawn = False
    """Whether the answer has a picture."""
    examples: tuple[str, ...] = ()
    """Command lines without the program's name."""
    judged = False
    """Whether the exit code is 1 where the answer is false: nothing fits, there is no such size."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line. Raises click.UsageError, which knows the verb whose help to name."""
        try:
            _, rest, order = self.make_parser(ctx).parse_args(list(args))
            for each in order:
                if isinstance(each, click.Option) and not (each.multiple or each.is_flag) and order.count(each) > 1:
                    raise click.UsageError(f"{each.opts[0]} is given twice: leave one out", ctx)
            if rest and not ctx.resilient_parsing:
                raise click.UsageError(self._too_many(rest[0]), ctx)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self._no_option(error.option_name, args), ctx) from None
        except click.MissingParameter as error:
            missing = error.format_message().rstrip(".").splitlines()[0]
            sample = f": type such as costmodel {min(self.examples, key=len)}" if self.examples else ""
            raise click.UsageError(missing + sample, ctx) from None
        except click.BadOptionUsage as error:
            raise click.UsageError(self._no_value(error), ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _no_value(self, error: click.BadOptionUsage) -> str:
        """What to say of an option without its value, or of a flag with one."""
        from costmodel.training.settings import SETTINGS

        setting = SETTINGS.get(error.option_name.lstrip("-").replace("-", "_"))
        message = error.format_message().rstrip(".")
        if setting is None or "argument" not in message:
            return message
        sample = ",".join(setting.example) if isinstance(setting.example, tuple) else setting.example
        plain = isinstance(sample, int | float | str) and not isinstance(sample, bool)
        return f"{message}, as in {error.option_name} {sample}" if plain else message

    def _no_option(self, option_name: str, args: Sequence[str]) -> str:
        """What to say of an option that there is not, in a command line."""
        from costmodel.training.settings import SETTINGS, checked

        if option_name[1:2].isdecimal():  # what was meant as a number
            words = [word for each in args for word in each.split("=")]
            before = next((a for a, b in pairwise(["", *words]) if b.startswith(option_name)), "")
            for each in self.params:
                if isinstance(each, SettingOption) and before in each.opts:  # which may stand alone, or had taken it
                    checked(str(each.name), int(option_name))
            if any(each.name in ("memory", "target") for each in self.params if isinstance(each, click.Argument)):
                return f"an amount that starts with {option_name} is not positive: use one such as '24 GiB'"
            return f"a number that starts with {option_name} follows no option that takes one"
        if option_name in OLDER:
            return f"{option_name}: {OLDER[option_name]}"
        if option_name == "--memory" and any(p.name == "memory" for p in self.params):
            return "--memory: what there is follows MODEL, as in gpt2-small 24GiB"
        if option_name == "--device":
            return "--device: this measures the processor of this host; of a GPU see 'costmodel predict --on MACHINE'"
        name = option_name.lstrip("-").replace("-", "_")
        options = [each for each in self.params if isinstance(each, click.Option) and not self._hides(each)]
        near = nearest(name, [each.opts[0].removeprefix("--") for each in options])
        settings = [SETTINGS[str(each.name)] for each in options if each.name in SETTINGS]
        settings.sort(key=lambda setting: setting.needs == "cache")  # a type that both have is of the model
        exact = ALIASES.get(name.casefold(), "").split()
        if not set(near) & {*exact, *(each.replace("_", "-") for each in exact)}:
            for setting in settings:
                if word := next((w for w in (name, name.replace("_", "-"), *exact) if w in setting.choices), None):
                    return (
                        f"{option_name} is no option, but a value of one: use --{setting.name.replace('_', '-')} {word}"
                    )
        if any(each.name == "over" for each in self.params) and name in _fields():
            length = ", or --seq for the length of the question's" * (name == "context")
            return f"{option_name} is a field of the model: use --over {name}=...{length}"
        meant = f": did you mean {' or '.join(f'--{each}' for each in near)}?" if near else ""
        return f"No such option {option_name}{meant}"

    def _too_many(self, value: str) -> str:
        """What to say of a value beyond the arguments that there are."""
        from costmodel.hardware.cluster import machine_or_cluster

        takes = " ".join(str(each.human_readable_name) for each in self.params if isinstance(each, click.Argument))
        where = next((f"--{each.name}" for each in self.params if each.name in ("machines", "on")), "")
        with suppress(CostModelError):
            if where and machine_or_cluster(value):
                return (
                    f"{self.name} takes {takes} alone, and {shown(value)} is a machine: use {where} {printable(value)}"
                )
        if any(each.name == "family" for each in self.params):
            return f"{self.name} takes options alone: use --family {printable(value)}"
        way = "several values of an option have commas between, as in 1,2,4" if value.isdigit() else "give its option"
        return f"{self.name} takes {takes or 'options'} alone, not {shown(value)} too: {way}"

    def invoke(self, ctx: click.Context) -> tuple[str, int]:
        """The answer's text, and the exit code."""
        as_json = ctx.params.pop("as_json")
        wide = ctx.params.pop("wide")
        with written_for(Page(None, page().colours)) if wide else nullcontext():
            return self._answer(ctx, as_json=as_json)

    def _answer(self, ctx: click.Context, *, as_json: bool) -> tuple[str, int]:
        if names := [option.name for option in self.params if isinstance(option, SettingOption)]:
            values = {name: ctx.params.pop(name) for name in names}
            settings = {name: value for name, value in values.items() if value is not None}
            for field, axis in (ctx.params.pop("over", None) or {}).items():
                if field in settings:
                    raise SettingError(f"axis {field} is given twice: put all its values in one, as in {field}=1,2,4")
                settings[field] = axis
            if "model" in ctx.params:
                from costmodel.importers.files import asked_in

                self._check_order(ctx)

                ctx.params["model"], settings = asked_in(ctx.params["model"], settings)
            ctx.params["settings"] = settings
        out = ctx.params.pop(OUT, None)
        if out is not None:
            from costmodel.display.output import check_out

            check_out(out, drawn=self.drawn)
        result = super().invoke(ctx)
        answer, code = result if type(result) is tuple else (result, int(self.judged and not result))
        if out is not None:
            write(answer, out)
        if not as_json:
            return str(answer), code
        import json

        ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
        return json.dumps(answer.to_dict(), indent=2, ensure_ascii=ascii_only), code

    def _check_order(self, ctx: click.Context) -> None:
        """Raise click.UsageError where the model stands in the place of the quantity."""
        from costmodel.cost.quantities import ALL
        from costmodel.importers.zoo import models

        first, second = ctx.params["model"], ctx.params.get("quantity")
        if second is None or second in ALL:
            return
        if "for_" in ctx.params and second in (*SIZES, *_fields()):
            raise click.UsageError(
                f"{second} is what to find: use '{self.name} {printable(first)} memory.peak TARGET --for {second}'", ctx
            )
        if second in (names := [entry.name for entry in models()]) and first not in names:
            raise click.UsageError(
                f"{shown(second)} is the model, which stands first: use '{self.name} {second} {printable(first)}'", ctx
            )

    @cached_property
    def _taken(self) -> Mapping[str, Parameter]:
        """What the public function of the verb's name takes, with its own defaults; of others what `predict` does."""
        import costmodel as package

        own = str(self.name).replace("-", "_")
        taken = signature(getattr(package, own)).parameters if own in package.__all__ else {}
        return taken if "over" in taken else signature(package.predict).parameters

    def _hides(self, option: click.Option) -> bool:
        """Whether an option is of a setting that the verb refuses, in words of its own."""
        return isinstance(option, SettingOption) and option.name != "over" and option.name not in self._taken

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options of the verb, then the settings of a question by subject, with the defaults of the verb."""
        from costmodel.training.settings import SETTINGS

        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Options", *SUBJECTS)}
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option) or self._hides(option):
                continue
            record, setting = option.get_help_record(ctx), SETTINGS.get(str(option.name))
            if record is None:
                continue
            if not isinstance(option, SettingOption) or setting is None:
                sections["Settings" if isinstance(option, SettingOption) else "Options"].append(record)
                continue
            names, text = record
            own = setting._replace(default=self._taken[setting.name].default)
            text = text.replace(setting.default_text or "\0", own.default_text)
            sections[_subject(setting)].append((names, text))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _fields() -> set[str]:
    """Fields of every kind of model, for a mistyped option."""
    from costmodel.importers.files import ARCHITECTURES

    kinds = [getattr(import_module(module), name) for module, name in ARCHITECTURES.values()]
    return {name for kind in kinds for name in (*kind.field_names(), *kind.DERIVED, *kind.RENAMED)} - {"name", "notes"}


SIZES = ("batch", "seq", "image", "past")
"""Settings that are sizes."""
OUT = "written_to"
"""The parameter of ``--out`` where a verb has none of its own."""
_SAYS = "--out FILE writes a picture, a page, a table or data, by the ending of the name"
OLDER = {"--plot": _SAYS, "--html": _SAYS, "--csv": _SAYS, "--output": _SAYS}
"""Options that are no more, or never were, and what to give instead."""


def write(answer: Any, path: str) -> None:
    """Write an answer to a file, by its ending. Raises CostModelError."""
    from costmodel.display.output import write_out

    of = answer.of if isinstance(answer, Reply) and answer.of is not None else None
    if of is not None and not path.lower().endswith((".json", ".txt")):
        answer = of
    write_out(answer, path)


def verb(
    *parameters: click.Parameter, examples: tuple[str, ...], drawn: bool = False, judged: bool = False
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a verb of the function that answers it; ``--json`` and ``--out`` are among the options of each.

    drawn: whether its answer has a picture. judged: whether its exit code is 1 where the answer is false.
    """

    def decorate(answer: Callable[..., Any]) -> Verb:
        name = answer.__name__.rstrip("_").replace("_", "-")
        own = any("--out" in parameter.opts for parameter in parameters)
        forms = f"{'.png, .svg, .pdf, ' if drawn else ''}.html, .csv, .parquet, .json or .txt"
        out = option("--out", OUT, metavar="FILE", help=f"Also write it to FILE, which ends in {forms}.")
        params = [
            *parameters,
            *([] if own else [out]),
            option("--json", "as_json", is_flag=True, help="Print JSON."),
            option("--wide", is_flag=True, help="Print all columns, however wide the terminal is."),
        ]
        command = Verb(name, callback=answer, params=params, help=answer.__doc__, epilog=epilog(*examples))
        command.drawn, command.judged, command.examples = drawn, judged, examples
        return command

    return decorate


def public(
    name: str,
    text: str,
    *parameters: click.Parameter,
    examples: tuple[str, ...],
    drawn: bool = False,
    judged: bool = False,
    counts: bool = False,
) -> Verb:
    """The verb of the package's public function of that name, with its arguments and the options that are given.

    text: its help. drawn, judged: see `verb`. counts: whether the function tells how far it is (`progress`).
    """

    def answer(settings: Mapping[str, Any] | None = None, **options: Any) -> Any:
        import costmodel

        arguments: list[Any] = []
        for each in parameters:
            if isinstance(each, click.Argument):
                value = options.pop(str(each.name))
                arguments += value if each.nargs == -1 else [value]
        keywords = {option: value for option, value in options.items() if value is not None}
        with counted(name) if counts else nullcontext() as progress:
            keywords |= {"progress": progress} if progress else {}
            return getattr(costmodel, name)(*arguments, **keywords, **settings or {})

    answer.__name__, answer.__doc__ = name, text
    return verb(*parameters, examples=examples, drawn=drawn, judged=judged)(answer)


def option(*names: str, **attributes: Any) -> click.Option:
    """An option, which shows its default."""
    return click.Option(names, show_default=True, **attributes)


def argument(name: str, text: str, *, several: str | None = None) -> click.Argument:
    """A positional argument that has to be given; several: its name in the help if it is given once or more."""
    return click.Argument([name], required=True, nargs=-1 if several else 1, metavar=several, help=text)


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, told how many are done and of how many; nothing where stderr is no terminal."""
    hidden = not is_terminal(sys.stderr)
    with click.progressbar(length=1, label=label, show_pos=True, file=sys.stderr, hidden=hidden) as bar:

        def progress(done: int, count: int) -> None:
            bar.length = count
            bar.update(done - bar.pos)

        yield progress


def epilog(*examples: str) -> str:
    """The end of a command's help; \\b keeps click from filling the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  costmodel {line}" for line in examples)


def read_share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """A share such as 25% or 0.25; None where it is not given. Raises click.BadParameter."""
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if 0 <= value < inf:
        return value
    raise click.BadParameter(f"{shown(text)} is not a share: use one such as 25%")


def writable(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """A path, refused before the work for it if no file can be written there. Raises CostModelError."""
    if path is not None:
        from costmodel.documents.files import check_writable

        check_writable(path)
    return path


MODEL = argument("model", "A ready model's name, or the path of a YAML or JSON file.")
QUANTITY = argument("quantity", "params, flops.forward, memory.activations, memory.peak, ...")
NETWORK = option(
    "--network", metavar="RATE", help="With --on, of one adapter between nodes of a layout, such as '400 Gb/s'."
)
RESERVE = option(
    "--reserve",
    metavar="SIZE",
    help="Memory to leave for what is not modelled (default: of a machine what its driver takes).",
)


class Verbs(click.Group):
    """Verbs, each loaded when it is asked for: the modules of all would slow down every cold start.

    homes: under each heading of the help a module of this package and names of verbs that it has.
    """

    def __init__(self, name: str, homes: dict[str, tuple[str, tuple[str, ...]]], **attributes: Any) -> None:
        super().__init__(name, no_args_is_help=False, **attributes)
        self.homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, in the order of the help."""
        return [name for _, names in self.homes.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of a name; None if there is none."""
        for module, names in self.homes.values():
            if cmd_name in names:
                members = vars(import_module(f"costmodel.cli.{module}")).values()
                return next(verb for verb in members if isinstance(verb, click.Command) and verb.name == cmd_name)
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The verb that the arguments begin with; an error that names the nearest ones if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.UsageError(self._no_command(ctx, error.command_name), ctx) from None

    def _no_command(self, ctx: click.Context, name: str) -> str:
        """What to say of a verb that there is not."""
        from costmodel.training.settings import SETTINGS

        if name in ("help", "version"):
            return f"{shown(name)} is an option: use costmodel --{name}"
        if name in ("plot", "draw"):
            return f"no verb {shown(name)}: a verb draws its answer where it is given --out FILE.png"
        if name in SETTINGS["mode"].choices:
            return f"{shown(name)} is a mode: use costmodel predict MODEL --mode {name}"
        if near := nearest(name, self.list_commands(ctx)):
            return f"no verb {shown(name)}: did you mean {' or '.join(map(repr, near))}?"
        from costmodel.importers.zoo import load

        with suppress(CostModelError):
            if load(name) and ctx.parent is None:
                return f"no verb {shown(name)}, which is a model: did you mean costmodel predict {printable(name)}?"
        return f"no verb {shown(name)}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every verb under its heading, with the first sentence of its help."""
        for heading, (_, names) in self.homes.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:11}", _sentence(self.get_command(ctx, name))) for name in names])


def _sentence(command: click.Command | None) -> str:
    text = " ".join(((command and command.help) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".") + "."


def _show_version(context: click.Context, _: click.Parameter, asks: bool) -> None:
    if asks:
        from costmodel import __version__

        click.echo(f"costmodel {__version__}")
        context.exit()


VERSION = option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."
)

costmodel = Verbs(
    "costmodel",
    {
        "One question": ("prediction", ("predict", "explain", "fits", "timeline", "ranks", "collectives")),
        "Models": ("models", ("models", "show", "list")),
        "Machines": ("machines", ("machines", "clusters", "energy")),
        "Serving": ("serving", ("serve", "deployments", "disaggregated")),
        "Which machine, size or setting": (
            "analysis",
            ("gpus", "solve", "break-even", "sensitivity", "recommend", "layouts", "compare"),
        ),
        "Many questions": ("sweep", ("sweep", "pareto")),
        "In a browser": ("explorer", ("explore",)),
        "This machine": ("roofline", ("roofline",)),
    },
    params=[VERSION],
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What a neural network costs, exact and explained: parameters, FLOPs and memory from its description alone.",
    epilog=epilog("predict gpt2-small --batch 32 --seq 512", "models", "predict --help"),
)
