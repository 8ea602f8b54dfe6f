# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: signals act as in a terminal, a skip that tests/allowed_skips.txt does not name fails the
run (NEREID_ANY_SKIP=1 lets all pass), and where folders of passed tests are not kept, a fixture's goes with the fixture."""
import fnmatch
import os
import pathlib
import shutil
import signal

import pytest

# A shell's background job ignores SIGINT, and one under nohup SIGHUP; programs that tests start would do so too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The threads of `tokenizers` once waited for each other for ever.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LIST = pathlib.Path(__file__).with_name("allowed_skips.txt")


def allowed(nodeid, patterns):
    name = nodeid.split("[")[0]  # brackets of parameters are no pattern
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def read_patterns(path=LIST):
    lines = (line.split("#")[0].split() for line in path.read_text().splitlines())
    return [words[0] for words in lines if words]


def reason_of(report):
    longrepr = report.longrepr
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)


class Skips:
    """Collects the skips of one run that nobody allowed."""

    def __init__(self):
        self.patterns, self.found = read_patterns(), []

    def note(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            # a whole file has no test name: its tests are meant
            name = report.nodeid if "::" in report.nodeid else report.nodeid + "::"
            if not allowed(name, self.patterns):
                self.found.append((report.nodeid, reason_of(report)))

    def pytest_runtest_logreport(self, report):
        self.note(report)

    def pytest_collectreport(self, report):
        self.note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.found:
            terminalreporter.section("skips that tests/allowed_skips.txt does not name", red=True)
            for nodeid, reason in self.found:
                terminalreporter.line(f"{nodeid}: {reason}")
            terminalreporter.line(f"{len(self.found)} failed: skipped without leave")


class Folders:
    """pytest keeps what tmp_path_factory has made until the end of the run, which is most of a run's files: here a folder goes when
    the fixture that asked for it ends and nothing has failed meanwhile."""

    def __init__(self):
        self.making = []  # of each fixture that is being set up the list of its folders

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        folders, failed = [], request.session.testsfailed

        def remove():
            if request.session.testsfailed == failed:
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)

        fixturedef.addfinalizer(remove)  # the last to run is what was added first: its server has ended by then
        self.making.append(folders)
        try:
            return (yield)
        finally:
            self.making.pop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session):
        make = pytest.TempPathFactory.mktemp

        def mktemp(factory, basename, numbered=True):
            folder = make(factory, basename, numbered)
            if self.making:
                self.making[-1].append(folder)
            return folder

        pytest.TempPathFactory.mktemp = mktemp


def pytest_configure(config):
    if config.getini("tmp_path_retention_policy") != "all":
        config.pluginmanager.register(Folders(), "nereid-folders")
    if not os.environ.get("NEREID_ANY_SKIP"):
        config.pluginmanager.register(Skips(), "nereid-skips")
