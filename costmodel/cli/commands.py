"""The verbs of ``costmodel``: where each is, what all of them share, and how their help is laid out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from costmodel.display.answer import Data
from costmodel.display.table import Page, is_terminal, page, printable, written_for
from costmodel.errors import SettingError, nearest, shown


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
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for each in order:
                if isinstance(each, click.Option) and not (each.multiple or each.is_flag) and order.count(each) > 1:
                    raise click.UsageError(f"{each.opts[0]} is given twice: leave one out", ctx)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in OLDER:
                raise click.UsageError(f"{error.option_name}: {OLDER[error.option_name]}", ctx) from None
            if error.option_name == "--memory" and any(p.name == "memory" for p in self.params):
                raise click.UsageError("--memory: what there is follows MODEL, as in gpt2-small 24GiB", ctx) from None
            names = [name.removeprefix("--") for option in self.params for name in option.opts]
            if error.option_name == "--device":
                raise click.UsageError(
                    "--device: this measures the processor of this host; of a GPU see 'costmodel predict --on MACHINE'",
                    ctx,
                ) from None
            near = " or ".join(f"--{name}" for name in nearest(error.option_name.lstrip("-"), names))
            field = error.option_name.lstrip("-").replace("-", "_")
            if any(option.name == "over" for option in self.params) and field in _fields():
                raise click.UsageError(
                    f"{error.option_name} is a field of the model: use --over {field}=...", ctx
                ) from None
            message = f"No such option {error.option_name}" + f": did you mean {near}?" * bool(near)
            raise click.NoSuchOption(error.option_name, message, ctx=error.ctx or ctx) from None
        except click.MissingParameter as error:
            missing = error.format_message().rstrip(".").splitlines()[0]
            sample = f": type such as costmodel {min(self.examples, key=len)}" if self.examples else ""
            raise click.UsageError(missing + sample, ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

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
        if second in (names := [entry.name for entry in models()]) and first not in names:
            raise click.UsageError(
                f"{shown(second)} is the model, which stands first: use '{self.name} {second} {printable(first)}'", ctx
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options of the verb, then the settings of a question."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        for heading, kind in (("Options", False), ("Settings", True)):
            records = [option.get_help_record(ctx) for option in options if isinstance(option, SettingOption) is kind]
            if records:
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record])


def _fields() -> set[str]:
    """Fields of every kind of model, for a mistyped option."""
    from costmodel.importers.files import ARCHITECTURES

    kinds = [getattr(import_module(module), name) for module, name in ARCHITECTURES.values()]
    return {name for kind in kinds for name in (*kind.field_names(), *kind.DERIVED, *kind.RENAMED)} - {"name", "notes"}


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


def writable(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """A path, refused before the work for it if no file can be written there. Raises CostModelError."""
    if path is not None:
        from costmodel.documents.files import check_writable

        check_writable(path)
    return path


MODEL = argument("model", "A ready model's name, or the path of a YAML or JSON file.")
QUANTITY = argument("quantity", "params, flops.forward, memory.activations, memory.peak, ...")
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
            raise click.NoSuchCommand(error.command_name, None, self.list_commands(ctx), ctx) from None

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
