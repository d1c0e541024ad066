"""Pipelines: their text, and running them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import passes
from passes.cleanup.fold_constants import FoldConstants
from passes.cleanup.remove_dead import RemoveDead
from passes.core.errors import InputError, PassError
from passes.rewriting.base import Budget, Context, Exactness, Pass, Result, Rewrite, Skip
from passes.rewriting.pipeline import Pipeline, Step
from passes.specialize.freeze_shapes import FreezeShapes
from tests.passes.harness import model


@dataclass(frozen=True)
class Everything(Pass):
    """Have an option of every kind."""

    name = "have-options"
    whole: int = 3
    real: float = 0.5
    flag: bool = False
    text: str = "a"
    choice: Literal["one", "two"] = "one"
    size: int = field(default=0, metadata={"unit": "bytes"})
    limit: int | None = None
    pairs: tuple[float, ...] = ()
    names: tuple[str, ...] = ("x",)
    sizes: Mapping[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def run(self, model: ir.Model, context: Context) -> Result:
        return Result(model, [Rewrite(("a",), ("b",))], [Skip("no", "c"), Skip("no", "d")])


@dataclass(frozen=True)
class Broken(Pass):
    """Fail."""

    name = "break"

    def run(self, model: ir.Model, context: Context) -> Result:
        raise KeyError("gone")


@dataclass(frozen=True)
class Another(Pass):
    """Make another model."""

    name = "make-another"

    def run(self, model: ir.Model, context: Context) -> Result:
        return Result(model.clone())


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    for each in (Everything, Broken, Another):
        passes.register(each)
    yield
    for each in (Everything, Broken, Another):
        del passes._registered[each.name]


class TestText:
    def test_the_example_of_the_documentation(self) -> None:
        text = "fold-constants{max-bytes=1MiB},remove-dead,freeze-shapes{dims={batch=1,seq=128},shapes={x=[2,3,224]}}"
        pipeline = Pipeline.parse(text)
        assert pipeline.passes == (
            FoldConstants(max_bytes=2**20),
            RemoveDead(),
            FreezeShapes(dims={"batch": 1, "seq": 128}, shapes={"x": (2, 3, 224)}),
        )
        assert str(pipeline) == text

    def test_blanks_defaults_and_quotes(self) -> None:
        pipeline = Pipeline.parse(' have-options { text = "a,b" , whole=3, sizes={ "x=\\"" = 4 , layer 0.a=5} } ')
        assert pipeline.passes == (Everything(text="a,b", sizes={'x="': 4, "layer 0.a": 5}),)
        assert str(pipeline) == 'have-options{text="a,b",sizes={"x=\\""=4,layer 0.a=5}}'

    @pytest.mark.parametrize(
        ("text", "size"),
        [("0", 0), ("17", 17), ("1KB", 1000), ("1.5KiB", 1536), ("64 MiB", 2**26), ("2TB", 2 * 10**12)],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert Pipeline.parse(f"have-options{{size={text}}}").passes == (Everything(size=size),)

    def test_options_that_may_be_absent(self) -> None:
        assert Pipeline.parse("have-options{limit=none}").passes == (Everything(),)
        assert Pipeline.parse("have-options{limit=4}").passes == (Everything(limit=4),)
        assert str(Pipeline([Everything(names=())])) == "have-options{names=[]}"

    def test_pipelines_within_pipelines(self) -> None:
        assert Pipeline.parse("none").passes == ()
        assert Pipeline.parse("").passes == ()
        default = Pipeline.parse("default")
        assert str(default) == passes.PIPELINES["default"]
        assert Pipeline.parse("minimal,default") == Pipeline.parse("minimal") + default

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("fold-constant", "no pass or pipeline fold-constant .*fold-constants"),
            ("remove-dead,", "expected a name or a value, found the end"),
            (",remove-dead", "expected a name"),
            ("remove-dead remove-identity", "no pass or pipeline remove-dead remove-identity"),
            ("remove-dead}", "expected ',', found '}' at character 12"),
            ("fold-constants{", "found the end"),
            ("fold-constants{max-bytes}", "expected '='"),
            ("fold-constants{max-byte=1}", "fold-constants has no option max-byte .did you mean max-bytes?"),
            ("remove-dead{x=1}", "remove-dead has no option x .it has no options"),
            ("default{x=1}", "default is a pipeline, which has no options"),
            ("fold-constants{max-bytes=1,max-bytes=2}", "max-bytes is given twice"),
            ("fold-constants{max-bytes=much}", "max-bytes=much: expected a number of bytes, as in"),
            ("fold-constants{max-bytes=-1}", "expected a number of bytes"),
            ("have-options{whole=1.5}", "expected a whole number"),
            ("have-options{real=x}", "expected a number"),
            ("have-options{flag=yes}", "expected true or false"),
            ("have-options{choice=tow}", "expected one of one, two .did you mean two?"),
            ("have-options{pairs=1}", r"expected a list, as in \[1,2\]"),
            ("have-options{sizes=[1]}", r"sizes=\[1\]: expected a map, as in {name=value}"),
            ("have-options{whole=[1]}", "expected a single value"),
            ('have-options{text="\\q"}', "bad quoted text"),
            ("freeze-shapes{shapes={x=[1,a]}}", "expected a whole number"),
        ],
    )
    def test_errors(self, text: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            Pipeline.parse(text)

    words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
    options = st.builds(
        Everything,
        whole=st.integers(),
        real=st.floats(allow_nan=False),
        flag=st.booleans(),
        text=words,
        choice=st.sampled_from(["one", "two"]),
        size=st.integers(0, 2**70) | st.integers(0, 40).map(lambda power: 1 << power),
        limit=st.none() | st.integers(),
        pairs=st.lists(st.floats(allow_nan=False)).map(tuple),
        names=st.lists(words).map(tuple),
        sizes=st.dictionaries(words, st.integers()),
        shapes=st.dictionaries(words, st.lists(st.integers()).map(tuple)),
    )

    @pytest.mark.slow
    @given(st.lists(options | st.just(RemoveDead())))
    def test_round_trip(self, steps: list[Pass]) -> None:
        pipeline = Pipeline(steps)
        again = Pipeline.parse(str(pipeline))
        assert again == pipeline
        assert str(again) == str(pipeline)


class TestRunning:
    def source(self) -> ir.Model:
        text = "(float[2] x, bool c) => (float[2] y) { d = Neg(x) y = local.f(x) }"
        function = '<domain: "local", opset_import: ["": 17]> f (a) => (b) { b = Abs(a) }'
        return model(text, functions=function)

    def test_steps(self) -> None:
        seen: list[Step] = []
        told: list[str] = []
        pipeline = Pipeline([RemoveDead(), Everything(whole=4)])
        steps = pipeline.run(self.source(), Context(progress=told.append), between=seen.append)
        assert seen == steps
        assert told == ["remove-dead", "have-options"]
        assert [(step.nodes_before, step.nodes_after) for step in steps] == [(3, 2), (2, 2)]
        assert steps[1].options == {"whole": 4}
        assert steps[1].exactness is Exactness.BITWISE
        assert steps[1].seconds >= 0
        values = steps[1].to_json()
        assert json.loads(json.dumps(values)) == values
        assert values["rewrites"] == 1
        assert values["skips"] == [{"reason": "no", "nodes": ["c", "d"]}]

    def test_nothing_to_run(self) -> None:
        assert Pipeline().run(self.source()) == []

    def test_the_model_of_a_step_goes_into_the_next(self) -> None:
        source = self.source()
        steps = Pipeline([Another(), RemoveDead()]).run(source)
        assert steps[-1].result.model is steps[0].result.model is not source
        assert len(source.graph) == 2

    def test_a_defect_names_the_pass(self) -> None:
        with pytest.raises(PassError, match="pass break: KeyError: 'gone'") as caught:
            Pipeline([Broken()]).run(self.source())
        assert isinstance(caught.value.__cause__, KeyError)

    def test_errors_for_users_pass_through(self) -> None:
        with pytest.raises(InputError, match="no input has a dimension batch"):
            Pipeline([FreezeShapes(dims={"batch": 1})]).run(self.source())

    @pytest.mark.parametrize("limit", range(4))
    def test_one_budget_for_all_passes(self, limit: int) -> None:
        steps = Pipeline.parse("inline-functions,remove-dead").run(self.source(), Context(budget=Budget(limit)))
        assert sum(len(step.result.rewrites) for step in steps) == limit


@dataclass(frozen=True)
class Counted(Pass):
    """Count how often it runs, and change the model as often as it is told to."""

    name = "count"
    idempotent = True
    ran: list[int] = field(default_factory=list, compare=False)
    changes: int = 0

    def run(self, model: ir.Model, context: Context) -> Result:
        self.ran.append(1)
        return Result(model, [Rewrite(("a",), ())] if len(self.ran) <= self.changes else [])


class TestSettled:
    def test_nothing_new_to_find(self) -> None:
        step, other = Counted(changes=1), Counted(changes=0)
        steps = Pipeline([step, step, other, step]).run(model("(float[2] x) => (float[2] y) { y = Relu(x) }"))
        assert (len(step.ran), len(other.ran)) == (1, 1)
        assert [len(each.result.rewrites) for each in steps] == [1, 0, 0, 0]

    def test_something_has_changed(self) -> None:
        step = Counted()
        source = model("(float[2] x) => (float[2] y) { y = Relu(x) z = Exp(x) }")
        Pipeline([step, RemoveDead(), step, step]).run(source)
        assert len(step.ran) == 2

    def test_other_options(self) -> None:
        one, other = Counted(), Counted(changes=1)
        Pipeline([one, other, one]).run(model("(float[2] x) => (float[2] y) { y = Relu(x) }"))
        assert (len(one.ran), len(other.ran)) == (2, 1)

    def test_passes_that_do_not_say_so_always_run(self) -> None:
        ran: list[int] = []

        @dataclass(frozen=True)
        class Unsettled(Counted):
            name = "count-always"
            idempotent = False

        step = Unsettled(ran)
        Pipeline([step, step]).run(model("(float[2] x) => (float[2] y) { y = Relu(x) }"))
        assert len(ran) == 2

    def test_another_model(self) -> None:
        """A pass may give back another model, though it has no rewrite to name."""

        @dataclass(frozen=True)
        class Exchanged(Pass):
            name = "exchange"

            def run(self, model: ir.Model, context: Context) -> Result:
                return Result(model.clone())

        step = Counted()
        Pipeline([step, Exchanged(), step]).run(model("(float[2] x) => (float[2] y) { y = Relu(x) }"))
        assert len(step.ran) == 2
