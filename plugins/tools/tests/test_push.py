"""``torch-hal push``: what is uploaded, through the real client to a server in this process."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module, Trainer

pytest.importorskip("huggingface_hub")

from safetensors.torch import load_file
from torch_hal_tools.push import main


class Net(Module):
    """With hyperparameters and a metric."""

    def __init__(self, width: int = 4, note: str = "a|b") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(scope="module", params=["torch", "sharded"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a fit, as one file and as a directory."""
    path = tmp_path_factory.mktemp("run") / "last.ckpt"
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, checkpoint_io=request.param, **quiet)  # type: ignore[arg-type]
    trainer.fit(Net(), DataLoader(TensorDataset(torch.rand(8, 4)), 4))
    trainer.save_checkpoint(path)
    return path


class Hub(ThreadingHTTPServer):
    """What of the hub's interface an upload needs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.message = ""
        self.token: str | None = None
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers as the hub does."""

    server: Hub

    def do_POST(self) -> None:
        """An upload: the repository, the files' kind, the commit."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.token = self.headers.get("Authorization")
        answer: dict[str, Any] = {}
        if self.server.token != "Bearer hf_right":
            self._send(401, {"error": "Invalid credentials"})
            return
        if self.path.endswith("/repos/create"):
            self.server.created.append(json.loads(body))
            answer = {"url": f"{self.server.address}/me/net"}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer["files"] = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
        elif self.path == "/api/models/me/net/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.server.message = line["value"]["summary"]
                else:
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"{self.server.address}/me/net/commit/abc", "commitOid": "abc", "hookOutput": ""}
        self._send(200, answer)

    def do_GET(self) -> None:
        """Whatever else the client asks."""
        right = self.headers.get("Authorization") in (None, "Bearer hf_right")
        self._send(*((200, {}) if right else (401, {"error": "Invalid credentials"})))

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A server."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def push(hub: Hub, tmp_path: Path, *arguments: str, token: str = "hf_right") -> subprocess.CompletedProcess[str]:
    """Run the command with this hub; the client reads its environment when it is imported."""
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": token, "PATH": "", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "torch_hal_tools.push", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_weights_hyperparameters_and_card_are_uploaded(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """In one commit; what is downloaded loads into the module, to the same values."""
    done = push(hub, tmp_path, str(checkpoint), "me/net", "--private", "--license", "apache-2.0", "--message", "First")
    assert (done.returncode, done.stdout) == (0, f"{hub.address}/me/net/commit/abc\n"), done.stderr
    assert hub.created[0]["name"] == "net"
    assert hub.created[0].get("visibility") == "private" or hub.created[0].get("private")
    assert hub.message == "First"
    assert sorted(hub.files) == ["README.md", "config.json", "model.safetensors"]
    assert json.loads(hub.files["config.json"]) == {"width": 4, "note": "a|b"}
    (tmp_path / "downloaded").write_bytes(hub.files["model.safetensors"])
    weights = load_file(tmp_path / "downloaded")
    trained = Net.load_from_checkpoint(checkpoint).state_dict()
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], trained[name]) for name in trained)
    card = hub.files["README.md"].decode()
    assert card.startswith("---\n")
    assert "license: apache-2.0" in card
    assert "10 values in 2 tensors, F32" in card
    assert "| epochs | 2 |" in card
    assert "| steps | 4 |" in card
    assert "| strategy | single_device |" in card
    assert "| width | 4 |" in card
    assert "| note | a&#124;b |" in card


def test_what_the_hub_refuses(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    """Is said in one error, without a traceback; nothing is there."""
    done = push(hub, tmp_path, str(checkpoint), "me/net", token="hf_wrong")
    assert done.returncode == 2
    assert "me/net" in done.stderr
    assert "401" in done.stderr
    assert "Traceback" not in done.stderr
    assert not hub.files


def test_to_a_folder(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a hub; a folder with files is refused."""
    folder = tmp_path / "out"
    assert main([str(checkpoint), "me/net", "--to-folder", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    with pytest.raises(SystemExit):
        main([str(checkpoint), "me/net", "--to-folder", str(folder)])
    assert "is not empty" in capsys.readouterr().err


def test_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, before anything is created on the hub."""
    assert main([str(tmp_path / "none.ckpt"), "me/net"], "torch-hal push") == 2
    assert "none.ckpt" in capsys.readouterr().err


def test_a_lightning_checkpoint(tmp_path: Path) -> None:
    """Of which only the weights and hyperparameters are known."""
    net = Net()
    parts = {"state_dict": net.state_dict(), "hyper_parameters": {"width": 4}, "pytorch-lightning_version": "2.6.0"}
    torch.save(parts, tmp_path / "theirs.ckpt")
    assert main([str(tmp_path / "theirs.ckpt"), "me/net", "--to-folder", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "## Hyperparameters" in card
    assert "## Training" not in card
