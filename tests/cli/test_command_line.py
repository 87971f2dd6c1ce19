"""The common parts of all commands: exit statuses, error lines, help, endpoints, contexts, completion and imports."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryFile

import click
import pytest

import minka
from minka import running_playground
from minka.admin.control import Control
from minka.errors import Code, CodeInfo, MinkaError
from minka.running_playground import Playground
from minka.v1.admin_pb2 import (
    CreateKeyspaceRequest,
    CreateKeyspaceResponse,
    GetOperationsResponse,
    GetStatusResponse,
)
from minka.v1.cluster_pb2 import Durability, HashFunction, Keyspace, OperationState
from minkactl.cli import FILES, cli
from minkactl.exits import EXIT_OF_CODE, Exit, exit_of
from minkactl.survey import survey
from tests.cli.conftest import AnsweringNode, Run, make_operation, on_terminal, plain_lines
from tests.minkactl_forks import Forked, server


def test_every_named_code_is_in_the_registry() -> None:
    assert set(EXIT_OF_CODE) <= set(Code.__members__)


def test_a_denial_by_its_grpc_status(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        denial = CodeInfo("It may not.", "Ask for it.", False, status)
        monkeypatch.setattr(Code.INTERNAL, "_value_", denial)
        assert exit_of(Code.INTERNAL) == Exit.DENIED


@pytest.mark.parametrize(
    ("code", "exit_status"),
    [
        (Code.NO_CONTROLLER, 3),
        (Code.DEADLINE_EXCEEDED, 124),
        (Code.STALE_PLAN, 6),
        (Code.INVALID_ARGUMENT, 2),
        (Code.KEYSPACE_EXISTS, 1),
        (Code.NOT_ENOUGH_NODES, 1),
    ],
)
def test_an_error_is_a_line_a_remedy_and_a_status(run: Run, node: AnsweringNode, code: Code, exit_status: int) -> None:
    node.answers["CreateKeyspace"] = MinkaError(code, "the explanation of the node")
    result = run("keyspace", "create", "x", "--partitions", "3", "--timeout", "2", "--endpoints", node.address)
    assert result.exit_code == exit_status
    error, remedy = result.stderr.splitlines()
    assert error.startswith(f"error: {code.name}: ")
    assert "the explanation of the node" in error
    assert remedy == f"  remedy: {code.info.remedy}"
    assert result.stdout == ""


def test_nobody_there(run: Run, node: AnsweringNode) -> None:
    result = run("status", "--endpoints", "127.0.0.1:1", "--timeout", "3")
    assert result.exit_code == Exit.UNREACHABLE
    assert re.match(r"error: UNREACHABLE: .*127\.0\.0\.1:1.*\n  remedy: ", result.stderr)


def test_debug_shows_the_traceback(run: Run) -> None:
    assert "Traceback" not in run("status", "--endpoints", "127.0.0.1:1").stderr
    assert "Traceback" in run("status", "--endpoints", "127.0.0.1:1", "--debug").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["status", "--colour"],
        ["partitions", "--state", "asleep"],
        ["keyspace", "create", "x"],
        ["keyspace", "create", "x", "--partitions", "0"],
        ["keyspace", "create", "x", "--partitions", "3", "--ranges"],
        ["keyspace", "create", "x", "--partitions", "3", "--split-at", "b"],
        ["keyspace", "create", "x", "--partitions", "3", "--max-ops", "1000"],
        ["keyspace", "create", "x", "--ranges", "--max-ops", "0"],
        ["keyspace", "create", "x", "--ranges", "--split-at", "0xabc"],
        ["keyspace", "create", "x", "--ranges", "--split-at", "@/nowhere"],
        ["status", "--timeout", "0"],
        ["status", "--endpoints", "nowhere"],
        ["status", "--endpoints", "host:99999"],
        ["status", "--endpoints", ""],
        ["--context", "", "status"],
        ["pallet", "create", "x", "--moves-per-shard", str(2**40)],
        ["pallet", "create", "x", "--max-difference", str(2**40)],
        ["pallet", "create", "x", "--fill-limit", str(2**70)],
        ["pallet", "set", "x", "--if-version", str(2**70)],
        ["duty", "create", "x/y", "--weight", str(2**70)],
        ["kv", "put", "x", "key", "value", "--if-version", str(2**70)],
        ["kv", "increment", "x", "key", "--by", str(2**63)],
        ["operations", "show", str(2**70)],
        ["migrations", "--operation", str(2**70)],
        ["migrations", "watch", str(2**70)],
        ["partitions", "explain", "--id", str(2**40)],
        ["duties", "--limit", str(2**70)],
        ["reassign", "--limit", f"{10**15 - 1}GiB"],
        ["kv", "put", "x", "key"],
        ["kv", "load", "x", "-", "--key", "a"],
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert result.stderr.startswith("error: INVALID_ARGUMENT: ")
    assert "remedy: " in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["partitions", "--keyspace", "\udcff"],
        ["nodes", "\udcff"],
        ["drain", "\udcff"],
        ["loads", "abort", "\udcff"],
        ["operations", "cancel", "1", "--reason", "\udcff"],
        ["pallet", "create", "\udcff"],
        ["duties", "explain", "x/\udcff"],
        ["reassign", "--reason", "\udcff"],
    ],
)
def test_arguments_that_are_not_utf_8_are_refused(run: Run, node: AnsweringNode, arguments: list[str]) -> None:
    """The arguments have surrogates: Python decodes bytes of a command line that aren't UTF-8 to surrogates."""
    result = run(*arguments, "--endpoints", node.address)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert re.match(r"error: INVALID_ARGUMENT: .*'(x/)?\\udcff' is(n't UTF-8 text: .*| not UTF-8)\n", result.stderr)


