#!/opt/venv/bin/python -IS
"""Whether the server in this container is ready: exit status 0 or 1, and why on standard output.

It asks `/health` of port 30000; `PAGEFALL_HEALTH_PORT` is for containers that listen elsewhere.
"""

import http.client
import os
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("PAGEFALL_HEALTH_PORT") or 30000), timeout=4)
try:
    connection.request("GET", "/health")
    status = connection.getresponse().status
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"no answer: {error}")
sys.stdout.write(f"/health answers {status}\n")
sys.exit(status != http.client.OK)
