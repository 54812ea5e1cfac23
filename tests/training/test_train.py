"""`remate train`: scripts as people write them run unchanged, and end as by Python, to the bit."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from remate.cli import main
from remate_runtime import SteppedAsideWarning, load
from remate_runtime.format import output_leaves
from remate_runtime.torch_private.execution import is_profiled

from ..cli.processes import environment

NET = """
import sys, torch, torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs=4):
        super().__init__()
        self.body = nn.Sequential(*[p for _ in range(3) for p in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))])
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.body(x))

def end(*models):
    print(*[t.double().sum().item().hex() for m in models for t in m.state_dict().values()], torch.rand(1).item())

torch.manual_seed(0)
"""
PLAIN = (
    NET
    + """
net = Net()
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters())
for size in (64, 64, 64, 64, 64, 20):
    loss = loss_of(net(torch.randn(size, 16)), torch.randint(4, (size,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
end(net)
print(sys.argv[1:], __name__, __file__, sys.path[0])
"""
)
GAN = (
    NET
    + """
class Critic(Net):
    pass

make, judge = Net(16), Critic(1)
optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (make, judge)]
for step in range(5):
    real, fake = torch.randn(64, 16), make(torch.randn(64, 16))
    optimizers[1].zero_grad()
    loss = judge(fake.detach()).mean() - judge(real).mean()
    if "penalty" in sys.argv:
        between = real.clone().requires_grad_()
        slope, = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        loss = loss + (slope.norm(dim=1) - 1).square().mean()
    loss.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    (-judge(fake).mean()).backward()
    optimizers[0].step()
end(make, judge)
"""
)
FOLDS = (
    NET
    + """
for fold in range(3):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        net(torch.randn(64, 16)).square().mean().backward()
        optimizer.step()
    end(net)
"""
)
PENALTY = (
    NET
    + """
class Code(Net):
    def forward(self, x):
        y = self.head(self.body(x))
        return y, y.square().mean()

net = Code()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    y, scalar = net(torch.randn(64, 16))
    (scalar if "loss" in sys.argv else y.exp().mean() + scalar).backward()
    optimizer.step()
end(net)
"""
)
UNFROZEN = (
    NET
    + """
net = Net()
net.body.requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(10):
    net.body.requires_grad_(step >= 5)
    optimizer.zero_grad()
    net(torch.randn(64, 16)).square().mean().backward()
    optimizer.step()
end(net)
"""
)
QUICK = ("--cost", "cpu", "--effort", "quick", "--budget", "95%")


def written(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def by_python(path: str, *arguments: str) -> str:
    command = [sys.executable, path, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


def plainly(path: str, *arguments: str) -> str:
    """What a script prints by Python, in this process."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", [path, *arguments])
        patch.syspath_prepend(str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
    return out.getvalue()


def train(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["train", *QUICK, *words])
    assert not is_profiled()  # a process that ends with a profiler crashes
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.slow
def test_a_script_runs_as_by_python_and_says_what_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, file = written(tmp_path, PLAIN), tmp_path / "plan.json"
    kept = sys.argv, sys.path[:], sys.modules["__main__"]
    status, out, err = train(capsys, "--file", str(file), script, "--budget", "ours", "--", "-x")
    assert (sys.argv, sys.path, sys.modules["__main__"]) == kept
    assert status == 0
    assert out == by_python(script, "--budget", "ours", "--", "-x")
    assert file.exists()
    assert re.search(r"remate: Net, 4 steps with a schedule that was planned in .* s; .*plan\.json\n", err)
    assert re.search(r"peak of a step +[\d.]+ KiB +[\d.]+ KiB +0\.\d\d\n", err)
    assert re.search(r"time of a step +[\d.]+ \w+ +[\d.]+ \w+ +\d+\.\d\d\n", err)
    before = file.read_bytes()
    assert train(capsys, "--file", str(file), script, "--budget", "ours", "--", "-x")[:2] == (0, out)
    assert train(capsys, "--file", str(file), "--quiet", script, "--budget", "ours", "--", "-x")[2] == ""
    assert file.read_bytes() == before


@pytest.mark.slow
def test_gradients_that_last_through_forward_are_said_and_the_advice_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = PLAIN.replace("nn.Linear(16, 16)", "nn.Linear(16, 128), nn.Linear(128, 16)").replace(
        ", 64, 20)", ", 64, 64, 64, 64)"
    )
    model, zeroed = "    loss = loss_of(", "    optimizer.zero_grad()\n"
    assert wide.index(model) < wide.index(zeroed)
    said = r"KiB of gradients of the step before lasted through forward, and count in the peak:\n  call optimizer.zero_grad"
    file = str(tmp_path / "plan.json")
    assert re.search(said, train(capsys, "--file", file, written(tmp_path, wide))[2])
    before = wide.replace(zeroed, "").replace(model, zeroed + model)
    assert not re.search(said, train(capsys, "--file", file, written(tmp_path, before))[2])


@pytest.mark.slow
def test_two_models_have_a_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, file = written(tmp_path, GAN), tmp_path / "plan.json"
    wanted = plainly(script)
    status, out, err = train(capsys, "--file", str(file), "--dims", "none", script)
    assert (status, out) == (0, wanted)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["plan.Critic.json", "plan.json"]
    assert re.search(r"remate: Net, 3 steps(.|\n)*remate: Critic, \d+ steps", err)
    again = train(capsys, "--file", str(file), "--dims", "none", script)
    assert again[:2] == (0, wanted)
    assert len(re.findall(r"with a schedule that was read in", again[2])) == 2


@pytest.mark.slow
def test_what_no_schedule_can_do_is_left_alone_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, GAN)
    wanted, penalized = plainly(script), plainly(script, "penalty")
    status, out, err = train(capsys, script, "penalty")
    assert (status, out) == (0, penalized)
    assert "remate: Critic was not planned: a call of it is differentiated again (create_graph=True)" in err
    assert "remate: Net, 3 steps" in err
    status, out, err = train(capsys, "--skip", "Net", "--skip", "Critic", script)
    assert (status, out) == (0, wanted)
    assert err.count("was not planned: it is skipped") == 2
    impossible = written(tmp_path, PLAIN)
    wanted = plainly(impossible)
    with pytest.warns(UserWarning, match="trains with its own forward"):
        status, out, err = train(capsys, "--budget", "1%", "--on-infeasible", "error", impossible)
    assert (status, out) == (0, wanted)
    assert re.search(r"remate: Net was not planned: the step .*cannot be planned within", err)
    with pytest.warns(UserWarning, match="OVER BUDGET"):
        status, out, err = train(capsys, "--budget", "1%", impossible)
    assert (status, out) == (0, wanted)
    assert re.search(r"remate: Net, \d+ steps with a schedule that was planned", err), err
    nothing = written(tmp_path, NET + "print(Net()(torch.ones(2, 16)).shape)\n")
    assert "remate: no module was planned" in train(capsys, nothing)[2]


@pytest.mark.slow
def test_models_that_follow_each_other_share_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, FOLDS)
    wanted = plainly(script)
    status, out, err = train(capsys, "--dims", "none", script)
    assert (status, out) == (0, wanted)
    assert err.count("remate: Net: peak") == 3
    assert re.search(r"remate: Net, \d+ steps with a schedule that was read", err), err


