import json
import os
from pathlib import Path

import pytest

from benchmarks.measure import Goal, Options, Report, Sample, aligned, percentile, sample_of, shown
from benchmarks.peers import etcd_status, redis_sample
from benchmarks.processes import Group
from benchmarks.reassign import buckets_of, quantile


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report("bench", Options(quick=False, json=tmp_path / "figures"))


def test_a_percentile_is_the_smallest_value_that_covers_the_share() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 50) == 7
    assert percentile([1.0, 2.0, 3.0], 50) == 2
    assert percentile([], 50) is None


def test_rate_and_latencies_of_a_sample() -> None:
    sample = sample_of(200, 4.0, [0.3, 0.1, 0.2], processes=2)
    assert sample == Sample(50.0, 0.2, 0.3, 0.3, {"processes": 2})


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (56.78, "56.8"), (0.1234, "0.123"), (7.0, "7")])
def test_values_as_text(value: float, text: str) -> None:
    assert shown(value) == text


def test_goals() -> None:
    assert Goal(ratio=3).met(30, 10) is True
    assert Goal(ratio=3).met(29, 10) is False
    assert Goal(ratio=3).met(30, None) is None
    assert Goal(at_most=20).met(19.9, None) is True
    assert Goal(at_most=20).met(20, None) is False


def test_median_of_rounds_in_table_and_json(report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = report.case("put", "keys/s", "redis", Goal(ratio=2))
    for value in (100.0, 300.0, 200.0):
        report.add(case, "minka", Sample(value, 0.001, 0.002, 0.003, {"syncs": 0.5}))
        report.add(case, "redis", Sample(value / 4))
    report.finish()
    table = capsys.readouterr().out
    assert "put" in table
    assert 0 < float(table.split("processors ")[1].split(" before")[0]) <= (os.cpu_count() or 1)
    assert " ".join(table.splitlines()[3].split()) == "put keys/s 200 1/2 redis 50 4.00x >= 2x met syncs 0.5"
    own, peer = map(json.loads, (tmp_path / "figures").read_text().splitlines())
    assert (
        own.items() >= {"system": "minka", "value": 200.0, "all": [100, 300, 200], "p99_ms": 2.0, "ratio": 4.0}.items()
    )
    assert own["met"] is True
    assert own["syncs"] == 0.5
    assert peer.items() >= {"system": "redis", "value": 50.0}.items()


def test_the_report_names_the_package_of_a_missing_peer(report: Report, tmp_path: Path) -> None:
    report.absent["etcd"] = "not installed; on Debian: apt-get install etcd-server"
    report.add(report.case("put", "keys/s", "etcd", Goal(ratio=1)), "minka", Sample(1.0))
    lines = list(report.lines())
    assert "not installed" in lines[2]
    assert "etcd: not installed; on Debian: apt-get install etcd-server" in lines
    assert [figure.get("absent") for figure in report.figures()] == [None, report.absent["etcd"]]


def test_redis_benchmark_output() -> None:
    head = '"test","rps",' + ",".join(f'"{name}_latency_ms"' for name in ("avg", "min", "p50", "p95", "p99", "max"))
    noise = "Cluster has 3 master nodes:\n\nMaster 0: abc 127.0.0.1:7000\n\n"
    sample = redis_sample(noise + head + '\n"SET","160000.50","1.5","0.2","1.2","2.5","3.5","4.5"\n')
    assert sample.value == 160000.5
    assert [sample.p50_s, sample.p99_s, sample.max_s] == pytest.approx([0.0012, 0.0035, 0.0045])
    with pytest.raises(RuntimeError, match="Could not connect"):
        redis_sample("Could not connect to Redis\n")


def test_etcd_status_output() -> None:
    def member(endpoint: str, own: int) -> dict[str, object]:
        header = {"cluster_id": 9, "member_id": own, "revision": 12}
        return {"Endpoint": endpoint, "Status": {"header": header, "leader": 2}}

    printed = json.dumps([member("127.0.0.1:1", 1), member("http://127.0.0.1:2", 2)])
    assert etcd_status(printed) == [("127.0.0.1:1", False, 12), ("127.0.0.1:2", True, 12)]


def test_histogram_from_metrics_and_its_quantiles() -> None:
    text = 'h_bucket{le="0.01"} 50.0\nh_bucket{le="0.02"} 100.0\nh_bucket{le="+Inf"} 100.0\nh_bucket_other{le="1"} 7\n'
    buckets = buckets_of(text, "h_bucket")
    assert buckets == {0.01: 50, 0.02: 100, float("inf"): 100}
    assert quantile(buckets, 0.5) == pytest.approx(0.01)
    assert quantile(buckets, 0.99) == pytest.approx(0.0198)
    assert quantile({0.01: 0, float("inf"): 3}, 0.5) == 0.01
    with pytest.raises(RuntimeError, match="nothing"):
        quantile({0.01: 0, float("inf"): 0}, 0.5)


def test_columns_are_aligned() -> None:
    assert list(aligned([("case", "x"), ("a", "1,000"), ("bb", "")])) == ["case  x", "a     1,000", "bb"]


def test_all_processes_of_a_group_end_with_it() -> None:
    with Group("test") as group:
        talk = group.start_talking("cat", ["cat"])
        talk.say({"a": 1})
        assert talk.hear() == {"a": 1}
        process = group.start("sleep", ["sleep", "600"])
        directory = group.directory
    assert process.returncode is not None
    assert not directory.exists()


def test_the_error_about_a_process_that_ends_early_has_its_log() -> None:
    with Group("test") as group:
        talk = group.start_talking("talker", ["sh", "-c", "echo out of luck >&2"])
        with pytest.raises(RuntimeError, match="out of luck"):
            talk.hear()