@pytest.mark.parametrize(
    ("redirection", "reason"), [("> /dev/full", "No space left on device"), (">&-", "stdout is closed")]
)
@pytest.mark.parametrize("command", ["context list -o json", "help", "--version"])
def test_output_that_cannot_be_written(command: str, redirection: str, reason: str) -> None:
    script = f'"{sys.executable}" -m minkactl {command} {redirection}'
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == Exit.FAILED
    assert ended.stderr.startswith(f"error: INVALID_ARGUMENT: the output can't be written: {reason}\n")
    assert "Traceback" not in ended.stderr


def test_notes_do_not_get_into_the_output_when_stderr_is_closed(node: AnsweringNode) -> None:
    node.answers["GetOperations"] = lambda _: GetOperationsResponse()
    script = f'"{sys.executable}" -m minkactl operations watch --endpoints {node.address} <&- 2>&-'
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List the commands of the group and of its subgroups, each as a path such as ("keyspace", "create")."""
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_help_of_every_command(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    usage, _, text = result.stdout.partition("\n\n")
    assert usage.startswith(f"Usage: minkactl {' '.join(path)}")
    assert len(text.splitlines()[0]) > 15, "the first line says what the command does"
    for example in re.findall(r"^ {4}minkactl (.*)$", result.stdout, re.MULTILINE):
        assert example.split()[0] in FILES


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["staus"], "status"), (["nodse"], "nodes"), (["partition"], "partitions"), (["undrian", "x"], "undrain"),
        (["operations", "shwo"], "show"), (["context", "delte"], "delete"), (["kv", "gett"], "get"),
        (["help", "operatoins"], "operations"), (["help", "operations", "cancle"], "cancel"),
    ],
)  # fmt: skip
def test_a_mistyped_command_is_told_which_one_is_near(run: Run, typed: list[str], meant: str) -> None:
    result = run(*typed)
    assert result.exit_code == Exit.USAGE
    assert re.search(rf"did you mean .*\b{meant}\b", result.stderr), result.stderr


def test_an_unknown_command_without_a_similar_one_gets_no_suggestion(run: Run) -> None:
    assert run("zzz").stderr.startswith("error: INVALID_ARGUMENT: no command 'zzz'\n")


@pytest.mark.parametrize("path", [(), ("reassign",), ("operations",), ("operations", "cancel"), ("help",)])
def test_help_is_the_same_as_its_option(run: Run, path: tuple[str, ...]) -> None:
    assert run("help", *path).stdout == run(*path, "--help").stdout
    assert run("help", "status", "x").exit_code == Exit.USAGE


def test_version(run: Run, node: AnsweringNode) -> None:
    shown = run("version", "--endpoints", node.address)
    lines = [line.split("\t") for line in shown.stdout.splitlines()]
    assert lines[1] == ["minkactl", minka.__version__, "-"]
    assert lines[2:] == [[name, "0.1.0", "live"] for name in ("athens", "byzantium", "cyrene")]
    alone = run("version", "--endpoints", "127.0.0.1:1", "-o", "json")
    assert (alone.exit_code, json.loads(alone.stdout)) == (0, {"client": minka.__version__, "nodes": []})
    assert "not known: UNREACHABLE: " in alone.stderr


def test_one_node(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    partitions = status.table.partitions
    partitions[0].isr[:] = ["byzantium"]
    partitions[1].removing_replicas.append("athens")
    partitions[2].replicas.append("athens")
    partitions[2].adding_replicas.append("athens")
    status.table.nodes[0].zone, status.table.nodes[0].capacity_bytes = "a", 1 << 30
    found = json.loads(run("nodes", "athens", "-o", "json", "--endpoints", node.address).stdout)
    assert (found["id"], found["state"], found["zone"], found["capacity_bytes"]) == ("athens", "live", "a", 1 << 30)
    assert found["led"] == ["flights/0", "flights/3", "flights/6"]
    assert (found["not_in_sync"], found["to_delete"]) == (["flights/0", "flights/2"], ["flights/1"])
    assert found["joining"] == ["flights/2"]
    (keyspace,) = found["keyspaces"]
    assert (keyspace["replicas"], keyspace["leads"], keyspace["not_in_sync"], keyspace["to_delete"]) == (4, 3, 2, 1)
    text = "\n".join(plain_lines(on_terminal("nodes", "athens", "--endpoints", node.address).text))
    for said in ("live", "2023-11-14", node.address, "1 GiB", "0.1.0", "4 replicas, and leads 3"):
        assert said in text
    assert re.search(r"^To delete +flights/1", text, re.MULTILINE)
    piped = dict(
        line.split("\t")
        for line in run("nodes", "athens", "--endpoints", node.address).stdout.split("\n\n")[0].splitlines()
    )
    assert (piped["id"], piped["capacity_bytes"], piped["to_delete"]) == ("athens", str(1 << 30), "flights/1")
    missing = run("nodes", "athen", "--endpoints", node.address)
    assert missing.exit_code == Exit.FAILED
    assert "no node 'athen'; did you mean athens?" in missing.stderr
    for option, near in (("--node=athen", "athens"), ("--keyspace=flight", "flights")):
        assert f"did you mean {near}?" in run("partitions", option, "--endpoints", node.address).stderr


def test_the_help_groups_all_commands(run: Run) -> None:
    text = run("--help").stdout
    for title in ("See:", "Change:", "Data:", "Try:", "Set up:", "About:"):
        assert f"\n{title}\n" in text
    for name in FILES:
        assert re.search(rf"^  {name} ", text, re.MULTILINE)


def created(request: CreateKeyspaceRequest) -> CreateKeyspaceResponse:
    """Answer the request with the keyspace for which it asks."""
    keyspace = Keyspace(
        id=2, name=request.name, partition_count=request.partition_count, hash=request.hash,
        replicas=request.replicas or 3, min_insync=request.min_insync or 2,
        durability=request.durability, unclean_election=request.unclean_election,
    )  # fmt: skip
    return CreateKeyspaceResponse(keyspace=keyspace)


def test_create_a_keyspace(run: Run, node: AnsweringNode) -> None:
    node.answers["CreateKeyspace"] = created
    result = run("keyspace", "create", "legacy", "--partitions", "9", "--hash", "md5", "--endpoints", node.address)
    assert result.stdout.splitlines()[1].split("\t") == ["legacy", "9", "md5", "3", "2", "sync", "false"]
    (request,) = node.requests("CreateKeyspace")
    assert (request.hash, request.replicas, request.min_insync) == (HashFunction.HASH_FUNCTION_MD5, 0, 0)
    assert (request.durability, request.unclean_election) == (Durability.DURABILITY_SYNC, False)


def test_create_a_replicated_keyspace(run: Run, node: AnsweringNode) -> None:
    node.answers["CreateKeyspace"] = created
    result = run(
        "keyspace", "create", "fares", "--partitions", "9", "--replicas", "3", "--min-insync", "2",
        "--durability", "async", "--unclean-election", "-o", "json", "--endpoints", node.address,
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert (document["replicas"], document["min_insync"]) == (3, 2)
    assert (document["durability"], document["unclean_election"]) == ("async", True)
    (request,) = node.requests("CreateKeyspace")
    assert (request.replicas, request.min_insync, request.durability) == (3, 2, Durability.DURABILITY_ASYNC)
    assert request.unclean_election


def test_create_a_keyspace_by_ranges(run: Run, node: AnsweringNode, tmp_path: Path) -> None:
    node.answers["CreateKeyspace"] = created
    (tmp_path / "points").write_text("b\n0x64ff\nmary\n")
    for given, points in [
        (["--split-at", "b,d"], [b"b", b"d"]),
        (["--split-at", "b,0x64ff"], [b"b", b"d\xff"]),
        (["--split-at", f"@{tmp_path}/points"], [b"b", b"d\xff", b"mary"]),
        ([], []),
    ]:
        result = run("keyspace", "create", "authors", "--ranges", *given, "--endpoints", node.address)
        assert result.exit_code == 0, result.stderr
        request = node.requests("CreateKeyspace")[-1]
        assert request.HasField("ranges")
        assert list(request.ranges.split_points) == points
        assert (request.ranges.max_bytes, request.ranges.max_ops) == (0, 0)
    limits = ["--max-bytes", "1MiB", "--max-ops", "5000", "-o", "json"]
    result = run("keyspace", "create", "authors", "--ranges", *limits, "--endpoints", node.address)
    request = node.requests("CreateKeyspace")[-1]
    assert (request.ranges.max_bytes, request.ranges.max_ops) == (1 << 20, 5000)


class TestEndpoints:
    """Of these sources of the endpoints, minkactl uses the first one that is set: --endpoints, --context,
    MINKA_ENDPOINTS, the current context, the playground, the default.
    """

    def show(self, run: Run, *arguments: str) -> list[str]:
        result = run("context", "show", *arguments)
        assert result.exit_code == 0, result.stderr
        *found, tls = result.stdout.splitlines()[1].split("\t")
        assert tls == "-"
        return list(found)

    def test_the_order(self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert self.show(run) == ["default", "127.0.0.1:7400"]
        control_socket = tmp_path / "control.sock"
        control_socket.touch()
        running_playground.write(Playground(os.getpid(), str(control_socket), ("127.0.0.1:1234",)))
        assert self.show(run) == ["playground", "127.0.0.1:1234"]
        assert "(using the playground)" in run("context", "show").stderr
        run("context", "set", "prod", "a:1,b:2")
        run("context", "set", "test", "c:3")
        assert self.show(run) == ["context prod", "a:1,b:2"]
        monkeypatch.setenv("MINKA_ENDPOINTS", "d:4 e:5")
        assert self.show(run) == ["MINKA_ENDPOINTS", "d:4,e:5"]
        assert self.show(run, "--context", "test") == ["context test", "c:3"]
        assert self.show(run, "--context", "test", "--endpoints", "f:6") == ["--endpoints", "f:6"]

    def test_files_of_a_killed_playground_do_not_count(self, run: Run, tmp_path: Path) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        (tmp_path / "control.sock").touch()
        running_playground.write(Playground(ended.pid, str(tmp_path / "control.sock"), ("127.0.0.1:1234",)))
        assert self.show(run) == ["default", "127.0.0.1:7400"]
        running_playground.path().write_text("{")
        assert self.show(run) == ["default", "127.0.0.1:7400"]

    def test_contexts(self, run: Run, tmp_path: Path) -> None:
        assert run("context", "set", "prod", "a:1,b:2").exit_code == 0
        assert run("context", "set", "test", "c:3").exit_code == 0
        assert run("context", "use", "test").exit_code == 0
        assert run("context", "list").stdout.splitlines()[1:] == ["-\tprod\ta:1,b:2\t-", "*\ttest\tc:3\t-"]
        path = tmp_path / "config" / "minka" / "config.yaml"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [entry.name for entry in path.parent.iterdir()] == ["config.yaml"]
        missing = run("context", "use", "prd")
        assert missing.exit_code == Exit.FAILED
        assert "error: UNKNOWN_CONTEXT: " in missing.stderr
        assert "prod, test" in missing.stderr

    def test_tls_goes_with_where_the_endpoints_come_from(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def tls(*arguments: str) -> dict[str, str] | None:
            found: dict[str, str] | None = json.loads(run("context", "show", "-o", "json", *arguments).stdout)["tls"]
            return found

        path = tmp_path / "config" / "minka" / "config.yaml"
        path.parent.mkdir(parents=True)
        files = {"ca": "/p/ca.pem", "cert": "/p/me.pem", "key": "/p/me.key"}
        contexts = {"prod": {"endpoints": ["a:1"], "tls": files}, "test": {"endpoints": ["b:2"]}}
        path.write_text(json.dumps({"current": "prod", "contexts": contexts}))
        assert tls() == files
        assert run("context", "list").stdout.splitlines()[1] == "*\tprod\ta:1\t/p/ca.pem,/p/me.pem,/p/me.key"
        run("context", "set", "prod", "a:1,c:3")
        assert tls() == files, "the TLS files stay when the endpoints change"
        for name in files:
            monkeypatch.setenv(f"MINKA_TLS_{name.upper()}", f"/e/{name}")
        environment = {name: f"/e/{name}" for name in files}
        assert (tls(), tls("--context", "test"), tls("--endpoints", "d:4")) == (files, None, environment)
        monkeypatch.delenv("MINKA_TLS_KEY")
        refused = run("context", "show", "--endpoints", "d:4")
        assert refused.exit_code == Exit.USAGE
        assert "MINKA_TLS_KEY is missing" in refused.stderr
        run("context", "set", "prod", "a:1", "--no-tls")
        assert tls() is None

    def test_unusable_files_of_tls(self, run: Run, tmp_path: Path) -> None:
        assert run("context", "set", "prod", "a:1", "--tls-ca", "ca.pem").exit_code == Exit.USAGE
        for name in ("ca", "cert", "key"):
            (tmp_path / name).write_text("nothing")
        files = [f"--tls-{name}={tmp_path / name}" for name in ("ca", "cert", "key")]
        refused = run("context", "set", "prod", "a:1", *files)
        assert refused.exit_code == Exit.USAGE
        assert f"tls.ca: {tmp_path}/ca: holds no certificate" in refused.stderr
        assert run("context", "list", "-o", "name").stdout.strip() == ""

    def test_delete(self, run: Run) -> None:
        run("context", "set", "prod", "a:1")
        run("context", "set", "test", "b:2")
        assert run("context", "delete", "tst").exit_code == Exit.FAILED
        deleted = run("context", "delete", "prod")
        assert deleted.exit_code == 0
        assert "it was the current one; there is none now: minkactl context use test" in deleted.stderr
        assert run("context", "list").stdout.splitlines()[1:] == ["-\ttest\tb:2\t-"]
        assert self.show(run) == ["default", "127.0.0.1:7400"]

    @pytest.mark.parametrize(
        "content",
        [
            "contexts: [", "- 1", "contexts: {a: b:1}", "contexts: {a: {endpoints: [b]}}", "contexts: 7", "\x00",
            "contexts: {a: {endpoints: [b:1], tls: {ca: /c}}}",
            "contexts: {a: {endpoints: [b:1], tls: {ca: c, cert: /c, key: /k}}}",
            'contexts: {a: {endpoints: [b:1], tls: {ca: "/c\\0", cert: /c, key: /k}}}',
        ],
    )  # fmt: skip
    def test_a_mistake_in_the_file(self, run: Run, tmp_path: Path, content: str) -> None:
        path = tmp_path / "config" / "minka" / "config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(content)
        result = run("status")
        assert result.exit_code == Exit.USAGE
        assert str(path) in result.stderr
        assert result.stderr.startswith("error: INVALID_CONFIG: ")


class TestCompletion:
    """The words that a shell offers when a person presses the Tab key."""

    def complete(self, words: str, *, environ: dict[str, str] | None = None) -> tuple[list[str], str]:
        shell = {"_MINKACTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err, Path(os.devnull).open() as nothing:
            streams = [one.fileno() for one in (nothing, out, err)]
            Forked(server(), [], os.environ | shell | (environ or {}), streams).wait()
            out.seek(0)
            err.seek(0)
            return [line.partition(",")[2] for line in out.read().splitlines() if line], err.read()

    def test_live_names(self, node: AnsweringNode) -> None:
        there = f"--endpoints {node.address}"
        assert self.complete(f"minkactl partitions {there} --node ") == (["athens", "byzantium", "cyrene"], "")
        assert self.complete(f"minkactl partitions {there} --node by") == (["byzantium"], "")
        assert self.complete(f"minkactl kv count {there} fl") == (["flights"], "")
        assert self.complete(f"minkactl reassign {there} --to athens,by") == (["athens,byzantium"], "")
        environ = {"MINKA_ENDPOINTS": node.address}
        assert self.complete("minkactl partitions locate ", environ=environ) == (["flights"], "")
        assert self.complete("minkactl keyspace map ", environ=environ) == (["flights"], "")
        assert self.complete("minkactl partitions explain ", environ=environ)[0] == [f"flights/{n}" for n in range(9)]
        assert self.complete("minkactl split flights --partition flights/3", environ=environ)[0] == ["flights/3"]
        assert self.complete("minkactl nodes c", environ=environ) == (["cyrene"], "")

    def test_operations(self, node: AnsweringNode) -> None:
        ended = make_operation(OperationState.OPERATION_STATE_SUCCEEDED, finished_ms=1)
        running = make_operation(OperationState.OPERATION_STATE_RUNNING)
        running.id = 113
        node.answers["GetOperations"] = GetOperationsResponse(operations=[running, ended])
        environ = {"MINKA_ENDPOINTS": node.address}
        assert self.complete("minkactl operations show ", environ=environ) == (["113", "12"], "")
        assert self.complete("minkactl migrations --operation 12", environ=environ) == (["12"], "")
        assert self.complete("minkactl operations cancel ", environ=environ) == (["113"], "")

    def test_commands_and_contexts(self, run: Run) -> None:
        run("context", "set", "prod", "a:1")
        assert self.complete("minkactl parti") == (["partitions"], "")
        assert self.complete("minkactl context use p") == (["prod"], "")
        assert self.complete("minkactl context delete p") == (["prod"], "")
        assert self.complete("minkactl help operations ca") == (["cancel"], "")
        assert self.complete("minkactl status -o j") == (["json"], "")

    def test_an_unreachable_cluster_is_silence_and_soon(self) -> None:
        assert self.complete("minkactl kv count ", environ={"MINKA_ENDPOINTS": "127.0.0.1:1"}) == ([], "")
        assert self.complete("minkactl kv count ", environ={"MINKA_ENDPOINTS": "nonsense"}) == ([], "")
        # An address of TEST-NET-1: no machine has it, so the attempt to connect gets no answer, not even a refusal.
        assert self.complete("minkactl kv count ", environ={"MINKA_ENDPOINTS": "192.0.2.1:7400"}) == ([], "")
        assert self.complete("minkactl operations show ", environ={"MINKA_ENDPOINTS": "127.0.0.1:1"}) == ([], "")

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_scripts(self, run: Run, shell: str) -> None:
        result = run("completion", shell)
        assert result.exit_code == 0
        assert "_MINKACTL_COMPLETE" in result.stdout


def imported(*arguments: str, environ: dict[str, str] | None = None) -> set[str]:
    """Run minkactl. Returns the names of all modules that it imports, and the names of their top-level packages."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "minkactl", *arguments],
        env=os.environ | (environ or {}), capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    names = re.findall(r"^import time:.*\|\s+(\S+)$", ended.stderr, re.MULTILINE)
    assert "click" in names
    return {name.split(".")[0] for name in names} | set(names)


