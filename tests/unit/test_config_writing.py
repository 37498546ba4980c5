"""What is written as TOML is read back as the same."""

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.config import Config, dump, load
from equipoise.config.parts import write, write_pairs

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _text(raw: dict[str, Any]) -> str:
    return "\n".join(f"[{name}]\n{write_pairs(table)}\n" for name, table in raw.items())


@given(json_like.filter(lambda v: v is not None))
def test_values_are_written_as_toml_reads_them(value: Any) -> None:
    def without_none(v: Any) -> Any:
        if isinstance(v, list):
            return [without_none(x) for x in v if x is not None]
        return {k: without_none(x) for k, x in v.items() if x is not None} if isinstance(v, dict) else v

    value = without_none(value)
    assert repr(tomllib.loads(f"value = {write(value)}")["value"]) == repr(value)


_PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_SHARE = st.floats(0.0, 0.45)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def raw_configs(draw: st.DrawFn) -> dict[str, Any]:
    positive, device = st.integers(1, 10**6), st.sampled_from(["auto", "cpu", "cuda:1"])
    partition = st.one_of(
        st.just("iid"),
        st.fixed_dictionaries({"kind": st.just("dirichlet"), "alpha": st.floats(1e-9, 1e9) | positive}),
        st.fixed_dictionaries({"kind": st.just("pathological")}, optional={"classes": st.integers(1, 10)}),
    )
    shares = {"test": _SHARE, "validation": _SHARE}
    own = st.fixed_dictionaries({"dataset": _PLAIN.map(lambda s: f"folder:{s}")}, optional=shares)
    dealt = st.fixed_dictionaries(
        {"dataset": st.sampled_from(["digits", "mnist", "sst"]), "clients": st.integers(100, 1000)},
        optional={**shares, "partition": partition, "seed": st.integers(0, 2**63 - 1), "download": st.booleans()},
    )
    drawn = st.fixed_dictionaries(
        {"dataset": st.just("leaf-synthetic")}, optional={"options": _some(alpha=st.floats(0, 9), iid=st.booleans())}
    )
    server = st.sampled_from(["fedavg", {"name": "weighted-mean", "weights": "uniform"}, {"name": "qffl", "q": 1}])
    method = st.one_of(
        st.fixed_dictionaries({"name": st.just("fedavg")}, optional={"server": server}),
        st.fixed_dictionaries(
            {"name": st.just("fedprox"), "mu": st.floats(1e-9, 1e9) | positive}, optional={"server": server}
        ),
    )
    attack = st.one_of(
        st.fixed_dictionaries({"name": st.just("sign-flip"), "fraction": st.floats(0, 1)}),
        st.fixed_dictionaries({"name": st.just("label-noise"), "clients": st.lists(st.integers(0, 29), max_size=4)}),
    )
    raw = {
        "data": draw(own | dealt | drawn),
        "model": draw(
            st.fixed_dictionaries({"kind": st.just("mlp")}, optional={"hidden": st.lists(positive, max_size=3)})
        ),
        "train": draw(_some(rounds=positive, lr=st.floats(1e-12, 1e12), steps=positive, lr_decay=st.just(1))),
        "participation": draw(_some(per_round=st.integers(1, 30), trace=_PLAIN, dropout=_SHARE)),
        "admission": draw(_some(norm_cap=positive, quorum=st.just(1))),
        "method": draw(method),
        "run": draw(
            _some(seed=st.integers(0, 2**63 - 1), device=device, dtype=st.sampled_from(["float32", "float64"]))
        ),
    }
    return raw | ({"attack": draw(attack)} if draw(st.booleans()) else {})


@settings(max_examples=150)
@given(raw_configs())
def test_what_is_written_is_read_back_as_the_same(raw: dict[str, Any]) -> None:
    config = load(_text(raw))
    assert isinstance(config, Config)
    text = dump(config)
    assert load(text) == config
    assert dump(load(text)) == text
    assert config.make_method() == load(text).make_method()
