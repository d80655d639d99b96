#!/usr/bin/env python3
"""Runs the tests of published projects outside and inside `leasehold run` and compares every result.

    compare.py --leasehold target/release/leasehold --work DIR [PROJECT...]

Sources and what the tests need come through pip, npm and cargo and stay in DIR, where a second run finds
them. The sandbox has its default settings, no network among them. The exit status is 1 when a test's
result differs.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
# One line of output that tells a test's result.
PATTERNS = {
    "pytest": re.compile(r"^(?P<name>\S+::.+?) (?P<result>PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b", re.M),
    "tap": re.compile(
        r"^ *(?P<result>(?:not )?ok) \d+ *-? *(?P<name>[^\n]*?)(?: # (?P<note>SKIP|TODO)[^\n]*| # time=\S+)?$", re.M
    ),
    "libtest": re.compile(r"^test (?P<name>\S.*?) \.\.\. .*?(?P<result>ok|FAILED|ignored)\b", re.M),
}


def call(command, directory):
    """Runs a command that must succeed."""
    subprocess.run(command, cwd=directory, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def unpack(archive, source):
    source.mkdir()
    call(["tar", "xf", archive, "--strip-components=1", "--no-same-owner", "-C", source], None)


def prepare_pypi(name, project, directory, source):
    pinned = f"{name}=={project['version']}"
    call(["pip", "download", "-q", "--no-binary", name, "--no-deps", pinned], directory)
    unpack(next(directory.glob("*.tar.gz")), source)
    call(["python3", "-m", "venv", ".venv"], source)
    call([".venv/bin/pip", "install", "-q", *project["requirements"], "wheel", "-e", "."], source)


def prepare_npm(name, project, directory, source):
    call(["npm", "pack", "--silent", f"{name}@{project['version']}"], directory)
    unpack(next(directory.glob("*.tgz")), source)
    # The package's own development dependencies hold linters and browsers that no test needs.
    call(["npm", "pkg", "delete", "devDependencies"], source)
    flags = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"]
    call(["npm", "install", "--silent", *flags, *project["requirements"]], source)


def prepare_crate(name, project, directory, source):
    manifest = f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\n{name} = "={project["version"]}"\n[workspace]\n'
    (directory / "Cargo.toml").write_text(manifest)
    (directory / "src").mkdir()
    (directory / "src/lib.rs").touch()
    call(["cargo", "fetch", "--quiet"], directory)
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    shutil.copytree(next(home.glob(f"registry/src/*/{name}-{project['version']}")), source)
    with (source / "Cargo.toml").open("a") as manifest:
        manifest.write("\n[workspace]\n")
    call([*shlex.split(project["command"].replace("--offline ", "")), "--no-run", "--quiet"], source)


PREPARE = {"pypi": prepare_pypi, "npm": prepare_npm, "crates.io": prepare_crate}


def results(project, source, log, prefix):
    """How often each test ended in each way."""
    # Pipes on both sides: programs and their tests notice what their streams are.
    # A temporary directory of its own, as the sandbox has one: others leave things in the shared one.
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    process = subprocess.Popen(
        [*prefix, "sh", "-c", project["command"]],
        cwd=source,
        env={**os.environ, "TMPDIR": scratch.name},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    process.stdin.close()
    with concurrent.futures.ThreadPoolExecutor() as reader:
        output = reader.submit(process.stdout.read)
        process.wait()
        # Outside, some suites leave processes behind that hold the pipe open for ever.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        log.write_bytes(output.result())
    scratch.cleanup()
    text = log.read_bytes().decode(errors="replace")
    found = collections.Counter()
    for match in PATTERNS[project["results"]].finditer(text):
        note = match.groupdict().get("note")
        found[match["name"], note or match["result"]] += 1
    return found


def summary(found):
    totals = collections.Counter()
    for (_, result), count in found.items():
        totals[result] += count
    return ", ".join(f"{count} {result}" for result, count in sorted(totals.items())) or "no results"


def compare(name, project, work, leasehold):
    directory = work / name
    source = directory / "source"
    if not (directory / "ready").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        PREPARE[project["registry"]](name, project, directory, source)
        (directory / "ready").touch()

    def both():
        outside = results(project, source, directory / "outside.log", [])
        inside = results(project, source, directory / "inside.log", [leasehold, "run", "--quiet", "--"])
        return outside, inside

    outside, inside = both()
    differing = {test for test, _ in set(outside - inside) | set(inside - outside)}
    print(f"{name} {project['version']}\n  outside: {summary(outside)}\n  inside:  {summary(inside)}")
    if differing:
        # Many suites have tests that a busy machine fails; a real difference is there again.
        first = differing
        outside, inside = both()
        differing = {test for test, _ in set(outside - inside) | set(inside - outside)} & first
        for test in sorted(first - differing):
            print(f"  differed in one of two runs: {test}")
    for test in sorted(differing):
        ends = [", ".join(sorted(r for t, r in side if t == test)) or "absent" for side in (outside, inside)]
        print(f"  differs: {test}: {ends[0]} outside, {ends[1]} inside")
    return bool(outside) and not differing


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--leasehold", type=pathlib.Path, required=True, help="the binary to judge")
    arguments.add_argument("--work", type=pathlib.Path, required=True, help="where sources and logs are kept")
    arguments.add_argument("projects", nargs="*", help="names from projects.toml; all of them when none is given")
    given = arguments.parse_args()
    projects = tomllib.loads((HERE / "projects.toml").read_text())
    # A target directory elsewhere would lie outside the workspace.
    os.environ.pop("CARGO_TARGET_DIR", None)
    work, leasehold = given.work.resolve(), given.leasehold.resolve()
    # What the tests change is kept until it is discarded: here, not among the user's own changes.
    os.environ["LEASEHOLD_DATA_DIR"] = str(work / "leasehold")
    same = [compare(name, projects[name], work, leasehold) for name in given.projects or projects]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