HEAVY = {"rich", "yaml", "grpc", "google.protobuf", "asyncio", "mmh3", "msgspec"}


def test_help_imports_nothing_heavy() -> None:
    assert not imported("--help") & HEAVY
    assert not imported("reassign", "--help") & HEAVY
    assert not imported("kv", "load", "--help") & HEAVY


# The import of each of these modules takes some milliseconds, so `minkactl status` must not import them.
NOT_FOR_STATUS = {
    *("pathlib", "urllib", "ipaddress", "tempfile", "shutil", "random", "getpass", "minka.async_client"),
    *("minka.admin.admin_client", "minka.admin.cluster_rows", "minka.admin.operation_rows"),
}


def test_status_imports_only_what_the_call_needs(node: AnsweringNode, tmp_path: Path) -> None:
    names = imported("status", "--endpoints", node.address, environ={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert {"grpc", "minkactl.problems"} <= names
    assert names & (HEAVY - {"grpc", "google.protobuf", "asyncio"} | NOT_FOR_STATUS) == set()


def test_a_survey_goes_on_with_other_work_while_the_nodes_are_asked(node: AnsweringNode) -> None:
    was_asked = threading.Event()

    def describe(_: object) -> MinkaError:
        was_asked.set()
        return MinkaError(Code.INTERNAL, "the node fails to describe itself")

    node.answers["DescribeNode"] = describe
    with Control([node.address]) as control:
        seen: list[bool] = []
        survey(control, lambda: seen.append(was_asked.wait(10)))
    assert seen == [True]


def test_nothing_of_the_daemon() -> None:
    assert not [name for name in imported("playground", "list") if name.startswith("minkad")]
