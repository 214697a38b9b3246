"""Functions of rows mean what the text of the same call means in Spark's SQL, which is bound by rules of its own."""

from __future__ import annotations

import pytest

from zset_join.expressions import Expression
from zset_join.pipeline import appends
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.query.columns import resolved

ROWS = appends(
    "rows",
    "s STRING, t STRING, x DOUBLE, n INT, m INT, b BIGINT, d DATE, e DATE, at TIMESTAMP, u TIMESTAMP, a ARRAY<STRING>, flag BOOLEAN",
)
CASES: list[tuple[str, Expression]] = [
    ("ascii(s)", F.ascii("s")),
    ("btrim(s)", F.btrim("s")),
    ("btrim(s, 'x')", F.btrim("s", F.lit("x"))),
    ("ceil(x)", F.ceil("x")),
    ("char_length(s)", F.char_length("s")),
    ("coalesce(s,t)", F.coalesce("s", "t")),
    ("concat(s,t)", F.concat("s", "t")),
    ("concat_ws('-',s,t)", F.concat_ws("-", "s", "t")),
    ("contains(s,t)", F.contains("s", "t")),
    ("date_add(d,n)", F.date_add("d", "n")),
    ("datediff(d,e)", F.datediff("d", "e")),
    ("date_format(at,'yyyy-MM-dd')", F.date_format("at", "yyyy-MM-dd")),
    ("date_trunc('MONTH',at)", F.date_trunc("month", "at")),
    ("day(d)", F.day("d")),
    ("dayofweek(d)", F.dayofweek("d")),
    ("dayofyear(d)", F.dayofyear("d")),
    ("hour(at)", F.hour("at")),
    ("minute(at)", F.minute("at")),
    ("month(d)", F.month("d")),
    ("quarter(d)", F.quarter("d")),
    ("year(d)", F.year("d")),
    ("weekofyear(d)", F.weekofyear("d")),
    ("element_at(a,1)", F.element_at("a", 1)),
    ("try_element_at(a,1)", F.try_element_at("a", F.lit(1))),
    ("endswith(s,t)", F.endswith("s", "t")),
    ("exp(x)", F.exp("x")),
    ("floor(x)", F.floor("x")),
    ("greatest(n,m)", F.greatest("n", "m")),
    ("least(n,m)", F.least("n", "m")),
    ("ifnull(s,t)", F.ifnull("s", "t")),
    ("nvl(s,t)", F.nvl("s", "t")),
    ("nvl2(s,n,m)", F.nvl2("s", "n", "m")),
    ("initcap(s)", F.initcap("s")),
    ("soundex(s)", F.soundex("s")),
    ("instr(s,'x')", F.instr("s", "x")),
    ("isnan(x)", F.isnan("x")),
    ("isnull(s)", F.isnull("s")),
    ("isnotnull(s)", F.isnotnull("s")),
    ("last_day(d)", F.last_day("d")),
    ("left(s,2)", F.left("s", F.lit(2))),
    ("right(s,2)", F.right("s", F.lit(2))),
    ("length(s)", F.length("s")),
    ("ln(x)", F.ln("x")),
    ("log(x)", F.log("x")),
    ("log(2,x)", F.log(2, "x")),
    ("log10(x)", F.log10("x")),
    ("lower(s)", F.lower("s")),
    ("lpad(s,5,'x')", F.lpad("s", 5, "x")),
    ("rpad(s,5,'x')", F.rpad("s", 5, "x")),
    ("make_date(n,m,1)", F.make_date("n", "m", F.lit(1))),
    ("md5(s)", F.md5("s")),
    ("nullif(s,t)", F.nullif("s", "t")),
    ("octet_length(s)", F.octet_length("s")),
    ("pow(x,n)", F.pow("x", "n")),
    ("power(x,n)", F.power("x", "n")),
    ("regexp_extract(s,'a(b)',1)", F.regexp_extract("s", "a(b)", 1)),
    ("regexp_like(s,'a')", F.regexp_like("s", F.lit("a"))),
    ("s rlike 'a'", F.rlike("s", F.lit("a"))),
    ("regexp_replace(s,'a','b')", F.regexp_replace("s", "a", "b")),
    ("repeat(s,3)", F.repeat("s", 3)),
    ("replace(s,'a','b')", F.replace("s", F.lit("a"), F.lit("b"))),
    ("reverse(s)", F.reverse("s")),
    ("round(x,2)", F.round("x", 2)),
    ("round(x)", F.round("x")),
    ("rtrim(s)", F.rtrim("s")),
    ("ltrim(s)", F.ltrim("s")),
    ("trim(s)", F.trim("s")),
    ("trim('x' from s)", F.trim("s", F.lit("x"))),
    ("trim(leading 'x' from s)", F.ltrim("s", F.lit("x"))),
    ("trim(trailing 'x' from s)", F.rtrim("s", F.lit("x"))),
    ("sha2(s,256)", F.sha2("s", 256)),
    ("sign(x)", F.sign("x")),
    ("signum(x)", F.signum("x")),
    ("size(a)", F.size("a")),
    ("cardinality(a)", F.cardinality("a")),
    ("split(s,',')", F.split("s", ",")),
    ("split_part(s,',',2)", F.split_part("s", F.lit(","), F.lit(2))),
    ("sqrt(x)", F.sqrt("x")),
    ("startswith(s,'a')", F.startswith("s", F.lit("a"))),
    ("substring(s,1,2)", F.substring("s", 1, 2)),
    ("substr(s,1,2)", F.substr("s", F.lit(1), F.lit(2))),
    ("substring(s,2)", F.substring("s", 2)),
    ("translate(s,'ab','xy')", F.translate("s", "ab", "xy")),
    ("timestamp_seconds(b)", F.timestamp_seconds("b")),
    ("timestamp_millis(b)", F.timestamp_millis("b")),
    ("timestamp_micros(b)", F.timestamp_micros("b")),
    ("unix_seconds(at)", F.unix_seconds("at")),
    ("unix_millis(at)", F.unix_millis("at")),
    ("unix_micros(at)", F.unix_micros("at")),
    ("timestampdiff(MINUTE,at,u)", F.timestamp_diff("MINUTE", "at", "u")),
    ("timestampadd(HOUR,n,at)", F.timestamp_add("HOUR", "n", "at")),
    ("timestampadd(YEAR,n,at)", F.timestamp_add("YEAR", "n", "at")),
    ("add_months(d,n)", F.add_months("d", "n")),
    ("array('a',s)", F.array(F.lit("a"), "s")),
    ("array_contains(a,'x')", F.array_contains("a", "x")),
    ("array_join(a,',')", F.array_join("a", ",")),
    ("abs(n)", F.abs("n")),
    ("~n", F.bitwise_not("n")),
    ("-n", F.negate("n")),
    ("n <=> m", F.equal_null("n", "m")),
    ("to_date(at)", F.to_date("at")),
    ("extract(month from d)", F.extract("month", "d")),
    ("case when flag then n when n > 1 then m end", F.when(F.col("flag"), F.col("n")).when(F.col("n") > 1, F.col("m"))),
    ("if(flag,n,m)", F.when(F.col("flag"), F.col("n")).otherwise(F.col("m"))),
    ("n & m", F.col("n").bitwiseAND(F.col("m"))),
    ("a[0]", F.col("a")[0]),
    ("try_cast(s as int)", F.col("s").try_cast("int")),
    ("s LIKE 'a%' ESCAPE '/'", F.like("s", F.lit("a%"), F.lit("/"))),
]


@pytest.mark.parametrize(("text", "tree"), CASES, ids=[text for text, _ in CASES])
def test_a_function_is_the_call_of_its_text(text: str, tree: Expression) -> None:
    view = ROWS.select(same=tree)

    assert view.columns == ["same"]
    assert resolved(tree, ROWS, "select").same_as(resolved(F.expr(text), ROWS, "select"))


def test_the_parameters_of_a_function_may_be_named() -> None:
    assert F.lpad(col="s", len=5, pad="x").same_as(F.lpad("s", 5, "x"))
    assert F.date_sub("d", 2).same_as(F.date_add("d", -2))
    with pytest.raises(TypeError, match=r"lpad\(col, len, pad\).*missing a required argument: 'pad'"):
        F.lpad("s", 5)
