"""What launch scripts start, as a shell would: variables, arrays, conditions, functions; and nothing is run."""

import random

import pytest
from megatron_jobs import LLAMA

from joulecast.errors import InputError
from joulecast.simulator.job_files.shell import read_script
from joulecast.simulator.job_files.shell_values import marks


def words(text, **given):
    return [[word.text for word in command.words] for command in read_script(text, "a.sh", given).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a \\\n  b # c d\n", [["run", "a", "b"]]),
        ("A=1 B=2\nrun $A ${B} \"$A $B\" '$A' \\$A", [["run", "1", "2", "1 2", "$A", "$A"]]),
        ("A='x y'\nrun $A \"$A\" p$A", [["run", "x", "y", "x y", "px", "y"]]),
        ('A=(x "y z" # w\n v)\nrun ${A[@]} -- "${A[@]}"', [["run", "x", "y", "z", "v", "--", "x", "y z", "v"]]),
        ("A=(x)\nA+=(y)\nA+=( ${A[@]} )\nrun ${A[*]} ${A[1]} ${A}", [["run", "x", "y", "x", "y", "y", "x"]]),
        ("A=x\nA+=y\nrun $A", [["run", "xy"]]),
        ("declare -A M=([a]=1 ['b c']=2)\nK='b c'\nrun ${M[a]} ${M[$K]} ${M[d]:-3}", [["run", "1", "2", "3"]]),
        ("A=(x y z)\nfor i in 1; do run ${A[$i]} ${A[i-1]} ${A[-1]}; done", [["run", "y", "x", "z"]]),
        ("A=(x y)\nrun ${A[$I]}", [["run", "\1I\3"]]),
        ('A=()\nrun --n 1 "$@" "${@}" "${A[@]}" "$*" x"$@"', [["run", "--n", "1", "", "x"]]),
        ("run ${A:-4} ${A-5} ${B:=6} $B ${B:+7}", [["run", "4", "5", "6", "6", "7"]]),
        ("run $((2 * (3 + 4) / 2 - 1)) $((N % 3))", [["run", "6", "2"]]),
        ('run $(expr 16 / 4) $(expr $N \\* 2) $( expr "${N}" + 1 )', [["run", "4", "16", "9"]]),
        ("if [ $N -gt 4 ]; then run big; elif [ $N = 4 ]; then run four; else run small; fi", [["run", "big"]]),
        ('if [[ "$X" == fp* && $N -ne 3 ]]; then run; fi', [["run"]]),
        ('if [ -z "$U" ] || [ -n "$N" ]; then run; fi', [["run"]]),
        ("if ! [ -n $U ]; then run; else other; fi", [["run"]]),
        ('if [ ! -n "$U" ]; then run; else other; fi', [["run"]]),
        ('if [ ! -n "$N" ]; then run; else other; fi', [["other"]]),
        ('if [[ ! "$X" == bf16 && ! $N -lt 8 ]]; then run; fi', [["run"]]),
        ("[ $N = 8 ] && run yes || run no", [["run", "yes"]]),
        ("[ $N = 9 ] && run yes || run no", [["run", "no"]]),
        ("case $X in bf16) run a;; fp8|fp4) run b;; *) run c;; esac", [["run", "b"]]),
        ("case $X in\n  bf16)\n run a\n;;\n *)\n run c\n ;;\nesac", [["run", "c"]]),
        ("f() {\n run in\n}\nf; run out", [["run", "in"], ["run", "out"]]),
        ("function f {\n run in\n}\nf", [["run", "in"]]),
        (
            'f() { local a=$1; shift; run $a $# "$@" "${2:-z}" "${@:2}"; }\nf 1 "x y" 3\nf 4',
            [["run", "1", "2", "x y", "3", "3", "3"], ["run", "4", "0", "z"]],
        ),
        (
            'g() { run "$1" "$*"; }\nf() { g "$2"; run $1; }\nf a b; run ${1:-c}',
            [["run", "b", "b"], ["run", "a"], ["run", "c"]],
        ),
        ('C="run a"\neval $C b', [["run", "a", "b"]]),
        ('C="run a"\n$C b > log 2>&1 &', [["run", "a", "b"]]),
        (
            'A=7\nsrun -N2 bash -c "run $A; run b"; bash -c run',
            [["srun", "-N2", "run", "7"], ["srun", "-N2", "run", "b"], ["run"]],
        ),
        ("while [[ $# -gt 0 ]]; do A=$1; shift; done\nA=${A:-3}\nrun $A", [["run", "3"]]),
        ("cat <<EOF\nrun not $(\nEOF\nrun", [["run"]]),
        ("read -r -d '' A <<EOF\n  a --n $N \\\n  --b\nEOF\nrun $A", [["run", "a", "--n", "8", "--b"]]),
        ("read -rd '' A <<'EOF'\na $N\nEOF\nrun $A", [["run", "a", "$N"]]),
        ("read A <<EOF\na\nb\nEOF\nrun", [["run"]]),
        ("(cd x && run a) | tee log", [["run", "a"], ["tee", "log"]]),
        ("echo run; printf run", []),
        ("for i in 1 b; do run $i; done", [["run", "1"], ["run", "b"]]),
        ("L='x y'; for i in $L {2..4} {p,q}; do A+=$i; done; run $A", [["run", "xy234pq"]]),
        ('A=(x y)\nfor i in "${A[@]}"\ndo\nrun $i\ndone', [["run", "x"], ["run", "y"]]),
        ("for i; do run $i; done; for i in $@; do run $i; done", []),
        ("((N > 4)) && run", [["run"]]),
    ],
)
def test_commands_are_those_that_a_shell_would_start(text, expected):
    assert words(text, N="8", X="fp8") == expected