@pytest.mark.slow
def test_steps_count_after_more_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No schedule helps while the body is frozen. Later steps have one, and are not compared with the frozen ones."""
    script = written(tmp_path, UNFROZEN)
    wanted = plainly(script)
    status, out, err = train(capsys, "--dims", "none", script)
    assert (status, out) == (0, wanted)
    assert "trains with its own forward: no schedule needs less memory" in err
    assert "remate: Net, 5 steps with a schedule" in err
    assert re.search(r"peak of a step +not measured +\d", err), err


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("sys.exit()", 0, ""),
        ("1 / 0", 1, 'script.py", line 3, in <module>\n    1 / 0\n'),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)",
            130,
            "KeyboardInterrupt",
        ),
    ],
)
def test_a_script_ends_as_it_wants_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, status: int, told: str
) -> None:
    script = written(tmp_path, f"import sys\nprint(__name__)\n{line}\n")
    actual, out, err = train(capsys, script)
    assert (actual, out) == (status, "__main__\n")
    assert told in err
    assert "remate/training" not in err


@pytest.mark.quick("thread = threading.Thread(target=Net(), args=(x,))\\nthread.start()\\nthread.join()")
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("y = Net()(x)\n1 / 0", 1),
        ("net = Net()\ny = net(x)\ndel net\nother = Net()\ny = other(x)", 0),
        # Joined: a thread that outlives this test would draw from the generator of the next test's script.
        ("thread = threading.Thread(target=Net(), args=(x,))\nthread.start()\nthread.join()", 0),
        ("net = Net()\ny = net(x)\nthread = threading.Thread(target=step)\nthread.start()\nthread.join()\nstep()", 0),
    ],
)
def test_a_measured_step_without_a_backward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, status: int
) -> None:
    text = "import threading\nx = torch.randn(4, 16)\ndef step():\n    net(x).sum().backward()\n" + lines
    assert train(capsys, written(tmp_path, NET + text))[:2] == (status, "")


def test_a_module_runs_as_by_python_m(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer_of_ours.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    assert train(capsys, "-m", "trainer_of_ours", "--lr", "1")[:2] == (0, "__main__ ['--lr', '1']\n")


def test_wrong_words_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        ((), "needs one script"),
        (("--file", "s.json"), "needs one script"),
        ((str(tmp_path / "none.py"),), "no such file"),
        (("--bugdet", "1"), "no option --bugdet"),
    ):
        status, _, err = train(capsys, *words)
        assert status == 2
        assert told in err


@pytest.mark.slow
def test_a_script_is_planned_without_a_build_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, file = written(tmp_path, GAN), tmp_path / "plan.json"
    wanted = plainly(script)
    plan = ["plan", script, "--from-script", *QUICK, "-o", str(file)]
    assert main([*plan, "--", "--lr", "1"]) == 0
    said = capsys.readouterr()
    assert f"next: remate train --file {file} {script}" in said.out
    assert load(file).name == "plan"
    assert main([*plan, "--module", "Net"]) == 0
    assert main([*plan, "--module", "Other"]) == 1
    assert re.search(r"makes no second training call of a Other\nhint: it trains Critic, Net", capsys.readouterr().err)
    assert main(["plan", str(tmp_path / "none.py"), "--from-script", "-o", str(file)]) == 2
    status, out, _ = train(capsys, "--file", str(file), "--dims", "none", script)
    assert (status, out) == (0, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "planned"), [((), 2), (("loss",), 1)])
def test_outputs_beside_a_scalar_get_a_gradient_if_the_script_uses_one(
    words: tuple[str, ...], planned: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script may compute with `logits` of `return logits, loss`, too; the first steps show it."""
    script, file = written(tmp_path, PENALTY), tmp_path / "plan.json"
    wanted = plainly(script, "--", *words)
    status, out, _ = train(capsys, "--file", str(file), script, "--", *words)
    assert (status, out) == (0, wanted)
    assert sum(leaf.grad for leaf in output_leaves(load(file).model.outputs)) == planned


def test_steps_that_the_schedule_steps_aside_for_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = written(tmp_path, PLAIN)
    with pytest.warns(SteppedAsideWarning) as told:
        status, _, err = train(capsys, "--dims", "none", script)
    assert status == 0
    assert "remate: Net, 3 steps with a schedule" in err
    assert [warning.filename for warning in told] == [script]


def test_a_defect_of_planning_does_not_stop_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr("remate.training.state.planned_again", fails)
    script = written(tmp_path, PLAIN)
    wanted = plainly(script)
    with pytest.warns(SteppedAsideWarning, match="planning failed"):
        status, out, err = train(capsys, script)
    assert (status, out) == (0, wanted)
    assert "Net was not planned: planning failed, which is a defect of remate: IndexError: out of range" in err
