"""Calls with too many, too few or unknown arguments, and attributes that there are not: one line says what is right."""

import inspect

import pytest

import costmodel as cm
from costmodel.errors import no_attribute

FUNCTIONS = [
    *(f"cm.{name}" for name in cm.__all__ if inspect.isfunction(getattr(cm, name))),
    *(f"cm.roofline.{name}" for name in ("check", "profile", "compare", "calibrate", "validate")),
]
ANY_NUMBER = {"cm.compare", "cm.explore", "cm.pareto"}


def function(name: str) -> object:
    return eval(name, {"cm": cm})


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - ANY_NUMBER))
def test_too_many_arguments_are_told_their_names(name: str) -> None:
    with pytest.raises(cm.CostModelError) as raised:
        function(name)(*["gpt2-small"] * 9)  # type: ignore[operator]
    assert len(str(raised.value)) < 200
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_needed_is_named(name: str) -> None:
    call = function(name)
    needed = [
        each.name
        for each in inspect.signature(call).parameters.values()  # type: ignore[arg-type]
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if not needed:
        return
    with pytest.raises(cm.CostModelError, match=f"needs .*{needed[-1]}"):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cm.predict("gpt2-small", 32, 512),  # type: ignore[call-arg]
            "predict takes model alone without a name, not 32: give it by its name, such as batch=32, as in cm.",
        ),
        (
            lambda: cm.serve("llama-3.1-8b"),  # type: ignore[call-arg]
            'serve needs on, input and output, as in cm.serve("llama-3.1-8b", on="h100-sxm", input=1024,',
        ),
        (
            lambda: cm.serve("llama-3.1-8b", tp=2),  # type: ignore[call-arg]
            'serve needs on, input and output, as in cm.serve("llama-3.1-8b", on="h100-sxm", input=1024,',
        ),
        (
            lambda: cm.predict("mlp-mnist").on("h100-sxm").goodput(steps=10),  # type: ignore[call-arg]
            "goodput needs mtbf, checkpoint and restart: give them",
        ),
        (lambda: cm.max_batch("gpt2-small"), "max_batch needs memory, as in cm.max_batch("),  # type: ignore[call-arg]
        (lambda: cm.load("gpt2-small", model="gpt2"), "load is given model twice, as 'gpt2-small' too: leave one out"),  # type: ignore[misc]
        (
            lambda: cm.energy(hours=1, wats=300, pue=1),  # type: ignore[call-overload]
            "unknown argument of energy 'wats': did you mean 'watts'?",
        ),
        (
            lambda: cm.predict("gpt2-small").fits("24 GiB", "1 GiB"),  # type: ignore[call-arg]
            "fits takes memory alone without a name, not '1 GiB': give it by its name",
        ),
        (lambda: cm.Drafts(), 'Drafts needs model, as in cm.Drafts("llama-3.2-1b", count=4'),  # type: ignore[call-arg]
        (lambda: cm.Engine(), "Engine needs name"),  # type: ignore[call-arg]
        (lambda: cm.Stack("mine", 1e-6, kernel=2), "unknown argument of Stack 'kernel'"),  # type: ignore[call-arg]
        (lambda: cm.Machine("h100"), "Machine('h100'): fields are given by name, such as name=...; a ready machine is"),  # type: ignore[call-arg]
        (lambda: cm.Cluster("dgx"), "Cluster('dgx'): fields are given by name, such as name=...; a ready cluster is"),  # type: ignore[call-arg]
    ],
)
def test_errors_show_a_call(call: object, message: str) -> None:
    with pytest.raises(cm.CostModelError) as raised:
        call()  # type: ignore[operator]
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 200


def test_errors_from_inside_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match="takes 0 positional arguments but 2 were given"):
        cm.layouts("gpt2-small", devices=2, seq=64, global_batch=2, progress=lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "name", "near"),
    [
        ("p", "peak", "memory.peak"),
        ("p", "flop", "flops"),
        ("p", "activations", "memory.activations"),
        ("p", "latency", "seconds"),
        ("p.memory", "peek", "peak"),
        ("p.flops", "foward", "forward"),
        ("p.fits('24 GiB')", "margn", "margin"),
        ("cm", "predictt", "predict"),
        ("cm.roofline", "validat", "validate"),
        ("cm.load_machine('l4')", "ram", "memory"),
    ],
)
def test_attributes_that_there_are_not_name_the_nearest(of: str, name: str, near: str) -> None:
    value = eval(of, {"cm": cm, "p": cm.predict("gpt2-small", seq=64)})
    with pytest.raises(AttributeError, match=rf"did you mean {near}\b"):
        getattr(value, name)


def test_an_attribute_that_fails_keeps_its_own_error() -> None:
    class Failing:
        @property
        def value(self) -> int:
            raise AttributeError("the cause")

    assert str(no_attribute(Failing(), "value")) == "the cause"
    assert str(no_attribute(Failing(), "_private")) == "'Failing' object has no attribute '_private'"