def test_what_only_a_run_tells_stays_marked():
    (command,) = words("A=$(nproc)\nwhile read i; do B=$i; done\nif [ -f x ]; then C=1; fi\nrun $A $B $C $D")
    told = [marks(word) for word in command[1:]]
    assert told[0] == ["$(nproc)"] and told[3] == ["D"]
    assert told[1][0].startswith("$B, which line 2 sets") and told[2][0].startswith("$C, which line 3 sets")


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        ("for f in *.yaml; do run $f; done", ["$f, over which line 1 goes"]),
        ("for f in $(ls); do run $f; done", ["$f, over which line 1 goes"]),
        ("for f in $LIST; do run $f; done", ["$f, over which line 1 goes"]),
        ("n=0; while true; do n=$((n + 1)); run $n; done", ["$n, which line 1 sets under a condition"]),
        ("for ((i = 0; i < 3; i++)); do run $i; done", ["i"]),
        ("until [ -f x ]; do n=2; done; run $n", ["$n, which line 1 sets under a condition"]),
        ("until [ -f x ]; do n=2; run $n; done", []),
    ],
)
def test_a_loop_of_which_only_a_run_knows_the_turns_is_followed_once(loop, told):
    (command,) = words(loop)
    assert command[0] == "run" and len(command) == 2
    assert [mark[: len(start)] for mark, start in zip(marks(command[1]), told, strict=True)] == told


def test_loops_without_end_are_refused():
    nested = "".join(f"for i{n} in {{1..20}}; do " for n in range(4)) + "run; " + "done; " * 4
    with pytest.raises(InputError, match="more turns than a job's"):
        words(nested)


def test_a_command_has_its_environment_and_lines():
    script = read_script("export A=1\nB=2 run \\\n  x\n", "a.sh", {})
    (command,) = script.commands
    assert dict(command.environment) == {"A": "1", "B": "2"}
    assert [word.line for word in command.words] == [2, 3]


def test_slurms_own_options_set_its_variables():
    text = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nrun $SLURM_NNODES $SLURM_GPUS_ON_NODE"
    assert words(text) == [["run", "4", "8"]]


def test_nothing_of_a_script_is_run(tmp_path):
    victim = tmp_path / "victim"
    words(f"touch {victim}\nA=$(touch {victim})\nrun $A `touch {victim}` ${{B:=$(touch {victim})}}")
    assert not victim.exists()


