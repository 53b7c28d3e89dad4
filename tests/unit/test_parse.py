"""The %%gpujob line: what is understood, what is refused, and what the refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.jupyter.flags import FLAGS, HABITS
from jupyter_aicluster.jupyter.parse import help_text, parse_cell_line, parse_verb
from jupyter_aicluster.spec import ClusterSpec


def spec(line: str) -> ClusterSpec:
    found = parse_cell_line(line).spec
    assert found is not None
    return found


def test_the_line_of_the_design() -> None:
    options = parse_cell_line(
        "--gpus h100:16 -N 2 -p gpu -A lab --qos high -t 2:00:00 -c 8 --mem 64G -J run --priority -5 "
        "--keep 30m --in a,b --in c --out d --dry-run"
    )
    assert options.spec == ClusterSpec(
        gpus=16,
        nodes=2,
        gpu_type="h100",
        queue="gpu",
        account="lab",
        qos="high",
        time_s=7200,
        cpus_per_node=8,
        mem_per_node_bytes=64 * 2**30,
        label="run",
        priority=-5,
    )
    assert (options.keep_s, options.inputs, options.outputs, options.dry_run) == (1800, ("a", "b", "c"), ("d",), True)


@pytest.mark.parametrize(
    ("line", "per", "gather"),
    [
        ("--gpus 4", "", ()),
        ("--spmd", "gpu", ()),
        ("--spmd --per node --gather loss,step --gather x", "node", ("loss", "step", "x")),
    ],
)
def test_once_per_gpu_or_node(line: str, per: str, gather: tuple[str, ...]) -> None:
    options = parse_cell_line(line)
    assert (options.spmd, options.gather) == (per, gather)


@pytest.mark.parametrize(
    "line", ["--gpus 4 -N 2", "--gpus=4 -N2", "--gpus '4' --nodes=2", "  --gpus 4\t-N=2  # two machines", "-N 2 --gpus-per-node 2"]
)
def test_ways_to_write_the_same(line: str) -> None:
    assert (spec(line).gpus, spec(line).nodes) == (4, 2)


def test_a_comment_starts_a_word_and_is_not_in_quotes() -> None:
    assert spec("--gpus 2 --env A=b#c").env == (("A", "b#c"),)
    assert spec("--gpus 2 --env 'A=b # c' # --gpus 9").env == (("A", "b # c"),)
    assert parse_cell_line("# nothing").spec is None


def test_names_in_braces_come_from_the_notebook_but_never_in_env() -> None:
    options = parse_cell_line("--gpus {n} -J {label} --env A={n} --env B=$HOME", {"n": 4, "label": "two words"})
    assert options.spec is not None
    assert (options.spec.gpus, options.spec.label) == (4, "two words")
    assert options.spec.env == (("A", "{n}"), ("B", "$HOME"))


def test_env_without_a_value_is_copied_from_the_kernel() -> None:
    options = parse_cell_line("--gpus 1 --env TOKEN --env EMPTY=", environ={"TOKEN": "s3 cr=t"})
    assert options.spec is not None
    assert options.spec.env == (("TOKEN", "s3 cr=t"), ("EMPTY", ""))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--gpu 4", "did you mean --gpus?"),
        ("--gpu-typ h100", "did you mean --gpu-type?"),
        ("--zzz", "lists the flags"),
        ("--gres gpu:4", "write --gpus 4"),
        ("-n 4", "--spmd"),
        ("-n4", "--spmd"),
        ("--cpus-per-task=8", "-c 8"),
        ("--gpus", "--gpus needs a value"),
        ("--gpus --new", "--gpus needs a value"),
        ("--gpus 0", "--gpus: '0' is not a whole number"),
        ("--gpus four", "--gpus: 'four' is not a whole number"),
        ("--gpus {n}", "no variable 'n' here"),
        ("--gpus ²", "is not a whole number"),
        ("--gpus :4", "names no GPU type"),
        ("--gpus 4 --gpus 8", "given twice"),
        ("--gpus a100:4 --gpu-type h100", "disagree"),
        ("--gpus 4 -t 0", "-t: '0' is not a duration"),
        ("--gpus 4 -t UNLIMITED", "is not a duration"),
        ("--gpus 4 --mem lots", "--mem: 'lots' is not an amount of memory"),
        ("--gpus 4 --env 1A=2", "'1A' is not the name of an environment variable"),
        ("--gpus 4 --env NOPE", "the kernel has no environment variable"),
        ("--gpus 4 --in a-b", "'a-b' is not the name of a variable"),
        ("--gpus 4 --new=yes", "--new takes no value"),
        ("--gpus 4 -p 'a\nb'", "control characters"),
        ("--gpus 4 'x", "a quote is not closed"),
        ("4", "'4' is not a flag"),
        ("up --gpus 4", "one %: %gpujob up"),
        ("-N 2", "how many GPUs?"),
        ("--on fox --new", "keep one of the two"),
        ("--gpus 17 -N 4", "cannot be spread evenly"),
        ("--gpus 4 --per node", "--per is about the ranks of an --spmd cell"),
        ("--gpus 4 --gather loss", "--gather is about the ranks of an --spmd cell"),
        ("--gpus 4 --spmd --per rack", "--per: 'rack' is neither gpu nor node"),
        ("--gpus 4 --detach", "not possible in this version"),
        ("--gpus 4 --retries some", "--retries: 'some' is not a whole number"),
    ],
)
def test_refusals_say_what_and_what_to_do(line: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_cell_line(line)
    assert says in str(error.value)
    assert "Nothing was submitted" in str(error.value)


def test_no_habit_is_also_a_flag() -> None:
    assert not HABITS.keys() & FLAGS.keys()


@pytest.mark.parametrize(
    ("line", "name", "cluster"),
    [
        ("", "", None),
        ("  # what is there", "", None),
        ("stop fox", "down", "fox"),
        ("down", "down", None),
        ("list", "list", None),
        ("use fox", "use", "fox"),
    ],
)
def test_verbs(line: str, name: str, cluster: str | None) -> None:
    verb = parse_verb(line)
    assert (verb.name, verb.cluster) == (name, cluster)


def test_verbs_with_values() -> None:
    assert parse_verb("keep 30m").duration_s == 1800
    assert (parse_verb("keep fox 2h").cluster, parse_verb("keep fox 2h").duration_s) == ("fox", 7200)
    assert parse_verb("keep fox").duration_s is None
    logs = parse_verb("logs fox --node 1 --stream=raylet")
    assert (logs.cluster, logs.node, logs.stream) == ("fox", 1, "raylet")
    assert parse_verb("defaults -p gpu").given == {"queue": "gpu"}
    assert parse_verb("defaults --clear").clear


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lst", "%gpujob list"),
        ("--gpus 4", "%gpujob up --gpus 4"),
        ("down fox owl", "does not take 'owl'"),
        ("down --gpus 4", "no meaning for %gpujob down"),
        ("defaults --gpus 4", "no meaning for %gpujob defaults"),
        ("logs fox --node x", "--node needs a value"),
        ("connect", "not possible in this version"),
        ("fetch", "fetch what?"),
        ("fetch a fox owl", "does not take"),
        ("fetch 3", "is not the name of a variable"),
        ("doctor fox", "does not take 'fox'"),
    ],
)
def test_verbs_refused(line: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_verb(line)
    assert says in str(error.value)


def test_defaults_are_under_what_is_written_and_only_where_they_mean_something() -> None:
    defaults = {"queue": "gpu", "time": 60}
    options = parse_cell_line("--gpus 2 -t 2m", defaults=defaults)
    assert options.spec is not None
    assert (options.spec.queue, options.spec.time_s) == ("gpu", 120)
    assert parse_verb("up --gpus 2", defaults=defaults).options.spec == ClusterSpec(gpus=2, queue="gpu", time_s=60)
    assert parse_verb("down", defaults=defaults).options.spec is None


def test_help_names_every_flag() -> None:
    text = help_text()
    assert all(name in text for flag in FLAGS.values() for name in (flag.names if not flag.later else flag.names[-1:]))


@given(st.text(max_size=60))
def test_any_line_is_understood_or_refused(line: str) -> None:
    hints = []
    for parse in (parse_cell_line, parse_verb):
        try:
            parse(line)
        except UsageError as error:
            hints.append(error.hint)
    assert all(hints)


def test_retries_are_as_configured_unless_said() -> None:
    assert [parse_cell_line(f"--gpus 4 {flags}").retries for flags in ("", "--retries 0", "--retries=3")] == [None, 0, 3]