@pytest.mark.parametrize(
    "text",
    ["f() {\n f\n}\nf", "A=eval\neval $A $A", "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 40 + "run $A", "run $((9**9**9))"],
)
def test_scripts_without_end_end(text):
    try:
        words(text)
    except InputError as error:
        assert "\n" not in str(error)


def test_damaged_scripts_are_read_or_refused_in_one_line():
    chance = random.Random(5)
    for _ in range(400):
        text = list(LLAMA)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 3)] = chance.choices("()[]{}$\"'`\\\n;&|<>= ab1#", k=chance.randint(0, 3))
        try:
            words("".join(text))
        except InputError as error:
            assert "\n" not in str(error) and "a.sh:" in str(error)


def sourced(tmp_path, text, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.sh").write_text(content, encoding="utf-8")
    script = read_script(text, str(tmp_path / "main.sh"), {})
    return [[(word.text, word.line) for word in command.words] for command in script.commands], script.absent


@pytest.mark.parametrize(
    "path",
    [
        "env.sh",
        "./env.sh",
        '"$(dirname "$0")/env.sh"',
        '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/env.sh"',
        "$PWD/env.sh",
    ],
)
def test_scripts_that_are_read_are_followed(tmp_path, path):
    found, absent = sourced(tmp_path, f"A=1\nsource {path}\nrun $A $B", env="# sizes\n\nA=$((A + 1))\nexport B=x\n")
    assert found == [[("run", 3), ("2", 3), ("x", 3)]]
    assert absent == {}


def test_lines_of_a_script_that_is_read_are_where_it_is_read(tmp_path):
    text = 'D=$(dirname $0)\n\n. $D/one.sh\nrun "${ARGS[@]}"'
    found, _ = sourced(tmp_path, text, one="\n\n\n. two.sh\n", two="ARGS=(\n--a 1\n)\n")
    assert found == [[("run", 4), ("--a", 3), ("1", 3)]]


def test_scripts_that_are_not_there_are_noted_unless_they_are_the_machines(tmp_path):
    text = "source env.sh\nsource ~/.bashrc\nsource .venv/bin/activate\n. /etc/profile\nsource $HOME/x.sh\nrun"
    found, absent = sourced(tmp_path, text)
    assert found == [[("run", 6)]]
    assert absent == {"env.sh": 1}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"one": "source one.sh\n"}, r"main.sh:2: the scripts .* without end"),
        ({"one": ". two.sh\n. two.sh\n", "two": ". one.sh\n. one.sh\n"}, "without end"),
        ({"one": "A='x\n"}, r"one.sh:1: ' is not closed"),
        ({"one": "if true; then\n"}, "has no 'fi'"),
    ],
)
def test_bad_scripts_that_are_read(tmp_path, files, message):
    with pytest.raises(InputError, match=message):
        sourced(tmp_path, "run a\nsource one.sh\n", **files)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("bash job.sh 4 x", ["run", "4", "x", "2", "e"]),
        ("bash -x ./job.sh 4 --n", ["run", "4", "--n", "2", "e"]),
        ('"$(dirname "$0")"/job.sh', ["run", "7", "2", "e"]),
        ("B=8 bash job.sh | tee log", ["run", "7", "8", "e"]),
        ("srun -n 2 bash job.sh 4", ["srun", "-n", "2", "bash", "run", "4", "2", "e"]),
        ("sbatch --nodes 3 -p long job.sh 4", ["run", "4", "2", "e", "3"]),
    ],
)
def test_scripts_that_are_started_are_followed_with_what_they_are_called_with(tmp_path, start, expected):
    job = "#SBATCH -N 2\nrun ${1:-7} $2 ${B:-2} $E ${A:+wrong} ${SLURM_NNODES}\nC=9\n"
    text = f"A=1\nC=5\nexport E=e\n{start}\nrun $C\n"
    found, _ = sourced(tmp_path, text, job=job)
    first, *_, last = ([word for word, _ in command] for command in found)
    assert [word for word in first if not marks(word)] == expected
    assert {line for _, line in found[0] if line != 1} == {4}
    assert last == ["run", "5"]  # what a script sets is its own


def test_a_script_that_starts_itself_or_what_is_not_there(tmp_path):
    found, _ = sourced(tmp_path, "bash main.sh\nbash away.sh 1\npython run.py bash job.sh\n", main="run\n", job="other")
    assert [[word for word, _ in command] for command in found] == [
        ["bash", "main.sh"],
        ["bash", "away.sh", "1"],
        ["python", "run.py", "bash", "job.sh"],
    ]
    endless = {"job": "bash one.sh\n", "one": "bash two.sh; bash two.sh\n", "two": "bash one.sh; run\n"}
    assert len(sourced(tmp_path, "bash job.sh", **endless)[0]) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sbatch <<EOT\n#!/bin/bash\n#SBATCH --nodes=$N\nrun \\$SLURM_NNODES $N \\\n  $A\nEOT", ["run", "8", "8", "a"]),
        ("sbatch -N 2 <<'EOT'\n#SBATCH --nodes=3\nrun $SLURM_NNODES ${A:-unset}\nEOT", ["run", "2", "unset"]),
        ("cat <<-EOT | sbatch\n\trun $A\n\tEOT", ["run", "a"]),
        ("bash <<EOT\nrun $A\nEOT", ["run", "a"]),
        ('sbatch -N 2 --gres=gpu:4 --wrap="srun run $A \\$SLURM_GPUS_ON_NODE"', ["srun", "run", "a", "4"]),
        ("sbatch -N2 --wrap 'run $SLURM_NNODES'", ["run", "2"]),
        ("cat > l.sh <<'EOF'\nrun $1\nEOF\nsrun -n 4 ./l.sh $A", ["srun", "-n", "4", "run", "a"]),
        ("f() {\nsbatch <<EOT\nrun $1\nEOT\n}\nf 1", ["run", "1"]),
    ],
)
def test_texts_that_are_submitted_are_followed(text, expected):
    assert [command for command in words(f"A=a\n{text}", N="8") if "run" in command] == [expected]


@pytest.mark.parametrize("start", ["bash job.sh --tp 4 -f x", "sbatch job.sh -f x --tp=no --tp 4"])
@pytest.mark.parametrize(
    "loop", ["while [[ $# -gt 0 ]]; do", 'while [ -n "$1" ] && [ $# -ge 1 ]; do', "until [ $# -eq 0 ]; do"]
)
def test_loops_over_arguments_take_them(tmp_path, start, loop):
    job = (
        f"TP=1\n{loop}\ncase $1 in\n--tp) TP=$2; shift 2 ;;\n-f) F=$2; shift 2 ;;\n*) shift ;;\nesac\ndone\nrun $TP $F"
    )
    found, _ = sourced(tmp_path, start, job=job)
    assert [word for word, _ in found[-1]] == ["run", "4", "x"]
    assert sourced(tmp_path, f"{loop}\ncase $1 in\n*) echo ;;\nesac\ndone\nrun", job="")[0][-1][-1][0] == "run"


@pytest.mark.parametrize(
    ("start", "expected"), [("bash job.sh", ["2", "0"]), ("bash job.sh -n 4 -d -g8 -- rest", ["4", "8"])]
)
def test_getopts_takes_a_scripts_options(tmp_path, start, expected):
    job = 'N=2\nwhile getopts "n:dg:" o; do\ncase "$o" in\nn) N=$OPTARG ;;\ng) G=$OPTARG ;;\nesac\ndone\nrun $N ${G:-0}'
    assert [word for word, _ in sourced(tmp_path, start, job=job)[0][-1]] == ["run", *expected]
    assert words(job)[-1] == ["run", "2", "0"]


@pytest.mark.parametrize(
    "counted",
    [
        '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l)',
        "`scontrol show hostname $SLURM_JOB_NODELIST | wc -l`",
        "${#nodes[@]}",
        "${#again[*]}",
    ],
)
def test_the_nodes_of_a_job_are_counted(counted):
    text = "#SBATCH --nodes=3 --ntasks-per-node=2\nnodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\n"
    assert words(f"{text}again=($nodes)\nA=(a b)\nrun {counted} ${{#A[@]}} $SLURM_NTASKS")[-1] == ["run", "3", "2", "6"]
    head = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    assert marks(words(f"{text}A=({head})\nrun ${{#A[@]}}")[-1][1])
